"""A ranking: each candidate's misfortune is its own, the best are proven, and a run's files are its own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest

from benchmarks.reliability.load import write_candidates
from taylor.cost_model.job.length import UNSTATED
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import NO_SOLUTION, Solution, Termination
from taylor.register.registry import Registry
from taylor.workflows.ranking import rank as module
from taylor.workflows.ranking import rank_solves
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.rank_table import RankEntry, _record
from tests.conftest import ROOT

REAL = rank_solves.solve_one


def _unlucky(problem, how, start):
    if problem.stages == UNLUCKY:
        os._exit(9)
    return REAL(problem, how, start)


def _faulty(problem, how, start):
    if problem.stages == UNLUCKY:
        raise ZeroDivisionError("of nobody's making")
    return REAL(problem, how, start)


UNLUCKY = 8


@pytest.mark.slow
@pytest.mark.parametrize("misfortune, words", [(_unlucky, "its solver process died"), (_faulty, "ZeroDivisionError")])
def test_the_others_are_solved_and_the_row_says_why(tmp_path, monkeypatch, misfortune, words):
    write_candidates(tmp_path, 12)
    monkeypatch.setattr(rank_solves, "solve_one", misfortune)
    device = Registry.load(None).device("ascend-910b")
    candidates = load_candidates(sorted((tmp_path / "files").glob("*.yaml")), device)
    options = module.RankOptions(SolveOptions(time_limit=20.0), workers=2, report=False, output=tmp_path / "out")
    ranking = module.rank(candidates, options)
    table = ranking.table[ranking.table["own"] == 0]
    unlucky = table["pp"] == UNLUCKY
    assert 0 < unlucky.sum() < len(table)
    assert table[unlucky]["reason"].str.contains(words).all() and (table[unlucky]["status"] == "failed").all()
    assert table[~unlucky]["status"].isin(["optimal", "feasible", "infeasible", "cut_off"]).all()
    again = pd.read_csv(next(Path(tmp_path / "out").glob("test_result_*.csv")))
    assert len(again) == len(ranking.table)


@pytest.mark.parametrize("name", ["pretrain_llama3_70b.sh", "pretrain_deepseek3_671b_1024p.yaml"])
def test_the_file_of_a_plan_for_another_batch_holds_that_batch(tmp_path: Path, name: str) -> None:
    own = read_config(ROOT / "config" / name)
    device = Registry.load(None).device("ascend-910b")
    (candidate,) = load_candidates([own.path], device, gbs=2 * own.strategy.global_batch)
    assert candidate.config is not None and own.plan is not None
    assert candidate.config.strategy.micro_batches == 2 * own.strategy.micro_batches
    row = {"layers": json.dumps(own.plan.layers), "recompute": json.dumps(own.plan.recompute)}
    written = _record(RankEntry(candidate, row), tmp_path, set(), UNSTATED, stated=True)["file"]
    assert written == str(tmp_path / name)
    assert read_config(Path(written)).strategy == candidate.config.strategy


@pytest.mark.slow
def test_a_schedule_that_does_not_exist_for_the_batch_is_refused_and_keeps_its_row(run_tool, tmp_path):
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
    odd = text.replace("--global-batch-size 32", "--global-batch-size 6 --num-layers-per-virtual-pipeline-stage 10")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "odd.sh").write_text(odd, encoding="utf-8")
    for words in ((), ("-evaluate", "y")):
        done = run_tool("pipeline_parallel.py", "-shell", "files/odd.sh", "-dryrun", "n", "-check", "n", *words)
        assert done.returncode == 2 and "rule micro-batches-in-rounds" in done.stderr and "Traceback" not in done.stderr
    done = run_tool("pipeline_tool.py", "--yaml_path", "files", "--gbs", "6", "--report", "off")
    [table] = (tmp_path / "pipeline_output").glob("test_result_*.csv")
    [row] = pd.read_csv(table).to_dict("records")
    assert (
        row["status"] == "failed" and "rule micro-batches-in-rounds" in row["reason"] and "Traceback" not in done.stderr
    )
    named = ("--explain", "DP1_TP8_PP4_EP1_VPP2", "--gbs", "6")
    done = run_tool("parallel_tool.py", "--shell_path", "files/odd.sh", *named)
    assert done.returncode == 0 and "multiples of the 4 stages" in done.stdout, done.stderr


def test_candidates_are_read_as_env_starts_them(run_tool, tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
    open_tp = re.sub(r"(--tensor-model-parallel-size) \S+", r"\1 ${OWN_TP}", text)
    assert open_tp != text
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.sh").write_text(open_tp, encoding="utf-8")
    words = ("--yaml_path", "files", "--report", "off", "--time_limit", "2", "--prove", "1")
    done = run_tool("pipeline_tool.py", *words, "--env", "OWN_TP=8")
    assert done.returncode == 0 and "TP8" in done.stdout, done.stderr
    done = run_tool("pipeline_tool.py", "--model", "llama3-8b", "--world_size", "8", "--env", "OWN_TP=8")
    assert done.returncode == 2 and "--env: has no effect with --model" in done.stderr


def _files_of(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_a_second_ranking_leaves_every_file_of_the_first_as_it_was(tmp_path: Path) -> None:
    """Two rankings of the same files in one second, for two batches: each has a table, and files that it names."""
    write_candidates(tmp_path, 4)
    files = sorted((tmp_path / "files").glob("*.yaml"))
    device = Registry.load(None).device("ascend-910b")
    own_batch = read_config(files[0]).strategy.global_batch
    tables, before = [], {}
    for gbs in (own_batch, 2 * own_batch):
        options = module.RankOptions(workers=1, output=tmp_path / "out")
        ranking = module.rank(load_candidates(files, device, gbs=gbs), options)
        assert before.items() <= _files_of(tmp_path).items()
        assert ranking.folder is not None and ranking.report is not None
        tables.append(pd.read_csv(ranking.csv))
        solved = tables[-1][tables[-1]["own"] == 0]
        assert all(Path(name).parent == ranking.folder / "solved_config" for name in solved["file"])
        assert {read_config(Path(name)).strategy.global_batch for name in solved["file"]} == {gbs}
        assert (ranking.folder / ranking.csv.name).read_bytes() == ranking.csv.read_bytes()
        assert (ranking.folder / ranking.report.name).read_bytes() == ranking.report.read_bytes()
        before = _files_of(tmp_path)
    assert not {*tables[0]["file"]} & {*tables[1][tables[1]["own"] == 0]["file"]}


@pytest.mark.parametrize("prove", [None, 1])
def test_a_ctrl_c_as_a_row_is_kept_leaves_that_row_in_the_table(
    loaded: list[CandidateFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prove: int | None
) -> None:
    keep = rank_solves.SolveStore.keep

    def pressed(store: rank_solves.SolveStore, *words: Any) -> None:
        keep(store, *words)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(rank_solves.SolveStore, "keep", pressed)
    options = module.RankOptions(workers=1, report=False, output=tmp_path, prove=prove, how=SolveOptions(time_limit=20))
    with pytest.raises(KeyboardInterrupt):
        module.rank(loaded, options)
    (kept,) = (tmp_path / "solved").glob("*.json")
    table = pd.read_csv(next(tmp_path.glob("test_result_*.csv"))).query("own == 0")
    assert table["cost"].notna().sum() == 1, kept


def test_candidates_of_one_name_keep_their_solved_files_apart(tmp_path: Path) -> None:
    source = ROOT / "config" / "pretrain_llama2_7b.yaml"
    batch, candidates = read_config(source).strategy.global_batch, []
    for folder, gbs in (("a", batch), ("b", 2 * batch)):
        (tmp_path / folder).mkdir()
        file = shutil.copy(source, tmp_path / folder / "job.yaml")
        candidates += load_candidates([file], Registry.load(None).device("ascend-910b"), gbs=gbs)
    table = _ranked(candidates, tmp_path / "out").query("own == 0")
    assert {read_config(Path(name)).strategy.global_batch for name in table["file"]} == {batch, 2 * batch}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[CandidateFile]:
    folder = tmp_path_factory.mktemp("candidates")
    write_candidates(folder, 8)
    return load_candidates(sorted((folder / "files").glob("*.yaml")), Registry.load(None).device("ascend-910b"))


def _ranked(loaded: list[CandidateFile], output: Path, **options: Any) -> pd.DataFrame:
    chosen = {"workers": 1, "report": False, "output": output} | options
    return module.rank(loaded, module.RankOptions(**chosen)).table


@pytest.mark.slow
def test_the_best_are_proven_and_no_other_could_have_been_among_them(loaded: list[CandidateFile], tmp_path: Path):
    proven = _ranked(loaded, tmp_path / "all", prove=None)
    proven = proven[proven["own"] == 0].reset_index(drop=True)
    assert set(proven["status"]) == {"optimal"} and len(proven) == 8
    for prove in (1, 3):
        table = _ranked(loaded, tmp_path / str(prove), prove=prove)
        table = table[table["own"] == 0].reset_index(drop=True)
        assert list(table["status"][:prove]) == ["optimal"] * prove
        assert list(table["cost"][:prove]) == pytest.approx(list(proven["cost"][:prove]), rel=2e-6)
        least = table["cost"][prove - 1]
        optimum = proven.assign(key=[Path(name).name for name in proven["file"]]).set_index("key")["cost"]
        for _, row in table[table["status"] == "cut_off"].iterrows():
            best = optimum[Path(row["file"]).name]
            assert least * (1 - 1e-6) <= row["bound_ms"] <= best * (1 + 1e-9) and row["cost"] >= best * (1 - 2e-6)
            assert "no plan takes less than" in row["reason"]
        assert set(table["status"]) == {"optimal", "cut_off"}


class Here:
    """Runs at once, in this process, and notes what it ran."""

    def __init__(self, solved: list[Any]) -> None:
        self.solved = solved

    def submit(self, task: Any) -> Future[Any]:
        self.solved.append(task)
        future: Future[Any] = Future()
        future.set_result(task())
        return future


@pytest.mark.slow
def test_a_kept_bound_serves_as_long_as_it_is_past_what_is_to_be_beaten(
    loaded: list[CandidateFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _ranked(loaded, tmp_path, prove=1)
    solved: list[Any] = []

    def again(prove: int | None) -> pd.DataFrame:
        options = module.RankOptions(workers=1, report=False, output=tmp_path, prove=prove)
        return module.rank(loaded, options, executor=cast(Executor, Here(solved))).table

    assert again(1)["status"].tolist() == first["status"].tolist() and solved == []
    every = again(None)
    cut = int((first["status"] == "cut_off").sum())
    assert len(solved) == cut > 0
    assert set(every[every["own"] == 0]["status"]) == {"optimal"}
    assert set(again(1)[every["own"] == 0]["status"]) <= {"optimal"} and len(solved) == cut


@pytest.mark.slow
def test_the_files_own_plan_is_a_row_and_every_gain_is_over_it(run_tool, tmp_path: Path) -> None:
    config = ROOT / "config" / "pretrain_deepseek3_128p.yaml"
    words = ("--yaml_path", config, "--full", "--profile_num", 4, "--prove", 2, "--workers", 1)
    done = run_tool("parallel_tool.py", *words, "--output_path", "mine/nd", timeout=240)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pipeline_output").exists() and not (tmp_path / "output").exists()
    [path] = (tmp_path / "mine" / "nd" / "pipeline_output").glob("test_result_*.csv")
    table = pd.read_csv(path)
    [own] = table[table["own"] == 1].to_dict("records")
    assert own["file"] == str(config) and own["gain"] == 0
    evaluated = run_tool("pipeline_parallel.py", "-yaml", config, "-evaluate", "y", "--result_json", "own.json")
    told = json.loads((tmp_path / "own.json").read_text())
    assert evaluated.returncode == 0 and own["cost"] == pytest.approx(told["step_ms"], rel=1e-9)
    assert own["free_mib"] == pytest.approx(
        min(limit - peak for limit, peak in zip(told["memory_limit"], told["peak_memory"], strict=True)), abs=0.1
    )
    assert own["status"] == told["status"]
    for _, row in table.iterrows():
        assert row["gain"] == pytest.approx(100 * (own["cost"] / row["cost"] - 1), abs=1e-9)
        tokens = row["dp"] * row["mbs"] * row["micro_batches"] * told["batch"]["sequence"]
        assert row["tokens_per_second"] == pytest.approx(tokens / row["cost"] * 1e3)
    assert "% faster than the plan in the file" in done.stdout or "% slower than" in done.stdout


@pytest.mark.parametrize(("missing_mib", "begins"), [(0.0, True), (700.0, False)])
def test_each_solve_begins_from_the_plan_of_its_own_file_where_that_fits(
    missing_mib: float, begins: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [candidate] = load_candidates([ROOT / "config" / "pretrain_deepseek3_128p.yaml"])
    own = _ranked([candidate], tmp_path / "ample").query("own == 1").iloc[0]
    assert candidate.memory is not None
    peak = max(json.loads(own["peak_memory"]))
    limited = replace(candidate, memory=replace(candidate.memory, device_limit_mib=peak + 1.0 - missing_mib))
    starts: list[Any] = []

    def solve_one(problem: Any, how: Any, start: Any) -> Solution:
        starts.append(start)
        return Solution(NO_SOLUTION, Termination.TIME_LIMIT)

    monkeypatch.setattr(rank_solves, "solve_one", solve_one)
    options = module.RankOptions(workers=1, report=False, output=tmp_path / "limited")
    module.rank([limited], options, executor=cast(Executor, Here([])))
    [start] = starts
    assert (start is not None) == begins
    assert start is None or {kind: [[*row] for row in grid] for kind, grid in start.layers.items()} == json.loads(
        own["layers"]
    )


def test_a_plan_of_the_file_that_does_not_fit_is_told_with_how_much_it_lacks(tmp_path: Path) -> None:
    [candidate] = load_candidates([ROOT / "config" / "pretrain_deepseek3_128p.yaml"])
    assert candidate.memory is not None
    own = _ranked([candidate], tmp_path / "ample").query("own == 1").iloc[0]
    peak = max(json.loads(own["peak_memory"]))
    tight = replace(candidate, memory=replace(candidate.memory, device_limit_mib=peak - 700.0))
    table = _ranked([tight], tmp_path / "tight")
    assert list(table["own"]) == [0, 1] and table["status"][0] == "optimal" and table["free_mib"][0] >= 0
    assert table["status"][1] == "over_limit" and table["free_mib"][1] == pytest.approx(-700, abs=1)
    assert "700 over its" in table["reason"][1] and table["cost"][1] == pytest.approx(own["cost"])
    assert table["gain"][0] == pytest.approx(100 * (own["cost"] / table["cost"][0] - 1))
