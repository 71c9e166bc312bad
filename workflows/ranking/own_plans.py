"""Plans in the candidates' files, evaluated like solved ones: the baselines of a ranking."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

from taylor.base.console import log
from taylor.base.errors import TaylorError
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import FEASIBLE, Solution
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.rank_table import RankEntry, solved_row
from taylor.workflows.statement.module_choices import own_plan, with_module_choices
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.schedules import require_schedule
from taylor.workflows.statement.towers import with_tower


def problem_of(candidate: CandidateFile) -> PipelineProblem:
    """Pipeline problem of a candidate.

    Raises
    ------
    TaylorError
        When its file cannot be read, its job cannot start, or its problem cannot be stated.
    """
    if candidate.failure or candidate.config is None or candidate.memory is None or candidate.ratios is None:
        raise TaylorError(candidate.failure or "no memory profile or time ratios")
    require_schedule(candidate.config)
    problem = build_problem(candidate.config, candidate.memory, candidate.ratios)
    if candidate.device is not None:
        problem = with_module_choices(problem, candidate.config, candidate.device.spec, candidate.modules)
        problem = with_tower(problem, candidate.config, candidate.device.spec, candidate.memory.source)
    return candidate.seen.on(problem, candidate.config, candidate.memory.source)


def own_solution(candidate: CandidateFile, problem: PipelineProblem) -> Solution | None:
    """Plan in the candidate's file, under the memory and the times that it is solved with.

    Returns
    -------
    Solution or None
        None where the file has none, or one that the problem does not cover.
    """
    plan = None if candidate.config is None else own_plan(candidate.config)
    if plan is None or (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages):
        return None
    if any(plan.uses(mode) for mode in plan.recompute if mode not in (*problem.recompute_ratio, *problem.choices)):
        return None
    return evaluate(problem, plan_in_terms_of(problem, plan))


def runs_on(config: TrainingConfig, ranks: int | None) -> bool:
    """Return whether the plan in the file runs on the candidates' number of ranks; logs where it does not."""
    own = config.strategy.world_size
    if ranks in (None, own) or (config.open_ranks is not None and ranks % config.open_ranks.unit == 0):
        return True
    log.info("%s: the plan in the file is for %d ranks, so that it is not compared", config.path, own)
    return False


def given_entries(own: CandidateFile | Literal[False]) -> list[RankEntry]:
    """Row of the configuration that a ranking comes from; none, with the reason in a line, where it has no plan."""
    if own is False:
        return []
    try:
        problem = problem_of(own)
    except TaylorError as error:
        log.warning("the plan in the file is not compared: %s", error)
        return []
    solution = own_solution(own, problem)
    if solution is None:
        log.info("%s: no plan of its own to compare with", own.path)
        return []
    return [RankEntry(own, solved_row(problem, solution), own=True)]


def best_entries(
    candidates: Sequence[CandidateFile], problems: Mapping[int, PipelineProblem], found: Mapping[int, Solution]
) -> list[RankEntry]:
    """Best plan in the files of each job: the fastest that fits, else the fastest of all.

    Parameters
    ----------
    problems, found : mapping of int
        By the candidate's number: its problem, and the plan in its file where there is one.
    """
    best: dict[Hashable, tuple[bool, float, int]] = {}
    for number, solution in found.items():
        unit = problems[number].unit_ms
        if solution.objective is None or unit is None:
            continue
        place = (solution.status != FEASIBLE, solution.objective * unit, number)
        job = candidates[number].job
        best[job] = min(place, best.get(job, place))
    return [
        RankEntry(candidates[number], solved_row(problems[number], found[number]), own=True)
        for _, _, number in best.values()
    ]
