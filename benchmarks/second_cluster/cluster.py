"""A hidden network on a hidden machine: bytes, times and steps of any job, from what its program records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.second_cluster.machine import Clock, Machine, Task, group_ranks, hidden_machine, tasks_of
from benchmarks.second_cluster.network import Design, hidden_design
from benchmarks.second_cluster.program import (
    Alloc,
    Backward,
    Event,
    Exchange,
    Free,
    Kernel,
    Rank,
    Shape,
    Tensor,
    backward_of,
)
from taylor.parsers.small_run import RunSetting

MOST_GAPS = 0.01
"""Most of a peak that an allocator loses to gaps, as a fraction."""
LATE = 2
"""Most allocations by which memory that another stream used is given back late."""
Again = bool | str
"""Whether a block runs again in its backward pass, or which of its modules do: ``mlp+core_attn``."""
Stage = tuple[tuple[str, Again], ...]


class Passes:
    """One micro-batch through the blocks of a stage, forward and then backward."""

    def __init__(self, design: Design, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> None:
        self.rank, self.stage, self.ends = Rank(run), stage, ends
        self.programs = {"embedding": design.embedding, "layer": design.layer, "dense": design.dense_layer}
        self.programs["head"] = design.head
        self.rows = (run.seq * run.mbs // run.cp // run.tp, design.width)
        self.kept: list[tuple[Tensor, list[Backward]]] = []
        self.marks: list[tuple[str, bool, int]] = []
        """(block, backward, number of its first event)."""

    def forward(self) -> None:
        """Run the blocks; those that run again later keep their input alone."""
        rank = self.rank
        x = rank.empty((1,), "INT64") if self.ends[0] else rank.empty(self.rows)
        for name, again in self.stage:
            self.marks.append((name, False, len(rank.events)))
            rank.tape = None if again is True else []
            rank.modules = frozenset(again.split("+")) if isinstance(again, str) else frozenset()
            out = self.programs[name](rank, x)
            self.kept.append((x, rank.tape or []))
            rank.tape, rank.modules = None, frozenset()
            x = out
            del out

    def backward(self) -> None:
        """Run them backwards."""
        rank = self.rank
        gradient = rank.empty((1,)) if self.ends[1] else rank.empty(self.rows)
        for name, again in reversed(self.stage):
            self.marks.append((name, True, len(rank.events)))
            x, tape = self.kept.pop()
            if again is True:
                rank.tape = tape = []
                self.programs[name](rank, x)
                rank.tape = None
            gradient = backward_of(rank, tape, gradient)
            del x, tape


@dataclass(frozen=True)
class SecondCluster:
    """A hidden network on a hidden machine.

    Parameters
    ----------
    start_bytes : (float, float)
        Bytes kept an element before a step, whole and sharded.
    update : (float, float)
        ns of the optimizer's step, fixed and an element of a shard.
    slow_node : float
        Fraction by which the other node of small runs is slower.
    """

    seed: int
    job: RunSetting
    batch: int
    design: Design
    machine: Machine
    start_bytes: tuple[float, float]
    rest: int
    update: tuple[float, float]
    hidden_reduction: bool
    slow_node: float

    def __hash__(self) -> int:
        return self.seed

    def kernels(self, block: str, run: RunSetting, backward: bool) -> list[tuple[str, list[Shape]]]:
        """Kinds of operators of one pass, and their shapes with the output last."""
        events = _record(self, block, _alone(run), backward)
        return [(one.kind, [*one.inputs, one.output]) for one in events if isinstance(one, Kernel)]

    def pass_ns(self, block: str, run: RunSetting, backward: bool, again: Again = False) -> float:
        """Time of one pass of a block among others like it, without noise."""
        forward = _pass_ns(self, block, _alone(run), False)
        if isinstance(again, str):
            return _pass_ns(self, block, _alone(run), backward, again)
        return (_pass_ns(self, block, _alone(run), True) + forward * again) if backward else forward

    def hand_over_bytes(self, run: RunSetting) -> int:
        """Data sent from stage to stage."""
        return 2 * self.design.width * run.seq * run.mbs // (run.cp * run.tp)

    def elements(self, run: RunSetting, stage: Stage) -> tuple[int, int]:
        """Of dense parameters and of experts', on a rank of a stage."""
        dense = expert = 0
        for block, _ in stage:
            for name, size in self.design.parameters(block, run).items():
                if ".experts." in name:
                    expert += size
                else:
                    dense += size
        return dense, expert

    def start(self, run: RunSetting, stage: Stage) -> int:
        """Bytes that a rank holds before a step."""
        dense, expert = self.elements(run, stage)
        whole, sharded = self.start_bytes
        shards = dense / group_ranks("dp", run)[0] + expert / group_ranks("edp", run)[0]
        return self.rest + round(whole * (dense + expert) + sharded * shards)

    def passes_bytes(self, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
        """(bytes kept between both passes of a micro-batch, most in them) beside those kept before."""
        return _passes_bytes(self, _alone(run), stage, ends)

    def peak(self, run: RunSetting, stage: Stage, in_flight: int, ends: tuple[bool, bool] = (True, True)) -> int:
        """The most bytes that a rank of a stage holds in a step, gaps of the allocator included."""
        kept, most = self.passes_bytes(run, stage, ends)
        return self._with_gaps(run, self.start(run, stage) + (in_flight - 1) * kept + most, f"{len(stage)} {in_flight}")

    def peak_of_chunks(self, run: RunSetting, chunks: Sequence[Stage], at: int, micro: int) -> int:
        """The same of the stage at a place under the order of tasks of its chunks."""
        alive = most = 0
        each = [
            self.passes_bytes(run, chunk, (at == number == 0, at == run.pp - 1 and number == run.vpp - 1))
            for number, chunk in enumerate(chunks)
        ]
        for backward, chunk, _ in order_of(at, run, micro):
            kept, peak = each[chunk]
            alive -= kept * backward
            most = max(most, alive + peak)
            alive += kept * (not backward)
        start = self.start(run, tuple(block for chunk in chunks for block in chunk))
        return self._with_gaps(run, start + most, f"chunks {at} {micro}")

    def _with_gaps(self, run: RunSetting, size: float, what: str) -> int:
        return round(size * (1 + random.Random(f"{self.seed} {run} {what}").uniform(0, MOST_GAPS)))

    def exchange_ns(self, kind: str, group: str, buffer: int, run: RunSetting) -> float:
        """Time of a collective."""
        return self.machine.exchange_ns(kind, group, buffer, run)

    def stage_ns(self, run: RunSetting, stage: Stage) -> tuple[float, float]:
        """Forward and backward pass of a stage, among others of its kind."""
        return _stage_ns(self, _alone(run), stage)

    def tail_ns(self, run: RunSetting, stage: Stage) -> float:
        """Gradients summed, weights updated and gathered."""
        dense, expert = self.elements(run, stage)
        reduce = gather = 0.0
        for group, count in (("dp", dense), ("edp", expert)):
            if group_ranks(group, run)[0] > 1 and count:
                reduce += self.exchange_ns("reduceScatter", group, 4 * count, run)
                gather += self.exchange_ns("allGather", group, 2 * count, run)
        if self.hidden_reduction:
            reduce = max(0.0, reduce - self.stage_ns(run, stage)[1])
        shards = dense / group_ranks("dp", run)[0] + expert / group_ranks("edp", run)[0]
        return reduce + gather + self.update[0] + self.update[1] * shards

    def step_ns(self, run: RunSetting, stages: Sequence[Sequence[Stage]]) -> float:
        """A step of a plan, task after task, without noise; every stage as its chunks."""
        micro = self.batch // (run.dp * run.mbs)
        lag = self.exchange_ns("send", "pp", self.hand_over_bytes(run), run) if run.pp > 1 else 0.0
        lasts = [[self.stage_ns(run, chunk) for chunk in chunks] for chunks in stages]
        done: dict[tuple[bool, int, int], float] = {}
        left = [iter(order_of(at, run, micro)) for at in range(run.pp)]
        next_one = [next(one, None) for one in left]
        free = [0.0] * run.pp
        while any(one is not None for one in next_one):
            for at in range(run.pp):
                while (task := next_one[at]) is not None:
                    backward, chunk, batch = task
                    place = chunk * run.pp + at
                    source = (backward, place + 1, batch) if backward else (backward, place - 1, batch)
                    begin = 0.0
                    if 0 <= source[1] < run.pp * run.vpp:
                        if source not in done:
                            break
                        begin = done[source] + lag
                    free[at] = max(free[at], begin) + lasts[at][chunk][backward]
                    done[backward, place, batch] = free[at]
                    next_one[at] = next(left[at], None)
        whole = [tuple(block for chunk in chunks for block in chunk) for chunks in stages]
        return max(end + self.tail_ns(run, stage) for end, stage in zip(free, whole, strict=True))


def order_of(at: int, run: RunSetting, micro: int) -> list[tuple[bool, int, int]]:
    """(backward, chunk, micro-batch) of what a stage runs: 1F1B, with chunks in rounds of a micro-batch a stage."""
    count = micro * run.vpp
    rounds = run.pp * run.vpp

    def forward(number: int) -> tuple[bool, int, int]:
        if run.vpp == 1:
            return False, 0, number
        return False, number % rounds // run.pp, number // rounds * run.pp + number % run.pp

    def backward(number: int) -> tuple[bool, int, int]:
        _, chunk, batch = forward(number)
        return True, run.vpp - 1 - chunk, batch

    after = run.pp - 1 - at
    warm = min(count, after if run.vpp == 1 else 2 * after + (run.vpp - 1) * run.pp)
    order = [forward(number) for number in range(warm)]
    for number in range(warm, count):
        order += [forward(number), backward(number - warm)]
    return [*order, *(backward(number) for number in range(count - warm, count))]


def _alone(run: RunSetting) -> RunSetting:
    """What a rank runs depends on neither the ranks beside it nor the layers."""
    return replace(run, layers=1, pp=1, dp=1, vpp=1, dense=0)


@lru_cache(maxsize=20_000)
def _record(
    cluster: SecondCluster, block: str, run: RunSetting, backward: bool, modules: str = ""
) -> tuple[Event, ...]:
    ends = (block == "embedding", block == "head")
    passes = Passes(cluster.design, run, ((block, modules or False),), ends)
    passes.forward()
    begin = len(passes.rank.events)
    if not backward:
        return tuple(passes.rank.events)
    passes.backward()
    return tuple(passes.rank.events[begin:])


@lru_cache(maxsize=100_000)
def _pass_ns(cluster: SecondCluster, block: str, run: RunSetting, backward: bool, modules: str = "") -> float:
    tasks = _tasks(cluster, block, run, backward, modules)
    once = Clock(cluster.machine, run).play(tasks)
    return Clock(cluster.machine, run).play([*tasks, *tasks]) - once


@lru_cache(maxsize=20_000)
def _tasks(cluster: SecondCluster, block: str, run: RunSetting, backward: bool, modules: str = "") -> tuple[Task, ...]:
    return tasks_of(cluster.machine, run, _record(cluster, block, run, backward, modules))


@lru_cache(maxsize=10_000)
def _stage_ns(cluster: SecondCluster, run: RunSetting, stage: Stage) -> tuple[float, float]:
    forward = [task for name, _ in stage for task in _tasks(cluster, name, run, False)]
    backward = [
        task
        for name, again in reversed(stage)
        for passes in ((False, True) if again is True else (True,))
        for task in _tasks(cluster, name, run, passes, again if isinstance(again, str) else "")
    ]
    # One clock through the whole stage: the host runs ahead of the card from block to block, and from pass to pass.
    clock = Clock(cluster.machine, run)
    ends = [clock.play(tasks) for tasks in (forward, backward, forward, backward)]
    return ends[2] - ends[1], ends[3] - ends[2]


@lru_cache(maxsize=100_000)
def _passes_bytes(cluster: SecondCluster, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
    passes = Passes(cluster.design, run, stage, ends)
    passes.forward()
    turn = len(passes.rank.events)
    passes.backward()
    events = passes.rank.events
    # Over many micro-batches memory of another stream is given back as late as it ever is.
    kept = _played(events[:turn])[0]
    left, most = _played(late(events, lambda: LATE))
    assert not left, "a tensor outlived its micro-batch"
    return kept, most


def _played(events: Iterable[Event]) -> tuple[int, int]:
    """Bytes at the end of a record, and most."""
    now = most = 0
    sizes: dict[int, int] = {}
    for one in events:
        if isinstance(one, Alloc):
            sizes[one.number] = one.size
            now += one.size
            most = max(most, now)
        elif isinstance(one, Free):
            now -= sizes.pop(one.number)
    return now, most


def late(events: Sequence[Event], delay: Callable[[], int]) -> Iterator[Event]:
    """A record with storages that a collective beside filled given back some allocations late."""
    beside, last = set[int](), -1
    for one in events:
        if isinstance(one, Alloc):
            last = one.number
        elif isinstance(one, Exchange) and one.beside:
            beside.add(last)
    waiting: list[tuple[int, Free]] = []
    taken = 0
    for one in events:
        if isinstance(one, Alloc):
            taken += 1
            yield from (free for when, free in waiting if when < taken)
            waiting = [(when, free) for when, free in waiting if when >= taken]
        if isinstance(one, Free) and one.number in beside:
            waiting.append((taken + delay(), one))
        else:
            yield one
    yield from (free for _, free in waiting)


def second_cluster(seed: int) -> SecondCluster:
    """A network, a machine and a job of their own for each seed."""
    draw = random.Random(f"cluster {seed}")
    design = hidden_design(seed)
    ranks = draw.choice((128, 256, 512))
    job = RunSetting(8, 1, min(8, design.experts), 1, draw.choice((8192, 16384)), design.experts, design.layers, 4)
    job = replace(job, dp=ranks // 32, dense=design.dense)
    job = replace(job, ep=min(job.ep, job.dp))
    machine = hidden_machine(seed)
    start = (draw.choice((2.0, 6.0)), draw.choice((12.0, 16.0)))
    update = (draw.uniform(1e4, 4e4), draw.uniform(0.02, 0.05))
    found = SecondCluster(
        seed, job, ranks * draw.choice((1, 2)), design, machine, start, draw.randint(1 << 29, 1 << 30), update,
        draw.random() < 0.5, draw.choice((0.0, 0.1, 0.25)),
    )  # fmt: skip
    stage: Stage = (("embedding", False), *[("layer", False)] * (design.layers // job.pp))
    limit = round(found.peak(job, stage, job.pp, (True, False)) * draw.uniform(0.4, 1.1))
    return replace(found, machine=replace(machine, limit=float(limit)))
