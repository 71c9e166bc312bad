"""Code that runs on a cluster's workers: the check of their versions, and a task that returns its outcome by value."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import taylor
from taylor.workflows.running.kept_solves import DECIDING, code_hash


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task on a worker: its result, or the exception that it raised."""

    value: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class OtherVersions:
    """A worker would have run a task with other code than the sender's, and did not.

    Parameters
    ----------
    found : mapping
        As in `versions`.
    worker : str
        Its address.
    """

    found: Mapping[str, str]
    worker: str


@cache
def versions() -> Mapping[str, str]:
    """Versions that must agree on two machines for a task to give the same on both."""
    python = ".".join(platform.python_version_tuple()[:2])
    libraries = {name: version(name) for name in DECIDING}
    return {"taylor": taylor.__version__, "python": python, **libraries, "code": code_hash()[:12]}


def differences(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Difference of two versions, in words; empty where there is none."""
    return ", ".join(
        f"{name} {there.get(name, 'unknown')} instead of {wanted}"
        for name, wanted in here.items()
        if there.get(name) != wanted
    )


def run_task(
    sent_from: Mapping[str, str], task: Callable[..., Any], arguments: tuple[Any, ...]
) -> Outcome | OtherVersions:
    """Run a task; its exceptions are part of its outcome, so that only a worker's failure is one of Dask's."""
    if dict(versions()) != dict(sent_from):
        from distributed import get_worker

        return OtherVersions(versions(), get_worker().address)
    try:
        return Outcome(task(*arguments))
    except Exception as error:
        return Outcome(error=error)
