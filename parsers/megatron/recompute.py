"""Recompute as Megatron's flags can state it: one choice for all chunks."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.cost_model.choices.module_choices import ModuleWords, words_of
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP, FB_OVERLAP
from taylor.parsers.megatron.kinds import has_experts
from taylor.parsers.megatron.layout import Placement
from taylor.parsers.megatron.offload import MODULE_INPUTS, OFFLOAD_MODULES, OFFLOADING
from taylor.parsers.megatron.swap import SWAPPING, is_block, is_swap, moves_attention, swap_choices, swap_flags
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import body_layers
from taylor.pipeline.plan import FULL, RECOMPUTE_MODES, SELECT, PipelinePlan, as_grid
from taylor.register import frameworks
from taylor.register.model import MTP

PER_RANK_RECOMPUTE = "enable-recompute-layers-per-pp-rank"
MODULES, EXPERTS_AGAIN = "recompute-modules", "moe-layer-recompute"
ACTIVATION, ACTIVATION_LAYERS = "recompute-activation-function", "recompute-activation-function-num-layers"
IN_BUBBLE, IN_ADVANCE = "recompute-in-bubble", "recompute-in-advance"
RECOMPUTE_FLAGS = (
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-activations",
    PER_RANK_RECOMPUTE,
    EXPERTS_AGAIN,
    ACTIVATION,
    ACTIVATION_LAYERS,
    IN_BUBBLE,
    IN_ADVANCE,
    "checkpoint-activations",
    "activations-checkpoint-method",
    "activations-checkpoint-num-layers",
)
MODULE_PARTS = {
    "core_attn": frameworks.ATTENTION_CORE,
    "layernorm": frameworks.NORMS,
    "mla_up_proj": frameworks.LATENT_UP,
    "mlp": frameworks.DENSE_MLP,
    "moe": frameworks.EXPERT_BLOCK,
    "moe_act": frameworks.EXPERT_ACTIVATION,
    "shared_experts": frameworks.SHARED_EXPERTS,
}
"""Parts that each module of ``--recompute-modules`` runs again.

Megatron-LM main, megatron/core/transformer: attention.py:392-395 and 444-497 (core_attn), transformer_layer.py:475-539
(layernorm, where the norm is no part of the GEMM behind it: gpt_layer_specs.py:139-157; mlp, of dense layers alone),
multi_latent_attention.py:171-174 and 983-988 (mla_up_proj), moe/moe_layer.py:247-257 (moe, shared_experts),
moe/experts.py:269-272 (moe_act).
"""
MODULE_WORDS = ModuleWords({word: (part,) for word, part in MODULE_PARTS.items()}, MODULE_INPUTS)
ACTIVATION_PARTS = (frameworks.DENSE_ACTIVATION, frameworks.SHARED_ACTIVATION, frameworks.EXPERT_ACTIVATION)
"""Parts that MindSpeed's ``--recompute-activation-function`` runs again; their result is freed.

MindSpeed 028de58c mindspeed/core/memory/recompute/activation/activation_recompute_forward.py:63-82 (every MLP, a shared
expert's too: mindspeed/core/transformer/transformer.py:28-45) and, for grouped experts,
mindspeed/core/transformer/moe/moe_feature/gmm/experts.py:59-63.
"""
LATENT_AGAIN, ZERO_MEMORY = "recompute-mla-up-proj", "moe-zero-memory"
EXCHANGE_OVERLAPS = ("moe-alltoall-overlap-comm", FB_OVERLAP)
"""MindSpeed's overlaps of the experts' exchange; without one `ZERO_MEMORY` does nothing."""
ZERO_MEMORY_PARTS = (frameworks.EXPERT_ACTIVATION, frameworks.EXPERT_ROWS)
"""Parts of every layer that MindSpeed's ``--moe-zero-memory`` runs again at either level: the activation function, and
the dispatch of rows to experts.

MindSpeed 028de58c mindspeed/core/transformer/moe: moe_feature/fb_overlap/modules/experts.py:111 and
overlap_funcs/fwd.py:169; grouped_mlp_with_comp_and_comm_overlap_all2all.py:50-69. The further effect of ``level1`` (the
first GEMM's result runs again or lies on the host) is in no figure.
"""
ABSENT_MODULES = ("gdn_norm_out", "gdp_in_proj", "gdp_qkv", "mhc")
"""Modules whose recompute is not counted: the norm of a gated delta net's output, and those of layers that no model
here has (transformer_config.py:572-577)."""


def uniform_choices(layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The first N layers of every chunk fully recomputed, for every N, or all layers selectively or by module."""
    named = [mode for mode in modes if mode not in RECOMPUTE_MODES and not is_swap(mode)]
    choices = [*((FULL, count) for count in range(layers + 1)), *((mode, layers) for mode in (SELECT, *named))]
    return (*(choice for choice in choices if choice[0] in modes), *swap_choices(layers, modes))


def stated_modules(flags: Flags) -> tuple[str, ...]:
    """Modules that these flags' network has and that ``--recompute-modules`` takes beside them.

    Megatron-LM core_v0.12.1 megatron/core/transformer/transformer_config.py:728-744, d98e8a64 :1964-2000 (which also
    takes shared experts unless their exchange is overlapped); a release that takes fewer ends the small run of one.
    ``mlp`` is of dense layers alone (d98e8a64 megatron/core/transformer/transformer_layer.py:537-539).
    """
    experts = flags.integer("num-experts", default=1) > 1
    there = {
        "core_attn": True,
        "layernorm": True,
        "mla_up_proj": flags.has("multi-latent-attention"),
        "mlp": not experts or not all(has_experts(flags)),
        "moe": experts and not flags.has(EXPERT_OVERLAP, *EXCHANGE_OVERLAPS),
        "moe_act": experts and flags.has("moe-grouped-gemm"),
        "shared_experts": flags.has("moe-shared-expert-intermediate-size")
        and not flags.has("moe-shared-expert-overlap"),
    }
    return tuple(name for name in MODULE_PARTS if there[name])


def module_flags(name: str | None) -> dict[str, Setting]:
    """Flags of the modules that run again and of those whose inputs are moved, where one choice holds for all layers.

    Parameters
    ----------
    name : str or None
        A choice of `cost_model.choices.module_choices`; None: nothing by module, whatever the script had.
    """
    again, moved = ((), ()) if name is None else words_of(name)
    wanted: dict[str, Setting] = {OFFLOADING: bool(moved), OFFLOAD_MODULES: moved or False}
    if again:
        # The modules say it all: the older flag would add the experts to them.
        wanted |= {MODULES: again, EXPERTS_AGAIN: False}
    return wanted


def by_module(plan: PipelinePlan) -> tuple[PipelinePlan, dict[str, Setting]]:
    """A plan whose layers are all under one choice by module, or none, as one without such, and the choice's flags.

    What runs again by module is Megatron's selective recompute. A plan that was not asked for modules has no flags.
    """
    named = [mode for mode in plan.recompute if mode not in RECOMPUTE_MODES]
    used = [mode for mode in named if plan.uses(mode)]
    if not named:
        return plan, {}
    rest = {mode: grid for mode, grid in plan.recompute.items() if mode not in named}
    if all(map(is_swap, used or named)):
        return PipelinePlan(plan.layers, rest), swap_flags(plan, used[0] if used else None)
    if not used:
        return PipelinePlan(plan.layers, rest), module_flags(None)
    again, _ = words_of(used[0])
    body = body_layers(plan)
    return PipelinePlan(plan.layers, {SELECT: body} if again else {}), module_flags(used[0])


def nearest_plan(plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
    """The plan itself where Megatron's recompute flags can say it, else the nearest that fits memory.

    Megatron recomputes the first N layers of every chunk alike (``block``), or all, or selectively
    all. The nearest plan keeps the layers and takes the largest N that any chunk asks for, so that no
    stage holds more than it did; the reason is returned.

    Returns
    -------
    PipelinePlan, tuple of str
        The plan, and one sentence for each thing that had to change.
    """
    body = body_layers(plan)
    named = [mode for mode in plan.recompute if mode not in RECOMPUTE_MODES]
    if any(plan.recomputed(mode) == body or (is_swap(mode) and is_block(plan, mode)) for mode in named):
        return plan, ()
    full, select = plan.recomputed(FULL), plan.recomputed(SELECT)
    shape = [(v, s) for v in range(plan.interleaves) for s in range(plan.stages)]
    if not any(full[v][s] for v, s in shape) and all(select[v][s] == body[v][s] for v, s in shape):
        return plan, ()
    largest = max(full[v][s] for v, s in shape)
    block = as_grid([[min(largest, sizes) for sizes in row] for row in body])
    if block == full and not any(map(any, select)):
        return plan, ()
    if not any(map(any, full)):
        changed = PipelinePlan(plan.layers, {FULL: full, SELECT: body})
        return changed, ("selective recompute applies to all layers or none: it is set for all",)
    until = max(full[v][s] + select[v][s] for v, s in shape)
    changed = PipelinePlan(plan.layers, {FULL: as_grid([[min(until, sizes) for sizes in row] for row in body])})
    return changed, (
        f"Megatron recomputes the first N layers of every chunk alike: the nearest that fits memory is N = {until}",
    )


def read_recompute(flags: Flags, place: Placement, interleave_of: Sequence[int]) -> dict[str, list[int]]:
    """Recomputed real layers of each chunk in model order, by mode.

    Parameters
    ----------
    interleave_of : sequence of int [chunks]
        Virtual stage of each chunk.
    """
    mode, of_chunk = _read_granularity(flags, place, interleave_of)
    modes = {} if mode is None else {mode: of_chunk}
    full = modes.get(FULL, [0] * len(of_chunk))
    if mode != SELECT and parts_of_every_layer(flags):
        modes[SELECT] = [sizes - whole for sizes, whole in zip(place.sizes(), full, strict=True)]
    elif mode != SELECT and flags.has(ACTIVATION):
        modes[SELECT] = _activation_layers(flags, place, interleave_of, full)
    return modes


def parts_of_every_layer(flags: Flags) -> tuple[str, ...]:
    """Parts that flags beside ``--recompute-granularity`` run again in every layer that is not recomputed whole.

    Sources: `ZERO_MEMORY_PARTS`; MindSpeed-LLM c77308a1 mindspeed_llm/tasks/models/transformer
    multi_latent_attention.py:682-711 (up-projections, whose results are freed; on a V not in the last chunk, where
    at most one micro-batch is alive).
    """
    latent = (frameworks.LATENT_UP,) if flags.has(LATENT_AGAIN) else ()
    return latent + (ZERO_MEMORY_PARTS if _sends_again(flags) else ())


def _sends_again(flags: Flags) -> bool:
    """Return whether ``--moe-zero-memory`` has an effect: MindSpeed 028de58c docs/zh/features/megatron_moe.

    ``megatron-moe-zero-memory.md``: only beside an overlap of the experts' exchange.
    """
    level = flags.text(ZERO_MEMORY, default="disable")
    if level not in ("disable", "level0", "level1"):
        raise flags.error(ZERO_MEMORY, "is not a known level", level, "use level0, level1 or disable")
    return level != "disable" and flags.has(*EXCHANGE_OVERLAPS)


def _activation_layers(flags: Flags, place: Placement, interleave_of: Sequence[int], full: Sequence[int]) -> list[int]:
    """Layers of each chunk whose activation functions alone run again: those behind the fully recomputed ones.

    Source: MindSpeed 028de58c mindspeed/model/transformer.py:97-131, `should_recompute`; all remaining ones where no
    number is given.
    """
    left = [sizes - whole for sizes, whole in zip(place.sizes(), full, strict=True)]
    count = flags.integer(ACTIVATION_LAYERS, default=None, low=0, high=MAX_LAYERS)
    if count is None:
        return left
    first = flags.integer("recompute-num-layers", default=int(any(full)), low=0, high=MAX_LAYERS)
    until = [place.real_among_first(k, n) for k, n in enumerate(dealt_layers(flags, first + count, interleave_of))]
    return [max(0, min(most, end - whole)) for most, end, whole in zip(left, until, full, strict=True)]


def dealt_layers(flags: Flags, count: int, interleave_of: Sequence[int]) -> list[int]:
    """Positions of each chunk among the first `count`: of every chunk, or of a stage's chunks together.

    Under `PER_RANK_RECOMPUTE` a stage's layers are dealt round-robin over its chunks: position i of chunk v is one of
    them where i·V + v < count. Source: MindSpeed-LLM mindspeed_llm/core/transformer/transformer_block.py,
    `_block_method_checkpointed_forward_func`, 1.0.RC3 to master.
    """
    if not flags.has(PER_RANK_RECOMPUTE):
        return [count] * len(interleave_of)
    interleaves = max(interleave_of) + 1
    return [max(0, -(-(count - v) // interleaves)) for v in interleave_of]


def _granularity(flags: Flags) -> str | None:
    granularity = flags.text("recompute-granularity", default=None)
    if flags.has("recompute-activations") or (flags.has(EXPERTS_AGAIN) and granularity is None):
        # --recompute-activations goes before the granularity: Megatron-LM main megatron/training/arguments.py:607.
        return "selective"
    return None if granularity is None else str(granularity)


def _read_granularity(flags: Flags, place: Placement, interleave_of: Sequence[int]) -> tuple[str | None, list[int]]:
    """Mode and recomputed real layers of each chunk, as ``--recompute-granularity`` and its forebears say."""
    sizes = place.sizes()
    granularity = _granularity(flags)
    if granularity is None:
        return _read_older(flags, place)
    if granularity == "selective":
        return SELECT, sizes
    if granularity != "full":
        raise flags.error("recompute-granularity", "must be full or selective", granularity)
    method = flags.text("recompute-method", default=None)
    if method == "uniform":
        return FULL, sizes  # Every layer, in groups (`read_group`).
    if method != "block":
        raise flags.error("recompute-method", "must be uniform or block where the granularity is full", method)
    count = flags.integer("recompute-num-layers", default=1, low=0, high=MAX_LAYERS)
    return FULL, [place.real_among_first(k, n) for k, n in enumerate(dealt_layers(flags, count, interleave_of))]


def read_group(flags: Flags) -> int:
    """Layers that full recompute takes together, 1 unless it is ``uniform``.

    Each group's first input is saved, and all its layers run again at once: Megatron-LM d98e8a64
    megatron/core/recompute.py:157-166, v2.6 megatron/model/transformer.py ``_checkpointed_forward``; v2.5 the same by
    ``--checkpoint-num-layers``.
    """
    if _granularity(flags) == "full" and flags.text("recompute-method", default=None) == "uniform":
        return int(flags.integer("recompute-num-layers", default=1, low=1, high=MAX_LAYERS))
    older = "activations-checkpoint-method"
    if _granularity(flags) is None and flags.has(older) and flags.text(older) == "uniform":
        return int(flags.integer("activations-checkpoint-num-layers", default=1, low=1, high=MAX_LAYERS))
    return 1


def recomputes_in_bubble(flags: Flags, strategy: Strategy) -> bool:
    """Return whether micro-batches run again in the pipeline's bubble: with VPP, and at least two rounds of them.

    Source: MindSpeed 028de58c mindspeed/core/pipeline_parallel/ripipe_schedules.py:779.
    """
    rounds = strategy.micro_batches // strategy.pp
    return flags.has(IN_BUBBLE) and strategy.pp > 1 and strategy.vpp > 1 and rounds > 1


def recomputes_mtp(flags: Flags) -> bool:
    """Return whether full recompute takes MTP layers too: ``uniform`` does, ``block`` skips them.

    Source: Megatron-LM d98e8a64 megatron/core/transformer/multi_token_prediction.py:1621-1635.
    """
    return _granularity(flags) == "full" and flags.text("recompute-method", default=None) == "uniform"


def read_modules(flags: Flags) -> tuple[str, ...] | None:
    """Parts of a layer that selective recompute runs again (`MODULE_PARTS`); None where the script names none.

    ``--moe-layer-recompute`` adds the experts to them (transformer_config.py:2014-2025), and where no granularity
    asks for modules, ``--recompute-activation-function`` chooses `ACTIVATION_PARTS` instead. `parts_of_every_layer` are
    always among them.
    """
    every = parts_of_every_layer(flags)
    if _granularity(flags) != "selective" and (every or flags.has(ACTIVATION)):
        # A number of layers of their own leaves the activation functions' results counted as kept.
        some = flags.has(ACTIVATION) and not (every and flags.has(ACTIVATION_LAYERS))
        return tuple(dict.fromkeys((ACTIVATION_PARTS if some else ()) + every))
    if not flags.has(MODULES) and not flags.has(EXPERTS_AGAIN) and not every:
        return None
    words = flags.listed(MODULES) if flags.has(MODULES) else ["core_attn"]
    unknown = [word for word in words if word not in MODULE_PARTS and word not in ABSENT_MODULES]
    if unknown:
        known = ", ".join(MODULE_PARTS)
        raise flags.error(MODULES, "names no part of a layer that can run again", unknown[0], f"name some of {known}")
    if flags.has(EXPERTS_AGAIN):
        words.append("moe")
    return tuple(dict.fromkeys([MODULE_PARTS[word] for word in words if word in MODULE_PARTS] + list(every)))


def activation_notes(flags: Flags, plan: PipelinePlan | None) -> list[str]:
    """Flags whose effect is not counted as it runs where activation functions run again.

    Beside modules: MindSpeed-LLM 2.3.0 and before do not start so (mindspeed_llm/training/arguments.py:962-966). In
    uneven chunks: the layer's number is taken modulo the even share (MindSpeed 028de58c
    mindspeed/model/transformer.py:111-122), not its place in the chunk.
    """
    notes = []
    if flags.has(ZERO_MEMORY) and flags.text(ZERO_MEMORY) == "level1" and _sends_again(flags):
        notes.append(f"--{ZERO_MEMORY} level1: counted as level0, which keeps the experts' first product")
    if not flags.has(ACTIVATION):
        return notes
    if flags.has(ACTIVATION_LAYERS) and parts_of_every_layer(flags):
        return [*notes, f"--{ACTIVATION}: its results count as kept, as other parts run again in every layer"]
    if _granularity(flags) == "selective":
        return [*notes, f"--{ACTIVATION} beside selective recompute: the activation functions' results count as kept"]
    chunks = () if plan is None else body_layers(plan)
    if flags.has(ACTIVATION_LAYERS) and len({sizes for row in chunks for sizes in row}) > 1:
        return [
            *notes,
            f"--{ACTIVATION_LAYERS}: counted from the first layer of every chunk, though the chunks are uneven",
        ]
    return notes


def kept_modules(flags: Flags) -> list[str]:
    """Modules that a script runs again and that count as kept."""
    return [word for word in dict.fromkeys(flags.listed(MODULES)) if word in ABSENT_MODULES]


def _read_older(flags: Flags, place: Placement) -> tuple[str | None, list[int]]:
    """Full recompute by the flags that it had before 2022.

    Sources: Megatron-LM v2.5 megatron/arguments.py:393 (every layer, in groups of ``--checkpoint-num-layers``) and
    v2.6 :417 (``uniform``, or the first layers of each stage's model part).
    """
    sizes = place.sizes()
    method = flags.text("activations-checkpoint-method", default=None)
    if method == "block":
        count = flags.integer("activations-checkpoint-num-layers", default=1, low=0, high=MAX_LAYERS)
        return FULL, [place.real_among_first(k, count) for k in range(len(sizes))]
    if method not in (None, "uniform"):
        raise flags.error("activations-checkpoint-method", "must be uniform or block", method)
    if method is None and not flags.has("checkpoint-activations"):
        return None, [0] * len(sizes)
    return FULL, sizes


def recompute_flags(flags: Flags, plan: PipelinePlan) -> dict[str, Setting]:
    """Recompute flags of a plan that `nearest_plan` leaves as it is, in a launch with these flags.

    A launch whose activation functions run again keeps them as its selective recompute: of all layers or of none. One
    that moves attention to the host computes no layer again whole, so that full recompute takes the place of that.
    """
    body = body_layers(plan)
    full = plan.recomputed(FULL)
    largest = max(map(max, full))
    absent: dict[str, Setting] = {name: False for name in RECOMPUTE_FLAGS}
    if moves_attention(flags) and largest:
        absent[SWAPPING] = False
    every = parts_of_every_layer(flags)
    if _granularity(flags) != "selective" and (every or flags.has(ACTIVATION)):
        del absent[ACTIVATION]
        if plan.uses(SELECT):
            if every:
                del absent[ACTIVATION_LAYERS]
            return absent
        absent |= {LATENT_AGAIN: False, ZERO_MEMORY: False} if every else {}
        absent |= {ACTIVATION_LAYERS: "0"} if flags.has(ACTIVATION) else {}
        # Beside them MindSpeed takes no uniform recompute: MindSpeed 028de58c mindspeed/arguments.py:697.
        return absent if largest == 0 else {**absent, **full_recompute(largest)}
    if plan.uses(SELECT):
        # Which parts run again stays as the script has it.
        kept = {name: setting for name, setting in absent.items() if name != EXPERTS_AGAIN}
        return {**kept, "recompute-granularity": "selective"}
    if largest == 0:
        return absent
    if full == body and not any(map(any, plan.layers.get(MTP, ()))):
        return {**absent, **full_recompute(1), "recompute-method": "uniform"}
    # It starts with ``block`` alone: MindSpeed 028de58c
    # mindspeed/features_manager/pipeline_parallel/ripipe_schedules_feature.py:105-112.
    absent.pop(IN_ADVANCE)
    # MTP layers, which no plan recomputes, are skipped by ``block`` (`recomputes_mtp`).
    return {**absent, **full_recompute(largest)}


def full_recompute(layers: int) -> dict[str, Setting]:
    """Flags under which the first layers of every chunk run again whole."""
    return {"recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": str(layers)}
