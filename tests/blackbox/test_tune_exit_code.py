"""A tune that found no plan does not end as if it had."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taylor.base.errors import EXIT_NO_SOLUTION, EXIT_OUTSIDE_PROGRAM
from taylor.command_lines.tune import _exit_code


def tuned(*ended: str | None, best: tuple[Any, ...] | None = None, why: str = "") -> Any:
    runs = [SimpleNamespace(ended=one) for one in ended]
    return SimpleNamespace(runs=runs, searched=None if best is None else SimpleNamespace(best=best), not_searched=why)


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (tuned("", "", best=("a plan",)), None),
        (tuned("", "no memory", best=("a plan",)), None),
        (tuned("exit code 1", "exit code 1"), EXIT_OUTSIDE_PROGRAM),
        (tuned("", "", best=()), EXIT_NO_SOLUTION),
        (tuned("", "", why="say --memory_gib"), EXIT_NO_SOLUTION),
    ],
)
def test_a_tune_without_a_plan_ends_with_a_code(done: Any, code: int | None) -> None:
    assert _exit_code(done, dry=False, first=True) == code


def test_a_dry_tune_and_another_node_have_no_plan_to_find() -> None:
    assert _exit_code(tuned(None, None), dry=True, first=True) is None
    assert _exit_code(tuned("", ""), dry=False, first=False) is None
