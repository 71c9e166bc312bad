"""Layer placement by a launch's flags: schedule and virtual stages, layers of every chunk, the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.expert_overlap import EXPERT_OVERLAP
from taylor.parsers.megatron.hybrid import read_hybrid
from taylor.parsers.megatron.kinds import empty_positions, layer_list, layer_positions
from taylor.parsers.megatron.layout import LayoutProblem, Placement, ends_placement, even_placement, expand_layout
from taylor.parsers.megatron.recompute import dealt_layers, read_recompute
from taylor.parsers.megatron.swap import swapped_plan
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit, MovedModules
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, PipelinePlan, deal_kinds, grid_in_order, zero_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import MTP, ModelSpec

V_METHOD = "dualpipev"
"""MindSpeed's value of ``--schedules-method``."""
V_SCHEDULE = ScheduleSpec("dualpipev")
DETACH = "dualpipev-dw-detach"
ZERO_BUBBLE, PENDING = "enable-zero-bubble", "zero-bubble-max-pending-backward"
"""Zero bubble's own Megatron-LM (sail-sg/zero-bubble-pipeline-parallelism 39f2c18 megatron/core/zbpp_utils.py)."""
ITS_OTHERS = ("zero-bubble-v-schedule", "enable-1f1b-v")
"""Its schedules on a V, whose orders are found again as training starts."""
LAYOUT = "pipeline-model-parallel-layout"
PER_CHUNK = "num-layers-per-virtual-pipeline-stage"
PER_RANK = "num-virtual-stages-per-pipeline-rank"
WITH_EMBEDDING, WITH_LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
FIRST, LAST = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"
MAX_RUN_CELLS = 4_000_000
"""Entries that a plan's grids may have together, so that a short pattern cannot ask for endless memory."""


def read_schedule(flags: Flags) -> tuple[ScheduleSpec, int]:
    """The schedule that the flags choose, and the virtual stages of each stage.

    Raises
    ------
    InputError
        When a flag is wrong, or chunks do not divide over the stages.
    """
    pp = flags.integer("pipeline-model-parallel-size", default=1, high=4096)
    method = flags.text("schedules-method", default=None)
    if method == V_METHOD:
        return replace(V_SCHEDULE, whole_drain=not flags.has(DETACH)), 2
    if method is not None:
        raise flags.error("schedules-method", "is not a known schedule", method, f"use {V_METHOD} or leave it out")
    if (zero_bubble := _zero_bubble(flags, pp)) is not None:
        return zero_bubble, 1
    layers = counted_layers(flags)
    interleaves = 1
    hybrid = read_hybrid(flags)
    if hybrid is not None and hybrid.flag is not None and hybrid.bordered:
        if len(hybrid.chunks) % pp:
            raise flags.error(hybrid.flag, f"names {len(hybrid.chunks)} chunks for {pp} stages")
        interleaves = len(hybrid.chunks) // pp
    elif flags.has(LAYOUT):
        try:
            stages = len(expand_layout(flags.text(LAYOUT)))
        except LayoutProblem as problem:
            raise flags.error(LAYOUT, str(problem), flags.text(LAYOUT)) from None
        if stages % pp:
            raise flags.error(LAYOUT, f"names {stages} chunks for {pp} stages", flags.text(LAYOUT))
        interleaves = stages // pp
    elif flags.has(PER_RANK):
        interleaves = flags.integer(PER_RANK, high=1024)
    elif flags.has(PER_CHUNK):
        each = flags.integer(PER_CHUNK, high=MAX_LAYERS)
        if layers % (pp * each):
            raise flags.error(PER_CHUNK, f"must divide the {layers} layers of {pp} stages", each)
        interleaves = layers // (pp * each)
    group = flags.integer("microbatch-group-size-per-virtual-pipeline-stage", default=None)
    spec = ScheduleSpec(group_size=group, one_ahead=flags.has(EXPERT_OVERLAP))
    return spec.for_interleaves(interleaves, frameworks.MEGATRON), interleaves


def _zero_bubble(flags: Flags, stages: int) -> ScheduleSpec | None:
    """The schedule that zero bubble's own flags choose; None where the launch has none of them.

    Its order is found as training starts, from the times measured by then and under a limit of n micro-batches
    of the first stages' memory (runtime.py:1587-1611 in ``zerobubble``): 2S - 1 are ZB-H2's, S are ZB-H1's. Without a
    number the limit is the remaining memory, and ZB-H1 stands for it.
    """
    for name in ITS_OTHERS:
        if flags.has(name):
            cure = "plan with -schedule zbv, whose order torch runs, in a script without it"
            raise flags.error(name, "chooses its order as training starts: it is not known here", True, cure)
    if not flags.has(ZERO_BUBBLE):
        return None
    if stages == 1:
        raise flags.error(ZERO_BUBBLE, "needs two stages or more", True, "leave it out")
    if flags.has(PER_CHUNK) or flags.has(PER_RANK):
        raise flags.error(ZERO_BUBBLE, "has no virtual stages", True, f"leave out --{PER_CHUNK}")
    if flags.text(PENDING, default="auto") == "auto":
        return ScheduleSpec("zb-h1")
    pending = flags.integer(PENDING, low=1, high=1_000_000)
    if pending < stages:
        cure = f"use {stages} (ZB-H1) or {2 * stages} (ZB-H2)"
        raise flags.error(PENDING, f"is less than the {stages} stages: no known order keeps so little", pending, cure)
    return ScheduleSpec("zb-h2" if pending >= 2 * stages - 1 else "zb-h1")


def counted_layers(flags: Flags) -> int:
    """Layers that are spread over the chunks: embedding and loss too, where the script counts them.

    Source: Megatron-LM core 0.11 to main, megatron/core/transformer/transformer_config.py, ``__post_init__``.
    """
    return layer_positions(flags) + flags.has(WITH_EMBEDDING) + flags.has(WITH_LOSS)


def placement(flags: Flags, strategy: Strategy) -> Placement:
    """Layer positions that the flags state, chunk by chunk in model order.

    Raises
    ------
    LayoutProblem
        When they place them in no consistent way.
    """
    layers = layer_positions(flags)
    noops = empty_positions(flags)
    chunks = strategy.pp * strategy.vpp
    hybrid = read_hybrid(flags)
    if hybrid is not None and hybrid.bordered:
        return Placement(_of_chunks([len(letters) for letters in hybrid.chunks], chunks, "the pattern"))
    if flags.has(LAYOUT):
        stages = expand_layout(flags.text(LAYOUT))
        counts = _of_chunks([stage.count("t") for stage in stages], chunks, "the layout")
        if sum(counts) != layers:
            raise LayoutProblem(f"the layout places {sum(counts)} of {layers} layers")
        return Placement(counts, noops)
    listed = layer_list(flags)
    if listed is not None:
        if strategy.vpp > 1:
            raise LayoutProblem("--num-layer-list works without virtual stages only")
        if len(listed) != strategy.pp or sum(listed) != layers:
            raise LayoutProblem(
                f"--num-layer-list names {len(listed)} stages and {sum(listed)} layers; "
                f"there are {strategy.pp} and {layers}"
            )
        return Placement(tuple(listed), noops)
    first = flags.integer(FIRST, default=None, low=0, high=MAX_LAYERS)
    last = flags.integer(LAST, default=None, low=0, high=MAX_LAYERS)
    if first is not None or last is not None:
        return ends_placement(layers, strategy.pp, strategy.vpp, first, last)
    extra_first = flags.has(WITH_EMBEDDING)
    extra_last = flags.has(WITH_LOSS)
    even = even_placement(layers + extra_first + extra_last, chunks, noops)
    slots = list(even.slots)
    slots[0] -= extra_first
    slots[-1] -= extra_last
    return Placement(tuple(slots), noops)


def _of_chunks(counts: Sequence[int], chunks: int, what: str) -> tuple[int, ...]:
    """Layers of every chunk, of as many chunks as the other flags ask for (``--schedules-method``: two a stage)."""
    if len(counts) != chunks:
        raise LayoutProblem(f"{what} has {len(counts)} chunks and the other flags ask for {chunks}")
    return tuple(counts)


def read_plan(flags: Flags, model: ModelSpec, strategy: Strategy, schedule: ScheduleSpec) -> PipelinePlan:
    """The plan that the flags state.

    Raises
    ------
    LayoutProblem
        When they place layers in no consistent way, or in more runs and chunks than can be planned.
    """
    place = placement(flags, strategy)
    sizes = place.sizes()
    counts = model.layer_counts()
    if len(counts) * len(sizes) > MAX_RUN_CELLS:
        raise LayoutProblem(f"{len(counts)} runs of different layers over {len(sizes)} chunks are too many to plan")
    layers = deal_kinds(counts, sizes, strategy.pp, schedule.v_shape, {MTP: len(sizes) - 1} if MTP in counts else {})
    if MTP in counts and flags.has(LAYOUT):
        placed = [stage.count("m") for stage in expand_layout(flags.text(LAYOUT))]
        if sum(placed) != counts[MTP]:
            raise LayoutProblem(f"the layout places {sum(placed)} of {counts[MTP]} MTP layers")
        layers[MTP] = grid_in_order(placed, strategy.pp, schedule.v_shape)
    modes = read_recompute(flags, place, [v for v, _ in chunk_order(strategy.pp, strategy.vpp, schedule.v_shape)])
    grids = {mode: grid_in_order(of_chunk, strategy.pp, schedule.v_shape) for mode, of_chunk in modes.items()}
    return PipelinePlan(layers, {FULL: zero_grid(strategy.pp, strategy.vpp), **grids})


def swapped(
    flags: Flags, model: ModelSpec, strategy: Strategy, schedule: ScheduleSpec, plan: PipelinePlan
) -> tuple[PipelinePlan, PipelinePlan, MovedModules]:
    """The plan of a launch that moves attention to the host; see `swapped_plan`."""
    place = placement(flags, strategy)
    on = [v for v, _ in chunk_order(strategy.pp, strategy.vpp, schedule.v_shape)]
    count = flags.integer("recompute-num-layers", default=0, low=0, high=MAX_LAYERS)
    return swapped_plan(flags, model, plan, place, dealt_layers(flags, count, on), schedule.v_shape)


MTP_ON_ONE_CHUNK = "mtp-on-one-chunk"
_LAYOUT_SOURCE = "Megatron-LM d98e8a64 megatron/core/transformer/pipeline_parallel_layer_layout.py:{lines}"


def misfit_layout(flags: Flags, model: ModelSpec) -> Misfit | None:
    """A layout whose layers are not those of the model, or whose MTP layers are apart.

    Source: Megatron-LM main megatron/core/transformer/pipeline_parallel_layer_layout.py:105-138 (0.13 to main, MTP
    from 0.14 on).
    """
    if not flags.has(LAYOUT):
        return None
    text = flags.text(LAYOUT)
    try:
        chunks = expand_layout(text)
    except LayoutProblem as error:
        return Misfit(f"--{LAYOUT}", text, str(error), "correct the layout")
    letters = "".join(chunks)
    for letter, there, of in (("t", layer_positions(flags), "layers"), ("m", model.mtp_layers, "MTP layers")):
        placed = letters.count(letter)
        if placed != there:
            problem = f"places {placed} {of}; the model has {there}"
            return Misfit(f"--{LAYOUT}", placed, problem, f"write a layout with {there} times {letter}")
    spread = sum("m" in chunk for chunk in chunks)
    if spread > 1:
        problem = f"spreads the MTP layers over {spread} chunks; releases of Megatron-LM and its main take them on one"
        cure = "put them on one (pull request 5329, which is open, takes several)"
        return Misfit(f"--{LAYOUT}", spread, problem, cure, MTP_ON_ONE_CHUNK, _LAYOUT_SOURCE.format(lines="127-131"))
    return None
