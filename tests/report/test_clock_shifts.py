"""Differences of two machines' clocks from what each says of the same micro-batches, by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.tables.worker_log import LoggedJob, WorkerLog
from taylor.report.clocks import ClockShift, clock_shifts


def log(machine, *jobs, device=0):
    """A device's log of jobs (type, micro-batch, start, end[, step])."""
    logged = tuple(LoggedJob(*job[:4], at, *job[4:]) for at, job in enumerate(jobs))
    return WorkerLog(Path("workerlog.0"), machine, device, logged)


def shift(*logs):
    """The later machine's shift, ms, and its reason."""
    found = clock_shifts(logs)[max(one.machine for one in logs)]
    return found.shift_ms, found.reason


SENDER = (("forward_step", 0, 0.0, 10.0), ("forward_step", 1, 10.0, 20.0), ("backward_step", 0, 60.0, 70.0))


def receiver(by, *, backward=True):
    """What the next stage logs by a clock `by` ms ahead: 4 ms pass before its forward, 6 after its backward."""
    jobs = [("forward", 0, 14.0 + by, 24.0 + by), ("forward", 1, 24.0 + by, 34.0 + by)]
    return jobs + ([("backward", 0, 40.0 + by, 54.0 + by)] if backward else [])


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        # The first forward leaves 4 ms, the backward 6 ms: a clock within them is kept.
        (0.0, (0.0, "")), (6.0, (0.0, "")), (-4.0, (0.0, "")),
        (6.5, (1.0 - 6.5, "its hand-overs allow -10.500 to -0.500 ms")),
        (1000.0, (1.0 - 1000.0, "its hand-overs allow -1004.000 to -994.000 ms")),
        (-1000.0, (1.0 + 1000.0, "its hand-overs allow 996.000 to 1006.000 ms")),
    ],
)  # fmt: skip
def test_a_clock_outside_its_interval_moves_to_the_middle_of_it(by, expected):
    assert shift(log(0, *SENDER), log(1, *receiver(by))) == expected


def test_one_direction_alone_gives_the_least_shift():
    words = "the least shift that its hand-overs allow"
    forward = [job for job in SENDER if job[0].startswith("forward")]
    assert shift(log(0, *forward), log(1, *receiver(-100.0, backward=False))) == (96.0, words)
    assert shift(log(0, *forward), log(1, *receiver(100.0, backward=False))) == (0.0, "")
    backs = [job for job in receiver(100.0) if job[0] == "backward"]
    assert shift(log(0, *SENDER), log(1, *backs)) == (-94.0, words)


def test_the_tightest_hand_over_counts_and_steps_and_repeats_are_kept_apart():
    sender = [("forward", 0, 0.0, 10.0), ("forward", 0, 20.0, 30.0), ("forward", 0, 100.0, 110.0, 1)]
    later = [("forward", 0, -90.0, -80.0), ("forward", 0, -69.0, -60.0), ("forward", 0, 15.0, 25.0, 1)]
    # 10 + 90, 30 + 69, 110 - 15: the largest of them is needed.
    assert shift(log(0, *sender), log(1, *later))[0] == 100.0
    sender = [("backward", 0, 50.0, 60.0), ("backward", 1, 70.0, 80.0)]
    later = [("backward", 0, 140.0, 150.0), ("backward", 1, 165.0, 175.0)]
    assert shift(log(0, *sender), log(1, *later))[0] == -105.0


@pytest.mark.parametrize(
    ("starts", "moved"), [((0.0, 5.0), 0.0), ((0.0, 10.0), -10.0), ((0.0, -10.0), 10.0), ((0.0, 500.0), -500.0)]
)
def test_without_hand_overs_only_jobs_at_another_time_are_laid_together(starts, moved):
    first, second = (log(machine, ("lr", 0, at, at + 10.0)) for machine, at in enumerate(starts))
    words = "its jobs lie at another time altogether: first jobs laid together" if moved else ""
    assert shift(first, second) == (moved, words)


def test_an_empty_interval_means_that_the_machines_are_not_neighbours():
    later = [("forward", 0, 5.0, 8.0), ("backward", 0, 80.0, 90.0)]
    assert shift(log(0, *SENDER), log(1, *later)) == (0.0, "")
    apart = [("forward", 0, 1005.0, 1008.0), ("backward", 0, 1080.0, 1090.0)]
    assert shift(log(0, *SENDER), log(1, *apart))[0] == -1005.0


def test_a_third_machine_is_moved_on_top_of_the_second_and_empty_logs_count_for_nothing():
    third = [("forward", 0, 28.0 + 7000.0, 38.0 + 7000.0), ("backward", 0, 24.0 + 7000.0, 34.0 + 7000.0)]
    second = receiver(1000.0)
    found = clock_shifts([log(0, *SENDER), log(0, device=1), log(5, *second), log(9, *third), log(11)])
    assert list(found) == [0, 5, 9] and found[0] == ClockShift(0.0, "")
    assert found[5].shift_ms == -999.0
    # 1024 - 7028 at least and 1040 - 7034 at most, after the second machine's shift.
    assert found[9].shift_ms == pytest.approx((1024 - 7028 + 1040 - 7034) / 2 - 999.0)
    # The last device of a machine sends to the first of the next.
    early = log(0, ("forward", 0, 0.0, 1.0))
    assert shift(early, log(0, *SENDER, device=1), log(1, *receiver(100.0)), log(1, device=1))[0] == -99.0
