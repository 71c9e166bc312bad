"""Prints the questions, scores answers, or answers by commands alone.

``python -m benchmarks.plan_questions``: the questions, a line each. With ``ANSWERS.json`` (an object of id and answer):
the score. With ``--by_commands``: the questions that commands answer over MCP, and their score.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import anyio

from benchmarks.plan_questions.by_commands import ask_all
from benchmarks.plan_questions.questions import read_questions
from benchmarks.plan_questions.score import score


def main(arguments: list[str]) -> int:
    """Do what the arguments say."""
    questions = read_questions()
    if not arguments:
        for one in questions:
            print(f"{one.id}\t{one.answer.kind}\t{one.ask}")
        return 0
    if arguments[0] == "--by_commands":
        questions = [one for one in questions if one.command is not None]
        answers = anyio.run(ask_all, questions)
    else:
        answers = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    found = score(questions, answers)
    wrong = Counter(one.about for one in questions if one.id in (*found.wrong, *found.missing))
    print(f"right: {found.right} of {found.of}")
    for about, count in sorted(Counter(one.about for one in questions).items()):
        print(f"  {about}: {count - wrong[about]} of {count}")
    for one in questions:
        if one.id in found.wrong:
            print(f"wrong: {one.id}: {answers[one.id]}, right is {one.answer.value} ({one.source.where})")
    print(f"missing: {', '.join(found.missing) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
