"""A hidden network on a hidden cluster: its operators, collectives, tensors and step under laws stated here alone.

Nothing here is the product's: memory comes from allocating and freeing every tensor, a step from playing the pipeline
task by task, times from `standin_machine`. Networks are put together in `standin_build`; `standin_files` writes what
such a cluster would leave behind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from benchmarks.standin_machine import Machine, Task, group_of
from benchmarks.standin_network import HiddenSize, drawn_by
from taylor.parsers.small_run import RunSetting

PAGE = 512
MOST_GAPS = 0.01
"""Most of a peak that an allocator loses to gaps, as a fraction."""
Stage = tuple[tuple[str, bool], ...]
Key = tuple[int, str]
"""A tensor: the place of its block in the stage, and its name there."""
Outputs = tuple[tuple[Task, int], ...]


@dataclass(frozen=True)
class Block:
    """Parameters (name, elements) and the tasks of both passes of an embedding, a layer or a head."""

    parameters: tuple[tuple[str, HiddenSize], ...]
    forward: tuple[Task, ...]
    backward: tuple[Task, ...]

    def elements(self, run: RunSetting) -> tuple[int, int]:
        """On a rank: of dense parameters, and of experts'."""
        sizes = [("experts" in name, size.of(run)) for name, size in self.parameters]
        return sum(size for expert, size in sizes if not expert), sum(size for expert, size in sizes if expert)


@dataclass(frozen=True)
class Cluster:
    """A hidden network on a hidden machine.

    Parameters
    ----------
    start_bytes : tuple of float
        Bytes kept an element before a step, whole and sharded over data parallel ranks.
    hidden_reduction : bool
        Gradients are reduced beside the backward pass.
    """

    seed: int
    job: RunSetting
    batch: int
    facts: dict[str, int]
    blocks: dict[str, Block]
    machine: Machine
    start_bytes: tuple[float, float]
    rest: int
    hidden_reduction: bool

    def with_memory(self, limit: float) -> Cluster:
        """The same with other cards."""
        return replace(self, machine=replace(self.machine, limit=limit))

    def tasks(self, block: str, run: RunSetting, backward: bool) -> list[Task]:
        """Tasks of one pass of a block."""
        one = self.blocks[block]
        return [task for task in (one.backward if backward else one.forward) if task.runs(run)]

    def kernels(self, block: str, run: RunSetting, backward: bool) -> list[tuple[str, list[tuple[int, ...]]]]:
        """Kinds of operators of one pass, and their shapes with the output last."""
        return [(task.kind, task.sizes(run)) for task in self.tasks(block, run, backward) if not task.group]

    def exchange_ns(self, kind: str, group: str, buffer: int, run: RunSetting) -> float:
        """Time of a collective without noise."""
        return self.machine.collective_ns(kind, group, buffer, run)

    def outputs(self, block: str, run: RunSetting, backward: bool) -> Outputs:
        """The same with the bytes that each allocates."""
        return _outputs(self, block, run, backward)

    def pass_ns(self, block: str, run: RunSetting, backward: bool, again: bool = False) -> float:
        """Time of one pass of a block without noise."""
        return _pass_ns(self, block, run, backward) + (_pass_ns(self, block, run, False) if backward and again else 0)

    def with_links(self, factor: float) -> Cluster:
        """The same with links inside a node `factor` times as fast: as where GEMMs overlap TP's communication."""
        link = self.machine.links["in"]
        links = {**self.machine.links, "in": replace(link, rate=link.rate * factor)}
        return replace(self, machine=replace(self.machine, links=links))

    def __hash__(self) -> int:
        return hash((self.seed, self.facts["variant"]))

    # Memory: events are (tensor, bytes); 0 bytes where it is given back ------------------------------------------

    def events(
        self, run: RunSetting, stage: Stage, direction: str, ends: tuple[bool, bool]
    ) -> Iterator[tuple[Key, int]]:
        """One pass of a stage in order; `ends`: whether it is the first and the last stage of its pipeline."""
        places = list(enumerate(stage))
        if direction == "F":
            if not ends[0]:
                yield (-1, "out"), self.hand_over_bytes(run)
            for at, (name, again) in places:
                yield from _forward(at, self.outputs(name, run, False), again)
            if not ends[1]:
                yield (len(stage) - 1, "out"), 0
            return
        gradient: Key | None = None
        if not ends[1]:
            gradient = (len(stage), "din")
            yield gradient, self.hand_over_bytes(run)
        for at, (name, again) in reversed(places):
            forward = self.outputs(name, run, False)
            if again:
                yield from _forward(at, forward, False, "again ")
                yield (at, "again out"), 0
            for number, (task, size) in enumerate(self.outputs(name, run, True)):
                if size:
                    before, gradient = gradient, (at, f"gradient {number}")
                    yield gradient, size
                    if before:
                        yield before, 0
                for freed, (one, _) in enumerate(forward):
                    if one.kept and one.name == task.frees and freed != _last(forward):
                        yield (at, f"{'again ' if again else ''}{freed}"), 0
            if gradient and name == "embedding":
                yield gradient, 0
                gradient = None
            if at > 0 or not ends[0]:
                yield (at - 1, "out"), 0
        if ends[1] and stage[-1][0] == "head":
            yield (len(stage) - 1, "out"), 0
        if gradient:
            yield gradient, 0

    def elements(self, run: RunSetting, stage: Stage) -> tuple[int, int]:
        """Of dense parameters and of experts', on a rank of a stage."""
        each = [self.blocks[name].elements(run) for name, _ in stage]
        return sum(dense for dense, _ in each), sum(expert for _, expert in each)

    def start(self, run: RunSetting, stage: Stage) -> int:
        """Bytes that a rank holds before a step."""
        dense, expert = self.elements(run, stage)
        whole, sharded = self.start_bytes
        shards = dense / group_of("dp", run)[0] + expert / group_of("edp", run)[0]
        return self.rest + round(whole * (dense + expert) + sharded * shards)

    def passes_bytes(self, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
        """(bytes kept between both passes of a micro-batch, most in them) beside those kept before."""
        # What a rank runs does not depend on how many ranks there are beside it.
        return _passes_bytes(self, replace(run, layers=1, pp=1, dp=1, vpp=1), stage, ends)

    def _walked(self, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
        alive: dict[Key, int] = {}
        now = most = kept = 0
        for direction in "FB":
            for key, size in self.events(run, stage, direction, ends):
                if size:
                    alive[key] = -(-size // PAGE) * PAGE
                    now += alive[key]
                    most = max(most, now)
                else:
                    now -= alive.pop(key)
            kept = kept if direction == "B" else now
        assert not alive
        return kept, most

    def peak(self, run: RunSetting, stage: Stage, in_flight: int, ends: tuple[bool, bool] = (True, True)) -> int:
        """The most bytes that a rank of a stage holds in a step, gaps of the allocator included."""
        kept, most = self.passes_bytes(run, stage, ends)
        return self._with_gaps(run, self.start(run, stage) + (in_flight - 1) * kept + most, f"{len(stage)} {in_flight}")

    def peak_of_chunks(self, run: RunSetting, chunks: Sequence[Stage], at: int, micro: int) -> int:
        """The same of the stage at a place, whose chunks hold what their order of tasks keeps alive."""
        start = self.start(run, tuple(block for chunk in chunks for block in chunk))
        each = [
            self.passes_bytes(run, chunk, (at == number == 0, at == run.pp - 1 and number == run.vpp - 1))
            for number, chunk in enumerate(chunks)
        ]
        alive = most = 0
        for what, chunk, _ in stage_order(at, run, micro):
            kept, peak = each[chunk]
            alive -= kept if what == "B" else 0
            most = max(most, alive + peak)
            alive += kept if what == "F" else 0
        return self._with_gaps(run, start + most, f"chunks {at} {micro}")

    def _with_gaps(self, run: RunSetting, size: float, what: str) -> int:
        return round(size * (1 + random.Random(f"{self.seed} {drawn_by(run)} {what}").uniform(0, MOST_GAPS)))

    # Steps ------------------------------------------------------------------------------------------------------

    def stage_ns(self, run: RunSetting, stage: Stage) -> tuple[float, float]:
        """Forward and backward pass of a stage."""
        forward = sum(self.pass_ns(name, run, False) for name, _ in stage)
        return forward, sum(self.pass_ns(name, run, True, again) for name, again in stage)

    def tail_ns(self, run: RunSetting, stage: Stage) -> float:
        """Gradients summed, weights updated and gathered."""
        dense, expert = self.elements(run, stage)
        reduce = gather = 0.0
        for group, count in (("dp", dense), ("edp", expert)):
            if group_of(group, run)[0] > 1 and count:
                reduce += self.machine.collective_ns("reduceScatter", group, 4 * count, run)
                gather += self.machine.collective_ns("allGather", group, 2 * count, run)
        if self.hidden_reduction:
            reduce = max(0.0, reduce - self.stage_ns(run, stage)[1])
        shards = dense / group_of("dp", run)[0] + expert / group_of("edp", run)[0]
        return reduce + gather + 20_000 + self.machine.update * shards

    def hand_over_bytes(self, run: RunSetting) -> int:
        """Data sent from stage to stage."""
        return 2 * self.facts["width"] * run.seq * run.mbs // (run.cp * run.tp)

    def step_ns(self, run: RunSetting, stages: Sequence[Sequence[Stage]]) -> float:
        """A step of a plan, task by task, without noise; every stage as its chunks."""
        micro = self.batch // (run.dp * run.mbs)
        times = [[self.stage_ns(run, chunk) for chunk in chunks] for chunks in stages]
        lag = self.machine.collective_ns("send", "pp", self.hand_over_bytes(run), run) if run.pp > 1 else 0.0
        orders = [stage_order(at, run, micro) for at in range(run.pp)]
        ends: dict[tuple[str, int, int], float] = {}
        clocks, places = [0.0] * run.pp, [0] * run.pp
        moved = True
        while moved:
            moved = False
            for at in range(run.pp):
                while places[at] < len(orders[at]):
                    what, chunk, batch = orders[at][places[at]]
                    number = chunk * run.pp + at
                    source = number - 1 if what == "F" else number + 1
                    if not 0 <= source < run.pp * run.vpp:
                        ready: float | None = 0.0
                    elif (ready := ends.get((what, source, batch))) is not None:
                        ready += lag
                    if ready is None:
                        break
                    clocks[at] = max(clocks[at], ready) + times[at][chunk][what == "B"]
                    ends[what, number, batch] = clocks[at]
                    places[at], moved = places[at] + 1, True
        own = [tuple(block for chunk in chunks for block in chunk) for chunks in stages]
        return max(clock + self.tail_ns(run, stage) for clock, stage in zip(clocks, own, strict=True))


def layer_names(run: RunSetting) -> list[str]:
    """Kind of every layer of a run."""
    return ["dense" if number < run.dense else "layer" for number in range(run.layers)]


def stage_order(at: int, run: RunSetting, micro: int) -> list[tuple[str, int, int]]:
    """(direction, chunk, micro-batch) of what a stage runs: 1F1B, over chunks in rounds of a micro-batch a stage."""

    def task(what: str, number: int) -> tuple[str, int, int]:
        rounds, place = divmod(number, run.pp * run.vpp)
        chunk, batch = divmod(place, run.pp) if run.vpp > 1 else (0, place)
        chunk = chunk if what == "F" else run.vpp - 1 - chunk
        return what, chunk, rounds * run.pp + batch

    total, later = micro * run.vpp, run.pp - 1 - at
    warm = min(total, later if run.vpp == 1 else 2 * later + (run.vpp - 1) * run.pp)
    order = [task("F", number) for number in range(warm)]
    for number in range(warm, total):
        order += [task("F", number), task("B", number - warm)]
    return order + [task("B", number) for number in range(total - warm, total)]


@lru_cache(maxsize=50_000)
def _passes_bytes(cluster: Cluster, run: RunSetting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
    return cluster._walked(run, stage, ends)


@lru_cache(maxsize=200_000)
def _pass_ns(cluster: Cluster, block: str, run: RunSetting, backward: bool) -> float:
    run = replace(run, layers=1, vpp=1)
    return sum(cluster.machine.ns(task, run) for task in cluster.tasks(block, run, backward))


@lru_cache(maxsize=20_000)
def _outputs(cluster: Cluster, block: str, run: RunSetting, backward: bool) -> Outputs:
    return tuple((task, task.output_bytes(run)) for task in cluster.tasks(block, run, backward))


def _forward(at: int, forward: Outputs, thrifty: bool, mark: str = "") -> Iterator[tuple[Key, int]]:
    before: Key | None = None
    last = _last(forward)
    for number, (task, size) in enumerate(forward):
        if not size:
            continue
        own = (at, f"{mark}{'out' if number == last else number}")
        yield own, size
        if before:
            yield before, 0
        before = None if number == last or (task.kept and not thrifty) else own


def _last(forward: Outputs) -> int:
    """Task whose output is the block's."""
    return max(number for number, (_, size) in enumerate(forward) if size)
