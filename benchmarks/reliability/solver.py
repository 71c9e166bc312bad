"""Solvers: random instances through the exact checker, against enumeration, under every setting, stopped early."""

from __future__ import annotations

import itertools
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.brute_force import comparable_problem, faults, random_problem
from benchmarks.reliability.campaign import (
    Figure,
    Part,
    Portion,
    Result,
    Sized,
    chosen,
    faults_of,
    pieces,
    split,
    total,
)
from benchmarks.reliability.own_statement import own_faults
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.milp.compact_milp import solve_compact
from taylor.pipeline_solver.milp.highs_model import HighsModel
from taylor.pipeline_solver.milp.model_files import write_mps
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, OPTIMAL, Solution
from taylor.pipeline_solver.solving.solve import SolverDisagreement, complete, solve

TOLERANCE = 1e-6
"""Relative difference at which two optima count as the same."""

SEEDS = (0, 1, 2)
CHECKED, ENUMERATED, SETTINGS, STOPPED = 10_000, 2_000, 600, 1_000


def portions(share: float = 1.0) -> list[Portion]:
    """The portions at a fraction of the full size."""
    plan = (
        ("checked", checked, CHECKED, 20), ("enumerated", enumerated, ENUMERATED, 20),
        ("settings", settings, SETTINGS, 20), ("stopped", stopped, STOPPED, 10),
    )  # fmt: skip
    return [
        Portion(f"{name}-{k:02d}", function, {"count": count, "seed": k})
        for name, function, full, portions_of in plan
        for k, count in enumerate(split(max(1, round(full * share)), pieces(portions_of, share)))
    ]


def checked(count: int, seed: int) -> Result:
    """Random instances solved by branch-and-cut; every answer goes through the exact checker."""
    rng = np.random.default_rng([1, seed])
    found: list[str] = []
    plans = infeasible = 0
    for number in range(count):
        problem = random_problem(rng)
        try:
            solution = solve(problem)
            violations = solution_faults(problem, solution)
        except SolverDisagreement as disagreement:
            violations = [str(disagreement)]
        else:
            plans += solution.plan is not None
            infeasible += solution.status == INFEASIBLE
        found += [f"checked, seed {seed}, instance {number}: {text}" for text in violations]
    return {"instances": count, "plans": plans, "infeasible": infeasible, "faults": found}


def enumerated(count: int, seed: int) -> Result:
    """Random instances whose every plan is tried, against branch-and-cut, the compact MILP and CBC."""
    rng = np.random.default_rng([2, seed])
    found: list[str] = []
    plans = infeasible = 0
    for number in range(count):
        problem, truth = comparable_problem(rng, 20_000)
        plans += truth.plans
        infeasible += truth.plan is None
        for solver in ("HIGHS", "HIGHS-MILP", "CBC"):
            found += [f"enumerated, seed {seed}, instance {number}: {text}" for text in faults(problem, truth, solver)]
    return {"instances": count, "plans": plans, "infeasible": infeasible, "faults": found}


def settings(count: int, seed: int) -> Result:
    """Every setting that may not change the optimum: solver, seed, workers, presolve, the model file's reader."""
    rng = np.random.default_rng([3, seed])
    found: list[str] = []
    solves = 0
    for number in range(count):
        # Every eighth is large enough for workers to share its tree, and half a minute of MILPs.
        problem = medium_problem(rng, most_stages=5) if number % 8 == 7 else random_problem(rng)
        optima = optima_of(problem)
        solves += len(optima)
        first = optima["HIGHS, seed 0, 1 workers"]
        for name, value in optima.items():
            if not _same(value, first):
                found.append(f"settings, seed {seed}, instance {number}: {name} gives {value}, not {first}")
    return {"instances": count, "solves": solves, "faults": found}


def optima_of(problem: PipelineProblem) -> dict[str, float | None]:
    """The optimum of a problem by every setting, None where the setting proves that there is none."""
    optima: dict[str, float | None] = {}
    for seed, workers in itertools.product(SEEDS, (1, 2)):
        solution = solve(problem, SolveOptions(seed=seed, workers=workers))
        optima[f"HIGHS, seed {seed}, {workers} workers"] = _optimum(solution)
        if seed == 0 and workers == 1:
            first = solution
        for presolve in (True, False):
            name = f"HIGHS-MILP, seed {seed}, {workers} workers, presolve {'on' if presolve else 'off'}"

            def make(model, seed=seed, workers=workers, presolve=presolve):  # type: ignore[no-untyped-def]
                return HighsModel(model.form, seed=seed, threads=workers, presolve=presolve)

            optima[name] = _optimum(complete(problem, solve_compact(problem, make_solver=make)))
    optima["CBC"] = _optimum(solve(problem, SolveOptions(solver="CBC")))
    if first.plan is not None:
        optima |= {f"model file, {name}": value for name, value in _model_file_optima(problem, first).items()}
    return optima


def stopped(count: int, seed: int) -> Result:
    """Solves cut off by a time limit, anywhere from the first step to the last."""
    rng = np.random.default_rng([4, seed])
    found: list[str] = []
    by_status = {status.value: 0 for status in (OPTIMAL, FEASIBLE, NO_SOLUTION, INFEASIBLE)}
    for number in range(count):
        problem = medium_problem(rng) if number % 2 else random_problem(rng)
        truth = solve(problem)
        solver = str(rng.choice(["HIGHS", "HIGHS-MILP"]))
        limit = float(rng.uniform(0, 1)) * truth.seconds * float(rng.choice([0.05, 0.4, 1.0]))
        solution = solve(problem, SolveOptions(solver=solver, time_limit=limit, workers=int(rng.choice([1, 2]))))
        by_status[solution.status.value] += 1
        found += [
            f"stopped, seed {seed}, instance {number}, {solver} after {limit:.4f} s: {text}"
            for text in stopped_faults(problem, solution, truth)
        ]
    return {"instances": count, **by_status, "faults": found}


def stopped_faults(problem: PipelineProblem, solution: Solution, truth: Solution) -> list[str]:
    """Faults of the answer of a solve that may have been stopped, given the optimum."""
    found = solution_faults(problem, solution)
    if (solution.status == INFEASIBLE) != (truth.status == INFEASIBLE) and solution.status != NO_SOLUTION:
        found.append(f"{solution.status}, though the full solve says {truth.status}")
    if truth.objective is None:
        return found
    slack = TOLERANCE * max(1.0, truth.objective)
    if solution.bound is not None and solution.bound > truth.objective + slack:
        found.append(f"bound {solution.bound} above the optimum {truth.objective}")
    if solution.objective is not None and solution.objective < truth.objective - slack:
        found.append(f"objective {solution.objective} below the optimum {truth.objective}")
    if solution.status == OPTIMAL and not _same(solution.objective, truth.objective):
        found.append(f"called optimal at {solution.objective}, the optimum is {truth.objective}")
    if solution.status in (FEASIBLE, NO_SOLUTION) and not solution.message:
        found.append(f"{solution.status} without a word why")
    return found


def solution_faults(problem: PipelineProblem, solution: Solution) -> list[str]:
    """Faults of an answer by itself: the checker's violations, a label that its figures belie."""
    found: list[str] = []
    if (solution.plan is None) == (solution.status in (OPTIMAL, FEASIBLE)):
        found.append(f"status {solution.status} with plan {solution.plan}")
    if solution.plan is not None and solution.objective is not None:
        found += check(problem, solution.plan, solution.objective)
        found += own_faults(problem, solution.plan, solution.objective)
        if solution.bound is None or solution.bound > solution.objective * (1 + TOLERANCE):
            found.append(f"bound {solution.bound} above the objective {solution.objective}")
        elif solution.status == OPTIMAL and solution.objective - solution.bound > TOLERANCE * 1.01 * solution.objective:
            found.append(f"called optimal with a gap of {solution.gap}")
    if solution.status == INFEASIBLE and not solution.message:
        found.append("infeasible without a word why")
    return found


def medium_problem(rng: np.random.Generator, most_stages: int = 8) -> PipelineProblem:
    """An instance like a user's, up to two seconds large: 4 to 8 stages, 14 to 28 layers, tight memory."""
    stages, interleaves = int(rng.integers(4, most_stages + 1)), int(rng.integers(1, 3))
    chunks = stages * interleaves
    layers = int(rng.integers(max(14, chunks), max(29, chunks + 8)))
    dense = int(rng.integers(0, 4))
    body = LayerKind(
        "moe", layers - dense, 1.0, round(float(rng.uniform(2000, 9000)), 1),
        {NONE: round(float(rng.uniform(400, 900)), 1), FULL: 30.0},
    )  # fmt: skip
    kinds: tuple[LayerKind, ...] = (body,)
    if dense:
        kinds = (LayerKind("dense", dense, round(float(rng.uniform(0.3, 0.6)), 3), 866.0, {NONE: 479.0, FULL: 30.0}),
                 body)  # fmt: skip
    most = max(kind.layer_mib for kind in kinds) * -(-layers // stages) + 9000.0
    margin = body.activation_mib[NONE] * (layers / stages) * stages * float(rng.uniform(0.3, 1.1))
    return PipelineProblem(
        stages, interleaves, stages * int(rng.integers(2, 5)), kinds,
        (3383.0, *[2382.0] * (stages - 2), 8675.0), (round(most + margin),) * stages,
        ScheduleSpec("1f1b" if interleaves == 1 else "interleaved", bool(rng.integers(2))),
        backward_ratio=round(float(rng.uniform(1.5, 2.5)), 3), head_forward=round(float(rng.uniform(0, 2)), 3),
    )  # fmt: skip


def _model_file_optima(problem: PipelineProblem, solution: Solution) -> dict[str, float | None]:
    """The optimum of the written model: HiGHS with presolve on and off and three seeds, and CBC."""
    import highspy

    optima: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_mps(problem, solution, Path(folder) / "model.mps")
        for seed, presolve in itertools.product(SEEDS, ("on", "off")):
            solver = highspy.Highs()
            for option, value in (("output_flag", False), ("presolve", presolve), ("random_seed", seed),
                                  ("threads", 1), ("mip_rel_gap", 1e-7)):  # fmt: skip
                solver.setOptionValue(option, value)
            solver.readModel(str(path))
            solver.run()
            optima[f"HiGHS, seed {seed}, presolve {presolve}"] = float(solver.getInfo().objective_function_value)
        optima["CBC"] = _by_cbc(path)
    return optima


def _by_cbc(path: Path) -> float | None:
    """The optimum of a model file by the program CBC, which reads it as it is.

    PuLP writes a file of its own for it: of one (seed 0, instance 7) CBC calls 389.10 optimal, where HiGHS finds 388.15
    in the same file, as CBC does in the file itself.
    """
    from taylor.pipeline_solver.milp.cbc import cbc_path

    program, found = cbc_path(), path.with_suffix(".txt")
    assert program is not None
    words = [program, str(path), "-ratio", "1e-7", "-solve", "-solution", str(found), "-quit"]
    subprocess.run(words, capture_output=True, check=True)
    first = found.read_text(encoding="utf-8").partition("\n")[0]
    stated = re.fullmatch(r"Optimal - objective value\s+([-+.\deE]+)\s*", first)
    return None if stated is None else float(stated[1])


def _optimum(solution: Solution) -> float | None:
    return solution.objective if solution.status == OPTIMAL else None if solution.status == INFEASIBLE else float("nan")


def _same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return abs(a - b) <= TOLERANCE * max(1.0, abs(b))


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    by = {name: chosen(results, name) for name in ("checked", "enumerated", "settings", "stopped")}
    wrong = {name: len(faults_of(part)) for name, part in by.items()}
    stops = total(by["stopped"], FEASIBLE) + total(by["stopped"], NO_SOLUTION)
    return [
        Figure(
            "solver: exact checker", "10,000 random instances, no violation",
            f"{total(by['checked'], 'instances'):,} instances ({total(by['checked'], 'infeasible'):,} proven "
            f"infeasible), {wrong['checked']} violations",
            not wrong["checked"],
            "up to 4 stages, VPP 3, 10 layers; every plan played in exact arithmetic, and again with orders, "
            "memory and times stated apart from the product (own_statement.py)",
        ),
        Figure(
            "solver: brute force", "2,000 instances, all equal",
            f"{total(by['enumerated'], 'instances'):,} instances, {total(by['enumerated'], 'plans'):,} plans tried, "
            f"{wrong['enumerated']} differences",
            not wrong["enumerated"],
            "branch-and-cut, compact MILP and CBC against every plan there is",
        ),
        Figure(
            "solver: settings", "presolve on/off, 3 seeds, 1 and 2 workers, HiGHS and CBC: same optimum within 1e-6",
            f"{total(by['settings'], 'solves'):,} solves of {total(by['settings'], 'instances'):,} instances, "
            f"{wrong['settings']} differences",
            not wrong["settings"],
            "an eighth of the instances with 4 or 5 stages and 14 to 28 layers; the written model file read by HiGHS "
            "and CBC too",
        ),
        Figure(
            "solver: stopped by a limit", "labelled so, optimum inside [bound, objective]",
            f"{total(by['stopped'], 'instances'):,} limits, {stops:,} stopped before the proof, "
            f"{wrong['stopped']} faults",
            not wrong["stopped"] and stops > 0,
            "time limits drawn between nothing and the full solve's time",
        ),
    ]  # fmt: skip


PART = Part(
    "solver",
    portions,
    figures,
    sources=("pipeline", "pipeline_solver", "benchmarks/reliability/solver.py"),
    nightly=0.01,
    table=Sized(0.3, minutes=5),
)
