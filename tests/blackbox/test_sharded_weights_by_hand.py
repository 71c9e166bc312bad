"""Bytes and times of sharded weights, of blocks whose figures are written down by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from taylor.blackbox.collective_lines import ALL_REDUCE, Collective
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.sharded_weights import (
    GATHER,
    REDUCE,
    BlockBytes,
    GroupTimes,
    WeightMemory,
    WeightTimes,
    backward_ns,
    both_ns,
    copy_ns,
    forward_ns,
    weight_samples,
)
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunLog, RunSetting, ShardedWeights

MEMORY = WeightMemory(ShardedWeights(2, 8, 4))
MODEL, STAGE = RunSetting(dp=4), RunSetting(dp=4, pp=2)
ELEMENTS = [(10.0, 0.0), (100.0, 0.0), (40.0, 0.0)]
SPLIT = RunSetting(dp=4, ep=2, experts=4)
NOTHING = BlockBytes(0.0, 0.0, 0.0, 0.0)


def peak(run: RunSetting, blocks: list[BlockBytes], in_flight: int, accumulates: bool, elements: Any = None) -> float:
    return MEMORY.peak(run, blocks, elements or ELEMENTS, in_flight, accumulates=accumulates)


def beside(
    run: RunSetting, at: int, pass_: str, in_flight: int = 1, accumulates: bool = False, kept: float = 0
) -> float:
    """Bytes beside one pass of a block whose own are more than all others."""
    own = {"forward": BlockBytes(kept, 1e9, 0, 0), "backward": BlockBytes(kept, 0, 1e9, 0),
           "input": BlockBytes(kept, 0, 0, 1e9)}[pass_]  # fmt: skip
    blocks = [own if one == at else BlockBytes(kept, 0, 0, 0) for one in range(3)]
    return peak(run, blocks, in_flight, accumulates) - 1e9


def test_a_shard_stays_until_the_step_and_whole_sums_do_under_stages():
    assert MEMORY.shard((10.0, 0.0), MODEL) == 4 * 10 / 4 and MEMORY.shard((10.0, 6.0), SPLIT) == 4 * (10 / 4 + 6 / 2)
    assert MEMORY.resident((10.0, 6.0), MODEL, accumulates=True) == 4 * 16 / 4
    assert MEMORY.resident((10.0, 6.0), MODEL, accumulates=False) == 0
    assert MEMORY.resident((10.0, 6.0), STAGE, accumulates=False) == 10 * 16


def test_without_stages_a_pass_has_the_weights_of_its_neighbours_and_the_gradients_behind_it():
    # Shards of gradients: 10, 100 and 40 bytes; those of the blocks behind are there in a backward pass.
    forward = [2 * (10 + 10), 2 * (100 + 100), 2 * (40 + 100)]
    backward = [2 * 10 + 8 * 100 + 140, 2 * (100 + 10) + 8 * 40 + 40, 2 * (40 + 100) + 0]
    behind = [10 * 10 + 140 + 10, 10 * 100 + 2 * 10 + 40 + 100, 10 * 40 + 2 * 100 + 0 + 40]
    for at in range(3):
        assert beside(MODEL, at, "forward") == forward[at]
        assert beside(MODEL, at, "backward") == backward[at]
        assert beside(MODEL, at, "input") == behind[at]
        # What blocks in front keep is there too.
        assert beside(MODEL, at, "forward", kept=7) == forward[at] + 7 * at
    # With gradients of earlier micro-batches all shards are there in each pass.
    for at in range(3):
        assert beside(MODEL, at, "forward", accumulates=True) == forward[at] + 150
        later = 140 if at == 0 else 40 if at == 1 else 0
        assert beside(MODEL, at, "backward", accumulates=True) == backward[at] - later + 150
        assert beside(MODEL, at, "input", accumulates=True) == behind[at] - later + 150
    # Nothing is more than the gradients after the passes.
    assert peak(MODEL, [NOTHING] * 3, 1, False, [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0)]) == 10 + 1
    # Where experts are a group of their own the next groups are asked for meanwhile.
    assert beside(SPLIT, 0, "forward") == 2 * (10 + 10 + 100) and beside(SPLIT, 2, "forward") == forward[2]


def test_with_stages_weights_and_sums_of_gradients_stay():
    weights, sums = 2 * 150, 8 * 150
    for at, (size, behind) in enumerate(((10, 140), (100, 40), (40, 0))):
        # In the first micro-batch: the weights so far, and the buffer that the block's are gathered in.
        gathered = {0: 20 + 20, 1: 220 + 200, 2: 300 + 80}[at]
        assert beside(STAGE, at, "forward") == max(weights, gathered)
        assert beside(STAGE, at, "backward") == weights + 8 * behind
        assert beside(STAGE, at, "input") == weights + 10 * size + 8 * behind
        assert beside(STAGE, at, "forward", accumulates=True) == weights + sums
        assert beside(STAGE, at, "backward", accumulates=True) == weights + sums
        assert beside(STAGE, at, "input", accumulates=True) == weights + 10 * size
        # Two more in flight keep 3 blocks each; of the first backward pass no sums are there, of the second all.
        assert beside(STAGE, at, "forward", 3, kept=7) == max(weights + 2 * 21, gathered) + 7 * at
        assert beside(STAGE, at, "backward", 3, kept=7) == weights + sums + 21 + 7 * at
        assert beside(STAGE, at, "input", 3, kept=7) == weights + 2 * 21 + 7 * at + 10 * size + 8 * behind


def test_the_first_micro_batch_of_a_stage_has_a_gathered_buffer_beside_its_weights():
    stage, sizes = RunSetting(dp=1 << 30, pp=2), [(100.0, 0.0)]
    weights = WeightMemory(ShardedWeights(2, 0, 0))
    assert weights.peak(stage, [NOTHING], sizes, 1, accumulates=False) == 2 * 100 + 2 * 100
    two = weights.peak(stage, [NOTHING, BlockBytes(0, 500, 0, 0)], [(100.0, 0.0), (60.0, 0.0)], 1, accumulates=False)
    assert two == 2 * 160 + 2 * 60 + 500


def test_at_the_end_of_a_step_gradients_are_reduced_block_after_block():
    # From the last block on: its weights are gone, its sum is there as it was, as it is reduced, and as a shard.
    blocks, plain = [NOTHING] * 3, RunSetting(dp=4, pp=2)
    first = 2 * 110 + 8 * 150 + 8 * 40 + 40
    second = 2 * 10 + (8 * 110 + 40) + 8 * 100 + 100
    assert peak(plain, blocks, 1, False) == max(first, second) == 1840
    assert first == 1780
    whole = WeightMemory(ShardedWeights(2, 8, 16))
    third = (8 * 10 + 4 * 140) + 8 * 10 + 4 * 10
    assert whole.peak(plain, blocks, ELEMENTS, 1, accumulates=False) == max(2 * 10 + 8 * 110 + 160 + 800 + 400, third)


TIMES = WeightTimes(ShardedWeights(2, 4), 0.5, 0.25, lambda one: {GATHER: 1, REDUCE: 1000, ALL_REDUCE: 10**6}[one.kind]
                    * one.bytes + one.group + one.stride / 1000)  # fmt: skip


def test_groups_of_dense_weights_and_of_experts_are_gathered_one_after_another():
    run = RunSetting(tp=2, dp=8, replicas=2, ep=2, experts=4)
    assert TIMES.gather_ns((10.0, 6.0), run) == pytest.approx((20 + 4 + 0.002) + (12 + 2 + 0.004))
    assert TIMES.gather_ns((10.0, 0.0), run) == pytest.approx(20 + 4 + 0.002)
    assert TIMES.gather_ns((10.0, 6.0), run.replace(ep=1)) == pytest.approx(32 + 4 + 0.002)
    assert TIMES.gather_ns((10.0, 6.0), run.replace(ep=4)) == pytest.approx(20 + 4 + 0.002)  # Experts have no shards.
    one, two = 40_000 + 4 + 0.002, 24_000 + 2 + 0.004
    copies = (10e6 + 2 + 0.008) + (12e6 + 2 + 0.008)
    assert TIMES.reduce_ns((10.0, 6.0), run) == pytest.approx(one + two + copies)
    assert TIMES.reduce_ns((10.0, 6.0), run.replace(replicas=1, ep=1)) == pytest.approx(64_000 + 8 + 0.002)
    assert TIMES.copies_ns((10.0, 6.0)) == (8.0, 12.0)


def test_a_forward_pass_waits_for_weights_that_take_longer_than_the_operators_before():
    groups = [GroupTimes(forward, 0, gather, 0) for forward, gather in ((10, 3), (5, 12), (4, 1), (6, 9))]
    # They begin at 3, 15, 20 and 29: the second's weights are gathered from 3 to 15, the last one's from 20 on.
    assert forward_ns(groups) == (3, 29 + 6 - 3)
    assert forward_ns(groups[:1]) == (3, 10) and forward_ns([]) == (0, 0)


def test_a_backward_pass_waits_for_gradients_of_the_group_behind():
    groups = [
        GroupTimes(0, backward, gather, reduce) for backward, gather, reduce in ((5, 2, 7), (9, 4, 20), (3, 6, 8))
    ]
    # The last one needs no weights. The second's are there at 4 and it runs to 13; the last one's gradients go from 4
    # to 12. The first one's weights are gathered from 12 to 14; behind them the second's gradients, to 34.
    assert backward_ns(groups) == (14 + 5, (34 - 19) + 7)
    assert backward_ns(groups[2:]) == (3, 8) and backward_ns([]) == (0, 0)
    # Going forward they wait for their weights until 2, 6 and 12.
    assert (both_ns(groups).first, both_ns(groups).operators, both_ns(groups).last) == (2, 10 + 19, 22)
    long = [GroupTimes(1, 50, 2, 7), GroupTimes(1, 40, 4, 20), GroupTimes(1, 30, 6, 8)]
    assert backward_ns(long) == (120, 7)
    times = both_ns(long)
    assert (times.first, times.operators, times.last) == (2, 11 + 120, 7) and times.all == 140


def sample(kind: str, took: int, name: str = "") -> OperatorSample:
    return OperatorSample(Operator(kind), 0, took, 0, name)


def test_samples_of_weights_are_those_of_known_groups():
    run = RunSetting(tp=2, dp=8, replicas=2, ep=2, experts=4)
    kinds = {"a": ("nccl:allgather", 4), "b": ("nccl:reducescatter", 2), "c": ("nccl:allreduce", 2),
             "d": ("nccl:allreduce", 4), "e": ("nccl:allgather", 8), "f": ("nccl:allgather", 1)}  # fmt: skip
    samples = tuple(sample(kind, 1, name) for name, (kind, _) in kinds.items())
    transfers = {name: Transfer("g", 100 * ranks, 5.0, ranks) for name, (_, ranks) in kinds.items()}
    shown = RecordedRun(run, (), transfers, (), RunLog({}, None, None), (*samples, sample("nccl:allgather", 1, "no")))
    assert weight_samples(shown) == [
        ("nccl:allgather", (4, 2), 400, 5.0), ("nccl:reducescatter", (2, 4), 200, 5.0),
        ("nccl:allreduce", (2, 8), 200, 5.0),
    ]  # fmt: skip


def test_copies_are_counted_an_element_of_all_weights_but_the_heads_in_the_backward_pass():
    out, into = sample("fsdp::split_with_sizes_copy", 230), sample("fsdp::chunk_cat", 75)
    run = cast(Any, SimpleNamespace(of_weights=(out, into, sample("nccl:allgather", 999))))
    blocks = [(10.0, 0.0), (30.0, 5.0), (40.0, 0.0)]
    assert copy_ns([run], [blocks]) == (230 / (2 * 85 - 40), 75 / 85)
    assert copy_ns([run, run], [blocks, blocks]) == (230 / 130, 75 / 85)
    assert copy_ns([run], [[(0.25, 0.0)]]) == (230, 75) and copy_ns([], []) == (0, 0)


def test_kinds_are_those_of_traces():
    assert Collective(GATHER, 2, 1, 8).work == (1, 1, 4) and Collective(ALL_REDUCE, 4, 1, 8).work == (1, 6, 12)
