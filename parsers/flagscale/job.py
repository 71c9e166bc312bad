"""A FlagScale experiment as a launch by Megatron's flags."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.flagscale.experiment import SECTIONS, Experiment
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting, has_setting, yaml_value
from taylor.parsers.text.flags import WORLD_FLAGS, Flag, Flags
from taylor.parsers.text.shell_words import Char, Word
from taylor.parsers.text.yaml_source import YamlPath

NAME = "flagscale"
_LEFT_OUT = ("log_dir", "details_dir", "scripts_dir", "pids_dir")
"""Keys that FlagScale keeps for itself (FlagOpen/FlagScale da4935ec flagscale/runner/runner_train.py:44)."""
_RUNNER = ("experiment", "runner")
_ULYSSES = "ulysses-sp-parallel-size"
_REFUSED = {
    _ULYSSES: "FlagScale's Ulysses groups beside context parallel are not modelled",
    "enable-hetero": "stages of unlike devices and degrees are not modelled",
    "use-dualpipev": "FlagScale's DualPipeV is not modelled",
    "recompute-granularity-per-stage-micro-batch": "recompute by stage and micro-batch is not modelled",
    "recompute-method-per-stage-micro-batch": "recompute by stage and micro-batch is not modelled",
    "recompute-num-layers-per-stage-micro-batch": "recompute by stage and micro-batch is not modelled",
    "language-model-type": "a vision model beside the language model is not modelled",
    "vision-root": "a vision model beside the language model is not modelled",
}
"""Flags that change what a stage holds or runs; flags.yaml has their sources."""
_OTHER_MODELS = {
    "train_llava.py": "a vision model beside the language model",
    "train_llava_onevision.py": "a vision model beside the language model",
    "train_qwen2_5_vl.py": "a vision model beside the language model",
    "train_rwkv.py": "RWKV layers",
}
"""Programs in flagscale/train that build another model from the same flags."""


class FlagScaleJob(Launch):
    """An experiment, or a train file alone; see `Launch`.

    FlagScale passes every entry of the train sections on as a flag: ``_`` as ``-``, sections inside them dissolved,
    True as a switch, False not at all, a list as several words (flagscale/runner/utils.py:271-290).

    Raises
    ------
    InputError
        When a train section is missing, or the job asks for what is not modelled.
    """

    launcher = NAME

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self.file, self.text = experiment.file, experiment.source.text
        self._paths: dict[str, list[YamlPath]] = {}
        notes: list[str] = []
        starting = self._rank_flags(notes)
        flags = [*starting, *self._train_flags()]
        file = experiment.source.file
        self.flags = Flags(file, flags, len(starting), self._place)
        self._refuse_not_modelled()
        width = _mlp_width(self.flags)
        if width is not None:
            self.flags = Flags(file, [*flags, _flag("ffn-hidden-size", [str(width)])], len(starting), self._place)
        if experiment.whole is None:
            notes.append(
                "a train file says neither ranks nor program: a GPT is assumed; the experiment that names it says both"
            )
        self.notes = tuple(notes)

    def table(self) -> FlagTable:
        """See `Launch.table`: FlagScale's own flags too."""
        own = load_flag_table("taylor.parsers.flagscale", "flags.yaml")
        return FlagTable(own.launcher, {**flag_table().rows, **own.rows})

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> FlagScaleJob:
        """See `Launch.with_flags`; a flag is removed by False, which FlagScale does not pass on."""
        edits: dict[YamlPath, Any] = {}
        beside: dict[str, tuple[str, ...]] = {}
        for name, setting in wanted.items():
            if has_setting(self.flags, name, setting):
                continue
            paths = self._paths.get(name)
            if setting is False and paths is None:
                continue
            if paths is None:
                home, siblings = self._home(near)
                key = name.replace("-", "_")
                paths, beside[key] = [(*home, key)], siblings
            edits |= {path: yaml_value(setting) for path in (paths if setting is False else paths[-1:])}
        changed = FlagScaleJob(self._experiment.edited(edits, beside)) if edits else self
        for name, setting in wanted.items():
            if not has_setting(changed.flags, name, setting):
                raise changed.flags.error(name, "cannot be set", setting)
        return changed

    def with_ranks(self, world: int) -> tuple[FlagScaleJob, dict[str, Setting]]:
        """See `Launch.with_ranks`: by the runner's nodes and processes a node."""
        now = self.flags.world_size()
        if now == world or now is None:
            return self, {}
        per_node = self.flags.integer("nproc-per-node")
        per_node = world if world % per_node else per_node
        wanted = {(*_RUNNER, "nnodes"): world // per_node, (*_RUNNER, "nproc_per_node"): per_node}
        changed = FlagScaleJob(self._experiment.edited(wanted, {}))
        if changed.flags.world_size() != world:
            raise InputError(
                f"do not let it start {world} ranks",
                file=self.file,
                field="experiment.runner, experiment.envs.CUDA_VISIBLE_DEVICES",
                cure="name that many devices",
            )
        return changed, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return bool(value) if isinstance(value, bool) or value is None else str(value)

    def in_one_file(self) -> FlagScaleJob:
        """See `Experiment.in_one_file`."""
        return FlagScaleJob(self._experiment.in_one_file())

    # ---- what FlagScale passes on ---------------------------------------------------------------

    def _train_flags(self) -> list[Flag]:
        prefix, data = self._experiment.prefix, self._experiment.source.data
        for step in prefix:
            data = data[step]
        merged: dict[Any, tuple[str, Any]] = {}
        for section in SECTIONS:
            content = data.get(section)
            if not isinstance(content, Mapping):
                raise InputError(
                    "must be a mapping of names to values" if section in data else "is missing",
                    file=self._experiment.source.file,
                    field=".".join((*prefix, section)),
                    cure=f"a FlagScale train file has {', '.join(SECTIONS)}",
                )
            merged |= {key: (section, value) for key, value in content.items()}
        return [
            flag
            for key, (section, value) in merged.items()
            for flag in self._flattened({key: value}, (*prefix, section))
        ]

    def _flattened(self, data: Mapping[Any, Any], above: YamlPath) -> Iterator[Flag]:
        for key, written in data.items():
            if key in _LEFT_OUT:
                continue
            path = (*above, key)
            if isinstance(written, Mapping):
                yield from self._flattened(written, path)
                continue
            name = str(key).replace("_", "-")
            self._paths.setdefault(name, []).append(path)
            value = self._experiment.resolved(written)
            if isinstance(value, bool):
                if value:
                    yield _flag(name, [])
                continue
            try:
                yield _flag(name, [str(each) for each in (value if isinstance(value, list) else [value])])
            except ValueError:  # Python writes out no number of more than some thousand digits.
                place = ".".join(map(str, path))
                raise InputError("is too long a number", file=self._experiment.source.file, field=place) from None

    def _rank_flags(self, notes: list[str]) -> list[Flag]:
        """The ranks by the runner (flagscale/runner/utils.py:293-330).

        A hostfile lies where the job starts and is not read: what the experiment states is taken for its hosts. A
        value that is known only when the job starts stays one, so that the ranks of a node count alone.
        """
        value = self._experiment.value
        if self._experiment.whole is None:
            return []
        hosts, nodes = value("experiment.runner.hostfile"), value("experiment.runner.nnodes")
        if value("experiment.runner.per_node_task") is True:
            nodes = 1
        if nodes is None and hosts is None:
            nodes = 1
        per_node, visible = value("experiment.runner.nproc_per_node"), value("experiment.envs.CUDA_VISIBLE_DEVICES")
        if isinstance(visible, str) and "${" not in visible:
            seen = len(visible.split(","))
            per_node = seen if per_node is None else min(per_node, seen) if isinstance(per_node, int) else per_node
        if per_node is None and hosts is None:
            per_node = 1
        if per_node is None:
            return []
        if nodes is None:  # As many as there are hosts.
            return [_flag("nnodes", ["${experiment.runner.hostfile}"]), _flag("nproc-per-node", [str(per_node)])]
        if hosts is None and nodes != 1 and value("experiment.runner.type") != "cloud":
            notes.append(f"experiment.runner.nnodes {nodes} is taken; without a hostfile FlagScale starts one node")
        counted = str(nodes).partition(":")[0] if re.fullmatch(r"\d+:\d+", str(nodes)) else str(nodes)
        return [_flag("nnodes", [counted]), _flag("nproc-per-node", [str(per_node)])]

    def _place(self, name: str) -> str:
        """Place where the file states a flag, or would."""
        if name in self._paths:
            return ".".join(map(str, self._paths[name][-1]))
        key = name.replace("-", "_")
        return f"experiment.runner.{key}" if name in WORLD_FLAGS else ".".join((*self._experiment.prefix, "model", key))

    def _refuse_not_modelled(self) -> None:
        program = str(self._experiment.value("experiment.task.entrypoint") or "").rpartition("/")[2]
        if program in _OTHER_MODELS:
            raise InputError(
                f"trains what is not modelled: {_OTHER_MODELS[program]}",
                file=self.file,
                field="experiment.task.entrypoint",
                value=program,
                cure="give an experiment that trains a language model",
            )
        for name, problem in _REFUSED.items():
            if self.flags.has(name) and not (name == _ULYSSES and self.flags.text(name) == "1"):
                raise self.flags.error(name, problem, cure="leave it out to plan the job without it")

    def _home(self, near: tuple[str, ...]) -> tuple[YamlPath, tuple[str, ...]]:
        """The section that a new flag goes into, and the keys that it goes beside, best first."""
        for name in near:
            if name in self._paths:
                path = self._paths[name][-1]
                return path[:-1], (str(path[-1]),)
        return (*self._experiment.prefix, "model"), ()


def _flag(name: str, values: list[str]) -> Flag:
    return Flag(name, _word(f"--{name}"), tuple(map(_word, values)))


def _word(text: str) -> Word:
    """A word that no script holds; unknown where a reference in it could not be followed."""
    unknown = "${" in text
    return Word(tuple(Char(char, None, unknown=unknown) for char in text))


def _mlp_width(flags: Flags) -> int | None:
    """The MLP's width where FlagScale works it out from ``--multiple-of``; None where it does not.

    Source: flagscale/backends/Megatron-LM/megatron/training/arguments.py.patch, `validate_args`.
    """
    if flags.has("ffn-hidden-size") or not (flags.has("swiglu") and flags.has("multiple-of")):
        return None
    multiple, wider = flags.integer("multiple-of"), "hidden-dim-multiplier"
    width = int(4 * flags.integer("hidden-size", high=MAX_SIZE) * 2 / 3)
    scaled = width * flags.number(wider, default=1.0)
    if not 1 <= scaled <= MAX_SIZE:
        raise flags.error(wider, f"makes the MLP's width {width} no size from 1 to {MAX_SIZE}", flags.text(wider))
    return multiple * -(-int(scaled) // multiple)
