"""Choices of one column a stage, enumerated depth first and pruned by sums over the stages.

A choice is built stage by stage in some order. Between two stages its state is the number of remaining layers and,
where columns have phases, the *border* (`phases.Borders`): the next column begins where this one ended. Remaining
layers and border are a *place*. The reachable places are numbered beforehand, with a table of the least that the stages
behind each of them add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline_solver.columns.phases import Borders
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, TreeParams
from taylor.pipeline_solver.tree.choice_kernels import (
    CHOICE,
    CLOSED,
    SPENT,
    least_of_classes,
    least_of_row,
    list_moves,
    number_places,
    tabulate,
    walk_choices,
)


class Matching(NamedTuple):
    """Properties by which columns must fit together.

    Parameters
    ----------
    layers : int64 [n]
        Their layers encoded as a number.
    goal : int
        Sum of these in a plan.
    borders : Borders
        Borders with the stages before and behind.
    late, early : int64 [n, kinds - 1]
        Place in the model of the first chunk with a kind after each, and of the last one with that kind or one before
        it: in a plan no chunk comes before one of an earlier kind.
    """

    layers: NDArray[np.int64]
    goal: int
    borders: Borders
    late: NDArray[np.int64]
    early: NDArray[np.int64]

    def take(self, members: NDArray[np.int64]) -> Matching:
        """Of some columns."""
        low, high = self.borders.low[members], self.borders.high[members]
        borders = self.borders._replace(low=low, high=high)
        return Matching(self.layers[members], self.goal, borders, self.late[members], self.early[members])


class Rows:
    """Bounds of plans of some columns: sums over their stages, one a row; further rows may join.

    Parameters
    ----------
    members : int64 [n]
        The columns, stage after stage.
    first : int64 [S + 1]
        First column of each stage among them.
    matching : Matching
        Properties by which a choice's columns must fit together, of all columns.
    values : float64 [rows]
        Constant of each row.
    params : TreeParams

    Attributes
    ----------
    costs : float64 [n, capacity]
        Term of each column in each row; zeros, which the maker of the rows replaces.
    newest : float64 [n]
        The same in the row that joined last: contiguous terms are read several times as fast.
    by_class : ByClass or None
        The last result of `classes`.
    """

    def __init__(
        self,
        members: NDArray[np.int64],
        first: NDArray[np.int64],
        matching: Matching,
        values: NDArray[np.float64],
        params: TreeParams = DEFAULT_PARAMS.tree,
    ) -> None:
        self.params = params
        self.members, self.first, self.matching = members, first, matching.take(members)
        self.stage = np.repeat(np.arange(len(first) - 1), np.diff(first))
        self.number = len(values)
        self.most = self.number + params.most_new_rows
        capacity = self.number + min(params.most_new_rows, params.spare_rows)
        self.costs, self.values = np.zeros((len(members), capacity)), np.zeros(capacity)
        self.values[: self.number] = values
        self.newest = np.zeros(0)
        self.by_class: ByClass | None = None

    def add(self, costs: NDArray[np.float64], value: float) -> bool:
        """Add a row, float64 [n]; False where there is no space for it."""
        p = self.number
        if p == len(self.values):
            capacity = min(2 * p, self.most)
            if capacity == p or capacity * len(self.members) > self.params.most_cells:
                return False
            self.costs, self.values = _wider(self.costs, capacity), _wider(self.values, capacity)
        self.costs[:, p], self.values[p], self.newest = costs, value, costs
        self.number += 1
        return True

    def classes(self, back: bool) -> ByClass:
        """The columns by class for enumerations from the first stage to the last, or back; kept for the next one."""
        if self.by_class is None or self.by_class.back != back:
            self.by_class = ByClass(self, back)
        return self.by_class


class Moves(NamedTuple):
    """The moves from each place: a class of columns, and the next place.

    Parameters
    ----------
    first : int64 [places + 1]
        First move of each place.
    of, behind : int32 [moves]
        The class, and the next place.
    """

    first: NDArray[np.int64]
    of: NDArray[np.int32]
    behind: NDArray[np.int32]


class Tables(NamedTuple):
    """What an enumeration reads.

    Parameters
    ----------
    costs : float64 [n, capacity]
        Of `Rows`.
    listed, begin, crowd, least
        Of `ByClass`.
    rest : float64 [places, capacity]
        Least sum of the stages behind each place in each row.
    first, of, behind
        Of `Moves`.
    late, early : int64 [n, kinds - 1]
        Of `Matching`.
    """

    costs: NDArray[np.float64]
    listed: NDArray[np.int64]
    begin: NDArray[np.int64]
    crowd: NDArray[np.int64]
    least: NDArray[np.float64]
    rest: NDArray[np.float64]
    first: NDArray[np.int64]
    of: NDArray[np.int32]
    behind: NDArray[np.int32]
    late: NDArray[np.int64]
    early: NDArray[np.int64]


class Depths(NamedTuple):
    """The choice up to each depth of an enumeration.

    Parameters
    ----------
    partial : float64 [S + 1, capacity]
        Its sums.
    place, at : int64 [S + 1]
        Its place, and the next move.
    inner : int64 [S + 1]
        The next member of the move's class in `listed`, -1 before the first.
    from_late, to_early : int64 [S + 1, kinds - 1]
        Its first late and last early chunk.
    """

    partial: NDArray[np.float64]
    place: NDArray[np.int64]
    at: NDArray[np.int64]
    inner: NDArray[np.int64]
    from_late: NDArray[np.int64]
    to_early: NDArray[np.int64]


class ByClass:
    """Columns by class: those of a stage with the same layers between the same borders are one class.

    Classes are numbered by stage and entry border.

    Parameters
    ----------
    rows : Rows
    back : bool
        Choices enter at the border behind a stage.

    Attributes
    ----------
    coming : int64 [S * borders + 1]
        First class of each stage and entry border.
    layers, leave : int64 [classes]
        Layers encoded as a number, in order for each of these, and the exit border of a choice.
    listed : int64 [n]
        The columns ordered by class.
    begin : int64 [classes + 1]
        First column of each class.
    crowd : int64 [classes]
        Number of each class of several columns; -1 for classes of one.
    least : float64 [crowds, capacity]
        Least term of the columns of each numbered class in each of the first `known` rows.
    """

    def __init__(self, rows: Rows, back: bool) -> None:
        self.rows, self.back = rows, back
        layers, borders = rows.matching.layers, rows.matching.borders
        enter, leave = (borders.high, borders.low) if back else (borders.low, borders.high)
        coming = rows.stage * borders.number + enter
        sizes = [int(of.max()) + 1 for of in (coming, layers, leave)]
        keys, of = np.unique(np.ravel_multi_index((coming, layers, leave), sizes), return_inverse=True)
        came, self.layers, self.leave = np.unravel_index(keys, sizes)
        self.coming = np.searchsorted(came, np.arange((len(rows.first) - 1) * borders.number + 1))
        of = of.reshape(-1)
        self.listed = np.argsort(of, kind="stable")
        self.begin = np.searchsorted(of[self.listed], np.arange(len(keys) + 1))
        self.known = 0
        several = np.diff(self.begin) > 1
        self.crowd = np.where(several, np.cumsum(several) - 1, -1)
        self.least = np.empty((int(several.sum()), 0))

    def catch_up(self) -> None:
        """Find the least terms of the new rows."""
        rows, known = self.rows, self.known
        if known == rows.number:
            return
        self.least = _wider(self.least, len(rows.values))
        if known == rows.number - 1 and len(rows.newest):
            least_of_row(rows.newest, self.listed, self.begin, self.crowd, known, self.least)
        else:
            least_of_classes(rows.costs, self.listed, self.begin, self.crowd, known, rows.number, self.least)
        self.known = rows.number


class ChoiceWalk:
    """One enumeration: its state in an order of the stages, and the least sums of the stages to come.

    A plan's first border is one of several, and the sums behind a border depend on where the plan must end. So an
    enumeration is a sequence of *parts*, one for each border at which it may begin.

    Parameters
    ----------
    order : int64 [S]
        Of the stages; with more than one border, from the first to the last or back.
    """

    def __init__(self, rows: Rows, order: NDArray[np.int64]) -> None:
        self.rows, self.order = rows, order
        matching, borders = rows.matching, rows.matching.borders
        S, K = len(order), matching.late.shape[1]
        self.borders = borders.number
        back = goes_back(borders, order)
        self.classes = rows.classes(back)
        ends = borders.ends[:, ::-1] if back else borders.ends
        self.parts = [
            (int(start), ends[ends[:, 0] == start, 1])
            for start in np.unique(ends[:, 0])
            if len(self._bucket(int(start)))
        ]
        self.part = -1
        self.known = 0
        self.rank = np.arange(rows.number)
        self.place, self.at = np.zeros(S + 1, dtype=np.int64), np.zeros(S + 1, dtype=np.int64)
        self.inner = np.full(S + 1, -1)
        self.from_late = np.full((S + 1, K), np.iinfo(np.int64).max)
        self.to_early = np.full((S + 1, K), -1, dtype=np.int64)
        self.chosen = np.zeros(S, dtype=np.int64)
        self.state = np.zeros(2, dtype=np.int64)
        self.other_steps = 0
        self.stuck = False
        self._begin_part()

    def _bucket(self, border: int) -> NDArray[np.int64]:
        """Columns of the first stage that enter at a border."""
        k = int(self.order[0]) * self.borders + border
        first, end = self.classes.begin[self.classes.coming[k : k + 2]]
        return self.classes.listed[first:end]

    def _begin_part(self) -> None:
        """Begin at the next border; `stuck` where its tables are too large."""
        self.part += 1
        if self.part == len(self.parts):
            return
        start, goals = self.parts[self.part]
        S, matching, classes = len(self.order), self.rows.matching, self.classes
        self.state[0], self.at[0], self.inner[0] = -1, 0, -1
        self.stuck = (S + 1) * (matching.goal + 1) * self.borders > self.rows.params.most_cells
        if self.stuck:
            return
        self.where = np.empty((S + 1, matching.goal + 1, self.borders), dtype=np.int32)
        steps = classes.coming, classes.layers, classes.leave, self.order
        places, moves = number_places(*steps, start, goals, self.where)
        rows = self.rows.number
        self.stuck = (
            places * len(self.rows.values) > self.rows.params.most_cells or moves * rows > self.rows.params.most_table
        )
        if self.stuck or not places:
            return
        self.moves = Moves(np.empty(places + 1, dtype=np.int64), *(np.empty(moves, dtype=np.int32) for _ in range(2)))
        list_moves(*steps, self.where, *self.moves)
        self.state[0] = 0
        self.rest, self.partial = np.empty((places, 0)), np.empty((S + 1, 0))
        self.known = 0
        self.catch_up()
        self.other_steps += moves * rows // self.rows.params.table_steps

    def catch_up(self) -> None:
        """Tabulate the new rows, and sum them up for the choice so far."""
        rows, classes, known = self.rows, self.classes, self.known
        if known == rows.number:
            return
        capacity = len(rows.values)
        self.rest, self.partial = _wider(self.rest, capacity), _wider(self.partial, capacity)
        classes.catch_up()
        new = slice(known, rows.number)
        of_classes = classes.listed, classes.begin, classes.crowd, classes.least
        tabulate(rows.costs, *of_classes, known, rows.number, *self.moves, self.rest)
        self.partial[0, new] = rows.values[new]
        for k, j in enumerate(self.chosen[:-1]):
            self.partial[k + 1, new] = self.partial[k, new] + rows.costs[j, new]
        # The new ones are tested first.
        self.rank = np.concatenate([np.arange(len(self.rank), rows.number), self.rank])
        self.known = rows.number

    def tables(self) -> Tables:
        """The tables of the present part."""
        rows, classes = self.rows, self.classes
        of_classes = classes.listed, classes.begin, classes.crowd, classes.least
        return Tables(rows.costs, *of_classes, self.rest, *self.moves, rows.matching.late, rows.matching.early)

    @property
    def sampled(self) -> bool:
        """Return whether samples can estimate its length: it has one part, with its tables ready."""
        return len(self.parts) == 1 and not self.stuck and self.state[0] >= 0

    @property
    def steps(self) -> int:
        """Columns visited, and the time of tables and event-graph evaluations as columns."""
        return int(self.state[1]) + self.other_steps

    def go_on(self, until: int, cutoff: float) -> int:
        """Visit columns until `until` steps are taken, all are visited, or a choice is complete."""
        while self.part < len(self.parts) and not self.stuck:
            if self.state[0] < 0:
                self._begin_part()
                continue
            self.catch_up()
            depths = Depths(self.partial, self.place, self.at, self.inner, self.from_late, self.to_early)
            most = until - self.other_steps
            end: int = walk_choices(
                self.tables(), self.known, cutoff, most, depths, self.rank, self.chosen, self.state
            )  # fmt: skip
            if end == CHOICE:
                self.other_steps += self.rows.params.choice_steps
            if end != CLOSED:
                return end
        return SPENT if self.stuck else CLOSED

    def choice(self) -> NDArray[np.int64]:
        """The current choice: a column for each stage, int64 [S]."""
        found = np.empty(len(self.order), dtype=np.int64)
        found[self.order] = self.rows.members[self.chosen]
        return found

    def done(self) -> float:
        """Fraction of all choices that is visited or ruled out, counted by places alone."""
        share = 0.0
        for k in range(int(self.state[0]), -1, -1):
            taken, count = self._taken(k)
            share = (max(0, taken - 1) + share) / count
        sizes = [len(self._bucket(start)) for start, _ in self.parts]
        return (sum(sizes[: self.part]) + share * sizes[self.part]) / sum(sizes)

    def _taken(self, k: int) -> tuple[int, int]:
        """Number of columns visited at a depth, the current one included, and of all there."""
        first = self.moves.first[self.place[k] : self.place[k] + 2]
        sizes = np.diff(self.classes.begin)[self.moves.of[first[0] : first[1]]]
        within = 0
        if self.inner[k] >= 0:
            within = int(self.inner[k] - self.classes.begin[self.moves.of[self.at[k]]])
        return int(sizes[: self.at[k] - first[0]].sum()) + within, int(sizes.sum())

    def finished(self) -> NDArray[np.int64]:
        """Columns of the first stage below which the search is complete."""
        listed, begin = self.classes.listed, self.classes.begin
        parts = [self._bucket(start) for start, _ in self.parts[: self.part]]
        if self.part < len(self.parts) and self.state[0] >= 0:
            of = self.moves.of[: self.moves.first[1]]
            within = [listed[begin[c] : begin[c + 1]] for c in of[: self.at[0] + 1]]
            parts.append(np.concatenate([*within, listed[:0]])[: max(0, self._taken(0)[0] - 1)])
        finished: NDArray[np.int64] = self.rows.members[np.concatenate([*parts, listed[:0]])]
        return finished


def goes_back(borders: Borders, order: NDArray[np.int64]) -> bool:
    """Return whether choices enter at the border behind a stage: they go from the last stage to the first one."""
    return borders.number > 1 and bool(order[0] > order[-1])


def _wider(table: NDArray[np.float64], capacity: int) -> NDArray[np.float64]:
    """A table with `capacity` entries in its last dimension, new ones uninitialized; itself where it has them."""
    here = table.shape[-1]
    if here >= capacity:
        return table
    wide = np.empty((*table.shape[:-1], capacity))
    wide[..., :here] = table
    return wide
