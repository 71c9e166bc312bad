"""Lines of the core packages that the tests execute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.reliability.campaign import (
    EVERYTHING,
    PACKAGES,
    ROOT,
    Figure,
    Part,
    Portion,
    Result,
    Sized,
    chosen,
    faults_of,
)

LEAST = 0.90
QUICK = 0.5
"""Share of the quick tests."""
SECONDS = 7200.0

CONFIG = """\
[run]
source = {packages}
parallel = true
concurrency = multiprocessing,thread
data_file = {data}
patch = subprocess,_exit
[report]
exclude_also =
    if TYPE_CHECKING:
    @compiled
"""
"""Compiled kernels run as machine code, of which no line is seen: tests compare them with their Python twins."""


def portions(share: float = 1.0) -> list[Portion]:
    """The whole suite; a share runs its quick tests alone, a small one those of one file."""
    tests = "tests" if share >= QUICK else "tests/base/test_files.py"
    return [Portion("suite", suite, {"tests": tests, "marks": "" if share == 1.0 else "not slow"})]


def suite(tests: str = "tests", marks: str = "") -> Result:
    """Run the test suite, or those of its tests whose marks fit, with every process's lines recorded."""
    with tempfile.TemporaryDirectory(prefix=".coverage-") as own:
        config, report = Path(own) / "coveragerc", Path(own) / "coverage.json"
        packages = ",".join(str(ROOT / name) for name in PACKAGES)
        config.write_text(CONFIG.format(packages=packages, data=Path(own) / "data"))
        environment = {**os.environ, "COVERAGE_PROCESS_START": str(config)}
        coverage = [sys.executable, "-m", "coverage"]
        pytest = ["-m", "pytest", "-q", "-o", f"cache_dir={own}/cache", "-n", str(os.cpu_count() or 1), "-m", marks]
        limits: dict[str, Any] = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": SECONDS}
        run = subprocess.run([*coverage, "run", f"--rcfile={config}", *pytest, tests], env=environment, **limits)
        again = None
        if run.returncode == 1:
            # A tracer makes a test several times as slow as its limit allows for: those that fail are run without one.
            again = subprocess.run([sys.executable, *pytest, "--lf", "--lfnf=none", tests], **limits)
        for step in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
            words = [*coverage, step[0], f"--rcfile={config}", *step[1:]]
            subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        files = json.loads(report.read_text())["files"]
    lines: dict[str, list[int]] = {name: [0, 0] for name in PACKAGES}
    missing: dict[str, list[int]] = {}
    for name, data in files.items():
        package = Path(name).parts[0] if not Path(name).is_absolute() else Path(name).relative_to(ROOT).parts[0]
        summary = data["summary"]
        lines[package][0] += summary["covered_lines"]
        lines[package][1] += summary["num_statements"]
        if data["missing_lines"]:
            missing[name] = data["missing_lines"]
    tail = run.stdout.strip().splitlines()[-1:] or [""]
    last = run if again is None else again
    found = [] if last.returncode == 0 else [f"the suite ended with {last.returncode}: {last.stdout[-1500:]}"]
    ran = "the quick tests" if marks else "the whole suite"
    return {
        "tests": ran,
        "packages": lines,
        "missing": missing,
        "suite": tail[0],
        "repeated": again is not None,
        "faults": found,
    }


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    [result] = chosen(results, "suite")
    lines: dict[str, list[int]] = result["packages"]
    shares = {name: covered / count for name, (covered, count) in lines.items() if count}
    covered, count = (sum(part[place] for part in lines.values()) for place in (0, 1))
    wrong = faults_of([result])
    by_package = ", ".join(f"{name} {100 * share:.0f}" for name, share in shares.items())
    return [
        Figure(
            "coverage by lines", "core packages above 90 %",
            f"{100 * covered / max(1, count):.1f} % of {count:,} lines ({by_package}); "
            + ("a test failed" if wrong else "every test passed")
        + (", some only without the tracer" if result.get("repeated") and not wrong else ""),
            not wrong and all(share >= LEAST for share in shares.values()),
            f"{result['tests']}, lines of child processes included; compiled kernels are compared with their Python "
            "twins",
        )
    ]  # fmt: skip


PART = Part(
    "coverage", portions, figures, at_once=1, sources=(*EVERYTHING, "tests", "benchmarks"),
    table=Sized(QUICK, minutes=20),
)  # fmt: skip
