"""Start rules of the pipeline: DualPipeV, layouts, noop layers and uneven lists, recompute in its bubbles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.mindspeed.start_rule import (
    BOTH,
    CORE,
    CORE_ALONE,
    LAYOUT,
    LLM,
    LLM_ALONE,
    SINCE,
    StartRule,
    apart,
    is_dual_pipe,
    reduces_beside,
)
from taylor.parsers.megatron.own_plan import PER_CHUNK, PER_RANK
from taylor.parsers.megatron.start_flags import BAD_UNALIGNED, EMPTY_SHARE, NOOP_EARLY, ONE_CHUNK
from taylor.parsers.stated_flags import StatedFlags

_DUAL = f"{CORE}pipeline_parallel/dualpipev_feature.py"
_LAYOUT = f"{CORE}pipeline_parallel/pipeline_model_parallel_layout_feature.py"
_RIPIPE = f"{CORE}pipeline_parallel/ripipe_schedules_feature.py"
_LAYOUT_SINCE = "26.1.0_core_r0.12.1 to master"


Found = Callable[[StatedFlags], bool]


def _dual(
    name: str,
    explanation: str,
    source: str,
    flag: str,
    found: Found,
    relax: str = "",
    *,
    releases: str = SINCE,
    programs: frozenset[str] = BOTH,
) -> StartRule:
    """Rule that DualPipeV does not go with a flag's feature."""
    return StartRule(
        f"dualpipev-{name}",
        f"--schedules-method dualpipev {explanation}",
        lambda t, f, c: is_dual_pipe(c) & found(f),
        flag,
        source,
        releases,
        relax or f"leave out --{flag} or --schedules-method",
        programs=programs,
    )


_SEVERAL_TENSORS = "use-multiparameter-pipeline-model-parallel"

_OF_DUAL = [
    _dual("without-custom-fsdp", "does not go with --use-custom-fsdp", f"{_DUAL}:22", "use-custom-fsdp",
          lambda f: f.on("use-custom-fsdp")),
    _dual("without-overlapped-reduction", "does not go with overlapped gradient reduction", f"{_DUAL}:25",
          "overlap-grad-reduce", reduces_beside),
    _dual("untied", "needs --untie-embeddings-and-output-weights", f"{_DUAL}:28", "untie-embeddings-and-output-weights",
          lambda f: not f.on("untie-embeddings-and-output-weights"),
          "add --untie-embeddings-and-output-weights, or leave out --schedules-method"),
    _dual("without-swap-attention", "does not go with --swap-attention", f"{_DUAL}:31", "swap-attention",
          lambda f: f.on("swap-attention")),
    _dual("without-virtual-stages", f"does not go with --{PER_CHUNK}", f"{_DUAL}:37", PER_CHUNK,
          lambda f: f.on(PER_CHUNK)),
    _dual("without-tp-2d", "does not go with --tp-2d", f"{_DUAL}:50", "tp-2d", lambda f: f.on("tp-2d")),
    StartRule(
        "dualpipev-without-context-parallel",
        "--schedules-method dualpipev does not go with context parallelism: cp = 1",
        lambda t, f, c: is_dual_pipe(c) & (t.cp > 1),
        "context-parallel-size",
        f"{_DUAL}:34", SINCE,
        "ask for cp = 1, or leave out --schedules-method",
        ("cp",),
    ),
    _dual("without-layout", f"does not go with --{LAYOUT}", f"{_LAYOUT}:103", LAYOUT, lambda f: f.on(LAYOUT),
          f"leave out --{LAYOUT}", releases=_LAYOUT_SINCE),
    _dual("without-layer-list", "does not go with --num-layer-list", f"{LLM}pipeline_parallel/num_layer_list.py:33",
          "num-layer-list", lambda f: f.on("num-layer-list"), "leave out --num-layer-list", releases="2.2.0 to master",
          programs=LLM_ALONE),
    _dual("without-several-tensors", f"does not go with --{_SEVERAL_TENSORS}",
          f"{CORE}pipeline_parallel/multi_parameter.py:39", _SEVERAL_TENSORS, lambda f: f.on(_SEVERAL_TENSORS),
          "leave out one of the two", programs=CORE_ALONE),
]  # fmt: skip


def _several_chunks(table: StrategyTable, flags: StatedFlags) -> Any:
    """Mask of stages with several chunks whose layers `PER_CHUNK` counts, as these features require."""
    return (table.pp > 1) & (table.vpp > 1) & (not flags.on(PER_RANK)) & (not flags.on(LAYOUT))


def _in_bubble(flags: StatedFlags, table: StrategyTable) -> Any:
    """Mask where ``--recompute-num-layers`` is neither 0 nor the feature's value."""
    stated = flags.number("recompute-num-layers")
    layers, each = flags.number("num-layers"), flags.number(PER_CHUNK)
    wanted = layers // table.pp if flags.on("enable-recompute-layers-per-pp-rank") else each
    return (stated != 0) & (wanted != stated)


_BUBBLE, _ADVANCE = "recompute-in-bubble", "recompute-in-advance"

_OF_RECOMPUTE = [
    *apart(_BUBBLE, ["optimize-send-recv-comm"], f"{_RIPIPE}:17"),
    *apart(_ADVANCE, ["optimize-send-recv-comm"], f"{_RIPIPE}:17"),
    StartRule(
        f"{_BUBBLE}-num-layers",
        f"--{_BUBBLE} leaves --recompute-num-layers out, or at the layers that it takes itself",
        lambda t, f, c: f.on(_BUBBLE) & _in_bubble(f, t),
        "recompute-num-layers",
        f"{_RIPIPE}:61", SINCE,
        "leave out --recompute-num-layers",
    ),
    *[
        StartRule(
            f"{feature}-needs-virtual-stages",
            f"--{feature} needs two stages or more with --{PER_CHUNK}",
            lambda t, f, c, feature=feature: f.on(feature) & ~_several_chunks(t, f),  # type: ignore[misc]
            PER_CHUNK,
            f"{_RIPIPE}:{line}", SINCE,
            f"write --{PER_CHUNK}, or leave out --{feature}",
            ("vpp", "pp"),
        )
        for feature, line in ((_BUBBLE, 63), (_ADVANCE, 111))
    ],
    *apart(_BUBBLE, ["swap-attention"], f"{_RIPIPE}:76"),
    *apart(_BUBBLE, ["no-overlap-p2p-communication", "no-align-grad-reduce"], f"{_RIPIPE}:79-85",
           releases="2.2.0_core_r0.12.1 to master"),
    *apart(_ADVANCE, ["no-align-grad-reduce"], f"{_RIPIPE}:116", releases="2.2.0_core_r0.12.1 to master"),
    StartRule(
        f"{_ADVANCE}-method",
        f"--{_ADVANCE} does not go with --recompute-method uniform",
        lambda t, f, c: f.on(_ADVANCE) & (f.text("recompute-method") == "uniform"),
        "recompute-method",
        f"{_RIPIPE}:107", SINCE,
        "write --recompute-method block",
    ),
    StartRule(
        f"{_ADVANCE}-num-layers",
        f"--{_ADVANCE} needs --recompute-num-layers above 0",
        lambda t, f, c: f.on(_ADVANCE) & (f.number("recompute-num-layers") == 0),
        "recompute-num-layers",
        f"{_RIPIPE}:109", SINCE,
        "write --recompute-num-layers",
    ),
    *[
        StartRule(
            f"{name}-num-layers",
            f"--{name}-num-layers is from 0 to the layers",
            lambda t, f, c, name=name: (  # type: ignore[misc]
                not 0 <= f.number(f"{name}-num-layers") <= max(0, f.number("num-layers"))
            ),
            f"{name}-num-layers",
            f"{CORE}recompute/{file}.py:20", SINCE,
            "write a number from 0 to --num-layers",
        )
        for name, file in (
            ("recompute-activation-function", "activation_function"), ("recompute-norm", "norm_function")
        )
    ],
]  # fmt: skip


def _layout_beside(other: str, line: int) -> StartRule:
    return StartRule(
        f"layout-without-{other}",
        f"--{LAYOUT} does not go with --{other}",
        lambda t, f, c: f.on(LAYOUT) & f.on(other),
        other,
        f"{_LAYOUT}:{line}",
        _LAYOUT_SINCE,
        f"leave out --{other}, or the layout",
    )


_OF_PLACES = [
    _layout_beside("pipeline-num-transformer-layers", 105),
    _layout_beside("noop-layers", 109),
    _layout_beside(_BUBBLE, 111),
    _layout_beside(_ADVANCE, 111),
    _layout_beside(PER_CHUNK, 127),
    _layout_beside(PER_RANK, 127),
    StartRule(
        "layout-without-optimize-send-recv-comm",
        f"--{LAYOUT} with several chunks a stage does not go with --optimize-send-recv-comm",
        lambda t, f, c: f.on(LAYOUT) & f.on("optimize-send-recv-comm") & (t.vpp > 1),
        "optimize-send-recv-comm",
        f"{_LAYOUT}:157", _LAYOUT_SINCE,
        "leave out --optimize-send-recv-comm, or name one chunk a stage",
    ),
    StartRule(
        "adapters-on-every-stage",
        "under LoRA, noop layers alone fill no stage and no chunk",
        lambda t, f, c: f.on("lora-target-modules") & (EMPTY_SHARE in f.facts),
        "noop-layers",
        f"{LLM}megatron_basic/training_basic.py:62", "2.2.0 to master",
        "spread --noop-layers over the stages",
        programs=LLM_ALONE,
    ),
    StartRule(
        "fb-overlap-noops-in-last-chunks",
        f"under --moe-fb-overlap without dualpipev, --noop-layers lie in the last --{PER_CHUNK} positions",
        lambda t, f, c: f.on("moe-fb-overlap") & (not is_dual_pipe(c)) & (NOOP_EARLY in f.facts),
        "noop-layers",
        f"{CORE}moe/fb_overlap.py:134", SINCE,
        "put the noop layers last, or leave them out",
    ),
    *apart("pipeline-num-transformer-layers", ["noop-layers"],
           f"{CORE}pipeline_parallel/unaligned_pineline_feature.py:42"),
    *apart("pipeline-num-transformer-layers", ["num-layer-list"],
           f"{CORE}pipeline_parallel/unaligned_pineline_feature.py:43", programs=LLM_ALONE),
    StartRule(
        "unaligned-list-of-stages",
        "--pipeline-num-transformer-layers has a list of every stage, with a number of every chunk, and at most as "
        "many layers as the model",
        lambda t, f, c: BAD_UNALIGNED in f.facts,
        "pipeline-num-transformer-layers",
        f"{CORE}pipeline_parallel/unaligned_pineline_feature.py:48-66", SINCE,
        "write as many lists as stages, each with as many numbers as chunks",
    ),
    StartRule(
        "layer-list-without-virtual-stages",
        f"--num-layer-list does not go with --{PER_CHUNK}, and needs two stages or more",
        lambda t, f, c: f.on("num-layer-list") & (f.on(PER_CHUNK) | (f.number("pipeline-model-parallel-size", 1) == 1)),
        "num-layer-list",
        f"{LLM}pipeline_parallel/num_layer_list.py:29-32", "1.0.0 to master",
        f"leave out --{PER_CHUNK}, or the list",
        programs=LLM_ALONE,
    ),
    StartRule(
        "layer-list-without-noop-layers",
        "--num-layer-list does not go with --noop-layers: the check that would report it fails itself",
        lambda t, f, c: f.on("num-layer-list") & f.on("noop-layers"),
        "num-layer-list",
        f"{LLM}pipeline_parallel/num_layer_list.py:37", "2.2.0 to master; before, the list was ignored",
        "leave out one of the two",
        programs=LLM_ALONE,
    ),
    StartRule(
        "virtual-stages-in-stage",
        f"a stage has two chunks or more of --{PER_CHUNK} layers",
        lambda t, f, c: ONE_CHUNK in f.facts,
        PER_CHUNK,
        f"{CORE}megatron_basic/megatron_basic.py:26", "2.3.0_core_r0.12.1 to master",
        f"leave out --{PER_CHUNK}, or write a smaller one",
    ),
]  # fmt: skip

PIPELINE_RULES = (*_OF_DUAL, *_OF_RECOMPUTE, *_OF_PLACES)
