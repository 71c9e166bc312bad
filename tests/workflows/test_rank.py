"""One candidate's misfortune is its own: a solve that fails, a process that dies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from benchmarks.reliability.load import write_candidates
from taylor.parsers.read import read_config
from taylor.pipeline_solver.options import SolveOptions
from taylor.register.registry import Registry
from taylor.workflows import rank as module
from taylor.workflows.candidates import load_candidates
from taylor.workflows.rank_table import _record
from tests.conftest import ROOT

REAL = module.solve


def _unlucky(problem, how):
    if problem.stages == UNLUCKY:
        os._exit(9)
    return REAL(problem, how)


def _faulty(problem, how):
    if problem.stages == UNLUCKY:
        raise ZeroDivisionError("of nobody's making")
    return REAL(problem, how)


UNLUCKY = 8


@pytest.mark.parametrize("misfortune, words", [(_unlucky, "its solver process died"), (_faulty, "ZeroDivisionError")])
def test_the_others_are_solved_and_the_row_says_why(tmp_path, monkeypatch, misfortune, words):
    write_candidates(tmp_path, 12)
    monkeypatch.setattr(module, "solve", misfortune)
    device = Registry.load(None).device("ascend-910b")
    candidates = load_candidates(sorted((tmp_path / "files").glob("*.yaml")), device)
    options = module.RankOptions(SolveOptions(time_limit=20.0), workers=2, report=False, output=tmp_path / "out")
    ranking = module.rank(candidates, options)
    table = ranking.table
    unlucky = table["pp"] == UNLUCKY
    assert 0 < unlucky.sum() < len(table)
    assert table[unlucky]["reason"].str.contains(words).all() and (table[unlucky]["status"] == "failed").all()
    assert table[~unlucky]["status"].isin(["optimal", "feasible", "infeasible"]).all()
    again = pd.read_csv(next(Path(tmp_path / "out").glob("test_result_*.csv")))
    assert len(again) == len(table)


@pytest.mark.parametrize("name", ["pretrain_llama3_70b.sh", "pretrain_deepseek3_671b_1024p.yaml"])
def test_the_file_of_a_plan_for_another_batch_holds_that_batch(tmp_path: Path, name: str) -> None:
    own = read_config(ROOT / "config" / name)
    device = Registry.load(None).device("ascend-910b")
    (candidate,) = load_candidates([own.path], device, gbs=2 * own.strategy.global_batch)
    assert candidate.config is not None and own.plan is not None
    assert candidate.config.strategy.micro_batches == 2 * own.strategy.micro_batches
    row = {"layers": json.dumps(own.plan.layers), "recompute": json.dumps(own.plan.recompute)}
    written = _record(candidate, row, tmp_path)["file"]
    assert written == str(tmp_path / name)
    assert read_config(Path(written)).strategy == candidate.config.strategy


def test_a_schedule_that_does_not_exist_for_the_batch_is_refused_and_keeps_its_row(run_tool, tmp_path):
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
    odd = text.replace("--global-batch-size 32", "--global-batch-size 6 --num-layers-per-virtual-pipeline-stage 10")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "odd.sh").write_text(odd, encoding="utf-8")
    for words in ((), ("-evaluate", "y")):
        done = run_tool("pipeline_parallel.py", "-shell", "files/odd.sh", "-dryrun", "n", "-check", "n", *words)
        assert done.returncode == 2 and "multiples of the 4 stages" in done.stderr and "Traceback" not in done.stderr
    done = run_tool("pipeline_tool.py", "--yaml_path", "files", "--gbs", "6", "--report", "off")
    [table] = (tmp_path / "pipeline_output").glob("test_result_*.csv")
    [row] = pd.read_csv(table).to_dict("records")
    assert row["status"] == "failed" and "multiples of the 4 stages" in row["reason"] and "Traceback" not in done.stderr
    named = ("--explain", "DP1_TP8_PP4_EP1_VPP2", "--gbs", "6")
    done = run_tool("parallel_tool.py", "--shell_path", "files/odd.sh", *named)
    assert done.returncode == 0 and "multiples of the 4 stages" in done.stdout, done.stderr
