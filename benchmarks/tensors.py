"""Recipes of LLaMA3-405B and DeepSeek-V3 with choices by saved tensor, beside modules and offload alone.

    python -m benchmarks.tensors [FOLDER] [--time_limit 60] [--margin MIB] [--only TEXT]

Each recipe is solved on the devices of its figures with recompute by module and offload, where its file can state them,
and then with `--tensors` too, from that plan on. A row has both steps, the gain, and what the bounds prove: no plan
without tensors is faster than the first bound, none with them faster than the second. A recipe whose stages all fit
without recompute gains nothing; ``--margin`` keeps more memory free on each device. The exit code is 1 where a plan is
worse with tensors.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.large_recipes import chosen_recipes, each_recipe, shape_of
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.statement.stated_file import StatedFile


def _problems(file: StatedFile) -> tuple[PipelineProblem, PipelineProblem]:
    """The problem without tensors and with them."""
    memory = file.obtain_memory(None, Path("pipeline_output"))
    return file.problem(memory), replace(file, job=replace(file.job, tensors=True)).problem(memory)


def main(arguments: list[str] | None = None) -> int:
    """Solve the recipes and print a line each; 1 where a plan is worse with tensors, or the checker finds a fault."""
    chosen = chosen_recipes(__doc__, arguments)
    wrong = 0
    for name, file, (coarse, problem) in each_recipe(chosen, _problems):
        plain = solve(coarse, chosen.options, warm_start=file.known_plan(coarse))
        found, shape = solve(problem, chosen.options, warm_start=plain.plan), shape_of(problem)
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
