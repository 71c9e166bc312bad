"""Solves one configuration file: obtains its memory, states its problem, solves, checks, and writes every output."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from taylor.base.budget import FINISH_SECONDS, TimeBudget
from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InterruptedSolve, NoSolutionError, WriteError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.dryrun.interface import DryRunBackend
from taylor.parsers.registry import launcher_of
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import SEARCHED_FREE
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
from taylor.workflows.showing.verdict import expressible_cost, step_text
from taylor.workflows.solving.check_variants import best_checked
from taylor.workflows.solving.encoder_places import with_places, write_places
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.solving.even_split import even_split
from taylor.workflows.solving.interrupted import keep_plan_so_far, keep_unchecked_plan
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.solving.memory_check import CheckStopped, solve_checked
from taylor.workflows.solving.own_order import best_with_own_order
from taylor.workflows.solving.own_placement import best_with_own_placement
from taylor.workflows.solving.solve_variants import Best, best_of
from taylor.workflows.solving.variants import Variant, on_host, variants_of
from taylor.workflows.statement.lending import refuse_writing
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.own_ranks import refuse_places
from taylor.workflows.statement.schedules import require_writable
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.tensor_choices import refuse_writing_tensors


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
    _refuse_early(file, outputs)
    history: list[tuple[float, float | None, float | None]] = []

    def watch(progress: Progress) -> None:
        history.append((progress.seconds, progress.objective, progress.bound))
        if on_progress is not None:
            on_progress(replace(progress, unit_ms=file.ratios.ratios.unit_ms))

    with file.open_backend(outputs.work_folder) as backend:
        memory = file.obtain_memory(backend, outputs.folder)
        refuse_places(file, memory.source)
        file = with_measured(file, memory, outputs.folder)
        if backend is not None and _is_checked(file, memory):
            planned = _solve_checked(file, memory, backend, how, outputs, watch, budget)
        else:
            planned = _solve_unchecked(file, memory, how, outputs, watch, budget)
    planned = with_places(file, planned, how, budget)
    if file.job.made_for_model:
        planned = replace(planned, own=None, compared=False)
    _log_restriction(file, planned.problem, planned.solution)
    store_json(planned, {}, outputs)
    files = _write_model(planned, outputs, budget.later(FINISH_SECONDS)) | write_places(planned, outputs)
    config_path = outputs.write_to or launcher_of(planned.config).home_of_plan(planned.config)
    if outputs.write:
        files["config"] = str(config_path)
    done = store_result(planned, files, outputs, beside=planned.own_plan(), history=history, budget=budget)
    if not outputs.write:
        return done
    # Last: a run killed before this finds the file with its old plan when it is started again.
    stages = planned.facts.stages
    rows = planned.config.stage_devices if stages is None else stages.rows
    config = planned.config.replace(schedule=planned.problem.schedule, stage_devices=rows)
    try:
        write_plan(config, planned.plan, output=outputs.write_to)
    except WriteError as error:
        log.error("%s", error)
        rest = {role: path for role, path in done.files.items() if role != "config"}
        return replace(done, files=rest, unwritten=(*done.unwritten, f"config ({config_path})"))
    return done


def _refuse_early(file: StatedFile, outputs: Outputs) -> None:
    """Refuse, before anything is measured, what the job's files and frameworks cannot state."""
    job = file.job
    if job.offload_optimizer:
        on_host(file)
    refuse_places(file)
    if not job.has_choices:
        file.refuse_early(outputs.exports)
    if outputs.write and job.lend:
        refuse_writing(file.config)
    if outputs.write and job.tensors:
        refuse_writing_tensors(file.config)
    if outputs.write and (job.is_searched or not job.has_choices):
        require_writable(file.config, file.running.schedule)


def _is_checked(file: StatedFile, memory: MemoryProfile) -> bool:
    """Return whether dry-runs check the plan of a job that has a backend for them."""
    job = file.job
    if not job.check or (job.dryrun and memory.source == MemorySource.ESTIMATE):  # every dry-run of the memory failed
        return False
    if file.stages is not None or job.is_searched or job.lend or job.tensors:
        what = "stages on several kinds of devices" if file.stages is not None else "an order of the plan's own"
        what = "activations on other stages" if job.lend else "choices by tensor" if job.tensors else what
        log.info("check: no dry-run covers %s; the plan is not checked", what)
        return False
    return True


def _solve_unchecked(
    file: StatedFile,
    memory: MemoryProfile,
    how: SolveOptions,
    outputs: Outputs,
    watch: OnProgress,
    budget: TimeBudget,
) -> PlannedFile:
    """Solve once; a job without a plan has its result written, and an interrupted one its plan so far."""
    within = how.replace(time_limit=budget.left)
    try:
        planned = solve_stated(file, memory, within, watch, SolveStore(outputs.folder))
    except (InfeasibleError, NoSolutionError) as error:
        without = _without_plan(file, memory, error, budget)
        store_json(without, {}, outputs)
        if not isinstance(error, InfeasibleError):
            raise
        changes = without.changes_text()
        doubt = doubt_of_no(file.config.unmodelled) if without.fit.fit is Fit.UNKNOWN else ""
        cure = f"; {changes}" if changes else ""
        if not doubt and not cure:
            raise
        raise InfeasibleError(f"{error}{doubt}{cure}") from error
    if planned.solution.termination is Termination.INTERRUPTED:
        raise keep_plan_so_far(planned, outputs)
    return planned


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
    variants, order = variants_of(file, memory), None
    if file.job.is_searched:
        choose = best_with_own_placement if file.job.schedule == SEARCHED_FREE else best_with_own_order
        best, order = choose(variants, how, on_progress, store)
    elif len(variants) > 1 or variants[0].restated:
        best = best_of(variants, how, on_progress, store)
    else:
        (alone,) = variants
        problem = alone.problem()
        solution = plan_or_raise(problem, how, on_progress, str(file.config.path), store, file.known_plan(problem))
        best = Best(alone, problem, solution, alone.outcomes_of(solution))
    planned = _planned(file, memory, best)
    if file.stages is not None:
        planned = replace(planned, even=even_split(best.problem, how))
    return replace(planned, order=order)


def _planned(file: StatedFile, memory: MemoryProfile, best: Best) -> PlannedFile:
    """Best plan of a job's variants beside the plan in the file, whose stages lie on the same devices."""
    chosen = best.variant
    own = own_solution(replace(file, stages=chosen.file.stages), memory)
    return PlannedFile(
        chosen.file.config, chosen.file.facts, chosen.memory, best.problem, best.solution, best.alternatives, own=own,
        variant=chosen.name,
    )  # fmt: skip


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
    """Solve until the dry-run of the plan passes; one whose check ends early is saved."""
    store = SolveStore(outputs.folder)

    def check(variant: Variant, found: Best | None = None) -> PlannedFile:
        chosen = variant.file

        def solve_one(problem: PipelineProblem) -> Solution:
            if found is not None and problem == found.problem:
                solution = found.solution
            else:
                within = how.replace(time_limit=budget.left)
                known = chosen.known_plan(problem)
                solution = plan_or_raise(problem, within, watch, str(chosen.config.path), store, known)
            if solution.termination is Termination.INTERRUPTED:
                raise CheckStopped(problem, solution)
            return solution

        try:
            checked = solve_checked(
                chosen.running, variant.memory, backend, outputs.folder, chosen.modes, chosen.problem, solve_one
            )
        except CheckStopped as stop:
            stopped = _planned(file, memory, Best(variant, stop.problem, stop.solution, ()))
            raise keep_unchecked_plan(stopped, outputs, stop) from None
        own = own_solution(file, checked.memory)
        return PlannedFile(
            chosen.config, chosen.facts, checked.memory, checked.problem, checked.solution, dryrun=checked.dryrun,
            own=own, variant=variant.name,
        )  # fmt: skip

    variants = variants_of(file, memory)
    if len(variants) == 1 and not variants[0].restated:
        return check(variants[0])
    planned = best_checked(variants, how, watch, store, budget, lambda best: check(best.variant, best))
    if planned.solution.termination is Termination.INTERRUPTED:
        raise keep_unchecked_plan(planned, outputs, CheckStopped(planned.problem, planned.solution, passed=True))
    return planned


def _write_model(planned: PlannedFile, outputs: Outputs, budget: TimeBudget) -> dict[str, str]:
    """Write the model and the solution as far as the time allows; returns the files written, by role."""
    if outputs.work is not None:
        return {}
    mps = outputs.folder / "model_mps" / f"{planned.name}.mps"
    sol = outputs.folder / "sol_output" / f"{planned.name}.sol"
    # Completing the cuts of a model takes longer than many a solve.
    store, of = SolveStore(outputs.folder), (planned.problem, planned.solution, outputs.mps_form, (mps, sol))
    if not store.are_there(*of):
        try:
            whole = write_model(planned.problem, planned.solution, mps, sol, outputs.mps_form, budget.deadline)
        except WriteError as error:
            log.warning("%s: no model file: %s", planned.name, error)
            return {}
        except OutOfTime:
            for old in (mps, sol):  # those of an earlier run belong to another plan
                old.unlink(missing_ok=True)
            log.warning("%s: no model file: the time limit left too little to write it; a longer -t does", planned.name)
            return {}
        if whole:
            store.note_files(*of)
    return {"mps": str(mps), "sol": str(sol)}


def _log_restriction(file: StatedFile, problem: PipelineProblem, solution: Solution) -> None:
    """Log the cost of the file's one recompute choice for all chunks against plans that it cannot express."""
    cost = expressible_cost(solution)
    if cost is None:
        return
    log.warning(
        "%s: this kind of file sets one recompute choice for all chunks: its best plan takes %s, %.2f %% more than the "
        "%s of the best plan with any recompute by chunk",
        file.config.path,
        step_text(problem, solution.objective),
        100.0 * cost,
        step_text(problem, solution.statistics[UNRESTRICTED_OBJECTIVE]),
    )
