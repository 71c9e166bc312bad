"""Memory and times by phase of public reinforcement-learning jobs, beside what was reported of them.

Run from the repository's root: ``python -m benchmarks.rl_phases``. The jobs are restated in ``rl_phases.yaml``.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from taylor.base.console import start_logging
from taylor.parsers.megatron.named_sizes import size_flags
from taylor.parsers.rl_iteration import ENGINE, ROLLOUT
from taylor.parsers.tables.generation import GenerationSpeed
from taylor.register.registry import Registry
from taylor.workflows.rl.evaluate import RlChoice, RlResult, evaluate_iteration, fullest, worst
from taylor.workflows.rl.memory import CACHE, FITS, OVER, RISK
from taylor.workflows.statement.options import FileJob

JOBS = Path(__file__).with_suffix(".yaml")
SPEED = GenerationSpeed.of(1000.0)
"""Any: no time of a roll-out is compared."""
EXPECTED = {"ran": (FITS, RISK), "out of memory": (RISK, OVER), "both": (RISK,)}
"""Verdicts that agree with a report."""


def script(job: Mapping[str, Any]) -> tuple[str, str]:
    """Name and text of a job's file."""
    options: Mapping[str, Any] = job["options"]
    if job["launcher"] == "verl":
        words = "".join(f" \\\n    {name}={value}" for name, value in options.items())
        return "run.sh", f"python3 -m verl.trainer.main_ppo{words}\n"
    if job["launcher"] == "slime":
        flags = [flag for flag in size_flags(Registry.load().model(job["model"]))]
        sizes = "".join(f" \\\n   --{each.name} {' '.join(word.text for word in each.values)}" for each in flags)
        given = {name: value for name, value in options.items() if value is not False}
        words = "".join(f" \\\n   --{name}{'' if value is True else f' {value}'}" for name, value in given.items())
        return "run.sh", f"python3 train.py{sizes}{words}\n"
    tree: dict[str, Any] = {}
    for name, value in options.items():
        *above, last = name.split(".")
        node = tree
        for part in above:
            node = node.setdefault(part, {})
        node[last] = value
    return "run.yaml", yaml.safe_dump(tree, sort_keys=False)


def evaluate(job: Mapping[str, Any]) -> RlResult:
    """Iteration of a job."""
    prompt, answer = job.get("mean") or (None, None)
    with TemporaryDirectory() as folder:
        name, text = script(job)
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8")
        return evaluate_iteration(FileJob(path, device=job["device"]), RlChoice(SPEED, prompt, answer))


def main() -> int:
    """Print a line for each job and comparison; 1 where a verdict contradicts a report."""
    start_logging(quiet=True)
    jobs = yaml.safe_load(JOBS.read_text(encoding="utf-8"))["jobs"]
    agreed = 0
    for job in jobs:
        found = evaluate(job)
        memory = found.typical or found.memory
        full = fullest(memory)
        agrees = worst(memory) in EXPECTED[job["reported"]]
        agreed += agrees
        print(f"{job['name']}: {job['reported']}; {worst(memory)} ({'agrees' if agrees else 'CONTRADICTS'})")
        lengths = "mean length" if found.typical else "longest samples"
        print(f"   {full.phase} {full.total_mib:,.0f} of {full.usable_mib:,.0f} MiB at the {lengths}")
        if found.typical:
            most = fullest(found.memory)
            print(f"   at the longest: {found.verdict}, {most.phase} {most.total_mib:,.0f} MiB")
        for phase, mib in job.get("mib", {}).items():
            parts = next(one.parts for one in found.memory if one.phase == phase)
            ours = parts[ENGINE] + parts[CACHE] if phase == ROLLOUT else sum(parts.values())
            print(f"   {phase}: {ours:,.0f} MiB, reported {mib:,.0f} ({ours / mib - 1:+.1%})")
        shares = job.get("shares", {})
        for phase in list(shares)[1:]:
            base = next(iter(shares))
            ours, theirs = found.known_ms[phase] / found.known_ms[base], shares[phase] / shares[base]
            print(f"   {phase} over {base}: {ours:.2f}, reported {theirs:.2f} ({ours / theirs - 1:+.0%})")
    print(f"{agreed} of {len(jobs)} verdicts agree with their reports")
    return 0 if agreed == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
