"""gpt-neox's YAML files, and scripts that run ``deepy.py`` with some of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import AlikeRecompute
from taylor.parsers.gptneox.model import attention_kinds
from taylor.parsers.gptneox.partition import METHODS, stage_layers
from taylor.parsers.gptneox.read import ACCUMULATION, CHECKPOINTS, MBS, METHOD, NAME, TOTAL, config_of, merged
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.deepspeed import beside
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec

_YAML = (".yml", ".yaml")
_STARTS = re.compile(r"\bdeepy\.py\b")
_MOST_FILES = 32


class GptNeox(AlikeRecompute):
    """gpt-neox's YAML.

    Layers follow from the partition's method: a plan that one of `METHODS` gives can be written, with recompute of all
    layers or none.
    """

    recomputing = CHECKPOINTS
    degree_words = {
        "tp": "model_parallel_size",
        "pp": "pipe_parallel_size",
        "op": "zero_optimization.stage",
        "sp": "sequence_parallel",
        "mbs": MBS,
        "gbs": TOTAL,
        "seq": "seq_length",
    }
    name = NAME
    title = "gpt-neox YAML"
    suffixes: tuple[str, ...] = _YAML
    telltale = re.compile(
        r"^[\s{]*[\"']?(?:pipe[-_]parallel[-_]size|model[-_]parallel[-_]size|gpt[-_]j[-_]residual|no[-_]weight[-_]tying"
        r"|checkpoint[-_]activations|pos[-_]emb)[\"']?\s*:",
        re.MULTILINE,
    )
    plan_keys = frozenset({MBS, ACCUMULATION, TOTAL, CHECKPOINTS, "checkpoint_num_layers", METHOD})
    usual_device = UsualDevice("a100-80g", "gpt-neox files")
    no_dryrun = NoDryrun("is started by gpt-neox, which has no dry-run", cure="take the estimate")
    has_own_marks = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_of(merged([YamlSource.read(path)]), path)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        config.refuse_other_stages(plan, "pipe_parallel_size")
        source = YamlSource.read(config.path)
        wanted = {} if micro_batches is None else self._batch(config, None, micro_batches)
        return source.text, self._edited(source, config, plan, wanted).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are dotted."""
        if strategy.vpp > 1 or strategy.cp > 1 or strategy.ep > 1:
            name = next(each for each in ("vpp", "cp", "ep") if getattr(strategy, each) > 1)
            problem = "cannot be said by a gpt-neox YAML, whose pipeline has neither virtual stages nor such ranks"
            raise InputError(problem, file=config.path, field=name, value=getattr(strategy, name))
        source = YamlSource.read(config.path)
        wanted = self._batch(config, strategy.mbs, strategy.micro_batches)
        wanted |= {"pipe_parallel_size": strategy.pp, "model_parallel_size": strategy.tp}
        if strategy.tp > 1 and strategy.sp != config.strategy.sp:
            wanted["sequence_parallel"] = strategy.sp
        if TOTAL in merged([source]):
            wanted[TOTAL] = strategy.global_batch
        wanted |= extra
        if plan is not None:
            wanted |= _layers(config, sum(map(sum, body_layers(plan))), merged([source]))
        changed = edit_yaml(source, _paths(source, wanted))
        current = config_of(merged([changed]), config.path)
        if plan is None:
            plan = current.even_plan(strategy)
        return self._edited(changed, current, plan, {}).text

    @staticmethod
    def _batch(config: TrainingConfig, mbs: int | None, micro_batches: int) -> dict[str, object]:
        own = config.strategy
        wanted: dict[str, object] = {}
        if mbs is not None and mbs != own.mbs:
            wanted[MBS] = mbs
        if micro_batches != own.micro_batches:
            wanted[ACCUMULATION] = micro_batches
            if not config.batch_follows_ranks:
                wanted[TOTAL] = own.dp * (mbs or own.mbs) * micro_batches
        return wanted

    def _edited(
        self, source: YamlSource, config: TrainingConfig, plan: PipelinePlan, wanted: dict[str, object]
    ) -> YamlSource:
        """The file with a plan's recompute, and the method that places layers as it does.

        Raises
        ------
        InputError
            When none does.
        """
        own = config.plan
        if own is None or body_layers(own) != body_layers(plan):
            wanted[METHOD] = _method(config, plan)
        recomputes = plan.uses(FULL)
        if own is None or own.uses(FULL) != recomputes or (recomputes and config.recompute_group > 1):
            wanted[CHECKPOINTS] = recomputes
            if recomputes and config.recompute_group > 1:
                wanted["checkpoint_num_layers"] = 1
        return edit_yaml(source, _paths(source, wanted)) if wanted else source

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """See `Launcher.can_write`: DeepSpeed's pipeline runs 1F1B alone."""
        return schedule.name == config.schedule.name


def _method(config: TrainingConfig, plan: PipelinePlan) -> str:
    """The partition's method that places layers as a plan does.

    Raises
    ------
    InputError
        When none does.
    """
    sizes = [sum(column) for column in zip(*body_layers(plan), strict=True)]
    for method in METHODS:
        if plan.interleaves == 1 and stage_layers(method, config.model, plan.stages) == sizes:
            return method
    cure = "plan the recompute of the file's stages, or keep the plan as JSON (-o FILE.json)"
    problem = "places layers by a method, of which none gives the plan's stages"
    raise InputError(problem, file=config.path, field=METHOD, value=str(sizes), cure=cure)


def _layers(config: TrainingConfig, layers: int, data: Mapping[str, Any]) -> dict[str, object]:
    """Settings of another number of layers; none where it is the model's.

    Raises
    ------
    InputError
        When the file names several kinds of attention in turn.
    """
    if layers == config.model.n_layers:
        return {}
    wanted: dict[str, object] = {"num_layers": layers}
    if data.get("attention_config") is not None:
        kinds = attention_kinds(Fields(data, config.path))
        if len(kinds) > 1:
            problem = "names several kinds of attention in turn: another number of layers cannot be written"
            raise InputError(problem, file=config.path, field="attention_config")
        wanted["attention_config"] = [[sorted(kinds), layers]]
    return wanted


class GptNeoxScript(GptNeox):
    """A script that runs ``deepy.py train.py`` with several YAML files, which gpt-neox merges."""

    name = "gpt-neox-script"
    title = "gpt-neox script"
    suffixes = (".sh",)
    telltale = re.compile(rf"^[^#\n]*{_STARTS.pattern}", re.MULTILINE)
    plan_keys = frozenset({"no key: they stand in the files that it names"})

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        sources = [YamlSource.read(file) for file in _named_files(path)]
        return config_of(merged(sources), path).replace(launcher=self.name)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """Nothing is written into a script that names other files.

        Raises
        ------
        InputError
            Always.
        """
        raise _elsewhere(config)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """The same.

        Raises
        ------
        InputError
            Always.
        """
        raise _elsewhere(config)


def _elsewhere(config: TrainingConfig) -> InputError:
    cure = "give the YAML with the model and the batch by -yaml"
    return InputError("names the files that state the job, and nothing is written into it", file=config.path, cure=cure)


def _named_files(path: Path) -> list[Path]:
    """The YAML files behind ``train.py``, in their order; with ``-d FOLDER`` in that folder.

    Raises
    ------
    InputError
        When there is none, or one is missing.
    """
    for command in ShellScript.read(path).commands:
        words = [word.text for word in command.words]
        if not any(_STARTS.search(word) for word in words):
            continue
        flags = [at for at, word in enumerate(words[:-1]) if word in ("-d", "--conf_dir")]
        folder = words[flags[-1] + 1] if flags else ""
        names = [word for word in words if word.endswith(_YAML)][:_MOST_FILES]
        if flags:
            start = words.index("train.py") + 1 if "train.py" in words else flags[-1] + 2
            bare = [word for word in words[start:] if not word.startswith("-") and word != folder]
            names = [word if word.endswith(_YAML) else f"{word}.yml" for word in bare if not word.endswith(".py")]
        found = []
        for name in names:
            file = beside(f"{folder}/{name}" if folder else name, path)
            if file is None:
                cure = "put it beside the script, or in a folder above it"
                raise InputError("is not found", file=path, field="deepy.py", value=name[:80], cure=cure)
            found.append(file)
        if found:
            return found
    raise InputError("runs deepy.py with no YAML file", file=path, cure="write them behind train.py")


def _paths(source: YamlSource, wanted: Mapping[str, object]) -> dict[tuple[Any, ...], Any]:
    """Places of settings, each under the name with which the file has it: ``_`` or ``-``."""
    spelled = {str(name).replace("-", "_"): name for name in source.data}
    paths: dict[tuple[Any, ...], Any] = {}
    for name, value in wanted.items():
        first, *rest = name.split(".")
        path = (spelled.get(first, first), *rest)
        paths[path] = value
    return paths
