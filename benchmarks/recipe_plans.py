"""Published training recipes solved: how soon there is a plan, how far their own layout is from the proven best.

    python -m benchmarks.recipe_plans [FOLDER] [--time_limit SECONDS] [--workers N] [--only TEXT] [--page]

FOLDER (``../shared/data/recipes``) holds the launch scripts; those with several stages are solved on estimates, in the
precision that they are written for, on the device of their published figure. A row: the recipe's shape, its own plan
(step time in body-layer forwards, or how far it is over the limit), the seconds to the first plan and that plan, the
best plan with its gap, and how much longer the recipe's own plan takes than the best one. ``--page`` writes the table
of docs/recipes.md (``make recipes``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.files import write_atomic
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.progress import Progress
from taylor.pipeline_solver.solution import OPTIMAL, Solution
from taylor.pipeline_solver.solve import solve
from taylor.workflows.devices import choose_device
from taylor.workflows.evaluate_file import own_solution
from taylor.workflows.options import FileJob
from taylor.workflows.planned_file import over_limit
from taylor.workflows.stated_file import StatedFile

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"
HEAD = """# Published recipes and the best plan

How far the layout of a published training recipe (NVIDIA, Megatron-Bridge) is from the best one. Each recipe with
several stages is solved from its own plan, in the precision and on the device of its published figure, with memory and
times estimated: layers by stage and interleave, and recompute, in the recipe's own order of tasks. Both plans of a row
stand on the same estimate.

*Above the best plan*: how much longer a step of the recipe's own layout takes than one of the best plan found. *Above
the optimum*: between that and the same against the proven bound, where the proof is open. A layout that the estimate
calls too large for its device has no figure.

Written by `make recipes`: {workers} processes, at most {limit:g} s a recipe; {solved} of {count} are proven.

| recipe | device | shape | own layout above the best plan | above the optimum | gap | seconds |
|---|---|---|--:|--:|--:|--:|
"""


@dataclass(frozen=True)
class SolvedRecipe:
    """One recipe's outcome; `first` is (seconds, step time) of the first plan that was told of."""

    name: str
    device: str
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

    @property
    def own_above_bound(self) -> float | None:
        """The same against the proven bound: at most so much longer than the optimum."""
        best, bound = self.solution.objective, self.solution.bound
        if self.own_above is None or best is None or not bound:
            return None
        return (1.0 + self.own_above) * best / bound - 1.0

    def page_row(self) -> str:
        """The recipe's row in the page."""
        above, most, gap = self.own_above, self.own_above_bound, self.solution.gap
        closed = self.solution.status == OPTIMAL
        optimum = "-" if above is None or most is None else f"{above:.2%}" if closed else f"{above:.2%} to {most:.2%}"
        cells = (
            self.name,
            self.device,
            self.shape,
            "does not fit" if self.own is not None and over_limit(self.own) else _share(above),
            optimum,
            "-" if gap is None else "proven" if closed else f"{gap:.3%}",
            f"{self.solution.seconds:.1f}",
        )
        return f"| {' | '.join(cells)} |"


def page(solved: Sequence[SolvedRecipe], options: SolveOptions) -> str:
    """The text of docs/recipes.md."""
    closed = sum(one.solution.status == OPTIMAL for one in solved)
    head = HEAD.format(workers=options.workers, limit=options.time_limit, solved=closed, count=len(solved))
    return head + "".join(f"{one.page_row()}\n" for one in solved)


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
    return SolvedRecipe(name, device, shape, own_solution(file, memory), heard[0] if heard else None, solution)


def main(arguments: list[str] | None = None) -> int:
    """Solve the chosen recipes and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="recipes whose name holds this text")
    parser.add_argument("--page", action="store_true", help=f"write the table of docs/{PAGE.name}")
    chosen = parser.parse_args(arguments)
    if chosen.page and chosen.only:
        parser.error("--page takes all recipes: leave --only out")
    options = SolveOptions(time_limit=chosen.time_limit, workers=chosen.workers)
    table = Table(title=f"{chosen.workers} workers, limit {chosen.time_limit:g} s")
    for heading in ("recipe", "shape", "own plan", "first plan", "best", "gap", "seconds", "own above best"):
        table.add_column(heading, justify="left" if heading in ("recipe", "shape") else "right")
    done: dict[str, SolvedRecipe] = {}
    for row, config in recipe_configs(chosen.folder):
        name, device = row["script"].removesuffix(".sh"), row["system"]
        if config.strategy.pp == 1 or chosen.only not in name or name in done:
            continue
        one = done[name] = solve_recipe(name, device, config, options)
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
            _share(above),
        )
        print(name, one.shape, best.status, best.objective, best.gap, above, file=sys.stderr, flush=True)
    Console(width=170).print(table)
    if chosen.page:
        write_atomic(PAGE, page(list(done.values()), options))
    return 0


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


if __name__ == "__main__":
    raise SystemExit(main())
