"""Published training recipes solved: time to the first plan, and distance of their baseline from the proven best.

    python -m benchmarks.recipe_plans [FOLDER] [--time_limit SECONDS] [--workers N]
                                      [--only TEXT] [--devices NAME ...] [--risk FRACTION] [--page]

FOLDER (``../shared/data/recipes``) holds the launch scripts; those with several stages are solved on estimates, in the
precision that they are written for, on the device of their published figure. A row: the recipe's shape, its baseline
(step time in body-layer forwards, or how far it is over the limit), the seconds to the first plan and that plan, the
best plan with its gap, and how much longer the baseline takes than the best plan. ``--page`` writes the table
of docs/recipes.md (``make recipes``). ``--devices`` solves every recipe on other devices of the register, or on ``all``
of them; what is the same problem on two devices is solved once. The last column names the goals that a row misses
(`SolvedRecipe.missed`), and the exit code is 1 where one does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.mlperf_layouts import mlperf_configs
from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.errors import TaylorError
from taylor.base.files import write_atomic
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemoryProfile
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.solving.warming import warm
from taylor.register.registry import Registry
from taylor.workflows.showing.planned_file import over_limit
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile

PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"
HEAD = """# Published recipes and the best plan

How far the layout of a published training recipe (NVIDIA's Megatron-Bridge; MLPerf's Llama 3.1 405B and DeepSeek-V3) is
from the best one. Each recipe with several stages is solved from the plan in it, in the precision and on the device of
its published figure, with memory and times estimated: layers by stage and chunk, and recompute, in the recipe's
own order of tasks. Both plans of a row stand on the same estimate. Plans may use all memory of a device (`--risk 0`),
as layouts are compared, not verdicts.

*Above the best plan*: how much longer a step of the recipe's own layout takes than one of the best plan found. *Above
the optimum*: between that and the same against the proven bound, where the proof is open. A layout that the estimate
calls too large for its device has no figure.

Written by `make recipes`: {workers} processes, at most {limit:g} s a recipe; {solved} of {count} are proven.

| recipe | device | shape | own layout above the best plan | above the optimum | gap | seconds |
|---|---|---|--:|--:|--:|--:|
"""


LABELS = "recipe", "device", "shape"
FIGURES = "plan in the file", "first plan", "best", "gap", "seconds", "the file's above best"
"""Columns of the table on the screen, before the goals that were missed."""

FIRST_WITHIN = 1.0
"""Seconds within which a first plan is reported."""
GOALS, LONG_LIMIT = (5e-3, 1e-3), 600.0
"""Gaps that a solve is to reach, the second one within `LONG_LIMIT` seconds."""
WORSE = 1e-9
"""Relative difference of two plans by rounding alone."""


@dataclass(frozen=True)
class SolvedRecipe:
    """One recipe's outcome; `first` is (seconds, step time) of the first plan reported."""

    name: str
    device: str
    shape: str
    own: Solution | None
    first: tuple[float, float] | None
    solution: Solution

    @property
    def own_above(self) -> float | None:
        """Relative excess of the baseline's step over the best plan's; None where it does not fit."""
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

    def missed(self, time_limit: float) -> list[str]:
        """The goals that were missed: a plan within a second, none worse than the recipe's own, the gap."""
        best, goal = self.solution, GOALS[time_limit >= LONG_LIMIT]
        if best.objective is None:
            return [] if best.status == INFEASIBLE else ["no plan"]
        found = []
        if self.first is None or self.first[0] > FIRST_WITHIN:
            found.append("first plan late")
        if self.own_above is not None and self.own_above < -WORSE:
            found.append("worse than its own")
        if best.gap is None or best.gap > goal:
            found.append(f"gap above {goal:.1%}")
        return found

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


def recipe_file(config: TrainingConfig, device: str, risk: float | None = None) -> tuple[StatedFile, MemoryProfile]:
    """A recipe on a device, and its memory there.

    Parameters
    ----------
    risk : float or None
        As in `MemoryMargin`.

    Raises
    ------
    TaylorError
        Where the device can't run it, or memory can't be predicted.
    """
    config = config.replace(margin=MemoryMargin(risk=risk))
    job = FileJob(config.path, device=device, dryrun=False, check=False, margin=config.margin)
    file = StatedFile.of(job, config, choose_device(config, device))
    return file, file.obtain_memory(None, Path("pipeline_output"))


def solve_recipe(
    name: str, device: str, file: StatedFile, memory: MemoryProfile, problem: PipelineProblem, options: SolveOptions
) -> SolvedRecipe:
    """Solve one recipe from its baseline."""
    heard: list[tuple[float, float]] = []

    def watch(progress: Progress) -> None:
        if progress.objective is not None and not heard:
            heard.append((progress.seconds, progress.objective))

    solution = solve(problem, options, warm_start=file.known_plan(problem), on_progress=watch)
    layers = sum(kind.count for kind in problem.kinds)
    shape = f"{layers} layers, PP{problem.stages} VP{problem.interleaves} m{problem.micro_batches}"
    return SolvedRecipe(name, device, shape, own_solution(file, memory), heard[0] if heard else None, solution)


def solved_recipes(
    folder: Path, only: str, devices: Sequence[str] | None, options: SolveOptions, risk: float | None
) -> Iterator[SolvedRecipe]:
    """Every recipe on its figure's device, or on each of `devices`; a problem that was solved before is left out."""
    known: set[str] = set()
    for row, config in chain(recipe_configs(folder), mlperf_configs(folder)):
        name = row["script"].removesuffix(".sh")
        # Without devices a recipe has one row, whatever is measured of it.
        if config.strategy.pp == 1 or only not in name or (not devices and name in known):
            continue
        for device in devices or [row["system"]]:
            try:
                file, memory = recipe_file(config, device, risk)
            except TaylorError as error:
                print(name, device, error, file=sys.stderr, flush=True)
                continue
            problem = file.problem(memory)
            if devices and problem.fingerprint() in known:
                continue
            known |= {name, problem.fingerprint()}
            yield solve_recipe(name, device, file, memory, problem, options)


def main(arguments: list[str] | None = None) -> int:
    """Solve the chosen recipes and print the table; 1 where one misses a goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", default="", help="recipes with this text in their name")
    parser.add_argument("--devices", nargs="+", help="devices of the register in place of each figure's own, or all")
    parser.add_argument("--risk", type=float, help="of a peak over the limit; 0: plans may use all memory")
    parser.add_argument("--page", action="store_true", help=f"write the table of docs/{PAGE.name}")
    chosen = parser.parse_args(arguments)
    if chosen.page and (chosen.only or chosen.devices or chosen.risk != 0):
        parser.error("--page takes all recipes on their own devices with --risk 0: leave --only and --devices out")
    devices = sorted(Registry.load().devices) if chosen.devices == ["all"] else chosen.devices
    options = SolveOptions(time_limit=chosen.time_limit, workers=chosen.workers)
    table = Table(title=f"{chosen.workers} workers, limit {chosen.time_limit:g} s")
    for heading in LABELS:
        table.add_column(heading)
    for heading in FIGURES:
        table.add_column(heading, justify="right")
    table.add_column("missed")
    warm()  # the first solve after an installation compiles, which its time limit would count
    done: list[SolvedRecipe] = []
    for one in solved_recipes(chosen.folder, chosen.only, devices, options, chosen.risk):
        done.append(one)
        own, best, above = one.own, one.solution, one.own_above
        missed = ", ".join(one.missed(chosen.time_limit))
        table.add_row(
            one.name,
            one.device,
            one.shape,
            "-" if own is None else "over the limit" if over_limit(own) else f"{own.objective:.3f}",
            "-" if one.first is None else f"{one.first[1]:.3f} in {one.first[0]:.1f} s",
            "-" if best.objective is None else f"{best.objective:.3f}",
            "-" if best.gap is None else f"{best.gap:.3%}",
            f"{best.seconds:.1f}",
            _share(above),
            missed,
        )
        line = (one.name, one.device, one.shape, best.status, best.objective, best.gap, best.seconds, above, missed)
        print(*line, file=sys.stderr, flush=True)
    Console(width=190).print(table)
    reached = sum(not one.missed(chosen.time_limit) for one in done)
    print(f"{reached} of {len(done)} reach every goal")
    if chosen.page:
        write_atomic(PAGE, page(done, options))
    return int(reached < len(done))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


if __name__ == "__main__":
    raise SystemExit(main())
