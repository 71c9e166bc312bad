"""Memory of large jobs of hidden networks, predicted from small runs and checked against a simulated allocator.

    python -m benchmarks.standin_memory [--networks 100] [--configurations 100] [--seed 2000]

The truth allocates and frees every tensor of every micro-batch of a stage under 1F1B, one after the other, in pages of
512 bytes, under laws stated here by themselves; up to 1 % of its peak is lost to gaps. The exit code is 1 when a peak
is off by more than 3 %, or a stage that does not fit was said to.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass

from benchmarks.standin_network import CARDS, JOB, HiddenSize, drawn_by
from taylor.blackbox.block_memory import TURN, BlockTrace
from taylor.blackbox.memory_fit import memory_laws
from taylor.blackbox.memory_laws import MemoryLaws, RunMemory
from taylor.blackbox.small_runs import plan_small_runs
from taylor.parsers.small_run import RunSetting

PAGE = 512
MOST_GAPS = 0.01
ROLES = {"weights": 2, "gradients": 4, "optimizer": 12}
WITHIN = 0.03


@dataclass(frozen=True)
class HiddenTensor:
    """A tensor of a block; `only` names the degree above one that it needs."""

    name: str
    size: HiddenSize
    only: str = ""

    def bytes(self, run: RunSetting) -> int:
        """On one rank; none where the run lacks it."""
        return self.size.of(run) if not self.only or getattr(run, self.only) > 1 else 0


@dataclass(frozen=True)
class HiddenBlock:
    """Parameters (elements) and the tensors of a micro-batch in the order of their events."""

    parameters: tuple[HiddenTensor, ...]
    tensors: tuple[HiddenTensor, ...]
    events: tuple[str, ...]

    def trace(self, run: RunSetting) -> BlockTrace:
        """As a profile shows it."""
        sizes = {one.name: one.bytes(run) for one in self.tensors if one.bytes(run)}
        return BlockTrace(sizes, tuple(one for one in self.events if one == TURN or one[1:] in sizes), "input")


class Allocator:
    """Counts pages of allocated tensors."""

    def __init__(self) -> None:
        self.alive: dict[object, int] = {}
        self.now = self.most = 0

    def take(self, key: object, size: int) -> None:
        """Allocate, unless allocated."""
        if key not in self.alive:
            self.alive[key] = -(-size // PAGE) * PAGE
            self.now += self.alive[key]
            self.most = max(self.most, self.now)

    def free(self, key: object) -> None:
        """Free what is allocated."""
        self.now -= self.alive.pop(key, 0)


@dataclass(frozen=True)
class HiddenMemory:
    """The blocks of a network by name, whether its optimizer is sharded, and what a rank holds beside it."""

    seed: int
    blocks: dict[str, HiddenBlock]
    sharded: bool
    rest: int
    step_bytes: int

    def states(self, run: RunSetting, stage: list[tuple[str, bool]]) -> dict[str, int]:
        """Bytes by role on one rank."""
        found = dict.fromkeys(ROLES, 0)
        for name, _ in stage:
            for one in self.blocks[name].parameters:
                copies = run.dp * run.cp // (run.ep if "ep" in one.size.over else 1)
                for role, each in ROLES.items():
                    shards = copies if role == "optimizer" and self.sharded else 1
                    found[role] += each * -(-one.size.of(run) // shards)
        return found

    def step(self, run: RunSetting, stage: list[tuple[str, bool]]) -> int:
        """Bytes that the optimizer takes at the end of a step, for what it updates on this rank."""
        return self.states(run, stage)["optimizer"] // ROLES["optimizer"] * self.step_bytes

    def peak(self, run: RunSetting, stage: list[tuple[str, bool]], in_flight: int) -> int:
        """The most bytes that one rank of a stage holds in a step of two micro-batches more than are in flight."""
        memory = Allocator()
        memory.take("static", self.rest + sum(self.states(run, stage).values()))
        order = [("F", batch) for batch in range(in_flight)]
        for batch in range(in_flight, in_flight + 2):
            order += [("B", batch - in_flight), ("F", batch)]
        order += [("B", batch) for batch in range(2, in_flight + 2)]
        for direction, batch in order:
            places = range(len(stage)) if direction == "F" else reversed(range(len(stage)))
            for place in places:
                self._pass(memory, run, stage[place], (batch, place), direction)
        memory.take("step", self.step(run, stage))
        gaps = random.Random(f"{self.seed} {drawn_by(run)} {len(stage)} {in_flight}").uniform(0, MOST_GAPS)
        return round(memory.most * (1 + gaps))

    def peak_of_chunks(
        self, run: RunSetting, chunks: list[list[tuple[str, bool]]], order: list[tuple[str, int, int]]
    ) -> int:
        """The same of a stage of several chunks that runs (direction, chunk, micro-batch) in this order."""
        memory = Allocator()
        memory.take("static", self.rest + sum(self.states(run, [each for one in chunks for each in one]).values()))
        for direction, chunk, batch in order:
            places = list(enumerate(chunks[chunk]))
            for place, block in places if direction == "F" else reversed(places):
                self._pass(memory, run, block, (batch, 1000 * chunk + place), direction)
        memory.take("step", self.step(run, [each for one in chunks for each in one]))
        return memory.most

    def _pass(
        self, memory: Allocator, run: RunSetting, block: tuple[str, bool], key: tuple[int, int], direction: str
    ) -> None:
        name, again = block
        hidden = self.blocks[name]
        sizes = {one.name: one.bytes(run) for one in hidden.tensors}
        turn = hidden.events.index(TURN)
        passes = [hidden.events[:turn]] if direction == "F" or again else []
        passes += [hidden.events[turn + 1 :]] if direction == "B" else []
        for events in passes:
            for event in events:
                if event[0] == "+":
                    memory.take((key, event[1:]), sizes[event[1:]])
                else:
                    memory.free((key, event[1:]))
        if direction == "F" and again:
            for one in sizes:
                if one != "input":
                    memory.free((key, one))

    def small(self, run: RunSetting) -> list[RunMemory]:
        """Records of a small run, a stage each; every layer runs again."""
        found = []
        for number in range(run.pp):
            stage = [("layer", True)] * (run.layers // run.pp)
            stage = [("embedding", False)] * (number == 0) + stage + [("head", False)] * (number == run.pp - 1)
            states, names = self.states(run, stage), {name for name, _ in stage}
            parameters = {name: {one.name: one.size.of(run) for one in self.blocks[name].parameters} for name in names}
            traces = {name: self.blocks[name].trace(run) for name in names}
            peak = self.peak(run, stage, run.pp - number)
            step, start = self.step(run, stage), self.rest + sum(states.values())
            found.append(RunMemory(run, tuple(stage), run.pp - number, parameters, step, start, traces, peak))
        return found

    def laws(self) -> MemoryLaws:
        """The product's memory laws from the small runs."""
        return memory_laws([one for run in plan_small_runs(JOB, CARDS).runs for one in self.small(run.setting)])


def hidden_memory(seed: int) -> HiddenMemory:
    """A network of its own for each seed."""
    draw = random.Random(seed)
    width = 128 * draw.randint(16, 64)
    inner, few = 128 * draw.randint(16, 128), 64 * draw.randint(1, 16)

    def tokens(each: int, *over: str) -> HiddenSize:
        return HiddenSize(each, ("seq", "mbs"), ("cp", *over))

    def block(
        name: str, parameters: list[HiddenSize], sizes: list[tuple[HiddenSize, str]], last: bool = False
    ) -> HiddenBlock:
        tensors = [HiddenTensor("input", tokens(2 * width, "tp"))]
        tensors += [HiddenTensor(f"{name}{at}", size, only) for at, (size, only) in enumerate(sizes)]
        forward, backward = ["+input"], list[str]()
        for one in tensors[1:]:
            forward.append(f"+{one.name}")
            if draw.random() < 0.2 and not last:
                forward.append(f"-{one.name}")
        for one in [each for each in tensors[:0:-1] if f"-{each.name}" not in forward]:
            tensors.append(HiddenTensor(f"grad_{one.name}", one.size, one.only))
            backward += [f"+grad_{one.name}", f"-{one.name}", f"-grad_{one.name}"]
        own = tuple(HiddenTensor(f"{name}.weight{at}", size) for at, size in enumerate(parameters))
        return HiddenBlock(own, tuple(tensors), (*forward, TURN, *backward, "-input"))

    vocabulary = 1024 * draw.randint(32, 160)
    split = HiddenSize(vocabulary * width, (), ("tp",))
    layer = [
        HiddenSize(width * width * draw.randint(1, 3), (), ("tp",)),
        HiddenSize(width * few),
        HiddenSize(width),
        HiddenSize(width, ("experts",)),
        HiddenSize(3 * width * inner, ("experts",), ("ep",)),
        HiddenSize(3 * width * inner, (), ("tp",)),
    ]
    kinds = [
        (tokens(2 * width, "tp"), ""),
        (tokens(2 * width), "tp"),
        (tokens(4 * inner, "tp"), ""),
        (tokens(2 * few), ""),
        (tokens(8 * few), "cp"),
        (tokens(4 * inner), "ep"),
        (HiddenSize(4 * draw.randint(8, 64), ("seq", "mbs"), ("cp", "tp")), ""),
    ]
    chosen = [*kinds, *draw.choices(kinds, k=draw.randint(2, 12))]
    draw.shuffle(chosen)
    head = [(tokens(2 * width), "tp"), (tokens(2 * vocabulary, "tp"), ""), (tokens(4 * vocabulary, "tp"), "")]
    return HiddenMemory(
        seed,
        {
            "embedding": block("embedding", [split], [(tokens(2 * width), "tp")]),
            "layer": block("layer", layer, chosen),
            "head": block("head", [HiddenSize(width), split], head, last=True),
        },
        draw.random() < 0.7,
        draw.randint(1 << 29, 1 << 31),
        draw.choice((0, 4, 8)),
    )


def large(draw: random.Random) -> tuple[RunSetting, list[tuple[str, bool]], int]:
    """A stage of a job at up to 1,024 ranks, of any number of layers and with any of them recomputed."""
    while True:
        tp, cp, pp, ep = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8, 16)), 0
        dp = draw.choice((64, 128, 256, 512, 1024)) // (tp * cp * pp)
        ep = draw.choice((1, 2, 4, 8, 16, 32))
        if dp and dp * cp % ep == 0:
            break
    run = RunSetting(tp, cp, ep, draw.choice((1, 2, 4)), draw.choice((8192, 16384, 32768)), 64, 61, pp, dp)
    number, layers = draw.randrange(pp), draw.randint(1, 12)
    again = draw.choice((0, layers, draw.randint(0, layers)))
    stage = [("layer", at < again) for at in range(layers)]
    stage = [("embedding", False)] * (number == 0) + stage + [("head", False)] * (number == pp - 1)
    return run, stage, pp - number


def campaign(networks: int, configurations: int, seed: int) -> tuple[list[float], int, int]:
    """Relative errors of peaks, false «fits», and stages that fit but were not said to.

    Each is checked against a limit that is drawn around its true peak.
    """
    errors, false_fits, missed = list[float](), 0, 0
    for each in range(seed, seed + networks):
        hidden, draw = hidden_memory(each), random.Random(each)
        laws = hidden.laws()
        for _ in range(configurations):
            run, stage, in_flight = large(draw)
            true, mine = hidden.peak(run, stage, in_flight), laws.stage(run, stage, in_flight)
            errors.append(mine.peak / true - 1)
            limit = true * draw.uniform(0.9, 1.1)
            false_fits += mine.fits(limit) and true > limit
            missed += true <= limit and not mine.fits(limit)
    return errors, false_fits, missed


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=100)
    parser.add_argument("--configurations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=2000)
    args = parser.parse_args()
    errors, false_fits, missed = campaign(args.networks, args.configurations, args.seed)
    worst, middle = max(map(abs, errors)), sorted(map(abs, errors))[len(errors) // 2]
    print(f"{len(errors):,} stages of {args.networks} networks: median {middle:.2%}, worst {worst:.2%} off")
    print(f"  said to fit that do not: {false_fits}; not said to fit that do: {missed}")
    return int(worst > WITHIN or false_fits > 0)


if __name__ == "__main__":
    sys.exit(main())
