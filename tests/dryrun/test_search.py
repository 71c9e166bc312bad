"""The memory of a whole search from few dry-runs, or from the logs of earlier ones."""

from __future__ import annotations

import pandas as pd
import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.dryrun.fitting.grey_box import CorrectedPeaks, Measurement, estimate_of, plan_to_measure
from taylor.dryrun.interface import DryRun
from taylor.dryrun.replay import ReplayBackend
from taylor.parsers.read import read_config
from tests.dryrun_cases import DEEPSEEK, DEEPSEEK_TRUTH, StandIn

CONFIG = read_config(DEEPSEEK)
PEAK = "Used peak memory usage (without fragments): {}M\n"


def write_log(folder, place, peak):
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PEAK.format(peak) if isinstance(peak, int) else peak)


def test_logs_are_told_apart_by_degrees_rank_and_stage_in_their_paths(tmp_path):
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8_x/rank_0.log", 100)
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8_x/rank_64.log", 300)
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8_x/rank_65.log", 350)
    write_log(tmp_path, "DP8_TP8_PP16_EP8/stage_3_rank_192/mindformer.log", 777)
    backend = ReplayBackend(tmp_path)
    own = CONFIG.strategy
    assert backend.strategy_peak(own).peak_mib == 350 and backend.strategy_peak(own).stage == 1
    assert backend.strategy_peak(own.replace(dp=8, tp=8)).stage == 3
    assert backend.strategy_peak(own.replace(ep=16)) is None


def test_logs_answer_for_each_stage_asked_for_and_a_stage_without_one_says_so(tmp_path):
    own = CONFIG.strategy
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8/rank_0.log", 100)
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8/rank_1.log", 120)
    write_log(tmp_path, "run_DP16_TP4_PP16_EP8/rank_64.log", "killed\n")
    with ReplayBackend(tmp_path) as backend:
        [result] = backend.measure([DryRun(CONFIG, own, None, (0, 1, 5))])
    assert [peak.peak_mib for peak in result.stages] == [120, None, None]
    assert "no peak memory line" in result.stages[1].failure and "stage 5" in result.stages[2].failure


def test_a_folder_without_logs_or_no_folder_is_refused_with_the_layout(tmp_path):
    with pytest.raises(InputError, match="rank_N.log"):
        ReplayBackend(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        ReplayBackend(tmp_path / "gone")


def test_two_measured_ep_values_give_every_other_of_the_family():
    own = CONFIG.strategy.replace(ep=1)

    def true_peak(ep):
        return 9_000 + 120_000 / ep

    measured = []
    for ep in (4, 32):
        strategy = own.replace(ep=ep)
        estimate = estimate_of(CONFIG, strategy, plan_to_measure(CONFIG, strategy, "full"), 2)
        measured.append(Measurement(strategy, 2, true_peak(ep), estimate))
    table = StrategyTable.from_strategies([own.replace(ep=ep) for ep in (2, 4, 8, 16, 32, 64)])
    peaks = CorrectedPeaks(best_case_peak_mib, CONFIG, measured, source="torch")
    corrected, _ = peaks(CONFIG.model, CONFIG.rules, table)
    assert peaks.sources(table) == ("fit", "torch", "fit", "fit", "torch", "fit")
    assert peaks.sources(StrategyTable.from_strategies([own.replace(dp=2 * own.dp)])) == ("scaled estimate",)
    base, _ = best_case_peak_mib(CONFIG.model, CONFIG.rules, table)
    for row, ep in enumerate(table.ep.tolist()):
        strategy = own.replace(ep=ep)
        estimate = estimate_of(CONFIG, strategy, plan_to_measure(CONFIG, strategy, "full"), 2)
        assert corrected[row] / base[row] == pytest.approx(true_peak(ep) / estimate, rel=1e-9)


@pytest.mark.slow
def test_replayed_peaks_decide_what_fits(run_tool, tmp_path):
    write_log(tmp_path / "logs", "DP8_TP8_PP16_EP8/rank_64.log", 40_111)
    write_log(tmp_path / "logs", "DP4_TP8_PP32_EP8/deep/a.log", 99_000)
    write_log(tmp_path / "logs", "DP16_TP4_PP16_EP8/rank_0.log", "RuntimeError: Out of memory\n")
    done = run_tool("parallel_tool.py", "--yaml_path", DEEPSEEK, "--dryrun_data_dir", "logs", "--profile_num", "2")
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "output/nd_output/nd_candidate_config.csv").set_index(["dp", "tp", "pp", "ep"])
    assert float(table.loc[(8, 8, 16, 8), "peakMem"]) == 40_111.0
    assert int(table.loc[(8, 8, 16, 8), "heaviest_stage"]) == 1
    assert (4, 8, 32, 8) not in table.index and (16, 4, 16, 8) not in table.index
    assert table.loc[(8, 8, 16, 8), "source"] == "replay"
    assert set(table.drop((8, 8, 16, 8))["source"]) == {"estimate"}  # no two logs make a family
    runs = pd.read_csv(tmp_path / "output/nd_output/dryrun_plan.csv")
    assert sorted(runs["measured_mib"].dropna()) == [40_111, 99_000]
    assert runs["failure"].dropna().tolist() == ["out of memory"]


@pytest.mark.slow
def test_the_search_runs_at_most_100_dry_runs_and_writes_which_and_why(run_tool, tmp_path):
    standin = StandIn(tmp_path, DEEPSEEK_TRUTH, fail={"DP8_TP8_PP16_EP8": "crash"})
    words = (
        "--yaml_path",
        DEEPSEEK,
        "--mindformers_dir",
        standin.folder,
        "--env_json",
        standin.env_json,
        "--parallel_num",
        "4",
        "--profile_num",
        "2",
        "--dryrun_retries",
        "0",
    )
    done = run_tool("parallel_tool.py", *words)
    assert done.returncode == 0, done.stderr
    runs = pd.read_csv(tmp_path / "output/nd_output/dryrun_plan.csv")
    assert 20 <= len(runs) <= 100 and len(standin.starts()) == len(runs)
    failed = runs[runs["failure"].notna()]
    assert failed[["dp", "tp", "pp", "ep"]].values.tolist() == [[8, 8, 16, 8]]
    assert "invalid" in failed["last_lines"].iloc[0]
    assert runs["decides_ep"].str.contains(" ").any()
    table = pd.read_csv(tmp_path / "output/nd_output/nd_candidate_config.csv")
    keys = ["dp", "tp", "pp", "ep"]
    ran = set(map(tuple, runs[runs["failure"].isna()][keys].to_numpy()))
    measured = table[[tuple(row) in ran for row in table[keys].to_numpy()]]
    assert set(measured["source"]) == {"mindspore"} and len(table) > len(measured) > 0
    assert set(table.drop(measured.index)["source"]) <= {"fit", "scaled estimate"}
    assert standin.alive() == []
