"""Limits and defaults of the page's questions and of its server, just allowed and just refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("starlette")
from pydantic import ValidationError

from taylor.serve import agent_questions, app, changes, child, connections, jobs, mcp_server, own_files, pipeline_view
from taylor.serve import question as questions
from taylor.serve.question import Degrees, Question, SeenRun

LEAST: dict[str, Any] = {"model": "llama3-8b", "device": "h100-80g", "ranks": 8}

RANGES: dict[str, tuple[float, float, Any]] = {
    "tp": (1, 4096, 1), "pp": (1, 1024, 1), "ep": (1, 4096, 1), "cp": (1, 4096, 1), "vpp": (1, 64, 1),
    "mbs": (1, 4096, 1), "recompute": (0.0, 100.0, 100.0), "ranks": (1, 10**6, None), "seq": (1, 10**7, 4096),
    "gbs": (1, 10**7, 512), "seconds": (0.001, 3600.0, 30.0), "risk": (0.0, 50.0, 5.0), "limit_mib": (0.001, 1e8, None),
}  # fmt: skip
"""Least and largest value of each number of a question, and its default."""

LENGTHS = {"model": 300, "device": 100, "framework": 40, "images": 40}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_of_a_question_is_within_its_range(name: str) -> None:
    least, most, default = RANGES[name]
    step = 0.001 if isinstance(least, float) else 1
    for value in (least, most):
        assert getattr(Question(**{**LEAST, name: value}), name) == value
    for value in (least - step, most + step):
        with pytest.raises(ValidationError):
            Question(**{**LEAST, name: value})
    if name != "ranks":
        assert getattr(Question(**LEAST), name) == default
        if name in Degrees.model_fields:
            assert getattr(SeenRun(), name) == default


@pytest.mark.parametrize("name", LENGTHS)
def test_a_text_of_a_question_has_its_length(name: str) -> None:
    assert getattr(Question(**{**LEAST, name: "x" * LENGTHS[name]}), name)
    with pytest.raises(ValidationError):
        Question(**{**LEAST, name: "x" * (LENGTHS[name] + 1)})


def test_lists_of_a_question_have_their_lengths() -> None:
    for name, most, one in [("software", 16, "a"), ("software", 1, "x" * 60)]:
        Question(**{**LEAST, name: (one,) * most})
    for value in [("a",) * 17, ("x" * 61,)]:
        with pytest.raises(ValidationError):
            Question(**{**LEAST, "software": value})
    Question(**{**LEAST, "stage_limit": {stage: 1.0 for stage in range(1024)}})
    SeenRun(measured_peak={0: 1.0}, out_of_memory=tuple(range(1024)))
    for wrong in [{"stage_limit": {stage: 1.0 for stage in range(1025)}}, {"stage_limit": {"a": 1.0}}]:
        with pytest.raises(ValidationError):
            Question(**{**LEAST, **wrong})
    with pytest.raises(ValidationError):
        SeenRun(out_of_memory=tuple(range(1025)))
    question = Question(**LEAST)
    assert (question.framework, question.software, question.stage_limit, question.images) == (None, (), {}, "")


def test_no_further_key_is_a_question_s() -> None:
    with pytest.raises(ValidationError):
        Question(**LEAST, unknown=1)


def test_limits_of_the_server_are_those_that_its_page_states() -> None:
    assert (app.MOST_BYTES, own_files.MOST_BYTES, own_files.MOST_FILES) == (65_536, 1_048_576, 64)
    assert (app.AT_ONCE, app.BODY_SECONDS, app.HOSTS) == (2, 10.0, ["127.0.0.1", "localhost"])
    assert (connections.MOST_CONNECTIONS, connections.FILE_SHARE) == (256, 4)
    assert (connections.HEADER_SECONDS, connections.STOP_SECONDS) == (10.0, 3)
    assert (jobs.MOST_WAITING, jobs.KINDS) == (200, ("solve", "rank", "size"))
    assert (child.RANKED, child.MOST_BYTES) == (10, 8 * 2**30)
    assert (changes.SHOWN, changes.LEAST_GAIN, changes.EVERY) == (3, 0.005, 10.0)
    assert (questions.MOST_KNOWN, questions.MOST_FILES) == (64, 500)
    assert (pipeline_view.MOST_PASSES, pipeline_view.MOST_ROWS, pipeline_view.GAP) == (65_536, 32, 0.02)
    assert (mcp_server.MOST_LINE_BYTES, agent_questions.MOST_BYTES) == (1_048_576, 65_536)
    assert (agent_questions.MOST_ANSWER_BYTES, agent_questions.MOST_WAITING) == (32 * 2**20, 100)
    assert (agent_questions.MOST_KEPT, agent_questions.MARGIN_SECONDS) == (50, 60.0)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (agent_questions.KEPT, ["r1", "r123456789"], ["r", "1", "r1234567890", "rx"]),
        (jobs._NAME, ["0123456789abcdef"], ["0123456789abcde", "0123456789abcdeg", "0123456789abcdef0"]),
        (own_files._NAME, ["0123456789abcdef/a.b+c-d_e"], ["0123456789abcdef/", "0123456789abcdef/a/b", "a/b"]),
    ],
)
def test_names_have_their_form_alone(pattern: re.Pattern[str], good: list[str], bad: list[str]) -> None:
    assert all(map(pattern.fullmatch, good)) and not any(map(pattern.fullmatch, bad))
