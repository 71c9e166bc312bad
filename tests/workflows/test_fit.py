"""One verdict of whether a plan fits: flat where the figures allow it, likely or unknown where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InfeasibleError
from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution
from taylor.workflows.showing.fit import Fit, FitVerdict, fit_verdict, risk_of
from taylor.workflows.showing.verdict import fit_line
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT

FILE = ROOT / "config" / "pretrain_deepseek3_128p.yaml"
KNOWN = KnownError(0.05, 0.1, 0.03, "the estimate is")
MORE = UnmodelledFlag("--takes-more", None, "more", None, None, "it does so")
LESS = UnmodelledFlag("--takes-less", None, "less", None, None, "it does so")
ODD = UnmodelledFlag("--odd", None, None, None, None, "", known=False)


def judged(peak: float, *flags: UnmodelledFlag, most: float | None = None, **more: Any) -> FitVerdict:
    solution = Solution(FEASIBLE, peak_memory_mib=(50.0, peak), memory_limit_mib=(100.0, 100.0))
    return fit_verdict(solution, flags, [most, most], KNOWN, MemoryMargin(), **more)


def test_far_from_the_limit_the_answer_is_flat() -> None:
    assert judged(80.0).fit is Fit.FITS and not judged(80.0).likely
    over = judged(130.0)
    assert over.fit is Fit.DOES_NOT_FIT and not over.likely
    assert over.shortage_mib == (0.0, 30.0) and "30 MiB short on stage 1" in over.reason and over.cure


def test_an_interval_that_crosses_the_limit_makes_it_likely_with_its_risk() -> None:
    close, beyond = judged(95.0), judged(103.0)
    assert close.fit is Fit.FITS and close.likely and close.risk is not None and 0.05 < close.risk < 0.5
    assert beyond.fit is Fit.DOES_NOT_FIT and beyond.likely and beyond.risk is not None and 0.5 < beyond.risk < 0.95
    assert close.sentence.startswith("fits with 81 % probability; ")
    assert not judged(95.0, confirmed=True).likely


def test_the_risk_at_the_end_of_the_interval_is_that_of_the_interval() -> None:
    assert risk_of(KNOWN, 100.0, 100.0 * KNOWN.upper(0.05)) == pytest.approx(0.05)
    assert risk_of(KNOWN, 100.0, 100.0 * KNOWN.lower(0.05)) == pytest.approx(0.95)
    assert risk_of(KNOWN, 100.0, 100.0) == pytest.approx(0.5)
    assert risk_of(None, 100.0, 100.0) is None


@pytest.mark.parametrize("flag", [MORE, ODD])
def test_a_flag_that_could_turn_a_yes_makes_it_unknown(flag: UnmodelledFlag) -> None:
    found = judged(80.0, flag)
    assert found.fit is Fit.UNKNOWN and flag.name in found.reason and found.cure
    assert judged(80.0, flag, most=95.0).fit is Fit.FITS
    assert judged(80.0, flag, most=101.0).fit is Fit.UNKNOWN
    assert judged(80.0, flag, confirmed=True).fit is Fit.FITS


def test_a_flag_that_could_turn_a_no_makes_it_unknown_and_one_that_cannot_does_not() -> None:
    assert judged(130.0, LESS).fit is Fit.UNKNOWN and "--takes-less" in judged(130.0, LESS).reason
    assert judged(130.0, MORE).fit is Fit.DOES_NOT_FIT
    assert judged(80.0, LESS).fit is Fit.FITS
    assert judged(130.0, LESS, least_mib=[None, 101.0]).fit is Fit.DOES_NOT_FIT
    assert judged(130.0, LESS, least_mib=[None, 99.0]).fit is Fit.UNKNOWN


def test_an_unknown_answer_shows_the_prediction() -> None:
    assert "130 of 100 MiB predicted on stage 1, 30 MiB short" in judged(130.0, LESS).sentence
    assert "80 of 100 MiB predicted on stage 1" in judged(80.0, MORE).sentence


def test_only_a_flag_that_may_take_states_away_turns_states_beyond_the_limit(tmp_path: Path) -> None:
    # Weights, gradients and Adam's states of 70 B parameters by TP 2 are far beyond the card, whatever attention keeps.
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text().rstrip()
    answers = {}
    for flag in ("--distribute-saved-activations", "--odd 3"):
        file = tmp_path / f"job{len(answers)}.sh"
        file.write_text(f"{text} --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 {flag}\n")
        answers[flag] = evaluate_file(FileJob(file, dryrun=False, check=False), Outputs(folder=tmp_path / "out")).fit
    kept, turned = answers.values()
    assert kept.fit is Fit.DOES_NOT_FIT and turned.fit is Fit.UNKNOWN and "--odd" in turned.reason


@pytest.mark.slow
def test_every_place_that_answers_says_unknown_where_the_record_does(run_tool: Any, tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text().rstrip()
    file, result = tmp_path / "job.sh", tmp_path / "result.json"
    page = tmp_path / "page.html"
    words = ("-dryrun", "n", "-check", "n", "--result_json", result)
    file.write_text(f"{text} --tensor-model-parallel-size 1 --odd 3\n")
    done = run_tool("pipeline_parallel.py", "-shell", file, *words, "-evaluate", "y", "--html", page)
    printed = " ".join(done.stdout.split())
    assert "the plan does not fit" not in printed and "it is unknown whether it fits" in printed
    told = json.loads(result.read_text())
    assert told["verdict"]["fit"] == "unknown" and told["own_plan"]["fits"] is None
    assert "it does not fit" not in page.read_text() and "it is unknown whether it fits" in page.read_text()
    done = run_tool("pipeline_parallel.py", "-shell", file, *words)
    assert done.returncode == 3 and json.loads(result.read_text())["verdict"]["fit"] == "unknown"
    assert "whether one fits is unknown: --odd may lower the peak and is not modelled" in " ".join(done.stderr.split())
    done = run_tool("parallel_tool.py", "--shell_path", file, "--dryrun_backend", "estimate", "--world_size", "4")
    assert "whether one fits is unknown" in " ".join((done.stdout + done.stderr).split())


def test_an_evaluated_plan_over_the_limit_has_its_verdict_in_the_json_and_in_the_last_lines(tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(
        json.dumps(
            {
                "device_limit": 12000,
                "static": {"first": 3383, "middle": 2382, "last": 8675},
                "layer": {"dense": 866, "moe": 10691},
                "activation": {"dense": {"none": 479, "full": 30}, "moe": {"none": 765, "full": 30}},
            }
        )
    )
    result = tmp_path / "result.json"
    job = FileJob(FILE, memory_file=memory, dryrun=False, check=False)
    planned = evaluate_file(job, Outputs(folder=tmp_path / "out", result_json=result))
    told = json.loads(result.read_text())
    assert told["status"] == "over_limit"
    assert told["verdict"].items() >= json.loads(json.dumps(planned.fit.to_dict())).items()
    assert told["verdict"]["fit"] == "does not fit" and len(told["verdict"]["shortage_mib"]) == told["stages"]
    for peak, limit, short in zip(
        told["peak_memory"], told["memory_limit"], told["verdict"]["shortage_mib"], strict=True
    ):
        assert short == pytest.approx(max(0.0, peak - limit), abs=1e-2)
    assert fit_line(planned) == planned.fit.sentence and "-evaluate" in told["verdict"]["cure"]
    with pytest.raises(InfeasibleError):
        solve_file(job, SolveOptions(), Outputs(folder=tmp_path / "out", result_json=result, write=False))
    told = json.loads(result.read_text())
    assert told["status"] == "infeasible" and told["offset"] is None
    assert told["verdict"]["fit"] == "does not fit" and max(told["verdict"]["shortage_mib"]) > 0
    assert told["verdict"]["cure"] and told["message"]
