"""The plan questions: sixty, each with a source, scored as they say; ten and more answered by commands alone."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import anyio
import pytest

import taylor
from benchmarks.plan_questions.__main__ import main
from benchmarks.plan_questions.by_commands import ask_all
from benchmarks.plan_questions.questions import Answer, read_questions
from benchmarks.plan_questions.score import is_right, score
from tests.conftest import ROOT

QUESTIONS = read_questions()
BY_ID = {one.id: one for one in QUESTIONS}


def test_there_are_sixty_with_different_names_texts_and_a_source_each():
    assert len(QUESTIONS) == len(BY_ID) == len({one.ask for one in QUESTIONS}) == 60
    assert all(len(one.source.where) > 10 and one.ask.endswith(("?", ".")) for one in QUESTIONS)
    assert {one.about for one in QUESTIONS} == {"rule", "count", "fit", "layout", "speed", "cure"}
    assert sum(one.command is not None for one in QUESTIONS) >= 10
    sources = [one.source.kind for one in QUESTIONS]
    assert min(sources.count(kind) for kind in ("published", "framework", "solver")) >= 4
    assert all(one.answer.value in one.answer.of for one in QUESTIONS if one.answer.kind == "choice")


@pytest.mark.parametrize(
    "answer, right, wrong",
    [
        (Answer("yes_no", True), [True, "yes", "Y "], [False, "no", "maybe", 1.0, None]),
        (Answer("yes_no", False), [False, "No"], [True, "yes", 0]),
        (Answer("number", 100.0, 0.1), [100, "91", 110.0], [89, 111, "many", None, True, float("nan")]),
        (Answer("number", 0.0), [0, "0"], [1, 1e-9]),
        (Answer("choice", "moe", of=("moe", "moe_act")), ["MoE"], ["moe_act", ""]),
        (Answer("numbers", [16, 16]), [[16, 16], (16, 16)], [[16], [15, 17], "16, 16"]),
    ],
)
def test_an_answer_is_right_by_its_kind_and_tolerance(answer, right, wrong):
    assert all(is_right(answer, given) for given in right) and not any(is_right(answer, given) for given in wrong)


def test_right_answers_score_all_and_each_wrong_or_missing_one_is_named(tmp_path, capsys):
    answers = {one.id: one.answer.value for one in QUESTIONS}
    assert score(QUESTIONS, answers).right == 60
    answers["batch-1000"] = True
    del answers["dp-1024"]
    found = score(QUESTIONS, answers)
    assert (found.right, found.wrong, found.missing) == (58, ("batch-1000",), ("dp-1024",))
    path = tmp_path / "answers.json"
    path.write_text(json.dumps(answers))
    main([str(path)])
    assert "right: 58 of 60" in capsys.readouterr().out


def bottleneck(layers: int, stages: int, head: int) -> int:
    """Load of the slowest stage under the best split, by enumeration."""
    cuts = itertools.combinations(range(1, layers), stages - 1)
    splits = ([b - a for a, b in zip((0, *each), (*each, layers), strict=True)] for each in cuts)
    return min(max(*split[:-1], split[-1] + head) for split in splits)


def test_the_answers_of_the_solver_are_those_of_enumeration():
    assert BY_ID["bottleneck-4"].answer.value == bottleneck(32, 4, 2)
    assert BY_ID["bottleneck-3"].answer.value == bottleneck(10, 3, 1)
    solved = taylor.solve(ROOT / "config" / "pretrain_llama2_7b.yaml")
    split, kind = BY_ID["llama2-7b-layers"].answer.value, solved.problem.kinds[0].name
    none = {mode: ((0, 0),) for mode in solved.plan.recompute}
    steps = {}
    for first in range(1, 32):
        plan = replace(solved.plan, layers={kind: ((first, 32 - first),)}, recompute=none)
        found = taylor.evaluate(solved.problem, plan).solution
        if all(peak <= limit for peak, limit in zip(found.peak_memory_mib, found.memory_limit_mib, strict=True)):
            steps[first] = found.objective
    assert min(steps, key=steps.__getitem__) == split[0] and solved.solution.objective == pytest.approx(steps[split[0]])


@pytest.mark.slow
def test_commands_alone_answer_ten_and_more_over_mcp():
    asked = [one for one in QUESTIONS if one.command is not None]
    found = score(asked, anyio.run(ask_all, asked))
    assert not found.missing and not found.wrong and found.right >= 10
