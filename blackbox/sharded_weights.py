"""Memory and time of weights that data parallel ranks share and gather for each layer (torch's FSDP).

A block (embedding, layer, head) is a group: its weights are gathered before each of its passes and its gradients are
reduced behind the backward pass. Groups and their buffers: torch 2.13 torch/distributed/fsdp/_fully_shard/
_fsdp_param_group.py:402-500 (gathering), 590-720 (reducing), _fsdp_collectives.py:287-345, 455-560 (buffers); groups of
torchtitan: v0.2.2 torchtitan/models/llama3/infra/parallelize.py:266-310, models/llama4/infra/parallelize.py:345-455.

- Without stages the weights of a block are freed after its forward pass and gathered again in the backward pass, but
  those of the head. One group's collective runs beside the passes of the group before it.
- With stages weights stay gathered until the last micro-batch is done. Gradients are summed up whole, and then reduced
  one block after another (torch/distributed/pipelining/stage.py:844-847, 1173-1191).
- Experts that EP splits are a group of their own over the ranks that hold the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taylor.blackbox.collective_lines import ALL_REDUCE, Collective
from taylor.blackbox.recorded import RecordedRun
from taylor.parsers.small_run import RunSetting, ShardedWeights

GATHER, REDUCE = "nccl:allgather", "nccl:reducescatter"
"""Kinds of collectives by the names of traces (`parsers.profiles.kineto_tables`)."""
COPY_OUT, COPY_IN = "split_with_sizes_copy", "chunk_cat"
"""Operators that take weights out of the gathered buffer, and gradients into the reduced one."""
Elements = tuple[float, float]
"""Elements of a block's dense parameters, and of its experts', on a rank while its weights are gathered."""


@dataclass(frozen=True)
class BlockBytes:
    """A block's bytes of one micro-batch: kept between its passes, the most in each of them, and its input alone."""

    kept: float
    forward: float
    backward: float
    input: float


@dataclass(frozen=True)
class WeightMemory:
    """Bytes of gathered weights and of gradients.

    Parameters
    ----------
    precision : ShardedWeights
    """

    precision: ShardedWeights

    def shard(self, elements: Elements, run: RunSetting) -> float:
        """A rank's share of a block's gradients, which stays until the optimizer's step."""
        return self.precision.stored_bytes * (elements[0] / run.shards + elements[1] / run.expert_shards)

    def resident(self, elements: Elements, run: RunSetting, *, accumulates: bool) -> float:
        """Bytes of a block's weights and gradients beside each micro-batch but the first ones."""
        if run.pp > 1:
            return (self.precision.weight_bytes + self.precision.gradient_bytes) * sum(elements)
        return self.shard(elements, run) if accumulates else 0.0

    def peak(
        self,
        run: RunSetting,
        blocks: Sequence[BlockBytes],
        elements: Sequence[Elements],
        in_flight: int,
        *,
        accumulates: bool,
    ) -> float:
        """The most bytes of micro-batches, weights and gradients on a stage.

        Parameters
        ----------
        in_flight : int
            Micro-batches in flight at most.
        accumulates : bool
            A step has more of them, so that gradients are there beside as many in flight.
        """
        if run.pp > 1:
            return self._of_stage(run, blocks, elements, in_flight, accumulates=accumulates)
        return self._of_model(run, blocks, elements, accumulates=accumulates)

    def _of_model(
        self, run: RunSetting, blocks: Sequence[BlockBytes], elements: Sequence[Elements], *, accumulates: bool
    ) -> float:
        """Without stages, where weights are freed and gathered again."""
        width, reduced = self.precision.weight_bytes, self.precision.gradient_bytes
        near = [0.0, *(sum(each) for each in elements), 0.0]
        shards = [self.shard(each, run) for each in elements]
        before, most = 0.0, sum(shards)
        there = sum(shards) if accumulates else 0.0
        later = there if accumulates else sum(shards)
        for at, block in enumerate(blocks):
            own, previous, following = near[at + 1], near[at], near[at + 2]
            later -= 0.0 if accumulates else shards[at]
            # Where experts are a group of their own, the next groups are asked for while this one computes.
            gathered = own + (following if run.ep > 1 else 0.0)
            if at == len(blocks) - 1:
                # The head's buffer is gone before the loss, and the last layer is gathered in the head's backward pass.
                gathered = previous
            forward = block.forward + width * (own + gathered) + there
            backward = block.backward + width * (own + previous) + reduced * following + later
            # Behind its passes a block's gradients are there as they were and as they are reduced.
            behind = block.input + (width + reduced) * own + width * previous + later + shards[at]
            most = max(most, before + forward, before + backward, before + behind)
            before += block.kept
        return most

    def _of_stage(
        self,
        run: RunSetting,
        blocks: Sequence[BlockBytes],
        elements: Sequence[Elements],
        in_flight: int,
        *,
        accumulates: bool,
    ) -> float:
        """With stages, where weights and the sums of gradients stay until the step ends."""
        width, reduced = self.precision.weight_bytes, self.precision.gradient_bytes
        whole = [sum(each) for each in elements]
        weights, sums = width * sum(whole), reduced * sum(whole)
        kept = sum(block.kept for block in blocks)
        flying = (in_flight - 1) * kept
        first = before = most = 0.0
        later = 0.0 if accumulates else sums
        for block, size in zip(blocks, whole, strict=True):
            first += width * size
            later -= 0.0 if accumulates else reduced * size
            forward = weights + flying + block.forward + (sums if accumulates else 0.0)
            backward = weights + flying + block.backward + (sums if accumulates else later)
            behind = weights + flying + block.input + (width + reduced) * size + later
            most = max(most, before + forward, before + backward, before + behind)
            # In the first micro-batch the gathered buffer stays until the next block's is there.
            most = max(most, before + first + width * size + block.forward)
            if in_flight > 1:
                # The second backward pass runs beside one micro-batch less and all sums.
                most = max(most, before + weights + sums + flying - kept + block.backward)
            before += block.kept
        ending, left = sums, weights
        for size, each in zip(reversed(whole), reversed(elements), strict=True):
            left -= width * size
            most = max(most, left + ending + reduced * size + self.shard(each, run))
            ending += self.shard(each, run) - reduced * size
        return most


@dataclass(frozen=True)
class PassTimes:
    """Times of both passes of one micro-batch: ns from the first gathered weight to the first operator, from there to
    the last operator, and on to the last reduced gradient."""

    first: float
    operators: float
    last: float

    @property
    def all(self) -> float:
        """Together."""
        return self.first + self.operators + self.last


@dataclass(frozen=True)
class GroupTimes:
    """A block's time on the device: operators of both passes, weights gathered, gradients reduced, ns."""

    forward: float
    backward: float
    gather: float
    reduce: float


@dataclass(frozen=True)
class WeightTimes:
    """Times of gathering and reducing.

    Parameters
    ----------
    copy_out, copy_in : float
        ns of an element of weights taken out of the gathered buffer, and of gradients taken into the reduced one,
        beside the operators' own time.
    collective_ns : callable
        Time of a collective.
    """

    precision: ShardedWeights
    copy_out: float
    copy_in: float
    collective_ns: Callable[[Collective], float]

    def gather_ns(self, elements: Elements, run: RunSetting) -> float:
        """Time in which a block's weights are gathered."""
        return sum(self._group_ns(GATHER, size * self.precision.weight_bytes, *group)
                   for size, group in self._groups(elements, run))  # fmt: skip

    def reduce_ns(self, elements: Elements, run: RunSetting) -> float:
        """Time in which a block's gradients are reduced, over all copies of the weights."""
        total = 0.0
        for size, (ranks, stride) in self._groups(elements, run):
            whole = size * self.precision.gradient_bytes
            total += self._group_ns(REDUCE, whole, ranks, stride)
            total += self._group_ns(ALL_REDUCE, whole / ranks, run.replicas, run.tp * run.shards)
        return total

    def copies_ns(self, elements: Elements) -> tuple[float, float]:
        """Time of the copies beside a forward pass, and beside a backward pass."""
        whole = sum(elements)
        return self.copy_out * whole, (self.copy_out + self.copy_in) * whole

    def _groups(self, elements: Elements, run: RunSetting) -> list[tuple[float, tuple[int, int]]]:
        dense, expert = elements
        if run.ep == 1:
            return [(dense + expert, (run.shards, run.tp))]
        return [(dense, (run.shards, run.tp)), (expert, (run.expert_shards, run.tp * run.ep))]

    def _group_ns(self, kind: str, size: float, ranks: int, stride: int) -> float:
        return self.collective_ns(Collective(kind, ranks, stride, round(size))) if ranks > 1 and size else 0.0


def forward_ns(groups: Sequence[GroupTimes]) -> tuple[float, float]:
    """(time until the first group's weights are there, time from then on) of a forward pass over groups in order.

    A group's weights are gathered beside the operators of the one before it, and no earlier.
    """
    link = begin = end = first = 0.0
    for at, group in enumerate(groups):
        link = max(link, begin) + group.gather
        begin = max(end, link)
        end = begin + group.forward
        first = begin if at == 0 else first
    return first, end - first


def backward_ns(groups: Sequence[GroupTimes]) -> tuple[float, float]:
    """(time to the last operator, time from then on) of a backward pass over groups in the order of the model.

    The last group's weights are still there. The others' are gathered beside the operators of the group behind them; a
    group's gradients are reduced beside those of the group before it, which waits for them.
    """
    link = begin = end = reduced = done = 0.0
    for at, group in enumerate(reversed(groups)):
        if at:
            link = max(link, begin) + group.gather
            # The gradients of the group behind are asked for when its operators are done.
            begin = max(end, link)
            link = max(link, end) + groups[len(groups) - at].reduce
            reduced = link
        done = begin + group.backward
        end = max(done, reduced)
    return done, end - done + (groups[0].reduce if groups else 0.0)


def both_ns(groups: Sequence[GroupTimes]) -> PassTimes:
    """Both passes of one micro-batch without stages."""
    first, forward = forward_ns(groups)
    backward, last = backward_ns(groups)
    return PassTimes(first, forward + backward, last)


def weight_samples(run: RecordedRun) -> list[tuple[str, tuple[int, int], int, float]]:
    """Kind, group, bytes sent and ns of each collective of a run's weights; those of unknown groups are left out."""
    setting, found = run.setting, []
    for sample in run.of_weights:
        transfer = run.transfers.get(sample.name)
        if transfer is None or transfer.ranks < 2:
            continue
        kind = sample.operator.type
        if "allreduce" in kind:
            group = (setting.replicas, setting.tp * setting.shards)
        elif transfer.ranks == setting.shards:
            group = (setting.shards, setting.tp)
        else:
            group = (setting.expert_shards, setting.tp * setting.ep)
        if group[0] == transfer.ranks:
            found.append((kind, group, transfer.bytes, transfer.ns))
    return found


def copy_ns(runs: Sequence[RecordedRun], elements: Sequence[Sequence[Elements]]) -> tuple[float, float]:
    """ns an element of both copies, over all runs; each run's blocks are given with their elements."""
    out = into = gathered = reduced = 0.0
    for run, blocks in zip(runs, elements, strict=True):
        whole = [sum(each) for each in blocks]
        gathered += 2 * sum(whole) - whole[-1]
        reduced += sum(whole)
        out += sum(one.duration_ns for one in run.of_weights if COPY_OUT in one.operator.type)
        into += sum(one.duration_ns for one in run.of_weights if COPY_IN in one.operator.type)
    return out / max(1.0, gathered), into / max(1.0, reduced)
