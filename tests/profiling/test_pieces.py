"""What profiles are measured by, piece by piece, against figures worked out by hand or counted by torch."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from taylor.parsers.profiles.kernels import BACKWARD_MARKER, COMPUTE, FORWARD_MARKER, NO_MARKER, SEND, RankProfile
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.calibration.figures import Figures
from taylor.profiling.calibration.fit import _Fit, calibrate
from taylor.profiling.fit import LinearFit, centre
from taylor.profiling.match import ProfileMisfit, match
from taylor.profiling.measure import NamedSample, measure_by_name
from taylor.profiling.measuring import hardware_worker
from taylor.profiling.measuring.hardware_tables import hardware_tables, measured_device
from taylor.profiling.measuring.model_plan import ModelPlan
from taylor.profiling.measuring.plan import (
    ALL_TO_ALL,
    ATTENTION,
    COPY,
    HOST_LINK,
    PRODUCTS,
    TIMED_REDUCE,
    HardwarePlan,
    group_of,
    hardware_jobs,
)
from taylor.profiling.measuring.samples import TimedSample, read_samples, spread_of
from taylor.profiling.measuring.torch_device import TorchDevice
from taylor.profiling.memory import read_profiled_memory
from taylor.profiling.pattern import StagePattern, charged_kinds, stage_pattern
from taylor.profiling.pool import _mostly
from tests.profiling.test_calibration import H100, made_by

PLAN = PipelinePlan({"dense": ((1, 0),), "moe": ((1, 2),)}, {FULL: ((1, 0),)})
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def profile(rows: list[tuple[int, int, int, int]], steps: list[int] | None = None) -> RankProfile:
    """Kernels as (start in ns, duration in ns, role, marker)."""
    start, took, role, marker = np.array(rows, dtype=np.int64).T
    n = len(rows)
    return RankProfile(
        Path("p"), 0, start, took, role.astype(np.int8), marker.astype(np.int8), np.zeros(n, dtype=np.int32),
        np.array(steps or [-1] * n, dtype=np.int32), ("kernel",),
    )  # fmt: skip


def markers(found: list[int], steps: list[int] | None = None) -> RankProfile:
    """Attention kernels alone."""
    return profile([(10 * at, 10, COMPUTE, marker) for at, marker in enumerate(found)], steps)


def test_a_window_belongs_to_the_micro_batch_most_of_it_is_of() -> None:
    """Most of a forward lies behind its attention, most of a backward ahead of it; from one to the other: no one's."""
    f, b = FORWARD_MARKER, BACKWARD_MARKER
    kinds, owners = np.array([f, f, b, b, f, b], dtype=np.int8), np.array([0, 1, 0, 1, 2, 2])
    pattern = StagePattern(0, kinds, (), np.zeros(5, dtype=np.int64), owners, 1, 0)
    assert _mostly(pattern).tolist() == [0, -1, 1, -1, 2]


def test_an_mtp_layer_is_timed_as_the_body_layer_before_it() -> None:
    plan = PipelinePlan({"dense": ((1, 0),), "moe": ((1, 2),), "mtp": ((0, 1),)}, {})
    assert charged_kinds(plan) == {"dense": "dense", "moe": "moe", "mtp": "moe"}


def test_the_end_of_a_task_is_told_by_its_send_in_exact_time() -> None:
    """Attention at 0 and 3 ms; the work ends at 1.25 ms, the send begins at 2 ms: 1.25 ms after attention."""
    plan = PipelinePlan({"dense": ((1, 1),)}, {})
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), plan, 0)
    f, b = FORWARD_MARKER, BACKWARD_MARKER
    assert pattern.markers.tolist() == [f, f, b, b]
    ms = 1_000_000
    rows = [(0, 10, COMPUTE, f), (1 * ms, ms // 4, COMPUTE, NO_MARKER), (2 * ms, ms // 2, SEND, NO_MARKER)]
    rows += [(3 * ms, 10, COMPUTE, f), (5 * ms, 10, COMPUTE, b), (7 * ms, 10, COMPUTE, b)]
    found = profile(rows)
    samples = measure_by_name(found, pattern, match(found, pattern, 2))
    assert NamedSample(("after", "dense"), 0, 0, 1.25) in samples


def test_a_misfit_counts_the_steps_that_the_profile_numbers_from_0() -> None:
    pattern = stage_pattern(build_schedule(ScheduleSpec(), 2, 1, 2), PLAN, 1)
    f, b = FORWARD_MARKER, BACKWARD_MARKER
    step = [f, f, f, b, b, b] * 2
    with pytest.raises(ProfileMisfit, match="over 3 steps: 3 layers a micro-batch and the configuration puts 2"):
        match(markers(step * 3, [number for number in range(3) for _ in step]), pattern, 2)


def test_a_sum_rests_on_as_many_samples_as_its_rarest_part() -> None:
    fit = LinearFit()
    fit.add({("x", ""): 1.0}, centre(np.full(3, 2.0)), 1e-3)
    fit.add({("y", ""): 1.0}, centre(np.full(7, 3.0)), 1e-3)
    found = fit.solve().sum_of([("x", ""), ("y", "")])
    assert found is not None and (found.value, found.count) == (pytest.approx(5.0), 3)


def test_the_spread_of_two_samples_is_that_of_the_line_between_them() -> None:
    """Quartiles of 1 and 3 are 1.5 and 2.5 (Hyndman and Fan's seventh definition), their median is 2."""
    assert spread_of([1.0, 3.0]) == pytest.approx(0.5)
    assert spread_of([1.0]) == 0.0


def test_a_memory_record_that_ends_with_the_last_attention_kernel_is_whole(tmp_path: Path) -> None:
    head = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type"
    rows = ["PTA,1.000,100,200,100,0,NPU:0", "PTA,5.000,150,200,150,0,NPU:0"]
    (tmp_path / "memory_record.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    found, notes = read_profiled_memory(tmp_path, 5_000)
    assert found is not None and (found.peak_mib, found.static_mib) == (150.0, 100.0) and not notes
    assert read_profiled_memory(tmp_path, 5_001)[0] is None


def test_errors_weigh_as_the_soft_l1_loss_lets_them() -> None:
    """The loss is 2 (sqrt(1 + z) - 1) of z = (e / s)^2 (scipy.optimize.least_squares, `soft_l1`), halved in the sum.

    A weight is the slope of that loss over the error: here by differences.
    """
    fit = _Fit(made_by(H100), Figures(H100))
    errors, step = np.array([0.01, -0.05, 0.2]), 1e-6

    def loss(e: np.ndarray) -> np.ndarray:
        return np.sqrt(1 + (e / fit.noise) ** 2) - 1

    slope = (loss(errors + step) - loss(errors - step)) / (2 * step)
    assert fit._weights(errors) == pytest.approx(slope / errors, rel=1e-5)


def test_runs_that_the_device_itself_made_are_predicted_without_themselves() -> None:
    fit = _Fit(made_by(H100), Figures(H100))
    for together in (False, True):
        assert fit.left_out(np.zeros(fit.figures.size), together) == pytest.approx(0.0, abs=1e-9)


def test_timed_collectives_are_of_ranks_that_follow_each_other() -> None:
    """Galvatron's own profiler sets `all2all_consec = 1` for every size, and the same for its timed all-reduce."""
    jobs = list(hardware_jobs(HardwarePlan(1, 4, end_mib=1, kinds=(TIMED_REDUCE, ALL_TO_ALL))))
    assert {job.ranks for job in jobs} == {2, 4}
    for job in jobs:
        groups = {group_of(rank, job, 4) for rank in range(4)}
        assert groups == ({(0, 1), (2, 3)} if job.ranks == 2 else {(0, 1, 2, 3)})


def test_a_model_that_nobody_describes_is_llama_2_7b() -> None:
    """config.json of meta-llama/Llama-2-7b-hf."""
    plan = ModelPlan()
    assert (plan.hidden, plan.heads, plan.ffn, plan.vocab) == (4096, 32, 11008, 32000)


@needs_torch
def test_the_work_of_an_operation_is_what_torch_counts() -> None:
    """Products are one, attention of width 256 has two, under a causal mask each over half of the square."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    here = TorchDevice.here(0)
    for kind in (PRODUCTS, ATTENTION):
        done, operation = here.work(kind, 256)
        assert operation is not None
        with FlopCounterMode(display=False) as counted, sdpa_kernel(SDPBackend.MATH):
            operation()
        assert done == 2 * 256**3
        assert counted.get_total_flops() == done * (2 if kind == ATTENTION else 1)


@needs_torch
def test_a_copy_is_read_and_written_and_the_processor_has_no_link_to_itself() -> None:
    here = TorchDevice.here(0)
    done, operation = here.work(COPY, 64)
    assert operation is not None
    copied = operation()
    assert copied.nbytes == 16 * (64 * 64 * 2)
    assert done == 2 * copied.nbytes
    assert here.work(HOST_LINK, 64) == (0.0, None)


@needs_torch
def test_a_device_of_its_own_is_measured_and_kept(tmp_path: Path) -> None:
    plan = HardwarePlan(1, 1, kinds=(PRODUCTS,), width=32, repeats=1)
    (tmp_path / hardware_worker.PLAN).write_text(json.dumps(asdict(plan)), encoding="utf-8")
    hardware_worker.main(tmp_path)
    assert set(read_samples(tmp_path / hardware_worker.MEASURED)) == {PRODUCTS}


@pytest.mark.slow
def test_a_device_is_off_by_nothing_from_what_it_made_itself() -> None:
    assert [run.before for run in calibrate(made_by(H100)[:1], H100).runs] == pytest.approx([0.0], abs=1e-9)


def test_a_node_of_two_is_a_domain_of_two_and_times_are_told_to_a_nanosecond() -> None:
    plan = HardwarePlan(1, 2, end_mib=1)
    measured = {job.key: TimedSample(1.23456789e-3, 0.0, 1) for job in hardware_jobs(plan)}
    assert measured_device(H100, plan, measured, "measured").devices_per_node == 2
    times = hardware_tables(plan, measured)["sp_time_1nodes_2gpus_per_node.json"]
    assert set(times.values()) == {1.234568}
