"""What Megatron's recompute flags can say: one choice for all chunks."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.parsers.megatron.edit import Setting
from taylor.parsers.megatron.flags import Flags
from taylor.parsers.megatron.layout import Placement
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.register.model import MTP

PER_RANK_RECOMPUTE = "enable-recompute-layers-per-pp-rank"
RECOMPUTE_FLAGS = (
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "recompute-activations",
    PER_RANK_RECOMPUTE,
)


def uniform_choices(layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """The first N layers of every chunk fully recomputed, for every N, or all layers selectively."""
    choices = [*((FULL, count) for count in range(layers + 1)), (SELECT, layers)]
    return tuple(choice for choice in choices if choice[0] in modes)


def nearest_plan(plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
    """The plan itself where Megatron's recompute flags can say it, else the nearest that fits memory.

    Megatron recomputes the first N layers of every chunk alike (``block``), or all, or selectively
    all. The nearest plan keeps the layers and takes the largest N that any chunk asks for, so that no
    stage holds more than it did; the reason is told.

    Returns
    -------
    PipelinePlan, tuple of str
        The plan, and one sentence for each thing that had to change.
    """
    body = plan.total_layers([kind for kind in plan.layers if kind != MTP])
    full, select = plan.recomputed(FULL), plan.recomputed(SELECT)
    shape = [(v, s) for v in range(plan.interleaves) for s in range(plan.stages)]
    if not any(full[v][s] for v, s in shape) and all(select[v][s] == body[v][s] for v, s in shape):
        return plan, ()
    largest = max(full[v][s] for v, s in shape)
    block = as_grid([[min(largest, held) for held in row] for row in body])
    if block == full and not any(map(any, select)):
        return plan, ()
    if not any(map(any, full)):
        changed = PipelinePlan(plan.layers, {FULL: full, SELECT: body})
        return changed, ("selective recompute holds for all layers or none: it is set for all",)
    until = max(full[v][s] + select[v][s] for v, s in shape)
    changed = PipelinePlan(plan.layers, {FULL: as_grid([[min(until, held) for held in row] for row in body])})
    return changed, (
        f"Megatron recomputes the first N layers of every chunk alike: the nearest that fits memory is N = {until}",
    )


def read_recompute(flags: Flags, place: Placement, interleave_of: Sequence[int]) -> tuple[str | None, list[int]]:
    """Mode, and recomputed real layers of each chunk in model order.

    Parameters
    ----------
    interleave_of : sequence of int [chunks]
        Which interleave of its stage each chunk is.
    """
    held = place.held()
    granularity = flags.text("recompute-granularity", default=None)
    if flags.has("recompute-activations") and granularity is None:
        granularity = "selective"
    if granularity is None:
        return None, [0] * len(held)
    if granularity == "selective":
        return SELECT, held
    if granularity != "full":
        raise flags.error("recompute-granularity", "must be full or selective", granularity)
    method = flags.text("recompute-method", default=None)
    if method == "uniform":
        return FULL, held  # Whatever its group size, every layer is computed again.
    if method != "block":
        raise flags.error("recompute-method", "must be uniform or block where the granularity is full", method)
    count = flags.integer("recompute-num-layers", default=1, low=0, high=MAX_LAYERS)
    each = [count] * len(held)
    if flags.has(PER_RANK_RECOMPUTE):
        # The layers of a stage are dealt over its chunks in turn: position i of chunk v is recomputed where
        # i·V + v < count. Source: MindSpeed-LLM mindspeed_llm/core/transformer/transformer_block.py,
        # `_block_method_checkpointed_forward_func`, 1.0.RC3 to master.
        interleaves = max(interleave_of) + 1
        each = [max(0, -(-(count - v) // interleaves)) for v in interleave_of]
    return FULL, [place.real_among_first(k, first) for k, first in enumerate(each)]


def recompute_flags(plan: PipelinePlan) -> dict[str, Setting]:
    """Recompute flags of a plan that `nearest_plan` leaves as it is."""
    body = plan.total_layers([kind for kind in plan.layers if kind != MTP])
    full = plan.recomputed(FULL)
    largest = max(map(max, full))
    if plan.uses(SELECT):
        return {
            "recompute-activations": False,
            "recompute-method": False,
            "recompute-num-layers": False,
            "recompute-granularity": "selective",
            PER_RANK_RECOMPUTE: False,
        }
    if largest == 0:
        return {name: False for name in RECOMPUTE_FLAGS}
    if full == body:
        return {
            PER_RANK_RECOMPUTE: False,
            "recompute-activations": False,
            "recompute-granularity": "full",
            "recompute-method": "uniform",
            "recompute-num-layers": "1",
        }
    return {
        PER_RANK_RECOMPUTE: False,
        "recompute-activations": False,
        "recompute-granularity": "full",
        "recompute-method": "block",
        "recompute-num-layers": str(largest),
    }
