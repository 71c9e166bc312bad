"""Many candidates: each solved on its own, kept when done, ranked by step time."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.base.console import hold_interrupts, log, progress
from taylor.base.errors import TaylorError
from taylor.base.files import printable, write_atomic
from taylor.base.kept import read_kept, write_kept
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.pipeline_solver.solution import FEASIBLE, OPTIMAL, Solution
from taylor.pipeline_solver.solve import solve
from taylor.workflows.problem import build_problem
from taylor.workflows.schedules import require_schedule

DEGREES = ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs", "micro_batches")
"""Columns of the ranking that are whole numbers."""

COLUMNS = (
    "dp",
    "tp",
    "pp",
    "ep",
    "cp",
    "op",
    "sp",
    "vpp",
    "mbs",
    "micro_batches",
    "dmratio",
    "bfratio",
    "re_grow_ration",
    "hratio",
    "moe_fw",
    "ratio_source",
    "objective",
    "cost",
    "bound",
    "gap",
    "offset",
    "recompute",
    "layers",
    "peak_memory",
    "memory_limit",
    "memory_source",
    "peakMem",
    "solver",
    "status",
    "time",
    "reason",
    "file",
)
"""Columns of the ranking: strategy, ratios, objective (body-layer forwards), cost (ms a step), proof, plan, memory."""

DRAWN_CANDIDATES = 20
"""Candidates whose pipeline the report draws: the best, as many as a search emits; each adds some 70 kB to the page."""

DIED = "its solver process died: was it killed, or is the memory full?"

ORPHAN_SECONDS = 1.0
"""How often a worker looks whether its parent still lives."""


@dataclass(frozen=True)
class Candidate:
    """One strategy to solve, with what is known of it.

    `failure` says why it cannot be solved; `nd_peak_mib` is the peak memory that the search told, MiB.
    A file that cannot be read has no `config`, only its `unread` path.
    """

    config: TrainingConfig | None
    memory: MemoryProfile | None
    ratios: TimeRatios | None
    failure: str = ""
    nd_peak_mib: float | None = None
    unread: Path | None = None

    @property
    def path(self) -> Path:
        """The candidate's file.

        Raises
        ------
        ValueError
            When it has neither a configuration nor a path.
        """
        path = self.unread if self.config is None else self.config.path
        if path is None:
            raise ValueError("a candidate needs a configuration, or the path of the file that cannot be read")
        return path


@dataclass(frozen=True)
class RankOptions:
    """How to solve and where to put the results; `time_limit` in seconds a candidate."""

    solver: str = "HIGHS"
    time_limit: float | None = None
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    report: Path | bool = True
    output: Path = Path("pipeline_output")


@dataclass(frozen=True)
class Ranking:
    """The ranked table (best first, failures last) and the files written."""

    table: pd.DataFrame
    csv: Path
    report: Path | None


def rank(
    candidates: Sequence[Candidate],
    options: RankOptions,
    executor: Executor | None = None,
    pruned: pd.DataFrame | None = None,
) -> Ranking:
    """Solve every candidate and rank them by step time.

    Each finished row is kept on disk at once, so that a killed run, started again, solves only what
    is missing. A candidate that fails keeps its row with the reason.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Where the solves run; a pool of `options.workers` processes when not given.
    pruned : DataFrame, optional
        What the search removed and why, for the report.

    Raises
    ------
    KeyboardInterrupt
        After the rows finished so far were written.
    """
    kept_rows = options.output / "solved"
    rows: dict[int, dict[str, Any]] = {}
    jobs: dict[int, tuple[PipelineProblem, Path]] = {}
    problems: dict[str, PipelineProblem] = {}
    for index, candidate in enumerate(candidates):
        try:
            if candidate.failure or candidate.config is None or candidate.memory is None or candidate.ratios is None:
                raise TaylorError(candidate.failure or "no memory profile or time ratios")
            require_schedule(candidate.config)
            problem = build_problem(candidate.config, candidate.memory, candidate.ratios)
        except TaylorError as error:
            rows[index] = {"status": "failed", "reason": str(error)}
            continue
        problems[printable(candidate.path.name)] = problem
        kept = kept_rows / f"{_key(problem, options)}.json"
        row = read_kept(kept)
        if row is None:
            jobs[index] = (problem, kept)
        else:
            rows[index] = row
    if rows and jobs:
        log.info("%d of %d candidates were solved by an earlier run or need no solve", len(rows), len(candidates))
    stamp = datetime.now().strftime("%Y%m%d%H%M%S")
    csv = options.output / f"test_result_{stamp}.csv"
    try:
        _solve_all(jobs, rows, options, executor)
    finally:
        with hold_interrupts():
            table = _table(candidates, rows, options.output / "solved_config")
            write_atomic(csv, table.to_csv(index=False, lineterminator="\n"))
    report = None
    if options.report:
        report = options.report if isinstance(options.report, Path) else csv.with_suffix(".html")
        _write_report(report, table, problems, pruned)
    return Ranking(table, csv, report)


def _write_report(
    path: Path, table: pd.DataFrame, problems: Mapping[str, PipelineProblem], pruned: pd.DataFrame | None
) -> None:
    from taylor.report.html import write_html_report
    from taylor.report.planned import planned_timeline

    timelines = {}
    stems = Counter(Path(name).stem for name in problems)
    for _, row in table.head(DRAWN_CANDIDATES).iterrows():
        plan, file = plan_of_row(row), Path(row["file"])
        if plan is not None and file.name in problems:
            # Files of several kinds may share a stem; the page takes the whole path too.
            name = file.stem if stems[file.stem] == 1 else row["file"]
            timelines[name] = planned_timeline(problems[file.name], plan, file.name if name != file.stem else name)
    write_html_report(path, table, plans=timelines, pruned=pruned, title="Taylor: strategies ranked by step time")


def solve_row(problem: PipelineProblem, solver: str, time_limit: float | None) -> dict[str, Any]:
    """Solve one problem and give the result as the plain values of a ranking row."""
    return row_of(solve(problem, SolveOptions(solver=solver, time_limit=time_limit)), problem)


def row_of(solution: Solution, problem: PipelineProblem) -> dict[str, Any]:
    """The solution's columns of a ranking row."""
    row: dict[str, Any] = {
        "objective": solution.objective,
        "bound": solution.bound,
        "gap": solution.gap,
        "solver": solution.solver,
        "status": solution.status,
        "time": round(solution.seconds, 3),
        "reason": solution.message,
        "memory_limit": json.dumps([round(value) for value in problem.limit_mib]),
    }
    if solution.objective is not None and problem.unit_ms is not None:
        row["cost"] = solution.objective * problem.unit_ms
    if solution.plan is not None:
        plan = solution.plan
        uncounted = tuple(kind.name for kind in problem.kinds if kind.pinned_last)
        row["offset"] = json.dumps(plan.offset(uncounted))
        row["layers"] = json.dumps({kind: grid for kind, grid in plan.layers.items()})
        row["recompute"] = json.dumps({mode: plan.recomputed(mode) for mode in problem.recompute_ratio})
        row["peak_memory"] = json.dumps([round(value) for value in solution.peak_memory_mib])
    return row


def plan_of_row(row: Mapping[str, Any]) -> PipelinePlan | None:
    """The plan that a ranking row holds, None for a failure."""
    layers, recompute = row.get("layers"), row.get("recompute")
    if not isinstance(layers, str) or not isinstance(recompute, str):
        return None
    modes = {mode: as_grid(rows) for mode, rows in json.loads(recompute).items()}
    return PipelinePlan(
        {kind: as_grid(rows) for kind, rows in json.loads(layers).items()},
        {mode: grid for mode, grid in modes.items() if mode == FULL or any(map(any, grid))},
    )


def _solve_all(
    jobs: Mapping[int, tuple[PipelineProblem, Path]],
    rows: dict[int, dict[str, Any]],
    options: RankOptions,
    executor: Executor | None,
) -> None:
    # The hardest (most stages) first, so that no long solve is left alone at the end.
    order = sorted(jobs, key=lambda index: -jobs[index][0].stages * jobs[index][0].micro_batches)
    with progress("solving", len(jobs)) as advance:

        def solve_these(indices: Sequence[int], workers: int) -> list[int]:
            """Solve in processes; what is left when one of them dies, which ends them all."""
            lost = []
            with _pool(executor, min(workers, len(indices))) as pool:
                futures: dict[Future[dict[str, Any]], int] = {}
                for index in indices:
                    try:
                        futures[pool.submit(solve_row, jobs[index][0], options.solver, options.time_limit)] = index
                    except BrokenExecutor:
                        lost.append(index)
                for future in as_completed(futures):
                    index = futures[future]
                    try:
                        rows[index] = _row_of_future(future)
                    except BrokenExecutor:
                        lost.append(index)
                        continue
                    if rows[index]["status"] != "failed":
                        write_kept(jobs[index][1], rows[index])
                    advance(1, str(rows[index]["status"]))
            return sorted(lost, key=indices.index)

        lost = solve_these(order, options.workers) if order else []
        if lost and executor is None:
            log.warning("a solver process died: %d candidates are solved again, one at a time", len(lost))
            lost = [index for index in lost if solve_these([index], 1)]
        for index in lost:
            rows[index] = {"status": "failed", "reason": DIED}
            advance(1, "failed")


@contextmanager
def _pool(executor: Executor | None, workers: int) -> Iterator[Executor]:
    """The given executor, or processes of our own that end with the block and, at once, with Ctrl-C."""
    if executor is not None:
        yield executor
        return
    pool = ProcessPoolExecutor(workers, initializer=_become_worker, initargs=(os.getpid(),))
    try:
        yield pool
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _row_of_future(future: Future[dict[str, Any]]) -> dict[str, Any]:
    try:
        return future.result()
    except BrokenExecutor:
        raise
    except TaylorError as error:
        return {"status": "failed", "reason": str(error)}
    except Exception as error:  # one candidate's fault must not lose the others' work
        log.error("a solve failed: %s: %s", type(error).__name__, error)
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}


def _table(candidates: Sequence[Candidate], rows: Mapping[int, dict[str, Any]], folder: Path) -> pd.DataFrame:
    records = []
    for index, candidate in enumerate(candidates):
        ratios = candidate.ratios
        record: dict[str, Any] = {}
        if candidate.config is not None:
            record |= {name: getattr(candidate.config.strategy, name) for name in (*DEGREES, "sp")}
        if ratios is not None:
            record |= {
                "dmratio": ratios.dense_forward,
                "bfratio": ratios.backward,
                "hratio": ratios.head,
                "re_grow_ration": ratios.recompute[FULL],
                "moe_fw": ratios.unit_ms,
                "ratio_source": ratios.source,
            }
        record["peakMem"] = candidate.nd_peak_mib
        if candidate.memory is not None:
            record["memory_source"] = candidate.memory.source
        record |= rows.get(index, {"status": "interrupted", "reason": "not solved yet"})
        plan = plan_of_row(record)
        record["file"] = printable(str(candidate.path))
        if plan is not None and candidate.config is not None:
            try:
                target = folder / candidate.path.name
                write_plan(candidate.config, plan, output=target)
                record["file"] = printable(str(target))
            except TaylorError as error:
                record["reason"] = str(error)
        records.append(record)
    table = pd.DataFrame.from_records(records, columns=list(COLUMNS))
    for name in DEGREES:  # whole numbers, also beside a row without any
        table[name] = table[name].astype("Int64" if table[name].isna().any() else "int64")
    solved = table["status"].isin([OPTIMAL, FEASIBLE])
    keys = pd.DataFrame(
        {
            "failed": ~solved,
            "unknown": table["cost"].isna(),
            "cost": table["cost"].astype(float),
            "objective": table["objective"].astype(float),
        }
    )
    order = keys.sort_values(["failed", "unknown", "cost", "objective"], kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _key(problem: PipelineProblem, options: RankOptions) -> str:
    """Everything that a row depends on: the problem, how it is solved, and the code that solves it."""
    digest = hashlib.sha256(repr((problem.fingerprint(), options.solver, options.time_limit)).encode())
    root = Path(__file__).resolve().parent.parent
    for source in sorted([*(root / "pipeline_solver").glob("*.py"), *(root / "pipeline").glob("**/*.py")]):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]


def _become_worker(parent: int) -> None:
    # Ctrl-C is the parent's to handle: it keeps the finished rows and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this worker once its parent was killed: it would wait for work, and hold its memory, for ever."""
    while os.getppid() == parent:
        time.sleep(ORPHAN_SECONDS)
    os._exit(1)
