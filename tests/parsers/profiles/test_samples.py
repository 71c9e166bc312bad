"""The real profiler samples, with figures that a person finds in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.parsers.profiles.ascend import ascend_rank, read_ascend_rank, read_kernel_details, read_trace_view
from taylor.parsers.profiles.ascend_tables import (
    cluster_step_ms,
    read_cluster_steps,
    read_memory_record,
    read_operator_memory,
)
from taylor.parsers.profiles.folder import rank_sources
from taylor.parsers.profiles.kernels import BACKWARD_MARKER, COLLECTIVE, COMPUTE, FORWARD_MARKER, NO_MARKER, norm_marker
from taylor.parsers.profiles.kineto import read_kineto
from taylor.workflows.measuring.calibrate import read_runs
from tests.conftest import SHARED

ASCEND = SHARED / "data" / "ascend_profiles"
KINETO = SHARED / "data" / "kineto"
pytestmark = pytest.mark.skipif(not ASCEND.is_dir(), reason="the sample profiles are not here")


def output(name: str) -> Path:
    """The profiler output folder of a sample."""
    return ASCEND / name / "ASCEND_PROFILER_OUTPUT"


@pytest.mark.parametrize("name", ["torch_npu_level0", "torch_npu_level1"])
@pytest.mark.parametrize("rank", [0, 1])
def test_both_profiling_levels_show_the_same_191_kernels(name: str, rank: int) -> None:
    """Level 0 has 8 columns and no type, level 1 over 40: 187 kernels and 4 collectives either way."""
    profile = read_ascend_rank(output(f"{name}/rank{rank}_ascend_pt"))
    assert profile.rank == rank
    assert len(profile) == 191
    assert int((profile.role == COLLECTIVE).sum()) == 4
    assert set(profile.step.tolist()) == {50}


def test_times_are_exact_to_the_nanosecond() -> None:
    """First row: starts at 1736405443881410.320 us and takes 50.621 us; a float would lose the last digits."""
    profile = read_ascend_rank(output("torch_npu_level0/rank0_ascend_pt"))
    assert int(profile.start_ns[0]) == 1736405443881410320
    assert int(profile.duration_ns[0]) == 50621


def test_the_trace_shows_what_the_kernel_table_shows() -> None:
    """Every start in the table is a start in the trace of the same rank."""
    folder = output("torch_npu_level1/rank0_ascend_pt")
    table, trace = read_ascend_rank(folder), read_trace_view(folder / "trace_view.json")
    kernels = table.start_ns[table.role == COMPUTE].tolist()
    assert len(kernels) == 187
    assert len(set(kernels) - set(trace.start_ns.tolist())) == 0
    assert int((trace.role == COLLECTIVE).sum()) == 4


def test_attention_kernels_of_a_real_model_are_found() -> None:
    """test_rank_0 lists FlashAttentionScore four times; one of these rows lacks its duration and is left out."""
    profile = read_ascend_rank(output("test_rank_0"))
    assert int((profile.marker == FORWARD_MARKER).sum()) == 3
    assert len(profile) == 20
    [note] = profile.notes
    assert "row 17" in note
    first = profile.marker.tolist().index(FORWARD_MARKER)
    assert profile.names[profile.name[first]] == "FlashAttentionScore"


def test_a_language_model_without_flash_attention_has_no_marker() -> None:
    """591 kernels; 14 all-reduces, 2 broadcasts, 2 all-gathers and 1 reduce-scatter are collectives."""
    profile = read_kernel_details(ASCEND / "llm_kernel_details" / "kernel_details.csv")
    assert len(profile) == 591
    assert not (profile.marker != NO_MARKER).any()
    assert int((profile.role == COLLECTIVE).sum()) == 19
    assert profile.commonest(2) == [("MemSet", 84), ("Cast", 75)]


def test_the_final_norm_of_a_real_model_is_followed_by_the_head_as_by_a_layer() -> None:
    """By hand: two layers, each with a norm ahead of attention and one behind; the fifth norm is the final one.

    The first product of the head bears the same name as that of a layer, so only the count of norms tells it.
    """
    profile = read_kernel_details(ASCEND / "llm_kernel_details" / "kernel_details.csv")
    marker = np.array([norm_marker(name) for name in profile.names])[profile.name]
    norms = np.flatnonzero(marker == FORWARD_MARKER)
    assert norms.tolist() == [32, 55, 67, 90, 102]
    assert [profile.names[profile.name[at + 1]] for at in norms] == ["MatMul"] * 5
    assert not (marker == BACKWARD_MARKER).any()


def test_a_trace_without_collectives_is_read() -> None:
    """Of 2212 complete events, 276 ran on the device."""
    assert len(read_trace_view(ASCEND / "trace_view_llm" / "trace_view.json")) == 276


def test_memory_and_step_tables_give_the_figures_in_them() -> None:
    folder = output("torch_npu_level1/rank0_ascend_pt")
    record = read_memory_record(folder / "memory_record.csv")
    assert record.peak_reserved_mib == 2113.73046875
    assert record.peak_allocated_mib == 1261.04296875
    assert read_operator_memory(folder / "operator_memory.csv") == 1187.9814453125


CLUSTER = "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,Preparing"


@pytest.mark.parametrize("stage", [0, 1000, 10_000_000])
def test_a_step_adds_up_to_a_hundredth_and_a_microsecond(stage: int, tmp_path: Path) -> None:
    path = tmp_path / "cluster_step_trace_time.csv"
    slack = stage // 100 + 1
    for computing, exposed, free, bubble in (
        (stage, 0, 0, 0), (0, stage, 0, 0), (0, 0, stage, 0), (2 * stage, 0, 0, stage), (stage, 300, 200, 500),
    ):  # fmt: skip
        for off in (0, slack - 1, -slack + 1, slack + 1, -slack - 1):
            if computing + off < 0:
                continue
            row = f"1,rank,0,{computing + off},{exposed},50,{exposed + 50},{free},{stage},{bubble},0"
            path.write_text(f"{CLUSTER}\n{row}\n")
            if abs(off) < slack:
                assert read_cluster_steps(path)["1"][0] == stage / 1e3 + bubble / 1e3
            else:
                with pytest.raises(InputError, match="does not add up"):
                    read_cluster_steps(path)


def test_a_step_of_nothing_but_one_microsecond_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text(f"{CLUSTER}\n1,rank,0,1,0,0,0,0,0,0,0\n")
    assert read_cluster_steps(path)["1"][0] == 0.0


RANKS = (
    "1,rank,4,239637.638,109905.202,14826.532,124731.734,297887.055,647429.75,0.0,10671.0\n"
    "1,rank,7,240226.045,401927.422,238997.843,640925.265,3334.33,600000.0,45487.797,26926.5\n"
    '1,stage,"(4, 7)",240226.045,401927.422,238997.843,640925.265,297887.055,647429.75,45487.797,26926.5\n'
    "2,rank,4,200000.0,0.0,0.0,0.0,0.0,200000.0,0.0,1.0\n3,rank,4,900000.0,0.0,0.0,0.0,0.0,900000.0,0.0,1.0\n"
)


def test_the_steps_of_a_cluster_are_those_of_its_longest_rank(tmp_path: Path) -> None:
    path = tmp_path / "cluster_step_trace_time.csv"
    path.write_text(f"{CLUSTER}\n{RANKS}")
    steps = read_cluster_steps(path)
    assert {step: sorted(ranks) for step, ranks in steps.items()} == {"1": [4, 7], "2": [4], "3": [4]}
    assert steps["1"][7] == pytest.approx(645.487797)
    assert cluster_step_ms(path) == pytest.approx(647.42975)
    table = tmp_path / "measured.csv"
    table.write_text(f"file,step_ms\njob.sh,{path.name}\nother.sh,12.5\n")
    assert [run.step_ms for run in read_runs(table)] == [pytest.approx(647.42975), 12.5]
    for text, says in (
        (RANKS.replace("rank", "stage"), "contains no rank"), (RANKS + "1,rank,4" + ",0" * 8 + "\n", "a rank twice"),
        (RANKS.replace("rank,7", "rank,x"), "must be the number of a rank"),
        (RANKS.replace("45487.797", "0", 1), "add up"),
        (RANKS.rstrip(), "is cut short"),
    ):  # fmt: skip
        path.write_text(f"{CLUSTER}\n{text}")
        with pytest.raises(InputError, match=says):
            read_cluster_steps(path)


def test_the_rank_stands_in_the_profilers_information() -> None:
    assert ascend_rank(output("test_rank_1")) == 1


def test_kineto_traces_of_three_versions_are_read() -> None:
    """Kernels, copies and fills by category: 79+16+3, 2700+960+114 and 4350+1600+145."""
    counts = {"alexnet": 98, "nccl_parser": 3774, "ns_resolution": 6095}
    for word, count in counts.items():
        [path] = KINETO.glob(f"*{word}*")
        profile = read_kineto(path)
        assert (profile.rank, len(profile)) == (0, count)


def test_nccl_kernels_of_a_real_trace_are_collectives() -> None:
    [path] = KINETO.glob("*nccl_parser*")
    profile = read_kineto(path)
    assert int((profile.role == COLLECTIVE).sum()) == 21
    assert not (profile.marker != NO_MARKER).any()


def test_ranks_are_found_in_the_profilers_own_layout() -> None:
    sources = rank_sources(ASCEND / "torch_npu_level0")
    assert [source.read().rank for source in sources] == [0, 1]
    assert {source.format for source in rank_sources(KINETO)} == {"kineto"}
