"""Paddle worker logs: the two real lines, cut lines, lost devices, several machines."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.tables.worker_log import read_worker_log, read_worker_logs
from tests.conftest import SHARED

REAL = SHARED / "paddle_timeline" / "workerlog.0.two_real_lines"
if not REAL.exists():
    REAL = SHARED / "data" / "paddle_timeline" / "workerlog.0.two_real_lines"

PREFIX = "I1020 09:15:07.265326 22317 standalone_executor.cc:217] "


def line(kind, micro_batch, start, end, job=3, prefix=PREFIX):
    """A job line in the real form."""
    return (
        f"{prefix}Profiler Info: Job ({job}), type = {kind}, micro_batch_id = {micro_batch}, "
        f"job_start_time = {start:.6f}, job_end_time = {end:.6f}"
    )


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join(lines).encode() + b"\n")
    return path


@pytest.mark.skipif(not REAL.exists(), reason="the sample data are not here")
def test_the_two_real_lines_are_read_to_the_last_digit():
    log = read_worker_log(REAL, device=0)
    assert [(job.type, job.micro_batch, job.job_id) for job in log.jobs] == [("forward", 2, 3), ("forward", 3, 4)]
    assert (log.jobs[0].start_ms, log.jobs[0].end_ms) == (1697793307213.760986, 1697793307254.006104)
    assert (log.jobs[1].start_ms, log.jobs[1].end_ms) == (1697793307214.742920, 1697793307219.168945)
    assert log.bad_lines == 0


def test_other_lines_are_no_jobs_and_no_faults(tmp_path):
    log = read_worker_log(
        write(
            tmp_path / "workerlog.3",
            "loss: 2.3",
            "",
            "Profiler is on",
            "the Profiler Information",
            line("forward", 0, 1000.0, 1001.0),
        )
    )
    assert log.device == 3 and len(log.jobs) == 1 and log.bad_lines == 0


def test_cut_lines_are_counted_and_named_wherever_they_are_cut(tmp_path):
    """A line cut inside its lead or its fields never passes as a job; one cut inside the last digits is whole."""
    whole = line("backward", 7, 1697793307213.760986, 1697793307254.006104)
    lead = whole.index("Profiler Info: Job (") + len("Profiler")
    for length in range(lead, len(whole) - 3):
        log = read_worker_log(write(tmp_path / "workerlog.0", line("forward", 0, 5.0, 6.0), whole[:length]))
        assert (len(log.jobs), log.bad_lines) == (1, 1), whole[:length]
        assert log.named_bad_lines[0].startswith("workerlog.0:2: ")


def test_a_line_whose_beginning_is_lost_is_counted(tmp_path):
    tail = line("forward", 1, 5.0, 6.0).partition("type = ")[2]
    log = read_worker_log(write(tmp_path / "workerlog.0", line("forward", 0, 1.0, 2.0), tail))
    assert log.bad_lines == 1 and len(log.jobs) == 1


def test_two_lines_run_together_are_two_jobs(tmp_path):
    log = read_worker_log(write(tmp_path / "workerlog.0", line("forward", 0, 1.0, 2.0) + line("forward", 1, 2.0, 3.0)))
    assert [job.micro_batch for job in log.jobs] == [0, 1] and log.bad_lines == 0


def test_a_job_that_ends_before_it_starts_is_left_out_and_named(tmp_path):
    log = read_worker_log(write(tmp_path / "workerlog.0", line("forward", 0, 10.0, 9.0), line("forward", 0, 1.0, 2.0)))
    assert len(log.jobs) == 1 and "1.000 ms before it starts" in log.named_bad_lines[0]


def test_nuls_broken_bytes_and_a_line_without_end_do_no_harm(tmp_path):
    path = tmp_path / "workerlog.0"
    path.write_bytes(
        b"\0\0\xff\xfe junk\n"
        + line("forward", 0, 1.0, 2.0).encode()
        + b"\r\n"
        + b"x" * 300_000
        + b"\n"
        + b"\0"
        + line("optimizer", -1, 3.0, 4.0).encode()
    )
    log = read_worker_log(path)
    assert [job.type for job in log.jobs] == ["forward", "optimizer"]


def test_many_bad_lines_are_all_counted_and_some_named(tmp_path):
    log = read_worker_log(
        write(tmp_path / "workerlog.0", line("forward", 0, 1.0, 2.0), *["Profiler Info: Job (1), type = forw"] * 500)
    )
    assert log.bad_lines == 500 and 1 <= len(log.named_bad_lines) <= 50


def test_a_step_begins_at_the_forward_of_micro_batch_zero(tmp_path):
    lines = ["Schedule Profiler start at step 5 and end at step 7"]
    for step in range(3):
        at = 100.0 * step
        lines += [
            line("lr", -1, at, at + 1),
            line("forward", 0, at + 1, at + 2),
            line("forward", 1, at + 2, at + 3),
            line("backward", 0, at + 3, at + 5),
            line("backward", 1, at + 5, at + 7),
            line("optimizer", -1, at + 7, at + 8),
        ]
    log = read_worker_log(write(tmp_path / "workerlog.0", *lines))
    assert log.steps == 3 and log.profiled_steps == (5, 7)
    forwards = [job.step for job in log.jobs if job.type == "forward" and job.micro_batch == 0]
    assert forwards == [0, 1, 2]


def test_interleaves_do_not_begin_new_steps(tmp_path):
    """With two chunks a device, micro-batch 0 goes forward twice in a step."""
    lines = []
    for step in range(2):
        at = 100.0 * step
        lines += [
            line("forward0", 0, at, at + 1, 1),
            line("forward1", 0, at + 1, at + 2, 2),
            line("backward1", 0, at + 2, at + 4, 3),
            line("backward0", 0, at + 4, at + 6, 4),
        ]
    assert read_worker_log(write(tmp_path / "workerlog.0", *lines)).steps == 2


def test_a_lost_first_forward_does_not_merge_two_steps(tmp_path):
    lines = [
        line("forward", 0, 0, 1, 1),
        line("forward", 1, 1, 2, 2),
        line("backward", 0, 2, 4, 3),
        line("forward", 1, 101, 102, 2),
        line("backward", 0, 102, 104, 3),
    ]
    assert [job.step for job in read_worker_log(write(tmp_path / "workerlog.0", *lines)).jobs] == [0, 0, 0, 1, 1]


def test_a_gap_in_the_device_numbers_is_a_missing_device(tmp_path):
    for device in (0, 1, 3):
        write(tmp_path / f"workerlog.{device}", line("forward", 0, 1.0, 2.0))
    write(tmp_path / "workerlog.4", "nothing here")
    logs = read_worker_logs(tmp_path)
    assert [log.device for log in logs.logs] == [0, 1, 3, 4]
    assert [name.split(":")[0] for name in logs.missing] == ["workerlog.2", "workerlog.4"]


def test_only_the_wanted_devices_are_read_and_a_wanted_one_without_log_is_named(tmp_path):
    for device in range(3):
        write(tmp_path / f"workerlog.{device}", line("forward", 0, 1.0, 2.0))
    logs = read_worker_logs(tmp_path, devices=[1, 9])
    assert [log.device for log in logs.logs] == [1]
    assert logs.missing == ("workerlog.9: no such file",)


def test_machines_are_read_in_the_order_of_their_numbers(tmp_path):
    for machine in (0, 2, 10):
        write(tmp_path / f"machine{machine}" / "workerlog.0", line("forward", 0, 1.0, 2.0))
    assert [log.machine for log in read_worker_logs(tmp_path, multi_machine=True).logs] == [0, 2, 10]


def test_machine_0_comes_first_whatever_its_folder_is_called(tmp_path):
    for name, end in (("machine1", 3.0), ("machine_0", 2.0)):
        write(tmp_path / name / "workerlog.0", line("forward", 0, 1.0, end))
    assert [log.machine for log in read_worker_logs(tmp_path, multi_machine=True).logs] == [0, 1]


@pytest.mark.parametrize(
    ("places", "numbers"),
    [
        (("machine-1", "machine1", "machine2"), [0, 1, 2]),
        (("machine-4", "machine_4"), [0, 1]),
        (("machine", "machine7"), [0, 1]),
        (("machine7", "machine8"), [7, 8]),
    ],
)
def test_folders_of_one_number_are_machines_of_their_own(tmp_path, places, numbers):
    for place in places:
        write(tmp_path / place / "workerlog.0", line("forward", 0, 1.0, 2.0))
    assert [log.machine for log in read_worker_logs(tmp_path, multi_machine=True).logs] == numbers


def test_every_way_to_have_no_logs_says_what_to_do(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        read_worker_logs(tmp_path / "absent")
    with pytest.raises(InputError, match="--multi_machine"):
        read_worker_logs(tmp_path)
    with pytest.raises(InputError, match=r"machine\*"):
        read_worker_logs(tmp_path, multi_machine=True)
    write(tmp_path / "workerlog.0", "no job")
    with pytest.raises(InputError, match="workerlog.0: contains no job line"):
        read_worker_logs(tmp_path)
