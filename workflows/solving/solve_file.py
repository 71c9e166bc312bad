"""Solves one configuration file: obtains its memory, states its problem, solves, checks, and writes every output."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from functools import partial

from taylor.base.budget import FINISH_SECONDS, TimeBudget
from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InputError, InterruptedSolve, NoSolutionError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.interface import DryRunBackend
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import AUTO, ScheduleSpec
from taylor.pipeline_solver.milp.least_memory import most_frugal_plan
from taylor.pipeline_solver.milp.model_files import write_model
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress, Progress
from taylor.pipeline_solver.model.solution import INFEASIBLE, NO_SOLUTION, Solution, Termination
from taylor.pipeline_solver.model.stopping import OutOfTime
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_OBJECTIVE
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from taylor.workflows.running.kept_solves import SolveStore, solve_or_find
from taylor.workflows.showing.fit import Fit, doubt_of_no
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.showing.planned_outputs import refuse_outputs, store_json, store_result
from taylor.workflows.showing.verdict import step_text
from taylor.workflows.solving.alternatives import choices, solve_alternatives
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.solving.host_optimizer import on_host, solve_on_device_and_host
from taylor.workflows.solving.interrupted import keep_plan_so_far, keep_unchecked_plan
from taylor.workflows.solving.memory_check import CheckStopped, solve_checked
from taylor.workflows.solving.searched_order import is_searched, refuse_with_searched, solve_searched
from taylor.workflows.solving.stage_orders import solve_orders
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.schedules import require_writable
from taylor.workflows.statement.stated_file import StatedFile, asked_schedule

EQUAL_STEPS = 2e-6
"""Relative difference below which two proven step times are equal: twice the gap of a proof."""


def solve_file(
    job: FileJob,
    how: SolveOptions = DEFAULT_OPTIONS,
    outputs: Outputs = Outputs(),  # noqa: B008 - frozen
    on_progress: OnProgress | None = None,
    budget: TimeBudget | None = None,
) -> PlannedFile:
    """Solve one configuration file and write everything that was requested.

    The solve and its result are saved first; the model files take the remaining time.

    Parameters
    ----------
    budget : TimeBudget, optional
        Time of the whole command; where it is omitted, the time limit of `how` counts from here.

    Raises
    ------
    InputError
        Bad configuration, memory profile or flag value.
    InfeasibleError, NoSolutionError
        No plan exists, or none was found within the limit; nothing is written.
    OutsideProgramError
        MindSpore's dry-runs were requested and every one failed; or those that check the plan, which is then saved
        beside the results.
    InterruptedSolve
        Ctrl-C ended the solve or its check: the configuration is unchanged, and the plan so far is saved beside the
        results.
    """
    budget = budget or TimeBudget.of(how.time_limit)
    refuse_outputs(outputs)
    file = StatedFile.read(job)
    job = file.job
    _refuse_choices_of_stages(job)
    refuse_with_searched(job)
    history: list[tuple[float, float | None, float | None]] = []

    def watch(progress: Progress) -> None:
        history.append((progress.seconds, progress.objective, progress.bound))
        if on_progress is not None:
            on_progress(replace(progress, unit_ms=file.ratios.ratios.unit_ms))

    if job.offload_optimizer:
        on_host(file)  # refused before anything is measured
    if not job.has_choices:
        file.refuse_early(outputs.exports)
        if outputs.write:
            require_writable(file.config, file.running.schedule)
    with file.open_backend(outputs.folder) as backend:
        memory = file.obtain_memory(backend, outputs.folder)
        measured = not job.dryrun or memory.source != MemorySource.ESTIMATE
        if (
            job.check
            and backend is not None
            and measured
            and file.stages is None
            and not is_searched(job)
            and not job.offload_optimizer
        ):
            try:
                planned = _solve_checked(file, memory, backend, how, outputs, watch, budget)
            except CheckStopped as stop:
                so_far = PlannedFile(file.config, file.facts, memory, stop.problem, stop.solution)
                raise keep_unchecked_plan(so_far, outputs, stop) from None
        else:
            within = how.replace(time_limit=budget.left)
            try:
                planned = solve_stated(file, memory, within, watch, SolveStore(outputs.folder))
            except (InfeasibleError, NoSolutionError) as error:
                without = _without_plan(file, memory, error, budget)
                store_json(without, {}, outputs)
                if isinstance(error, InfeasibleError) and without.fit.fit is Fit.UNKNOWN:
                    raise InfeasibleError(f"{error}{doubt_of_no(file.config.unmodelled)}") from error
                raise
            if planned.solution.termination is Termination.INTERRUPTED:
                raise keep_plan_so_far(planned, outputs)
    if job.made_for_model:
        planned = replace(planned, own=None, compared=False)
    _tell_restriction(file, planned.problem, planned.solution)
    store_json(planned, {}, outputs)
    files = _write_model(planned, outputs, budget.later(FINISH_SECONDS))
    if outputs.write:
        files["config"] = str(outputs.write_to or planned.config.path)
    done = store_result(planned, files, outputs, beside=planned.own_plan(), history=history, budget=budget)
    if outputs.write:
        # Last: a run killed before this finds the file with its old plan when it is started again.
        stages = planned.facts.stages
        rows = planned.config.stage_devices if stages is None else stages.rows
        config = planned.config.replace(schedule=planned.problem.schedule, stage_devices=rows)
        write_plan(config, planned.plan, output=outputs.write_to)
    return done


def _without_plan(
    file: StatedFile, memory: MemoryProfile, error: InfeasibleError | NoSolutionError, budget: TimeBudget
) -> PlannedFile:
    """Result of a job without a plan: where that is proven, the shortage of the plan that needs the least memory."""
    problem = file.problem(memory)
    proven = isinstance(error, InfeasibleError)
    end = Termination.INFEASIBLE if proven else Termination.TIME_LIMIT
    solution = Solution(INFEASIBLE if proven else NO_SOLUTION, end, message=str(error))
    if proven:
        frugal = None
        with suppress(TimeoutError, OutOfTime):
            frugal = most_frugal_plan(problem, budget.later(FINISH_SECONDS).left)
        if frugal is not None:
            solution = solution.replace(
                peak_memory_mib=peak_memory_mib(problem, frugal), memory_limit_mib=tuple(map(float, problem.limit_mib))
            )
    return PlannedFile(file.config, file.facts, memory, problem, solution, own=own_solution(file, memory))


def solve_stated(
    file: StatedFile,
    memory: MemoryProfile,
    how: SolveOptions,
    on_progress: OnProgress | None = None,
    store: SolveStore | None = None,
) -> PlannedFile:
    """Solve a configuration under a memory profile; nothing is dry-run, and no result is written.

    Parameters
    ----------
    store : SolveStore, optional
        Finds the solve of an earlier run, and keeps this one.

    Raises
    ------
    InputError
        When the problem cannot be stated.
    InfeasibleError, NoSolutionError
        When there is no plan.
    """
    if is_searched(file.job):
        return solve_searched(file, memory, how, on_progress, store)
    if file.job.has_choices:
        return _solve_choices(file, memory, how, on_progress or (lambda progress: None), store)
    if file.job.offload_optimizer:
        return solve_on_device_and_host(file, memory, how, on_progress, store)
    if file.stages is not None:
        return solve_orders(file, memory, how, on_progress, store)
    problem = file.problem(memory)
    solution = plan_or_raise(problem, how, on_progress, str(file.config.path), store, file.known_plan(problem))
    return PlannedFile(file.config, file.facts, memory, problem, solution, own=own_solution(file, memory))


def _refuse_choices_of_stages(job: FileJob) -> None:
    if job.stage_devices and job.has_choices:
        raise InputError(
            "auto is not combined with stages on several kinds of devices",
            field="-vpp, -schedule",
            value=AUTO,
            cure="choose on one kind of device first, then name the choice beside --stage_devices",
        )


def plan_or_raise(
    problem: PipelineProblem,
    how: SolveOptions,
    on_progress: OnProgress | None,
    name: str,
    store: SolveStore | None = None,
    known: PipelinePlan | None = None,
) -> Solution:
    """Solution of a problem, called `name` in messages; no worse than a `known` plan that fits.

    Raises
    ------
    InfeasibleError, NoSolutionError
        When there is no plan.
    InterruptedSolve
        When Ctrl-C came before there was one.
    """
    solution = solve_or_find(problem, how, on_progress, store, name, known)
    if solution.plan is None:
        if solution.termination is Termination.INTERRUPTED:
            raise InterruptedSolve(f"{name}: {solution.message}")
        kind = InfeasibleError if solution.status == INFEASIBLE else NoSolutionError
        raise kind(f"{name}: {solution.message}")
    return solution


def _solve_checked(
    file: StatedFile,
    memory: MemoryProfile,
    backend: DryRunBackend,
    how: SolveOptions,
    outputs: Outputs,
    watch: OnProgress,
    budget: TimeBudget,
) -> PlannedFile:
    """Solve until the dry-run of the plan passes."""
    if file.job.has_choices:
        raise InputError(
            "auto is not combined with the dry-run check",
            field="-vpp, -schedule",
            value=AUTO,
            cure="choose with -check n first, then check the choice",
        )

    def solve_one(problem: PipelineProblem) -> Solution:
        store, known = SolveStore(outputs.folder), file.known_plan(problem)
        within = how.replace(time_limit=budget.left)
        solution = plan_or_raise(problem, within, watch, str(file.config.path), store, known)
        if solution.termination is Termination.INTERRUPTED:
            raise CheckStopped(problem, solution)
        return solution

    checked = solve_checked(
        file.running,
        memory,
        backend,
        outputs.folder,
        file.modes,
        file.problem,
        solve_one,
    )
    return PlannedFile(
        file.config,
        file.facts,
        checked.memory,
        checked.problem,
        checked.solution,
        dryrun=checked.dryrun,
        own=own_solution(file, checked.memory),
    )


def _solve_choices(
    file: StatedFile, memory: MemoryProfile, how: SolveOptions, watch: OnProgress, store: SolveStore | None
) -> PlannedFile:
    """Solve every choice of virtual stages and schedule that the job leaves to the tool, and keep the best."""
    given = file.job.schedule is not None or file.job.low_memory is not None
    schedule = AUTO if file.job.schedule == AUTO else asked_schedule(file.job, file.config) if given else None
    interleaves = AUTO if file.job.vpp == AUTO else file.running.strategy.vpp

    budget, untried = TimeBudget.of(how.time_limit), 0

    def solve_one(candidate: PipelineProblem, to_beat: float, watch_one: OnProgress, name: str) -> Solution:
        nonlocal untried
        within = how.replace(time_limit=budget.part(untried))
        untried -= 1
        if to_beat < math.inf:
            within = within.replace(cutoff=partial(float, to_beat))
        return solve_or_find(candidate, within, watch_one, store, name, file.known_plan(candidate))

    def state(vpp: int, spec: ScheduleSpec) -> PipelineProblem:
        chosen = file.running_as(vpp, spec)
        chosen.refuse_illegal()
        return chosen.problem(chosen.memory_like(memory))

    options = file.choices_told_by(memory, choices(file.running, interleaves, schedule))
    untried = len(options)
    best, solution, alternatives = solve_alternatives(state, options, solve_one, watch)
    chosen = file.running_as(best.interleaves, best.schedule)
    own = own_solution(file, memory)
    return PlannedFile(file.config, chosen.facts, chosen.memory_like(memory), best, solution, alternatives, own=own)


def _write_model(planned: PlannedFile, outputs: Outputs, budget: TimeBudget) -> dict[str, str]:
    """Write the model and the solution as far as the time allows; returns the files written, by role."""
    mps = outputs.folder / "model_mps" / f"{planned.name}.mps"
    sol = outputs.folder / "sol_output" / f"{planned.name}.sol"
    # Completing the cuts of a model takes longer than many a solve.
    store, of = SolveStore(outputs.folder), (planned.problem, planned.solution, outputs.mps_form, (mps, sol))
    if not store.are_there(*of):
        try:
            whole = write_model(planned.problem, planned.solution, mps, sol, outputs.mps_form, budget.deadline)
        except OutOfTime:
            for old in (mps, sol):  # those of an earlier run belong to another plan
                old.unlink(missing_ok=True)
            log.warning("%s: no model file: the time limit left too little to write it; a longer -t does", planned.name)
            return {}
        if whole:
            store.note_files(*of)
    return {"mps": str(mps), "sol": str(sol)}


def _tell_restriction(file: StatedFile, problem: PipelineProblem, solution: Solution) -> None:
    """Log the cost of the file's one recompute choice for all chunks against plans that it cannot express."""
    free = solution.statistics.get(UNRESTRICTED_OBJECTIVE)
    if free is None or solution.objective is None:
        return
    cost = solution.objective / free - 1.0 if free else 0.0
    if cost <= EQUAL_STEPS:
        log.debug("%s: the file can express the best plan of all", file.config.path)
        return
    log.warning(
        "%s: this kind of file sets one recompute choice for all chunks: its best plan takes %s, %.2f %% more than the "
        "%s of the best plan with any recompute by chunk",
        file.config.path,
        step_text(problem, solution.objective),
        100.0 * cost,
        step_text(problem, free),
    )
