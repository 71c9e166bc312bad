"""Galvatron's GLOBAL mode: one strategy for all layers, said by the options of its training; and files of any mode.

Options and defaults: Hetu-Galvatron 67b224be galvatron/core/arguments.py, ``galvatron_training_args``, and cea12ff
galvatron/core/runtime/args_schema.py:12-60; what they become: cea12ff galvatron/core/runtime/hybrid_parallel_config.py:
25-50 and 99-102.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import SCRIPT, form_of
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.parsers.galvatron.script import Started, training_started
from taylor.parsers.galvatron.search_file import resolved
from taylor.parsers.galvatron.strategy_file import StrategyFile, read_strategy, strategy_of
from taylor.parsers.text.fields import MAX_LAYERS, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.register.registry import Registry

GLOBAL = "global"
"""Name of the form for ``--to``."""
SCRIPTS, YAMLS = (SCRIPT,), (".yaml", ".yml")
_SECTIONS = ("parallel", "model", "train")
_SWITCHES = ("use_ulysses",)
_NUMBERS = (
    "pp_deg", "global_tp_deg", "global_tp_consec", "global_cp_deg", "global_ep_deg", "global_tp_of_ep_deg", "sdp",
    "global_checkpoint", "vocab_tp", "vocab_cp", "chunks", "global_train_batch_size", "embed_sdp", "num_hidden_layers",
    "set_model_config_manually", "set_layernum_manually", "nnodes", "nproc_per_node",
)  # fmt: skip
_TEXTS = ("pipeline_type", "default_dp_type", "model_size", "galvatron_config_path")
_IN_YAML = {
    "vocab_sdp": "embed_sdp",
    "global_batch_size": "global_train_batch_size",
    "num_layers": "num_hidden_layers",
}
"""Names in today's YAML that differ from the options'."""


def read_any_strategy(file: Path, world: int | None = None) -> StrategyFile:
    """The strategy of a strategy file, of a training script or of the YAML of a training, in JSON or GLOBAL mode.

    Parameters
    ----------
    world : int, optional
        Ranks, where the file does not say them.

    Raises
    ------
    InputError
        When the file cannot be read, is none of these, or an option is missing, wrong or known to a running shell
        alone.
    """
    suffix = form_of(file)
    if suffix in SCRIPTS:
        started = training_started(file)
        if started is None:
            cure = "give the script that runs train_dist.py, or the strategy file"
            raise InputError("starts no training of Galvatron's", file=file, cure=cure)
        return _of_script(started, world)
    if suffix in YAMLS:
        return _of_yaml(file, {}, world)
    return read_strategy(file, world)


def _of_script(started: Started, world: int | None) -> StrategyFile:
    yaml = next((word for word in started.words if word.endswith(YAMLS) and not word.startswith("-")), None)
    stated = _machines(started)
    if yaml is not None:
        overrides = dict(word.split("=", 1) for word in started.words if "=" in word and not word.startswith("-"))
        return _of_yaml(started.folder / yaml, overrides, world if world is not None else stated)
    values: dict[str, Any] = {}
    for name in (*_NUMBERS, *_TEXTS):
        written = started.value(name)
        if written is not None:
            values[name] = _number(written) if name in _NUMBERS else written
    values.update({name: started.given(name) for name in _SWITCHES})
    return _strategy(values, started.file, started.folder, world if world is not None else stated)


def _machines(started: Started) -> int | None:
    """Ranks that torchrun or ``torch.distributed.launch`` starts, where the script says them."""
    nodes, cards = started.value("nnodes"), started.value("nproc_per_node")
    if nodes is None or cards is None or not (nodes.isdigit() and cards.isdigit()):
        return None
    return int(nodes) * int(cards)


def _of_yaml(file: Path, overrides: Mapping[str, str], world: int | None) -> StrategyFile:
    data = YamlSource.read(file).data
    if not isinstance(data, dict) or not isinstance(data.get("runtime"), dict):
        cure = "give the YAML that its train_dist.py takes"
        raise InputError("is no training of Galvatron's", file=file, field="runtime", cure=cure)
    runtime = resolved(data, data, file)["runtime"]
    values: dict[str, Any] = {}
    for section in _SECTIONS:
        entries = dict(Fields(runtime, file, "runtime").section(section).data)
        for name, written in overrides.items():
            if name.startswith(f"{section}."):
                entries[name.partition(".")[2]] = _number(written)
        for name, value in entries.items():
            if value is not None:
                values[_IN_YAML.get(name, name)] = value
    if values.get("model_config_path") and "num_hidden_layers" not in values:
        values["num_hidden_layers"] = _layers_of(file.parent.parent / str(values["model_config_path"]))
    # Today's runtime takes consecutive ranks whatever the option says.
    values["global_tp_consec"] = 1
    return _strategy(values, file, file.parent.parent, world)


def _layers_of(file: Path) -> int | None:
    if not file.is_file():
        return None
    data = YamlSource.read(file).data
    return data.get("num_layers") if isinstance(data, dict) else None


def _strategy(values: Mapping[str, Any], file: Path, folder: Path, world: int | None) -> StrategyFile:
    """The strategy of a training's options; a strategy file that they name goes before them."""
    named = values.get("galvatron_config_path")
    if named not in (None, "None", ""):
        found = read_strategy(folder / str(named), world)
        return replace(found, notes=(*found.notes, f"JSON mode: the strategy is that of {named}"))
    options = Fields({name: value for name, value in values.items() if value is not None}, file)
    layers, notes = _layers(options)
    ways = max(options.integer("global_tp_deg", default=1, low=-1), 1)
    ulysses = int(options.boolean("use_ulysses", default=False))
    chunks = options.integer("chunks", default=-1, low=-1)
    if chunks < 1:
        cure = "state the number of micro-batches"
        raise options.error("chunks", "is computed when the training runs", chunks, cure)

    def alike(value: int) -> str:
        return ",".join([str(value)] * layers)

    sharded = options.integer("embed_sdp", default=0, low=0, high=1)
    entries: dict[str, Any] = {
        "pp_deg": options.integer("pp_deg", default=2),
        "tp_sizes_enc": alike(ways),
        "tp_consecutive_flags": alike(int(options.integer("global_tp_consec", default=-1, low=-1, high=1) != 0)),
        "cp_sizes_enc": alike(max(options.integer("global_cp_deg", default=1, low=-1), 1)),
        "dp_types_enc": alike(options.integer("sdp", default=0, low=0, high=1)),
        "use_sp": alike(ulysses),
        "checkpoint": alike(options.integer("global_checkpoint", default=0, low=0, high=1)),
        "ep_sizes_enc": alike(max(options.integer("global_ep_deg", default=1, low=-1), 1)),
        "tp_of_ep_sizes_enc": alike(max(options.integer("global_tp_of_ep_deg", default=1, low=-1), 1)),
        "global_bsz": options.integer("global_train_batch_size", default=32, high=10**9),
        "chunks": chunks,
        "pipeline_type": options.text("pipeline_type", default="gpipe"),
        "default_dp_type": options.text("default_dp_type", default="ddp"),
        "vtp": options.integer("vocab_tp", default=1),
        "vsp": ulysses,
        "vcp": options.integer("vocab_cp", default=1),
        "embed_sdp": sharded,
        "vocab_sdp": sharded,
    }
    if entries["default_dp_type"] == "zero3":
        entries |= {"default_dp_type": "zero2", "dp_types_enc": alike(1), "embed_sdp": 1, "vocab_sdp": 1}
    found = strategy_of(entries, file, world)
    return replace(found, form=GLOBAL, notes=(*notes, *found.notes))


def _layers(options: Fields) -> tuple[int, tuple[str, ...]]:
    """Layers of the model: by hand where a switch says so, else those of its preset; with a note on the latter.

    Raises
    ------
    InputError
        When neither says them.
    """
    by_hand = any(
        options.integer(name, default=0, low=0, high=1)
        for name in ("set_model_config_manually", "set_layernum_manually")
    )
    size = options.text("model_size", default=None)
    if not by_hand and size is not None:
        try:
            preset = Registry.load().model(size).n_layers
        except InputError:
            preset = None
        if preset is not None:
            return preset, (f"model_size {size}: its preset's {preset} layers are taken",)
    return options.integer("num_hidden_layers", high=MAX_LAYERS), ()


def _number(text: str) -> Any:
    """A whole number, true or false where the text is one; else the text."""
    plain = text.strip().strip("\"'")
    if plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    digits = plain.removeprefix("-")
    return int(plain) if digits.isdigit() and len(digits) <= 12 else plain


def global_text(plan: LayerwisePlan) -> str:
    """The options of GLOBAL mode for a plan, one a line.

    Raises
    ------
    InputError
        When the plan's layers differ, or the stages are not as GLOBAL mode divides them.
    """
    if not plan.uniform or len(set(plan.apart)) not in (0, len(plan.layers)):
        cure = "write it for JSON mode: --to hetu"
        raise InputError("has layers or stages that differ, and GLOBAL mode one strategy for all", field="--to",
            value=GLOBAL, cure=cure)  # fmt: skip
    layer = plan.layers[0]
    if layer.offload or layer.cp > 1 or layer.ep > 1:
        cure = "plan without them"
        raise InputError("offload, context or expert parallel layers have no option", field="--to", value=GLOBAL,
            cure=cure)  # fmt: skip
    if (layer.sp > 1) is not (plan.ends.sp > 1) and max(layer.ways, plan.ends.ways) > 1:
        cure = "write it for JSON mode: --to hetu"
        raise InputError("has Ulysses in layers or in embedding and head alone", field="--to", value=GLOBAL, cure=cure)
    options = {
        "pp_deg": plan.stages,
        "global_tp_deg": layer.ways,
        "global_tp_consec": int(not plan.apart),
        "sdp": int(layer.zero == 3),
        "global_train_batch_size": plan.global_batch,
        "chunks": plan.micro_batches,
        "global_checkpoint": int(layer.recompute),
        "pipeline_type": "gpipe" if plan.schedule == "gpipe" else "pipedream_flush",
        "default_dp_type": "zero2" if 2 in (layer.zero, plan.ends.zero) else "ddp",
        "vocab_tp": plan.ends.ways,
        "embed_sdp": int(plan.ends.zero == 3),
    }
    lines = [f"--{name} {value}" for name, value in options.items()]
    return "\n".join([*lines, *(["--use-ulysses"] if layer.sp > 1 else [])]) + "\n"
