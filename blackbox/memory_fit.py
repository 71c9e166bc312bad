"""The fit of memory laws to small runs: sizes and lives of all tensors, and the sharding of the optimizer's states."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.optimize import nnls

from taylor.base.errors import InputError
from taylor.blackbox.block_memory import TURN, BlockMemory, LifeEnd, LifeSpan, TensorLaw
from taylor.blackbox.blocks import CONDITIONED, Condition, condition_of
from taylor.blackbox.laws import Fitter, SizeFit
from taylor.blackbox.memory_laws import DENSE_SHARES, EXPERT_SHARES, RISK, MemoryLaws, MemorySharding, RunMemory
from taylor.blackbox.sharded_weights import WeightMemory
from taylor.parsers.small_run import RunSetting, ShardedWeights

SAME_SHARE = 0.005
"""Fraction of the greatest run by which any may deviate from one way of sharding; flat buffers are padded."""
EXACT_SHARE = 0.0005
"""Ways that deviate from the runs by less tie; else those count that deviate at most twice as much as the best."""
LATE = 3
"""Allocations by which a tensor's end may change from run to run: another stream gives memory back by events, at
which the allocator looks at when it is asked for the next one. More is taken for another end, under a condition."""
_EXPLANATIONS = ((0, 0), (1, 0), (2, 0), (0, LATE), (1, LATE), (3, 0), (2, LATE), (3, LATE))
"""(conditions, allocations late) that may explain a tensor's ends, the likeliest first. A condition is a degree that is
above one or not. Three conditions explain by chance what a dozen runs show of an end that comes late by chance, and
then state it too early elsewhere."""


def memory_laws(runs: Sequence[RunMemory], risk: float = RISK, weights: ShardedWeights | None = None) -> MemoryLaws:
    """Fit the laws of all tensors and the sharding of all states.

    Parameters
    ----------
    weights : ShardedWeights or None
        Precision of weights that ranks share and gather.

    Raises
    ------
    InputError
        When there is no run.
    """
    if not runs:
        raise InputError("are missing", field="small runs", cure="start them with memory in their profile")
    names = dict.fromkeys(name for run in runs for name in run.traces)
    blocks = {name: _block(name, [run for run in runs if name in run.traces]) for name in names}
    totals = [_elements(run, blocks) for run in runs]
    settings = [run.setting for run in runs]
    states = _shardings([run.start for run in runs], totals, settings)
    step = _shardings([run.step for run in runs], totals, settings)
    apart = None if weights is None else WeightMemory(weights)
    return MemoryLaws(MappingProxyType(blocks), states, step, tuple(runs), risk, weights=apart)


def _block(name: str, runs: Sequence[RunMemory]) -> BlockMemory:
    settings = [run.setting for run in runs]
    traces = [run.traces[name] for run in runs]
    order = _births([trace.events for trace in traces])
    tensors = _tensors([trace.sizes for trace in traces], settings, order)
    parameters = _tensors([run.parameters.get(name, {}) for run in runs], settings)
    lives = _lives([trace.events for trace in traces], order, settings)
    return BlockMemory(
        tuple(parameters.values()), MappingProxyType(tensors), lives, order.index(TURN), traces[0].kept_input
    )


def _tensors(
    sizes: Sequence[Mapping[str, int]], settings: Sequence[RunSetting], order: Sequence[str] = ()
) -> dict[str, TensorLaw]:
    fitters: dict[tuple[int, ...], Fitter] = {}
    names = list(dict.fromkeys(name for each in sizes for name in each))
    conditions = {name: condition_of([name in each for each in sizes], settings) for name in names}
    at = {name: place for place, name in enumerate(order or names)}

    def fit(shown: Mapping[int, int]) -> SizeFit:
        places = tuple(sorted(shown))
        fitter = fitters.setdefault(places, Fitter([settings[place] for place in places]))
        return fitter.fit([shown[place] for place in places])

    shown = {name: {place: each[name] for place, each in enumerate(sizes) if name in each} for name in names}
    found: dict[str, TensorLaw] = {}
    for name in names:
        mine = fit(shown[name])
        if not mine.settled:
            near = sorted((other for other in names if other != name), key=lambda one: abs(at[one] - at[name]))
            for other in near:
                if _is_kin(conditions[name], conditions[other], shown[name], shown[other]):
                    joint = fit({**shown[other], **shown[name]})
                    if joint.laws and not joint.spread and len(joint.laws) < max(2, len(mine.laws)):
                        mine = joint
                        break
        found[name] = TensorLaw(name, mine, conditions[name])
    return {name: _with_likely(name, found, shown, at) for name in names}


def _with_likely(
    name: str, found: Mapping[str, TensorLaw], shown: Mapping[str, Mapping[int, int]], at: Mapping[str, int]
) -> TensorLaw:
    """A tensor of several laws with that of the nearest tensor as large: it passes from one operator to the next."""
    one = found[name]
    if len(one.fit.laws) < 2 or one.condition is None:
        return one
    near = sorted((other for other in found if other != name), key=lambda other: abs(at[other] - at[name]))
    for other in near:
        settled = found[other].fit.settled and shown[name].keys() <= shown[other].keys()
        if settled and all(shown[other][run] == size for run, size in shown[name].items()):
            return replace(one, likely=found[other].fit.laws[0])
    return one


def _is_kin(mine: Condition | None, its: Condition | None, shown: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether another tensor may be the same one: at another place in other runs, or an earlier turn's."""
    if mine is None or its is None:
        return False
    if mine.opposite_in(its):
        return True
    turns = mine.turns > its.turns and shown.keys() <= other.keys()
    return turns and all(other[run] == size for run, size in shown.items())


def _births(orders: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """One order of all runs' allocations and `TURN`, the longest run's first; what it lacks follows its predecessor.

    Where runs differ in the order of two allocations, the longest one's counts.
    """
    born = [[event.removeprefix("+") for event in order if event[0] != "-"] for order in orders]
    longest, *others = sorted(born, key=len, reverse=True)
    merged = list(longest)
    for order in others:
        known = set(merged)
        for before, name in itertools.pairwise(("", *order)):
            if name not in known:
                merged.insert(merged.index(before) + 1 if before else 0, name)
                known.add(name)
    return tuple(merged)


@dataclass(frozen=True)
class _Shown:
    """Runs beside one common order of allocations.

    Parameters
    ----------
    order : sequence of str
        Names of all allocations, and `TURN`.
    settings : sequence of RunSetting
        One a run.
    born : sequence of sequence of int
        By run: the places of its own allocations, rising.
    """

    order: Sequence[str]
    settings: Sequence[RunSetting]
    born: Sequence[Sequence[int]]

    @property
    def turn(self) -> int:
        return self.order.index(TURN)

    def allocations(self, run: int, begin: int, end: int) -> int:
        """Number of allocations that a run has after the place `begin`, up to `end` with it."""
        return bisect.bisect_right(self.born[run], end) - bisect.bisect_right(self.born[run], begin)


def _lives(
    orders: Sequence[tuple[str, ...]], order: Sequence[str], settings: Sequence[RunSetting]
) -> tuple[LifeSpan, ...]:
    """The interval of every tensor's life that all runs show."""
    at = {name: place for place, name in enumerate(order)}
    seen: dict[str, dict[int, tuple[int, int]]] = {}
    for run, events in enumerate(orders):
        last, freed = 0, list[str]()
        for event in (*events, "+"):
            if event[0] == "-":
                freed.append(event[1:])
                continue
            place = at[event.removeprefix("+")] if event != "+" else len(order)
            for name in freed:
                # Between two allocations: it saw the former, and not the latter.
                seen.setdefault(name, {})[run] = (last, max(place, last + 1))
            last, freed = place, []
    born = [sorted(at[event[1:]] for event in events if event[0] == "+") for events in orders]
    shown = _Shown(order, settings, born)
    return tuple(
        LifeSpan(name, place, _ends(seen.get(name, {}), shown)) for place, name in enumerate(order) if name != TURN
    )


def _ends(seen: Mapping[int, tuple[int, int]], shown: _Shown) -> tuple[LifeEnd, ...]:
    """Ends of a tensor's life by the conditions that runs differ in; the latest where none explains them."""
    if not seen:
        return (LifeEnd(Condition(), len(shown.order)),)
    for conditions, slack in _EXPLANATIONS:
        if found := _explained(seen, shown, conditions, slack):
            return found
    return (LifeEnd(Condition(), max(low for low, _ in seen.values()) + 1),)


def _explained(seen: Mapping[int, tuple[int, int]], shown: _Shown, depth: int, slack: int) -> tuple[LifeEnd, ...]:
    """Ends under as few conditions as explain all runs, at most `depth`; empty where none do."""
    common = _common_end(seen, shown, slack)
    if common is not None:
        return (common,)
    settings = shown.settings
    for most in range(depth):
        for name in CONDITIONED:
            halves = [{run: limits for run, limits in seen.items() if (getattr(settings[run], name) > 1) == above}
                      for above in (True, False)]  # fmt: skip
            parts = [_explained(half, shown, most, slack) if half else () for half in halves]
            if all(parts):
                return tuple(
                    replace(end, condition=replace(end.condition, above=((name, above), *end.condition.above)))
                    for part, above in zip(parts, (True, False), strict=True)
                    for end in part
                )
        for turns in sorted({settings[run].cp for run in seen} - {1})[:-1]:
            # A loop of several turns frees in a later one what it keeps in its last.
            halves = [{run: limits for run, limits in seen.items() if (settings[run].cp > turns) == above}
                      for above in (True, False)]  # fmt: skip
            parts = [_explained(half, shown, most, slack) for half in halves]
            if all(parts):
                return (*(replace(end, condition=replace(end.condition, turns=turns)) for end in parts[0]), *parts[1])
    return ()


def _common_end(seen: Mapping[int, tuple[int, int]], shown: _Shown, slack: int) -> LifeEnd | None:
    """The latest end within all limits; None where they contradict each other.

    Parameters
    ----------
    slack : int
        Allocations of its own by which a run may show another end on the same side of the turn. The earliest then
        counts, with the most allocations that a run shows beyond it: other runs have others there, and fewer.
    """
    lows = [low for low, _ in seen.values()]
    first, last, high = min(lows), max(lows), min(high for _, high in seen.values())
    if last < high:
        after = shown.order[first] if first == last else ""
        return LifeEnd(Condition(), high, "" if after == TURN else after)
    late = max(shown.allocations(run, first, low) for run, (low, _) in seen.items())
    one_side = (first < shown.turn) == (last < shown.turn)
    return LifeEnd(Condition(), first + 1, late=late) if one_side and late <= slack else None


def _elements(run: RunMemory, blocks: Mapping[str, BlockMemory]) -> tuple[float, float]:
    each = [blocks[name].elements(run.setting) for name, _ in run.blocks]
    return sum(dense for dense, _ in each), sum(expert for _, expert in each)


def _shardings(
    sizes: Sequence[int], totals: Sequence[tuple[float, float]], settings: Sequence[RunSetting]
) -> tuple[MemorySharding, ...]:
    """The ways of sharding that give all runs' bytes, by least squares without negative parts."""
    found = list[tuple[float, MemorySharding]]()
    measured = np.array(sizes, dtype=np.float64)
    if not measured.any():
        return (MemorySharding(0.0, 0.0, 0.0, "whole", "whole"),)
    for dense, expert in itertools.product(DENSE_SHARES, EXPERT_SHARES):
        unit = MemorySharding(0.0, 0.0, 1.0, dense, expert)
        shares = [unit.of(*total, run) for total, run in zip(totals, settings, strict=True)]
        columns = np.array([np.ones(len(sizes)), [sum(total) for total in totals], shares]).T
        scale = np.maximum(columns.max(axis=0), 1.0)
        weights = nnls(columns / scale, measured)[0] / scale
        base, whole, shared = map(float, weights)
        left = float(np.abs(columns @ weights - measured).max() / measured.max())
        found.append((left, MemorySharding(base, whole, shared, dense, expert)))
    allowed = min(SAME_SHARE, max(EXACT_SHARE, 2 * min(left for left, _ in found)))
    return tuple(way for left, way in found if left <= allowed)
