"""Jobs that Megatron-LM refuses: sequences without positions, MTP under wide recompute, reused choices of tokens."""

from __future__ import annotations

from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import MTP, ModelSpec

POSITIONS = "max-position-embeddings"
CHOICES_IN_CHUNK = "chosen-tokens-in-chunk"
SEQUENCE_IN_POSITIONS, MTP_RECOMPUTES_ONE_LAYER = "sequence-in-positions", "mtp-recomputes-one-layer"


def misfit_positions(flags: Flags) -> Misfit | None:
    """A sequence longer than the positions that the model is built for; checked for rotary ones too.

    Source: Megatron-LM core_v0.16.0 megatron/training/arguments.py:830-834 (2.5 to main, d98e8a64 :1354). MindSpeed-LLM
    runs the same check (c77308a1 mindspeed_llm/training/arguments.py:210).
    """
    positions = flags.integer(POSITIONS, default=None, high=MAX_SIZE)
    if positions is None:
        return None
    for name in ("seq-length", "decoder-seq-length"):
        length = flags.integer(name, default=0, high=MAX_SIZE)
        if length > positions:
            return Misfit(
                f"--{POSITIONS}",
                positions,
                f"is below --{name} {length}",
                f"write --{POSITIONS} {length}, or at most {positions} as --{name}",
                SEQUENCE_IN_POSITIONS,
                "Megatron-LM core_v0.16.0 megatron/training/arguments.py:830",
                any_strategy=True,
            )
    return None


def misfit_mtp_recompute(flags: Flags, model: ModelSpec, *, mindspeed: bool) -> Misfit | None:
    """MTP layers run again by the ``uniform`` method with more than one layer at once: their first step fails.

    Source: Megatron-LM core_v0.16.0 megatron/core/transformer/multi_token_prediction.py:842-848, 910 (0.14 to main,
    d98e8a64 :1621-1627). Releases before 0.14, MindSpeed's 0.12.1 among them, recompute no MTP layer.
    """
    if mindspeed or not model.mtp_layers or flags.text("recompute-granularity", default=None) != "full":
        return None
    count = flags.integer("recompute-num-layers", default=1, low=0, high=MAX_LAYERS)
    if flags.text("recompute-method", default=None) != "uniform" or count == 1:
        return None
    return Misfit(
        "--recompute-num-layers",
        count,
        "must be 1 for a model with MTP layers under --recompute-method uniform",
        "write --recompute-num-layers 1",
        MTP_RECOMPUTES_ONE_LAYER,
        "Megatron-LM core_v0.16.0 megatron/core/transformer/multi_token_prediction.py:847",
        any_strategy=True,
    )


def misfit_reused_choices(plan: PipelinePlan, model: ModelSpec, *, v_shape: bool) -> Misfit | None:
    """A chunk that begins with a layer which reuses the tokens that a layer of another chunk chose.

    Source: Megatron-LM d98e8a64 megatron/core/models/gpt/experimental_attention_variant_module_specs.py:395-431 (core
    0.19 to main).
    """
    reusing, begins = model.reusing_runs, []
    for chunk, (v, s) in enumerate(chunk_order(plan.stages, plan.interleaves, v_shape) if reusing else ()):
        present = [run for run, grid in plan.layers.items() if grid[v][s]]
        if present and present[0] in reusing:
            begins.append(chunk)
    if not begins:
        return None
    first = 0
    allowed: list[int] = []
    for run, count in model.layer_counts().items():
        allowed += [] if run in reusing or run == MTP else range(first + 1, first + count + 1)
        first += count
    shown = ", ".join(map(str, allowed[:8])) + (", …" if len(allowed) > 8 else "")
    return Misfit(
        "--dsa-indexer-topk-freq",
        f"chunk {begins[0]}",
        "begins with a layer that reuses the tokens that a layer of the chunk before chose",
        f"let chunks begin with layers {shown} by --pipeline-model-parallel-layout",
        CHOICES_IN_CHUNK,
        "Megatron-LM d98e8a64 megatron/core/models/gpt/experimental_attention_variant_module_specs.py:418",
    )
