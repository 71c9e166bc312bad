"""The flags that place a plan's layers in a Megatron or MindSpeed script, and say what each of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.parsers.megatron import deepseek4, hybrid
from taylor.parsers.megatron.frequency import list_text
from taylor.parsers.megatron.hybrid import HybridLayers, pattern_text, read_hybrid
from taylor.parsers.megatron.kinds import (
    DENSE_FIRST,
    LAYER_LIST,
    NOOPS,
    PATTERN,
    kind_flags,
    says_dense_first,
    starts_with,
)
from taylor.parsers.megatron.layout import LayoutProblem, ends_placement, layout_text
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.own_plan import (
    DETACH,
    FIRST,
    LAST,
    LAYOUT,
    PENDING,
    PER_CHUNK,
    PER_RANK,
    V_METHOD,
    WITH_EMBEDDING,
    WITH_LOSS,
    ZERO_BUBBLE,
)
from taylor.parsers.megatron.stack import FULL_INTERVAL, LINEAR_FREQ, WINDOW_FREQ, linear_layers, windowed_layers
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.pipeline.plan import PipelinePlan, values_in_order
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.layers import SLIDING, LayerSpec
from taylor.register.model import MTP, ModelSpec

PLACING = (
    LAYER_LIST,
    NOOPS,
    LAYOUT,
    FIRST,
    LAST,
    PER_CHUNK,
    PER_RANK,
    WITH_EMBEDDING,
    WITH_LOSS,
)
KIND_FLAGS = (DENSE_FIRST, PATTERN, WINDOW_FREQ, LINEAR_FREQ, hybrid.HYBRID, hybrid.HYBRID_BEFORE)
"""Flags that say the kind of each layer."""
Wanted = dict[str, Setting]


def chunk_layers(model: ModelSpec, plan: PipelinePlan, v_shape: bool) -> list[list[LayerSpec]]:
    """Every layer of each chunk in model order, without MTP and the kinds' names."""
    result: list[list[LayerSpec]] = [[] for _ in range(plan.stages * plan.interleaves)]
    for run, grid in plan.layers.items():
        if run == MTP:
            continue
        layer = model.layer(run).replace(name="")
        if layer.moe is not None:
            layer = layer.replace(moe=replace(layer.moe, first_dense=0))
        for chunk, count in zip(result, values_in_order(grid, v_shape), strict=True):
            chunk += [layer] * count
    return result


def placing_flags(flags: Flags, model: ModelSpec, plan: PipelinePlan, schedule: ScheduleSpec) -> Wanted:
    """Flags that place the plan's layers and say their kinds, in the form that the script uses or could use.

    Parameters
    ----------
    model : ModelSpec
        Knows the kinds of the plan's layers.

    Raises
    ------
    InputError
        When no flags can say the plan.
    """
    layers = chunk_layers(model, plan, schedule.v_shape)
    pattern = read_hybrid(flags)
    if pattern is not None:
        return _hybrid(flags, pattern, layers, plan)
    v_shape = schedule.v_shape
    sizes = [len(of) for of in layers]
    wanted: Wanted = {name: False for name in PLACING if flags.has(name)}
    wanted["num-layers"] = str(sum(sizes))
    if v_shape and not flags.has("schedules-method"):
        wanted["schedules-method"] = V_METHOD
        wanted[DETACH] = not schedule.whole_drain
    elif not v_shape and flags.has("schedules-method"):
        wanted["schedules-method"] = wanted[DETACH] = False
    wanted |= _zero_bubble(flags, schedule, plan.stages)
    mindspeed = is_mindspeed(flags)
    experts = [[layer.moe is not None for layer in of] for of in layers]
    mixed = len({each for of in experts for each in of}) > 1
    period = flags.integer(FULL_INTERVAL, default=0, low=0)
    by_number = mixed or period > 1
    # Stages of unlike length are given by empty layers, or in models whose layers are alike by a list: MindSpeed-LLM
    # counts layers as if there were no list, and refuses both dense layers and a list from 2.2.0 on.
    by_list = mindspeed and plan.interleaves == 1 and not by_number
    by_list = by_list and (flags.has(LAYER_LIST) or not flags.has(NOOPS))
    even = len(set(sizes)) == 1
    if not even and wanted.get(ZERO_BUBBLE, flags.has(ZERO_BUBBLE)):
        # Its Megatron-LM is core 0.9, which has neither a layout nor flags for the ends.
        raise InputError(
            "cannot express the plan: the Megatron-LM of zero bubble spreads layers evenly",
            file=flags.file,
            field="--num-layers",
            cure="solve with -write n",
        )
    mtp_elsewhere = MTP in plan.layers and not values_in_order(plan.layers[MTP], v_shape)[-1]
    slots: list[list[int | None]] = [list(range(count)) for count in sizes]
    if flags.has(LAYOUT) or mtp_elsewhere:
        wanted[LAYOUT] = layout_text(plan)
    elif plan.interleaves == 1 and even and not flags.has(LAYER_LIST) and not (by_number and mindspeed):
        pass
    elif by_list:
        wanted[LAYER_LIST] = ",".join(map(str, sizes))
    elif mindspeed:
        slots = _slots(flags, layers, plan, period)
        wanted |= with_noops(slots, None if v_shape or plan.interleaves == 1 else PER_CHUNK)
    elif even:
        wanted |= interleave_flag(flags, plan.interleaves, sizes[0])
    elif (ends := _ends(plan, sizes)) is not None:
        wanted |= ends | interleave_flag(flags, plan.interleaves, None)
    else:
        wanted[LAYOUT] = layout_text(plan)
    positions = [None if at is None else of[at] for of, row in zip(layers, slots, strict=True) for at in row]
    if any(map(any, experts)):
        wanted |= kind_flags(flags, [None if each is None else each.moe is not None for each in positions], mindspeed)
    return wanted | _mixer_flags(flags, positions)


def _zero_bubble(flags: Flags, schedule: ScheduleSpec, stages: int) -> Wanted:
    """Zero bubble's own flags for its schedules, and none for others; nothing where the launch says it already."""
    pending = {"zb-h1": stages, "zb-h2": 2 * stages}.get(schedule.name)
    if pending is None:
        return {name: False for name in (ZERO_BUBBLE, PENDING) if flags.has(name)}
    if flags.has(ZERO_BUBBLE) and flags.text(PENDING, default="auto") == "auto" and schedule.name == "zb-h1":
        return {}
    return {ZERO_BUBBLE: True, PENDING: str(pending)}


def _mixer_flags(flags: Flags, positions: Sequence[LayerSpec | None]) -> Wanted:
    """Lists that say which positions attend inside a window or linearly, where the flags' numbers do not."""
    wanted: Wanted = {}
    said = (
        (WINDOW_FREQ, windowed_layers, [_inside(each) for each in positions]),
        (LINEAR_FREQ, linear_layers, [None if each is None else each.linear is not None for each in positions]),
    )
    for name, read, entries in said:
        if not flags.has(name):
            continue
        try:
            now = read(flags, len(entries))
        except InputError:
            now = []
        if len(now) != len(entries) or any(e not in (None, n) for e, n in zip(entries, now, strict=True)):
            wanted[name] = list_text([bool(entry) for entry in entries])
    return wanted | deepseek4.ratio_flags(flags, positions)


def _inside(layer: LayerSpec | None) -> bool | None:
    """Return whether a layer attends inside a window; None where it has no softmax attention."""
    if layer is None or layer.attention is None:
        return None
    return layer.attention.reach == SLIDING


def _hybrid(flags: Flags, pattern: HybridLayers, layers: list[list[LayerSpec]], plan: PipelinePlan) -> Wanted:
    """The pattern with the plan's borders in it; none where stages are even and the script has none."""
    letters = ["".join(_letter(layer) for layer in of) for of in layers]
    depth = sum(map(sum, plan.layers.get(MTP, ())))
    even = plan.interleaves == 1 and len(set(map(len, letters))) == 1
    if pattern.flag is None:
        if not even:
            raise InputError(
                "cannot express the plan: it spreads layers evenly over the stages",
                file=flags.file,
                field=f"--{hybrid.ATTENTION_SHARE}",
                cure=f"write the layers as --{hybrid.HYBRID} (Megatron-LM core 0.17 and later)",
            )
        return {}
    bare = even and not pattern.bordered
    text = pattern_text(["".join(letters)] if bare else letters, pattern.mtp, depth)
    wanted: Wanted = {name: False for name in PLACING if flags.has(name)}
    wanted[pattern.flag] = text
    if flags.has("num-layers"):
        wanted["num-layers"] = str(sum(map(len, letters)))
    return wanted


def _letter(layer: LayerSpec) -> str:
    """The letter of a hybrid model's layer."""
    if layer.mamba is not None:
        return hybrid.MAMBA
    if layer.linear is not None:
        return hybrid.GATED_DELTA_NET
    if layer.attention is not None:
        if layer.attention.indexer is not None:
            return hybrid.SPARSE
        return hybrid.ATTENTION if layer.attention.latent is None else hybrid.LATENT
    return hybrid.MLP if layer.moe is None else hybrid.EXPERTS


def _slots(flags: Flags, layers: list[list[LayerSpec]], plan: PipelinePlan, period: int) -> list[list[int | None]]:
    """Positions of every chunk, equal in number: which of the chunk's layers each holds, None where it is empty.

    Each chunk has positions for its layers, MindSpeed-LLM starts, and where every layer attends linearly but each whose
    number, from 1, is a multiple of `period`, empty positions in front make the numbers say what the layers are.

    Raises
    ------
    InputError
        When dense layers fill the first stage and reach into the next.
    """
    sizes = [len(of) for of in layers]
    experts = [[layer.moe is not None for layer in of] for of in layers]
    chunks = len(sizes)
    now, least = flags.integer("num-layers"), max(sizes)
    if len(set(sizes)) > 1 and now % chunks == 0 and now // chunks > least:
        least = now // chunks
    for each in range(least, least + max(period, 2)):
        before = [_lead(of, k * each, period) for k, of in enumerate(layers)]
        if any(lead + count > each for lead, count in zip(before, sizes, strict=True)):
            continue
        rows: list[list[int | None]] = [
            [*[None] * lead, *range(count), *[None] * (each - lead - count)]
            for lead, count in zip(before, sizes, strict=True)
        ]
        if not any(map(any, experts)) or not says_dense_first(flags, True) or all(map(all, experts)):
            return rows
        positions = [None if at is None else of[at] for of, row in zip(experts, rows, strict=True) for at in row]
        last = max(at for at, kind in enumerate(positions) if kind is False)
        if any(positions[: last + 1]) or starts_with(last + 1, len(positions), plan.stages):
            return rows
    raise InputError(
        "cannot express the plan: MindSpeed-LLM does not start where dense layers fill the first stage",
        file=flags.file,
        field=f"--{DENSE_FIRST}",
        cure="keep all dense layers on the first stage",
    )


def _lead(layers: list[LayerSpec], first: int, period: int) -> int:
    """Empty positions in front of a chunk's layers, the first of all at `first`, so that their numbers fit them."""
    for lead in range(period if period > 1 else 0):
        if all(((first + lead + at + 1) % period != 0) == (each.linear is not None) for at, each in enumerate(layers)):
            return lead
    return 0


def interleave_flag(flags: Flags, interleaves: int, each: int | None) -> Wanted:
    """The number of chunks a stage, or where the script says that their layers, of which there are `each`."""
    if interleaves == 1:
        return {}
    if each is not None and flags.has(PER_CHUNK):
        return {PER_CHUNK: str(each)}
    return {PER_RANK: str(interleaves)}


def with_noops(slots: Sequence[Sequence[int | None]], per_chunk: str | None) -> Wanted:
    """Every chunk as many positions, the spare ones without a layer."""
    positions = [at for row in slots for at in row]
    spare = [number for number, at in enumerate(positions) if at is None]
    wanted: Wanted = {"num-layers": str(len(positions))}
    if spare:
        wanted[NOOPS] = ",".join(map(str, spare))
    if per_chunk is not None:
        wanted[per_chunk] = str(len(slots[0]))
    return wanted


def _ends(plan: PipelinePlan, sizes: list[int]) -> Wanted | None:
    """First- and last-stage flags, when all stages between hold the same."""
    per_stage = [sum(sizes[s :: plan.stages]) for s in range(plan.stages)]
    inner = set(per_stage[1:-1])
    if len(per_stage) < 3 or len(inner) != 1:
        return None
    first = per_stage[0] if per_stage[0] != per_stage[1] else None
    last = per_stage[-1] if per_stage[-1] != per_stage[1] else None
    try:
        if list(ends_placement(sum(sizes), plan.stages, plan.interleaves, first, last).slots) != sizes:
            return None
    except LayoutProblem:
        return None
    wanted: Wanted = {}
    if first is not None:
        wanted[FIRST] = str(first)
    if last is not None:
        wanted[LAST] = str(last)
    return wanted
