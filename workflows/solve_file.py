"""One configuration file: its memory, its problem, the solve (or its own plan), and every file that results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InputError, NoSolutionError
from taylor.base.files import printable, write_atomic
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.dryrun.fitting.design import modes_at_hand
from taylor.dryrun.interface import DryRunBackend, DryRunResult
from taylor.dryrun.stage_memory import StageMemory
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import AUTO, ScheduleSpec
from taylor.pipeline_solver.evaluate import evaluate
from taylor.pipeline_solver.model_files import write_mps, write_sol
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.progress import Progress
from taylor.pipeline_solver.solution import INFEASIBLE, Solution
from taylor.pipeline_solver.solve import solve
from taylor.pipeline_solver.uniform_recompute import UNRESTRICTED_BOUND, UNRESTRICTED_OBJECTIVE
from taylor.register.model import MTP
from taylor.register.registry import Registry
from taylor.workflows.alternatives import Alternative, choices, solve_alternatives
from taylor.workflows.dryrun_result import dryrun_dict, stage_memories
from taylor.workflows.export import Export, export_texts, refuse_impossible, store_exports
from taylor.workflows.memory_check import check_plan, solve_checked
from taylor.workflows.memory_source import DryRunOptions, obtain_memory, open_backend
from taylor.workflows.problem import build_problem, plan_in_terms_of
from taylor.workflows.saved_result import MTP_AMONG_LAYERS, problem_data
from taylor.workflows.schedules import require_schedule

DEFAULT_DEVICE = "ascend-910b"

EQUAL_STEPS = 2e-6
"""Relative difference below which two proven step times are the same: twice the gap of a proof."""


@dataclass(frozen=True)
class SolveFileOptions:
    """What to do with one configuration file; the defaults are those of the command line.

    `output` is the folder of ``model_mps``, ``sol_output`` and ``memory_info``; `write_to` None
    means in place.
    """

    path: Path
    ratios: TimeRatios = field(default_factory=TimeRatios)
    memory_file: Path | None = None
    dryrun: bool = True
    check: bool = True
    dryruns: DryRunOptions = field(default_factory=DryRunOptions)
    device: str | None = None
    register_path: Path | None = None
    evaluate: bool = False
    search_select: bool = False
    solver: str = "HIGHS"
    time_limit: float | None = None
    workers: int = 1
    vpp: int | None = None
    schedule: str | None = None
    low_memory: bool | None = None
    auto_vpp: bool = False
    auto_schedule: bool = False
    write: bool = True
    write_to: Path | None = None
    result_json: Path | None = None
    trace: Path | None = None
    html: Path | None = None
    picture: Path | None = None
    exports: Sequence[Export] = ()
    mps_form: str = "compact"
    output: Path = Path("pipeline_output")


@dataclass(frozen=True)
class SolvedFile:
    """A configuration with its problem and solution, the files written by role, and what else was tried.

    `dryrun` is the dry-run of the solution's plan, where the check made one.
    """

    config: TrainingConfig
    memory: MemoryProfile
    problem: PipelineProblem
    solution: Solution
    files: dict[str, str]
    alternatives: tuple[Alternative, ...] = ()
    exports: Sequence[tuple[Export, str]] = ()
    dryrun: DryRunResult | None = None


def solve_file(options: SolveFileOptions, on_progress: Callable[[Progress], None] | None = None) -> SolvedFile:
    """Solve (or evaluate) one configuration file and write everything that was asked for.

    Raises
    ------
    InputError
        Bad configuration, memory profile or flag value.
    InfeasibleError, NoSolutionError
        No plan exists, or none was found within the limit; nothing is written.
    OutsideProgramError
        MindSpore's dry-runs were asked for and every one failed.
    """
    config = read_config(options.path)
    for note in config.notes:
        log.warning("%s: %s", config.path, note)
    device = Registry.load(options.register_path).device(options.device or DEFAULT_DEVICE)

    running, modes = _running(options, config), modes_at_hand(options.search_select)

    def state(profile: MemoryProfile) -> PipelineProblem:
        return build_problem(running, profile, options.ratios, search_select=options.search_select)

    alternatives: tuple[Alternative, ...] = ()
    dryrun: DryRunResult | None = None
    history: list[tuple[float, float | None, float | None]] = []

    def watch(progress: Progress) -> None:
        history.append((progress.seconds, progress.objective, progress.bound))
        if on_progress is not None:
            on_progress(progress)

    # More interleaves than layers are refused with the problem, in better words.
    if not (options.auto_vpp or options.auto_schedule) and running.strategy.vpp <= config.model.n_layers:
        require_schedule(running)
        refuse_impossible(options.exports, running.strategy.vpp, running.schedule)
    check = options.check and not options.evaluate
    with _backend(options, running, options.check) as backend:
        memory = obtain_memory(
            running,
            device,
            memory_file=options.memory_file,
            dryrun=options.dryrun,
            backend=backend,
            output=options.output,
            modes=modes,
            may_estimate=options.dryruns.backend == "auto",
        )
        measured = backend is not None and (not options.dryrun or memory.source != "estimate")
        if check and backend is not None and measured:
            if options.auto_vpp or options.auto_schedule:
                raise InputError(
                    "auto is not combined with the dry-run check",
                    field="-vpp, -schedule",
                    value="auto",
                    cure="choose with -check n first, then check the choice",
                )
            checked = solve_checked(
                running,
                memory,
                backend,
                options.output,
                modes,
                state,
                lambda problem: _solve(options, problem, watch),
            )
            memory, problem, solution, dryrun = checked.memory, checked.problem, checked.solution, checked.dryrun
        else:
            problem = state(memory)
            if options.evaluate:
                solution = _evaluate_own(config, problem)
                if options.check and backend is not None and solution.plan is not None:
                    dryrun = check_plan(running, solution.plan, backend, memory.device_limit_mib)
            elif options.auto_vpp or options.auto_schedule:
                problem, solution, alternatives = _solve_choices(options, config, problem, watch)
            else:
                solution = _solve(options, problem, watch)
            if check and options.memory_file is None:
                log.info("check: no dry-run can run here, so the plan rests on the memory figures above")
    assert solution.plan is not None
    exports = export_texts(options.exports, problem, solution.plan, _mtp_among_layers(config, problem))
    files = _write_outputs(options, config, problem, solution, history, stage_memories(dryrun))
    files |= store_exports(exports)
    solved = SolvedFile(config, memory, problem, solution, files, alternatives, exports, dryrun)
    if options.result_json is not None:
        files["result"] = str(options.result_json)
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result_dict(solved).items())
        write_atomic(options.result_json, "{\n" + ",\n".join(lines) + "\n}\n")
    return solved


def result_dict(solved: SolvedFile) -> dict[str, Any]:
    """The result as plain data, with the keys of the user contract."""
    problem, solution, plan = solved.problem, solved.solution, solved.solution.plan
    uncounted = tuple(kind.name for kind in problem.kinds if kind.pinned_last)
    return {
        "status": solution.status,
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "unit_ms": problem.unit_ms,
        "solve_seconds": round(solution.seconds, 3),
        "solver": solution.solver,
        "schedule": problem.schedule.name,
        "stages": problem.stages,
        "interleaves": problem.interleaves,
        "micro_batches": problem.micro_batches,
        "offset": None if plan is None else [list(row) for row in plan.offset(uncounted)],
        "layers": {} if plan is None else {kind: [list(row) for row in grid] for kind, grid in plan.layers.items()},
        "recompute": {}
        if plan is None
        else {mode: [list(row) for row in plan.recomputed(mode)] for mode in problem.recompute_ratio},
        "peak_memory": [round(value, 3) for value in solution.peak_memory_mib],
        "memory_limit": list(solution.memory_limit_mib),
        "memory_source": solved.memory.source,
        "bubble": solution.bubble_dict(),
        **({} if solved.dryrun is None else {"dryrun": dryrun_dict(solved.dryrun)}),
        "message": solution.message,
        **_unrestricted(solution),
        **({MTP_AMONG_LAYERS: mtp} if (mtp := _mtp_among_layers(solved.config, problem)) else {}),
        "alternatives": [
            {
                "name": one.name,
                "interleaves": one.interleaves,
                "schedule": one.schedule.name,
                "status": one.status,
                "objective": one.objective,
                "bound": one.bound,
                "note": one.note,
            }
            for one in solved.alternatives
        ],
        "problem": problem_data(problem),
        "files": dict(solved.files),
    }


def _mtp_among_layers(config: TrainingConfig, problem: PipelineProblem) -> int:
    """MTP layers that the problem counts with the kind before them."""
    return 0 if any(kind.name == MTP for kind in problem.kinds) else config.model.mtp_layers


def _unrestricted(solution: Solution) -> dict[str, Any]:
    """What any recompute by chunk would reach, where the file can only express one choice for all."""
    found = solution.statistics
    if UNRESTRICTED_BOUND not in found:
        return {}
    return {"unrestricted": {"objective": found.get(UNRESTRICTED_OBJECTIVE), "bound": found[UNRESTRICTED_BOUND]}}


def _backend(
    options: SolveFileOptions, config: TrainingConfig, check: bool
) -> AbstractContextManager[DryRunBackend | None]:
    """Where dry-runs go; nothing is looked for where none is wanted."""
    wanted = check or (options.dryrun and options.memory_file is None)
    return open_backend(options.dryruns, config, options.output) if wanted else nullcontext(None)


def _running(options: SolveFileOptions, config: TrainingConfig) -> TrainingConfig:
    """The configuration with the interleaves and the schedule that are solved for."""
    vpp = options.vpp if options.vpp is not None else config.strategy.vpp
    asked = config.replace(strategy=config.strategy.replace(vpp=vpp), schedule=_asked_schedule(options, config))
    return asked.replace(schedule=asked.schedule_for(vpp))


def _asked_schedule(options: SolveFileOptions, config: TrainingConfig) -> ScheduleSpec:
    """The file's schedule with what the options say of it."""
    own = config.schedule
    asked = ScheduleSpec(
        options.schedule or own.name, own.low_memory if options.low_memory is None else options.low_memory
    )
    return replace(asked, seq_splits=own.seq_splits) if asked.traits.sequence_splits else asked


def _evaluate_own(config: TrainingConfig, problem: PipelineProblem) -> Solution:
    if config.plan is None:
        raise InputError(
            "the file's own offset and recompute do not make a plan",
            file=config.path,
            cure="; ".join(config.notes) or "solve it instead: leave out -evaluate",
        )
    if (config.plan.interleaves, config.plan.stages) != (problem.interleaves, problem.stages):
        raise InputError(
            "the file's plan has another number of interleaves than asked for",
            field="-vpp",
            value=problem.interleaves,
            cure="evaluate the file without -vpp",
        )
    solution = evaluate(problem, plan_in_terms_of(problem, config.plan))
    if solution.message:
        log.warning("%s", solution.message)
    return solution


def _solve(
    options: SolveFileOptions, problem: PipelineProblem, on_progress: Callable[[Progress], None] | None
) -> Solution:
    solution = solve(
        problem,
        SolveOptions(solver=options.solver, time_limit=options.time_limit, workers=options.workers),
        on_progress=on_progress,
    )
    if solution.plan is None:
        kind = InfeasibleError if solution.status == INFEASIBLE else NoSolutionError
        raise kind(f"{options.path}: {solution.message}")
    return solution


def _solve_choices(
    options: SolveFileOptions, config: TrainingConfig, problem: PipelineProblem, on_progress: Callable[[Progress], None]
) -> tuple[PipelineProblem, Solution, tuple[Alternative, ...]]:
    given = options.schedule is not None or options.low_memory is not None
    schedule = AUTO if options.auto_schedule else _asked_schedule(options, config) if given else None
    interleaves = AUTO if options.auto_vpp else problem.interleaves

    def solve_one(candidate: PipelineProblem, watch: Callable[[Progress], None]) -> Solution:
        return solve(
            candidate,
            SolveOptions(solver=options.solver, time_limit=options.time_limit, workers=options.workers),
            on_progress=watch,
        )

    return solve_alternatives(problem, choices(config, interleaves, schedule), solve_one, on_progress)


def _own_plan(config: TrainingConfig, problem: PipelineProblem) -> dict[str, PipelinePlan]:
    """The file's own plan to lay beside the solved one, where it has the same shape."""
    plan = config.plan
    if plan is None or (plan.interleaves, plan.stages) != (problem.interleaves, problem.stages):
        return {}
    return {"as in the file": plan_in_terms_of(problem, plan)}


def _tell_restriction(config: TrainingConfig, solution: Solution) -> None:
    """Say what the file's one recompute choice for all chunks costs against plans that it cannot express."""
    free = solution.statistics.get(UNRESTRICTED_OBJECTIVE)
    if free is None or solution.objective is None:
        return
    cost = solution.objective / free - 1.0 if free else 0.0
    if cost <= EQUAL_STEPS:
        log.info("%s: the file can express the best plan of all", config.path)
        return
    log.warning(
        "%s: this kind of file sets one recompute choice for all chunks: the best plan that it can express takes "
        "%.6f (proven bound %.6f), %.2f %% more than %.6f (bound %.6f), the best of any recompute by chunk",
        config.path,
        solution.objective,
        solution.bound or 0.0,
        100.0 * cost,
        free,
        solution.statistics[UNRESTRICTED_BOUND],
    )


def _write_outputs(
    options: SolveFileOptions,
    config: TrainingConfig,
    problem: PipelineProblem,
    solution: Solution,
    history: Sequence[tuple[float, float | None, float | None]],
    dryrun: Sequence[StageMemory],
) -> dict[str, str]:
    files: dict[str, str] = {}
    assert solution.plan is not None
    name = printable(config.path.stem)
    if not options.evaluate:
        _tell_restriction(config, solution)
        mps = options.output / "model_mps" / f"{name}.mps"
        sol = options.output / "sol_output" / f"{name}.sol"
        write_mps(problem, solution, mps, form=options.mps_form)
        write_sol(problem, solution, sol)
        files |= {"mps": str(mps), "sol": str(sol)}
        if options.write:
            write_plan(config.replace(schedule=problem.schedule), solution.plan, output=options.write_to)
            files["config"] = str(options.write_to or config.path)
    if options.trace is not None or options.html is not None or options.picture is not None:
        from taylor.report.outputs import write_views

        write_views(problem, solution, title=name, trace=options.trace, picture=options.picture, dryrun=dryrun)
        if options.html is not None:
            own = {} if options.evaluate else _own_plan(config, problem)
            write_views(problem, solution, title=name, html=options.html, others=own, dryrun=dryrun, progress=history)
        views = {"trace": options.trace, "html": options.html, "picture": options.picture}
        files |= {role: str(path) for role, path in views.items() if path is not None}
    return files
