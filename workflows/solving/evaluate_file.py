"""Evaluates the plan in a configuration file, and writes the same outputs as a solve."""

from __future__ import annotations

from dataclasses import replace

from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.interface import DryRunResult
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import SELECT
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import Solution
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.planned_outputs import refuse_outputs, store_result
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.solving.memory_check import check_plan
from taylor.workflows.statement.module_choices import own_plan
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.problem import plan_in_terms_of
from taylor.workflows.statement.schedules import require_schedule
from taylor.workflows.statement.stated_file import StatedFile


def evaluate_file(job: FileJob, outputs: Outputs = Outputs()) -> PlannedFile:  # noqa: B008 - frozen
    """Report the plan in a configuration as if it had been solved; the configuration is not written.

    Virtual stages and schedule that the job leaves to the tool are the file's.

    Raises
    ------
    InputError
        Bad configuration, memory profile or flag value; or the file's offset and recompute make no plan.
    OutsideProgramError
        MindSpore's dry-runs were requested and every one failed.
    """
    refuse_outputs(outputs)
    if job.is_searched:
        raise InputError(
            "is chosen for a plan that is solved", field="-schedule", value=job.schedule, cure="leave out -evaluate"
        )
    job = replace(job, vpp=job.given_vpp, schedule=job.given_schedule)
    file = StatedFile.read(job).as_it_recomputes()
    if file.config.plan is not None and file.config.plan.uses(SELECT):
        # The plan's choices must have costs, whether or not they are searched.
        file = replace(file, job=replace(job, search_select=True))
    file.refuse_early(outputs.exports)
    dryrun: DryRunResult | None = None
    with file.open_backend(outputs.work_folder) as backend:
        memory = file.obtain_memory(backend, outputs.folder)
        file = with_measured(file, memory, outputs.folder)
        problem = file.problem(memory)
        solution = evaluate_own(file.config, problem)
        # Where every dry-run of the memory failed and the estimate replaces them, one of the plan would fail too.
        measured = not job.dryrun or memory.source != MemorySource.ESTIMATE
        if job.check and backend is not None and measured and solution.plan is not None:
            dryrun = check_plan(file.running, solution.plan, backend, memory, file.modes)
    planned = PlannedFile(file.config, file.facts, memory, problem, solution, dryrun=dryrun, own=solution)
    return store_result(planned, {}, outputs)


def own_solution(file: StatedFile, memory: MemoryProfile) -> Solution | None:
    """Baseline under the file's virtual stages and schedule, to compare a solved plan with.

    Returns
    -------
    Solution or None
        None where the file has no plan, its schedule does not exist, or the memory profile does not cover it.
    """
    plan = own_plan(file.config.as_it_recomputes())
    if plan is None:
        return None
    own = file.as_in_the_file()
    if not file.is_covered_by(memory, own.running.strategy.vpp, own.running.schedule):
        return None
    try:
        require_schedule(own.running)
        problem = own.problem(own.memory_like(memory))
    except InputError:
        return None
    if any(plan.uses(mode) for mode in plan.recompute if mode not in (*problem.recompute_ratio, *problem.choices)):
        return None
    return evaluate(problem, plan_in_terms_of(problem, plan))


def evaluate_own(config: TrainingConfig, problem: PipelineProblem) -> Solution:
    """Plan in the configuration as a solution of its problem.

    Raises
    ------
    InputError
        When it has no plan, or one with other virtual stages or stages than the problem.
    """
    plan = own_plan(config.as_it_recomputes())
    if plan is None:
        raise InputError(
            "the file's offset and recompute do not make a plan",
            file=config.path,
            cure=_why_no_plan(config) or "solve it instead: leave out -evaluate",
        )
    if (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages):
        raise InputError(
            "the file's plan has another number of virtual stages than requested",
            field="-vpp",
            value=problem.interleaves,
            cure="evaluate the file without -vpp",
        )
    return evaluate(problem, plan_in_terms_of(problem, plan))


def _why_no_plan(config: TrainingConfig) -> str:
    """Reader's reason, where it is among the notes, else all of them."""
    reasons = [note for note in config.notes if "settles no plan" in note]
    return "; ".join(reasons or config.notes)
