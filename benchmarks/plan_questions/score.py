"""Scores answers: each is right or not, by kind and tolerance; one that is missing is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.plan_questions.questions import Answer, Question

YES, NO = ("yes", "true", "y"), ("no", "false", "n")


@dataclass(frozen=True)
class Score:
    """Right answers of all, and the questions that were answered wrongly or not at all."""

    right: int
    of: int
    wrong: tuple[str, ...]
    missing: tuple[str, ...]


def is_right(answer: Answer, given: Any) -> bool:
    """Return whether a given answer is right."""
    if answer.kind == "yes_no":
        word = str(given).strip().lower()
        return word in (YES if answer.value else NO)
    if answer.kind == "choice":
        return str(given).strip().lower() == str(answer.value).lower()
    if answer.kind == "numbers":
        return isinstance(given, (list, tuple)) and list(given) == list(answer.value)
    if isinstance(given, bool):
        return False
    try:
        number = float(given)
    except (TypeError, ValueError):
        return False
    return abs(number - answer.value) <= answer.within * abs(answer.value)


def score(questions: Sequence[Question], answers: Mapping[str, Any]) -> Score:
    """Score of answers by the questions' ids."""
    missing = tuple(one.id for one in questions if answers.get(one.id) is None)
    wrong = tuple(one.id for one in questions if one.id not in missing and not is_right(one.answer, answers[one.id]))
    return Score(len(questions) - len(missing) - len(wrong), len(questions), wrong, missing)
