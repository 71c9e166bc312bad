"""Where peaks scatter, jobs of other shapes tell the coefficients; where they tell others, they count for nothing."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.fitting.probes import STAGES, is_probe, job_of, probe_cells
from taylor.dryrun.interface import DryRunResult, StagePeak
from taylor.dryrun.measure import MAX_PROBES, MAX_RUNS, as_runs, measure_profile
from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.registry import Registry
from tests.conftest import ROOT
from tests.dryrun_cases import DEEPSEEK_TRUTH, LLAMA_TRUTH, InProcess

CASES = {
    "llama": ("pretrain_llama3_70b", LLAMA_TRUTH, 31_000.0),
    "deepseek": ("pretrain_deepseek3_671b_1024p", DEEPSEEK_TRUTH, 56_320.0),
}


def case(name, modes=(NONE, FULL), schedule=None, **strategy):
    config = read_config(ROOT / "config" / f"{name}.yaml")
    config = config.replace(strategy=config.strategy.replace(**strategy), schedule=schedule or config.schedule)
    return LinearMemory(config, modes), estimate_memory(config, Registry.load(None).device("ascend-910b"))


def true_values(memory, truth):
    values = []
    for name in memory.unknowns:
        value = truth
        for part in name.split("."):
            value = value[part]
        values.append(float(value))
    return np.array(values)


SEEDS = int(os.environ.get("TAYLOR_DRYRUN_SEEDS", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", CASES)
def test_with_noise_of_2_percent_every_coefficient_is_found_within_3_percent(tmp_path, name, seed):
    file, truth, limit = CASES[name]
    memory, prior = case(file)
    backend = InProcess(tmp_path, truth, 0.02, seed)
    measured = measure_profile(memory, replace(prior, device_limit_mib=limit), backend, probes=True)
    assert measured.fit.values == pytest.approx(true_values(memory, truth), rel=0.03)
    assert len(backend.measured) <= 2 * len(memory.unknowns) + MAX_PROBES


def test_without_noise_nothing_but_the_jobs_own_stages_is_run(tmp_path):
    memory, prior = case("pretrain_deepseek3_671b_1024p")
    backend = InProcess(tmp_path, DEEPSEEK_TRUTH)
    measured = measure_profile(memory, prior, backend, probes=True)
    assert {stages for stages, _ in backend.measured} == {16} and len(backend.measured) == 2 * len(memory.unknowns)
    assert measured.fit.values == pytest.approx(true_values(memory, DEEPSEEK_TRUTH), rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, strategy",
    [
        ("pretrain_deepseek3_671b_1024p", {}),
        ("pretrain_deepseek3_671b_1024p", {"vpp": 2, "pp": 8}),
        ("pretrain_llama3_70b", {}),
        ("pretrain_llama3_70b", {"pp": 2}),
        ("pretrain_qwen3_30b_a3b", {"pp": 4}),
    ],
)
def test_a_probes_file_reads_back_as_its_job_and_the_stand_in_finds_the_peak_of_its_row(tmp_path, name, strategy):
    memory, prior = case(name, **strategy)
    values = np.random.default_rng(1).uniform(50, 5000, len(memory.unknowns))
    own = dict(zip(memory.unknowns, values, strict=True))
    kinds = {kind: {m: own[f"activation.{kind}.{m}"] for m in memory.modes} for kind in memory.kinds}
    backend = InProcess(
        tmp_path,
        {
            "static": {
                "first": own["static.first"],
                "last": own["static.last"],
                "middle": own.get("static.middle", 0.0),
            },
            "layer": {kind: own[f"layer.{kind}"] for kind in memory.kinds},
            "activation": kinds,
        },
    )
    cells = list(probe_cells(memory, 64, 3))
    assert {cell.plan.stages for cell in cells} == {n for n in STAGES if n * memory.interleaves <= 64}
    for run in as_runs(memory, cells[::29]):
        path = emit_variant(run.config, run.strategy, tmp_path / "probe.yaml", plan=run.plan)
        again = read_config(path)
        assert again.model == run.config.model and again.strategy == run.strategy
        assert {kind: grid for kind, grid in again.plan.layers.items() if any(map(any, grid))} == {
            kind: grid for kind, grid in run.plan.layers.items() if any(map(any, grid))
        }
        rows = memory.rows(run.plan, values, run.asked)
        told = [peak.peak_mib for peak in backend.measure([run])[0].stages]
        assert rows @ values == pytest.approx(told, abs=0.51)


@pytest.mark.parametrize(
    "schedule, strategy",
    [
        (ScheduleSpec("zero_bubble_v"), {"vpp": 2}),
        (ScheduleSpec("seqpipe", seq_splits=2), {}),
        (None, {"vpp": 3}),
    ],
)
def test_probes_keep_schedule_degrees_and_what_a_layer_is(schedule, strategy):
    memory, _ = case("pretrain_deepseek3_671b_1024p", (NONE, SELECT, FULL), schedule, **strategy)
    for cell in list(probe_cells(memory, 48))[::23]:
        job = job_of(memory, cell.plan)
        own = memory.config
        assert job.schedule == memory.schedule.spec and job.rules == own.rules
        assert job.strategy == own.strategy.replace(pp=job.strategy.pp, micro_batches=job.strategy.micro_batches)
        assert job.strategy.micro_batches >= job.strategy.pp
        moe = replace(job.model.moe, first_dense=own.model.moe.first_dense)
        assert job.model.replace(n_layers=own.model.n_layers, moe=moe) == own.model
        held = {kind: sum(map(sum, grid)) for kind, grid in cell.plan.layers.items()}
        assert job.model.layer_counts() == {kind: count for kind, count in held.items() if count}
        assert min(map(min, cell.plan.total_layers())) >= 1


def test_a_job_of_one_stage_has_no_probes():
    memory, _ = case("pretrain_llama3_70b", pp=1)
    assert list(probe_cells(memory, 64)) == []


def is_own(config):
    own = config["parallel_config"]["pipeline_stage"] == 8
    return own and config["model"]["model_config"]["num_layers"] == 80


class Strange(InProcess):
    """Jobs of other shapes need half as much again."""

    def answer(self, config, text, stage):
        peak = super().answer(config, text, stage)
        return peak if is_own(config) else replace(peak, peak_mib=1.5 * peak.peak_mib)


class Stubborn(InProcess):
    """Jobs of other shapes do not run."""

    def answer(self, config, text, stage):
        peak = super().answer(config, text, stage)
        return peak if is_own(config) else StagePeak(stage, None, "x", failure="crashed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, said", [(Strange, "need another memory"), (Stubborn, "40 of 40 dry-runs of other jobs failed")]
)
def test_probes_that_tell_something_else_or_do_not_run_count_for_nothing(tmp_path, caplog, backend, said):
    memory, prior = case("pretrain_llama3_70b")
    assert memory.stages == 8
    runner = backend(tmp_path, LLAMA_TRUTH, 0.02, 5)
    measured = measure_profile(memory, replace(prior, device_limit_mib=31_000.0), runner, probes=True)
    assert not any(is_probe(memory, each.plan) for each in measured.observations)
    assert len(measured.observations) <= MAX_RUNS and len(runner.measured) <= MAX_RUNS + 40
    truth = true_values(memory, LLAMA_TRUTH)
    assert measured.fit.values == pytest.approx(truth, rel=0.15)
    assert any(said in record.getMessage() for record in caplog.records)


def test_results_of_probes_carry_their_own_strategy(tmp_path):
    memory, _ = case("pretrain_llama3_70b")
    cell = next(cell for cell in probe_cells(memory, 64) if cell.plan.stages == 64)
    result = InProcess(tmp_path, LLAMA_TRUTH).measure(as_runs(memory, [cell]))[0]
    assert isinstance(result, DryRunResult) and result.run.strategy.pp == 64
