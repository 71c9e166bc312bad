"""Operators of small runs laid beside each other: which stand in every run, which only under CP, EP, TP, more layers.

Sequences are aligned one after the other with a growing common one (longest common subsequence over type, data types
and ranks of shapes, those first whose dimensions could follow one law). What two runs share is one column; the
runs in which a column has an operator give its condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.blackbox.laws import EXPONENTS, FACTORS, Fitter, SizeFit
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import RunSetting

MOST_OPERATORS = 20_000
"""Most operators of one run: two layers of a step have some hundreds."""
CONDITIONED = ("cp", "ep", "tp", "layers", "pp", "mbs", "dp")
"""Attributes on which an operator's presence may depend, the likeliest first."""
LAYERS = "layers"


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
    """

    above: tuple[tuple[str, bool], ...] = ()
    least_layers: int = 1

    def is_met(self, setting: RunSetting) -> bool:
        """Return whether the operator stands in such a run."""
        least = {LAYERS: self.least_layers}
        return all((getattr(setting, name) > least.get(name, 1)) == wanted for name, wanted in self.above)

    def __str__(self) -> str:
        least = {LAYERS: self.least_layers}
        words = (f"{name} {'>' if wanted else '='} {least.get(name, 1)}" for name, wanted in self.above)
        return " and ".join(words) or "always"


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
    """

    like: Operator
    condition: Condition | None
    places: Mapping[int, int]
    inputs: tuple[tuple[SizeFit, ...], ...]
    outputs: tuple[tuple[SizeFit, ...], ...]

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
        inputs = [tuple(fit.at(setting) for fit in shape) for shape in self.inputs]
        outputs = [tuple(fit.at(setting) for fit in shape) for shape in self.outputs]
        known_in = tuple(tuple(size for size in shape if size is not None) for shape in inputs)
        known_out = tuple(tuple(size for size in shape if size is not None) for shape in outputs)
        if [*map(len, known_in), *map(len, known_out)] != [*map(len, inputs), *map(len, outputs)]:
            return None
        return Operator(self.like.type, self.like.core, self.like.dtypes, known_in, known_out)


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
    for number, run in enumerate(runs):
        # Beside the run that is most like it: of another one a wrong operator may have a lawful size by chance.
        apart = [_changes(each.setting, run.setting) for each in runs[:number]]
        nearest = [min(column, key=lambda one: (apart[one], one)) for column in columns]
        match = _Match(runs, number)
        shared = [runs[one].operators[column[one]] for one, column in zip(nearest, columns, strict=True)]
        pairs = _common(match.scores(shared, nearest, run.operators)) if columns else []
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
        """Float [columns, operators]: 0 where they cannot be one; else 1, and up to 1 more for lawful dimensions."""
        known: dict[tuple[Operator, int, Operator], float] = {}
        kinds: dict[object, list[int]] = {}
        for at, operator in enumerate(operators):
            kinds.setdefault(_signature(operator), []).append(at)
        table = np.zeros((len(shared), len(operators)))
        for row, (operator, run) in enumerate(zip(shared, origins, strict=True)):
            for at in kinds.get(_signature(operator), ()):
                key = (operator, run, operators[at])
                if key not in known:
                    known[key] = 1 + self._lawful(*key)
                table[row, at] = known[key]
        return table

    def _lawful(self, old: Operator, run: int, new: Operator) -> float:
        """Fraction of dimensions whose ratio one law could give."""
        ratios = self._plausible(run)
        pairs = [
            (left, right)
            for mine, its in zip((*old.inputs, *old.outputs), (*new.inputs, *new.outputs), strict=True)
            for left, right in zip(mine, its, strict=True)
        ]
        good = sum(left == right or (left > 0 and round(right / left, 9) in ratios) for left, right in pairs)
        return good / len(pairs) if pairs else 1.0

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
    for count in range(3):
        for chosen in itertools.combinations(parts, count):
            condition = Condition(chosen, least)
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
    columns = align(runs)
    conditions = [condition_of([place in each.operators for place in range(len(runs))], settings) for each in columns]
    twins = _twins(columns, conditions)
    found = []
    for at, column in enumerate(columns):
        # A further layer's operators were seen in few runs; those of the first layer, which they repeat, in all.
        known = columns[twins.get(at, at)]
        places = tuple(sorted(known.operators))
        seen = [known.operators[place] for place in places]
        fitter = fitters.setdefault(places, Fitter([settings[place] for place in places]))
        condition = conditions[at]
        twin = conditions[twins[at]] if at in twins else None
        if twin is not None:
            condition = Condition((*twin.above, (LAYERS, True)), twin.least_layers)
        inputs = _fits(fitter, [one.inputs for one in seen])
        outputs = _fits(fitter, [one.outputs for one in seen])
        found.append(LawfulOperator(seen[0], condition, column.places, inputs, outputs))
    return tuple(found)


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
