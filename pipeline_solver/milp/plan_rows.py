"""The common rows of all MILPs of the pipeline problem: layers, order of kinds, recompute, memory, task times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Sequence

from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import WEIGHT_GRADIENT, Schedule
from taylor.pipeline_solver.milp.linear_form import LinearModel, Term, times
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from taylor.pipeline_solver.timing.event_graph import partner_table

_PREFIXES = {FULL: "recompute", SELECT: "select"}
DIRECTION_NAMES = ("forward", "backward", "weight_gradient")

Chunk = tuple[int, int]
"""(stage, virtual stage), the index of every variable."""
Columns = dict[Chunk, int]
"""Column of a variable by chunk."""


def mode_prefix(mode: str) -> str:
    """Prefix of the names of a mode's variables."""
    return _PREFIXES.get(mode) or f"choice_{safe_name(mode)}"


def safe_name(text: str) -> str:
    """A kind's name as part of a variable's name."""
    return re.sub(r"\W", "_", text)


def layer_bounds(problem: PipelineProblem, kinds: list[LayerKind], chunks: list[Chunk]) -> dict[tuple[str, Chunk], int]:
    """Upper bounds on the layers of a kind in a chunk; 0 where the kind is impossible."""
    total = sum(kind.count for kind in kinds)
    least = problem.least_layers
    most = {}
    up_to = 0
    for kind in kinds:
        before, up_to = up_to, up_to + kind.count
        for place, (s, v) in enumerate(chunks):
            # The chunks before have their least layers of this kind or earlier ones, those after of this or later.
            possible = min(
                kind.count,
                up_to - sum(least[:place]),
                total - before - sum(least[place + 1 :]),
                total - sum(least) + least[place],
                0 if problem.is_beyond(place) else total,
                problem.fixed_layers.get((v, s), total),
                problem.max_layers.get((v, s), total),
            )
            most[kind.name, (s, v)] = max(0, possible)
    return most


def add_layer_rows(
    model: LinearModel,
    problem: PipelineProblem,
    kinds: list[LayerKind],
    chunks: list[Chunk],
    layers: dict[str, Columns],
) -> None:
    """Add the rows that place every kind's layers and keep each chunk's given, least and most layers."""
    for kind in kinds:
        every = model.sum_of(layers[kind.name].values())
        model.group(f"layers_{safe_name(kind.name)}").add((), every, lower=kind.count, upper=kind.count)
    least_layers, given_layers, most_layers = map(model.group, ("least_layers", "given_layers", "most_layers"))
    for (s, v), least in zip(chunks, problem.least_layers, strict=True):
        total = model.sum_of(layers[kind.name][s, v] for kind in kinds if (s, v) in layers[kind.name])
        if (v, s) in problem.fixed_layers:
            given = problem.fixed_layers[v, s]
            given_layers.add((s, v), total, lower=given, upper=given)
        if least > 0:
            least_layers.add((s, v), total, lower=least)
        if (v, s) in problem.max_layers:
            most_layers.add((s, v), total, upper=problem.max_layers[v, s])


def add_order_rows(
    model: LinearModel,
    kinds: list[LayerKind],
    chunks: list[Chunk],
    layers: dict[str, Columns],
    most: dict[tuple[str, Chunk], int],
) -> dict[int, Columns]:
    """Add the rows of order: after a chunk with a later kind, no chunk has an earlier one.

    A kind is coupled to its switch alone, and a later kind's switch is never on before an earlier one's. That is as
    tight, also in the relaxation, as a row for every pair of a switch and a kind, which are many for a hundred kinds.
    """
    switches: dict[int, Columns] = {}
    order = model.group("order")
    for index in range(1, len(kinds)):
        early, late = kinds[index - 1], kinds[index]
        # No row is needed after the last chunk that may have the early kinds.
        reach = max((k for k, c in enumerate(chunks) for kind in kinds[:index] if most[kind.name, c]), default=0)
        name = safe_name(late.name)
        begun = model.switches(f"begun_{name}", chunks[:reach])
        for place, chunk in enumerate(chunks[:reach]):
            after = chunks[place + 1]
            if place:
                order.add((name, "stays", *chunk), [(1, begun[chunks[place - 1]]), (-1, begun[chunk])], upper=0)
            if index > 1 and chunk in switches[index - 1]:
                order.add((name, "later", *chunk), [(1, begun[chunk]), (-1, switches[index - 1][chunk])], upper=0)
            if chunk in layers[late.name]:
                least = [(1, layers[late.name][chunk]), (-most[late.name, chunk], begun[chunk])]
                order.add((name, "late", *chunk), least, upper=0)
            if after in layers[early.name]:
                bound = most[early.name, after]
                order.add((name, "early", *after), [(1, layers[early.name][after]), (bound, begun[chunk])], upper=bound)
        switches[index] = begun
    return switches


def add_joined_rows(
    model: LinearModel, kinds: list[LayerKind], chunks: list[Chunk], layers: dict[str, Columns]
) -> dict[str, Columns]:
    """Add the rows of joined kinds: a chunk has all layers of one, and some of the kind before it, or none.

    Returns
    -------
    dict of kind name to columns
        1 where a chunk has the kind.
    """
    holds: dict[str, Columns] = {}
    joined = model.group("joined")
    for before, kind in zip(kinds[:-1], kinds[1:], strict=True):
        if not kind.joined:
            continue
        name, counts = safe_name(kind.name), layers[kind.name]
        holds[kind.name] = there = model.switches(f"holds_{name}", [chunk for chunk in chunks if chunk in counts])
        for chunk, switch in there.items():
            joined.add((name, "all", *chunk), [(1, counts[chunk]), (-kind.count, switch)], lower=0, upper=0)
            behind = [(-1, layers[before.name][chunk])] if chunk in layers[before.name] else []
            joined.add((name, "behind", *chunk), [(1, switch), *behind], upper=0)
    return holds


def add_recompute_rows(
    model: LinearModel,
    problem: PipelineProblem,
    kinds: list[LayerKind],
    chunks: list[Chunk],
    layers: dict[str, Columns],
    recompute: dict[tuple[str, str], Columns],
    most: dict[tuple[str, Chunk], int],
) -> dict[tuple[str, int], Columns]:
    """Add the rows of recompute: recomputed layers are the first of their chunk, and as many as given where given.

    As in the rows of order, a kind is coupled to its switches alone, and these to those of the kind before it.
    """

    def holds(some: list[LayerKind], chunk: Chunk) -> bool:
        return any(most[kind.name, chunk] for kind in some)

    def taken(kind: LayerKind, chunk: Chunk, some: Sequence[str]) -> list[Term]:
        return [(1, recompute[mode, kind.name][chunk]) for mode in some]

    switches: dict[tuple[str, int], Columns] = {}
    modes = problem.searched_modes
    recomputed, first, given = map(model.group, ("recomputed", "first_layers", "given_recompute"))
    for kind in kinds if modes else ():
        for chunk, count in layers[kind.name].items():
            recomputed.add((safe_name(kind.name), *chunk), [*taken(kind, chunk, modes), (-1, count)], upper=0)
    for index in range(1, len(kinds)):
        early, late = kinds[index - 1], kinds[index]
        name = safe_name(late.name)
        mixed = [chunk for chunk in chunks if holds(kinds[:index], chunk) and holds(kinds[index:], chunk)]
        for position, mode in enumerate(modes):
            # Layers in this mode or an earlier one: a later kind has some only when the earlier kinds have no others.
            prefix, up_to = mode_prefix(mode), modes[: position + 1]
            reached = model.switches(f"{prefix}_reaches_{name}", mixed)
            switches[mode, index] = reached
            for chunk in mixed:
                if chunk in layers[late.name]:
                    least = [*taken(late, chunk, up_to), (-most[late.name, chunk], reached[chunk])]
                    first.add((name, prefix, "late", *chunk), least, upper=0)
                if chunk in layers[early.name]:
                    bound, others = most[early.name, chunk], times(-1, taken(early, chunk, up_to))
                    others = [(1, layers[early.name][chunk]), *others, (bound, reached[chunk])]
                    first.add((name, prefix, "early", *chunk), others, upper=bound)
                if index > 1 and chunk in switches[mode, index - 1]:
                    later = [(1, reached[chunk]), (-1, switches[mode, index - 1][chunk])]
                    first.add((name, prefix, "later", *chunk), later, upper=0)
    for (mode, v, s), count in problem.fixed_recompute.items():
        able = [kind for kind in kinds if mode in modes and (s, v) in layers[kind.name]]
        counted = model.sum_of(recompute[mode, kind.name][s, v] for kind in able)
        given.add((mode_prefix(mode), s, v), counted, lower=count, upper=count)
    return switches


def add_memory_rows(
    model: LinearModel,
    problem: PipelineProblem,
    schedule: Schedule,
    kinds: list[LayerKind],
    layers: dict[str, Columns],
    recompute: dict[tuple[str, str], Columns],
) -> dict[int, int]:
    """Limit static memory, layers and live activations at every moment that can be the worst.

    Returns
    -------
    dict of stage to column
        Memory that is reserved on the stage's lender.
    """
    reserved = {s: model.variable("lent", (s,)) for s, lender in enumerate(problem.lenders) if lender >= 0}
    memory = model.group("memory")
    for s, vectors in enumerate(alive_vectors(schedule)):
        reserves = [(1.0, column) for of, column in reserved.items() if problem.lenders[of] == s]
        for moment, alive in enumerate(vectors.tolist()):
            terms = [
                term
                for kind in kinds
                for v in range(problem.interleaves)
                if (s, v) in layers[kind.name]
                for term in _memory_terms(problem, kind, (s, v), alive[v], layers, recompute)
            ]
            free = problem.limit_mib[s] - problem.static_mib[s] - pinned_mib(problem, schedule, s, alive)
            memory.add((s,) if len(vectors) == 1 else (s, moment), [*terms, *reserves] or model.sum_of(()), upper=free)
    if problem.bounds_host:
        host = model.group("host_memory")
        for row, s, alive in _moments(schedule):
            terms = _choice_terms(
                problem, kinds, s, recompute, lambda one, n: one.host_states_mib + n * one.host_mib, alive
            )
            if any(weight for weight, _ in terms):
                host.add(row, terms, upper=problem.host_limit_mib[s])
    lent = model.group("lent_memory")
    for row, s, alive in _moments(schedule) if problem.lenders or problem.lent_limit_mib else ():
        terms = _choice_terms(problem, kinds, s, recompute, lambda one, n: n * one.lent_mib, alive)
        if not any(weight for weight, _ in terms):
            continue
        if problem.lenders:
            lent.add(row, [*terms, *([(-1.0, reserved[s])] if s in reserved else [])], upper=0.0)
        if problem.lent_limit_mib:
            lent.add((*row, "limit"), terms, upper=problem.lent_limit_mib[s])
    return reserved


def _moments(schedule: Schedule) -> Iterator[tuple[tuple[int, int], int, list[float]]]:
    """Index of a row, stage and micro-batches alive by virtual stage, at every moment that can be the worst."""
    for s, vectors in enumerate(alive_vectors(schedule)):
        for moment, alive in enumerate(vectors.tolist()):
            yield (s, moment), s, alive


def _choice_terms(
    problem: PipelineProblem,
    kinds: list[LayerKind],
    s: int,
    recompute: dict[tuple[str, str], Columns],
    mib: Callable[[LayerChoice, float], float],
    alive: Sequence[float],
) -> list[Term]:
    """Memory of a stage's layers under choices: `mib` of a layer with some micro-batches alive."""
    return [
        (mib(kind.choices[name], alive[v]), counted[s, v])
        for (name, of), counted in recompute.items()
        if name in problem.choices
        for kind in kinds
        if kind.name == of
        for v in range(problem.interleaves)
        if (s, v) in counted
    ]


def _memory_terms(
    problem: PipelineProblem,
    kind: LayerKind,
    chunk: Chunk,
    alive: float,
    layers: dict[str, Columns],
    recompute: dict[tuple[str, str], Columns],
) -> list[Term]:
    kept = kind.activation_mib[NONE]
    weights = [(kind.layer_mib + alive * kept, layers[kind.name][chunk])]
    for mode in problem.searched_modes:
        states = kind.choices[mode].states_mib if mode in problem.choices else 0.0
        weights.append((states + alive * (kind.activation_mib[mode] - kept), recompute[mode, kind.name][chunk]))
    return [(weight, column) for weight, column in weights if weight]


def pinned_mib(problem: PipelineProblem, schedule: Schedule, stage: int, alive: Sequence[float]) -> float:
    """Memory of the pinned kinds on a stage with `alive` [V] micro-batches by virtual stage, MiB."""
    places = [schedule.position(v, stage) for v in range(problem.interleaves)]
    return problem.shared_on(places) + sum(
        kind.count * (kind.layer_mib + alive[v] * kind.activation_mib[NONE])
        for v, place in enumerate(places)
        for kind in problem.pinned_at(place)
    )


def add_durations(
    model: LinearModel,
    problem: PipelineProblem,
    schedule: Schedule,
    kinds: list[LayerKind],
    layers: dict[str, Columns],
    recompute: dict[tuple[str, str], Columns],
) -> dict[int, int]:
    """Add a variable for the task time of every chunk and direction; return its columns by the event graph's class."""
    splits = schedule.spec.seq_splits
    weight_tasks = schedule.spec.traits.split_backward
    share = problem.weight_gradient_share if weight_tasks else 0.0
    rows = model.group("duration")
    durations = {}
    hidden: dict[tuple[int, int, int], tuple[list[Term], float]] = {}
    index = [(s, v) for v in range(problem.interleaves) for s in range(problem.stages)]
    for direction in range(3 if weight_tasks else 2):
        name = DIRECTION_NAMES[direction]
        variable = {chunk: model.variable(name, chunk) for chunk in index}
        for s, v in index:
            slow, here = problem.pace[s] / splits, problem.on_stage(s)
            factor = (1.0, here.backward_ratio * (1 - share), here.backward_ratio * share)[direction]
            on_card = [one for one in here.kinds if any(one.name == kind.name for kind in kinds)]
            present = [kind for kind in on_card if (s, v) in layers[kind.name]]
            terms = [(factor * slow * kind.forward, layers[kind.name][s, v]) for kind in present]
            for kind in present:
                for mode in problem.searched_modes:
                    if added := _added(here, kind, mode, direction, weight_tasks):
                        terms.append((added * slow, recompute[mode, kind.name][s, v]))
            extra = factor * slow * _extra_forward(here, schedule.position(v, s), schedule.chunks)
            if direction != WEIGHT_GRADIENT:
                extra += slow * sum(
                    kind.count * kind.added[direction] for kind in here.pinned_at(schedule.position(v, s))
                )
            if problem.pairing is not None and direction != WEIGHT_GRADIENT:
                hidden[direction, s, v] = list(terms), extra
                terms += [(slow * _exposed(kind, direction), layers[kind.name][s, v]) for kind in present]
                extra += slow * _pinned_exposed(problem, schedule.position(v, s), direction)
            rows.add((name, s, v), [(1, variable[s, v]), *times(-1, terms)], lower=extra, upper=extra)
            durations[(direction * problem.interleaves + v) * problem.stages + s] = variable[s, v]
    if problem.pairing is not None:
        durations |= _combined_durations(model, problem, schedule, kinds, layers, hidden)
    return durations


def _combined_durations(
    model: LinearModel,
    problem: PipelineProblem,
    schedule: Schedule,
    kinds: list[LayerKind],
    layers: dict[str, Columns],
    hidden: dict[tuple[int, int, int], tuple[list[Term], float]],
) -> dict[int, int]:
    """Lower bounds on times of tasks in combined passes; `hidden` are the times with all layers paired.

    At most as many layers of a chunk are paired as the other chunk has. Which ones they are depends on the order of
    kinds in the chunks, which these rows leave open: a relaxation where kinds differ in exposed communication.
    """
    durations = {}
    rows = model.group("duration")
    index = [(s, v) for v in range(problem.interleaves) for s in range(problem.stages)]
    for rank, beside in enumerate(partner_table(schedule).T.tolist()):
        for direction in (0, 1):
            block = 3 if schedule.spec.traits.split_backward else 2
            block += 2 * rank + direction
            name = f"{DIRECTION_NAMES[direction]}_beside_{rank}"
            variable = {chunk: model.variable(name, chunk) for chunk in index}
            most = max(_exposed(kind, direction) for kind in kinds)
            for s, v in index:
                slow = problem.pace[s] / schedule.spec.seq_splits
                paired, extra = hidden[direction, s, v]
                least = extra + slow * _pinned_exposed(problem, schedule.position(v, s), direction)
                above = [(1, variable[s, v]), *times(-1, paired)]
                rows.add((name, s, v), above, lower=least)
                exposed = [
                    (slow * _exposed(kind, direction), layers[kind.name][s, v])
                    for kind in kinds
                    if (s, v) in layers[kind.name] and _exposed(kind, direction)
                ]
                if beside[v] >= 0 and exposed:
                    other = (s, beside[v])
                    theirs = [(slow * most, layers[kind.name][other]) for kind in kinds if other in layers[kind.name]]
                    rows.add((name, s, v, "alone"), [*above, *times(-1, exposed), *theirs], lower=least)
                durations[(block * problem.interleaves + v) * problem.stages + s] = variable[s, v]
    return durations


def _exposed(kind: LayerKind, direction: int) -> float:
    return kind.exposed_backward if direction else kind.exposed_forward


def _pinned_exposed(problem: PipelineProblem, place: int, direction: int) -> float:
    """Exposed communication of the pinned kinds of a chunk, which are never paired."""
    return sum(kind.count * _exposed(kind, direction) for kind in problem.pinned_at(place))


def _added(problem: PipelineProblem, kind: LayerKind, mode: str, direction: int, weight_tasks: bool) -> float:
    """Time that a mode adds to a task of one layer in a direction."""
    one = problem.choice_of(kind, mode)
    if direction == 1 and not weight_tasks:
        return one.backward + one.weight_gradient
    return (one.forward, one.backward, one.weight_gradient)[direction]


def _extra_forward(problem: PipelineProblem, place: int, chunks: int) -> float:
    """Forward time of a chunk without the layers that the solver places."""
    extra = problem.embedding_forward if place == 0 else 0.0
    if place == chunks - 1:
        extra += problem.head_forward
    return extra + sum(kind.count * kind.forward for kind in problem.pinned_at(place))
