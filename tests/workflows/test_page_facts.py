"""What pages say first: the verdict and its answers agree with the result that they tell of."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemorySource
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import Termination
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.register.registry import Registry
from taylor.report.facts import BAD, GOOD, WARNING
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.ranking.rank_page import ranking_facts
from taylor.workflows.ranking.ranking_data import ranking_data
from taylor.workflows.showing.page_facts import gap_words, memory_answer, memory_parts, page_facts, page_tables
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.verdict import step_text
from taylor.workflows.showing.what_if import MIB_MORE, what_if_of, what_if_sentences
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import FileJob, Origin, Outputs
from tests.conftest import ROOT
from tests.report_cases import deepseek, even_plan

FILE = ROOT / "config" / "pretrain_llama2_7b.yaml"
OTHER_DEVICE = "h100-80g"


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlannedFile, Path]:
    """The sample solved on estimates with all interleaves tried, and its page."""
    folder = tmp_path_factory.mktemp("page")
    outputs = Outputs(folder=folder, write=False, html=folder / "p.html")
    planned = solve_file(FileJob(FILE, dryrun=False, check=False, vpp="auto"), SolveOptions(time_limit=20), outputs)
    return planned, folder / "p.html"


def test_the_verdict_tells_step_gain_and_room_of_the_result(solved: tuple[PlannedFile, Path]) -> None:
    planned, page = solved
    facts = page_facts(planned)
    told, own = planned.speed, planned.own
    assert told is not None and own is not None and own.objective and planned.solution.objective
    assert step_text(planned.problem, planned.solution.objective) in facts.verdict
    gain = 100 * (own.objective / planned.solution.objective - 1)
    expected = f"{gain:.1f} % faster" if gain >= 0.05 else "as fast"
    assert facts.answers[1].answer == expected and expected in facts.verdict
    assert planned.config.device_limit_mib is not None  # the limits are below it by 5 % risk
    room = planned.config.device_limit_mib - max(planned.solution.peak_memory_mib)
    assert f"yes with more than 99 % probability, {room:,.0f} MiB free" == facts.answers[2].answer
    known = planned.config.memory_error(planned.memory.source)
    ends = [max(planned.solution.peak_memory_mib) * end for end in (known.lower(), known.upper())]
    assert f"between {ends[0]:,.0f} and {ends[1]:,.0f} MiB with 90 % probability" in facts.answers[2].detail
    assert list(facts.assumed) == planned.assumed and facts.ranks == f"{planned.config.strategy.world_size:,}"
    text = html.unescape(page.read_text(encoding="utf-8"))
    for said in (facts.title, facts.verdict, *facts.assumed, FILE.name):
        assert said in text
    # Body-layer forwards stand in the details alone.
    head = text[: text.index('id="report-data"')]
    assert "body-layer" not in re.sub(r"<details>.*?</details>", "", head, flags=re.DOTALL)


def test_every_alternative_and_the_file_s_own_plan_have_a_row(solved: tuple[PlannedFile, Path]) -> None:
    planned, _ = solved
    (table,) = page_tables(planned)
    assert len(planned.alternatives) > 1
    assert [row[0] for row in table.rows][:2] == [table.rows[0][0], "the plan in the file"]
    assert len(table.rows) == 1 + len(planned.alternatives)
    shown = [str(row[1]).removeprefix("above ") for row in table.rows]
    steps = [float(step.replace(",", "").split()[0]) for step in shown if step.endswith("ms")]
    assert steps[0] == min(steps)


def test_the_parts_of_the_memory_are_the_closed_forms_and_sum_up_to_the_peaks(
    solved: tuple[PlannedFile, Path],
) -> None:
    planned, _ = solved
    parts = memory_parts(planned)
    assert parts is not None and {"weights", "gradients", "optimizer", "logits"} <= set(parts.mib)
    np.testing.assert_allclose(parts.totals, planned.solution.peak_memory_mib, atol=1.0)
    assert memory_parts(replace(planned, memory=replace(planned.memory, source="file"))) is None


def test_an_evaluated_plan_is_not_compared_with_itself(tmp_path: Path) -> None:
    own = evaluate_file(FileJob(FILE, dryrun=False, check=False), Outputs(folder=tmp_path))
    facts = page_facts(own)
    assert "faster" not in facts.verdict and page_tables(own) == []
    assert what_if_of(own, asked=True) == []


def test_too_little_room_is_bad_and_a_little_is_a_warning() -> None:
    known = KnownError(0.03, 0.08, 0.02, planned=True)
    answers = [
        memory_answer([700.0, peak], [1000.0, 1000.0], "estimate", known, MemoryMargin(risk=0.0))
        for peak in (1000.5, 990.0, 900.0)
    ]
    assert [one.tone for one in answers] == [BAD, WARNING, GOOD]
    assert [one.answer for one in answers] == [
        "no, 0 MiB too much",
        "yes with 59 % probability, 10 MiB free (tight)",
        "yes with 99 % probability, 100 MiB free",
    ]


def test_a_plan_above_its_risk_is_a_warning_with_its_probability() -> None:
    known = KnownError(0.03, 0.08, 0.02, planned=True)
    answers = [memory_answer([peak], [1000.0], "estimate", known) for peak in (1090.0, 1040.0, 1000.0)]
    assert [one.tone for one in answers] == [BAD, WARNING, GOOD]
    assert answers[1].answer == "yes with 79 % probability only, 40 MiB free: 5 % risk allows 1,000 MiB"
    assert answers[2].answer == "yes with 95 % probability, 80 MiB free"


def test_a_bound_that_says_nothing_is_no_proof() -> None:
    assert [gap_words(gap) for gap in (0.0, 0.004, 1.0)] == [
        "proven to be the fastest",
        "the fastest to within 0.40 %, proven",
        "not proven to be the fastest",
    ]


def test_what_if_sentences_are_the_steps_of_the_changed_problems() -> None:
    problem = deepseek(4, 1, 8, limit_mib=(200_000.0,) * 4)
    solution = taylor_solve(problem)
    sentences = what_if_sentences(problem, solution, asked=True)
    assert [one.partition(":")[0] for one in sentences] == [
        "With 2 GiB more a card",
        "With 2 GiB less a card",
        "With one micro-batch more a step (9)",
    ]
    limits = tuple(limit + MIB_MORE for limit in problem.limit_mib)
    change = taylor_solve(problem.replace(limit_mib=limits)).objective / solution.objective - 1
    figure = re.search(r"([+−]) ([\d.]+) %", sentences[0])
    told = 0.0 if figure is None else float(figure[2]) / 100 * (1 if figure[1] == "+" else -1)
    assert told == pytest.approx(change, abs=6e-4)


def test_nothing_is_solved_again_after_a_long_solve_unless_it_is_asked_for() -> None:
    problem = deepseek(4, 1, 8, limit_mib=(200_000.0,) * 4)
    solution = evaluate(problem, even_plan(problem)).replace(seconds=60.0)
    assert what_if_sentences(problem, solution, asked=False) == []
    assert len(what_if_sentences(problem, solution, asked=True)) == 3


def test_less_memory_than_any_plan_needs_is_said() -> None:
    problem = deepseek(4, 1, 8, limit_mib=(200_000.0,) * 4)
    tight = problem.replace(limit_mib=(least_limit(problem),) * 4)
    sentences = what_if_sentences(tight, taylor_solve(tight), asked=True)
    assert sentences[1] == "With 2 GiB less a card: no plan fits."


def least_limit(problem):
    """A limit that is met, found by halving, to within a GiB."""
    low, high = 0.0, problem.limit_mib[0]
    while high - low > 1024:
        middle = (low + high) / 2
        fits = taylor_solve(problem.replace(limit_mib=(middle,) * 4)).plan is not None
        low, high = (low, middle) if fits else (middle, high)
    return high


def taylor_solve(problem):
    from taylor.pipeline_solver.solving.solve import solve

    solution = solve(problem)
    assert solution.termination in (Termination.PROVEN, Termination.INFEASIBLE)
    return solution


@pytest.mark.parametrize("risk, odds", [(None, "in nine of ten cases"), (0.2, "with 60 % probability")])
def test_the_intervals_of_a_ranking_are_those_of_its_risk(tmp_path: Path, risk: float | None, odds: str) -> None:
    margin = MemoryMargin(risk=risk)
    # A candidate that cannot be read states no risk.
    (tmp_path / "a.yaml").write_text("- broken", encoding="utf-8")
    candidates = load_candidates([tmp_path / "a.yaml", FILE], OTHER_DEVICE, margin=margin)
    ranking = rank(candidates, RankOptions(workers=1, output=tmp_path / "out", report=False))
    facts, best, config = ranking_facts(ranking.table, candidates), ranking.table.iloc[0], candidates[1].config
    stage, known = int(best["fullest_stage"]), config.memory_error(MemorySource.ESTIMATE)
    most = json.loads(best["peak_memory"])[stage] * known.upper(margin.stated_risk)
    assert odds in facts.answers[0].detail
    assert f"and {most:,.0f} MiB with {100 - 200 * margin.stated_risk:g} % probability" in facts.answers[2].detail
    # The device of the ranking, not the usual one of the file.
    verdict = ranking_data(ranking, margin, Origin())["verdict"]
    assert verdict["software"]["stack"] == Registry.load().device(OTHER_DEVICE).stack
    assert verdict["software"]["stack"] != choose_device(config).spec.stack


def test_the_page_of_a_ranking_names_the_best_candidate_and_what_it_rests_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(FILE.read_text(encoding="utf-8"), encoding="utf-8")
    candidates = load_candidates(sorted(tmp_path.glob("*.yaml")))
    ranking = rank(candidates, RankOptions(workers=1, output=tmp_path / "out"))
    facts = ranking_facts(ranking.table, candidates)
    best = ranking.table.iloc[0]
    assert facts.ranks == f"{candidates[0].config.strategy.world_size:,}"
    known = candidates[0].config.memory_error(MemorySource.ESTIMATE)
    stage = int(best["fullest_stage"])
    most = json.loads(best["peak_memory"])[stage] * known.upper()
    assert f"and {most:,.0f} MiB with 90 % probability" in facts.answers[2].detail
    assert f"{best['cost'] / 1e3:,.2f} s a step" in facts.verdict and "it fits" in facts.verdict
    assert "memory estimated by the analytical model" in facts.assumed
    assert ranking.report is not None and facts.verdict in html.unescape(ranking.report.read_text(encoding="utf-8"))


def test_the_file_s_own_row_is_neither_counted_nor_called_the_fastest() -> None:
    cells = {"status": "optimal", "peak_memory": "[900]", "memory_limit": "[1000]", "file": "a.yaml", "pp": 1}
    rows = [
        cells | {"own": 1, "cost": 900.0, "objective": 90.0, "dp": 1},
        cells | {"own": 0, "cost": 1000.0, "objective": 100.0, "gain": -10.0, "dp": 2},
        cells | {"own": 0, "cost": 1100.0, "objective": 110.0, "gain": -18.2, "dp": 4},
    ]
    facts = ranking_facts(pd.DataFrame(rows), [])
    assert "2 strategies" in facts.title
    assert facts.verdict.startswith(
        "The fastest is DP2 PP1: 1,000.0 ms a step, 10.0 % slower than the plan in the file"
    )


def test_a_ranking_without_a_plan_says_so() -> None:
    table = pd.DataFrame([{"objective": None, "status": "failed", "reason": "no memory", "file": "a.yaml"}])
    assert "No candidate has a plan" in ranking_facts(table, []).verdict
