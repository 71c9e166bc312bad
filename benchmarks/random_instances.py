"""Stacks in which kinds of layers alternate, by the thousand: the solver against the enumeration of every plan.

    python -m benchmarks.random_instances [--instances 2000] [--processes 2] [--fresh]
                                          [--choices | --entries | --depths | --cadence | --lending | --pairs |
                                           --towers | --spread | --placed] [--plans 7]

Each instance is a small pipeline: two or three kinds in any order, up to five virtual stages, chunks that may stay
empty, memory that binds or does not, recompute to choose; three of ten have stages of unlike speed and memory. With
``--choices`` a layer has up to five modes and choices, which add to forward, backward or weight gradient and leave
activations or states on the host, whose memory is limited in two of three; half of them have any schedule, and in a
quarter one choice must hold for every chunk. With ``--entries`` MTP layers, and at times a head, lie on one of several
chunks, which may hold nothing else; four of ten have transfers that differ by boundary. With ``--depths`` each of up to
four MTP layers is placed on its own, and a stage with several may hold part of their memory once. With ``--cadence``
layers lie on the chunk of the layer before them, as where every n-th one chooses tokens. With ``--lending`` some
choices keep activations on the device of another stage, which has that much less. With ``--pairs`` forwards and
backwards run as one pass (DualPipeV, or 1F1B with VPP), and a layer that has none of the other pass beside it takes
longer. With ``--towers`` an encoder lies on the first chunk, whose backward has a ratio of its own, and with
``--spread`` on up to three of the first chunks. With
``--placed`` chunks lie on any stages, as many on each, in any order of tasks that can run. The optimum is compared with
the best of all plans, to 1e-9. Of every fifth the model file is solved by HiGHS
and by CBC, from its cuts alone where the file says that they suffice. ``--plans`` of each (7), the two best and some
drawn at random, go through the checker with the time and the memory that the solver's own evaluation gives. Portions
are kept in ``output/random_instances``: a killed campaign goes on where it was, other code starts again. The exit code
is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.brute_force import (
    BruteForce,
    enumerate_optimum,
    random_plan,
    random_problem,
    under_one_choice,
    with_cadence,
    with_choices,
    with_depths,
    with_entries,
    with_lenders,
    with_pairs,
    with_spread_tower,
    with_tower,
    with_unlike_lags,
    with_unlike_ratios,
    with_unlike_stages,
)
from benchmarks.reliability.campaign import (
    Figure,
    Part,
    Portion,
    Result,
    add_run_options,
    faults_of,
    run_alone,
    split,
    total,
)
from taylor.pipeline.dependencies import dependencies
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import SEARCHED_FREE, Schedule, ScheduleSpec
from taylor.pipeline.words import word_of
from taylor.pipeline_solver.check.checker import check, exact_host_memory, exact_lent_memory, exact_peak_memory
from taylor.pipeline_solver.milp.model_files import CUTS_SUFFICE, write_mps
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, OPTIMAL, Solution
from taylor.pipeline_solver.solving.solve import SolverDisagreement, solve
from taylor.pipeline_solver.timing.evaluate import host_memory_mib, lent_memory_mib, peak_memory_mib, step_time

INSTANCES = 2000
OF_A_PORTION = 20
MOST_PLANS = 60_000
PLANS_CHECKED = 7
EVERY_MODEL_FILE = 5
MOST_CHOICES = 5
MOST_RUNS_OF_MANY = 6
"""Runs of layers of an instance with cadence on more than two virtual stages."""
SAME = 1e-9
"""Relative difference at which two step times count as the same."""
SAME_BY_A_READER = 1e-6
"""The same for a MILP solver that reads the model file, whose tolerances are its own."""

FOLDER = Path(__file__).resolve().parents[1] / "output" / "random_instances"


def alternating_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance whose layers are of two or three kinds in any order; a run is a kind of its own."""
    stages = int(rng.integers(1, 4))
    interleaves = int(rng.integers(1, 6)) if stages < 3 else int(rng.integers(1, 4))
    chunks = stages * interleaves
    may_be_empty = bool(rng.random() < 0.3)
    layers = int(rng.integers(max(2, chunks // 2 if may_be_empty else chunks), max(chunks, 9) + 2))
    modes = [[FULL], [FULL, SELECT], [SELECT], []][int(rng.choice(4, p=[0.6, 0.15, 0.1, 0.15]))]
    alike = [_kind(rng, str(index), 1, modes) for index in range(int(rng.integers(2, 4)))]
    line = rng.integers(0, len(alike), layers).tolist()
    runs = [(of, len(list(group))) for of, group in itertools.groupby(line)]
    kinds = tuple(
        LayerKind(f"run{k}", n, alike[of].forward, alike[of].layer_mib, alike[of].activation_mib)
        for k, (of, n) in enumerate(runs)
    )
    weight = sum(kind.count * (kind.layer_mib + 0.6 * stages * kind.activation_mib[NONE]) for kind in kinds) / stages
    margin = float(weight * (rng.uniform(0.75, 1.3) if rng.random() < 0.7 else 4.0))
    name = "1f1b" if interleaves == 1 else str(rng.choice(["interleaved", "megatron-interleaved"], p=[0.8, 0.2]))
    micro_batches = int(rng.integers(1, 4)) * stages if name == "megatron-interleaved" else int(rng.integers(1, 9))
    problem = PipelineProblem(
        stages,
        interleaves,
        micro_batches,
        kinds,
        tuple(np.round(rng.uniform(0, 40, stages), 1).tolist()),
        (round(margin + 40, 1),) * stages,
        ScheduleSpec(name, bool(rng.integers(2))),
        backward_ratio=round(float(rng.uniform(1, 3)), 3),
        recompute_ratio={mode: round(float(rng.uniform(0.1, 1.2)), 3) for mode in modes},
        head_forward=round(float(rng.uniform(0, 2)), 3),
        embedding_forward=round(float(rng.uniform(0, 0.5)), 3) if rng.random() < 0.3 else 0.0,
        lag=round(float(rng.uniform(0, 0.4)), 3) if rng.random() < 0.4 else 0.0,
        min_layers=0 if may_be_empty else 1,
        max_layers={(int(rng.integers(interleaves)), int(rng.integers(stages))): 2} if rng.random() < 0.15 else {},
    )
    return with_unlike_stages(problem, rng) if rng.random() < 0.3 else problem


def choice_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with up to five modes and choices a layer, a third of them on stages unlike each other."""
    problem = alternating_problem(rng) if rng.random() < 0.5 else random_problem(rng)
    if not problem.slowness and rng.random() < 0.2:
        problem = with_unlike_stages(problem, rng)
    problem = with_choices(problem, rng, MOST_CHOICES)
    if problem.slowness and rng.random() < 0.5:
        problem = with_unlike_ratios(problem, rng)
    return under_one_choice(problem, rng) if rng.random() < 0.25 else problem


def entry_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with kinds that lie together on one of several chunks, of any schedule or with many kinds."""
    problem = with_entries(alternating_problem(rng) if rng.random() < 0.5 else random_problem(rng), rng)
    return with_unlike_lags(problem, rng) if rng.random() < 0.4 else problem


def depth_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with MTP layers that are placed one by one."""
    problem = with_depths(alternating_problem(rng) if rng.random() < 0.5 else random_problem(rng), rng)
    return with_unlike_lags(problem, rng) if rng.random() < 0.4 else problem


def cadence_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with layers that lie on the chunk of the layer before them, some with entries."""
    while True:
        problem = with_cadence(alternating_problem(rng) if rng.random() < 0.8 else random_problem(rng), rng)
        groups = int((problem.border_strays == 0).sum()) - 1
        few = len(problem.kinds) <= MOST_RUNS_OF_MANY or problem.interleaves <= 2  # others are solved in minutes
        if few and groups >= problem.stages * problem.interleaves * min(problem.min_layers, 1):
            break
    if rng.random() < 0.3:
        problem = under_one_choice(problem, rng) if problem.searched_modes else problem
    return with_entries(problem, rng) if rng.random() < 0.15 else problem


def lending_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with choices on stages of which some keep activations on others."""
    while True:
        problem = choice_problem(rng)
        if problem.stages > 1:
            break
    return with_lenders(problem, rng)


def paired_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance whose forwards and backwards run as one pass, DualPipeV or interleaved 1F1B."""
    while True:
        problem = random_problem(rng)
        if problem.stages > 1 and problem.interleaves > 1 and problem.schedule.seq_splits == 1:
            break
    problem = with_pairs(problem.replace(schedule=ScheduleSpec("interleaved")), rng)
    return with_unlike_stages(problem, rng) if rng.random() < 0.2 else problem


def tower_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with an encoder on its first chunk, of one of the other kinds of instances."""
    makers = (random_problem, alternating_problem, choice_problem, entry_problem, cadence_problem, paired_problem)
    return with_tower(makers[int(rng.integers(len(makers)))](rng), rng)


def spread_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance with an encoder on several of its first chunks, of one of the other kinds of instances."""
    makers = (random_problem, alternating_problem, choice_problem, entry_problem, cadence_problem, paired_problem)
    while True:
        problem = makers[int(rng.integers(len(makers)))](rng)
        if problem.stages * problem.interleaves > 1:
            return with_spread_tower(problem, rng)


def placed_problem(rng: np.random.Generator) -> PipelineProblem:
    """A small instance whose chunks lie on any stages, as many on each, in any order of tasks that can run."""
    while True:
        problem = alternating_problem(rng) if rng.random() < 0.7 else random_problem(rng)
        if problem.stages > 1 and problem.interleaves > 1 and problem.schedule.seq_splits == 1:
            break
    S, V, m = problem.stages, problem.interleaves, problem.micro_batches
    stage_of = rng.permutation(np.repeat(np.arange(S), V)).tolist()
    one_by_one = build_schedule(ScheduleSpec(SEARCHED_FREE, stage_of=tuple(stage_of)), S, V, m)
    words = one_by_one.spec.words if rng.random() < 0.2 else any_words(one_by_one, rng)
    limit = tuple(mib * 1.5 for mib in problem.limit_mib)
    return problem.replace(schedule=replace(one_by_one.spec, words=words), limit_mib=limit)


def any_words(schedule: Schedule, rng: np.random.Generator) -> tuple[str, ...]:
    """An order of the same tasks: time and again any task whose input is there is the next one on its stage."""
    needed, length = dependencies(schedule).reshape(-1).tolist(), schedule.order.shape[1]
    blocks = schedule.order.reshape(-1, 4).tolist()
    done = [False] * len(needed)
    rows: list[list[list[int]]] = [[] for _ in range(schedule.stages)]
    turn: dict[tuple[int, int, int], int] = {}  # of each block of tasks the next micro-batch
    for _ in needed:
        waiting = [k for k, is_done in enumerate(done) if not is_done and (needed[k] < 0 or done[needed[k]])]
        of = {k: (k // length, blocks[k][0], blocks[k][1]) for k in waiting}
        k = int(rng.choice([k for k in waiting if blocks[k][2] == turn.get(of[k], 0)]))
        done[k] = True
        turn[of[k]] = blocks[k][2] + 1
        rows[k // length].append(blocks[k])
    return tuple(map(word_of, rows))


DRAWN = {
    "stacks": alternating_problem,
    "choices": choice_problem,
    "entries": entry_problem,
    "depths": depth_problem,
    "cadence": cadence_problem,
    "lending": lending_problem,
    "pairs": paired_problem,
    "towers": tower_problem,
    "spread": spread_problem,
    "placed": placed_problem,
}
"""Options with which a campaign draws its instances."""
STREAMS: dict[str, list[int]] = {
    "stacks": [],
    "choices": [2],
    "entries": [3],
    "pairs": [4],
    "depths": [5],
    "cadence": [6],
    "lending": [7],
    "towers": [8],
    "spread": [10],
    "placed": [9],
}
HELP = {
    "choices": "up to five choices a layer, with limits of the host",
    "entries": "MTP layers and heads on one of several chunks, transfers unlike by boundary",
    "depths": "MTP layers that are placed one by one, which share memory on a stage",
    "cadence": "layers that lie on the chunk of the layer before them, as every n-th layer's choice of tokens asks",
    "lending": "choices that keep activations on the device of another stage",
    "pairs": "forwards and backwards that run as one pass, in which layers hide each other's communication",
    "towers": "an encoder on the first chunk, beside any of the others but lending",
    "spread": "an encoder on several of the first chunks, beside any of the others but lending",
    "placed": "chunks on any stages, in any order of tasks",
}


def instance(seed: int, number: int, drawn: str = "stacks") -> tuple[PipelineProblem, BruteForce]:
    """The instance of a number, the same on every machine, with its optimum: the first of few enough plans."""
    rng = np.random.default_rng([seed, number, *STREAMS[drawn]])
    # For each of many choices of places.
    most = MOST_PLANS // 10 if drawn in ("depths", "cadence", "towers", "spread") else MOST_PLANS
    while True:
        problem = DRAWN[drawn](rng)
        splits = least_plans(problem)
        found = enumerate_optimum(problem, most) if splits <= most else None
        if found is not None:
            return problem, found


def least_plans(problem: PipelineProblem) -> float:
    """A count of plans that an instance to be enumerated must not exceed: its splits, with choices of even chunks."""
    chunks, modes = problem.stages * problem.interleaves, len(problem.searched_modes)
    splits = math.comb(problem.layers + chunks - 1, problem.layers)
    if not problem.choices or problem.uniform_recompute:
        return splits
    return splits * math.comb(-(-problem.layers // chunks) + modes, modes) ** min(2.0, chunks / 2)


def portion(seed: int, first: int, count: int, drawn: str = "stacks", each: int = PLANS_CHECKED) -> Result:
    """Some instances, one after the other, with `each` plans of every one through the checker."""
    faults: list[str] = []
    plans = checked = files = infeasible = 0
    for number in range(first, first + count):
        problem, truth = instance(seed, number, drawn)
        plans, infeasible = plans + truth.plans, infeasible + (truth.plan is None)
        try:
            solution = solve(problem, SolveOptions(gap=0.0))
        except SolverDisagreement as disagreement:
            faults.append(f"instance {number}: {disagreement}")
            continue
        found = optimum_faults(truth, solution)
        if truth.plan is not None and not found and number % EVERY_MODEL_FILE == 0:
            files += 1
            found += model_file_faults(problem, solution, truth.objective)
        if truth.plan is not None:
            rng = np.random.default_rng([seed, number, 1])
            others = [random_plan(problem, rng) for _ in range(each - 2)]
            some = [plan for plan in (solution.plan, truth.plan, *others) if plan is not None]
            checked += len(some)
            for plan in some:
                found += [f"checker: {fault}" for fault in check(problem, plan, step_time(problem, plan))]
                device = zip(peak_memory_mib(problem, plan), exact_peak_memory(problem, plan), strict=True)
                host = zip(host_memory_mib(problem, plan), exact_host_memory(problem, plan), strict=True)
                lent = zip(lent_memory_mib(problem, plan), exact_lent_memory(problem, plan), strict=True)
                if any(abs(mib - float(exact)) > 1e-6 for mib, exact in (*device, *host, *lent)):
                    found.append("the evaluation's memory is not the checker's")
        faults += [f"instance {number}: {fault}" for fault in found]
    return {"instances": count, "plans": plans, "checked": checked, "files": files, "infeasible": infeasible,
            "faults": faults}  # fmt: skip


def optimum_faults(truth: BruteForce, solution: Solution) -> list[str]:
    """Deviations of a solution from the best of all plans."""
    if truth.plan is None:
        return [] if solution.status == INFEASIBLE else [f"{solution.status}, though no plan exists"]
    if solution.objective is None:
        return [f"{solution.status}, though a plan takes {truth.objective}"]
    off = abs(solution.objective - truth.objective) / max(1.0, truth.objective)
    found = [] if off <= SAME else [f"{solution.objective!r} instead of {truth.objective!r} ({solution.status})"]
    bound = solution.bound
    if bound is not None and bound > truth.objective * (1 + SAME_BY_A_READER):
        found.append(f"the bound {bound!r} is above the optimum {truth.objective!r}")
    if solution.status != OPTIMAL and (solution.gap is None or solution.gap > SAME_BY_A_READER):
        found.append(f"not proven: {solution.status}, gap {solution.gap}")
    return found


def model_file_faults(problem: PipelineProblem, solution: Solution, optimum: float) -> list[str]:
    """Deviations of HiGHS or CBC, reading the model file, from the optimum."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_mps(problem, solution, Path(folder) / "model.mps")
        text = path.read_text(encoding="utf-8")
        if CUTS_SUFFICE in text:
            path.write_text("\n".join(line for line in text.splitlines() if "proven_bound" not in line) + "\n")
        values = values_by_readers(path, "step_time")
    return [
        f"the model file's optimum under {name} is {value!r}, not {optimum!r}"
        for name, value in values.items()
        if abs(value - optimum) > SAME_BY_A_READER * max(1.0, optimum)
    ]


def values_by_readers(path: Path, objective: str) -> dict[str, float]:
    """Optimum of a model file under HiGHS, and the value of its objective's variable under CBC."""
    import highspy
    import pulp

    from taylor.pipeline_solver.milp.cbc import cbc_path

    solver = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 1e-9)):
        solver.setOptionValue(option, value)
    solver.readModel(str(path))
    solver.run()
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        # HiGHS's presolve (1.15.1) calls the file of instance 1765 of seed 0 infeasible, which has a plan.
        solver.clearSolver()
        solver.setOptionValue("presolve", "off")
        solver.run()
    variables, model = pulp.LpProblem.fromMPS(str(path))
    model.solve(pulp.COIN_CMD(path=cbc_path(), msg=False, gapRel=1e-9))
    return {"HiGHS": solver.getInfo().objective_function_value, "CBC": variables[objective].value() or 0.0}


def figures(results: Mapping[str, Result], name: str = "random instances") -> Sequence[Figure]:
    """The campaign in one row."""
    every = list(results.values())
    wrong = faults_of(every)
    measured = (
        f"{total(every, 'instances')} instances ({total(every, 'infeasible')} without a plan), {total(every, 'plans')} "
        f"plans tried, {total(every, 'files')} model files under HiGHS and CBC, {total(every, 'checked')} plans "
        f"through the checker: {len(wrong)} differences"
    )
    return [Figure(name, "equal to brute force to 1e-9", measured, not wrong, "; ".join(wrong))]


def campaign(instances: int = INSTANCES, seed: int = 0, drawn: str = "stacks", each: int = PLANS_CHECKED) -> Part:
    """The campaign in portions."""
    stated: dict[str, str | int] = {} if drawn == "stacks" else {"drawn": drawn}
    stated |= {} if each == PLANS_CHECKED else {"each": each}
    firsts = list(itertools.accumulate(split(instances, -(-instances // OF_A_PORTION)), initial=0))
    portions = [
        Portion(
            f"{seed}-{first:05d}",
            portion,
            {"seed": seed, "first": first, "count": after - first, **stated},
        )
        for first, after in itertools.pairwise(firsts)
    ]
    sources = ("pipeline", "pipeline_solver", "benchmarks/brute_force.py", "benchmarks/random_instances.py")
    rows = figures if drawn == "stacks" else partial(figures, name=f"random instances with {drawn}")
    return Part("instances" if drawn == "stacks" else drawn, lambda _: portions, rows, at_once=64, sources=sources)


def _kind(rng: np.random.Generator, name: str, count: int, modes: list[str]) -> LayerKind:
    kept = round(float(rng.uniform(5, 40)), 1)
    spared = {mode: kept if rng.random() < 0.1 else round(kept * float(rng.uniform(0.05, 0.8)), 1) for mode in modes}
    times, mib = round(float(rng.uniform(0.3, 1.2)), 3), round(float(rng.uniform(5, 80)), 1)
    return LayerKind(name, count, times, mib, {NONE: kept, **spared})


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing of the campaign, name every difference and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_run_options(parser, INSTANCES, FOLDER)
    what = parser.add_mutually_exclusive_group()
    for name, words in HELP.items():
        what.add_argument(f"--{name}", dest="drawn", action="store_const", const=name, help=words)
    parser.add_argument("--plans", type=int, default=PLANS_CHECKED, help="plans of each that go through the checker")
    chosen = parser.parse_args(arguments)
    return run_alone(campaign(chosen.instances, chosen.seed, chosen.drawn or "stacks", max(2, chosen.plans)), chosen)


if __name__ == "__main__":
    sys.exit(main())
