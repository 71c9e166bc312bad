"""A peak is explained by its moment, its parts and the largest levers; a misfit states the smallest change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import why_memory as command
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.read import read_config
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL
from taylor.workflows.showing.fit import Fit
from taylor.workflows.showing.memory_levers import corrected_peaks
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.why_memory import MemoryReasons, why_memory
from taylor.workflows.statement.measured_run import CARD, MeasuredRun
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import script_of

MIB = 2**20
FILES = ("pretrain_llama3_70b.sh", "pretrain_deepseek3_128p.yaml", "pretrain_mixtral_8x7b.yaml")
VIRTUAL = SHELL_FLAGS + "--num-layers-per-virtual-pipeline-stage 3\n"


def explained(path: Path, **more: object) -> MemoryReasons:
    """Reasons of a file's peak."""
    return why_memory(FileJob(path, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FILES)
def test_the_parts_of_every_stage_sum_up_to_its_planned_peak(name: str) -> None:
    found = explained(ROOT / "config" / name)
    planned = evaluate_file(FileJob(ROOT / "config" / name, dryrun=False, check=False)).solution
    assert [one.peak_mib for one in found.stages] == pytest.approx(planned.peak_memory_mib, abs=1.0)
    assert [one.limit_mib for one in found.stages] == list(planned.memory_limit_mib)
    free = [limit - peak for peak, limit in zip(planned.peak_memory_mib, planned.memory_limit_mib, strict=True)]
    assert found.fullest == free.index(min(free))
    for one in found.stages:
        activations = sum(mib for part, mib in one.parts.items() if part.startswith("activations"))
        assert sum(kept.mib for kept in one.kept) == pytest.approx(activations)


def test_the_weights_of_a_dense_stage_are_those_of_its_parameters(tmp_path: Path) -> None:
    (stage, *_) = [one for one in explained(script_of(tmp_path, SHELL_FLAGS)).stages if one.stage == 1]
    # Six layers of GPT in bf16: 12 h² weights and 7 h biases over TP 2, two norms and two biases (6 h) whole.
    h = 1024
    split, whole = 12 * h * h + 7 * h, 6 * h
    assert stage.parts["weights"] == pytest.approx(6 * 2 * (split / 2 + whole) / MIB, rel=2e-3)


@pytest.mark.parametrize("flags", [SHELL_FLAGS, VIRTUAL])
def test_the_moment_is_where_the_played_order_keeps_most(tmp_path: Path, flags: str) -> None:
    path = script_of(tmp_path, flags)
    config = read_config(path)
    strategy = config.strategy
    schedule = build_schedule(config.schedule_for(strategy.vpp), strategy.pp, strategy.vpp, strategy.micro_batches)
    for one in explained(path).stages:
        alive, most, backward = 0, 0, None
        for direction, chunk, micro_batch, _ in schedule.order[one.stage].tolist():
            if direction == 0:
                alive += 1
            elif alive > most:  # all chunks have as many layers
                most, backward = alive, (micro_batch, chunk)
            alive -= direction == 1
        assert (one.moment.micro_batch, one.moment.interleave) == backward
        assert one.moment.alive == pytest.approx(most / strategy.vpp)


def test_a_lever_saves_what_the_changed_job_needs_less(tmp_path: Path) -> None:
    path = script_of(tmp_path, SHELL_FLAGS.replace("micro-batch-size 1", "micro-batch-size 4"))
    levers = {lever.name: lever for lever in explained(path).levers}
    before = explained(path).stages[0].peak_mib
    other = script_of(tmp_path, SHELL_FLAGS.replace("micro-batch-size 1", "micro-batch-size 2"))
    after = explained(other).stages[0].peak_mib
    assert levers["micro-batches of 2 instead of 4"].saved_mib == pytest.approx(before - after)
    parallel = script_of(
        tmp_path, SHELL_FLAGS.replace("micro-batch-size 1", "micro-batch-size 4") + "--sequence-parallel\n"
    )
    saved = before - explained(parallel).stages[0].peak_mib
    assert levers["sequence parallelism"].saved_mib == pytest.approx(saved)
    assert list(levers.values()) == sorted(levers.values(), key=lambda lever: -lever.saved_mib)


@pytest.mark.parametrize("split", ["", "--use-distributed-optimizer\n"])
@pytest.mark.parametrize(("old", "new", "lever"), [
    ("", "--use-distributed-optimizer\n", "distributed optimizer (ZeRO-1) over 2 ranks"),
    ("tensor-model-parallel-size 2", "tensor-model-parallel-size 4", "TP 4 and DP 1"),
    ("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 8", "PP 8 and DP 1"),
    ("--bf16", "--bf16\n--context-parallel-size 2", "CP 2 and DP 1"),
])  # fmt: skip
def test_a_lever_on_the_degrees_saves_what_the_changed_script_does(
    tmp_path: Path, split: str, old: str, new: str, lever: str
) -> None:
    flags = SHELL_FLAGS + split
    changed = flags.replace(old, new) if old else flags + new
    found = why_memory(FileJob(script_of(tmp_path, flags)))
    levers = {one.name: one for one in found.levers}
    peaks = [one.peak_mib for one in found.stages]
    other = [one.peak_mib for one in why_memory(FileJob(script_of(tmp_path, changed))).stages]
    saved = peaks[0] - other[0] if "PP" not in lever else max(peaks) - max(other)
    if saved <= 0.0:
        assert lever not in levers
        return
    assert levers[lever].saved_mib == pytest.approx(saved) and levers[lever].largest_mib == pytest.approx(max(other))


def test_recompute_of_a_stage_saves_what_its_activations_are_more_than_inputs(tmp_path: Path) -> None:
    path = script_of(tmp_path, SHELL_FLAGS)
    found = explained(path, device="h100-80g")
    (lever,) = [one for one in found.levers if one.name.startswith("full recompute")]
    (kept,) = found.stages[0].kept
    inputs = 2048 * 1024 * 2 / MIB  # a layer's input in bf16: TP does not split it without sequence parallelism
    assert lever.saved_mib == pytest.approx(kept.mib - kept.layers * 4 * inputs)


def test_what_was_measured_beyond_the_model_is_a_part(tmp_path: Path) -> None:
    path = script_of(tmp_path, SHELL_FLAGS)
    plain = explained(path).stages[2].peak_mib
    run = MeasuredRun(((2, plain + 777.0),), peak_of=CARD)
    stage = explained(path, measured=run).stages[2]
    assert stage.parts["measured beyond the model"] == pytest.approx(777.0)
    assert stage.peak_mib == pytest.approx(plain + 777.0)


def test_the_levers_are_those_of_the_requested_stage() -> None:
    found = why_memory(FileJob(ROOT / "config" / FILES[0]), stage=2)
    assert found.fullest == 2 and any("of stage 2" in lever.name for lever in found.levers)
    with pytest.raises(InputError, match="--stage: names no stage of 4.*0 to 3"):
        why_memory(FileJob(ROOT / "config" / FILES[0]), stage=4)


def test_a_misfit_states_the_fewest_layers_to_recompute() -> None:
    path = ROOT / "config" / FILES[0]
    plain = evaluate_file(FileJob(path, dryrun=False, check=False))
    limit = plain.solution.peak_memory_mib[0] - 4000.0
    # Without risk, so that the stage's limit is that of the predicted peak.
    margin = MemoryMargin(risk=0.0)
    over = evaluate_file(FileJob(path, dryrun=False, check=False, stage_limits=((0, limit),), margin=margin))
    assert "the smallest change of the job that makes it fit: full recompute of " in over.fit.sentence
    count = int(over.fit.cure.split("full recompute of ")[1].split()[0])
    config, plan = over.facts.config, over.plan
    for layers, fits in ((count, True), (count - 1, False)):
        grid = ((layers, 0, 0, 0),)
        peaks = corrected_peaks(config, replace(plan, recompute={FULL: grid}), over.facts.device.spec)
        assert (peaks[0] <= limit) == fits


def test_a_plan_near_its_limit_fits_with_a_probability() -> None:
    path = ROOT / "config" / FILES[0]
    plain = evaluate_file(FileJob(path, dryrun=False, check=False)).solution
    limit = plain.peak_memory_mib[0] * 1.01
    job = FileJob(path, dryrun=False, check=False, stage_limits=((0, limit),))
    close = evaluate_file(replace(job, margin=MemoryMargin(risk=0.0))).fit
    assert close.fit is Fit.FITS and close.likely and close.risk is not None
    assert close.sentence.startswith(f"fits with {100 * (1 - close.risk):.0f} % probability; ")
    risky = evaluate_file(job).fit
    assert risky.fit is Fit.AT_RISK and risky.risk == pytest.approx(close.risk)
    assert risky.sentence.startswith(f"fits with {100 * (1 - close.risk):.0f} % probability only; ")
    assert " MiB less than 5 % risk asks for; " in risky.sentence and "full recompute of" in risky.cure


def test_no_lever_breaks_a_rule_of_the_framework(tmp_path: Path) -> None:
    names = {}
    for heads in (16, 2):  # two heads do not go over four ranks
        path = script_of(tmp_path, SHELL_FLAGS.replace("attention-heads 16", f"attention-heads {heads}"))
        names[heads] = [lever.name for lever in explained(path).levers]
    wider = [name for name in names[16] if name.startswith("TP 4 and DP ")]
    assert wider and wider[0] not in names[2]


def test_the_command_prints_parts_moment_and_levers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    path = script_of(tmp_path, SHELL_FLAGS)
    command.run([str(path)])
    text = " ".join(capsys.readouterr().out.split())
    for words in ("optimizer states", "peak at the backward of micro-batch 0", "lever: ", "MiB less"):
        assert words in text
    command.run([str(path), "--json"])
    data = json.loads(capsys.readouterr().out)
    assert [one["stage"] for one in data["stages"]] == [0, 1, 2, 3]
    for one in data["stages"]:
        assert sum(one["parts_mib"].values()) == pytest.approx(one["peak_mib"], abs=0.1)
    assert Outputs().folder.exists() is False


def test_a_misfit_names_the_states_in_lower_precision_that_the_file_omits_and_with_them_it_fits(tmp_path: Path) -> None:
    text = (ROOT / "config" / FILES[0]).read_text(encoding="utf-8").rstrip()
    plain = evaluate_file(FileJob(ROOT / "config" / FILES[0], dryrun=False, check=False)).solution
    # Between the peaks with moments in 32 and in 16 bits: the first stage's states are above 8 GiB of moments.
    job = FileJob(ROOT / "config" / FILES[0], dryrun=False, check=False, margin=MemoryMargin(risk=0.0))
    limits = tuple((stage, peak - 3000.0) for stage, peak in enumerate(plain.peak_memory_mib))
    sentence = evaluate_file(replace(job, stage_limits=limits)).fit.sentence
    flags = (
        sentence.split("with states in lower precision it fits as it is: ")[1].split("the file omits ")[1].split(")")[0]
    )
    assert flags.startswith("--use-precision-aware-optimizer --exp-avg-dtype bf16")
    path = tmp_path / "narrow.sh"
    path.write_text(f"{text} {flags}\n", encoding="utf-8")
    narrow = evaluate_file(replace(job, path=path, stage_limits=limits))
    assert narrow.fit.fit is Fit.FITS
    assert max(narrow.solution.peak_memory_mib) < max(plain.peak_memory_mib) - 3000.0
    assert "states in lower precision" not in narrow.fit.sentence
