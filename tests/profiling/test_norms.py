"""The head told from the last layer by the final norm: only where every rank's norm kernels bear it out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.synthetic.profiles import SyntheticTimes, write_synthetic_profiles
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.extract import ExtractedRatios, extract_ratios
from taylor.profiling.norms import _behind
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


def alone(schedule: ScheduleSpec = ScheduleSpec(), full: tuple[int, int] = (0, 0)) -> TrainingConfig:  # noqa: B008 - frozen
    """One dense layer beside the embedding, one MoE layer beside the head: no window shows the MoE layer alone."""
    model = ModelSpec("job", 2, 512, 8, 8, 64, 2048, 32000, moe=MoeSpec(8, 2, 512, first_dense=1))
    plan = PipelinePlan({DENSE: ((1, 0),), MOE: ((0, 1),)}, {FULL: (full,)})
    return TrainingConfig(
        Path("job.yaml"),
        "mindformers",
        model,
        Strategy(dp=2, tp=2, pp=2, micro_batches=6),
        TrainingRules(),
        schedule,
        plan,
    )


def write(config: TrainingConfig, folder: Path, form: str = "ascend") -> Path:
    """Synthetic profiles of a configuration with the times of `RATIOS`."""
    assert config.plan is not None
    write_synthetic_profiles(config, SyntheticTimes.from_ratios(RATIOS, config.plan), folder, form=form, steps=3)
    return folder


def retype(folder: Path, change: Callable[[list[str]], None]) -> None:
    """Change the kernels' types of both ranks; `change` gets them in time order."""
    for path in folder.glob("*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"):
        header, *lines = path.read_text().splitlines()
        rows = [line.split(",") for line in lines]
        kinds = [row[5] for row in rows]
        change(kinds)
        for row, kind in zip(rows, kinds, strict=True):
            row[5] = kind
        path.write_text("\r\n".join([header, *map(",".join, rows)]) + "\r\n", newline="")


def renamed(**names: str) -> Callable[[list[str]], None]:
    """A change of every kernel of some types."""

    def change(kinds: list[str]) -> None:
        kinds[:] = [names.get(kind, kind) for kind in kinds]

    return change


def assert_told(found: ExtractedRatios) -> None:
    """Every ratio is the one of `RATIOS`, and a note says what they lean on."""
    assert found.problems == () and found.ratios is not None
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=1e-3)
    assert found.ratios.dense_forward == pytest.approx(0.4, rel=1e-3)
    assert found.ratios.backward == pytest.approx(2.1, rel=1e-3)
    assert found.ratios.head == pytest.approx(1.7, rel=1e-3)
    assert any("final norm" in note for note in found.notes)


def assert_marked(config: TrainingConfig, folder: Path) -> None:
    """No ratio, and the reason with its cure."""
    found = extract_ratios(config, folder)
    assert found.ratios is None
    assert any("no rank shows the forward of a moe layer apart" in problem for problem in found.problems)


@pytest.mark.parametrize("form", ["ascend", "kineto"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "seqpipe"])
def test_a_moe_layer_alone_beside_the_head_is_told_by_the_final_norm(form: str, schedule: str, tmp_path: Path) -> None:
    config = alone(ScheduleSpec(schedule, seq_splits=2 if schedule == "seqpipe" else 1))
    assert_told(extract_ratios(config, write(config, tmp_path, form)))


@pytest.mark.parametrize("full", [(0, 1), (1, 1), (1, 0)])
def test_recompute_of_layers_that_stand_alone_is_told_too(full: tuple[int, int], tmp_path: Path) -> None:
    """Behind attention the forward's kernels run again: those up to the final norm, or up to the send."""
    config = alone(full=full)
    found = extract_ratios(config, write(config, tmp_path))
    assert_told(found)
    assert found.ratios is not None
    assert found.ratios.recompute[FULL] == pytest.approx(0.9, rel=1e-3)


def test_norms_on_both_sides_of_the_mlp_are_counted_where_the_head_is_not(tmp_path: Path) -> None:
    write(alone(), tmp_path)
    retype(tmp_path, renamed(Add="RmsNorm", SwiGluGrad="RmsNormGrad"))
    assert_told(extract_ratios(alone(), tmp_path))


def test_gradients_without_a_name_leave_head_open_and_the_layer_told(tmp_path: Path) -> None:
    write(alone(), tmp_path)
    retype(tmp_path, renamed(RmsNormGrad="Mul"))
    found = extract_ratios(alone(), tmp_path)
    assert found.problems == () and found.ratios is not None
    assert found.missing == ("re_grow_ration", "hratio")
    assert found.ratios.unit_ms == pytest.approx(12.0, rel=1e-3)
    assert found.ratios.dense_forward == pytest.approx(0.4, rel=1e-3)


def rename_final(name: str, only: int | None = None) -> Callable[[list[str]], None]:
    """A change of the final norms, or of one of them: the last norm before each loss."""

    def change(kinds: list[str]) -> None:
        losses = [at for at, kind in enumerate(kinds) if kind == "CrossEntropyLoss"]
        for at in losses if only is None else losses[only : only + 1]:
            kinds[max(i for i in range(at) if kinds[i] == "RmsNorm")] = name

    return change


@pytest.mark.parametrize(
    "change",
    [
        renamed(RmsNorm="Mul"),
        renamed(MoeGatingTopKSoftmax="RmsNorm"),
        renamed(CrossEntropyLoss="RmsNorm"),
        rename_final("Mul"),
        rename_final("Mul", only=4),
        rename_final("RmsNormGrad", only=4),
        lambda kinds: kinds.__setitem__(kinds.index("SwiGlu"), "RmsNorm"),
    ],
    ids=[
        "no norm has a name",
        "one more in the MoE layer",
        "one more in the head",
        "no final norm",
        "no final norm in one micro-batch",
        "a gradient in the forward",
        "one more in the first pass",
    ],
)
def test_norms_that_do_not_agree_leave_the_configuration_marked(
    change: Callable[[list[str]], None], tmp_path: Path
) -> None:
    write(alone(), tmp_path)
    retype(tmp_path, change)
    assert_marked(alone(), tmp_path)


def test_the_last_stage_alone_does_not_bear_out_its_own_norms(tmp_path: Path) -> None:
    """Without the other stage nobody has counted the norms of a layer."""
    write(alone(), tmp_path)
    for path in tmp_path.glob("*rank00000*/ASCEND_PROFILER_OUTPUT/kernel_details.csv"):
        path.unlink()
    for path in tmp_path.glob("*rank00000*/*.json"):
        path.unlink()
    found = extract_ratios(alone(), tmp_path)
    assert found.ratios is None


def test_what_the_windows_settle_does_not_lean_on_norms(tmp_path: Path) -> None:
    """Two MoE layers on the last stage and one before it: the same figures, whatever the norms are called."""
    config = alone().replace(plan=PipelinePlan({DENSE: ((1, 0),), MOE: ((1, 2),)}, {FULL: ((0, 0),)}))
    plain = extract_ratios(config, write(config, tmp_path))
    assert not any("final norm" in note for note in plain.notes)
    retype(tmp_path, renamed(MoeGatingTopKSoftmax="RmsNorm", RmsNorm="RmsNormGrad"))
    assert extract_ratios(config, tmp_path).ratios == plain.ratios


@pytest.mark.parametrize(
    ("counts", "behind"),
    [
        ({(1, 0, 1)}, 1),
        ({(1, 0, 12)}, 12),
        ({(1, 0, 13)}, None),  # more than any layer has
        ({(0, 1, 12), (1, 1, 13)}, 1),
        ({(0, 1, 13), (1, 1, 14)}, None),
        ({(1, 1, 3)}, None),  # several explain it
        ({(1, 0, 2), (1, 0, 3)}, None),  # nothing does
        ({(1, 0, 0)}, None),
    ],
)
def test_norms_behind_attention_are_told_where_one_number_explains_all(counts: set, behind: int | None) -> None:
    assert _behind(counts) == behind
