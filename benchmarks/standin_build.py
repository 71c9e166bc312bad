"""Hidden networks put together block by block, each on a machine of its own."""

from __future__ import annotations

import random
from dataclasses import replace

from benchmarks.standin_cluster import Block, Cluster, Stage
from benchmarks.standin_machine import Shape, Task, hidden_machine
from benchmarks.standin_network import HiddenSize
from taylor.parsers.small_run import RunSetting

VARIANTS = ("", "mqa", "shared", "module", "dense")


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
        ``dense``: a few layers without experts in front of those with experts.
    """
    draw = random.Random(seed)
    heads = draw.choice((32, 48, 64))
    width, groups = 128 * heads, 1 if variant == "mqa" else 8
    experts = draw.choice((1, 1, 32, 64))
    experts = max(experts, 32) if variant == "dense" else experts
    inner = 256 * draw.randint(10, 24) * (4 if experts == 1 else 1)
    top_k, shared = draw.choice((2, 4)), 256 * draw.randint(4, 12) * 3 // (2 if variant == "shared" else 3)
    vocabulary = 1024 * draw.randint(32, 150)
    layers = 8 * draw.randint(4, 8)
    values = 128 * groups
    kv = _fixed(values) if groups == 1 else _fixed(values, "tp")

    modules = draw.randint(1, 2) + (variant == "module")
    rows, dense_rows = (HiddenSize(1, ("seq",), ("cp", "tp")), HiddenSize(1, ("mbs",))), _tokens()
    few_rows = _tokens("tp")
    both = _fixed(width, "tp")
    few = (few_rows, _fixed(width))
    at = "module.decoder.layers.0."

    def feed_forward(layer: _Builder, inner: int) -> None:
        layer.send("allGather", "tp", 2 * width)
        wide, half = _fixed(2 * inner, "tp"), _fixed(inner, "tp")
        layer.matmul(at + "mlp.linear_fc1.weight", dense_rows, _fixed(width), wide, _fixed(2 * inner * width, "tp"))
        layer.run("SwiGlu", (dense_rows, wide), (dense_rows, half))
        layer.matmul(at + "mlp.linear_fc2.weight", dense_rows, half, _fixed(width), _fixed(inner * width, "tp"))
        layer.send("reduceScatter", "tp", 2 * width)

    layer = _Builder(random.Random(seed + 1))
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
    layer.run("Add", few, few, few)
    layer.norm(at + "pre_mlp_layernorm.weight", rows, width)
    for number in range(modules):
        own = 64 * random.Random(f"{seed} {number}").randint(2, 30)
        down = f"{at}my_module.{number}.down.weight"
        layer.matmul(down, few_rows, _fixed(width), _fixed(own), _fixed(width * own))
        layer.run(f"MyGate{number}", (few_rows, _fixed(own)), (_fixed(own),), (few_rows, _fixed(own)))
        layer.matmul(down.replace("down", "up"), few_rows, _fixed(own), _fixed(width), _fixed(width * own))
    # A dense layer begins as the others do, and has a wider MLP where they have experts.
    dense = _Builder(random.Random(seed + 5))
    dense.parameters, dense.forward = list(layer.parameters), list(layer.forward)
    if experts == 1:
        feed_forward(layer, inner)
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

    feed_forward(dense, 4 * inner)
    dense.run("Add", few, few, few)
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
    if variant == "dense":
        blocks["dense"] = dense.block()

    machine = hidden_machine(random.Random(seed + 4), {task.kind for one in blocks.values() for task in
                                                 (*one.forward, *one.backward) if not task.group})  # fmt: skip
    ranks = draw.choice((256, 512, 1024))
    dp = ranks // 64
    job = RunSetting(8, 1, min(8, experts, dp), 1, draw.choice((8192, 16384)), experts, layers, 8, dp)
    job = job.replace(dense=1 + seed % 3 if variant == "dense" else 0)
    facts = {"width": width, "heads": heads, "groups": groups, "top_k": top_k, "variant": VARIANTS.index(variant),
             "vocabulary": vocabulary, "inner": inner, "shared": shared}  # fmt: skip
    batch = ranks * draw.choice((1, 2, 4))
    start = (draw.choice((4.0, 6.0)), draw.choice((12.0, 14.0)))
    rest, hidden = draw.randint(1 << 29, 1 << 30), draw.random() < 0.5
    found = Cluster(seed, job, batch, facts, blocks, machine, start, rest, hidden)
    # Memory that a plan of the job's own degrees has to care for.
    stage: Stage = (("embedding", False), *[("layer", False)] * (layers // job.pp))
    return found.with_memory(float(round(found.peak(job, stage, job.pp, (True, False)) * draw.uniform(0.4, 1.1))))
