"""Check that a command ends within its time limit with a plan, a bound and a result, on the largest published recipes.

    python -m benchmarks.time_limits [FOLDER] [--limits 5 20 60] [--recipes N] [--solvers HIGHS ...] [--cold]

FOLDER (``../shared/data/recipes/scripts``) holds launch scripts. Of those with several stages the N with the most tasks
(stages · virtual stages · micro-batches) are solved by ``taylor solve -t T`` as a process of its own, in an empty
folder of results, on the device that the script's name says. Each must end within T + `GRACE` seconds, with exit code 0
and a result whose plan and bound are stated, or with proof that nothing fits. ``--cold`` gives each run an empty folder
of compiled kernels. The load of the machine is printed beside each figure, with the processor time: on a busy machine
the wall time says less. The exit code is 1 where a run misses.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recipes import RECIPES
from taylor.base.errors import EXIT_INFEASIBLE, TaylorError
from taylor.parsers.read import read_config

GRACE = 5.0
"""Seconds beyond its limit within which a command ends."""
DEVICES = {"gb200": "DGX-GB200", "gb300": "DGX-GB300", "b200": "DGX-B200", "b300": "DGX-B300", "h100": "DGX-H100"}


@dataclass(frozen=True)
class LimitedRun:
    """One command under a limit, s; `load` is the machine's average of a minute at its end."""

    script: str
    solver: str
    limit: float
    wall: float
    processor: float
    load: float
    code: int
    status: str
    objective: float | None
    bound: float | None

    @property
    def missed(self) -> str:
        """Missing parts; empty without any."""
        if self.code not in (0, EXIT_INFEASIBLE):
            return f"exit code {self.code}"
        if self.code == 0 and (not self.objective or not self.bound):
            return "no plan or no bound"
        return "" if self.wall <= self.limit + GRACE else f"{self.wall - self.limit:.1f} s late"


def largest_scripts(folder: Path, most: int) -> list[Path]:
    """The scripts of the largest event graphs."""
    sizes = {}
    for path in sorted(folder.glob("*.sh")):
        try:
            strategy = read_config(path).strategy
        except TaylorError:
            continue
        if strategy.pp > 1:
            sizes[path] = strategy.pp * strategy.vpp * strategy.micro_batches
    return sorted(sizes, key=lambda path: -sizes[path])[:most]


def limited_run(script: Path, limit: float, solver: str, *, cold: bool) -> LimitedRun:
    """Run one command and read what it left."""
    device = next((DEVICES[name] for name in re.split(r"[_-]", script.stem) if name in DEVICES), "h100-80g")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [
            sys.executable, "-m", "taylor", "solve", "-shell", str(script), "--device", device, "-dryrun", "n",
            "-check", "n", "-write", "n", "-t", f"{limit:g}", "-solver_name", solver, "--result_json", str(result),
            "--quiet",
        ]  # fmt: skip
        environment = {**os.environ, **({"NUMBA_CACHE_DIR": f"{folder}/kernels"} if cold else {})}
        before, began = _processor_seconds(), time.monotonic()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        wall, processor = time.monotonic() - began, _processor_seconds() - before
        stored = json.loads(result.read_text()) if result.exists() else {}
    status = str(stored.get("status", done.stderr.strip()[-200:]))
    return LimitedRun(
        script.stem, solver, limit, wall, processor, os.getloadavg()[0], done.returncode, status,
        stored.get("objective"), stored.get("bound"),
    )  # fmt: skip


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: list[str] | None = None) -> int:
    """Run every command and print a line of each; 1 where one misses."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=lambda text: Path(text).resolve(), default=RECIPES / "scripts")
    parser.add_argument("--limits", type=float, nargs="+", default=[5.0, 20.0, 60.0], help="seconds")
    parser.add_argument("--recipes", type=int, default=10, help="how many, the largest first")
    parser.add_argument("--solvers", nargs="+", default=["HIGHS"])
    parser.add_argument("--cold", action="store_true", help="no kernel is compiled before a run")
    chosen = parser.parse_args(arguments)
    runs = []
    for script in largest_scripts(chosen.folder, chosen.recipes):
        for solver in chosen.solvers:
            for limit in chosen.limits:
                run = limited_run(script, limit, solver, cold=chosen.cold)
                runs.append(run)
                gap = "-" if not run.objective or not run.bound else f"{1 - run.bound / run.objective:.2%}"
                missed = f"; MISSED: {run.missed}" if run.missed else ""
                print(
                    f"{run.script} {run.solver} -t {run.limit:g}: {run.wall:.1f} s wall, {run.processor:.1f} s of "
                    f"processors, load {run.load:.1f}: {run.status}, gap {gap}{missed}",
                    flush=True,
                )
    good = sum(not run.missed for run in runs)
    print(f"{good} of {len(runs)} end within their limit + {GRACE:g} s with a plan, a bound and a result")
    return int(good < len(runs))


if __name__ == "__main__":
    raise SystemExit(main())
