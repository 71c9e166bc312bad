"""One outer choice as arrays: costs of a layer on every stage, memory of a stage, costs of changes of layout."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.measured.cost_table import CostProvider, CostRow, CostSetting, EndCost, Layout
from taylor.cost_model.measured.galvatron.step import gather_buffer_mib
from taylor.cost_model.measured.layer_strategy import LayerStrategy
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import Schedule

Array = NDArray[np.float64]
TOLERANCE_MIB = 1e-6


@dataclass(frozen=True)
class FixedProblem:
    """Layers of K kinds to spread over S stages x V virtual stages, each under one of C choices of its kind.

    Parameters
    ----------
    schedule : Schedule
    by_kind : tuple of int [K]
        Layers of each kind, in model order.
    kind : int64 [C]
        Kind of the layers that each choice is for.
    strategies : tuple of LayerStrategy [C]
    forward, backward, tail, working : float64 [C]
        Of a layer, s and MiB.
    layout : int64 [C]
        Number of each choice's layout.
    memory : tuple of float64 [P, V, C], one a stage
        Memory of a layer in a chunk at each of the stage's worst moments, MiB.
    free : tuple of float64 [P], one a stage
        Memory for layers, their working memory included, at these moments, MiB.
    end_forward, end_backward : float64 [V · S]
        Of embedding and head in every chunk, in model order, s.
    end_tail : float64 [S]
    change : float64 [Y, Y]
        Time of a change of layout, both directions together, s.
    handover : float64 [Y]
        Transfer between stages in a layout, s.
    end_layout : int
        Layout of embedding and head.
    """

    schedule: Schedule
    by_kind: tuple[int, ...]
    kind: NDArray[np.int64]
    strategies: tuple[LayerStrategy, ...]
    forward: Array
    backward: Array
    tail: Array
    working: Array
    layout: NDArray[np.int64]
    memory: tuple[Array, ...]
    free: tuple[Array, ...]
    end_forward: Array
    end_backward: Array
    end_tail: Array
    change: Array
    handover: Array
    end_layout: int

    @property
    def layers(self) -> int:
        """Layers of all kinds."""
        return sum(self.by_kind)

    def layers_by_kind(self, counts: NDArray[np.int16]) -> NDArray[np.int64]:
        """Layers by chunk and kind, int64 [n, V, K], of counts [n, V, C]."""
        parts = [counts[:, :, self.kind == k].sum(axis=2, dtype=np.int64) for k in range(len(self.by_kind))]
        return np.stack(parts, axis=2)

    def fits(self, stage: int, counts: NDArray[np.int16]) -> bool:
        """Return whether a stage's layers, counts [V, C], fit at every worst moment."""
        working = float(self.working[counts.any(axis=0)].max())
        used = np.tensordot(self.memory[stage], counts, axes=([1, 2], [0, 1]))
        return bool((used + working <= self.free[stage]).all())

    def segments(self, choices: Iterable[int]) -> tuple[list[int], ...]:
        """The layouts of some choices by kind, in model order; kinds that have none are left out."""
        found: dict[int, set[int]] = {}
        for c in choices:
            found.setdefault(int(self.kind[c]), set()).add(int(self.layout[c]))
        return tuple(sorted(found[k]) for k in sorted(found))

    @property
    def stages(self) -> int:
        """S."""
        return self.schedule.stages

    @property
    def interleaves(self) -> int:
        """V."""
        return self.schedule.interleaves

    @property
    def chunks(self) -> int:
        """V · S."""
        return self.schedule.chunks

    @classmethod
    def of(
        cls,
        job: LayerwiseJob,
        outer: OuterChoice,
        provider: CostProvider,
        strategies: Sequence[LayerStrategy] | Mapping[str, Sequence[LayerStrategy]],
    ) -> FixedProblem:
        """Price a job under one outer choice.

        Parameters
        ----------
        strategies : sequence of LayerStrategy, or mapping of kind to such
            The choices, of all kinds or of each; those that cannot share out a micro-batch, or whose TP degree is
            above the buffer's, are left out.

        Raises
        ------
        InputError
            When a cost is missing.
        ValueError
            When the schedule cannot run with these numbers.
        """
        setting = job.setting(outer)
        schedule = build_schedule(outer.schedule, outer.stages, outer.interleaves, outer.micro_batches)
        most_tp = job.world if outer.buffer_tp is None else outer.buffer_tp
        no_buffer = job.global_buffer and outer.buffer_tp is None
        names = [name for name, _ in job.stack]
        chosen = [
            (k, each)
            for k, name in enumerate(names)
            for each in (strategies[name] if isinstance(strategies, Mapping) else strategies)
            if setting.micro_batch % each.dp == 0 and each.tp <= (1 if no_buffer else most_tp)
        ]
        rows = [provider.layer(names[k], each, setting) for k, each in chosen]
        ends = provider.ends(outer.ends, setting)
        end_costs: list[EndCost | None] = [None] * schedule.chunks
        end_costs[0] = ends.first
        if ends.last is not None:
            end_costs[-1] = ends.last
        tails = np.zeros(outer.stages)
        for position, each in enumerate(end_costs):
            if each is not None:
                tails[schedule.chunk_at(position)[1]] += each.tail_s
        memory, free = _memory(job, outer, provider, setting, schedule, rows, end_costs)
        change, handover, numbers = _layouts(rows, Layout.of(outer.ends, job.sequence_parallel), provider, setting)
        return cls(
            schedule,
            tuple(count for _, count in job.stack),
            np.array([k for k, _ in chosen], dtype=np.int64),
            tuple(each for _, each in chosen),
            np.array([row.forward_s for row in rows]),
            np.array([row.backward_s for row in rows]),
            np.array([row.tail_s for row in rows]),
            np.array([row.working_mib for row in rows]),
            np.array(numbers[1:], dtype=np.int64),
            memory,
            free,
            np.array([0.0 if each is None else each.forward_s for each in end_costs]),
            np.array([0.0 if each is None else each.backward_s for each in end_costs]),
            tails,
            change,
            handover,
            numbers[0],
        )


def _memory(
    job: LayerwiseJob, outer: OuterChoice, provider: CostProvider, setting: CostSetting, schedule: Schedule,
    rows: Sequence[CostRow], end_costs: Sequence[EndCost | None],
) -> tuple[tuple[Array, ...], tuple[Array, ...]]:  # fmt: skip
    """Memory of a layer, and the free memory for layers, at every stage's worst moments."""
    whole = np.ceil if job.whole_mib else np.asarray
    buffer = 0.0
    if outer.buffer_tp is not None and job.global_buffer:
        buffer = gather_buffer_mib(setting, job.ranks(outer), outer.buffer_tp)
        buffer = float(int(buffer)) if job.whole_mib else buffer
    states = np.array([row.states_mib for row in rows])
    activation = np.array([row.activation_mib for row in rows])
    usable = provider.memory.usable_mib(job.limit_mib)
    memory, free = [], []
    for stage, alive in enumerate(alive_vectors(schedule)):
        memory.append(whole(states + alive[:, :, None] * activation))
        ends = np.full(len(alive), provider.memory.context_mib)
        for v in range(outer.interleaves):
            end = end_costs[schedule.position(v, stage)]
            if end is not None:
                ends += end.states_mib + alive[:, v] * end.activation_mib
        free.append(usable - whole(ends) - buffer + TOLERANCE_MIB)
    return tuple(memory), tuple(free)


def _layouts(
    rows: Sequence[CostRow], end: Layout, provider: CostProvider, setting: CostSetting
) -> tuple[Array, Array, list[int]]:
    """Changes and transfers by layout; the numbers of the ends' layout and of every row's.

    Layouts that cost nothing to change and as much to hand over as any other are one.
    """
    every = sorted({end, *(row.layout for row in rows)})
    change = np.array(
        [[0.0 if a == b else provider.layout_change_s(a, b, setting) for b in every] for a in every], dtype=float
    )
    handover = np.array([provider.handover_s(each, setting) for each in every])
    if not change.any() and len(set(handover.tolist())) == 1:
        return change[:1, :1], handover[:1], [0] * (len(rows) + 1)
    return change, handover, [every.index(end), *(every.index(row.layout) for row in rows)]


def least_path(change: Array, arrival: int, used: Sequence[int], last: int) -> tuple[float, tuple[int, ...]]:
    """The cheapest order of some layouts behind an arriving one, with a given one last: its cost and the order."""
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    others = [each for each in used if each != last]

    def extend(at: int, left: list[int], cost: float, path: tuple[int, ...]) -> None:
        nonlocal best
        if not left:
            total = cost + float(change[at, last])
            if total < best[0]:
                best = total, (*path, last)
            return
        for each in left:
            extend(each, [x for x in left if x != each], cost + float(change[at, each]), (*path, each))

    extend(arrival, others, 0.0, ())
    return best


def least_order(
    change: Array, arrival: int, segments: Sequence[Sequence[int]], last: int
) -> tuple[float, tuple[tuple[int, int], ...]]:
    """The same of layouts by kind: kinds follow each other, each with its layouts in the cheapest order.

    Returns
    -------
    float, tuple of (int, int)
        The cost, and segment and layout in order; the last segment ends in `last`.
    """
    ways: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {arrival: (0.0, ())}
    for number, layouts in enumerate(segments):
        ends = [last] if number == len(segments) - 1 else layouts
        after: dict[int, tuple[float, tuple[tuple[int, int], ...]]] = {}
        for end in ends:
            for before, (cost, order) in ways.items():
                more, path = least_path(change, before, layouts, end)
                if end not in after or cost + more < after[end][0]:
                    after[end] = cost + more, (*order, *((number, each) for each in path))
        ways = after
    return ways[last]
