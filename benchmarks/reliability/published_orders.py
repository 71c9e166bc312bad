"""Orders of tasks as others build them: their code run here where it can be, else restated from their source.

An order is a list of tasks (direction, interleave, micro-batch, sequence split) of one stage. Nothing of Taylor's is
used but the numbers that stand for directions. A backward that its author runs whole is, for schedules with weight
gradients apart, the input gradient and the weight gradient one after the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from benchmarks.reliability.outside import loaded, package, source, without_imports, without_package

FORWARD, BACKWARD, WEIGHT_GRADIENT = 0, 1, 2

Task = tuple[int, int, int, int]
Order = list[Task]
OfStage = Callable[[int], Order]


def most_alive(order: Order, split_backward: bool) -> int:
    """Pieces that a stage keeps at the worst moment of an order."""
    last = WEIGHT_GRADIENT if split_backward else BACKWARD
    alive = most = 0
    for direction, *_ in order:
        alive += (direction == FORWARD) - (direction == last)
        most = max(most, alive)
    return most


# torch ---------------------------------------------------------------------------------------------------------


def torch_order(name: str, S: int, V: int, m: int) -> OfStage:
    """The ``pipeline_order`` that a class of ``torch.distributed.pipelining.schedules`` makes, on no device."""
    import torch.distributed.pipelining.schedules as schedules

    kinds = schedules._ComputationType
    directions = {
        kinds.FORWARD: (FORWARD,), kinds.BACKWARD_INPUT: (BACKWARD,), kinds.BACKWARD_WEIGHT: (WEIGHT_GRADIENT,),
        kinds.FULL_BACKWARD: (BACKWARD, WEIGHT_GRADIENT) if name == "ScheduleDualPipeV" else (BACKWARD,),
    }  # fmt: skip

    def of_stage(s: int) -> Order:
        return [
            (direction, action.stage_index // S, action.microbatch_index, 0)
            for action in _torch_actions(name, S, V, m, s)
            for direction in directions.get(action.computation_type, ())
        ]

    return of_stage


def torch_whole(name: str, S: int, V: int, m: int, stage: int) -> set[tuple[int, int]]:
    """Interleave and micro-batch of the backwards that such a class runs whole on a stage."""
    import torch.distributed.pipelining.schedules as schedules

    whole = schedules._ComputationType.FULL_BACKWARD
    return {
        (action.stage_index // S, action.microbatch_index)
        for action in _torch_actions(name, S, V, m, stage)
        if action.computation_type == whole
    }


def _torch_actions(name: str, S: int, V: int, m: int, stage: int) -> list[Any]:
    """A stage's actions, those that run at once one by one."""
    import torch.distributed.pipelining.schedules as schedules

    of_torch = getattr(schedules, name)
    bare: Any = of_torch.__new__(of_torch)
    bare.__dict__.update(
        pp_group_size=S, n_local_stages=V, num_stages=S * V, _num_stages=S * V, _n_microbatches=m,
        number_of_rounds=max(1, m // S), microbatches_per_round=m // max(1, m // S), _stages=[SimpleNamespace()],
    )  # fmt: skip
    whole = name == "ScheduleGPipe"
    listed = bare._get_pipeline_order()[stage] if whole else bare._calculate_single_rank_operations(stage)
    return [part for action in listed if action is not None for part in action.sub_actions or (action,)]


NEWEST_MEGATRON = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"

# Megatron-core ---------------------------------------------------------------------------------------------------


@cache
def _newest_schedules() -> Any:
    """Megatron-LM's schedules.py of `NEWEST_MEGATRON` alone: the whole package needs a GPU's libraries."""
    folder = "megatron/core/pipeline_parallel"
    text, absent = without_package(source("Megatron-LM", NEWEST_MEGATRON, f"{folder}/utils.py"), "megatron")
    groups = {"get_pg_size": lambda group: group.size(), "get_pg_rank": lambda group: group.rank()}
    places = vars(loaded("newest_utils", text, **{**absent, **groups}))
    own = {name: each for name, each in places.items() if name.startswith(("is_pp_", "is_vp_"))}
    text, absent = without_package(source("Megatron-LM", NEWEST_MEGATRON, f"{folder}/schedules.py"), "megatron", "nemo")
    traced = {"_otel_trace_fn": lambda *words: lambda function: function}
    return loaded("newest_schedules", text, **{**absent, **own, **traced})


def megatron_core_order(
    S: int, V: int, m: int, group: int, stage: int, overlapped: bool = False, newest: bool = False
) -> Order:
    """Tasks of ``forward_backward_pipelining_with(out)_interleaving`` on a stage, without transfers and layers.

    megatron-core's own function is called, that of the release or of the `newest` commit; forward and backward steps
    write themselves down.
    """
    schedules = _newest_schedules() if newest else package("megatron.core.pipeline_parallel.schedules")
    torch = package("torch")
    order: Order = []
    begun: Counter[int] = Counter()

    def forward_step(
        *words: Any, current_microbatch: int | None = None, vp_stage: int | None = None, **rest: Any
    ) -> Any:
        chunk = vp_stage or 0
        micro_batch = begun[chunk] if current_microbatch is None else current_microbatch
        begun[chunk] += 1
        order.append((FORWARD, chunk, micro_batch, 0))
        return (chunk, micro_batch), 0

    def backward_step(given: Any, output: Any, *rest: Any) -> Any:
        [output] = output if isinstance(output, list) else [output]
        order.append((BACKWARD, *output, 0))
        return "gradient"

    def merged(
        *words: Any, f_virtual_microbatch_id: Any = None, b_virtual_microbatch_id: Any = None, **rest: Any
    ) -> Any:
        begin, end, begin_back, _, micro_batch_of, chunk_of = words[6:12]
        forward = gradient = None
        if f_virtual_microbatch_id is not None:
            chunk = chunk_of(f_virtual_microbatch_id, forward=True)
            micro_batch = micro_batch_of(f_virtual_microbatch_id, forward=True)
            begin(f_virtual_microbatch_id, chunk, micro_batch)
            forward, _ = forward_step(current_microbatch=micro_batch, vp_stage=chunk)
            end(chunk, forward, 0)
        if b_virtual_microbatch_id is not None:
            chunk = chunk_of(b_virtual_microbatch_id, forward=False)
            gradient = backward_step(*begin_back(b_virtual_microbatch_id, chunk))
        return forward, gradient

    class Communicator:
        pp_group = SimpleNamespace(size=lambda: S, rank=lambda: stage)
        is_pp_first_stage, is_pp_last_stage = stage == 0, stage == S - 1
        num_warmup_microbatches = 0
        total_stages, current_stage = S, stage

        def __getattr__(self, name: str) -> Callable[..., Any]:
            both = "forward_backward" in name
            return lambda *words, **rest: ("input", "gradient") if both else "tensor"

        def send_forward_recv_forward(self, *words: Any, **rest: Any) -> str:
            return "input"

        def send_backward_recv_backward(self, *words: Any, **rest: Any) -> str:
            return "gradient"

        def send_forward_recv_backward(self, *words: Any, **rest: Any) -> str:
            return "gradient"

        def send_backward_recv_forward(self, *words: Any, **rest: Any) -> str:
            return "input"

    one = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
    groups = schedules.ProcessGroupCollection.__new__(schedules.ProcessGroupCollection)
    vars(groups).update(tp=one, cp=one, pp=Communicator.pp_group, embd=one, pos_embd=None, dp_cp=one, tp_dp_cp=one)
    config = _Settings(
        microbatch_group_size_per_vp_stage=group,
        hidden_size=8,
        virtual_pipeline_model_parallel_size=V if V > 1 else None,
        overlap_moe_expert_parallel_comm=overlapped,
    )
    chunks = [torch.nn.Module() for _ in range(V)]
    for chunk in chunks:
        chunk.config = config
    replaced = {
        "combined_1f1b_schedule_for_interleaved_pipelining": merged,
        "forward_step": forward_step, "backward_step": backward_step, "torch": _OnHost(torch),
        "deallocate_output_tensor": lambda *words: None, "get_model_type": lambda model: None,
        "get_model_config": lambda model: config, "nvtx_range_push": lambda **rest: None,
        "nvtx_range_pop": lambda **rest: None,
    }  # fmt: skip
    before = {name: getattr(schedules, name) for name in replaced}
    vars(schedules).update(replaced)
    run = (
        schedules.forward_backward_pipelining_with_interleaving
        if V > 1
        else schedules.forward_backward_pipelining_without_interleaving
    )
    try:
        run(
            forward_step_func=None, data_iterator=[None] * V if V > 1 else None, model=chunks if V > 1 else chunks[0],
            num_microbatches=m, seq_length=8, micro_batch_size=1, p2p_communicator=Communicator(), pg_collection=groups,
        )  # fmt: skip
    finally:
        vars(schedules).update(before)
    return order


class _Settings:
    """A configuration in which everything that is not given is off."""

    def __init__(self, **fields: Any):
        self.__dict__.update(fields)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class _OnHost:
    """torch, whose tensors on a GPU are on the host."""

    def __init__(self, torch: Any):
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def zeros(self, *words: Any, device: Any = None, **rest: Any) -> Any:
        return self._torch.zeros(*words, **rest)

    tensor = zeros


# DeepSeek ----------------------------------------------------------------------------------------------------------


@cache
def _dual_pipe_v() -> Any:
    import torch

    text = without_imports(source("DualPipe", "HEAD", "dualpipe/dualpipev.py"), "dualpipe")
    store = SimpleNamespace(clear=lambda: None, pop=None, funcs_queue=SimpleNamespace(empty=lambda: True))
    nothing = SimpleNamespace(TENSOR_SHAPES=(), TENSOR_DTYPE=())
    return loaded(
        "dualpipev", text.replace("import dualpipe.comm as comm", ""), comm=nothing, WeightGradStore=store,
        run_backward=None, scatter=lambda *words: [], gather=None,
    ), store, torch  # fmt: skip


def dual_pipe_v_order(S: int, m: int, rank: int) -> Order:
    """``DualPipeV.step`` of github.com/deepseek-ai/DualPipe, run; its chunks write themselves down."""
    module, store, torch = _dual_pipe_v()
    pipe = module.DualPipeV.__new__(module.DualPipeV)
    torch.nn.Module.__init__(pipe)
    order: Order = []
    begun: Counter[tuple[int, int]] = Counter()
    queue: deque[Task] = deque()
    pipe.rank, pipe.num_ranks, pipe.is_first_rank, pipe.is_last_rank = rank, S, False, rank == S - 1
    pipe.overlapped_forward_backward = False

    def next_of(direction: int, phase: int) -> int:
        begun[direction, phase] += 1
        return begun[direction, phase] - 1

    def forward(phase: int) -> None:
        order.append((FORWARD, phase, next_of(FORWARD, phase), 0))

    def backward(phase: int, enable_zb: bool = False) -> None:
        i = next_of(BACKWARD, phase)
        order.append((BACKWARD, phase, i, 0))
        (queue if enable_zb else order).append((WEIGHT_GRADIENT, phase, i, 0))

    pipe._forward_compute_chunk, pipe._backward_compute_chunk = forward, backward
    for name in ("_recv_forward", "_send_forward", "_recv_backward", "_send_backward"):
        setattr(pipe, name, lambda phase: None)
    pipe._commit_and_wait_comm = lambda: None
    store.pop = lambda: order.append(queue.popleft())
    pipe.step(num_chunks=m)
    assert not queue
    return order


# sail-sg's zero bubble -----------------------------------------------------------------------------------------------

ZERO_BUBBLE = "39f2c186a27580b7051eb51e0f651e1efd0a8170"
_ZB = "megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py"


@cache
def _zero_bubble() -> Any:
    text = without_imports(source("zero-bubble", ZERO_BUBBLE, _ZB), "megatron", "pulp", "torch")
    anything = SimpleNamespace(Tensor=object)
    return loaded("zb", text, GraphConfig=object, ScheduledNode=object, FuncType=object, torch=anything)


def zero_bubble_time(S: int, m: int, times: tuple[int, int, int], most: int) -> float:
    """End time of the order of the authors' generator, `most` micro-batches alive on a stage at the most."""
    module = _zero_bubble()
    config = SimpleNamespace(
        n_stages=S, n_micro=m, cost_comm=0, max_mem=[2 * most] * S,
        cost_f=[times[0]] * S, cost_b=[times[1]] * S, cost_w=[times[2]] * S,
        mem_f=[2] * S, mem_b=[-1] * S, mem_w=[-1] * S,
    )  # fmt: skip
    graph = module.Graph.build_graph(S, m, config)
    return float(max(module.initial_solution(graph, False)[2]))


# MindSpore, restated -----------------------------------------------------------------------------------------------


def mindspore_interleaving(S: int, V: int, m: int, low_memory: bool, stage: int) -> Order:
    """``InterleavedScheduler`` (mindspore, pipeline_transformer/pipeline_scheduler.cc).

    ``SortFuncBetweenMicro`` sorts by loop, chunk and micro-batch; `bias` of ``Reorder`` or ``MemoryOptimizedReorder``
    forwards come before the first backward, with which the next forward then alternates.
    """
    offset = m % S

    def loop(i: int) -> int:
        return 0 if i < S + offset else (i - offset) // S

    tasks = [(v, i) for v in range(V) for i in range(m)]
    forwards = sorted(tasks, key=lambda task: (loop(task[1]), task[0], task[1]))
    backwards = sorted(tasks, key=lambda task: (loop(task[1]), -task[0], task[1]))
    bias = (S + offset) * (V - 1) + (S - stage - 1) * (1 if low_memory else 2)
    order: Order = []
    for k, (v, i) in enumerate(forwards):
        order.append((FORWARD, v, i, 0))
        if k >= bias:
            order.append((BACKWARD, *backwards[k - bias], 0))
    return order + [(BACKWARD, v, i, 0) for v, i in backwards[max(0, len(forwards) - bias) :]]


def mindspore_seqpipe(S: int, V: int, m: int, n: int, s: int, name: str = "seqpipe") -> Order:
    """One stage of ``SeqpipeScheduler`` (mindspore, pipeline_transformer/seqpipe_scheduler.cc) or of those made of it.

    ``SeqvppScheduler`` has cycles of S // n micro-batches, ``SeqsmartvppScheduler`` those and a bias of 1
    (``ComputeBias``). ``ComputeCycleList`` deals the micro-batches into cycles, ``ExtractDataStruct`` counts the
    warm-up, and ``MakeExecuteOrder`` sends backwards the oldest micro-batch in flight, its last chunk and piece first.
    """
    size = S if name == "seqpipe" else S // n
    cycles = [m] if m < size else [size] * (m // size)
    for extra in range(m - sum(cycles)):
        cycles[extra % len(cycles)] += 1
    forwards, first = [], 0
    for cycle in cycles:
        forwards += [(v, first + i, q) for v in range(V) for i in range(cycle) for q in range(n)]
        first += cycle
    bias = 1 if V == 1 or name == "seqsmartvpp" else 2
    warm_up = min((S - 1 - s) * bias + (V - 1) * cycles[0] * n + n - 1, len(forwards) - 1)

    order: Order = []
    waiting: deque[int] = deque()
    begun: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def send_back() -> None:
        i = waiting.popleft()
        v, q = begun[i].pop()
        order.append((BACKWARD, v, i, q))

    for index, (v, i, q) in enumerate(forwards):
        order.append((FORWARD, v, i, q))
        waiting.append(i)
        begun[i].append((v, q))
        if index >= warm_up:
            send_back()
    while waiting:
        send_back()
    return order


def mindspore_zero_bubble_v(S: int, m: int, stage: int) -> Order:
    """``ZeroBubbleV::Reorder`` (mindspore, pipeline_transformer/zero_bubble_v.cc) with ``ZBV_offset`` unset.

    The backwards listed by ``InferNeedDetachInfo`` (detach_backward.cc) leave their weight gradient in the
    queue of their chunk, in the order of micro-batches; every other one is whole. An empty queue is an error.
    """
    detached = {(1, i) for i in range(S - stage - 1)}
    detached |= {(1, m - 1 - i) for i in range((stage + 1) // 2)}
    detached |= {(0, m - 1 - i) for i in range(S - (stage + 1) // 2)}
    queues = {(kind, chunk): deque(range(m)) for kind in "FB" for chunk in (0, 1)}
    weights = {chunk: deque(sorted(i for c, i in detached if c == chunk)) for chunk in (0, 1)}
    order: Order = []

    def run(words: str) -> None:
        for word in words.split():
            kind, chunk = word[0], int(word[1])
            if kind == "W":
                order.append((WEIGHT_GRADIENT, chunk, weights[chunk].popleft(), 0))
                continue
            i = queues[kind, chunk].popleft()
            order.append((FORWARD if kind == "F" else BACKWARD, chunk, i, 0))
            if kind == "B" and (chunk, i) not in detached:
                order.append((WEIGHT_GRADIENT, chunk, i, 0))

    after = S - stage - 1
    run("F0 " * (2 * after))
    run("F0 F1 " * (stage + 1))
    run("B1 W1 F1 " * after)
    run("B1 F0 B0 F1 " * (m - 2 * S + stage + 1))
    run("B1 B0 F1 " * after)
    run("B1 B0 " * (stage + 1))
    for i in range(after):
        run("W0 B0" if i >= (S - 1 if stage == 0 else 0) else "B0")
    run("W0 " * len(weights[0]))
    run("W1 " * len(weights[1]))
    return order


def dual_pipe_v_by_rule(S: int, m: int, rank: int) -> Order:
    """``DualPipeV.step`` restated as a script, for machines without DeepSeek's code.

    F and B take the next micro-batch of a phase; ``B1z`` is a backward with ``enable_zb``, whose weight
    gradient goes to the end of one queue for both phases; W takes the head of that queue.
    """
    after = S - rank - 1
    script = ["F0"] * (2 * after)
    script += ["F0", "F1"] * (rank + 1)
    script += ["B1z", "W", "F1"] * after
    script += ["F0", "B1", "F1", "B0"] * (m - 2 * S + rank + 1)
    script += ["B1", "F1", "B0"] * after
    zero_bubble = ""
    for i in range(rank + 1):
        if i == (rank + 1) // 2 and rank % 2 == 1:
            zero_bubble = "z"
        script.append("B1" + zero_bubble)
        if i == (rank + 1) // 2 and rank % 2 == 0:
            zero_bubble = "z"
        script.append("B0" + zero_bubble)
    script += ["W", "B0z"] * after
    script += ["W"] * (rank + 1)
    return list(_played(script))


def _played(script: list[str]) -> Iterator[Task]:
    counts: Counter[str] = Counter()
    queue: deque[Task] = deque()
    for word in script:
        if word == "W":
            yield queue.popleft()
            continue
        kind, phase = word[:2], int(word[1])
        i = counts[kind]
        counts[kind] += 1
        yield (FORWARD if kind[0] == "F" else BACKWARD, phase, i, 0)
        if kind[0] == "B":
            weight = (WEIGHT_GRADIENT, phase, i, 0)
            if word.endswith("z"):
                queue.append(weight)
            else:
                yield weight
    assert not queue


def megatron_interleaving(S: int, V: int, m: int, group: int, stage: int, overlapped: bool = False) -> Order:
    """``get_schedule_table`` and ``get_pp_rank_microbatches`` of Megatron-LM's pipeline_parallel/schedules.py.

    `overlapped`: with ``--overlap-moe-expert-parallel-comm``, one more forward before the merged pairs.
    """
    table = [(i, v) for start in range(0, m, group) for v in range(V) for i in range(start, min(start + group, m))]
    warm_up = min(2 * (S - stage - 1) + (V - 1) * group + overlapped, len(table))
    forwards = [(FORWARD, v, i, 0) for i, v in table]
    backwards = [(BACKWARD, V - 1 - v, i, 0) for i, v in table]
    order = forwards[:warm_up]
    for k in range(len(table)):
        order += forwards[warm_up + k : warm_up + k + 1] + backwards[k : k + 1]
    return order
