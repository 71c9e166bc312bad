"""The questions: text, answer, source; and for some the command that answers them over MCP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

FILE = Path(__file__).parent / "questions.yaml"

Kind = Literal["yes_no", "number", "numbers", "choice"]


@dataclass(frozen=True)
class Answer:
    """Answer of a question.

    Parameters
    ----------
    within : float
        Relative difference at which a number still counts as right.
    of : tuple of str
        Choices.
    """

    kind: Kind
    value: Any
    within: float = 0.0
    of: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where an answer is from: a published run or formula, a framework's own code, or an exact solver."""

    kind: Literal["published", "framework", "solver"]
    where: str


@dataclass(frozen=True)
class Command:
    """Tool that answers a question.

    Parameters
    ----------
    take : str
        Dotted path of the answer in the tool's document.
    means : mapping
        Answer by what stands there; empty where it is the answer.
    """

    tool: str
    arguments: Mapping[str, Any]
    take: str
    means: Mapping[Any, Any] = field(default_factory=dict)

    def answer_in(self, document: Any) -> Any:
        """The answer in a tool's document; None where it is not there."""
        for part in self.take.split("."):
            try:
                document = document[int(part)] if isinstance(document, list) else document[part]
            except (KeyError, IndexError, TypeError):
                return None
        return self.means.get(document) if self.means else document


@dataclass(frozen=True)
class Question:
    """A question in plain language; `about` is rule, count, fit, layout, speed or cure."""

    id: str
    about: str
    ask: str
    answer: Answer
    source: Source
    command: Command | None = None


def read_questions(file: Path = FILE) -> list[Question]:
    """All questions of a file."""
    from pydantic import TypeAdapter

    data = yaml.safe_load(file.read_text(encoding="utf-8"))
    return TypeAdapter(list[Question]).validate_python(data)
