"""Operators of small runs laid beside each other: which stand in every run, which only under CP, EP, TP, more layers.

Sequences are aligned one after the other with a growing common one (longest common subsequence over type, data types
and ranks of shapes, those first whose dimensions could follow one law). What two runs share is one column; the
runs in which a column has an operator give its condition. A column that only a larger CP has, and that repeats another
one of the same run, is a further turn of a loop, as of ring attention: the first turn's column counts them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.blackbox.laws import EXPONENTS, FACTORS, Fitter, Law, SizeFit
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import RunSetting

MOST_OPERATORS = 20_000
"""Most operators of one run: two layers of a step have some hundreds."""
CONDITIONED = ("cp", "ep", "tp", "local_experts", "layers", "pp", "mbs", "dp")
"""Attributes on which an operator's presence may depend, the likeliest first."""
SPLITTING = ("cp", "tp", "ep")
"""Degrees without which another operator of the same type may stand in one's place."""
LAYERS = "layers"
UNLIKE = 0.1
"""Score of operators of which no law explains any dimension, up to twice as much where laws explain almost all. Lawful
ones score 2, so that only more than ten such pairs outweigh one of them."""
LIKEST = 0.25
"""Score of a column for having one of the run that is most like the new one: more than unlike dimensions can differ by
(`UNLIKE`), less than a lawful pair is worth."""
AROUND = 3
"""Operators on both sides that distinguish two turns of a loop: more than the two of a turn of ring attention."""
Fits = tuple[tuple[SizeFit, ...], ...]
"""Laws of the dimensions of some tensors."""
MOST_APART = 12
"""Columns between the places of one operator that runs have in another order: three projections in another order, with
what runs beside each (allocation, transpose, collective), move one by no more."""


@dataclass(frozen=True)
class RunOperators:
    """One run's operators in their order, for one step of one rank."""

    setting: RunSetting
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Condition:
    """Condition under which an operator occurs in a run: each of these is above one, or is one.

    Parameters
    ----------
    above : tuple of (str, bool)
        Attribute of a setting, and whether it must be above 1 (`layers`: above `least_layers`). Empty: always.
    least_layers : int
        Layers of the smallest run.
    turns : int
        CP must be above this: a further turn of a loop over CP's ranks. 0 where the operator is in none.
    """

    above: tuple[tuple[str, bool], ...] = ()
    least_layers: int = 1
    turns: int = 0

    def is_met(self, setting: RunSetting) -> bool:
        """Return whether the operator stands in such a run."""
        least = {LAYERS: self.least_layers}
        there = all((getattr(setting, name) > least.get(name, 1)) == wanted for name, wanted in self.above)
        return there and setting.cp > self.turns

    def opposite_in(self, other: Condition) -> bool:
        """Return whether two conditions differ in one attribute alone, and one is met where the other is not."""
        mine, its = dict(self.above), dict(other.above)
        changed = [name for name in mine if name in its and mine[name] != its[name]]
        return self.turns == other.turns and len(changed) == 1 and mine.keys() == its.keys()

    def __str__(self) -> str:
        least = {LAYERS: self.least_layers}
        words = [f"{name} {'>' if wanted else '='} {least.get(name, 1)}" for name, wanted in self.above]
        words += [f"cp > {self.turns}"] * bool(self.turns)
        return " and ".join(words) or "always"


@dataclass(frozen=True)
class CountLaw:
    """Times that an operator runs in a pass of its block: ``fixed + each · cp``, as turns of a loop over CP's ranks.

    Parameters
    ----------
    open_above : int
        0 where runs settle it; else their largest CP. A line through two CPs that is no loop over all ranks, or all
        others, is a guess, which a run at a larger CP decides.
    """

    fixed: Fraction = Fraction(1)
    each: Fraction = Fraction(0)
    open_above: int = 0

    def at(self, setting: RunSetting) -> int:
        """The number in a run."""
        return max(0, math.floor(self.fixed + self.each * setting.cp))

    def __str__(self) -> str:
        if not self.each:
            return str(self.fixed)
        sign = "-" if self.fixed < 0 else "+"
        return ("" if self.each == 1 else f"{self.each} · ") + "cp" + (f" {sign} {abs(self.fixed)}" * bool(self.fixed))


ONCE = CountLaw()


@dataclass(frozen=True)
class Column:
    """One operator across runs.

    Parameters
    ----------
    operators : mapping of int to Operator
        By run; a run without it is not there.
    places : mapping of int to int
        By run: which of its operators it is.
    """

    operators: Mapping[int, Operator]
    places: Mapping[int, int]


@dataclass(frozen=True)
class LawfulOperator:
    """An operator whose dimensions are laws.

    Parameters
    ----------
    like : Operator
        As one run had it.
    condition : Condition or None
        Condition under which it occurs; None where no short condition explains the runs.
    places : mapping of int to int
        By run that it was seen in: which of its operators it is.
    inputs, outputs : tuple of tuple of SizeFit
        One a dimension.
    count : CountLaw or None
        How often it runs; None where runs do not show it.
    repeats : bool
        It is a further turn of a loop: the column of the first turn counts it.
    """

    like: Operator
    condition: Condition | None
    places: Mapping[int, int]
    inputs: tuple[tuple[SizeFit, ...], ...]
    outputs: tuple[tuple[SizeFit, ...], ...]
    count: CountLaw | None = ONCE
    repeats: bool = False

    @property
    def is_counted(self) -> bool:
        """Return whether runs settle how often it runs."""
        return self.count is not None and not self.count.open_above

    @property
    def further(self) -> bool:
        """Return whether it stands in a further layer only, and repeats one of the first."""
        return self.condition is not None and (LAYERS, True) in self.condition.above

    @property
    def fits(self) -> tuple[SizeFit, ...]:
        """Of all dimensions, inputs first."""
        return tuple(itertools.chain.from_iterable((*self.inputs, *self.outputs)))

    def at(self, setting: RunSetting) -> Operator | None:
        """The operator in a run where it stands; None where a dimension has no law, or several that disagree."""
        shapes = list[tuple[int, ...]]()
        for fits in (*self.inputs, *self.outputs):
            sizes = list[int]()
            for fit in fits:
                size = fit.at(setting)
                if size is None:
                    return None
                sizes.append(size)
            shapes.append(tuple(sizes))
        count = len(self.inputs)
        return Operator(self.like.type, self.like.core, self.like.dtypes, tuple(shapes[:count]), tuple(shapes[count:]))


def align(runs: Sequence[RunOperators]) -> tuple[Column, ...]:
    """The runs' operators in one common order.

    Returns
    -------
    tuple of Column
        Every operator of every run is in exactly one, and each run's stand in their order.

    Raises
    ------
    InputError
        When a run has more operators than a small one can.
    """
    for run in runs:
        if len(run.operators) > MOST_OPERATORS:
            cure = "profile one step of a few layers"
            raise InputError(f"has more than {MOST_OPERATORS} operators", field="small run", cure=cure)
    columns: list[dict[int, int]] = []
    # Those with more layers last, whatever their order: a first layer's operator is laid beside none of a further one.
    order = sorted(range(len(runs)), key=lambda one: runs[one].setting.layers)
    for turn, number in enumerate(order):
        run, done = runs[number], order[:turn]
        # Beside the run that is most like it: of another one a wrong operator may have a lawful size by chance.
        apart = {each: _changes(runs[each].setting, run.setting) for each in done}
        nearest = [min(column, key=lambda one: (apart[one], one)) for column in columns]
        match = _Match(runs, number)
        shared = [runs[one].operators[column[one]] for one, column in zip(nearest, columns, strict=True)]
        scores = match.scores(shared, nearest, run.operators)
        if columns:
            likest = min(done, key=lambda one: (apart[one], one))
            has = np.array([likest in column for column in columns])
            only_layers = _changes(runs[likest].setting.replace(layers=run.setting.layers), run.setting) == 0
            # Of equally good columns those of the most alike run; a further layer repeats nothing but that run's.
            scores = np.where(scores > 0, scores + (LIKEST * has)[:, None], 0.0)
            scores = np.where(has[:, None], scores, 0.0) if only_layers else scores
        pairs = _common(scores) if columns else []
        merged: list[dict[int, int]] = []
        column_at = operator_at = 0
        for left, right in [*pairs, (len(columns), len(run.operators))]:
            merged += columns[column_at:left]
            merged += [{number: place} for place in range(operator_at, right)]
            if left < len(columns):
                merged.append({**columns[left], number: right})
            column_at, operator_at = left + 1, right + 1
        columns = merged
    return tuple(
        Column({run: runs[run].operators[place] for run, place in column.items()}, column) for column in columns
    )


def _changes(left: RunSetting, right: RunSetting) -> int:
    """Number of settings in which two runs differ; remaining ranks count for nothing."""
    return sum(getattr(left, one.name) != getattr(right, one.name) for one in fields(RunSetting) if one.name != "dp")


class _Match:
    """Similarity of an operator of a new run to one of an earlier run."""

    def __init__(self, runs: Sequence[RunOperators], new: int) -> None:
        self._runs, self._new = runs, new
        self._ratios: dict[int, frozenset[float]] = {}

    def scores(
        self, shared: Sequence[Operator], origins: Sequence[int], operators: Sequence[Operator]
    ) -> NDArray[np.float64]:
        """Float [columns, operators]: 0 where they cannot be one; else as `_score`."""
        known: dict[tuple[Operator, int, Operator], float] = {}
        kinds: dict[object, list[int]] = {}
        for at, operator in enumerate(operators):
            kinds.setdefault(_signature(operator), []).append(at)
        table = np.zeros((len(shared), len(operators)))
        for row, (operator, run) in enumerate(zip(shared, origins, strict=True)):
            for at in kinds.get(_signature(operator), ()):
                key = (operator, run, operators[at])
                if key not in known:
                    known[key] = self._score(*key)
                table[row, at] = known[key]
        # What has a like-sized one somewhere is none of those that no law explains.
        good = table > 1
        taken = good.sum(axis=1)[:, None] + good.sum(axis=0)
        return np.where(good | (taken == 0), table, 0.0)

    def _score(self, old: Operator, run: int, new: Operator) -> float:
        """2 where one law could give the ratio of each dimension; else `UNLIKE` to twice as much."""
        if not old.is_compute:
            return 2.0  # What one rank sends follows no product of powers.
        ratios = self._plausible(run)
        pairs = [
            (left, right)
            for mine, its in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True)
            for left, right in zip(mine, its, strict=True)
        ]
        good = sum(left == right or (left > 0 and round(right / left, 9) in ratios) for left, right in pairs)
        # Another operator of the same type, as a rule: rather none than that one, rather that one than no column.
        return 2.0 if good == len(pairs) else UNLIKE * (1 + good / len(pairs))

    def _plausible(self, run: int) -> frozenset[float]:
        if run not in self._ratios:
            old, new = self._runs[run].setting, self._runs[self._new].setting
            steps = [
                {(getattr(new, name) / getattr(old, name)) ** power for power in EXPONENTS[name]} for name in FACTORS
            ]
            products = {1.0}
            for step in steps:
                products = {left * right for left in products for right in step}
            self._ratios[run] = frozenset(round(product, 9) for product in products)
        return self._ratios[run]


def _signature(operator: Operator) -> object:
    return (
        operator.type,
        operator.core,
        operator.dtypes,
        tuple(map(len, operator.inputs)),
        tuple(map(len, operator.outputs)),
    )


def _common(scores: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Pairs (row, column), rising in both, of the greatest total score."""
    rows, columns = scores.shape
    best = np.zeros((rows + 1, columns + 1))
    for row in range(rows):
        taken = np.where(scores[row] > 0, best[row, :-1] + scores[row], 0.0)
        np.maximum(best[row, 1:], taken, out=best[row + 1, 1:])
        np.maximum.accumulate(best[row + 1], out=best[row + 1])
    pairs: list[tuple[int, int]] = []
    row, column = rows, columns
    while row and column:
        value = best[row, column]
        if best[row - 1, column] == value:
            row -= 1
        elif best[row, column - 1] == value:
            column -= 1
        else:
            row, column = row - 1, column - 1
            pairs.append((row, column))
    return pairs[::-1]


def condition_of(present: Sequence[bool], settings: Sequence[RunSetting]) -> Condition | None:
    """The shortest condition for the runs in which an operator occurs; None where none of two parts does."""
    least = min(setting.layers for setting in settings)
    parts = [(name, wanted) for wanted in (True, False) for name in CONDITIONED]
    # Further turns of a loop: of the degrees that runs have, all from one above 2 on.
    turns = [0, *sorted({one.cp for one in settings} - {1})[:-1]]
    for beyond, count in ((0, 0), (0, 1), (0, 2), *((each, count) for each in turns[1:] for count in (0, 1))):
        for chosen in itertools.combinations(parts, count):
            condition = Condition(chosen, least, beyond)
            if all(condition.is_met(one) == there for one, there in zip(settings, present, strict=True)):
                return condition
    return None


def lawful_operators(runs: Sequence[RunOperators]) -> tuple[LawfulOperator, ...]:
    """Every operator of the runs with its condition and the laws of its dimensions, in their order.

    Raises
    ------
    InputError
        As `align` does.
    """
    settings = [run.setting for run in runs]
    fitters: dict[tuple[int, ...], Fitter] = {}
    columns = [part for column in align(runs) for part in _split(column, settings, fitters)]
    conditions = [condition_of([place in each.operators for place in range(len(runs))], settings) for each in columns]
    twins = _twins(columns, conditions)
    turns = _turns(columns, conditions)
    found = []
    for at, column in enumerate(columns):
        # A further layer's operators were seen in few runs; those of the first layer, which they repeat, in all.
        known = columns[twins.get(at, turns.get(at, at))]
        seen, inputs, outputs = _fitted(known.operators, settings, fitters)
        condition = conditions[at]
        if not all(fit.settled for fit in itertools.chain(*inputs, *outputs)):
            others = _elsewhere(at, columns, conditions)
            for other in others:
                joint = _fitted({**other.operators, **known.operators}, settings, fitters)
                if all(fit.laws and not fit.spread for fit in itertools.chain(*joint[1], *joint[2])):
                    _, inputs, outputs = joint
                    break
        twin = conditions[twins[at]] if at in twins else None
        if twin is not None:
            condition = Condition((*twin.above, (LAYERS, True)), twin.least_layers)
        further = [columns[one].operators for one, first in turns.items() if first == at]
        count = _count(column, further, settings) if further or _maybe_turns(condition, settings) else ONCE
        found.append(LawfulOperator(seen, condition, column.places, inputs, outputs, count, at in turns))
    return tuple(_likely(found, columns, settings, at) for at in range(len(found)))


def _likely(
    found: Sequence[LawfulOperator], columns: Sequence[Column], settings: Sequence[RunSetting], at: int
) -> LawfulOperator:
    """An operator with its neighbours' laws first, where runs leave several: tensors pass from one to the next."""
    one = found[at]
    if one.condition is None or one.further or one.repeats or all(len(fit.laws) < 2 for fit in one.fits):
        return one
    run = min(one.places)
    here = one.places[run]
    near = sorted((abs(each.places[run] - here), place) for place, each in enumerate(columns) if run in each.places)
    known: dict[int, Law] = {}
    for apart, each in near:
        shown = columns[each].operators[run]
        sizes = itertools.chain(*shown.inputs, *shown.outputs)
        for size, fit in zip(sizes, found[each].fits, strict=True):
            if fit.settled and apart <= MOST_APART:
                known.setdefault(size, fit.laws[0])
    # An operator of the same type that stands in its place under another condition.
    setting = settings[run]
    for other in found:
        if other.like.type == one.like.type:
            for fit in other.fits:
                if fit.settled:
                    known.setdefault(fit.laws[0].at(setting), fit.laws[0])
    own = columns[at].operators[run]

    def chosen(fits: Fits, shapes: tuple[tuple[int, ...], ...]) -> Fits:
        return tuple(
            tuple(fit.with_first(known.get(size)) for fit, size in zip(shape, sizes, strict=True))
            for shape, sizes in zip(fits, shapes, strict=True)
        )

    return replace(one, inputs=chosen(one.inputs, own.inputs), outputs=chosen(one.outputs, own.outputs))


def _split(
    column: Column, settings: Sequence[RunSetting], fitters: dict[tuple[int, ...], Fitter]
) -> tuple[Column, ...]:
    """Two columns where no law meets all runs, or no condition explains which have it, but laws and conditions do for
    those with a degree above one, and for those without.
    """

    def exact(operators: Mapping[int, Operator]) -> bool:
        some = next(iter(operators.values()))
        return not some.is_compute or _is_exact(operators, settings, fitters)

    def explained(operators: Mapping[int, Operator]) -> bool:
        return condition_of([run in operators for run in range(len(settings))], settings) is not None

    known = explained(column.operators)
    if known and exact(column.operators):
        return (column,)
    for name in SPLITTING:
        halves = [{run: one for run, one in column.operators.items() if (getattr(settings[run], name) > 1) == above}
                  for above in (True, False)]  # fmt: skip
        if all(halves) and all(exact(half) and (known or explained(half)) for half in halves):
            return tuple(Column(half, {run: column.places[run] for run in half}) for half in halves)
    return (column,)


def _is_exact(
    operators: Mapping[int, Operator], settings: Sequence[RunSetting], fitters: dict[tuple[int, ...], Fitter]
) -> bool:
    _, inputs, outputs = _fitted(operators, settings, fitters)
    return all(fit.laws and not fit.spread for fit in itertools.chain(*inputs, *outputs))


def _fitted(
    operators: Mapping[int, Operator], settings: Sequence[RunSetting], fitters: dict[tuple[int, ...], Fitter]
) -> tuple[Operator, Fits, Fits]:
    """An operator as its first run had it, and the laws of its inputs and outputs."""
    places = tuple(sorted(operators))
    seen = [operators[place] for place in places]
    fitter = fitters.setdefault(places, Fitter([settings[place] for place in places]))
    return seen[0], _fits(fitter, [one.inputs for one in seen]), _fits(fitter, [one.outputs for one in seen])


def _elsewhere(at: int, columns: Sequence[Column], conditions: Sequence[Condition | None]) -> list[Column]:
    """Columns that show the same operator in the other runs, the nearest first: its place in the order changes."""
    mine, condition = columns[at], conditions[at]
    if condition is None:
        return []
    like = _signature(next(iter(mine.operators.values())))
    near = sorted(range(max(0, at - MOST_APART), min(len(columns), at + MOST_APART + 1)), key=lambda one: abs(one - at))
    return [
        columns[one]
        for one in near
        if (other := conditions[one]) is not None
        and condition.opposite_in(other)
        and _signature(next(iter(columns[one].operators.values()))) == like
    ]


def _turns(columns: Sequence[Column], conditions: Sequence[Condition | None]) -> dict[int, int]:
    """For columns of further turns of a loop the column of its first turn.

    Of several that show the same operator the one counts that most of the operators around it agree with.
    """
    found: dict[int, int] = {}
    order: dict[int, dict[int, Operator]] = {}
    for column in columns:
        for run, place in column.places.items():
            order.setdefault(run, {})[place] = column.operators[run]

    def alike(run: int, left: int, right: int) -> int:
        seen = order[run]
        return sum(seen.get(left + step) == seen.get(right + step) for step in range(-AROUND, AROUND + 1))

    for at, condition in enumerate(conditions):
        if condition is None or not condition.turns:
            continue
        run, place = next(iter(columns[at].places.items()))
        first = [
            (-alike(run, place, columns[one].places[run]), abs(one - at), one)
            for one, other in enumerate(conditions)
            if other is not None and not other.turns and _same(columns[at], columns[one])
        ]
        if first:
            found[at] = min(first)[2]
    return found


def _maybe_turns(condition: Condition | None, settings: Sequence[RunSetting]) -> bool:
    """Return whether an operator of CP could run once a turn, and runs at one CP alone do not show it."""
    return condition is not None and ("cp", True) in condition.above and len({one.cp for one in settings} - {1}) == 1


def _count(
    column: Column, further: Sequence[Mapping[int, Operator]], settings: Sequence[RunSetting]
) -> CountLaw | None:
    """The law of the number of turns; None where it is not linear in CP, or runs have one CP alone."""
    counts = {run: 1 + sum(run in one for one in further) for run in column.operators}
    by_cp = sorted({(settings[run].cp, count) for run, count in counts.items()})
    (first, low), (last, high) = by_cp[0], by_cp[-1]
    if first == last:
        return None
    each = Fraction(high - low, last - first)
    fixed = low - each * first
    # Any two counts lie on a line: a third CP checks it, or it is a loop over CP's ranks, or the others.
    sure = len({cp for cp, _ in by_cp}) > 2 or fixed in (0, -each) and each.denominator == 1
    law = CountLaw(fixed, each, 0 if sure else last)
    return law if all(law.at(settings[run]) == count for run, count in counts.items()) else None


def _twins(columns: Sequence[Column], conditions: Sequence[Condition | None]) -> dict[int, int]:
    """For columns that stand only where there are more layers, the column of the first layer that each repeats."""
    more = [at for at, one in enumerate(conditions) if one is not None and (LAYERS, True) in one.above]
    first = [
        at for at, one in enumerate(conditions) if one is not None and all(name != LAYERS for name, _ in one.above)
    ]
    if not more or not first:
        return {}
    same = np.array([[_same(columns[left], columns[right]) for right in first] for left in more], dtype=np.float64)
    pairs = {more[row]: first[column] for row, column in _common(same)}
    # The alignment may begin the further layer anywhere: the remainder repeats the other end of the first one.
    same[[at for at, place in enumerate(more) if place in pairs]] = 0
    return pairs | {more[row]: first[column] for row, column in _common(same)}


def _same(left: Column, right: Column) -> bool:
    """Return whether two columns show one operator in every run that has the first."""
    return all(right.operators.get(run) == operator for run, operator in left.operators.items())


def _fits(fitter: Fitter, shapes: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[tuple[SizeFit, ...], ...]:
    return tuple(
        tuple(fitter.fit([run[tensor][axis] for run in shapes]) for axis in range(len(shapes[0][tensor])))
        for tensor in range(len(shapes[0]))
    )
