"""From dry-runs to a plan that holds in its own dry-run: the whole road, run as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pytest
import yaml

from taylor.cost_model.profile import TimeRatios
from taylor.parsers.read import read_config
from taylor.parsers.tables.memory_profile import read_memory_profile
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.statement.problem import build_problem
from tests.conftest import ROOT
from tests.dryrun_cases import DEEPSEEK, DEEPSEEK_TRUTH, LLAMA, LLAMA_TRUTH, StandIn

LIMIT = {"llama": 31_000, "deepseek": 56_320}
CASES = {"llama": (LLAMA, LLAMA_TRUTH), "deepseek": (DEEPSEEK, DEEPSEEK_TRUTH)}
RATIOS = {
    "llama": ("-ratios", "fixed", "-layer_ratio", "1"),
    "deepseek": ("-ratios", "fixed", "-layer_ratio", "0.397", "-b_ratio", "1.839"),
}
SEEDS = int(os.environ.get("TAYLOR_DRYRUN_SEEDS", "0"))
"""Seeds of the campaign under noise, `make dryrun-noise`: a minute a seed."""
TIMES = {"llama": TimeRatios(dense_forward=1.0), "deepseek": TimeRatios(dense_forward=0.397, backward=1.839)}


@pytest.fixture
def road(tmp_path, run_tool):
    """Solve one of the cases with the stand-in; gives result, log, kept profile and stand-in."""

    def go(name, *words, drift=None, expect=0, **told):
        source, truth = CASES[name]
        config = tmp_path / "model.yaml"
        text = source.read_text(encoding="utf-8")
        config.write_text(re.sub(r'max_device_memory: "\w+"', f'max_device_memory: "{LIMIT[name]}MB"', text))
        shutil.rmtree(tmp_path / "mindformers", ignore_errors=True)
        if drift:
            told["drift"] = {"once": str(tmp_path / "pipeline_output" / "memory_info" / "*"), **drift}
        standin = StandIn(tmp_path, truth, **told)
        done = run_tool(
            "pipeline_parallel.py",
            "-yaml",
            config,
            "-mindformers",
            standin.folder,
            "--env_json",
            standin.env_json,
            "--result_json",
            "result.json",
            "--parallel_num",
            "4",
            *RATIOS[name],
            *words,
            timeout=400,
        )
        assert done.returncode == expect, done.stderr
        result = json.loads((tmp_path / "result.json").read_text()) if expect == 0 else None
        kept = [p for p in (tmp_path / "pipeline_output").glob("memory_info/*.json") if "peaks" not in p.name]
        return result, done.stderr, read_memory_profile(kept[0]) if kept else None, standin

    return go


def rounds(log):
    found = re.search(r"check: the plan passes on (\d+) of \1 stages \(round (\d+)\)", log)
    assert found, log
    return int(found[2])


def true_peaks(name, result, factor=None):
    """Peaks of a result's plan under the hidden coefficients: static + layers + micro-batches alive, V = 1."""
    truth, factor = CASES[name][1], {"layer": 1.0, "none": 1.0, **(factor or {})}
    peaks, pp = [], result["stages"]
    for s in range(pp):
        place = "first" if s == 0 else "last" if s == pp - 1 else "middle"
        peak, again = truth["static"][place], result["recompute"]["full"][0][s]
        for kind, grid in result["layers"].items():
            held = grid[0][s]
            full = min(held, again)
            again -= full
            kept = truth["activation"][kind]
            alive = min(pp - s, result["micro_batches"])
            peak += held * truth["layer"][kind] * factor["layer"]
            peak += alive * (full * kept["full"] + (held - full) * kept["none"] * factor["none"])
        peaks.append(peak)
    return peaks


def true_optimum(name, tmp_path):
    config = read_config(tmp_path / "model.yaml")
    path = tmp_path / "truth_profile.json"
    path.write_text(json.dumps({"device_limit": LIMIT[name], **CASES[name][1]}))
    memory = replace(read_memory_profile(path), device_limit_mib=float(LIMIT[name]))
    return solve(build_problem(config, memory, TIMES[name])).objective


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_without_noise_every_coefficient_and_the_true_optimum_are_found(road, tmp_path, name):
    result, log, profile, standin = road(name)
    truth = CASES[name][1]
    # The log's figures are whole MiB, which is all that parts the fit from the truth.
    assert profile.static_first_mib == pytest.approx(truth["static"]["first"], rel=0.01)
    assert profile.static_middle_mib == pytest.approx(truth["static"]["middle"], rel=0.01)
    assert profile.static_last_mib == pytest.approx(truth["static"]["last"], rel=0.01)
    for kind, layer in truth["layer"].items():
        assert profile.layer_mib[kind] == pytest.approx(layer, rel=0.01)
        for mode, kept in truth["activation"][kind].items():
            assert profile.activation_mib[kind][mode] == pytest.approx(kept, rel=0.01)
    assert rounds(log) == 1 and result["memory_source"] == "dry-run"
    assert result["objective"] == pytest.approx(true_optimum(name, tmp_path), rel=1e-6)
    assert max(true_peaks(name, result)) <= LIMIT[name]
    assert standin.alive() == []


@pytest.mark.skipif(SEEDS == 0, reason="a campaign: make dryrun-noise")
@pytest.mark.parametrize("seed", range(max(1, SEEDS)))
@pytest.mark.parametrize("name", CASES)
def test_with_noise_of_2_percent_the_plan_holds_within_4_rounds(road, tmp_path, name, seed):
    result, log, profile, _ = road(name, noise=0.02, seed=seed)
    assert rounds(log) <= 4
    # What a dry-run shows is the true peak with up to 2 % of noise.
    assert max(true_peaks(name, result)) <= LIMIT[name] / 0.98
    assert result["objective"] <= 1.01 * true_optimum(name, tmp_path)
    truth = CASES[name][1]
    assert profile.static_first_mib == pytest.approx(truth["static"]["first"], rel=0.03)
    assert profile.static_middle_mib == pytest.approx(truth["static"]["middle"], rel=0.03)
    assert profile.static_last_mib == pytest.approx(truth["static"]["last"], rel=0.03)
    for kind, layer in truth["layer"].items():
        assert profile.layer_mib[kind] == pytest.approx(layer, rel=0.03)
        for mode, kept in truth["activation"][kind].items():
            assert profile.activation_mib[kind][mode] == pytest.approx(kept, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("drift", [{"layer": 1.1}, {"none": 1.1}])
def test_a_coefficient_that_is_10_percent_higher_in_the_check_still_ends_within_the_limit(road, drift):
    result, log, _, _ = road("deepseek", drift=drift)
    assert rounds(log) <= 4
    # Logs hold whole MiB, so a peak may be half a MiB above what its dry-run showed.
    assert max(true_peaks("deepseek", result, drift)) <= LIMIT["deepseek"] + 0.5


@pytest.mark.slow
def test_a_second_run_starts_nothing_and_dryrun_n_takes_the_kept_profile(road, run_tool, tmp_path):
    result, _, _, standin = road("llama")
    before = len(standin.starts())
    words = (
        "-yaml",
        "model.yaml",
        "-mindformers",
        standin.folder,
        "--env_json",
        standin.env_json,
        "-write",
        "n",
        *RATIOS["llama"],
        "--result_json",
        "again.json",
    )
    done = run_tool("pipeline_parallel.py", *words, "-dryrun", "n", "-check", "n")
    assert done.returncode == 0 and "measured by an earlier run" in done.stderr
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["objective"] == pytest.approx(result["objective"]) and again["memory_source"] == "saved"
    assert len(standin.starts()) == before


@pytest.mark.slow
def test_where_every_dry_run_fails_auto_estimates_and_mindspore_ends_with_code_5(road):
    result, log, _, _ = road("llama", "-write", "n", fail={"*": "crash"})
    assert result["memory_source"] == "estimate" and "invalid" in log and "every dry-run failed" in log
    _, log, _, _ = road("llama", "--dryrun_backend", "mindspore", fail={"*": "crash"}, expect=5)
    assert "crashed with exit code 1" in log and "Traceback (most" not in log.split("crashed")[0]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("-evaluate", "y")])
def test_a_check_whose_every_dry_run_crashed_passes_nothing_and_ends_with_code_5(road, tmp_path, words):
    _, log, _, _ = road("llama", "-dryrun", "n", "--dryrun_retries", "0", *words, fail={"*": "crash"}, expect=5)
    assert "check: none of 8 dry-runs of the plan gave a peak" in log and "crashed with exit code 1" in log
    assert "the plan holds" not in log
    assert not (tmp_path / "model.yaml.orig").exists() and not (tmp_path / "result.json").exists()


@pytest.mark.slow
def test_a_device_that_runs_out_of_memory_is_an_answer_too(road):
    result, log, _, _ = road("deepseek", device_memory=LIMIT["deepseek"], drift={"layer": 1.06})
    assert rounds(log) <= 6
    assert max(true_peaks("deepseek", result, {"layer": 1.06})) <= LIMIT["deepseek"]


def test_mindspore_without_a_program_is_refused_with_the_flag_named(run_tool, tmp_path):
    config = tmp_path / "model.yaml"
    shutil.copy(LLAMA, config)
    done = run_tool("pipeline_parallel.py", "-yaml", config, "--dryrun_backend", "mindspore", "-mindformers", "nowhere")
    assert done.returncode == 2 and "run_mindformer.py" in done.stderr and "nowhere" in done.stderr


@pytest.mark.slow
def test_the_default_file_with_an_mtp_layer_is_checked_and_its_layers_stay(tmp_path, run_tool):
    """The stand-in refuses, as MindFormers does, an offset that does not fit num_layers + mtp_depth."""
    config = tmp_path / "model.yaml"
    shutil.copy(ROOT / "config" / "pretrain_deepseek3_128p.yaml", config)
    standin = StandIn(tmp_path, DEEPSEEK_TRUTH)
    tools = ("-mindformers", standin.folder, "--env_json", standin.env_json, "--parallel_num", "4")
    done = run_tool("pipeline_parallel.py", "-yaml", config, *tools, *RATIOS["deepseek"], timeout=400)
    assert done.returncode == 0, done.stderr
    assert rounds(done.stderr)
    tried = list((tmp_path / "pipeline_output").rglob("config.yaml"))
    plain = [yaml.safe_load(path.read_text())["model"]["model_config"] for path in tried]
    own = [section for section in plain if len(section["offset"]) == 8]
    assert own and {section["mtp_depth"] for section in own} == {1}
    after = yaml.safe_load(config.read_text())["model"]["model_config"]
    assert (after["num_layers"], after["mtp_depth"]) == (15, 1)
