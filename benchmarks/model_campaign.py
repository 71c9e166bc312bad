"""Plans of models alone, written as their framework's file and read again: the same step, memory and plan?

Run as ``python -m benchmarks.model_campaign``. Every case is a model (of the register, or a ``config.json`` of
../shared/data/model_configs), a device and a framework. Its quickest strategy by the estimate is solved for some
seconds and written with its plan; ``bash -n``, a YAML or a TOML loader reads the file, and so does Taylor, which
evaluates the plan in it. Cases go into a CSV, one row each: a run that is killed goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import logging
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import tomllib
import yaml

from taylor.base.errors import InfeasibleError, InputError, NoSolutionError, TaylorError
from taylor.cost_model.job.parameters import total_parameters
from taylor.dryrun.estimate import estimate_memory
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.register.registry import Registry
from taylor.workflows.searching.model_job import ModelJob, model_file, write_strategies
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_stated
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile

DEVICES = ("a100-80g", "h100-80g", "h200-141g", "mi300x-192g", "ascend-910b")
CONFIGS = Path("../shared/data/model_configs/models")
MODELS = 40
RANKS = ((30e9, 64), (120e9, 256), (500e9, 1024), (float("inf"), 2048))
"""Ranks of a job by the parameters of its model."""
SAME, REFUSED, NO_PLAN, DIFFERENT = "same", "refused", "no plan", "different"
COMPARED = ("step_ms", "peak_memory", "layers", "recompute", "offset", "mfu", "tokens_per_second")
FIELDS = ("model", "device", "framework", "outcome", "why", "seconds")


class Case(NamedTuple):
    """One model on one device under one framework."""

    model: str
    device: str
    framework: str


def cases(seed: int) -> list[Case]:
    """All cases in a random order: registered models first, then files, until there are enough of them."""
    models = [*Registry.load().model_names(), *(str(path) for path in sorted(CONFIGS.glob("*.json")))]
    rng = random.Random(seed)
    rng.shuffle(models)
    found = [
        Case(model, device, framework)
        for model in models[:MODELS]
        for device in DEVICES
        for framework in ("mindspeed" if device.startswith("ascend") else "megatron", "mindformers", "torchtitan")
    ]
    rng.shuffle(found)
    return found


def outcome(case: Case, folder: Path, limit: float) -> tuple[str, str]:
    """Outcome of a case, and its reason."""
    path = model_file(case.model, folder)
    parameters = total_parameters(read_config(path).model)
    ranks = next(ranks for most, ranks in RANKS if parameters <= most)
    job = ModelJob(path, ranks, gbs=2 * ranks, device=case.device, framework=case.framework)
    try:
        [chosen] = write_strategies(job, folder, 1)
        asked = FileJob(chosen, dryrun=False, check=False, device=case.device)
        config = read_config(chosen)
        file = StatedFile.of(asked, config, choose_device(config, case.device))
        planned = solve_stated(file, estimate_memory(file.running, file.device), SolveOptions(time_limit=limit))
    except (InfeasibleError, NoSolutionError) as error:
        return NO_PLAN, str(error)
    except InputError as error:
        return REFUSED, str(error)
    if planned.solution.plan is None:
        return NO_PLAN, planned.solution.message
    target = write_plan(
        config.replace(schedule=planned.problem.schedule), planned.plan, output=folder / f"run{chosen.suffix}"
    )
    if problem := _loads(target):
        return DIFFERENT, problem
    again = evaluate_file(FileJob(target, dryrun=False, check=False, device=case.device), Outputs(folder=folder))
    one, other = planned.result().to_dict(), again.result().to_dict()
    changed = [name for name in COMPARED if one[name] != other[name]]
    return (DIFFERENT, ", ".join(changed)) if changed else (SAME, f"{one['step_ms']:.3f} ms")


def _loads(path: Path) -> str:
    """Faults of a file, as the start of its program would report them; none where it is right."""
    if path.suffix == ".sh":
        run = subprocess.run(["bash", "-n", path], check=False, capture_output=True, text=True)
        return run.stderr.strip()
    try:
        found = tomllib.loads(path.read_text()) if path.suffix == ".toml" else yaml.safe_load(path.read_text())
    except (ValueError, yaml.YAMLError) as error:
        return str(error)
    return "" if found else "it is empty"


def main() -> int:
    """Run the rest of the campaign; 1 where a case came out different."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("output/model_campaign.csv"))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after these no case is begun")
    parser.add_argument("--limit", type=float, default=3.0, help="seconds that a solve may take")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    began = time.monotonic()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    known: list[dict[str, str]] = []
    if args.output.is_file():
        with args.output.open(newline="") as stream:
            known = list(csv.DictReader(stream))
    done = {tuple(row[name] for name in FIELDS[:3]) for row in known}
    with args.output.open("a", newline="") as file:
        table = csv.DictWriter(file, FIELDS)
        if not known:
            table.writeheader()
        for case in cases(args.seed):
            if case in done or time.monotonic() - began > args.seconds:
                continue
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    result, why = outcome(case, Path(folder), args.limit)
                except TaylorError as error:
                    result, why = DIFFERENT, f"{type(error).__name__}: {error}"
            row = {
                **case._asdict(),
                "outcome": result,
                "why": why.replace(folder, ""),
                "seconds": f"{_since(start):.1f}",
            }
            table.writerow(row)
            file.flush()
            known.append(row)
    counts = Counter(row["outcome"] for row in known)
    print(f"{len(known)} cases: " + ", ".join(f"{count} {result}" for result, count in counts.most_common()))
    return 1 if counts[DIFFERENT] else 0


def _since(start: float) -> float:
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
