"""The five ratios and each kind's own times, from what was measured between attention kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import hypot

from taylor.cost_model.profile import RatioSource, TimeRatios
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.profiling.fit import LinearFit, SolvedFit, TimeEstimate, centre
from taylor.profiling.pattern import charged_kinds
from taylor.profiling.pool import PooledTimes
from taylor.register.model import DENSE

WITHIN, ACROSS, BY_NAME = 5e-4, 5e-3, 1e-2
"""Relative error to expect of a measurement inside a task, across a border between tasks, and by kernel names."""
LARGEST_RESIDUAL = 0.2
LARGEST_SCATTER = 0.3


@dataclass(frozen=True)
class RatioFigures:
    """Ratios with their spreads and counts, or the problems for which there are none."""

    ratios: TimeRatios | None
    spread: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def ratios_of(
    plan: PipelinePlan,
    schedule: Schedule,
    measured: PooledTimes,
    transfer_ms: float | None,
) -> RatioFigures:
    """Solve for the layers' times and form the ratios from them.

    The body layer is the last kind of the plan but MTP, which is timed as the body layer. Head and loss
    come from forward and backward together, (head forward + head backward) / (1 + bfratio), which is
    what a step pays for them under one backward ratio.
    """
    fit, by_norm = _equations(schedule, measured)
    solved = fit.solve()
    weights = schedule.spec.traits.split_backward
    kinds = list(dict.fromkeys(charged_kinds(plan).values()))
    body = kinds[-1]
    forward = {kind: solved.sum_of([("before", ""), ("after", kind)]) for kind in kinds}
    again = {kind: solved.sum_of([("again before", ""), ("again after", kind)]) for kind in kinds}
    backward = {kind: _backward(solved, kind, weights) for kind in kinds}
    notes = ["the final norm's kernel marks where the last layer ends and the head begins"] if by_norm else []
    missing: list[str] = []
    unit = forward[body]
    if unit is None or unit.value <= 0:
        return RatioFigures(
            None,
            problems=(
                f"no rank shows the forward of a {body} layer apart from embedding, head or another kind of layer: "
                f"profile with two {body} layers on one stage, or with the ranks of more stages",
            ),
        )
    _share_out_recompute(solved, kinds, forward, backward, again, weights, notes)
    problems = _contradictions(fit, solved, unit, body, {"forward": forward, "backward": backward, "recompute": again})

    figures: dict[str, TimeEstimate | None] = {"moe_bw": unit, "dmratio": TimeEstimate(1.0, 0.0, unit.count)}
    if DENSE in kinds and body != DENSE:
        figures["dmratio"] = _over(forward[DENSE], unit)
    figures["bfratio"] = _first(backward, forward, body, kinds, "bfratio", notes)
    figures["re_grow_ration"] = _first(again, forward, body, kinds, "re_grow_ration", notes)
    beta = figures["bfratio"]
    figures["hratio"] = _over(_both_ways(solved, "head", beta, weights), unit)
    embedding = _over(_both_ways(solved, "embedding", beta, weights), unit)
    default = TimeRatios()
    fallback = {
        "dmratio": default.dense_forward,
        "bfratio": default.backward,
        "re_grow_ration": default.recompute[FULL],
        "hratio": default.head,
    }
    values = dict(fallback)
    for name in fallback:
        found = figures[name]
        if found is None:
            missing.append(name)
        else:
            values[name] = found.value
    negative = [name for name in values if values[name] < 0]
    if negative:
        problems.append(f"{', '.join(negative)} comes out below 0: the profile does not fit the configuration's layers")
    before = [("select before", body)] if ("select before", body) in solved.index else []
    select = solved.sum_of([*before, ("select", body)])
    share = select.value / unit.value if select is not None else default.recompute[SELECT] * values["re_grow_ration"]
    ratios = TimeRatios(
        dense_forward=values["dmratio"],
        backward=values["bfratio"],
        recompute={FULL: values["re_grow_ration"], SELECT: max(share, 0.0), NONE: 0.0},
        head=values["hratio"],
        unit_ms=unit.value,
        embedding=max(embedding.value, 0.0) if embedding is not None else 0.0,
        lag=(transfer_ms or 0.0) / unit.value,
        source=RatioSource.PARSED,
    )
    return RatioFigures(
        ratios if not problems else None,
        {name: each.scatter / abs(each.value) if each.value else 0.0 for name, each in figures.items() if each},
        {name: each.count if each is not None else 0 for name, each in figures.items()},
        tuple(problems),
        tuple(missing),
        tuple(notes),
    )


def _equations(schedule: Schedule, measured: PooledTimes) -> tuple[LinearFit, bool]:
    """One equation a window; single pieces known otherwise join where those leave them open.

    Returns also whether any piece is known by the final norm. Those, and the ones that a send parts, join one
    by one: so none of them can change what the other measurements settle.
    """
    fit = LinearFit()
    for window, found in measured.windows.items():
        if not window.pieces:
            continue
        fit.add(dict(window.pieces), centre(found.times_ms), ACROSS if window.borders else WITHIN)
    share = 1.0 / schedule.spec.seq_splits
    settled = fit.solve()
    for piece, times in measured.by_name.items():
        if settled.sum_of([piece]) is None:
            fit.add({piece: share}, centre(times), BY_NAME)
    by_norm = False
    for late in (measured.by_norm, measured.by_send):
        for piece, times in late.items():
            if fit.solve().sum_of([piece]) is None:
                fit.add({piece: share}, centre(times), BY_NAME)
                by_norm = by_norm or late is measured.by_norm
    return fit, by_norm


def _backward(solved: SolvedFit, kind: str, weights: bool) -> TimeEstimate | None:
    pieces = [("back before", kind), ("back after", "")]
    return solved.sum_of(pieces + [("weight", kind)] if weights else pieces)


def _share_out_recompute(
    solved: SolvedFit,
    kinds: list[str],
    forward: Mapping[str, TimeEstimate | None],
    backward: dict[str, TimeEstimate | None],
    again: dict[str, TimeEstimate | None],
    weights: bool,
    notes: list[str],
) -> None:
    """Take recompute as one more forward where only recompute and backward together are known."""
    for kind in kinds:
        first = forward[kind]
        if backward[kind] is not None or first is None:
            continue
        pieces = [("again before", ""), ("again after", kind), ("back before", kind), ("back after", "")]
        both = solved.sum_of(pieces + [("weight", kind)] if weights else pieces)
        if both is not None and both.value > first.value * (1 + 1e-9):  # more than solving rounds
            backward[kind] = TimeEstimate(both.value - first.value, hypot(both.scatter, first.scatter), both.count)
            notes.append(f"every {kind} layer is recomputed: its recompute is taken as long as its forward")
            again[kind] = TimeEstimate(first.value, first.scatter, first.count)


def _contradictions(
    fit: LinearFit,
    solved: SolvedFit,
    unit: TimeEstimate,
    body: str,
    times: Mapping[str, Mapping[str, TimeEstimate | None]],
) -> list[str]:
    problems = []
    if unit.scatter > LARGEST_SCATTER * unit.value:
        problems.append(
            f"the forward of a {body} layer scatters by {unit.scatter / unit.value:.0%}: "
            "the profile does not fit the configuration's layers, or the cards were shared"
        )
    worst = solved.worst_residual()
    if worst > LARGEST_RESIDUAL:
        problems.append(
            f"times between attention kernels contradict each other by {worst:.0%}: "
            "the kinds of layers or the recompute list are not those of the configuration"
        )
    for what, by_kind in times.items():
        below = [kind for kind, each in by_kind.items() if each is not None and each.value <= 0]
        problems += [
            f"the {what} of a {kind} layer comes out at or below 0 ms: the profile does not fit the "
            "configuration's layers"
            for kind in below
        ]
    return problems


def _over(value: TimeEstimate | None, unit: TimeEstimate | None) -> TimeEstimate | None:
    if value is None or unit is None:
        return None
    ratio = value.value / unit.value
    relative = hypot(value.scatter / value.value if value.value else 0.0, unit.scatter / unit.value)
    return TimeEstimate(ratio, abs(ratio) * relative, min(value.count, unit.count))


def _first(
    part: Mapping[str, TimeEstimate | None],
    forward: Mapping[str, TimeEstimate | None],
    body: str,
    kinds: list[str],
    name: str,
    notes: list[str],
) -> TimeEstimate | None:
    """The ratio of the body layer, else of the first other kind that has one."""
    for kind in [body] + [kind for kind in kinds if kind != body]:
        found = _over(part[kind], forward[kind])
        if found is not None:
            if kind != body:
                notes.append(f"{name} is that of the {kind} layers: no {body} layer shows it")
            return found
    return None


def _both_ways(solved: SolvedFit, what: str, beta: TimeEstimate | None, weights: bool) -> TimeEstimate | None:
    back = [(f"back {what}", "")] + ([(f"weight {what}", "")] if weights else [])
    both = solved.sum_of([(what, ""), *back])
    if both is not None and beta is not None:
        scale = 1.0 + beta.value
        return TimeEstimate(both.value / scale, both.scatter / scale, both.count)
    return solved.sum_of([(what, "")])
