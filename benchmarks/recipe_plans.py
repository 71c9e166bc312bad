"""Published training recipes solved: how soon there is a plan, how far their own layout is from the proven best.

    python -m benchmarks.recipe_plans [FOLDER] [--time_limit SECONDS] [--workers N] [--only TEXT]

FOLDER (``../shared/data/recipes``) holds the launch scripts; those with several stages are solved on estimates, in the
precision that they are written for, on the device of their published figure. A row: the recipe's shape, its own plan
(step time in body-layer forwards, or how far it is over the limit), the seconds to the first plan and that plan, the
best plan with its gap, and how much longer the recipe's own plan takes than the best one.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.recipes import RECIPES, recipe_configs
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.progress import Progress
from taylor.pipeline_solver.solution import Solution
from taylor.pipeline_solver.solve import solve
from taylor.workflows.devices import choose_device
from taylor.workflows.evaluate_file import own_solution
from taylor.workflows.options import FileJob
from taylor.workflows.planned_file import over_limit
from taylor.workflows.stated_file import StatedFile


@dataclass(frozen=True)
class SolvedRecipe:
    """One recipe's outcome; `first` is (seconds, step time) of the first plan that was told of."""

    name: str
    shape: str
    own: Solution | None
    first: tuple[float, float] | None
    solution: Solution

    @property
    def own_above(self) -> float | None:
        """How much longer the recipe's own plan takes than the best one, as a share; None where it does not fit."""
        own, best = self.own, self.solution.objective
        if own is None or own.objective is None or best is None or over_limit(own):
            return None
        return own.objective / best - 1.0


def solve_recipe(name: str, device: str, config: TrainingConfig, options: SolveOptions) -> SolvedRecipe:
    """Solve one recipe from its own plan."""
    job = FileJob(config.path, device=device, dryrun=False, check=False)
    file = StatedFile.of(job, config, choose_device(config, device))
    memory = file.obtain_memory(None, Path("pipeline_output"))
    problem = file.problem(memory)
    heard: list[tuple[float, float]] = []

    def watch(progress: Progress) -> None:
        if progress.objective is not None and not heard:
            heard.append((progress.seconds, progress.objective))

    solution = solve(problem, options, warm_start=file.known_plan(problem), on_progress=watch)
    layers = sum(kind.count for kind in problem.kinds)
    shape = f"{layers} layers, PP{problem.stages} VP{problem.interleaves} m{problem.micro_batches}"
    return SolvedRecipe(name, shape, own_solution(file, memory), heard[0] if heard else None, solution)


def main(arguments: list[str] | None = None) -> int:
    """Solve the chosen recipes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="recipes whose name holds this text")
    chosen = parser.parse_args(arguments)
    options = SolveOptions(time_limit=chosen.time_limit, workers=chosen.workers)
    table = Table(title=f"{chosen.workers} workers, limit {chosen.time_limit:g} s")
    for heading in ("recipe", "shape", "own plan", "first plan", "best", "gap", "seconds", "own above best"):
        table.add_column(heading, justify="left" if heading in ("recipe", "shape") else "right")
    done = set()
    for row, config in recipe_configs(chosen.folder):
        name, device = row["script"].removesuffix(".sh"), row["system"]
        if config.strategy.pp == 1 or chosen.only not in name or name in done:
            continue
        done.add(name)
        one = solve_recipe(name, device, config, options)
        own, best, above = one.own, one.solution, one.own_above
        over = [] if own is None else over_limit(own)
        table.add_row(
            name,
            one.shape,
            "-" if own is None else "over the limit" if over else f"{own.objective:.3f}",
            "-" if one.first is None else f"{one.first[1]:.3f} in {one.first[0]:.1f} s",
            "-" if best.objective is None else f"{best.objective:.3f}",
            "-" if best.gap is None else f"{best.gap:.3%}",
            f"{best.seconds:.1f}",
            "-" if above is None else f"{above:.2%}",
        )
        print(name, one.shape, best.status, best.objective, best.gap, above, file=sys.stderr, flush=True)
    Console(width=170).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
