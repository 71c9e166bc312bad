"""Choices of one column a stage, enumerated depth first and pruned by sums over the stages: the compiled part.

A choice is built stage by stage in some order. Between two stages its state is the number of remaining layers and,
where columns have phases, the *border* (`phases.Borders`): the next column begins where this one ended. Remaining
layers and border are a *place*. The reachable places are numbered beforehand, with a table of the least that the stages
behind each of them add.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part
from taylor.pipeline_solver.columns.phases import Borders
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, TreeParams

SOONEST, BLOCK = 24, 64
"""Rows that are tested first, those that pruned last, and size of the blocks in which all are then tested."""

CLOSED, SPENT, CHOICE = range(3)


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
    costs : float64 [n, room]
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
    costs : float64 [n, room]
        Of `Rows`.
    listed, begin, crowd, least
        Of `ByClass`.
    rest : float64 [places, room]
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
    partial : float64 [S + 1, room]
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
    least : float64 [crowds, room]
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
    """A table with `room` entries in its last dimension, new ones uninitialized; itself where it has them."""
    here = table.shape[-1]
    if here >= capacity:
        return table
    wide = np.empty((*table.shape[:-1], capacity))
    wide[..., :here] = table
    return wide


@compiled
def number_places(coming, layers, leave, order, start, goals, where):  # type: ignore[no-untyped-def]
    """Number the places that choices from border `start` to one of `goals` can pass; return how many, and their moves.

    `coming` int64 [S * borders + 1], `layers` and `leave` int64 [classes] are those of `ByClass`, `order` int64 [S];
    written to `where` int32 [S + 1, goal + 1, borders], by the stages chosen, the remaining layers and the border: -1
    for no place.
    """
    S, goal, borders = len(order), where.shape[1] - 1, where.shape[2]
    where[:] = -1
    where[0, goal, start] = 0
    for k in range(S):
        mark_behind(coming, layers, leave, order[k], where[k], where[k + 1])
    ends = np.zeros(where.shape, dtype=np.bool_)
    for g in goals:
        ends[S, 0, g] = where[S, 0, g] >= 0
    moves = 0
    for k in range(S - 1, -1, -1):
        moves += mark_ending(coming, layers, leave, order[k], where[k], ends[k], ends[k + 1])
    places = 0
    for k in range(S + 1):
        for left in range(goal + 1):
            for border in range(borders):
                where[k, left, border] = places if ends[k, left, border] else -1
                places += ends[k, left, border]
    return places, moves


@kernel_part
def mark_behind(coming, layers, leave, stage, where, behind):  # type: ignore[no-untyped-def]
    """Mark the places that a column of a stage leads to, in `behind` int32 [goal + 1, borders], with 0."""
    borders = where.shape[1]
    for left in range(where.shape[0]):
        for border in range(borders):
            if where[left, border] < 0:
                continue
            c, end = coming[stage * borders + border], coming[stage * borders + border + 1]
            while c < end and layers[c] <= left:  # they are sorted by their layers
                behind[left - layers[c], leave[c]] = 0
                c += 1


@kernel_part
def mark_ending(coming, layers, leave, stage, where, ends, behind):  # type: ignore[no-untyped-def]
    """Mark in `ends` bool [goal + 1, borders] the places with a move to one of `behind`; return the number of moves."""
    borders, moves = where.shape[1], 0
    for left in range(where.shape[0]):
        for border in range(borders):
            if where[left, border] < 0:
                continue
            c, end = coming[stage * borders + border], coming[stage * borders + border + 1]
            while c < end and layers[c] <= left:
                if behind[left - layers[c], leave[c]]:
                    ends[left, border] = True
                    moves += 1
                c += 1
    return moves


@compiled
def list_moves(coming, layers, leave, order, where, begin, of, behind):  # type: ignore[no-untyped-def]
    """List the moves between the places that `number_places` has numbered, by place and then by class.

    Written to `begin`, `of` and `behind`, those of `Moves`.
    """
    borders, passed, listed = where.shape[2], 0, 0
    for k in range(len(order)):
        for left in range(where.shape[1]):
            for border in range(borders):
                if where[k, left, border] < 0:
                    continue
                begin[passed] = listed
                passed += 1
                c, end = coming[order[k] * borders + border], coming[order[k] * borders + border + 1]
                while c < end and layers[c] <= left:
                    there = where[k + 1, left - layers[c], leave[c]]
                    if there >= 0:
                        of[listed], behind[listed] = c, there
                        listed += 1
                    c += 1
    begin[passed:] = listed  # behind the last stage


@compiled
def least_of_classes(costs, listed, begin, crowd, low, high, least):  # type: ignore[no-untyped-def]
    """Least term of each numbered class's columns in rows low ... high - 1, written to `least` float64 [crowds, room].

    `costs` float64 [members, room] are the columns' under each row; `listed`, `begin` and `crowd` as in `ByClass`.
    """
    for c in range(len(begin) - 1):
        if crowd[c] < 0:
            continue
        own, column = least[crowd[c]], costs[listed[begin[c]]]
        for p in range(low, high):
            own[p] = column[p]
        for q in range(begin[c] + 1, begin[c + 1]):
            column = costs[listed[q]]
            for p in range(low, high):  # written so that a processor compares several at a time
                own[p] = column[p] if column[p] < own[p] else own[p]


@compiled
def least_of_row(costs, listed, begin, crowd, row, least):  # type: ignore[no-untyped-def]
    """`least_of_classes` of one row, whose `costs` are float64 [members]."""
    for c in range(len(begin) - 1):
        if crowd[c] < 0:
            continue
        lowest = np.inf
        for q in range(begin[c], begin[c + 1]):
            lowest = min(lowest, costs[listed[q]])
        least[crowd[c], row] = lowest


@compiled
def fill_costs(prices, durations, first, counts, costs):  # type: ignore[no-untyped-def]
    """Terms of columns in dual-value rows, then in paths, written to the first rows of `costs` float64 [members, room].

    `prices` float64 [prices, members] are the former, `durations` and `first` as in `path_costs`, `counts` float64 [S,
    blocks, paths] the passes of each path through each of a stage's blocks. Column by column: a GEMM of whole matrices
    takes as much memory again, and its threads slow other processes.
    """
    low = len(prices)
    for s in range(len(counts)):
        for i in range(first[s], first[s + 1]):
            own = costs[i]
            for p in range(low):
                own[p] = prices[p, i]
            for p in range(counts.shape[2]):
                own[low + p] = 0.0
            for b in range(counts.shape[1]):
                duration, passes = durations[i, b], counts[s, b]
                for p in range(len(passes)):
                    own[low + p] += duration * passes[p]


@compiled
def path_costs(durations, first, counts):  # type: ignore[no-untyped-def]
    """Terms of columns in a path, float64 [members].

    `durations` float64 [members, blocks] are theirs, `first` int64 [S + 1] is the first column of each stage, `counts`
    float64 [S, blocks] the passes of the path through each block.
    """
    costs = np.empty(len(durations))
    for s in range(len(counts)):
        for i in range(first[s], first[s + 1]):
            total = 0.0
            for b in range(counts.shape[1]):
                total += durations[i, b] * counts[s, b]
            costs[i] = total
    return costs


@compiled
def tabulate(  # type: ignore[no-untyped-def]
    costs, listed, begin, crowd, least, low, high, first, of, behind, rest
):  # fmt: skip
    """Tabulate the least sum of the stages behind each place in rows low ... high - 1.

    `costs` float64 [members, room] are the columns' under each row, `listed`, `begin`, `crowd` and `least` those of
    `ByClass`, `first`, `of` and `behind` those of `Moves`; written to `rest` float64 [places, room].
    """
    for here in range(len(first) - 2, -1, -1):  # the places behind a place have higher numbers
        last = first[here] == first[here + 1]
        for p in range(low, high):
            rest[here, p] = 0.0 if last else np.inf
        for move in range(first[here], first[here + 1]):
            c, there = of[move], behind[move]
            own = costs[listed[begin[c]]] if crowd[c] < 0 else least[crowd[c]]
            for p in range(low, high):
                rest[here, p] = min(rest[here, p], own[p] + rest[there, p])


@kernel_part
def prunes(partial, costs, rest, rows, cutoff, rank):  # type: ignore[no-untyped-def]
    """Return whether a row of three sums, float64 [room] each, reaches `cutoff`; the first `rows` rows count.

    `rank` int64 [rows] is the order in which rows are tested: those that have pruned come sooner.
    """
    for q in range(min(SOONEST, rows)):
        p = rank[q]
        if partial[p] + costs[p] + rest[p] >= cutoff:
            rank[q], rank[q // 2] = rank[q // 2], p
            return True
    # Then all in memory order, block by block, so that a processor adds several at a time.
    for first in range(0, rows, BLOCK):
        end = min(first + BLOCK, rows)
        above = 0
        for p in range(first, end):
            above += partial[p] + costs[p] + rest[p] >= cutoff
        if above > 0:
            p = first
            while partial[p] + costs[p] + rest[p] < cutoff:
                p += 1
            q = SOONEST
            while rank[q] != p:
                q += 1
            sooner = min(q // 2, SOONEST - 1)
            rank[q], rank[sooner] = rank[sooner], p
            return True
    return False


@kernel_part
def in_order(from_late, late, to_early, early):  # type: ignore[no-untyped-def]
    """Return whether a column keeps the kinds in order after those chosen; all int64 [kinds - 1], as in
    `walk_choices`."""
    ordered = True
    for j in range(len(late)):
        ordered &= min(from_late[j], late[j]) >= max(to_early[j], early[j])
    return ordered


@compiled
def walk_choices(tables, rows, cutoff, most_steps, depths, rank, chosen, state):  # type: ignore[no-untyped-def]
    """Resume a depth-first enumeration: 0 at its end, 1 after `most_steps`, 2 with a complete choice in `chosen`.

    The first `rows` rows of the `Tables` count. `depths` are `Depths`, `rank` int64 [rows] is the order in which rows
    are tested, `state` int64 [2] the depth, -1 at the end, and the classes and members visited.
    """
    costs, listed, begin, crowd, least, rest, first, of, behind, late, early = tables
    partial, place, at, inner, from_late, to_early = depths
    S, K = len(chosen), late.shape[1]
    k, steps = state
    while k >= 0:
        if at[k] >= first[place[k] + 1]:
            k -= 1
            continue
        if steps >= most_steps:
            state[0], state[1] = k, steps
            return 1
        steps += 1
        c, there = of[at[k]], behind[at[k]]
        if inner[k] < 0:
            if crowd[c] >= 0 and prunes(partial[k], least[crowd[c]], rest[there], rows, cutoff, rank):
                at[k] += 1
                continue
            inner[k] = begin[c]
        i = listed[inner[k]]
        inner[k] += 1
        if inner[k] == begin[c + 1]:
            at[k] += 1
            inner[k] = -1
        if not in_order(from_late[k], late[i], to_early[k], early[i]):
            continue
        if prunes(partial[k], costs[i], rest[there], rows, cutoff, rank):
            continue
        chosen[k] = i
        if k == S - 1:
            state[0], state[1] = k, steps
            return 2
        for p in range(rows):
            partial[k + 1, p] = partial[k, p] + costs[i, p]
        for j in range(K):
            from_late[k + 1, j] = min(from_late[k, j], late[i, j])
            to_early[k + 1, j] = max(to_early[k, j], early[i, j])
        k += 1
        place[k], at[k], inner[k] = there, first[there], -1
    state[0], state[1] = k, steps
    return 0
