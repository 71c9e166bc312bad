"""Runs chosen tests again and again, each time in a process that has loaded what the tests load from others.

    python -m benchmarks.reliability.judging_server

The pipe JOBS gives a line a run: {"tests": [...], "cpu_seconds": 20, "wall_seconds": 100}; the pipe ANSWERS gets
{"outcome": ..., "by": ...}: "killed" with the name of the test that failed, "survived" where none did, "time" where a
limit ended the run, "broken" where pytest could not run at all. Nothing of Taylor is loaded before the fork, so that
each run reads the files as they are then.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.reliability.forks import KILLED, in_fork

LOADED = (
    "numpy", "pandas", "yaml", "numba", "highspy", "pyomo.environ", "hypothesis.strategies", "hypothesis.extra.numpy",
    "pytest", "_pytest.assertion.rewrite", "multiprocessing.pool", "concurrent.futures.process",
)  # fmt: skip


class FirstFailure:
    """A pytest plugin that writes down the test that ends a run."""

    def __init__(self, place: Path):
        self.place = place

    def pytest_runtest_logreport(self, report: Any) -> None:
        """pytest's word on one phase of a test."""
        if report.failed:
            self.place.write_text(report.nodeid, encoding="utf-8")


def run(job: dict[str, object], failure: Path) -> str:
    """Fork, run, wait; the test that failed is in the file `failure` then."""

    def work() -> int:
        os.environ.update(job["environment"])  # type: ignore[call-overload]
        if "numba" in sys.modules:
            sys.modules["numba"].config.reload_config()
        import pytest

        tests = [str(test) for test in job["tests"]]  # type: ignore[attr-defined]
        options = ["-x", "-q", "-p", "no:cacheprovider"]
        return int(pytest.main([*options, *tests], plugins=[FirstFailure(failure)]))

    code = in_fork(work, float(str(job["cpu_seconds"])), float(str(job["wall_seconds"])))
    if code is None:
        return "time"
    # 1: a test failed; 2, 4: modules of tests did not even load; 3, 5: pytest itself.
    return {0: "survived", 1: "killed", 2: "killed", 4: "killed", KILLED: "killed"}.get(code, "broken")


def main() -> int:
    """Load, then answer line by line."""
    for name in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    jobs, answers = os.fdopen(int(os.environ["JOBS"])), os.fdopen(int(os.environ["ANSWERS"]), "w")
    for line in jobs:
        with tempfile.TemporaryDirectory(prefix="judging-") as folder:
            failure = Path(folder) / "failure"
            outcome = run(json.loads(line), failure)
            by = failure.read_text(encoding="utf-8") if failure.exists() else ""
        print(json.dumps({"outcome": outcome, "by": by}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
