"""Torch's allocator on requests counted by hand, and beside what it reserved on a real card."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.dryrun.torch_stage.caching_allocator import MIB, CachingAllocator

pytest.importorskip("torch")

from benchmarks import card_runs  # noqa: E402
from taylor.dryrun.interface import DryRun  # noqa: E402
from taylor.dryrun.torch_stage.requests import recorded_stage  # noqa: E402
from taylor.parsers.read import read_config  # noqa: E402


@pytest.mark.parametrize(
    ("size", "segment", "pages"),
    [(1, 2, 2), (MIB, 2, 2), (MIB + 1, 20, 20), (10 * MIB - 512, 20, 20), (10 * MIB, 10, 20), (31 * MIB, 32, 40)],
)
def test_a_first_request_takes_a_segment_or_pages_of_the_card(size: int, segment: int, pages: int) -> None:
    for expandable, taken in ((False, segment), (True, pages)):
        allocator = CachingAllocator(expandable=expandable)
        allocator.allocate(1, size)
        assert allocator.reserved == taken * MIB
        assert allocator.allocated == -(-size // 512) * 512 or segment * MIB - size <= MIB


def test_the_smallest_free_block_that_is_large_enough_serves_a_request() -> None:
    allocator = CachingAllocator()
    for key, size in enumerate((64, 40, 48)):
        allocator.allocate(key, size * MIB)
    for key in range(3):
        allocator.free(key)
    allocator.allocate(3, 44 * MIB)
    allocator.allocate(4, 50 * MIB)
    # 48 of 44 and a rest of 4, 64 of 50 and a rest of 14: 14 MiB more fit without the card, and 41 do not.
    allocator.allocate(5, 14 * MIB)
    assert allocator.reserved == (64 + 40 + 48) * MIB
    allocator.allocate(6, 41 * MIB)
    assert allocator.reserved == (64 + 40 + 48 + 42) * MIB


def test_segments_stay_apart_and_an_expandable_one_serves_what_two_left() -> None:
    reserved = []
    for expandable in (False, True):
        allocator = CachingAllocator(expandable=expandable)
        allocator.allocate(1, 100 * MIB)
        allocator.allocate(2, 100 * MIB)
        allocator.free(1)
        allocator.free(2)
        allocator.allocate(3, 160 * MIB)
        reserved.append(allocator.reserved)
    assert reserved == [360 * MIB, 200 * MIB]


def test_a_tensor_between_two_free_blocks_keeps_them_apart() -> None:
    allocator = CachingAllocator(expandable=True)
    for key in range(3):
        allocator.allocate(key, 100 * MIB)
    allocator.free(0)
    allocator.free(2)
    allocator.allocate(3, 150 * MIB)
    # The free end grows from 100 MiB to 150; the hole in front stays.
    assert allocator.reserved == 360 * MIB
    assert allocator.allocated == 250 * MIB


def test_a_short_rest_goes_with_the_block() -> None:
    allocator = CachingAllocator()
    allocator.allocate(1, 20 * MIB)
    allocator.free(1)
    allocator.allocate(2, 19 * MIB + 512)
    assert allocator.allocated == 20 * MIB


@pytest.mark.slow
def test_a_job_on_one_card_reserved_what_the_allocator_s_rules_say(tmp_path: Path) -> None:
    """torchtitan v0.2.2 on one H200 with expandable segments, every layer recomputed: benchmarks/card_runs.yaml."""
    errors = []
    for run in card_runs.read_runs()[1]:
        if run.name.startswith("one-") and "full" in run.name and run.reserved_mib is not None:
            path = tmp_path / f"{run.name}.toml"
            path.write_text(run.toml())
            config = read_config(path)
            recorded = recorded_stage(DryRun(config, config.strategy, config.plan), 0)
            errors.append(abs(recorded.reserved_mib(expandable=True) / run.reserved_mib - 1))
    assert len(errors) == 3
    assert sorted(errors)[1] < 0.03 and max(errors) < 0.1
