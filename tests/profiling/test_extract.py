"""Profiles to ratios: what was written comes out, and what does not fit is marked."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.profile_extraction import errors, random_run, run_one
from benchmarks.synthetic.profiles import Disturbance, SyntheticTimes, write_synthetic_profiles
from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.extract import ExtractedRatios, extract_ratios
from taylor.register.frameworks import FRAMEWORKS
from taylor.register.model import DENSE, MOE, ModelSpec, MoeSpec

RATIOS = TimeRatios(
    dense_forward=0.4,
    backward=2.1,
    recompute={FULL: 0.9, "select": 0.3, "none": 0.0},
    head=1.7,
    unit_ms=12.0,
    embedding=0.1,
    lag=0.05,
    tail=2.0,
)


def job(
    layers: dict[str, tuple[tuple[int, ...], ...]],
    full: tuple[tuple[int, ...], ...],
    micro_batches: int = 6,
    schedule: ScheduleSpec = ScheduleSpec(),  # noqa: B008 - frozen
    **changes: int,
) -> TrainingConfig:
    """A configuration with these layers and recomputed layers."""
    counts = {kind: sum(map(sum, grid)) for kind, grid in layers.items()}
    model = ModelSpec(
        "job",
        sum(counts.values()),
        512,
        8,
        8,
        64,
        2048,
        32000,
        moe=MoeSpec(8, 2, 512, first_dense=counts.get(DENSE, 0)) if MOE in counts else None,
    )
    strategy = Strategy(dp=2, tp=2, pp=len(full[0]), vpp=len(full), micro_batches=micro_batches).replace(**changes)
    return TrainingConfig(
        Path("job.yaml"),
        "mindformers",
        model,
        strategy,
        TrainingRules(),
        schedule,
        PipelinePlan(layers, {FULL: full}),
    )


MIXED = job({DENSE: ((2, 0, 0),), MOE: ((1, 3, 3),)}, ((1, 1, 1),))


def write(config: TrainingConfig, folder: Path, **options: object) -> Path:
    """Synthetic profiles of a configuration with the times of `RATIOS`."""
    assert config.plan is not None
    times = SyntheticTimes.from_ratios(RATIOS, config.plan)
    write_synthetic_profiles(config, times, folder, **options)  # type: ignore[arg-type]
    return folder


def kernels_of(folder: Path, rank: int) -> Path:
    """The kernel_details.csv of one rank."""
    [path] = folder.glob(f"*rank{rank:05d}*/ASCEND_PROFILER_OUTPUT/kernel_details.csv")
    return path


def assert_truth(found: ExtractedRatios, relative: float = 1e-3) -> None:
    """Every ratio is the one of `RATIOS`."""
    assert found.problems == ()
    assert found.ratios is not None
    assert found.ratios.dense_forward == pytest.approx(0.4, rel=relative)
    assert found.ratios.backward == pytest.approx(2.1, rel=relative)
    assert found.ratios.recompute[FULL] == pytest.approx(0.9, rel=relative)
    assert found.ratios.head == pytest.approx(1.7, rel=relative)
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=relative)


@pytest.mark.parametrize("form", ["ascend", "kineto"])
def test_without_noise_every_ratio_comes_out_within_a_tenth_of_a_percent(form: str, tmp_path: Path) -> None:
    found = extract_ratios(MIXED, write(MIXED, tmp_path, form=form))
    assert_truth(found)
    assert found.ratios is not None
    assert found.transfer_ms == pytest.approx(0.05 * 12.0, rel=1e-3)
    assert found.ratios.lag == pytest.approx(0.05, rel=1e-3)
    assert found.ratios.embedding == pytest.approx(0.1, rel=1e-2)
    assert found.ratios.source == "parsed"
    assert found.stages == (0, 1, 2) and found.steps == 6 and found.missing == ()
    assert all(count > 0 for count in found.samples.values())
    assert max(found.spread.values()) < 1e-3


def test_the_trace_alone_serves_where_the_kernel_table_is_missing(tmp_path: Path) -> None:
    assert_truth(extract_ratios(MIXED, write(MIXED, tmp_path, trace_only=True)))


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_without_noise_are_exact(seed: int, tmp_path: Path) -> None:
    run, found = run_one(seed, 0.0, tmp_path, most_stages=5)
    assert found.problems == ()
    assert max(errors(run, found).values()) < 1e-3


@pytest.mark.parametrize("seed", range(6, 10))
def test_random_runs_with_noise_and_a_straggler_stay_within_two_percent(seed: int, tmp_path: Path) -> None:
    run, found = run_one(seed, 0.03, tmp_path, most_stages=5)
    assert found.problems == ()
    assert max(errors(run, found).values()) < 0.02


def test_a_straggling_micro_batch_is_named_and_left_out(tmp_path: Path) -> None:
    found = extract_ratios(MIXED, write(MIXED, tmp_path, disturbance=Disturbance(straggler=2, straggler_factor=3.0)))
    assert_truth(found)
    assert any("micro-batch 2" in note and "straggled (3.00" in note for note in found.notes)


@pytest.mark.parametrize(
    "config",
    [
        job({DENSE: ((2, 2),)}, ((2, 2),)),
        job({DENSE: ((1, 1, 1),)}, ((0, 1, 0),)),
        job({DENSE: ((2, 2), (2, 2))}, ((1, 0), (0, 2)), schedule=ScheduleSpec("interleaved")),
        job({DENSE: ((4,),)}, ((2,),)),
        job({DENSE: ((2, 2), (2, 2))}, ((1, 0), (0, 2)), 8, ScheduleSpec("zero_bubble_v")),
    ],
    ids=["all recomputed", "one layer a stage", "interleaved", "no pipeline", "zero bubble"],
)
def test_hard_layouts_are_still_told_apart(config: TrainingConfig, tmp_path: Path) -> None:
    """Where every layer is recomputed, only the kernels' names part recompute from backward."""
    found = extract_ratios(config, write(config, tmp_path))
    assert found.problems == () and found.missing == () and found.ratios is not None
    assert found.ratios.dense_forward == 1.0
    assert found.ratios.backward == pytest.approx(2.1, rel=1e-3)
    assert found.ratios.recompute[FULL] == pytest.approx(0.9, rel=1e-3)
    assert found.ratios.head == pytest.approx(1.7, rel=1e-3)


def test_peak_and_static_memory_stand_by_stage(tmp_path: Path) -> None:
    memory = {0: (100.0, 300.0), 1: (90.0, 250.0), 2: (110.0, 280.0)}
    found = extract_ratios(MIXED, write(MIXED, tmp_path, memory_mib=memory))
    assert {stage: (each.static_mib, each.peak_mib) for stage, each in found.memory.items()} == memory


def test_a_memory_record_that_was_cut_gives_no_peak(tmp_path: Path) -> None:
    write(MIXED, tmp_path, memory_mib={0: (100.0, 300.0)})
    [path] = tmp_path.glob("*/ASCEND_PROFILER_OUTPUT/memory_record.csv")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    found = extract_ratios(MIXED, tmp_path)
    assert found.memory == {}
    assert any("memory_record.csv is ignored: it ends before the last step" in note for note in found.notes)


def test_missing_ranks_are_named_and_the_others_used(tmp_path: Path) -> None:
    found = extract_ratios(MIXED, write(MIXED, tmp_path, stages=[0, 1]))
    assert found.problems == () and found.ratios is not None
    assert found.missing == ("hratio",) and found.samples["hratio"] == 0
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=1e-3)
    assert any("no profile of stage 2" in note for note in found.notes)


def test_a_profile_in_which_nothing_is_recomputed_says_so(tmp_path: Path) -> None:
    config = job({DENSE: ((2, 2),)}, ((0, 0),))
    found = extract_ratios(config, write(config, tmp_path))
    assert found.missing == ("re_grow_ration",) and found.problems == ()


def selecting(framework: str, full: tuple[int, ...], select: tuple[int, ...]) -> TrainingConfig:
    """Three stages of MoE layers, some recomputed in full, some selectively."""
    config = job({DENSE: ((2, 0, 0),), MOE: ((1, 3, 3),)}, (full,))
    assert config.plan is not None
    return config.replace(
        rules=TrainingRules(framework=FRAMEWORKS[framework]),
        plan=PipelinePlan(config.plan.layers, {FULL: (full,), SELECT: (select,)}),
    )


def with_attention(config: TrainingConfig, folder: Path) -> Path:
    """Its profiles, in which selective recompute runs the attention kernel again."""
    assert config.plan is not None
    times = replace(SyntheticTimes.from_ratios(RATIOS, config.plan), select_attention=True)
    write_synthetic_profiles(config, times, folder)
    return folder


@pytest.mark.parametrize(
    ("framework", "full", "select"),
    [
        ("megatron", (1, 1, 0), (1, 1, 2)),
        ("megatron", (0, 0, 0), (3, 3, 3)),
        ("mindformers", (1, 1, 1), (1, 1, 1)),
    ],
)
def test_selective_recompute_that_runs_attention_again_is_recognised(
    framework: str, full: tuple[int, ...], select: tuple[int, ...], tmp_path: Path
) -> None:
    config = selecting(framework, full, select)
    found = extract_ratios(config, with_attention(config, tmp_path))
    assert found.problems == () and found.ratios is not None
    assert found.ratios.recompute[SELECT] == pytest.approx(0.3, rel=1e-3)
    assert found.missing == (() if any(full) else ("re_grow_ration",))
    for name, value in (("dense_forward", 0.4), ("backward", 2.1), ("head", 1.7), ("unit_ms", 12.0)):
        assert getattr(found.ratios, name) == pytest.approx(value, rel=1e-3)


def test_what_selective_recompute_adds_before_attention_is_not_taken_for_backward(tmp_path: Path) -> None:
    """MindFormers' patterns may run more than attention again: with every layer selective the two cannot be parted."""
    config = selecting("mindformers", (0, 0, 0), (3, 3, 3))
    found = extract_ratios(config, with_attention(config, tmp_path))
    assert found.problems == () and found.ratios is not None
    assert "bfratio" in found.missing
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=1e-3)


def test_full_recompute_does_not_pass_for_selective(tmp_path: Path) -> None:
    write(selecting("megatron", (3, 3, 3), (0, 0, 0)), tmp_path)
    text = marked(selecting("megatron", (0, 0, 0), (3, 3, 3)), tmp_path)
    assert "wrong recompute list" in text


UNFUSED = job({DENSE: ((2, 0, 0, 0),), MOE: ((1, 3, 2, 2),)}, ((1, 1, 0, 2),))


def test_ranges_that_name_tasks_serve_where_attention_is_not_fused(tmp_path: Path) -> None:
    found = extract_ratios(UNFUSED, write(UNFUSED, tmp_path, form="kineto", task_ranges=True))
    assert found.problems == () and found.ratios is not None
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=1e-3)
    assert found.ratios.backward == pytest.approx(2.1, rel=1e-3)
    assert found.ratios.recompute[FULL] == pytest.approx(0.9, rel=1e-3)
    assert found.ratios.head == pytest.approx(1.7, rel=1e-3)
    assert found.transfer_ms == pytest.approx(0.05 * 12.0, rel=1e-3)
    # Stage 0 alone holds dense layers, beside the embedding: their time cannot be told.
    assert found.missing == ("dmratio",)
    assert sum("measured by its forward and backward ranges" in note for note in found.notes) == 4


def test_a_straggler_and_noise_leave_ranges_within_two_percent(tmp_path: Path) -> None:
    folder = write(
        UNFUSED, tmp_path, form="kineto", task_ranges=True, steps=3, disturbance=Disturbance(0.03, straggler=2), seed=4
    )
    found = extract_ratios(UNFUSED, folder)
    assert found.problems == () and found.ratios is not None
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=0.02)
    assert found.ratios.backward == pytest.approx(2.1, rel=0.02)
    assert any("straggled" in note for note in found.notes)


@pytest.mark.parametrize("fault", ["cut", "renamed", "overlapping", "another order"])
def test_ranges_that_do_not_fit_the_schedule_are_marked(fault: str, tmp_path: Path) -> None:
    write(UNFUSED, tmp_path, form="kineto", task_ranges=True)
    file = tmp_path / "synthetic_rank-4.pt.trace.json"
    trace = json.loads(file.read_text())
    ranges = [event for event in trace["traceEvents"] if "##" in event["name"] and event["tid"] == 7]
    if fault == "cut":
        trace["traceEvents"].remove(ranges[-1])
    elif fault == "renamed":
        for event in ranges:
            event["name"] = event["name"].replace("backward", "forward")
    elif fault == "overlapping":
        ranges[3]["dur"] += ranges[4]["dur"] + ranges[4]["ts"] - ranges[3]["ts"]
    else:
        ranges[2]["name"], ranges[3]["name"] = ranges[3]["name"], ranges[2]["name"]
    file.write_text(json.dumps(trace))
    text = marked(UNFUSED, tmp_path)
    assert "ranges" in text and "rank 4" in text


def test_a_weight_gradient_of_its_own_is_beyond_ranges(tmp_path: Path) -> None:
    config = job({DENSE: ((2, 2), (2, 2))}, ((0, 0), (0, 0)), schedule=ScheduleSpec("zero_bubble_v"))
    write(config, tmp_path, form="kineto", task_ranges=True)
    assert "weight gradient" in marked(config, tmp_path)


def test_a_rank_without_a_number_is_placed_where_alone_it_fits(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    for path in tmp_path.glob("*/profiler_info_*.json"):
        path.unlink()
    found = extract_ratios(MIXED, tmp_path)
    assert_truth(found)
    assert sum("no rank is given" in note for note in found.notes) == 3


def marked(config: TrainingConfig, folder: Path) -> str:
    """The problems of a folder that must be marked."""
    found = extract_ratios(config, folder)
    assert found.ratios is None and found.problems
    return "\n".join(found.problems)


def test_another_recompute_list_is_found_with_its_number(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    assert MIXED.plan is not None
    told = MIXED.replace(plan=PipelinePlan(MIXED.plan.layers, {FULL: ((1, 2, 1),)}))
    text = marked(told, tmp_path)
    assert "rank 4" in text and "1 layers of this stage run attention again" in text
    assert "recomputes 2: wrong recompute list" in text


def test_another_offset_is_found_with_its_layers(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    told = job({DENSE: ((2, 0, 0),), MOE: ((1, 4, 2),)}, ((1, 1, 1),))
    text = marked(told, tmp_path)
    assert "3 layers a micro-batch and the configuration puts 4 on this stage: wrong offset" in text


def test_ranks_in_another_order_are_found(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    for path in tmp_path.glob("*/profiler_info_*.json"):
        rank = json.loads(path.read_text())["rank_id"]
        path.unlink()
        (path.parent / f"profiler_info_{8 - rank}.json").write_text(json.dumps({"rank_id": 8 - rank}))
    assert "it would fit stage 2, not stage 0: another order of ranks?" in marked(MIXED, tmp_path)


def test_two_profiles_of_one_rank_are_refused(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    one = kernels_of(tmp_path, 0).parent.parent
    shutil.copytree(one, one.with_name("copy"))
    assert "profiles of two runs are mixed" in marked(MIXED, tmp_path)


@pytest.mark.parametrize(
    ("notes", "reason"), [((), "the file does not settle them"), (("one", "another"), "one; another")]
)
def test_without_a_plan_the_notes_of_the_file_say_why(notes: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    found = extract_ratios(MIXED.replace(plan=None, notes=notes), write(MIXED, tmp_path))
    assert found.ratios is None
    assert found.problems == (f"layers and recompute are not known: {reason}",)


@pytest.mark.parametrize("parts", [1, 2])
def test_halves_of_a_micro_batch_that_overlap_are_refused(parts: int, tmp_path: Path) -> None:
    config = MIXED.replace(rules=replace(MIXED.rules, interleaved_parts=parts))
    found = extract_ratios(config, write(MIXED, tmp_path))
    assert (found.ratios is None) == (parts == 2)
    assert all("micro_batch_interleave_num is 2" in problem for problem in found.problems)


def test_a_rank_beyond_the_configuration_is_refused(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    assert "only 6 ranks" in marked(MIXED.replace(strategy=MIXED.strategy.replace(dp=1)), tmp_path)
    # Of ranks 0, 4 and 8 the last is the first one beyond eight.
    assert "only 8 ranks" in marked(MIXED.replace(strategy=MIXED.strategy.replace(dp=1, tp=4, pp=2)), tmp_path)


@pytest.mark.parametrize(
    "old, new, word",
    [
        (b"FlashAttentionScore", b"PlainSoftmaxThing", "no attention kernel of a known name"),
        (b"FlashAttentionScoreGrad", b"PlainSoftmaxGrad", "the backward attention kernel has another name"),
    ],
)
def test_a_renamed_attention_kernel_is_marked_with_the_commonest_names(
    old: bytes, new: bytes, word: str, tmp_path: Path
) -> None:
    write(MIXED, tmp_path)
    path = kernels_of(tmp_path, 0)
    path.write_bytes(path.read_bytes().replace(old, new))
    text = marked(MIXED, tmp_path)
    assert word in text and "MatMulV3" in text


COLUMNS = (
    "Step Id",
    "Stream ID",
    "Name",
    "Type",
    "Accelerator Core",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
)


@pytest.mark.parametrize("one, other", [(a, b) for i, a in enumerate(COLUMNS) for b in COLUMNS[i + 1 :]])
def test_two_swapped_columns_never_give_another_number(one: str, other: str, tmp_path: Path) -> None:
    """A swap of columns that are read is marked; one of columns that do not matter changes nothing."""
    write(MIXED, tmp_path, steps=1)
    path = kernels_of(tmp_path, 4)
    header, rest = path.read_text().split("\n", 1)
    names = header.rstrip("\r").split(",")
    i, j = names.index(one), names.index(other)
    names[i], names[j] = names[j], names[i]
    path.write_text(",".join(names) + "\r\n" + rest, newline="")
    found = extract_ratios(MIXED, tmp_path)
    if found.ratios is not None:
        assert_truth(found)


def test_rows_of_two_steps_mixed_are_marked(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    path = kernels_of(tmp_path, 4)
    lines = path.read_text().splitlines(keepends=True)
    half = len(lines) * 3 // 4
    path.write_text(
        "".join(
            [
                line.replace("11,", "10,", 1) if i > half and line.startswith("11,") else line
                for i, line in enumerate(lines)
            ]
        ),
        newline="",
    )
    assert "the rows of two steps are mixed" in marked(MIXED, tmp_path)


def test_a_step_laid_over_another_is_marked(tmp_path: Path) -> None:
    """The kernels of a second run, moved into the time of the first: attention kernels run at once or in no order."""
    write(MIXED, tmp_path / "one", steps=1)
    write(MIXED, tmp_path / "two", steps=1, seed=1)
    first, second = kernels_of(tmp_path / "one", 4), kernels_of(tmp_path / "two", 4)
    first.write_text(first.read_text() + "".join(second.read_text().splitlines(keepends=True)[1:]), newline="")
    assert marked(MIXED, tmp_path / "one")


@pytest.mark.parametrize("form, trace_only", [("ascend", False), ("ascend", True), ("kineto", False)])
def test_a_file_cut_anywhere_is_marked_or_changes_nothing(form: str, trace_only: bool, tmp_path: Path) -> None:
    config = job({DENSE: ((2, 2),)}, ((1, 0),), 3)
    write(config, tmp_path, form=form, trace_only=trace_only, steps=1)
    truth = extract_ratios(config, tmp_path)
    pattern = "*rank-4*.json" if form == "kineto" else "*rank00004*/ASCEND_PROFILER_OUTPUT/*"
    [path] = tmp_path.glob(pattern)
    whole = path.read_bytes()
    generator = np.random.default_rng(3)
    cuts = sorted({0, 1, 2, 3, len(whole) - 1, len(whole) - 2, *generator.integers(0, len(whole), 60).tolist()})
    harmless = 0
    for cut in cuts:
        path.write_bytes(whole[:cut])
        found = extract_ratios(config, tmp_path)
        if found.ratios is not None:
            harmless += 1
            assert found.ratios == truth.ratios, f"cut at {cut} of {len(whole)} changes a number in silence"
    assert harmless <= 4


def test_overlapped_halves_of_a_micro_batch_are_refused_with_the_cure(tmp_path: Path) -> None:
    write(MIXED, tmp_path)
    assert "profile with 1" in marked(MIXED.replace(rules=MIXED.rules.replace(interleaved_parts=2)), tmp_path)


def test_a_folder_without_profiles_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="contains no profile"):
        extract_ratios(MIXED, tmp_path)


def test_a_random_run_is_reproducible() -> None:
    one, other = (random_run(np.random.default_rng(5)) for _ in range(2))
    assert one == other
