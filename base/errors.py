"""The errors a user can meet, each with the exit code of its kind.

A message says what is wrong, in which file and field, with the value found, and the cure.
"""

from __future__ import annotations

from pathlib import Path

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
    """Base of every error that a user can cause; carries the process exit code."""

    exit_code = EXIT_BAD_INPUT


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
    ) -> None:
        self.problem, self.file, self.field, self.cure = problem, file, field, cure
        where = ": ".join(shortened(str(part), 300) for part in (file, field) if part is not None)
        text = f"{where}: {problem}" if where else problem
        if value is not InputError._NO_VALUE:
            text += f" (found {shortened(repr(value))})"
        if cure:
            text += f"; {cure}"
        super().__init__(text)


class WriteError(InputError):
    """A file cannot be written, not because of its content (exit code 2)."""


class InfeasibleError(TaylorError):
    """No plan exists, and that is proven (exit code 3)."""

    exit_code = EXIT_INFEASIBLE


class NoSolutionError(TaylorError):
    """The limit ended the search before any plan was found (exit code 4)."""

    exit_code = EXIT_NO_SOLUTION


class InterruptedSolve(TaylorError):
    """Ctrl-C ended a solve (exit code 130); the message says where the plan so far is kept."""

    exit_code = EXIT_INTERRUPTED


class OutsideProgramError(TaylorError):
    """A program that Taylor started failed (exit code 5)."""

    exit_code = EXIT_OUTSIDE_PROGRAM
