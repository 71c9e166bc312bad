"""Check that a plan is valid and takes its claimed step time, without any of the solver's code.

The step is simulated task by task, memory is summed along every stage's task order, and all sums are exact (integers
over a common denominator, `Fraction`), so that no rounding decides. The step of a large schedule lies between two exact
bounds (`enclosed_time`), and is simulated only where these do not decide. Nothing of the solver, the event graph, the
durations or the alive vectors is used: a mistake there is detected here. The problem (layer times, layer and static
memory) and the order of tasks (`build_schedule`) are those of the solvers: a mistake in them is not detected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import lcm

import numpy as np

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.partners import partners
from taylor.pipeline.plan import FULL, NONE, RUN_MARK, SELECT, PipelinePlan
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.check.enclosed_time import enclosed_step_time
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, LayerChoice, LayerKind, PipelineProblem

EXACT_TOLERANCE_MIB = Fraction(str(MEMORY_TOLERANCE_MIB))
"""The memory tolerance as its exact decimal fraction."""

TIME_TOLERANCE = Fraction(1, 10**6)
"""Allowed relative error of a claimed step time."""

FEW_TASKS = 20_000
"""Most tasks of a schedule simulated in fractions: a tenth of a second, less than the compiler takes to load."""

Layer = tuple[LayerKind, str]
"""One layer and its recompute mode."""

Task = tuple[int, int, int, int]
"""Direction, virtual stage, micro-batch and piece of its sequence."""


def check(problem: PipelineProblem, plan: PipelinePlan, objective: float | None = None) -> list[str]:
    """List the violations of a plan.

    Parameters
    ----------
    objective : float, optional
        Claimed step time of the plan, in body-layer forward times; it must agree with the simulated one to a relative
        1e-6.

    Returns
    -------
    list of str
        One sentence a violation; empty for a valid plan.
    """
    faults = _shape_faults(problem, plan)
    if faults:  # nothing below makes sense on a plan of another shape
        return faults
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    faults += _placement_faults(problem, plan, schedule)
    faults += _recompute_faults(problem, plan, schedule)
    if faults:
        return faults
    for stage, peak in enumerate(exact_peak_memory(problem, plan, schedule)):
        limit = Fraction(problem.limit_mib[stage])
        if peak > limit + EXACT_TOLERANCE_MIB:
            faults.append(
                f"Stage {stage} needs {float(peak):.6f} MiB at its worst moment, {float(peak - limit):.6f} MiB "
                f"above its limit of {float(limit):.6f} MiB."
            )
    for stage, peak in enumerate(exact_host_memory(problem, plan, schedule)):
        limit = Fraction(problem.host_limit_mib[stage]) if problem.host_limit_mib else peak
        if peak > limit + EXACT_TOLERANCE_MIB:
            faults.append(
                f"Stage {stage} keeps {float(peak):.6f} MiB on its host at its worst moment, {float(peak - limit):.6f} "
                f"MiB above its limit of {float(limit):.6f} MiB."
            )
    faults += _lent_faults(problem, plan, schedule)
    if objective is not None:
        faults += _time_faults(problem, plan, schedule, Fraction(objective))
    return faults


def exact_step_time(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule | None = None) -> Fraction:
    """Step time of a plan by simulation of the schedule, in body-layer forward times.

    Every stage runs its tasks in order, each as soon as the stage is free and the task's input has arrived.

    Raises
    ------
    ValueError
        If the schedule deadlocks.
    """
    schedule = schedule or build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    exact, lags, tail = _exact_times(problem, plan, schedule)
    unit = lcm(*(value.denominator for value in (*exact.values(), *lags, *tail)))
    durations = {key: int(value * unit) for key, value in exact.items()}
    beside = None if problem.pairing is None else partners(schedule).tolist()
    ends, _ = _play(schedule, durations, [int(lag * unit) for lag in lags], beside)
    return Fraction(max(end + int(wait * unit) for end, wait in zip(ends, tail, strict=True)), unit)


def exact_task_times(problem: PipelineProblem, plan: PipelinePlan) -> list[list[tuple[Task, Fraction, Fraction]]]:
    """Every stage's tasks in order, each with its exact start and end, in body-layer forward times."""
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    exact, lags, tail = _exact_times(problem, plan, schedule)
    unit = lcm(*(value.denominator for value in (*exact.values(), *lags, *tail)))
    durations = {key: int(value * unit) for key, value in exact.items()}
    beside = None if problem.pairing is None else partners(schedule).tolist()
    _, ended = _play(schedule, durations, [int(lag * unit) for lag in lags], beside)
    found: list[list[tuple[Task, Fraction, Fraction]]] = []
    for s, order in enumerate(schedule.order.tolist()):
        found.append([])
        for t, (direction, v, micro_batch, split) in enumerate(order):
            end = Fraction(ended[schedule.position(v, s), direction, micro_batch, split], unit)
            took = exact[direction, v, s, -1 if beside is None else beside[s][t]]
            found[s].append(((direction, v, micro_batch, split), end - took, end))
    return found


def exact_peak_memory(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule | None = None) -> list[Fraction]:
    """Peak memory of every stage, MiB [S], by a sweep over the stage's tasks.

    A forward task keeps its part of the micro-batch's activations alive; they are freed after the last backward task
    that needs them (the weight gradient where the schedule splits it off).
    """
    schedule = schedule or build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    peaks = []
    for s in range(problem.stages):
        chunks = [_chunk_layers(problem, plan, v, s) for v in range(problem.interleaves)]
        states = Fraction(problem.static_mib[s])
        states += sum((Fraction(kind.layer_mib) for layers in chunks for kind, _ in layers), Fraction(0))
        states += sum((Fraction(one.states_mib) for layers in chunks for one in _chosen(problem, layers)), Fraction(0))
        once: dict[str, Fraction] = {}  # there once for all runs of a kind, which are named after it
        for kind in (kind for layers in chunks for kind, _ in layers):
            name = kind.name.partition(RUN_MARK)[0]
            once[name] = max(once.get(name, Fraction(0)), Fraction(kind.shared_mib))
        states += sum(once.values(), Fraction(0))
        kept = [sum((Fraction(kind.activation_mib[mode]) for kind, mode in layers), Fraction(0)) for layers in chunks]
        peaks.append(states + _most_alive(schedule, s, kept))
    if problem.lenders:  # a lender reserves its part for the whole step
        for s, mib in enumerate(exact_lent_memory(problem, plan, schedule)):
            if mib and problem.lenders[s] >= 0:
                peaks[problem.lenders[s]] += mib
    return peaks


def exact_host_memory(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule | None = None) -> list[Fraction]:
    """Peak host memory of a device of every stage, MiB [S]; alive as long as the activations."""
    return _peak_of_choices(problem, plan, schedule, lambda one: one.host_mib, lambda one: one.host_states_mib)


def exact_lent_memory(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule | None = None) -> list[Fraction]:
    """Most that a device of every stage keeps on its lender's at once, MiB [S]; alive as long as the activations."""
    return _peak_of_choices(problem, plan, schedule, lambda one: one.lent_mib, lambda _: 0.0)


def _peak_of_choices(
    problem: PipelineProblem,
    plan: PipelinePlan,
    schedule: Schedule | None,
    kept_mib: Callable[[LayerChoice], float],
    always_mib: Callable[[LayerChoice], float],
) -> list[Fraction]:
    """Peak of what the chosen layers of every stage keep elsewhere a micro-batch and all the time, MiB [S]."""
    if not problem.choices:
        return [Fraction(0)] * problem.stages
    schedule = schedule or build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    peaks = []
    for s in range(problem.stages):
        chunks = [_chosen(problem, _chunk_layers(problem, plan, v, s)) for v in range(problem.interleaves)]
        always = sum((Fraction(always_mib(one)) for chunk in chunks for one in chunk), Fraction(0))
        kept = [sum((Fraction(kept_mib(one)) for one in chunk), Fraction(0)) for chunk in chunks]
        peaks.append(always + _most_alive(schedule, s, kept))
    return peaks


def _lent_faults(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule) -> list[str]:
    faults = []
    for stage, peak in enumerate(exact_lent_memory(problem, plan, schedule)):
        if peak and problem.lenders and problem.lenders[stage] < 0:
            faults.append(f"Stage {stage} lends {float(peak):.6f} MiB away, but has no lender.")
        elif problem.lent_limit_mib and peak > Fraction(problem.lent_limit_mib[stage]) + EXACT_TOLERANCE_MIB:
            faults.append(
                f"Stage {stage} lends {float(peak):.6f} MiB away, more than its limit of "
                f"{problem.lent_limit_mib[stage]:.6f} MiB."
            )
    return faults


def _most_alive(schedule: Schedule, s: int, kept: list[Fraction]) -> Fraction:
    """Peak memory of live micro-batches on a stage, where each keeps `kept` [V] in its chunks."""
    splits = 1 + int(schedule.order[:, :, 3].max())
    direction, interleave = schedule.order[s, :, 0], schedule.order[s, :, 1]
    frees = WEIGHT_GRADIENT if (schedule.order[:, :, 0] == WEIGHT_GRADIENT).any() else BACKWARD
    change = (direction == FORWARD).astype(np.int64) - (direction == frees)
    alive = np.cumsum([np.where(interleave == v, change, 0) for v in range(len(kept))], axis=1)
    moments = set(map(tuple, alive[:, direction == FORWARD].T.tolist()))
    share = schedule.spec.bubble_share
    if share is not None:
        S, part = schedule.order.shape[0], Fraction(share)
        again = max(0, S - 1 - 2 * s)
        moments = {(n - (1 - part) * min(max(n - S, 0), again), *rest) for n, *rest in moments}
    most = max(sum((n * one / splits for n, one in zip(moment, kept, strict=True)), Fraction(0)) for moment in moments)
    return max(most, Fraction(0))


def _chosen(problem: PipelineProblem, layers: list[Layer]) -> list[LayerChoice]:
    """Costs of the layers under `PipelineProblem.choices`."""
    return [kind.choices[mode] for kind, mode in layers if mode in problem.choices]


def _time_faults(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule, claimed: Fraction) -> list[str]:
    def agrees(played: Fraction) -> bool:
        return abs(played - claimed) <= TIME_TOLERANCE * max(abs(played), Fraction(1, 10**6))

    if schedule.order.shape[0] * schedule.order.shape[1] > FEW_TASKS:
        # The times that agree with the claim form an interval: where both bounds agree, so does the step time.
        beside = None if problem.pairing is None else partners(schedule)
        lower, upper = enclosed_step_time(schedule, *_exact_times(problem, plan, schedule), beside)
        if agrees(lower) and agrees(upper):
            return []
    played = exact_step_time(problem, plan, schedule)
    return [] if agrees(played) else [f"The step takes {float(played):.9f}, not {float(claimed):.9f} as claimed."]


def _exact_times(
    problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule
) -> tuple[dict[tuple[int, int, int, int], Fraction], list[Fraction], list[Fraction]]:
    """Time of a task by (direction, virtual stage, stage, virtual stage of the combined task or -1), transfer time by
    boundary in model order, tail by stage."""
    splits = 1 + int(schedule.order[:, :, 3].max())
    with_weight_tasks = bool((schedule.order[:, :, 0] == WEIGHT_GRADIENT).any())
    beside = (-1,) if problem.pairing is None else range(-1, problem.interleaves)
    exact = {
        (direction, v, s, other): (duration + _exposed(problem, plan, (direction, v, s, other)))
        / splits
        * (Fraction(problem.slowness[s]) if problem.slowness else 1)
        for v in range(problem.interleaves)
        for s in range(problem.stages)
        for direction, duration in enumerate(_chunk_times(problem, plan, schedule, v, s, with_weight_tasks))
        for other in beside
    }
    tail = [Fraction(value) for value in problem.tail] or [Fraction(0)] * problem.stages
    usual = [Fraction(lag) for lag in problem.lags or [problem.lag] * (schedule.chunks - 1)]
    lags = list(usual)
    for kind in problem.kinds:  # the transfer of a pinned kind passes every boundary behind it
        placed = plan.layers[kind.name] if kind.pinned_last and kind.name in plan.layers else ()
        for v, s in [(v, s) for v, row in enumerate(placed) for s, count in enumerate(row) if count]:
            for boundary in range(schedule.position(v, s), schedule.chunks - 1):
                lags[boundary] += Fraction(kind.hand_over) * usual[boundary]
    return exact, lags, tail


def _shape_faults(problem: PipelineProblem, plan: PipelinePlan) -> list[str]:
    faults = []
    if (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages):
        faults.append(
            f"The plan has {plan.interleaves} virtual stages on {plan.stages} stages, the problem "
            f"{problem.interleaves} on {problem.stages}."
        )
    names = [kind.name for kind in problem.kinds]
    if unknown := [name for name in plan.layers if name not in names]:
        faults.append(f"The plan has layers of kind {', '.join(unknown)}, which the problem does not have.")
    if [name for name in names if name in plan.layers] != [name for name in plan.layers if name in names]:
        faults.append(f"The plan's kinds stand in another order than the model's: {', '.join(names)}.")
    allowed = [mode for mode in problem.recompute_ratio if mode not in problem.unsearched] + list(problem.choices)
    named = [mode for mode in plan.recompute if mode in problem.choices]
    if named != [name for name in problem.choices if name in named]:
        faults.append(f"The plan's choices stand in another order than the problem's: {', '.join(problem.choices)}.")
    for mode, grid in plan.recompute.items():
        if mode not in allowed and any(map(any, grid)):
            faults.append(f"The plan recomputes layers in mode {mode}, which the problem does not allow.")
    return faults


def _placement_faults(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule) -> list[str]:
    faults = []
    for kind in problem.kinds:
        placed = sum(map(sum, plan.layers[kind.name])) if kind.name in plan.layers else 0
        if placed != kind.count:
            faults.append(f"The plan places {placed} layers of kind {kind.name}, the model has {kind.count}.")
    chunks = [schedule.chunk_at(position) for position in range(schedule.chunks)]
    faults += _order_faults(problem, plan, chunks)
    for v, s in chunks:
        free = [kind for kind in problem.kinds if not kind.pinned and kind.name in plan.layers]
        layers = [kind for kind in free if plan.layers[kind.name][v][s]]
        if layers and layers[0].joined:
            faults.append(f"Chunk [{v}][{s}] begins with {layers[0].name} layers, apart from the layer before them.")
    for chunk in chunks:
        faults += _count_faults(problem, plan, chunk, is_end=chunk in (chunks[0], chunks[-1]))
    return faults


def _order_faults(problem: PipelineProblem, plan: PipelinePlan, chunks: Sequence[tuple[int, int]]) -> list[str]:
    """Kinds behind a later kind, and pinned kinds outside their places; `chunks` are in model order."""
    faults = []
    reached, reached_name = 0, ""
    for place, (v, s) in enumerate(chunks):
        for index, kind in enumerate(problem.kinds):
            count = plan.layers[kind.name][v][s] if kind.name in plan.layers else 0
            if not count:
                continue
            if kind.pinned:
                faults += _pinned_faults(kind, count, place, chunks)
            elif index < reached:
                faults.append(f"Chunk [{v}][{s}] has {kind.name} layers after {reached_name} layers have begun.")
            if (kind.places and not kind.pinned_first) or not kind.pinned:
                reached, reached_name = max((reached, reached_name), (index, kind.name))
    return faults


def _pinned_faults(kind: LayerKind, count: int, place: int, chunks: Sequence[tuple[int, int]]) -> list[str]:
    """Violations by `count` layers of a pinned kind on the chunk at a place in model order."""
    (v, s), faults = chunks[place], []
    if place not in (kind.places or ((0,) if kind.pinned_first else (len(chunks) - 1,))):
        where = "the first chunk" if kind.pinned_first else "the last chunk"
        where = f"one of the chunks {list(kind.places)} in model order" if kind.places else where
        faults.append(f"Chunk [{v}][{s}] has {kind.name} layers, which belong on {where}.")
    if count != kind.count:
        faults.append(f"Chunk [{v}][{s}] has {count} of {kind.count} {kind.name} layers, which must share a chunk.")
    return faults


def _count_faults(problem: PipelineProblem, plan: PipelinePlan, chunk: tuple[int, int], is_end: bool) -> list[str]:
    """Too many or too few layers of a chunk; `is_end` for the chunks of the embedding and the head."""
    (v, s), faults = chunk, []
    total = _free_total(problem, plan, v, s)
    others = is_end or any(
        kind.pinned and kind.name in plan.layers and plan.layers[kind.name][v][s] for kind in problem.kinds
    )
    given = problem.fixed_layers.get(chunk) == 0 and any(
        kind.pinned_first and kind.name in plan.layers and plan.layers[kind.name][v][s] for kind in problem.kinds
    )
    if total < problem.min_layers and not (problem.entries_alone and others) and not given:
        faults.append(f"Chunk [{v}][{s}] has {total} layers, at least {problem.min_layers} are required.")
    if chunk in problem.fixed_layers and total != problem.fixed_layers[chunk]:
        faults.append(f"Chunk [{v}][{s}] has {total} layers, {problem.fixed_layers[chunk]} are given.")
    if chunk in problem.max_layers and total > problem.max_layers[chunk]:
        faults.append(f"Chunk [{v}][{s}] has {total} layers, at most {problem.max_layers[chunk]} are allowed.")
    return faults


def _recompute_faults(problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule) -> list[str]:
    faults = []
    for v, s in map(schedule.chunk_at, range(schedule.chunks)):
        counts = {mode: grid[v][s] for mode, grid in plan.recompute.items()}
        if any(kind.pinned and mode != NONE for kind, mode in _chunk_layers(problem, plan, v, s)):
            faults.append(f"Chunk [{v}][{s}] recomputes a layer that is never recomputed.")
        for (mode, given_v, given_s), given in problem.fixed_recompute.items():
            if (given_v, given_s) == (v, s) and counts.get(mode, 0) != given:
                faults.append(
                    f"Chunk [{v}][{s}] recomputes {counts.get(mode, 0)} layers in mode {mode}, {given} are given."
                )
    if problem.uniform_recompute and not any(
        _is_uniform(problem, plan, mode, most) for mode, most in problem.uniform_recompute
    ):
        faults.append("The plan does not recompute the first layers of every chunk alike, as one of the choices asks.")
    return faults


def _is_uniform(problem: PipelineProblem, plan: PipelinePlan, mode: str, most: int) -> bool:
    """Return whether every chunk recomputes its first `most` layers in the mode, and no others; any may be lent."""
    lends = {of for kind in problem.free_kinds for of, one in kind.choices.items() if one.lent_mib}
    for v in range(problem.interleaves):
        for s in range(problem.stages):
            taken = {of: grid[v][s] for of, grid in plan.recompute.items() if grid[v][s] and of not in lends}
            asked = min(most, _free_total(problem, plan, v, s))
            if taken != ({mode: asked} if asked else {}):
                return False
    return True


def _free_total(problem: PipelineProblem, plan: PipelinePlan, v: int, s: int) -> int:
    return sum(plan.layers[kind.name][v][s] for kind in problem.free_kinds if kind.name in plan.layers)


def _chunk_layers(problem: PipelineProblem, plan: PipelinePlan, v: int, s: int) -> list[Layer]:
    """Every layer of a chunk in model order with its mode: the first ones full, the next selective, other choices."""
    kinds = [
        kind for kind in problem.kinds for _ in range(plan.layers[kind.name][v][s] if kind.name in plan.layers else 0)
    ]
    order = [mode for mode in (FULL, SELECT, *problem.choices) if mode in plan.recompute]
    modes = [mode for mode in order for _ in range(plan.recompute[mode][v][s])]
    modes += [NONE] * (len(kinds) - len(modes))
    return list(zip(kinds, modes, strict=True))


def _chunk_times(
    problem: PipelineProblem, plan: PipelinePlan, schedule: Schedule, v: int, s: int, with_weight_tasks: bool
) -> tuple[Fraction, ...]:
    """Forward, backward and, where it is a separate task, weight-gradient time of one chunk."""
    layers = _chunk_layers(problem, plan, v, s)
    here = problem.stage_times[s] if problem.stage_times else None
    phi = {kind.name: Fraction(kind.forward if here is None else here.forward[kind.name]) for kind in problem.kinds}
    forward = sum((phi[kind.name] for kind, _ in layers), Fraction(0))
    place = schedule.position(v, s)
    if place == 0:
        forward += Fraction(problem.embedding_forward)
    if place == schedule.chunks - 1:
        forward += Fraction(problem.head_forward)
    ratios = problem.recompute_ratio if here is None else here.recompute_ratio
    again = sum((Fraction(ratios[mode]) * phi[kind.name] for kind, mode in layers if mode in ratios), Fraction(0))
    backward = Fraction(problem.backward_ratio if here is None else here.backward_ratio) * forward
    weight = Fraction(problem.weight_gradient_share) * backward if with_weight_tasks else Fraction(0)
    chosen = _chosen(problem, layers)
    if here is not None:
        chosen = [here.choices[kind.name][mode] for kind, mode in layers if mode in problem.choices]
    more_weight = sum((Fraction(one.weight_gradient) for one in chosen), Fraction(0))
    forward += sum((Fraction(one.forward) for one in chosen), Fraction(0))
    backward += again + sum((Fraction(one.backward) for one in chosen), Fraction(0))
    if not with_weight_tasks:
        return forward, backward + more_weight
    return forward, backward - weight, weight + more_weight


def _exposed(problem: PipelineProblem, plan: PipelinePlan, task: tuple[int, int, int, int]) -> Fraction:
    """Exposed communication of a task: that of its chunk's unpaired layers.

    The layers of the two chunks are paired one by one, in the order of the pass.
    """
    direction, v, s, other = task
    if direction == WEIGHT_GRADIENT:
        return Fraction(0)
    alone = [kind for kind in problem.kinds if kind.pinned and kind.name in plan.layers]
    beyond = [
        Fraction(kind.added_backward if direction == BACKWARD else kind.added_forward) * plan.layers[kind.name][v][s]
        for kind in alone
    ]
    if problem.pairing is None:
        return sum(beyond, Fraction(0))

    def layers(of: int) -> list[LayerKind]:
        free = [kind for kind in problem.free_kinds if kind.name in plan.layers]
        return [kind for kind in free for _ in range(plan.layers[kind.name][of][s])]

    def time(kind: LayerKind) -> Fraction:
        return Fraction(kind.exposed_backward if direction == BACKWARD else kind.exposed_forward)

    total = sum(beyond, Fraction(0))
    total += sum((time(kind) * plan.layers[kind.name][v][s] for kind in alone), Fraction(0))
    own, theirs = layers(v), layers(other) if other >= 0 else []
    positions = problem.pairing.positions
    if positions is not None:
        row: list[LayerKind | None] = [*own, *[None] * (positions - len(own))]
        beside = [*theirs, *[None] * (positions - len(theirs))]
        met = [kind for kind, one in zip(row, beside[::-1], strict=True) if kind is not None and one is None]
    else:
        run = own[::-1] if direction == BACKWARD else own
        met = run[len(theirs) :]
    return total + sum(map(time, met), Fraction(0))


def _play(
    schedule: Schedule,
    durations: dict[tuple[int, int, int, int], int],
    lags: list[int],
    beside: list[list[int]] | None,
) -> tuple[list[int], dict[tuple[int, int, int, int], int]]:
    """End of every stage's last task [S], and of each task by (position, direction, micro-batch, split); all times are
    integers in the same unit."""
    orders = [[tuple(task) for task in order] for order in schedule.order.tolist()]
    whole = _whole_backwards(schedule)
    ended: dict[tuple[int, int, int, int], int] = {}
    clock = [0] * schedule.stages
    upcoming = [0] * schedule.stages
    left = sum(map(len, orders))
    while left:
        before = left
        for s, order in enumerate(orders):
            while upcoming[s] < len(order):
                direction, v, micro_batch, split = order[upcoming[s]]
                place = schedule.position(v, s)
                arrivals = [clock[s]]
                for need_place, need_direction in _needs(direction, place, schedule.chunks):
                    if need_place > place and (need_place, micro_batch) in whole:
                        need_direction = WEIGHT_GRADIENT
                    end = ended.get((need_place, need_direction, micro_batch, split))
                    if end is None:
                        break
                    sender = schedule.chunk_at(need_place)[1]
                    arrivals.append(end + (lags[min(place, need_place)] if sender != s else 0))
                else:
                    other = -1 if beside is None else beside[s][upcoming[s]]
                    clock[s] = max(arrivals) + durations[direction, v, s, other]
                    ended[place, direction, micro_batch, split] = clock[s]
                    upcoming[s] += 1
                    left -= 1
                    continue
                break
        if left == before:
            raise ValueError(f"the schedule stops with {left} tasks left: each waits for another")
    return clock, ended


def _whole_backwards(schedule: Schedule) -> set[tuple[int, int]]:
    """(position, micro-batch) of the backwards that send nothing before their weight gradient is done."""
    if schedule.whole is None:
        return set()
    return {
        (schedule.position(int(v), int(s)), int(micro_batch))
        for s, index in np.argwhere(schedule.whole)
        for _, v, micro_batch, _ in [schedule.order[s, index]]
    }


def _needs(direction: int, place: int, chunks: int) -> Sequence[tuple[int, int]]:
    """(position, direction) of the tasks of the same micro-batch that must end before this one begins."""
    if direction == FORWARD:
        return [(place - 1, FORWARD)] if place else []
    if direction == WEIGHT_GRADIENT:
        return [(place, BACKWARD)]
    return [(place, FORWARD), (place + 1, BACKWARD)] if place < chunks - 1 else [(place, FORWARD)]
