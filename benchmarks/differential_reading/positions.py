"""Layers of every chunk of every stage, and those that run again: counted by the frameworks' own code.

Run are megatron-core 0.16.1's ``get_num_layers_to_build``, ``get_transformer_layer_offset`` and reading of layouts,
MindFormers r1.5.0's ``LayerSetting`` (r1.7.0's for files with Hugging Face names) and torchtitan v0.2.2's
``generate_llm_fqn_per_model_part``; they lie where `benchmarks.reliability.outside` says. What MindSpeed-LLM builds
is stated apart in `launched`, for its code needs torch_npu. Every function gives grids as text, chunk by chunk the
layers of each stage (``4 4 4 4 / 4 4 4 4``), and leaves out what its source does not settle.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.differential_reading.launched import built_layers, listed
from benchmarks.differential_reading.reading import Reading, Value
from benchmarks.reliability.outside import NotHere, loaded, package, source

TORCHTITAN, MINDFORMERS, MINDFORMERS_NEW = "v0.2.2", "refs/heads/r1.5.0", "refs/heads/r1.7.0"
MINDSPEED_ONLY = (
    "noop-layers", "num-layer-list", "schedules-method", "first-k-dense-replace", "full-attention-interval",
    "enable-recompute-layers-per-pp-rank", "moe-tp-extend-ep", "use-fused-rmsnorm",
)  # fmt: skip
"""Flags of MindSpeed-LLM's parser (v2.3.0 mindspeed_llm/features_manager) that Megatron-LM's does not have."""
_MEGATRON_ONLY = (
    "pipeline-model-parallel-layout", "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split",
)  # fmt: skip
"""Flags that `launched` does not state beside those of MindSpeed-LLM."""
_UNSTATED = ("hybrid-layer-pattern", "hybrid-override-pattern", "is-hybrid-model", "distribute-saved-activations")

Rows = list[list[int]]
"""Layers of every chunk (row) of every stage."""


def missing() -> str | None:
    """Code of the frameworks that is missing on this machine; None where all is there."""
    try:
        _megatron()
        _mindformers(MINDFORMERS)
        _mindformers(MINDFORMERS_NEW)
        _torchtitan()
    except NotHere as absent:
        return str(absent)
    return None


def grid_text(rows: Sequence[Sequence[int]]) -> str:
    """A grid as one text."""
    return " / ".join(" ".join(str(int(value)) for value in row) for row in rows)


def _grids(laid: Rows, experts: Rows | None, full: Rows | None) -> Reading:
    named = {"layers_at": laid, "experts_at": experts, "full_at": full}
    return {name: grid_text(rows) for name, rows in named.items() if rows is not None}


# Megatron-LM and MindSpeed-LLM


@cache
def _megatron() -> tuple[Any, Any, Any]:
    blocks = package("megatron.core.transformer.transformer_block")
    layers = package("megatron.core.transformer.transformer_layer")
    layouts = package("megatron.core.transformer.pipeline_parallel_layer_layout")
    return blocks.get_num_layers_to_build, layers.get_transformer_layer_offset, layouts.PipelineParallelLayerLayout


def of_flags(flags: Mapping[str, Sequence[str]], reading: Reading) -> Reading:
    """Positions of a launch, of its arguments as `megatron.parse` gives them."""
    stages, chunks = reading.get("pp"), reading.get("vpp")
    numbered = flags.get("num-layers") or [""]
    if not isinstance(stages, int) or not isinstance(chunks, int) or not numbered[0].strip().isdigit():
        return {}
    mindspeed = any(name in flags for name in MINDSPEED_ONLY)
    if any(name in flags for name in (*_UNSTATED, *_MEGATRON_ONLY * mindspeed)):
        return {}
    text = {name: words[0] if words else "" for name, words in flags.items()}
    try:
        if mindspeed:
            return _by_mindspeed(text, stages, chunks, reading)
        return _by_megatron(text, stages, chunks, reading)
    except NotHere:
        return {}
    except (AssertionError, ValueError, SyntaxError, LookupError, ZeroDivisionError):
        return {}  # The launcher would not start it.


def _by_mindspeed(args: dict[str, str], stages: int, chunks: int, reading: Reading) -> Reading:
    laid, experts, full = ([[0] * stages for _ in range(chunks)] for _ in range(3))
    for each in built_layers(args):
        laid[each.chunk][each.stage] += 1
        experts[each.chunk][each.stage] += each.experts
        full[each.chunk][each.stage] += each.recomputed
    return _grids(laid, experts, full if _says_full(args) else None)


def _by_megatron(args: dict[str, str], stages: int, chunks: int, reading: Reading) -> Reading:
    count, offset, layouts = _megatron()
    number, layout = int(args["num-layers"]), args.get("pipeline-model-parallel-layout")
    laid, first = ([[0] * stages for _ in range(chunks)] for _ in range(2))
    if layout is not None:
        dealt = layouts.from_str(layout.strip("'\""), stages).layout
        at = 0
        for v in range(chunks):
            for s in range(stages):
                first[v][s] = at
                laid[v][s] = sum(each.name == "decoder" for each in dealt[s][v])
                at += laid[v][s]
        assert at == number
    else:
        ends = [args.get(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last")]
        config = SimpleNamespace(
            num_layers=number, pipeline_model_parallel_size=stages, pipeline_model_parallel_layout=None,
            num_layers_in_first_pipeline_stage=None if ends[0] is None else int(ends[0]),
            num_layers_in_last_pipeline_stage=None if ends[1] is None else int(ends[1]),
            account_for_embedding_in_pipeline_split="account-for-embedding-in-pipeline-split" in args,
            account_for_loss_in_pipeline_split="account-for-loss-in-pipeline-split" in args,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        )  # fmt: skip
        for v in range(chunks):
            for s in range(stages):
                laid[v][s] = count(config, v if chunks > 1 else None, s)
                first[v][s] = offset(config, v if chunks > 1 else None, s)
        assert sum(map(sum, laid)) == number
    # megatron/core/models/gpt/gpt_layer_specs.py:579-597.
    experts = None
    if reading.get("experts") == 1:
        experts = [[0] * stages for _ in range(chunks)]
    elif isinstance(reading.get("experts"), int):
        stated = args.get("moe-layer-freq", "1").strip("'\"")
        pattern = listed(stated) if "[" in stated else [int(at % int(stated) == 0) for at in range(number)]
        assert len(pattern) == number
        experts = [[sum(pattern[first[v][s] : first[v][s] + laid[v][s]]) for s in range(stages)] for v in range(chunks)]
    # transformer_block.py:532-565: all of a chunk in groups, or its first ones.
    full = None
    if args.get("recompute-granularity") == "full" and "recompute-activations" not in args:
        most = number if args["recompute-method"] == "uniform" else int(args.get("recompute-num-layers", 1))
        full = [[min(most, each) for each in row] for row in laid]
    elif _says_full(args):
        full = [[0] * stages for _ in range(chunks)]
    return _grids(laid, experts, full)


def _says_full(args: Mapping[str, str]) -> bool:
    """Return whether today's flags settle full recompute: not those of before 2022, nor both forms at once."""
    older = ("checkpoint-activations", "activations-checkpoint-method", "recompute-activations")
    return not any(name in args for name in older)


# MindFormers


@cache
def _mindformers(revision: str) -> Any:
    """Their LayerSetting, alone: the rest of its module needs MindSpore."""
    new = revision == MINDFORMERS_NEW
    path = "mindformers/parallel_core/training_graph/transformer/utils.py" if new else "mindformers/models/utils.py"
    tree = ast.parse(source("mindformers", revision, path))
    kept: list[ast.stmt] = [
        node
        for node in tree.body
        if (isinstance(node, ast.ClassDef) and node.name == "LayerSetting")
        or (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    ]
    mindspore = MagicMock()
    mindspore.get_auto_parallel_context = lambda name: name == "pipeline_interleave"
    return loaded(
        "layer_setting", ast.unparse(ast.Module(kept, [])),
        np=np, re=re, logger=MagicMock(), ms=mindspore, is_legacy_model=lambda: True,
    ).LayerSetting  # fmt: skip


def of_yaml(top: Mapping[str, Any], model: Mapping[str, Any], reading: Reading, new: bool) -> Reading:
    """Positions of a MindFormers file: of the file, its model's section and its fields."""
    recompute, context = top.get("recompute_config"), top.get("parallel") or {}
    if "zero_bubble_v" in str(context) or (top.get("swap_config") or {}).get("swap"):
        return {}  # A folded model; layers by their numbers.
    stages, chunks, number = (reading.get(name) for name in ("pp", "vpp", "layers"))
    if not isinstance(stages, int) or not isinstance(chunks, int) or not isinstance(number, int):
        return {}
    depth = model.get("mtp_depth") or model.get("mtp_num_layers") or model.get("num_nextn_predict_layers") or 0
    if depth:
        return {}  # Whether it counts among the layers is the model's own.
    entry = recompute if isinstance(recompute, dict) else {"recompute": bool(recompute)}
    again = SimpleNamespace(
        recompute=_copied(entry.get("recompute", False)), select_recompute=False, select_comm_recompute=False,
        select_recompute_exclude=False, select_comm_recompute_exclude=False, recompute_slice_activation=False,
    )  # fmt: skip
    parallel = SimpleNamespace(
        pipeline_stage=stages, recompute=again, swap=SimpleNamespace(swap=False), gradient_aggregation_group=4
    )
    try:
        setting = _mindformers(MINDFORMERS_NEW if new else MINDFORMERS)(
            number, _copied(model.get("offset", 0)), parallel, chunks
        )
        chunk_of, stage_of = setting.interleave_ids, setting.pp_ids
        laid, full = ([[0] * stages for _ in range(chunks)] for _ in range(2))
        for layer in range(number):
            laid[int(chunk_of[layer])][int(stage_of[layer])] += 1
            stated = again.recompute is True or (bool(again.recompute) and setting._check_layer_rule(layer))
            full[int(chunk_of[layer])][int(stage_of[layer])] += bool(stated)
    except NotHere:
        return {}
    except (ValueError, TypeError, IndexError):
        return {}  # It would not start.
    experts = [[0] * stages for _ in range(chunks)] if reading.get("experts") == 1 else None
    return _grids(laid, experts, full)


def _copied(value: Any) -> Any:
    return [_copied(each) for each in value] if isinstance(value, list) else value


# torchtitan


@cache
def _torchtitan() -> Any:
    """Their function that deals layers to model parts, alone."""
    tree = ast.parse(source("torchtitan", TORCHTITAN, "torchtitan/distributed/pipeline_parallel.py"))
    name = "generate_llm_fqn_per_model_part"
    [function] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return getattr(loaded("model_parts", ast.unparse(function)), name)


def of_toml(top: Mapping[str, Any], reading: Reading, dense: int) -> Reading:
    """Positions of a torchtitan file whose model has `dense` layers before those with experts."""
    stages, chunks, number = (reading.get(name) for name in ("pp", "vpp", "layers"))
    if not isinstance(stages, int) or not isinstance(chunks, int) or not isinstance(number, int):
        return {}
    section: Mapping[str, Any] = top.get("parallelism", {})
    if "pipeline_parallel_split_points" in str(top):
        return {}  # Releases before v0.2 alone.
    try:
        parts = section.get("module_fqns_per_model_part") or _torchtitan()(
            stages * chunks, number, section.get("pipeline_parallel_first_stage_less_layers", 1),
            section.get("pipeline_parallel_last_stage_less_layers", 1),
        )  # fmt: skip
    except NotHere:
        return {}
    except ValueError:
        return {}  # It would not start.
    listed_parts = [[int(name[7:]) for name in part if name.startswith("layers.")] for part in parts]
    # pipeline_parallel.py:460-480: part s + v·stages on rank s, or there and back again.
    folded = str(section.get("pipeline_parallel_schedule", "1F1B")).lower() in ("zbvzerobubble", "dualpipev")
    at = [[2 * stages - 1 - s if folded and v else s + v * stages for s in range(stages)] for v in range(chunks)]
    layers = [[listed_parts[part] for part in row] for row in at]
    laid = [[len(part) for part in row] for row in layers]
    experts = None
    if isinstance(reading.get("experts"), int):
        first = number if reading["experts"] == 1 else dense
        experts = [[sum(layer >= first for layer in part) for part in row] for row in layers]
    return _grids(laid, experts, _titan_full(top, laid))


def _titan_full(top: Mapping[str, Any], laid: Rows) -> Rows | None:
    """distributed/activation_checkpoint.py:20-44: each process counts its own layers, chunk after chunk."""
    section: Mapping[str, Value] = top.get("activation_checkpoint", {})
    mode, option = str(section.get("mode", "selective")), str(section.get("selective_ac_option", "2"))
    if mode == "full":
        return laid
    if mode == "none" or option == "op":
        return [[0] * len(row) for row in laid]
    if mode != "selective" or not option.isdigit() or option == "0":
        return None
    every, counted = int(option), [0] * len(laid[0])
    full = []
    for row in laid:
        before = list(counted)
        counted = [sum(pair) for pair in zip(counted, row, strict=True)]
        full.append([end // every - start // every for start, end in zip(before, counted, strict=True)])
    return full
