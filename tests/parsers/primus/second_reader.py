"""A second reader of Primus experiments, for the tests alone: it shares no code with the product's.

It resolves presets with its own few lines and takes each fact straight from the options, by the rules of Megatron-LM
d3528a21 and torchtitan 73a0e697; what it cannot judge it leaves out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

Options = dict[str, Any]
_VARIABLE = re.compile(r"\$\{(\w+):([^}]*)\}")


def _typed(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def _defaults(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _defaults(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_defaults(item) for item in value]
    if isinstance(value, str) and "${" in value:
        return _typed(_VARIABLE.sub(lambda match: match.group(2), value))
    return value


def _over(below: Options, above: Options) -> Options:
    merged = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], dict) and isinstance(above[key], dict):
            merged[key] = _over(below[key], above[key])
    return merged


def _file(path: Path) -> Options:
    content: Options = _defaults(yaml.safe_load(path.read_text(encoding="utf-8")))
    named = content.pop("extends", [])
    below: Options = {}
    for name in [named] if isinstance(named, str) else named:
        below = _over(below, _file(path.parent / name))
    return _over(below, content)


def options_of(path: Path, checkout: Path) -> tuple[str, Options]:
    """The backend and all options of an experiment."""
    modules = _file(path)["modules"]
    trainer = modules.get("pre_trainer") or next(iter(modules.values()))
    backend = trainer["framework"]

    def preset(kind: str, name: str) -> Options:
        ending = "" if name.endswith(".yaml") else ".yaml"
        return _file(checkout / "primus" / "configs" / kind / backend / f"{name}{ending}")

    below = {**preset("models", trainer["model"]), **preset("modules", trainer["config"])}
    return backend, _over(below, trainer.get("overrides") or {})


# ---- facts ------------------------------------------------------------------------------------------


def megatron_facts(options: Options, world: int) -> dict[str, Any]:
    """Degrees, batch, sequence, layers by kind and place, recompute and precision of a Megatron experiment."""

    def number(name: str, usual: int = 1) -> int:
        return options.get(name) or usual

    tp, pp, cp = (number(f"{kind}_parallel_size") for kind in ("tensor_model", "pipeline_model", "context"))
    ep = number("expert_model_parallel_size")
    dp = world // (tp * pp * cp)
    layers = options["num_layers"]
    facts = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "dp": dp,
        "sp": bool(options.get("sequence_parallel")) and tp > 1,
        "mbs": options["micro_batch_size"],
        "global batch": options["global_batch_size"],
        "sequence": options["seq_length"],
        "hidden": options["hidden_size"],
        "heads": options["num_attention_heads"],
        "layers": layers,
        "mtp": number("mtp_num_layers", 0),
        "half": bool(options.get("bf16") or options.get("fp16")),
        "narrow": bool(options.get("fp8") or options.get("fp4")),
        "layer kinds": _kinds(options, layers),
        "chunks": _chunks(options, layers, pp),
        "recompute": _recompute(options),
    }
    if options.get("spec"):  # A stack of single modules; its kinds are those of its own rule.
        for name in ("layer kinds", "chunks"):
            del facts[name]
    return facts


def _kinds(options: Options, layers: int) -> str:
    """One letter a layer: experts or dense."""
    if not options.get("num_experts"):
        return "d" * layers
    pattern = options.get("moe_layer_freq", 1)
    text = str(pattern)
    if re.fullmatch(r"\d+", text):
        return "".join("e" if at % int(text) == 0 else "d" for at in range(layers))
    found: list[int] = []
    for part in re.finditer(r"(\[[01, ]+\])(?:\*(\d+))?", text):
        found += [int(each) for each in re.findall(r"[01]", part.group(1))] * int(part.group(2) or 1)
    return "".join("e" if each else "d" for each in found)


def _chunks(options: Options, layers: int, stages: int) -> list[int] | None:
    """Layers of every chunk in model order; None where nothing as simple places them."""
    layout = options.get("pipeline_model_parallel_layout")
    if layout is not None:
        sizes, modules = [], 0
        for part in str(layout).replace(",", "").split("|"):
            text = re.sub(r"\((\w+)\)\*(\d+)", lambda match: match.group(1) * int(match.group(2)), part)
            text = re.sub(r"(\w)\*(\d+)", lambda match: match.group(1) * int(match.group(2)), text)
            sizes.append(text.count("t"))
            modules += text.count("m")
        return sizes if modules == (options.get("mtp_num_layers") or 0) else None  # No job starts otherwise.
    virtual = options.get("num_virtual_stages_per_pipeline_rank") or 1
    first, last = (options.get(f"decoder_{end}_pipeline_num_layers") for end in ("first", "last"))
    if first is None and last is None:
        chunks = stages * virtual
        return [layers // chunks] * chunks if layers % chunks == 0 else None
    if virtual > 1:
        return None
    others = stages - (first is not None) - (last is not None)
    each = (layers - (first or 0) - (last or 0)) // others
    return [*([] if first is None else [first]), *[each] * others, *([] if last is None else [last])]


def _recompute(options: Options) -> tuple[str, Any]:
    """Kind of recompute and its extent: layers a chunk at most, or their number in all."""
    kind = options.get("recompute_granularity")
    if kind == "full" and options.get("recompute_layer_ids"):
        ids = [int(each) for each in str(options["recompute_layer_ids"]).split(",")]
        return "full", len([each for each in ids if each < options["num_layers"]])
    if kind == "full" and options.get("recompute_method") == "block":
        number = options.get("recompute_num_layers")
        return "block", 1 if number is None else number
    if kind == "full":
        return "uniform", None
    return ("selective", None) if kind == "selective" or options.get("recompute_activations") else ("none", None)


def titan_facts(options: Options, world: int) -> dict[str, Any]:
    """The same of a torchtitan experiment."""
    parallel, training = options["parallelism"], options["training"]
    tp, pp, cp, ep = (
        parallel.get(f"{kind}_parallel_degree", 1) for kind in ("tensor", "pipeline", "context", "expert")
    )
    replicas, shard = (parallel.get(f"data_parallel_{kind}_degree", 1) for kind in ("replicate", "shard"))
    if shard == -1:
        shard = world // (tp * pp * cp * replicas)
    dp, total = replicas * shard, training.get("global_batch_size", -1)
    recompute = options.get("activation_checkpoint", {}).get("mode", "selective")
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "dp": dp,
        "sp": tp > 1,
        "mbs": training["local_batch_size"] if pp == 1 else parallel.get("pipeline_parallel_microbatch_size", 1),
        "global batch": total if total > 0 else training["local_batch_size"] * dp,
        "sequence": training["seq_len"],
        "narrow": any("float8" in each or ".mx" in each for each in options["model"].get("converters") or []),
        "recompute": recompute,
    }
