"""The errors a user can meet, each with the exit code of its kind.

A message says what is wrong, in which file and field, with the value found, and the cure.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

EXIT_DONE = 0
EXIT_BAD_INPUT = 2
EXIT_INFEASIBLE = 3
EXIT_NO_SOLUTION = 4
EXIT_OUTSIDE_PROGRAM = 5
EXIT_INTERRUPTED = 130


def shortened(text: str, most: int = 120) -> str:
    """A text for a message, cut where it is too long to read."""
    return text if len(text) <= most else text[: most - 3] + "..."


class TaylorError(Exception):
    """Base of every error that a user can cause; carries the process exit code, and its kind as a word for programs."""

    exit_code = EXIT_BAD_INPUT
    code = "bad_input"

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data; what it does not state is None."""
        stated = ("problem", "file", "field", "value", "cure", "source")
        return {
            "code": self.code,
            "exit_code": self.exit_code,
            "message": str(self),
            **{name: _plain(getattr(self, name, None)) for name in stated},
        }


class InputError(TaylorError):
    """Bad usage or bad input (exit code 2).

    Parameters
    ----------
    problem : str
        The error, as a short clause: ``"must be a positive integer"``.
    file : path, optional
        The file that holds the value.
    field : str, optional
        Dotted path of the field inside the file, or the flag on the command line.
    value : object, optional
        The value found; printed shortened. Omitted when not given.
    cure : str, optional
        Action that mends it.
    source : str, optional
        Place of the rule that the value breaks: the framework's file and line. Only programs see it here; a message
        names it in its cure.
    code : str, optional
        Kind of the error, where it is another than ``bad_input``.
    """

    exit_code = EXIT_BAD_INPUT
    _NO_VALUE = object()

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        value: object = _NO_VALUE,
        cure: str | None = None,
        source: str | None = None,
        code: str | None = None,
    ) -> None:
        self.problem, self.file, self.field, self.cure, self.source = problem, file, field, cure, source
        self.value = None if value is InputError._NO_VALUE else value
        self.code = code or type(self).code
        where = ": ".join(shortened(str(part), 300) for part in (file, field) if part is not None)
        text = f"{where}: {problem}" if where else problem
        if value is not InputError._NO_VALUE:
            text += f" (found {shortened(repr(value))})"
        if cure:
            text += f"; {cure}"
        super().__init__(text)


class WriteError(InputError):
    """A file cannot be written, not because of its content (exit code 2)."""

    code = "cannot_write"


class InfeasibleError(TaylorError):
    """No plan exists, and that is proven (exit code 3)."""

    exit_code = EXIT_INFEASIBLE
    code = "infeasible"


class NoSolutionError(TaylorError):
    """The limit ended the search before any plan was found (exit code 4)."""

    exit_code = EXIT_NO_SOLUTION
    code = "no_solution"


class InterruptedSolve(TaylorError):
    """Ctrl-C ended a solve (exit code 130); the message says where the plan so far is kept."""

    exit_code = EXIT_INTERRUPTED
    code = "interrupted"


class DocumentError(TaylorError):
    """A document that Taylor made differs from its schema (exit code 1): an error of Taylor itself."""

    exit_code = 1
    code = "fault"


class OutsideProgramError(TaylorError):
    """A program that Taylor started failed (exit code 5)."""

    exit_code = EXIT_OUTSIDE_PROGRAM
    code = "outside_program"


def _plain(value: object) -> Any:
    """A value as JSON holds it: numbers, truth and text as they are, all else as text that a message could hold."""
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return shortened(value if isinstance(value, str) else str(value) if isinstance(value, Path) else repr(value), 1000)
