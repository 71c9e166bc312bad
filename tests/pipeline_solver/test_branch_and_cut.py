"""The exact solver against brute force over every plan, published cases, and itself."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.heuristics.first_plans import FirstPlans
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.progress import Progress
from taylor.pipeline_solver.model.solution import FEASIBLE, INFEASIBLE, NO_SOLUTION, OPTIMAL, Termination
from taylor.pipeline_solver.tree.branch_and_cut import branch_and_cut
from tests.solver_cases import small_problem
from tests.solver_params import set_parameter

# ---- an independent enumerator ----------------------------------------------------------------


def tasks_by_stage(problem: PipelineProblem) -> list[list[tuple[int, int, int, int]]]:
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    return [[tuple(int(x) for x in row) for row in schedule.order[s]] for s in range(problem.stages)]


def model_order(problem: PipelineProblem) -> list[tuple[int, int]]:
    """(interleave, stage) of the chunks as the model runs through them."""
    rows = []
    for v in range(problem.interleaves):
        stages = range(problem.stages)
        if problem.schedule.name == "zbv" and v == 1:
            stages = reversed(stages)
        rows += [(v, s) for s in stages]
    return rows


def simulate(problem: PipelineProblem, tasks: list, forward: dict, extra: dict) -> float:
    """Run the tasks as soon as they can; time of a chunk by (v, s)."""
    chunks = model_order(problem)
    where = {chunk: k for k, chunk in enumerate(chunks)}
    has_weight = any(task[0] == 2 for row in tasks for task in row)
    share = problem.weight_gradient_share if has_weight else 0.0
    n = problem.schedule.seq_splits
    ended: dict = {}
    clock = [0.0] * problem.stages
    at = [0] * problem.stages
    while any(at[s] < len(tasks[s]) for s in range(problem.stages)):
        for s in range(problem.stages):
            while at[s] < len(tasks[s]):
                direction, v, i, q = tasks[s][at[s]]
                k = where[v, s]
                if direction == 0:
                    need = (0, *chunks[k - 1], i, q) if k else None
                    took = forward[v, s]
                elif direction == 1:
                    need = (1, *chunks[k + 1], i, q) if k + 1 < len(chunks) else (0, v, s, i, q)
                    took = problem.backward_ratio * (1 - share) * forward[v, s] + extra[v, s]
                else:
                    need = (1, v, s, i, q)
                    took = problem.backward_ratio * share * forward[v, s]
                if need is not None and need not in ended:
                    break
                ready = 0.0
                if need is not None:
                    ready = ended[need] + (problem.lag if need[2] != s else 0.0)
                clock[s] = max(clock[s], ready) + took / n
                ended[direction, v, s, i, q] = clock[s]
                at[s] += 1
    tail = problem.tail or (0.0,) * problem.stages
    return max(clock[s] + tail[s] for s in range(problem.stages))


def peak(problem: PipelineProblem, tasks: list, s: int, weight: dict, kept: dict) -> float:
    """Worst moment of a stage, walking its tasks."""
    frees = 2 if any(task[0] == 2 for task in tasks[s]) else 1
    base = problem.static_mib[s] + sum(weight[v, s] for v in range(problem.interleaves))
    held = worst = 0.0
    for direction, v, _, _ in tasks[s]:
        if direction == 0:
            held += kept[v, s] / problem.schedule.seq_splits
        elif direction == frees:
            held -= kept[v, s] / problem.schedule.seq_splits
        worst = max(worst, held)
    return base + worst


def compositions(total: int, parts: int, least: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        if total >= least:
            yield (total,)
        return
    for first in range(least, total - least * (parts - 1) + 1):
        for rest in compositions(total - first, parts - 1, least):
            yield (first, *rest)


def brute_force(problem: PipelineProblem) -> float:
    """Least step time over every plan; infinity when there is none."""
    chunks = model_order(problem)
    tasks = tasks_by_stage(problem)
    free = [kind for kind in problem.kinds if not kind.pinned_last]
    pinned = [kind for kind in problem.kinds if kind.pinned_last]
    layers = [kind for kind in free for _ in range(kind.count)]
    best = float("inf")
    for sizes in compositions(len(layers), len(chunks), problem.min_layers):
        if any(
            problem.fixed_layers.get(c, n) != n or problem.max_layers.get(c, n) < n
            for c, n in zip(chunks, sizes, strict=True)
        ):
            continue
        begin = np.concatenate([[0], np.cumsum(sizes)])
        forward, weight, choices = {}, {}, {}
        for k, chunk in enumerate(chunks):
            held = layers[begin[k] : begin[k + 1]]
            forward[chunk] = sum(kind.forward for kind in held)
            weight[chunk] = sum(kind.layer_mib for kind in held)
            always = 0.0
            if k == 0:
                forward[chunk] += problem.embedding_forward
            if k == len(chunks) - 1:
                forward[chunk] += problem.head_forward
                for kind in pinned:
                    forward[chunk] += kind.count * kind.forward
                    weight[chunk] += kind.count * kind.layer_mib
                    always += kind.count * kind.activation_mib[NONE]
            options = []
            for full in range(len(held) + 1 if FULL in problem.recompute_ratio else 1):
                for select in range(len(held) - full + 1 if SELECT in problem.recompute_ratio else 1):
                    given = problem.fixed_recompute
                    if given.get((FULL, *chunk), full) != full or given.get((SELECT, *chunk), select) != select:
                        continue
                    modes = [FULL] * full + [SELECT] * select + [NONE] * (len(held) - full - select)
                    pairs = list(zip(held, modes, strict=True))
                    options.append(
                        (
                            sum(problem.recompute_ratio[m] * kind.forward for kind, m in pairs if m != NONE),
                            always + sum(kind.activation_mib[m] for kind, m in pairs),
                        )
                    )
            choices[chunk] = options
        # Stages share no memory: filter each stage's choices before they are combined.
        per_stage = []
        for s in range(problem.stages):
            mine = [chunk for chunk in chunks if chunk[1] == s]
            fitting = []
            for picked in itertools.product(*(choices[chunk] for chunk in mine)):
                kept = {chunk: option[1] for chunk, option in zip(mine, picked, strict=True)}
                if peak(problem, tasks, s, weight, kept) <= problem.limit_mib[s] + 1e-6:
                    fitting.append({chunk: option[0] for chunk, option in zip(mine, picked, strict=True)})
            # Equal or longer recompute in every chunk than another choice: never faster.
            lean = [
                a
                for i, a in enumerate(fitting)
                if not any(
                    all(b[c] <= a[c] for c in mine) and (any(b[c] < a[c] for c in mine) or j < i)
                    for j, b in enumerate(fitting)
                    if j != i
                )
            ]
            per_stage.append(lean)
        for combination in itertools.product(*per_stage):
            extra = {chunk: value for part in combination for chunk, value in part.items()}
            best = min(best, simulate(problem, tasks, forward, extra))
    return best


def random_problem(seed: int) -> PipelineProblem:
    """A small problem of any schedule, kinds, modes, lags, bounds and tightness of memory."""
    rng = np.random.default_rng(seed)
    name = str(rng.choice(["1f1b", "gpipe", "interleaved", "interleaved", "megatron-interleaved", "seqpipe", "zbv"]))
    S = int(rng.integers(1, 5))
    V = 1 if name == "1f1b" else 2 if name == "zbv" else int(rng.integers(1, 3 if S > 2 else 4))
    m = S * int(rng.integers(1, 3)) if name == "megatron-interleaved" else int(rng.integers(1, 8))
    least = int(rng.integers(0, 2)) if S * V < 5 else 1
    extra_layers = int(rng.integers(0, 3 if S * V > 5 else 4))
    total = S * V + extra_layers
    kinds_count = int(rng.integers(1, 4))
    cuts = np.sort(rng.integers(0, total + 1, kinds_count - 1))
    counts = np.diff(np.concatenate([[0], cuts, [total]]))
    modes = [(), (FULL,), (FULL, SELECT), (SELECT,)][int(rng.integers(0, 4)) if S * V < 5 else int(rng.integers(0, 2))]
    kinds = []
    for j, count in enumerate(counts):
        none = float(rng.integers(5, 40))
        kinds.append(
            LayerKind(
                f"kind{j}",
                int(count),
                float(rng.integers(2, 12)) / 8,
                float(rng.integers(5, 30)),
                {NONE: none, SELECT: none * 0.6, FULL: none * 0.2},
            )
        )
    if rng.random() < 0.3:
        kinds.append(LayerKind("mtp", 1, 1.25, 10.0, {NONE: 20.0, SELECT: 9.0, FULL: 3.0}, pinned_last=True))
    chunks = [(v, s) for v in range(V) for s in range(S)]
    fixed, most, given = {}, {}, {}
    if rng.random() < 0.15:
        fixed[chunks[int(rng.integers(len(chunks)))]] = int(rng.integers(1, 3))
    if rng.random() < 0.15:
        most[chunks[int(rng.integers(len(chunks)))]] = int(rng.integers(1, 3))
    if modes and rng.random() < 0.15:
        given[(modes[0], *chunks[int(rng.integers(len(chunks)))])] = int(rng.integers(0, 2))
    limit = 60.0 + float(rng.integers(0, 60)) * (1 + V * total / S / 2) * 2
    return PipelineProblem(
        S,
        V,
        m,
        tuple(kinds),
        tuple(float(x) for x in rng.integers(0, 30, S)),
        (limit,) * S,
        ScheduleSpec(name, low_memory=bool(rng.integers(2)), seq_splits=2 if name == "seqpipe" else 1),
        backward_ratio=float(rng.choice([1.5, 2.0, 1.839])),
        recompute_ratio={mode: {FULL: 1.0, SELECT: 0.35}[mode] for mode in modes},
        head_forward=float(rng.choice([0.0, 1.5])),
        embedding_forward=float(rng.choice([0.0, 0.25])),
        lag=float(rng.choice([0.0, 0.0, 0.2])),
        tail=tuple(float(x) for x in rng.random(S)) if rng.random() < 0.3 else (),
        weight_gradient_share=float(rng.choice([0.5, 0.4])),
        min_layers=least,
        fixed_layers=fixed,
        max_layers=most,
        fixed_recompute=given,
    )


RANDOM_CASES = int(os.environ.get("TAYLOR_RANDOM_CASES", "60"))
"""More in a long run: TAYLOR_RANDOM_CASES=500."""


@pytest.mark.parametrize("seed", range(RANDOM_CASES))
def test_the_optimum_of_a_small_problem_is_that_of_brute_force(seed: int) -> None:
    problem = random_problem(seed)
    expected = brute_force(problem)
    solution = branch_and_cut(problem, SolveOptions(seed=seed))
    if np.isinf(expected):
        assert solution.status == INFEASIBLE and solution.plan is None
        return
    assert solution.status == OPTIMAL
    assert solution.objective == pytest.approx(expected, rel=1e-6)
    assert solution.bound <= expected * (1 + 1e-9) and solution.gap <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1000 + RANDOM_CASES // 2))
def test_pricing_and_narrowing_change_no_optimum(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The road for many columns, taken by small problems: few columns in the LP, listed under a first plan."""
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    set_parameter(monkeypatch, "tree.few_columns", 0)
    set_parameter(monkeypatch, "bounds.price_above", 3)
    set_parameter(monkeypatch, "tree.first_columns", 1)
    set_parameter(monkeypatch, "bounds.priced_a_round", 1)
    problem = random_problem(seed)
    expected = brute_force(problem)
    solution = branch_and_cut(problem, SolveOptions(seed=seed))
    assert (solution.status == INFEASIBLE) == np.isinf(expected)
    if solution.plan is not None:
        assert solution.status == OPTIMAL
        assert solution.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_many_stages_of_few_layers_are_closed_too() -> None:
    """Stage splits alone leave 0.2 % open here; the optimum is that of the compact MILP."""
    kinds = (LayerKind("dense", 126, 1.0, 3000.0, {NONE: 600.0, FULL: 50.0}),)
    problem = PipelineProblem(64, 1, 128, kinds, (3383.0, *[1000.0] * 62, 6000.0), (20000.0,) * 64, head_forward=0.7)
    solution = branch_and_cut(problem)
    assert solution.status == OPTIMAL
    assert solution.objective == pytest.approx(1457.1, abs=1e-6)


def test_configurations_beyond_listing_go_to_the_compact_milp(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("tree.few_columns", "tree.most_columns"):
        set_parameter(monkeypatch, limit, 5)
    solution = branch_and_cut(deepseek(1))
    assert solution.status == OPTIMAL and "branch" not in solution.solver
    assert solution.objective == pytest.approx(1132.662249, abs=1e-6)


@pytest.mark.parametrize("seed", [7, 21, 40])
def test_worker_processes_change_no_optimum(seed: int) -> None:
    problem = random_problem(seed).replace(limit_mib=(1e9,) * random_problem(seed).stages)
    alone, together = (branch_and_cut(problem, SolveOptions(workers=workers)) for workers in (1, 2))
    assert alone.status == together.status
    if alone.objective is not None:
        assert together.objective == pytest.approx(alone.objective, rel=1e-6)


def test_the_random_problems_are_of_both_kinds() -> None:
    found = {np.isinf(brute_force(random_problem(seed))) for seed in range(12)}
    assert found == {True, False}


# ---- known optima -----------------------------------------------------------------------------


def deepseek(interleaves: int, limit: float = 55296.0, low_memory: bool = True) -> PipelineProblem:
    """61 + 1 layers on 16 stages with the memory profile of a MindSpore fit."""
    kinds = (
        LayerKind("dense", 3, 0.397, 866, {NONE: 479, FULL: 30}),
        LayerKind("moe", 59, 1.0, 10691, {NONE: 765, FULL: 30}),
    )
    schedule = ScheduleSpec("1f1b") if interleaves == 1 else ScheduleSpec("interleaved", low_memory=low_memory)
    return PipelineProblem(
        16,
        interleaves,
        64,
        kinds,
        (3383.0, *[2382.0] * 14, 8675.0),
        (limit,) * 16,
        schedule,
        backward_ratio=1.839,
        recompute_ratio={FULL: 1.0},
        head_forward=1.5,
    )


@pytest.mark.parametrize(("interleaves", "optimum"), [(1, 1132.662249), (3, 1117.175747)])
def test_the_deepseek_case_has_its_known_optimum(interleaves: int, optimum: float) -> None:
    solution = branch_and_cut(deepseek(interleaves))
    assert solution.status == OPTIMAL
    assert solution.objective == pytest.approx(optimum, abs=1e-6)
    assert solution.gap <= 1e-6


def test_the_two_interleave_plan_is_found_at_once_and_its_bound_never_passes_the_optimum() -> None:
    solution = branch_and_cut(deepseek(2), SolveOptions(gap=0.09))
    assert solution.objective == pytest.approx(1068.763749, rel=2e-3)
    assert solution.bound <= 1068.763749 + 1e-6


@pytest.mark.parametrize("limit", [40000.0, 47000.0, 52000.0])
def test_a_limit_that_no_plan_meets_is_proven_infeasible_and_no_other(limit: float) -> None:
    from taylor.pipeline_solver.milp.least_memory import least_device_memory

    least = least_device_memory(deepseek(1))
    assert least is not None and least.short_by_mib == 0
    solution = branch_and_cut(deepseek(1, limit=limit))
    needed = least_device_memory(deepseek(1, limit=limit))
    assert needed is not None
    assert (solution.status == INFEASIBLE) == (needed.short_by_mib > 0)
    raised = limit + needed.short_by_mib
    assert branch_and_cut(deepseek(1, limit=raised + 1e-3)).status == OPTIMAL
    assert branch_and_cut(deepseek(1, limit=min(limit, raised - 1.0))).status in (OPTIMAL, INFEASIBLE)


def test_more_memory_never_makes_the_step_longer() -> None:
    times = [branch_and_cut(deepseek(1, limit=limit)).objective for limit in (53000.0, 55296.0, 60000.0, 80000.0)]
    assert times == sorted(times, reverse=True)


# ---- manners ----------------------------------------------------------------------------------


def test_every_cut_is_a_lower_bound_on_the_plan_and_one_attains_it() -> None:
    from taylor.pipeline_solver.timing.durations import chunk_durations

    problem = deepseek(2).replace(lag=0.3, tail=tuple(0.1 * s for s in range(16)))
    solution = branch_and_cut(problem, SolveOptions(gap=0.09))
    assert solution.plan is not None and solution.objective is not None
    durations = chunk_durations(problem, solution.plan)
    lengths = [np.dot(cut[:-1], durations) + cut[-1] for cut in solution.cuts]
    assert max(lengths) == pytest.approx(solution.objective, rel=1e-9)


def test_the_same_seed_and_workers_give_the_same_plan_and_tree() -> None:
    problem = deepseek(3)
    first, second = (branch_and_cut(problem, SolveOptions(workers=2, seed=5, gap=1.5e-2)) for _ in range(2))
    assert first.plan == second.plan and first.statistics == second.statistics and first.bound == second.bound


def test_a_warm_start_is_never_worsened() -> None:
    problem = deepseek(1)
    best = branch_and_cut(problem)
    again = branch_and_cut(problem, warm_start=best.plan)
    assert again.objective == pytest.approx(best.objective, rel=1e-9)


def test_a_time_limit_of_nothing_is_told_as_what_it_is() -> None:
    solution = branch_and_cut(deepseek(2), SolveOptions(time_limit=0.0))
    assert solution.status in (FEASIBLE, NO_SOLUTION)
    assert solution.termination is Termination.TIME_LIMIT and "time limit" in solution.message


@pytest.mark.usefixtures("without_enumeration")
@pytest.mark.parametrize("workers", [1, 2])
def test_an_interrupt_returns_the_best_plan_with_its_bound(workers: int) -> None:
    def press(progress: Progress) -> None:
        if "configurations left" in progress.note:  # the tree is being searched, with many nodes to come
            signal.raise_signal(signal.SIGINT)

    solution = branch_and_cut(deepseek(2), SolveOptions(workers=workers, gap=0.0), on_progress=press)
    assert solution.status == FEASIBLE
    assert isinstance(solution.plan, PipelinePlan)
    assert 0 < solution.bound <= 1068.763749 + 1e-6 <= solution.objective + 2e-6
    assert solution.termination is Termination.INTERRUPTED and "interrupted" in solution.message


def test_an_interrupt_in_the_last_moment_is_told_beside_the_proof() -> None:
    def press(progress: Progress) -> None:
        if progress.note == "done":
            signal.raise_signal(signal.SIGINT)

    solution = branch_and_cut(random_problem(3000), on_progress=press)
    assert solution.status == OPTIMAL and solution.termination is Termination.INTERRUPTED


def test_progress_tells_rising_bounds_and_falling_objectives() -> None:
    heard = []
    branch_and_cut(deepseek(3), SolveOptions(gap=1e-2), on_progress=heard.append)
    bounds = [entry.bound for entry in heard if entry.bound is not None]
    values = [entry.objective for entry in heard if entry.objective is not None]
    assert bounds == sorted(bounds) and values == sorted(values, reverse=True) and len(heard) > 2


def proves_what_brute_force_finds() -> None:
    """Of four problems the optimum, or that there is none."""
    for seed in range(3000, 3004):
        problem = random_problem(seed)
        expected = brute_force(problem)
        solution = branch_and_cut(problem)
        assert (solution.status == INFEASIBLE) == np.isinf(expected)
        if solution.plan is not None:
            assert solution.status == OPTIMAL and solution.objective == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("limit", ["tree.most_columns", "bounds.pricing_steps"])
def test_where_configurations_are_too_many_to_price_the_milp_finds_the_same_optimum(monkeypatch, caplog, limit) -> None:
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    set_parameter(monkeypatch, limit, 1)
    monkeypatch.setattr("taylor.base.console.log.propagate", True)
    proves_what_brute_force_finds()
    assert "the compact MILP takes over" in caplog.text


def test_hemmed_in_by_too_many_configurations_it_walks_on_and_the_milp_finds_the_same_optimum(
    monkeypatch, caplog
) -> None:
    walked = []
    set_parameter(monkeypatch, "tree.few_tuples", 0)
    monkeypatch.setattr("taylor.pipeline_solver.tree.targets.Targets.hemmed_in", True)
    monkeypatch.setattr(
        "taylor.pipeline_solver.tree.branch_and_cut._TreeRun._walk_on", lambda run, first, _: walked.append(first)
    )
    monkeypatch.setattr("taylor.base.console.log.propagate", True)
    proves_what_brute_force_finds()
    assert walked and "just above the bound: the compact MILP takes over" in caplog.text


def test_with_many_interleaves_a_plan_comes_before_the_configurations_are_listed():
    problem = small_problem(
        interleaves=10, kinds=(LayerKind("body", 24, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),), micro_batches=4,
        limit_mib=(400.0, 400.0), schedule=ScheduleSpec("interleaved"),
    )  # fmt: skip
    told = []
    solution = branch_and_cut(problem, on_progress=told.append)
    assert told[0].note == "first plan" and told[0].objective is not None
    assert solution.status == OPTIMAL and solution.objective <= told[0].objective


def test_a_plan_that_is_known_is_told_before_the_configurations_are_listed():
    problem = small_problem()
    known = branch_and_cut(problem)
    told = []
    again = branch_and_cut(problem, warm_start=known.plan, on_progress=told.append)
    assert told[0].note == "listing stage configurations" and told[0].objective == known.objective
    assert again.status == OPTIMAL and again.objective == known.objective


def test_time_that_ends_in_the_search_for_a_plan_that_fits_ends_the_solve_as_its_limit(monkeypatch):
    def late(*_arguments):
        raise TimeoutError("the search for the least memory was not finished")

    monkeypatch.setattr("taylor.pipeline_solver.tree.branch_and_cut._TreeRun._begin", late)
    found = branch_and_cut(small_problem(), SolveOptions(time_limit=1.0))
    assert found.plan is None and found.termination is Termination.TIME_LIMIT


@pytest.mark.parametrize(("far", "walks"), [(0.5, False), (0.0, True)])
@pytest.mark.parametrize("listed", [True, False])
def test_a_long_walk_follows_where_the_bound_is_far_from_the_plan(monkeypatch, far, walks, listed) -> None:
    """Whether all configurations are listed or priced; elsewhere what short walks have met thrice is enough."""
    set_parameter(monkeypatch, "heuristics.far_gap", far)
    set_parameter(monkeypatch, "heuristics.few_to_search", 0)
    if not listed:
        set_parameter(monkeypatch, "tree.few_tuples", 0)
    monkeypatch.setattr(FirstPlans, "start_again", lambda *_: True)
    long = []
    monkeypatch.setattr(FirstPlans, "go_on", lambda *_: long.append(1))
    branch_and_cut(deepseek(2), SolveOptions(gap=1e-3))
    assert bool(long) == walks


def test_where_few_configurations_are_left_the_tree_does_not_wait_for_a_walk(monkeypatch) -> None:
    set_parameter(monkeypatch, "heuristics.far_gap", 0.0)
    walked = []
    monkeypatch.setattr(
        "taylor.pipeline_solver.tree.branch_and_cut._TreeRun._walk_at_the_root", lambda *_: walked.append(1)
    )
    found = branch_and_cut(deepseek(2), SolveOptions(gap=1e-3))
    assert found.status == OPTIMAL and not walked
