"""Recipes of LLaMA3-405B and DeepSeek-V3 with activations lent between stages, beside modules and offload alone.

    python -m benchmarks.lending [FOLDER] [--time_limit 60] [--margin MIB] [--only TEXT]

Each recipe is solved on the devices of its figures with recompute by module and offload, where its file can state them,
and with `--lend mirror`. A row has the step without lending, the step with it, and the gain with what the bounds prove.
A recipe whose stages all fit without recompute gains nothing; ``--margin`` keeps more memory free on each device. The
exit code is 1 where a plan is worse than without lending.
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.large_recipes import chosen_recipes, each_recipe, shape_of
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import UNLENT_OBJECTIVE
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import lent_memory_mib
from taylor.workflows.showing.verdict import lending_gain_text
from taylor.workflows.statement.stated_file import StatedFile


def _problem(file: StatedFile) -> PipelineProblem:
    return file.problem(file.obtain_memory(None, Path("pipeline_output")))


def main(arguments: list[str] | None = None) -> int:
    """Solve the recipes and print a line each; 1 where lending makes a plan worse."""
    chosen = chosen_recipes(__doc__, arguments)
    worse = 0
    for name, file, problem in each_recipe(chosen, _problem, lend="mirror"):
        found, shape = solve(problem, chosen.options, warm_start=file.known_plan(problem)), shape_of(problem)
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
