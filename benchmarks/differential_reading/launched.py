"""Layers that MindSpeed-LLM and Megatron build from a launch's arguments, stated without the product's reader.

One statement a position, from the frameworks' sources: MindSpeed-LLM master
mindspeed_llm/core/transformer/transformer_block.py (``_transformer_block_build_layers``,
``get_num_layers_to_build``, ``_block_method_checkpointed_forward_func``), MindSpeed 2.3.0
mindspeed/core/transformer/transformer_block.py (``_get_layer_offset``), Megatron-LM core 0.12
megatron/core/models/gpt/gpt_layer_specs.py. Even stages, ``--num-layer-list``, ``--noop-layers``,
unlike first and last stages, virtual stages and the V; other ways to place layers are not stated here.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Built:
    """One layer that a rank builds: stage, chunk of the stage, whether it has experts, attends linearly, and is fully
    recomputed."""

    stage: int
    chunk: int
    experts: bool
    linear: bool
    recomputed: bool


def arguments(words: Sequence[str]) -> dict[str, str]:
    """The words of a launch as argparse takes them; a switch has no value."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            after = words[at + 1] if at + 1 < len(words) else "--"
            found[name.replace("_", "-")] = value if sign else "" if after.startswith("--") else after
    # A negative number is a value, and begins with one dash only.
    return found


def built_layers(args: dict[str, str]) -> list[Built]:
    """Every layer that does something, by stage, chunk and place."""
    layers, stages = int(args["num-layers"]), int(args.get("pipeline-model-parallel-size", 1))
    noops = {int(number) for number in args.get("noop-layers", "").split(",") if number}
    listed = [int(count) for count in args.get("num-layer-list", "").split(",") if count and not noops]
    v_shape = args.get("schedules-method") == "dualpipev"
    per_rank = layers // stages
    chunks = 1
    if v_shape:
        chunks = 2
    elif "num-layers-per-virtual-pipeline-stage" in args:
        chunks = per_rank // int(args["num-layers-per-virtual-pipeline-stage"])
    elif "num-virtual-stages-per-pipeline-rank" in args:
        chunks = int(args["num-virtual-stages-per-pipeline-rank"])
    first, last = (args.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    sizes: list[int] = []
    if first or last:
        assert chunks == 1, "the ends with VPP are not stated here"
        rest = layers - int(first or 0) - int(last or 0)
        sizes = [rest // (stages - bool(first) - bool(last))] * stages
        sizes[0], sizes[-1] = int(first or sizes[0]), int(last or sizes[-1])
    found = []
    for stage in range(stages):
        for chunk in range(chunks):
            count = (listed or sizes)[stage] if listed or sizes else per_rank // chunks
            if v_shape:
                offset = stage * count if chunk == 0 else layers - (stage + 1) * count
            elif chunks > 1:
                offset = chunk * (layers // chunks) + stage * count
            else:
                offset = sum(sizes[:stage]) if sizes else stage * per_rank  # Of even stages, whatever the list says.
            for place in range(count):
                if offset + place not in noops:
                    index = place * chunks + chunk if "enable-recompute-layers-per-pp-rank" in args else place
                    kinds = _experts(args, offset + place, layers), _linear(args, offset + place, layers)
                    found.append(Built(stage, chunk, *kinds, _recomputed(args, index)))
    return found


def listed(text: str) -> list[int]:
    """A list as ``([0]*3+[1]*1)*8`` writes it: what Megatron's own `moe_freq_type` has Python evaluate."""

    def value(node: ast.expr) -> list[int]:
        if isinstance(node, ast.List):
            return [int(ast.literal_eval(each)) for each in node.elts]
        assert isinstance(node, ast.BinOp), "neither a list nor a sum or a multiple of lists"
        if isinstance(node.op, ast.Add):
            return value(node.left) + value(node.right)
        assert isinstance(node.op, ast.Mult)
        times, of = (node.left, node.right) if isinstance(node.left, ast.Constant) else (node.right, node.left)
        return value(of) * int(ast.literal_eval(times))

    return value(ast.parse(text.strip(), mode="eval").body)


def _experts(args: dict[str, str], position: int, layers: int) -> bool:
    if int(args.get("num-experts", 0) or 0) <= 1:
        return False
    pattern = args.get("moe-layer-freq", "1").strip("'\"")
    if "[" in pattern:
        assert "first-k-dense-replace" not in args
        evaluated = listed(pattern)
        assert len(evaluated) == layers
        return bool(evaluated[position])
    first = int(args.get("first-k-dense-replace", 0))
    if first and int(args.get("pipeline-model-parallel-size", 1)) > 1:
        assert first < layers // int(args["pipeline-model-parallel-size"]), "MindSpeed-LLM does not start so"
    return position >= first and position % int(pattern) == 0


def _linear(args: dict[str, str], position: int, layers: int) -> bool:
    """MindSpeed-LLM by ``--full-attention-interval``, Megatron by ``--linear-attention-freq``."""
    interval = int(args.get("full-attention-interval", 0))
    if interval:
        return (position + 1) % interval != 0
    if args.get("experimental-attention-variant") not in ("gdn", "gated_delta_net"):
        return False
    every = args["linear-attention-freq"].strip("'\"")
    if "[" in every:
        evaluated = listed(every)
        assert len(evaluated) == layers
        return evaluated[position] == 1
    return (position + 1) % int(every) != 0


def _recomputed(args: dict[str, str], index: int) -> bool:
    if args.get("recompute-granularity") != "full":
        return False
    return args["recompute-method"] == "uniform" or index < int(args.get("recompute-num-layers", 1))
