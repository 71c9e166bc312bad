"""A shell script that starts a published recipe of Megatron-Bridge with overrides, as a launch by Megatron's flags.

Sources: NVIDIA-NeMo/Megatron-Bridge 067f987d scripts/training/run_recipe.py:168-260 (options of the command), the
``section.field=value`` overrides of src/megatron/bridge/training/utils/omegaconf_utils.py, scripts/training/
setup_experiment.py:66-74 (``--nodes``, ``--gpus-per-node``). The options of the performance launcher are those of
`performance`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.bridge import performance
from taylor.parsers.bridge.adapters import adapters_of
from taylor.parsers.bridge.fields import RENAMED, flag, flags_of, is_flag, known_fields, refuse_frozen, stated_flags
from taylor.parsers.bridge.recipes import SOURCE, Recipe, known_recipe, nearest_names, precision
from taylor.parsers.flag_table import FlagTable
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.new_file import model_flags
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.named_model import named_model
from taylor.parsers.new_file import NewJob
from taylor.parsers.text.flag_edit import Setting, plain_value
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.shell_source import MAX_BYTES, Command, ShellScript
from taylor.parsers.text.shell_start import ShellStart, current_start
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.spelling import likely_meant
from taylor.register.model import ModelSpec

NAME = "bridge-script"
OVERRIDE = re.compile(
    r"\+{0,2}((?:model|train|ddp|optimizer|dataset|mixed_precision|comm_overlap|dist|peft)\.\w+)=(.*)"
)
"""An override: section, field and value."""
OPTIONS = {
    "-gb": "train.global_batch_size", "--global_batch_size": "train.global_batch_size",
    "-mb": "train.micro_batch_size", "--micro_batch_size": "train.micro_batch_size",
    "-sl": "dataset.seq_length", "--seq_length": "dataset.seq_length", "--seq-length": "dataset.seq_length",
    "-tp": "model.tensor_model_parallel_size", "--tensor_model_parallel_size": "model.tensor_model_parallel_size",
    "-pp": "model.pipeline_model_parallel_size", "--pipeline_model_parallel_size": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "--context_parallel_size": "model.context_parallel_size",
    "-vp": "model.virtual_pipeline_model_parallel_size",
    "--virtual_pipeline_model_parallel_size": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "--expert_model_parallel_size": "model.expert_model_parallel_size",
    "-etp": "model.expert_tensor_parallel_size", "--expert_tensor_parallel_size": "model.expert_tensor_parallel_size",
    "--pipeline_model_parallel_layout": "model.pipeline_model_parallel_layout",
}  # fmt: skip
"""Fields that options of the command set."""
_RANKS = {
    "--nodes": "nodes", "--nnodes": "nodes", "-N": "nodes", "--num_nodes": "nodes",
    "--gpus-per-node": "each", "--gpus_per_node": "each", "--nproc_per_node": "each", "--nproc-per-node": "each",
    "--ntasks-per-node": "each", "-gn": "each", "-ng": "all", "--num_gpus": "all",
}  # fmt: skip
_LOOP = re.compile(r"^[ \t]*for\s+(\w+)\s+in\s+\"?\$\{(\w+)\[[@*]\]\}\"?", re.M)
_SPLIT = re.compile(r"IFS=['\"]?(.)['\"]?\s+read\s+-r\s+([\w ]+?)\s*<<<\s*\"?\$\{?(\w+)\}?\"?")
_STARTS = re.compile(
    r"--recipe[=\s]|--model_recipe_name|(?<!\S)-mr\s"
    r"|(?:run_recipe\.py|train\.sh|setup_experiment\.py)\b.*\s--mode[=\s]"
)
_SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_moe_experts",
    "ffn_hidden_size",
    "hybrid_layer_pattern",
)
_NO_SIZES = ("seq-length", "max-position-embeddings", "mtp-num-layers", "use-flash-attn", "moe-token-dispatcher-type",
             "moe-grouped-gemm")  # fmt: skip


class BridgeScript(Launch):
    """A script that starts a recipe; see `Launch`.

    Parameters
    ----------
    script : ShellScript
    register_path : Path, optional
        The user's folder of registrations, for the recipe's model.
    model : ModelSpec, optional
        The model where it is known already.

    Raises
    ------
    InputError
        When it starts no published recipe, trains adapters that are not modelled, or its model is not known.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> None:
        self.file, self.text = script.file, script.text
        words = _command(script)
        chosen = performance.selection(words)
        if chosen is not None:
            words = performance.spelled_out(words)
            chosen = performance.selection(words)
        self.recipe = _recipe(words, chosen, script)
        notes = [*script.notes, f"recipe {self.recipe.name}: {SOURCE} src/megatron/bridge/{self.recipe.source}"]
        fields = dict(self.recipe.options)
        notes += _refuse_wrong_options(words, chosen is None, self.file)
        own = _overrides(script, words, chosen, self.recipe)
        fields |= performance.benchmark_defaults(self.recipe, own) | own if chosen is None else own
        _refuse_unsettled(self.recipe, own, self.file)
        _with_stages(fields, own, self.recipe, self.file)
        refuse_frozen(fields, self.file)
        self.model = model or _model(self.recipe, fields, self.file, register_path, notes)
        self.adapters = adapters_of(_peft(self.recipe, own, self.file), self.file)
        if self.model is not None:
            freezes = fields.get("model.freeze_vision_model") is True
            self.frozen = frozen_vision(self.model, notes, freezes=freezes)
        self.fields = fields
        ranks = _ranks(script, words, self.recipe, notes)
        _with_batch(fields, own, chosen, self.recipe, math.prod(ranks.values()), notes, self.file)
        _with_precision(fields)
        self.stated = stated_flags(fields)
        flags = flags_of(self.stated)
        starting = [flag(name, str(count)) for name, count in ranks.items()]
        if self.model is not None:
            sizes = _sizes(self.model)
            names = {each.name for each in sizes}
            flags = [*sizes, *(each for each in flags if each.name not in names)]
        self.flags = Flags(self.file, [*starting, *flags], len(starting), self._place)
        self.notes = tuple(notes)
        cure = "write it as overrides of the command: --export megatron-layout is the value of "
        cure += "model.pipeline_model_parallel_layout"
        self.plan_error = InputError("states its plan by a recipe and overrides", file=self.file, cure=cure)

    @classmethod
    def read(cls, path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> BridgeScript:
        """Read a script; of a loop over configurations, the first."""
        text, start = read_text(path, limit_bytes=MAX_BYTES), current_start()
        first = ShellScript(text, path, start=start)
        values, notes = _first_round(first, text, start)
        if values:
            first = ShellScript(text, path, start=ShellStart(start.arguments, {**values, **start.variables}))
            first.notes[:0] = notes
        return cls(first, register_path, model)

    def table(self) -> FlagTable:
        """See `Launch.table`."""
        return flag_table()

    def _place(self, name: str) -> str:
        stated = getattr(self, "stated", {})
        if name in stated:
            return str(stated[name][0])
        own = next((field for field, flag_name in RENAMED.items() if flag_name == name), None)
        return own or f"model.{name.replace('-', '_')}"

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> BridgeScript:
        """See `Launch.with_flags`.

        Raises
        ------
        InputError
            Where something is to change: a recipe's overrides are the user's.
        """
        assert self.plan_error is not None
        raise self.plan_error

    def with_ranks(self, world: int) -> tuple[BridgeScript, dict[str, Setting]]:
        """See `Launch.with_ranks`: the cluster's options state them."""
        return self, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return plain_value(value, self.file, name)


def _first_round(script: ShellScript, text: str, start: ShellStart) -> tuple[dict[str, str], list[str]]:
    """Values of the variables of loops over lists, in their first round, and a sentence for each such loop."""
    values: dict[str, str] = {}
    notes = []
    for split in _SPLIT.finditer(text):
        variable = script.variables.get(split[3])
        if variable is not None and (texts := variable.texts()):
            values |= dict(zip(split[2].split(), texts[0].split(split[1]), strict=False))
    for loop in _LOOP.finditer(text):
        name, array = loop[1], script.variables.get(loop[2])
        items = [] if array is None else array.texts()
        if not items or name in start.variables:
            continue
        values[name] = items[0]
        names = [name]
        for split in _SPLIT.finditer(text):
            if split[3] == name:
                names = split[2].split()
                values |= dict(zip(names, items[0].split(split[1]), strict=False))
        shown = ", ".join(f"{each}={values.get(each, '')}" for each in names)
        notes.append(f"the first of {len(items)} rounds of a loop is read: {shown}; --env states another")
    return values, notes


def _command(script: ShellScript) -> list[str]:
    """The words of the command that starts a recipe; those of a text in which another shell runs it, or of a
    here-document, where no command does."""
    found: list[list[str]] = []
    for command in (*script.commands, *_inner_commands(script)):
        words = _split(command.words)
        if words and words[0] not in ("echo", "printf") and _STARTS.search(" ".join(words) + " "):
            found.append(words)
    if found:
        return max(found, key=lambda words: sum(OVERRIDE.match(word) is not None for word in words))
    for line in re.sub(r"^[ \t]*#.*$", "", script.text, flags=re.M).replace("\\\n", " ").splitlines():
        if _STARTS.search(line + " "):
            return line.replace('"', "").split()
    raise InputError(
        "starts no recipe: no command has --recipe",
        file=script.file,
        cure="give the script that starts run_recipe.py or train.sh with --recipe NAME",
    )


def _inner_commands(script: ShellScript) -> list[Command]:
    """The commands of a text that another shell runs with this one's variables: ``bash -c "$CMD"``."""
    outer = {name: variable.texts()[0] for name, variable in script.variables.items() if variable.texts()}
    inner: list[Command] = []
    for command in script.commands:
        for before, word in zip(command.words, command.words[1:], strict=False):
            if before.text in ("-c", "-lc") and "\n" in word.text.strip() and _STARTS.search(word.text):
                try:
                    inner += ShellScript(word.text, script.file, start=ShellStart(None, outer)).commands
                except InputError:
                    continue
    return inner


def _split(words: Sequence[Word]) -> list[str]:
    parts: list[str] = []
    for word in words:
        parts += word.text.split() if " " in word.text.strip() and "recipe" in word.text else [word.text]
    return parts


def _recipe(words: Sequence[str], chosen: performance.Selection | None, script: ShellScript) -> Recipe:
    """The recipe that a command names, or selects by parts.

    Raises
    ------
    InputError
        When none is published under that name, or it trains adapters that no text settles.
    """
    given = dict(performance.options(words, {"--recipe": "recipe", "--mode": "mode", "--model": "model"}))
    name = given.get("recipe") or ("" if chosen is None else chosen.name)
    if not name and "model" in given:
        # scripts/training/run_recipe.py:418-420, recipe_metadata.py:209-211 (``recipe_task``).
        task = "peft" if given.get("mode") in ("lora", "dora") else given.get("mode", "pretrain")
        name = f"{given['model']}_{task}_config"
    if "$" in name:
        variable = script.to_state(name)
        cure = f"give --env {variable}=NAME" if variable else "write it out"
        raise InputError("is known only when the job starts", file=script.file, field="--recipe", value=name, cure=cure)
    if chosen is not None and not chosen.ranks.isdecimal() and chosen.ranks:
        raise InputError("must be a whole number", file=script.file, field="-ng", value=chosen.ranks)
    recipe = known_recipe(name) if chosen is None else chosen.recipe()
    if recipe is None:
        near = nearest_names(name)
        cure = f"name {' or '.join(near)}" if near else "name a recipe of megatron.bridge.recipes"
        cure += ", or give the ConfigContainer.yaml that logger.save_config_filepath writes"
        field = "--recipe" if chosen is None else "-mr, --task, -ng, -g, -c and -cv"
        raise InputError(f"is no recipe of {SOURCE}", file=script.file, field=field, value=name, cure=cure)
    return _with_mode(recipe, given.get("mode"), script.file)


def _with_mode(recipe: Recipe, mode: str | None, file: Path) -> Recipe:
    """A recipe as ``--mode`` asks for it (scripts/training/recipe_runner.py:113-141).

    Raises
    ------
    InputError
        When no text says what adapters it trains.
    """
    if recipe.adapters or (mode in ("lora", "dora") and recipe.peft is None):
        problem = "trains adapters that its text does not settle"
        cure = "name a recipe with _peft_, or --mode pretrain or sft to plan the training of all weights"
        raise InputError(problem, file=file, field="--recipe", value=recipe.name, cure=cure)
    if mode == "dora" and recipe.peft is not None:
        return replace(recipe, peft={**recipe.peft, "kind": "DoRA"})
    return recipe


def _overrides(
    script: ShellScript, words: Sequence[str], chosen: performance.Selection | None, recipe: Recipe
) -> dict[str, Any]:
    """Fields that the command sets: options, overrides, and overrides of variables that it names unexpanded.

    An override wins over an option, but where the performance launcher starts one of its own recipes
    (scripts/performance/run_script.py:76-82).
    """
    texts = [*words]
    for name in dict.fromkeys(re.findall(r"\$\{?([A-Za-z_]\w*)", " ".join(words))):
        variable = script.variables.get(name)
        texts += [] if variable is None else [part for text in variable.texts() for part in text.split()]
    stated: dict[str, Any] = {}
    for text in texts:
        match = OVERRIDE.fullmatch(text)
        if match is not None:
            _refuse_misspelt_field(match[1], script.file)
            stated[match[1]] = _value(match[2].strip("\"'"), match[1], script)
    stated = {field: value for field, value in stated.items() if value is not _OPEN}
    if chosen is None:
        own = {field: _value(text, field, script) for field, text in performance.options(words, OPTIONS)} | stated
        # scripts/training/recipe_runner.py:471-487: the model's length becomes that of the data.
        length = own.get("dataset.seq_length")
        return own if length is None else own | {"model.seq_length": length}
    for option, text in performance.options(words, {name: name for name in performance.SETTING}):
        if "$" in text:
            raise _unsettled(text, option, script)
    own = performance.fields_of(words, chosen, recipe, script.file)
    return own | stated if chosen.library else stated | own


def _refuse_wrong_options(words: Sequence[str], trains: bool, file: Path) -> list[str]:
    """Refuse an option without its value, and one that is a letter from one of the launcher's, which takes neither.

    Parameters
    ----------
    trains : bool
        The command starts the training launcher, of whose options those that set a field are known.

    Returns
    -------
    list of str
        A sentence for each other option that the performance launcher does not have.

    Raises
    ------
    InputError
        With the option.
    """
    known, valued = (OPTIONS, OPTIONS) if trains else (performance.KNOWN, performance.SETTING - {"--deterministic"})
    program = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    unknown = []
    for at, word in enumerate(words):
        name = word.partition("=")[0]
        if word in valued and at + 1 == len(words):
            raise InputError("has no value", file=file, field=word, cure="write the value behind it, or leave it out")
        if name in known or name in _RANKS or not re.fullmatch(r"--?[A-Za-z][\w-]*", name):
            continue
        meant = likely_meant(name, sorted(known))
        if meant is not None:
            raise InputError("is no option of the launcher", file=file, field=name, cure=f"did you mean {meant}?")
        if not trains and at > program:
            unknown.append(f"{name} is not known and is ignored: the performance launcher has no such option")
    return unknown


def _refuse_misspelt_field(field: str, file: Path) -> None:
    """Refuse an override of a field that is one letter from a known one, which Bridge does not have.

    Source: src/megatron/bridge/training/utils/omegaconf_utils.py:180 (``set_struct``).

    Raises
    ------
    InputError
        With the field.
    """
    section, _, name = field.partition(".")
    known = known_fields(section)
    meant = None if name in known or is_flag(name) else likely_meant(name, sorted(known))
    if meant is not None:
        cure = f"did you mean {section}.{meant}?"
        raise InputError("is no field of the configuration", file=file, field=field, cure=cure)


_OPEN = object()


def _value(text: str, field: str, script: ShellScript) -> Any:
    """An override's value, as YAML reads it.

    Raises
    ------
    InputError
        When a degree, a batch or another number that counts is known only when the job starts.
    """
    if "$" in text:
        if not any(part in field for part in ("_parallel_size", "batch_size", "seq_length", "recompute", "num_layers")):
            return _OPEN
        raise _unsettled(text, field, script)
    try:
        value = yaml.load(text, Loader=SAFE_LOADER) if len(text) < 10_000 else text
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    return value if not isinstance(value, dict) else text


def _unsettled(text: str, field: str, script: ShellScript) -> InputError:
    variable = script.to_state(text)
    cure = f"give --env {variable}=VALUE" if variable else "write it out"
    problem = "has a value that is known only when the job starts"
    return InputError(problem, file=script.file, field=field, value=text, cure=cure)


def _peft(recipe: Recipe, own: Mapping[str, Any], file: Path) -> dict[str, Any] | None:
    """Fields of the recipe's adapters with the command's overrides; None where all weights train."""
    given = {field.partition(".")[2]: value for field, value in own.items() if field.startswith("peft.")}
    if recipe.peft is None and given:
        problem, cure = "is of a recipe that trains all weights", "name a recipe with _peft_, or leave it out"
        raise InputError(problem, file=file, field=f"peft.{next(iter(given))}", value=recipe.name, cure=cure)
    return None if recipe.peft is None else {**recipe.peft, **given}


def _refuse_unsettled(recipe: Recipe, own: Mapping[str, Any], file: Path) -> None:
    for field in recipe.unsettled:
        if field not in own:
            raise InputError(
                f"is computed by the recipe ({SOURCE} src/megatron/bridge/{recipe.source}), and no text states it",
                file=file,
                field=field,
                cure=f"write {field}=VALUE into the command, or give the ConfigContainer.yaml of a run",
            )


_STAGES = ("model.pipeline_model_parallel_size", "model.virtual_pipeline_model_parallel_size")
_ENDS = ("model.num_layers_in_first_pipeline_stage", "model.num_layers_in_last_pipeline_stage")


def _with_stages(fields: dict[str, Any], own: Mapping[str, Any], recipe: Recipe, file: Path) -> None:
    """Follow an override of the stages: a layout that the recipe computes is another one then.

    Source: scripts/training/recipe_runner.py:373-417 (``sync_model_pipeline_layout``).

    Raises
    ------
    InputError
        When the recipe computes a layout for the new stages, which no text states.
    """
    changed = [name for name in _STAGES if name in own and own[name] != recipe.options.get(name)]
    layout = "model.pipeline_model_parallel_layout"
    if not changed or layout in own:
        return
    if recipe.rebuilds:
        problem = f"is computed by the recipe for the stages that {changed[0]} asks for, and no text states it"
        raise InputError(problem, file=file, field=layout, cure=f"write {layout}=VALUE into the command")
    if layout not in fields and not all(name in own for name in _ENDS):
        ends = [fields.get(name) for name in _ENDS]
        stages = int(fields.get(_STAGES[0]) or 1)
        if sum(end is not None for end in ends) > stages:
            for name in _ENDS:
                fields.pop(name, None)


def _with_batch(
    fields: dict[str, Any],
    own: Mapping[str, Any],
    chosen: performance.Selection | None,
    recipe: Recipe,
    ranks: int,
    notes: list[str],
    file: Path,
) -> None:
    """Scale the batch of a benchmark's recipe with its data parallelism, as both launchers do.

    The performance launcher does it where the recipe is that of another number of devices alone.
    """
    field = "train.global_batch_size"
    if field in own or not performance.is_benchmark(recipe):
        return
    if chosen is not None and (chosen.library or chosen.ranks == str(recipe.ranks)):
        return
    scaled = performance.scaled_batch(recipe, fields, ranks, file)
    if scaled is not None:
        fields[field] = scaled
        notes.append(f"{scaled} samples a step: as many of each data-parallel rank as {recipe.name} has")


def _model(
    recipe: Recipe, fields: dict[str, Any], file: Path, register_path: Path | None, notes: list[str]
) -> ModelSpec | None:
    """The recipe's model; None where the recipe states its sizes.

    Raises
    ------
    InputError
        When it is not registered, or overrides change its sizes.
    """
    changed = [key for key in _SIZES if f"model.{key}" in fields]
    if {"num_layers", "hidden_size"} <= set(changed):
        return None
    if recipe.model is None:
        problem = "builds a model whose sizes its source does not state as text"
        cure = "give the ConfigContainer.yaml that logger.save_config_filepath writes"
        raise InputError(problem, file=file, field="--recipe", value=recipe.name, cure=cure)
    model, remarks = named_model(recipe.model, file, "--recipe", register_path)
    notes += remarks
    for key in changed:
        if key == "num_layers" and fields[f"model.{key}"] == model.n_layers:
            continue
        cure = "leave it out, or give the ConfigContainer.yaml of the run"
        problem = f"changes the layers of {model.name}, which the recipe names"
        raise InputError(problem, file=file, field=f"model.{key}", value=fields[f"model.{key}"], cure=cure)
    depth = fields.get("model.mtp_num_layers", model.mtp_layers) or 0
    if isinstance(depth, int) and depth != model.mtp_layers and 0 <= depth <= model.mtp_layers:
        model = model.replace(mtp_layers=depth)
    fields["model.mtp_num_layers"] = model.mtp_layers
    millions = model.extra_parameters / 1e6
    if millions and fields.get("model.freeze_vision_model") is not True:
        notes.append(f"{millions:,.0f} million parameters of the vision part are counted as trained")
    return model


def _sizes(model: ModelSpec) -> list[Any]:
    """The model's sizes as flags, and what Bridge's conversion of a Hugging Face model sets.

    Source: src/megatron/bridge/models/conversion/model_bridge.py (no dropout; grouped GEMMs of experts).
    """
    stated = model_flags(NewJob(model, 1, 1, 1, 1))
    flags = [
        flag(name, *(() if value is None else (str(value).strip('"'),)))
        for name, value in stated.items()
        if name not in _NO_SIZES
    ]
    flags += [flag("hidden-dropout", "0.0"), flag("attention-dropout", "0.0")]
    return [*flags, flag("no-create-attention-mask-in-dataloader")]


def _with_precision(fields: dict[str, Any]) -> None:
    """Put the settings of a mixed precision that is named in place of its name."""
    name = fields.pop("mixed_precision", None)
    settings = precision(name) if isinstance(name, str) else None
    for key, value in (settings or {}).items():
        fields.setdefault(f"mixed_precision.{key}", value)


def _ranks(script: ShellScript, words: Sequence[str], recipe: Recipe, notes: list[str]) -> dict[str, int]:
    """Nodes and ranks of a node, by the command, by Slurm's lines, else by the recipe's name."""
    by_lines = {"nodes": script.slurm.nodes, "each": script.slurm.cards or script.slurm.tasks_per_node}
    stated = {name: count for name, count in by_lines.items() if count is not None}
    # In the starting command, and in a torchrun or srun before it; a later name of the table wins.
    given = [found for name in _RANKS for found in performance.options(words, {name: name})]
    for name, text in given:
        if re.fullmatch(r"\d{1,6}", text) and int(text):
            stated[_RANKS[name]] = int(text)
    if "all" in stated:
        return {"nproc-per-node": stated["all"], "nnodes": 1}
    if "each" in stated:
        return {"nproc-per-node": stated["each"], "nnodes": stated.get("nodes", 1)}
    if recipe.ranks is not None:
        notes.append(f"{recipe.ranks} ranks are taken, those of the recipe's name")
        return {"nproc-per-node": recipe.ranks, "nnodes": 1}
    return {}
