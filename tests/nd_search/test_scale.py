"""The search at scale keeps its promised time and memory; the benchmark says so by its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_sixteen_thousand_ranks_with_all_dimensions_take_under_four_seconds_and_500_mb() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/nd_search.py", "--world_size", "1024", "16384"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {int(line.split()[0]): [int(cell) for cell in line.split()[1:6]] for line in done.stdout.splitlines()[2:]}
    assert counts[1024][0] > 100_000 and counts[16384][0] > 1_000_000
    for built, legal, sensible, fitting, chosen in counts.values():
        assert built > legal > sensible > fitting > chosen == 20
