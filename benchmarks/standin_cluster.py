"""A hidden network on a hidden cluster: its operators, collectives, tensors and step under laws stated here alone.

Nothing here is the product's: sizes are quotients of the run's own numbers, times come from a roofline with rounded
tiles and from links whose bandwidth grows with the message, memory from allocating and freeing every tensor, a step
from playing 1F1B task by task. `benchmarks.standin_files` writes what such a cluster would leave behind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from benchmarks.standin_network import HiddenSize
from taylor.parsers.small_run import Setting

PAGE = 512
PER_NODE = 8
MOST_GAPS = 0.01
"""Share of a peak that an allocator loses to gaps, at most."""
BYTES = {"DT_BF16": 2, "FLOAT": 4}
Shape = tuple[HiddenSize, ...]
Stage = tuple[tuple[str, bool], ...]
Key = tuple[int, str]
"""A tensor: the place of its block in the stage, and its name there."""


@dataclass(frozen=True)
class Task:
    """An operator or a collective of one pass.

    Parameters
    ----------
    kind : str
        Type of the operator, or kind of the collective.
    shapes : tuple of Shape
        Inputs, and the output last; of a collective its buffer's bytes alone.
    group : str
        Of a collective: the degree that it runs over. Empty for operators.
    only : tuple of str
        Degrees that must be above one for it to run.
    kept : bool
        Whether backward needs the output.
    name, frees : str
        Its own name; of a task of the backward pass the one whose kept output it is done with.
    """

    kind: str
    shapes: tuple[Shape, ...]
    group: str = ""
    only: tuple[str, ...] = ()
    kept: bool = False
    dtype: str = "DT_BF16"
    name: str = ""
    frees: str = ""

    def runs(self, run: Setting) -> bool:
        """Whether a run has it."""
        return all(getattr(run, name) > 1 for name in (*self.only, *([self.group] if self.group else ())))

    def sizes(self, run: Setting) -> list[tuple[int, ...]]:
        """Shapes in a run."""
        return [tuple(size.of(run) for size in shape) for shape in self.shapes]

    def output_bytes(self, run: Setting) -> int:
        """Of what it allocates."""
        return 0 if self.group else prod(self.sizes(run)[-1]) * BYTES[self.dtype]


@dataclass(frozen=True)
class Block:
    """Parameters (name, elements) and the tasks of both passes of an embedding, a layer or a head."""

    parameters: tuple[tuple[str, HiddenSize], ...]
    forward: tuple[Task, ...]
    backward: tuple[Task, ...]

    def elements(self, run: Setting) -> tuple[int, int]:
        """On a rank: of dense parameters, and of experts'."""
        sizes = [("experts" in name, size.of(run)) for name, size in self.parameters]
        return sum(size for expert, size in sizes if not expert), sum(size for expert, size in sizes if expert)


@dataclass(frozen=True)
class Link:
    """One kind of link: start, each step's latency, most bytes a ns, and the message at which half of that is had."""

    start: float
    step: float
    rate: float
    half: float

    def ns(self, steps: int, sent: float) -> float:
        """Time of a collective of so many steps."""
        return self.start + steps * self.step + (sent + steps * self.half) / self.rate


def group_of(name: str, run: Setting) -> tuple[int, int]:
    """(ranks, distance of their numbers) of a group in the order tp, cp, dp, pp."""
    edp = run.dp * run.cp // run.ep
    return {
        "tp": (run.tp, 1),
        "cp": (run.cp, run.tp),
        "ep": (run.ep, run.tp),
        "dp": (run.dp * run.cp, run.tp),
        "edp": (edp, run.tp * run.ep),
        "pp": (2, run.ranks // run.pp),
    }[name]


def sent_bytes(kind: str, ranks: int, buffer: int) -> tuple[int, float]:
    """(steps, bytes that one rank sends) of a collective by rings."""
    if kind in ("send", "receive"):
        return 1, float(buffer)
    rounds = 2 if kind == "allReduce" else 1
    return rounds * (ranks - 1), rounds * buffer * (ranks - 1) / ranks


@dataclass(frozen=True)
class Machine:
    """The hidden laws of time.

    Parameters
    ----------
    launch, peak, share : dict
        By type of operator: ns to start; share of the chip's products and of its memory's speed that it reaches.
    """

    launch: dict[str, float]
    peak: dict[str, float]
    share: dict[str, float]
    links: dict[str, Link]
    gap: float
    update: float
    limit: float

    def compute_ns(self, task: Task, run: Setting) -> float:
        """Time of an operator without noise."""
        shapes = task.sizes(run)
        moved = sum(map(prod, shapes)) * BYTES[task.dtype]
        by_memory = moved / (1200 * self.share[task.kind])
        by_products = products(task.kind, shapes) / (300_000 * self.peak[task.kind])
        return float(self.launch[task.kind] + (by_memory**4 + by_products**4) ** 0.25)

    def collective_ns(self, kind: str, group: str, buffer: int, run: Setting) -> float:
        """Time of a collective without noise."""
        ranks, stride = group_of(group, run)
        steps, sent = sent_bytes(kind, ranks, buffer)
        return self.links[self.link(ranks, stride)].ns(steps, sent)

    @staticmethod
    def link(ranks: int, stride: int) -> str:
        """What a group goes over."""
        if (ranks - 1) * stride < PER_NODE:
            return "in"
        return "between" if stride >= PER_NODE else "mixed"

    def ns(self, task: Task, run: Setting) -> float:
        """Time of a task and the gap behind it."""
        if task.group:
            return self.collective_ns(task.kind, task.group, task.sizes(run)[0][0], run) + self.gap
        return self.compute_ns(task, run) + self.gap


def products(kind: str, shapes: Sequence[tuple[int, ...]]) -> float:
    """Multiplications of an operator, matrices rounded up to tiles of 128."""

    def tiles(size: int) -> int:
        return -(-size // 128) * 128

    first, second = shapes[0], shapes[1] if len(shapes) > 2 else ()
    if kind.startswith("MatMul"):
        return float(tiles(first[0]) * first[1] * tiles(shapes[-1][1]))
    if kind.startswith("GroupedMatmul"):
        return float(tiles(first[0]) * first[1] * tiles(shapes[-1][-1]))
    if kind.startswith("FlashAttention"):
        return prod(first) * second[0] * (5.0 if kind.endswith("Grad") else 2.0)
    return 0.0


@dataclass(frozen=True)
class Cluster:
    """A hidden network on a hidden machine.

    Parameters
    ----------
    start_bytes : tuple of float
        Bytes held an element before a step, whole and sharded over data parallel ranks.
    hidden_reduction : bool
        Whether gradients are reduced beside the backward pass.
    """

    seed: int
    job: Setting
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

    def tasks(self, block: str, run: Setting, backward: bool) -> list[Task]:
        """What one pass of a block runs."""
        one = self.blocks[block]
        return [task for task in (one.backward if backward else one.forward) if task.runs(run)]

    def pass_ns(self, block: str, run: Setting, backward: bool, again: bool = False) -> float:
        """Time of one pass of a block without noise."""
        return _pass_ns(self, block, run, backward) + (_pass_ns(self, block, run, False) if backward and again else 0)

    def __hash__(self) -> int:
        return hash((self.seed, self.facts["variant"]))

    # Memory: events are (tensor, bytes); 0 bytes where it is given back ------------------------------------------

    def events(self, run: Setting, stage: Stage, direction: str, ends: tuple[bool, bool]) -> Iterator[tuple[Key, int]]:
        """One pass of a stage in order; `ends`: whether it is the first and the last stage of its pipeline."""
        places = list(enumerate(stage))
        if direction == "F":
            if not ends[0]:
                yield (-1, "out"), self.hand_over_bytes(run)
            for at, (name, again) in places:
                yield from self._forward(at, self.tasks(name, run, False), run, again)
            if not ends[1]:
                yield (len(stage) - 1, "out"), 0
            return
        gradient: Key | None = None
        if not ends[1]:
            gradient = (len(stage), "din")
            yield gradient, self.hand_over_bytes(run)
        for at, (name, again) in reversed(places):
            forward = self.tasks(name, run, False)
            if again:
                yield from self._forward(at, forward, run, False, "again ")
                yield (at, "again out"), 0
            for number, task in enumerate(self.tasks(name, run, True)):
                if task.output_bytes(run):
                    before, gradient = gradient, (at, f"gradient {number}")
                    yield gradient, task.output_bytes(run)
                    if before:
                        yield before, 0
                for freed, one in enumerate(forward):
                    if one.kept and one.name == task.frees and freed != _last(forward, run):
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

    @staticmethod
    def _forward(
        at: int, forward: list[Task], run: Setting, thrifty: bool, mark: str = ""
    ) -> Iterator[tuple[Key, int]]:
        before: Key | None = None
        for number, task in enumerate(forward):
            if not task.output_bytes(run):
                continue
            last = number == _last(forward, run)
            own = (at, f"{mark}{'out' if last else number}")
            yield own, task.output_bytes(run)
            if before:
                yield before, 0
            before = None if last or (task.kept and not thrifty) else own

    def elements(self, run: Setting, stage: Stage) -> tuple[int, int]:
        """Of dense parameters and of experts', on a rank of a stage."""
        each = [self.blocks[name].elements(run) for name, _ in stage]
        return sum(dense for dense, _ in each), sum(expert for _, expert in each)

    def start(self, run: Setting, stage: Stage) -> int:
        """Bytes that a rank holds before a step."""
        dense, expert = self.elements(run, stage)
        whole, sharded = self.start_bytes
        shards = dense / group_of("dp", run)[0] + expert / group_of("edp", run)[0]
        return self.rest + round(whole * (dense + expert) + sharded * shards)

    def passes_bytes(self, run: Setting, stage: Stage, ends: tuple[bool, bool]) -> tuple[int, int]:
        """(bytes kept between both passes of a micro-batch, most in them) beside those held before."""
        held: dict[Key, int] = {}
        now = most = kept = 0
        for direction in "FB":
            for key, size in self.events(run, stage, direction, ends):
                if size:
                    held[key] = -(-size // PAGE) * PAGE
                    now += held[key]
                    most = max(most, now)
                else:
                    now -= held.pop(key)
            kept = kept if direction == "B" else now
        assert not held
        return kept, most

    def peak(self, run: Setting, stage: Stage, in_flight: int, ends: tuple[bool, bool] = (True, True)) -> int:
        """The most bytes that a rank of a stage holds in a step, gaps of the allocator included."""
        kept, most = self.passes_bytes(run, stage, ends)
        gaps = random.Random(f"{self.seed} {run} {len(stage)} {in_flight}").uniform(0, MOST_GAPS)
        return round((self.start(run, stage) + (in_flight - 1) * kept + most) * (1 + gaps))

    # Steps ------------------------------------------------------------------------------------------------------

    def stage_ns(self, run: Setting, stage: Stage) -> tuple[float, float]:
        """Forward and backward pass of a stage."""
        forward = sum(self.pass_ns(name, run, False) for name, _ in stage)
        return forward, sum(self.pass_ns(name, run, True, again) for name, again in stage)

    def tail_ns(self, run: Setting, stage: Stage) -> float:
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

    def hand_over_bytes(self, run: Setting) -> int:
        """What goes from stage to stage."""
        return 2 * self.facts["width"] * run.seq * run.mbs // (run.cp * run.tp)

    def step_ns(self, run: Setting, stages: Sequence[Stage]) -> float:
        """A step of a plan by 1F1B, task by task, without noise."""
        micro = self.batch // (run.dp * run.mbs)
        times = [self.stage_ns(run, stage) for stage in stages]
        lag = self.machine.collective_ns("send", "pp", self.hand_over_bytes(run), run) if run.pp > 1 else 0.0
        last = len(stages) - 1
        ends: dict[tuple[str, int, int], float] = {}
        orders = []
        for at in range(len(stages)):
            warm = min(micro, last - at)
            order = [("F", batch) for batch in range(warm)]
            for batch in range(warm, micro):
                order += [("F", batch), ("B", batch - warm)]
            orders.append(order + [("B", batch) for batch in range(micro - warm, micro)])
        clocks, places = [0.0] * len(stages), [0] * len(stages)
        moved = True
        while moved:
            moved = False
            for at in range(len(stages)):
                while places[at] < len(orders[at]):
                    what, batch = orders[at][places[at]]
                    if what == "F":
                        need = 0.0 if at == 0 else ends.get(("F", at - 1, batch))
                    else:
                        need = 0.0 if at == last else ends.get(("B", at + 1, batch))
                    if need is None:
                        break
                    far = at > 0 if what == "F" else at < last
                    clocks[at] = max(clocks[at], need + lag * far) + times[at][what == "B"]
                    ends[what, at, batch] = clocks[at]
                    places[at], moved = places[at] + 1, True
        return max(clock + self.tail_ns(run, stage) for clock, stage in zip(clocks, stages, strict=True))


@lru_cache(maxsize=200_000)
def _pass_ns(cluster: Cluster, block: str, run: Setting, backward: bool) -> float:
    run = replace(run, layers=1)
    return sum(cluster.machine.ns(task, run) for task in cluster.tasks(block, run, backward))


def _last(forward: list[Task], run: Setting) -> int:
    """Which task's output is the block's."""
    return max(number for number, task in enumerate(forward) if task.output_bytes(run))


def _tokens(*over: str) -> HiddenSize:
    return HiddenSize(1, ("seq", "mbs"), ("cp", *over))


def _fixed(number: int, *over: str) -> HiddenSize:
    return HiddenSize(number, (), over)


class _Builder:
    """A block put together forward; its backward pass follows from that."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.parameters: list[tuple[str, HiddenSize]] = []
        self.forward: list[Task] = []

    def run(self, kind: str, *shapes: Shape, only: tuple[str, ...] = (), dtype: str = "DT_BF16") -> None:
        kept = self.draw.random() < 0.6 or kind.startswith(("MatMul", "Flash", "Grouped"))
        name = f"{len(self.forward)}"
        self.forward.append(Task(kind, shapes, only=only, kept=kept, dtype=dtype, name=name))

    def send(self, kind: str, group: str, each: int, *over: str, only: tuple[str, ...] = ()) -> None:
        """A collective of `each` bytes a token, split over degrees."""
        size = HiddenSize(each, ("seq", "mbs"), ("cp", *over))
        self.forward.append(Task(kind, ((size,),), group, only))

    def matmul(self, name: str, rows: HiddenSize, inner: HiddenSize, outer: HiddenSize, weight: HiddenSize) -> None:
        self.parameters.append((name, weight))
        self.run("MatMulV2", (rows, inner), (inner, outer), (rows, outer))

    def norm(self, name: str, rows: Shape, width: int) -> None:
        self.parameters.append((name, HiddenSize(width)))
        self.run("RmsNorm", (*rows, HiddenSize(width)), (HiddenSize(width),), (*rows, HiddenSize(width)))

    def block(self) -> Block:
        duals = {"allGather": "reduceScatter", "reduceScatter": "allGather"}
        backward: list[Task] = []
        for task in reversed(self.forward):
            if task.group:
                backward.append(replace(task, kind=duals.get(task.kind, task.kind)))
                continue
            *inputs, output = task.shapes
            if task.kind == "MatMulV2":
                rows, inner, outer = *inputs[0], inputs[1][1]
                backward.append(replace(task, shapes=((rows, outer), (outer, inner), (rows, inner)), kept=False))
                backward.append(replace(task, shapes=((outer, rows), (rows, inner), (outer, inner)), kept=False))
                backward[-1] = replace(backward[-1], kind="MatMulV2Acc", frees=task.name)
            else:
                shapes = (output, *inputs[1:], inputs[0])
                backward.append(replace(task, kind=f"{task.kind}Grad", shapes=shapes, kept=False, frees=task.name))
        return Block(tuple(self.parameters), tuple(self.forward), tuple(backward))


def hidden_cluster(seed: int, variant: str = "") -> Cluster:
    """A network and a machine of their own for each seed; a variant changes the network alone.

    Parameters
    ----------
    variant : str
        ``mqa``: one key and value head. ``shared``: a shared expert half as wide again. ``module``: one module more.
    """
    draw = random.Random(seed)
    heads = draw.choice((32, 48, 64))
    width, groups = 128 * heads, 1 if variant == "mqa" else 8
    experts = draw.choice((1, 1, 32, 64))
    inner = 256 * draw.randint(10, 24) * (4 if experts == 1 else 1)
    top_k, shared = draw.choice((2, 4)), 256 * draw.randint(4, 12) * 3 // (2 if variant == "shared" else 3)
    vocabulary = 1024 * draw.randint(32, 150)
    layers = 8 * draw.randint(4, 8)
    values = 128 * groups
    kv = _fixed(values) if groups == 1 else _fixed(values, "tp")

    layer = _Builder(random.Random(seed + 1))
    rows, dense_rows = (HiddenSize(1, ("seq",), ("cp", "tp")), HiddenSize(1, ("mbs",))), _tokens()
    few_rows = _tokens("tp")
    both = _fixed(width, "tp")
    at = "module.decoder.layers.0."
    layer.norm(at + "input_layernorm.weight", rows, width)
    layer.send("allGather", "tp", 2 * width)
    for name, size in (("q", both), ("k", kv), ("v", kv)):
        weight = HiddenSize(width * size.number, (), size.over)
        layer.matmul(f"{at}self_attention.linear_{name}.weight", dense_rows, _fixed(width), size, weight)
    head_shape = (HiddenSize(1, ("seq",), ("cp",)), HiddenSize(1, ("mbs",)), _fixed(heads, "tp"), _fixed(128))
    layer.run("RotaryMul", head_shape, (HiddenSize(1, ("seq",), ("cp",)), _fixed(128)), head_shape)
    layer.send("allToAll", "cp", 2 * (width + 2 * values), *(("tp",) if groups > 1 else ()))
    length = HiddenSize(1, ("seq",))
    query = (length, HiddenSize(1, ("mbs",)), _fixed(width, "tp", "cp"))
    key = (length, HiddenSize(1, ("mbs",)), _fixed(values) if groups == 1 else _fixed(values, "tp", "cp"))
    layer.run("FlashAttentionScore", query, key, key, query)
    layer.send("allToAll", "cp", 2 * width, "tp")
    layer.matmul(at + "self_attention.linear_proj.weight", dense_rows, both, _fixed(width), _fixed(width * width, "tp"))
    layer.send("reduceScatter", "tp", 2 * width)
    few = (few_rows, _fixed(width))
    layer.run("Add", few, few, few)
    layer.norm(at + "pre_mlp_layernorm.weight", rows, width)
    for number in range(draw.randint(1, 2) + (variant == "module")):
        own = 64 * random.Random(f"{seed} {number}").randint(2, 30)
        down = f"{at}my_module.{number}.down.weight"
        layer.matmul(down, few_rows, _fixed(width), _fixed(own), _fixed(width * own))
        layer.run(f"MyGate{number}", (few_rows, _fixed(own)), (_fixed(own),), (few_rows, _fixed(own)))
        layer.matmul(down.replace("down", "up"), few_rows, _fixed(own), _fixed(width), _fixed(width * own))
    if experts == 1:
        layer.send("allGather", "tp", 2 * width)
        wide, half = _fixed(2 * inner, "tp"), _fixed(inner, "tp")
        layer.matmul(at + "mlp.linear_fc1.weight", dense_rows, _fixed(width), wide, _fixed(2 * inner * width, "tp"))
        layer.run("SwiGlu", (dense_rows, wide), (dense_rows, half))
        layer.matmul(at + "mlp.linear_fc2.weight", dense_rows, half, _fixed(width), _fixed(inner * width, "tp"))
        layer.send("reduceScatter", "tp", 2 * width)
    else:
        count, local = HiddenSize(1, ("experts",)), HiddenSize(1, ("experts",), ("ep",))
        chosen = HiddenSize(top_k, ("seq", "mbs"), ("cp", "tp"))
        router = HiddenSize(width, ("experts",))
        layer.parameters.append((at + "mlp.router.weight", router))
        layer.run("MatMulV2", (few_rows, _fixed(width)), (_fixed(width), count), (few_rows, count))
        layer.run("MoeTopK", (few_rows, count), (few_rows, HiddenSize(top_k)), dtype="FLOAT")
        for name, first, second in (("1", width, 2 * shared), ("2", shared, width)):
            size = _fixed(first * second)
            layer.matmul(f"{at}mlp.shared_{name}.weight", few_rows, _fixed(first), _fixed(second), size)
            if name == "1":
                layer.run("SwiGlu", (few_rows, _fixed(2 * shared)), (few_rows, _fixed(shared)))
        layer.run("MoePermute", (few_rows, _fixed(width)), (few_rows, HiddenSize(top_k)), (chosen, _fixed(width)))
        layer.send("allToAll", "ep", 2 * width * top_k, "tp")
        for name, first, second in (("1", width, 2 * inner), ("2", inner, width)):
            weights = (local, _fixed(first), _fixed(second))
            layer.parameters.append(
                (f"{at}mlp.experts.weight{name}", HiddenSize(first * second, ("experts",), ("ep",)))
            )
            layer.run("GroupedMatmul", (chosen, _fixed(first)), weights, (chosen, _fixed(second)))
            if name == "1":
                layer.run("SwiGlu", (chosen, _fixed(2 * inner)), (chosen, _fixed(inner)))
        layer.send("allToAll", "ep", 2 * width * top_k, "tp")
        layer.run("MoeUnpermute", (chosen, _fixed(width)), (few_rows, HiddenSize(top_k)), (few_rows, _fixed(width)))
    layer.run("Add", few, few, few)

    part = HiddenSize(vocabulary, (), ("tp",), 128)
    weight = HiddenSize(vocabulary * width, (), ("tp",))
    embedding = _Builder(random.Random(seed + 2))
    embedding.parameters.append(("module.embedding.word_embeddings.weight", weight))
    embedding.run("Embedding", (part, _fixed(width)), (dense_rows,), (dense_rows, _fixed(width)))
    embedding.send("reduceScatter", "tp", 2 * width)
    embedding.run("Dropout", few, few)
    front = embedding.block()
    front = replace(front, backward=tuple(replace(task, kept=False) for task in front.backward))

    head = _Builder(random.Random(seed + 3))
    head.norm("module.decoder.final_layernorm.weight", rows, width)
    head.send("allGather", "tp", 2 * width)
    head.matmul("module.output_layer.weight", dense_rows, _fixed(width), part, weight)
    head.run("Cast", (dense_rows, part), (dense_rows, part), dtype="FLOAT")
    head.run("LogSoftmax", (dense_rows, part), (dense_rows, part), dtype="FLOAT")
    head.run("NllLoss", (dense_rows, part), (dense_rows,), (HiddenSize(1),), dtype="FLOAT")
    blocks = {"embedding": front, "layer": layer.block(), "head": head.block()}

    machine = _machine(random.Random(seed + 4), {task.kind for one in blocks.values() for task in
                                                 (*one.forward, *one.backward) if not task.group})  # fmt: skip
    ranks = draw.choice((256, 512, 1024))
    dp = ranks // 64
    job = Setting(8, 1, min(8, experts, dp), 1, draw.choice((8192, 16384)), experts, layers, 8, dp)
    facts = {"width": width, "heads": heads, "groups": groups, "top_k": top_k, "variant": hash(variant) % 1000,
             "vocabulary": vocabulary, "inner": inner}  # fmt: skip
    batch = ranks * draw.choice((1, 2, 4))
    start = (draw.choice((4.0, 6.0)), draw.choice((12.0, 14.0)))
    rest, hidden = draw.randint(1 << 29, 1 << 30), draw.random() < 0.5
    found = Cluster(seed, job, batch, facts, blocks, machine, start, rest, hidden)
    # Memory that a plan of the job's own degrees has to care for.
    stage: Stage = (("embedding", False), *[("layer", False)] * (layers // job.pp))
    return found.with_memory(float(round(found.peak(job, stage, job.pp, (True, False)) * draw.uniform(0.4, 1.1))))


def _machine(draw: random.Random, kinds: set[str]) -> Machine:
    heavy = ("MatMul", "Grouped", "Flash")
    ordered = sorted(kinds)
    links = {
        "in": Link(draw.uniform(8e3, 2e4), draw.uniform(1e3, 3e3), draw.uniform(80, 200), draw.uniform(1e4, 2e5)),
        "between": Link(draw.uniform(2e4, 4e4), draw.uniform(3e3, 9e3), draw.uniform(15, 40), draw.uniform(1e4, 2e5)),
        "mixed": Link(draw.uniform(2e4, 5e4), draw.uniform(3e3, 9e3), draw.uniform(20, 45), draw.uniform(1e4, 2e5)),
    }
    return Machine(
        {kind: draw.uniform(3e3, 12e3) for kind in ordered},
        {kind: draw.uniform(0.5, 0.85) if kind.startswith(heavy) else 1.0 for kind in ordered},
        {kind: draw.uniform(0.4, 0.9) for kind in ordered},
        links,
        draw.uniform(500, 1500),
        draw.uniform(0.02, 0.06),
        float("inf"),
    )
