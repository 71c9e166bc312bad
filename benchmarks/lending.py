"""Recipes of LLaMA3-405B and DeepSeek-V3 with activations lent between stages, beside modules and offload alone.

    python -m benchmarks.lending [FOLDER] [--time_limit 60] [--margin MIB] [--only TEXT]

Each recipe is solved on the devices of its figures with recompute by module and offload, where its file can state them,
and with `--lend mirror`. A row has the step without lending, the step with it, and the gain with what the bounds prove.
A recipe whose stages all fit without recompute gains nothing; ``--margin`` keeps more memory free on each device. The
exit code is 1 where a plan is worse than without lending.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from benchmarks.mlperf_layouts import mlperf_configs
from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import UNLENT_OBJECTIVE, Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import lent_memory_mib
from taylor.workflows.showing.verdict import lending_gain_text
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import AskedModules, FileJob
from taylor.workflows.statement.stated_file import StatedFile

MODELS = ("405b", "deepseek")


def stated(config: TrainingConfig, device: str, margin: MemoryMargin) -> StatedFile:
    """A recipe with all that its file can state, and lending."""
    config = config.replace(margin=margin)
    for modules in (AskedModules(True, True), AskedModules(True, False), AskedModules()):
        job = FileJob(
            config.path, device=device, dryrun=False, check=False, margin=margin, modules=modules, lend="mirror"
        )
        try:
            return StatedFile.of(job, config, choose_device(config, device))
        except InputError as error:
            if error.field not in ("--recompute_modules", "--offload"):
                raise
    raise AssertionError("a job without choices is stated")


def solved(
    folder: Path, only: str, margin: MemoryMargin, options: SolveOptions
) -> Iterator[tuple[str, PipelineProblem, Solution]]:
    """The recipes with several stages, each once."""
    known: set[str] = set()
    for row, config in chain(recipe_configs(folder), mlperf_configs(folder)):
        name = row["script"].removesuffix(".sh")
        wanted = any(model in name.lower() for model in MODELS) and only in name
        if config.strategy.pp == 1 or name in known or not wanted:
            continue
        known.add(name)
        try:
            file = stated(config, row["system"], margin)
            problem = file.problem(file.obtain_memory(None, Path("pipeline_output")))
        except TaylorError as error:
            print(name, error, file=sys.stderr, flush=True)
            continue
        yield name, problem, solve(problem, options, warm_start=file.known_plan(problem))


def main(arguments: list[str] | None = None) -> int:
    """Solve the recipes and print a line each; 1 where lending makes a plan worse."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--margin", type=float, help="MiB that each device keeps free")
    parser.add_argument("--only", default="", help="recipes whose name holds this text")
    chosen = parser.parse_args(arguments)
    margin = MemoryMargin() if chosen.margin is None else MemoryMargin(mib=chosen.margin)
    worse = 0
    for name, problem, found in solved(chosen.folder, chosen.only, margin, SolveOptions(time_limit=chosen.time_limit)):
        shape = f"PP{problem.stages} VP{problem.interleaves} m{problem.micro_batches}"
        if found.plan is None or found.objective is None:
            print(f"{name}: {shape}: {found.status}: {found.message}", flush=True)
            continue
        lent = max(lent_memory_mib(problem, found.plan))
        text = lending_gain_text(problem, found) or "no plan is known without lending"
        print(f"{name}: {shape}: at most {lent:,.0f} MiB of a stage lent: {text}; {found.seconds:.0f} s", flush=True)
        worse += found.objective > found.statistics.get(UNLENT_OBJECTIVE, float("inf")) * (1 + 1e-9)
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
