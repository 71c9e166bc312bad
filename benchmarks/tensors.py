"""Recipes of LLaMA3-405B and DeepSeek-V3 with choices by saved tensor, beside modules and offload alone.

    python -m benchmarks.tensors [FOLDER] [--time_limit 60] [--margin MIB] [--only TEXT]

Each recipe is solved on the devices of its figures with recompute by module and offload, where its file can state them,
and then with `--tensors` too, from that plan on. A row has both steps, the gain, and what the bounds prove: no plan
without tensors is faster than the first bound, none with them faster than the second. A recipe whose stages all fit
without recompute gains nothing; ``--margin`` keeps more memory free on each device. The exit code is 1 where a plan is
worse with tensors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

from benchmarks.lending import MODELS
from benchmarks.mlperf_layouts import mlperf_configs
from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import AskedModules, FileJob
from taylor.workflows.statement.stated_file import StatedFile


def stated(config: TrainingConfig, device: str, margin: MemoryMargin) -> StatedFile:
    """A recipe with all that its file can state."""
    config = config.replace(margin=margin)
    for modules in (AskedModules(True, True), AskedModules(True, False), AskedModules()):
        job = FileJob(config.path, device=device, dryrun=False, check=False, margin=margin, modules=modules)
        try:
            return StatedFile.of(job, config, choose_device(config, device))
        except InputError as error:
            if error.field not in ("--recompute_modules", "--offload"):
                raise
    raise AssertionError("a job without choices is stated")


def solved(
    folder: Path, only: str, margin: MemoryMargin, options: SolveOptions
) -> Iterator[tuple[str, PipelineProblem, Solution, Solution]]:
    """The recipes with several stages, each once: without tensors and with them."""
    known: set[str] = set()
    for row, config in chain(recipe_configs(folder), mlperf_configs(folder)):
        name = row["script"].removesuffix(".sh")
        wanted = any(model in name.lower() for model in MODELS) and only in name
        if config.strategy.pp == 1 or name in known or not wanted:
            continue
        known.add(name)
        try:
            file = stated(config, row["system"], margin)
            memory = file.obtain_memory(None, Path("pipeline_output"))
            problem = file.problem(memory)
            finer = replace(file, job=replace(file.job, tensors=True)).problem(memory)
        except TaylorError as error:
            print(name, error, file=sys.stderr, flush=True)
            continue
        plain = solve(problem, options, warm_start=file.known_plan(problem))
        yield name, finer, plain, solve(finer, options, warm_start=plain.plan)


def main(arguments: list[str] | None = None) -> int:
    """Solve the recipes and print a line each; 1 where a plan is worse with tensors, or the checker finds a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--margin", type=float, help="MiB that each device keeps free")
    parser.add_argument("--only", default="", help="recipes whose name holds this text")
    chosen = parser.parse_args(arguments)
    margin = MemoryMargin() if chosen.margin is None else MemoryMargin(mib=chosen.margin)
    wrong = 0
    for name, problem, plain, found in solved(
        chosen.folder, chosen.only, margin, SolveOptions(time_limit=chosen.time_limit)
    ):
        shape = f"PP{problem.stages} VP{problem.interleaves} m{problem.micro_batches}"
        if found.plan is None or found.objective is None:
            print(f"{name}: {shape}: {found.status}: {found.message}", flush=True)
            continue
        faults = check(problem, found.plan, found.objective)
        wrong += bool(faults) or found.objective > (plain.objective or float("inf")) * (1 + 1e-9)
        unit = problem.unit_ms or 1.0
        used = ", ".join(choice for choice in problem.choices if found.plan.uses(choice)) or "nothing chosen"
        print(f"{name}: {shape}: {_text(plain, unit)} -> {_text(found, unit)}{_gain(plain, found)}; {used}", flush=True)
        print("".join(f"  {fault}\n" for fault in faults), end="", flush=True)
    return int(wrong > 0)


def _text(solution: Solution, unit: float) -> str:
    if solution.objective is None:
        return f"no plan ({solution.status})"
    gap = 0.0 if solution.bound is None else 1.0 - solution.bound / solution.objective
    return f"{solution.objective * unit:,.0f} ms (bound {100 * gap:.2f} % below, {solution.seconds:.0f} s)"


def _gain(plain: Solution, found: Solution) -> str:
    if plain.objective is None or found.objective is None or plain.bound is None:
        return ""
    proven = 1.0 - found.objective / plain.bound
    return f": {100 * (1 - found.objective / plain.objective):.2f} % shorter, {100 * proven:.2f} % proven"


if __name__ == "__main__":
    sys.exit(main())
