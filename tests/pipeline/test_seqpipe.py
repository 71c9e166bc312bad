"""MindSpore's seqpipe order against its scheduler's own way to build it, played out piece by piece."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.reliability.published_orders import mindspore_seqpipe
from taylor.cost_model.memory.alive import alive_lower_bound, alive_micro_batches
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import FORWARD, ScheduleSpec

SHAPES = [(S, V, m, n) for S in (2, 3, 4) for V in (1, 2, 3) for m in (1, 3, 5, 8, 11) for n in (1, 3)]
PIECES = [(S, V, m, n) for S in (2, 3, 4, 6) for V in (1, 2, 3) for m in (1, 2, 5, 8) for n in (1, 2, 3)]


@pytest.mark.parametrize(("S", "V", "m", "n"), SHAPES)
def test_seqpipe_runs_mindspores_order_and_keeps_as_much_alive(S: int, V: int, m: int, n: int) -> None:
    spec = ScheduleSpec("seqpipe", seq_splits=n)
    schedule = build_schedule(spec, S, V, m)
    vectors = alive_vectors(schedule)
    closed = alive_micro_batches(spec, S, V, m)
    for s in range(S):
        published = mindspore_seqpipe(S, V, m, n, s)
        assert [tuple(task) for task in schedule.order[s].tolist()] == published
        alive, most = Counter[int](), 0
        for direction, v, _, _ in published:
            alive[v] += 1 if direction == FORWARD else -1
            most = max(most, alive.total())
        assert vectors[s].sum(axis=1).max() * n == pytest.approx(most)
        assert max(map(sum, closed[s])) * n == pytest.approx(most)
        assert sum(alive_lower_bound(spec, S, V, s, m)) * n <= most + 1e-9


@pytest.mark.parametrize("name", ["seqvpp", "seqsmartvpp"])
@pytest.mark.parametrize(("S", "V", "m", "n"), [shape for shape in PIECES if shape[1] > 1])
def test_seqvpp_and_seqsmartvpp_run_mindspores_orders(name: str, S: int, V: int, m: int, n: int) -> None:
    spec = ScheduleSpec(name, seq_splits=n)
    if n > S or m * n < S or (name == "seqsmartvpp" and S % 2):
        with pytest.raises(ValueError, match="pieces"):
            build_schedule(spec, S, V, m)
        return
    order = build_schedule(spec, S, V, m).order
    for s in range(S):
        assert [tuple(task) for task in order[s].tolist()] == mindspore_seqpipe(S, V, m, n, s, name)
    alive = alive_micro_batches(spec, S, V, m)
    longer = alive_micro_batches(ScheduleSpec("seqpipe", seq_splits=n), S, V, m)
    assert max(map(sum, alive[0])) <= max(map(sum, longer[0])), "they keep no more alive than seqpipe"


def test_the_rest_of_the_micro_batches_is_dealt_one_a_round() -> None:
    seqpipe, plain = ScheduleSpec("seqpipe"), ScheduleSpec("interleaved")
    assert seqpipe.round_sizes(4, 11) == [6, 5] and seqpipe.round_sizes(4, 14) == [5, 5, 4]
    assert plain.round_sizes(4, 11) == [7, 4] and plain.round_sizes(4, 14) == [6, 4, 4]
    assert seqpipe.round_sizes(4, 3) == plain.round_sizes(4, 3) == [3]


def test_the_closed_form_for_many_counts_at_once_is_that_of_each() -> None:
    counts = np.array([1, 3, 5, 8, 11, 14])
    for spec, V in ((ScheduleSpec("seqpipe", seq_splits=2), 2), (ScheduleSpec("interleaved"), 3)):
        together = alive_lower_bound(spec, 4, V, 1, counts)
        for at, count in enumerate(counts):
            assert [float(each[at]) for each in together] == [
                float(each) for each in alive_lower_bound(spec, 4, V, 1, int(count))
            ]


def test_rounds_of_a_billion_micro_batches_are_told_without_a_list_of_them() -> None:
    plain = ScheduleSpec("interleaved")
    assert plain.rounds(4, 10**9 + 1) == [(5, 1), (4, 249_999_999)]
    first = alive_lower_bound(plain, 4, 2, 0, np.array([10**9 + 1, 9]))
    assert all(many == few for many, few in first), "the first two rounds are those of nine"
