"""Profiles of devices as timelines: generated kernels whose forwards and backwards are known, and the samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.pipeline.schedule import BACKWARD, FORWARD
from taylor.report.profile_source import load_profiles
from taylor.report.timeline import COMMUNICATION, OTHER
from tests.conftest import SHARED

SAMPLES = SHARED / "data"


def write_rank(folder, rank, kernels):
    """An Ascend profile of one rank; kernels are (type, start us, duration us)."""
    output = folder / f"worker{rank}_2025_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / f"profiler_info_{rank}.json").write_text(json.dumps({"rank_id": rank}))
    rows = ["Name,Type,Accelerator Core,Start Time(us),Duration(us)"]
    rows += [
        f"{kind}_{i},{kind},{'HCCL' if kind.startswith('hcom') else 'MIX_AIC'},{start:.3f}\t,{duration:.3f}"
        for i, (kind, start, duration) in enumerate(kernels)
    ]
    (output / "kernel_details.csv").write_bytes("\r\n".join(rows).encode() + b"\r\n")


def layer(kind, at):
    """Three kernels of 100 us with the attention in the middle."""
    return [("MatMul", at, 100.0), (kind, at + 100, 100.0), ("MatMul", at + 200, 100.0)]


def step(at, forwards, backwards):
    """Forward layers, a pause of 5 ms, backward layers; returns the kernels."""
    kernels = []
    for i in range(forwards):
        kernels += layer("FlashAttentionScore", at + 300 * i)
    back = at + 300 * forwards + 5000
    for i in range(backwards):
        kernels += layer("FlashAttentionScoreGrad", back + 300 * i)
    return kernels


def test_forward_and_backward_runs_become_blocks_with_their_true_times(tmp_path):
    write_rank(tmp_path, 0, step(1_000_000.0, 4, 4))
    timeline = load_profiles(tmp_path)
    assert timeline.direction.tolist() == [FORWARD, BACKWARD]
    np.testing.assert_allclose(timeline.start, [0.0, 6.2], atol=1e-6)
    np.testing.assert_allclose(timeline.end, [1.2, 7.4], atol=1e-6)
    assert timeline.labels == ("forward (12 kernels)", "backward (12 kernels)")


def test_communication_lies_in_a_lane_of_its_own_beside_the_computing(tmp_path):
    write_rank(tmp_path, 3, [*step(0.0, 2, 2), ("hcom_allReduce_", 100.0, 900.0), ("hcom_send_", 2000.0, 50.0)])
    timeline = load_profiles(tmp_path)
    talks = timeline.direction == COMMUNICATION
    assert sorted(timeline.labels[i].split(" (")[0] for i in np.flatnonzero(talks)) == ["collective", "send"]
    assert timeline.lane[talks].min() == 1 and timeline.lane[~talks].max() == 0
    assert timeline.row_names == ("rank 3",)


def test_ranks_are_rows_in_order_on_their_common_clock_and_missing_ones_are_named(tmp_path):
    for rank, late in ((10, 700.0), (2, 0.0)):
        write_rank(tmp_path, rank, step(5_000_000.0 + late, 2, 2))
    timeline = load_profiles(tmp_path)
    assert timeline.row_names == ("rank 2", "rank 10")
    assert timeline.start[timeline.stage == 1].min() == pytest.approx(0.7)
    only = load_profiles(tmp_path, ranks=[10, 11])
    assert only.row_names == ("rank 10",) and only.notes == ("rank 11 has no profile here",)


def test_ranks_profiled_at_different_times_are_laid_together_and_that_is_said(tmp_path):
    for rank, late in ((0, 0.0), (1, 60_000_000.0)):
        write_rank(tmp_path, rank, step(late, 2, 2))
    timeline = load_profiles(tmp_path)
    assert timeline.start[timeline.stage == 1].min() == 0.0
    assert any("laid together" in note for note in timeline.notes)


def test_kernels_without_any_attention_are_neither_forward_nor_backward(tmp_path):
    write_rank(tmp_path, 0, [("MatMul", 100.0 * i, 90.0) for i in range(20)])
    assert set(load_profiles(tmp_path).direction.tolist()) == {OTHER}


def test_a_folder_without_profiles_or_without_the_wanted_rank_is_refused(tmp_path):
    with pytest.raises(InputError, match="contains no profile"):
        load_profiles(tmp_path)
    write_rank(tmp_path, 0, step(0.0, 1, 1))
    with pytest.raises(InputError, match="has no profile of these ranks"):
        load_profiles(tmp_path, ranks=[5])


@pytest.mark.skipif(not SAMPLES.exists(), reason="the sample data are not here")
@pytest.mark.parametrize("sample", ["ascend_profiles/test_rank_0", "ascend_profiles/torch_npu_level0", "kineto"])
def test_the_samples_become_blocks_that_fit_their_lanes(sample):
    timeline = load_profiles(SAMPLES / sample)
    assert len(timeline) > 5 and len(set(timeline.row_names)) == timeline.rows
    for row in range(timeline.rows):
        for lane in range(int(timeline.lane[timeline.stage == row].max()) + 1):
            mine = np.flatnonzero((timeline.stage == row) & (timeline.lane == lane))
            order = mine[np.argsort(timeline.start[mine], kind="stable")]
            assert (timeline.start[order][1:] >= timeline.end[order][:-1] - 1e-9).all()
