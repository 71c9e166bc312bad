"""Process of the page's server that does the job of one folder: ``python -m taylor.serve.child FOLDER``."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.base.errors import InterruptedSolve, TaylorError
from taylor.base.files import read_text, reading_below, write_atomic
from taylor.base.memory_limit import limit_memory
from taylor.base.orphans import PARENT, end_with_parent
from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR
from taylor.parsers.registry import launcher_of
from taylor.parsers.software import features_of
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.progress import Progress
from taylor.report.compress import parse_json
from taylor.report.ranking import tied_with_first
from taylor.report.size import answer_lines
from taylor.schemas.writing import write_document
from taylor.serve.own_files import OwnFiles
from taylor.serve.pipeline_view import pipeline_view
from taylor.serve.question import Models, Question
from taylor.workflows.measuring.history import Store, remember_ranking, remember_solve
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.searching.model_job import ModelJob, write_strategies
from taylor.workflows.searching.size import SizeOptions, size
from taylor.workflows.solving.interrupted import FOLDER as INTERRUPTED
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.measured_run import MeasuredRun
from taylor.workflows.statement.options import FileJob, Outputs

JOB, PROGRESS, DONE = "job.json", "progress.json", "done.json"

FILES = {
    "config": "config.json",
    "script": "train.sh",
    "yaml": "train.yaml",
    "toml": "train.toml",
    "result": "result.json",
    "report": "report.html",
    "table": "ranking.csv",
}
"""Files that a job may write for its user, by the name in a link."""

STOPPED = "stopped before there was a plan"

RANKED = 10

MOST_BYTES = 8 << 30
"""Most memory of one job: several times the need of the largest published recipe."""


def work(folder: Path) -> dict[str, Any]:
    """Do the job of a folder.

    Raises
    ------
    TaylorError
        When there is no plan.
    """
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    ask = Question.model_validate(job["ask"])
    models = Models(folder / "work", tuple(map(Path, job["folders"])), OwnFiles(Path(job["own"])))
    store = Store(job["store"]) if job["store"] else None
    with reading_below([folder, *models.folders_of(models.path(ask.model))]):
        if job["kind"] == "size":
            return _size(folder, ask, models)
        return _rank(folder, ask, models, store) if job["kind"] == "rank" else _solve(folder, ask, models, store)


def _solve(folder: Path, ask: Question, models: Models, store: Store | None) -> dict[str, Any]:
    config = models.config(ask)
    text = launcher_of(config).with_strategy(config, config.strategy, None, {})
    suffix = config.path.suffix
    path = write_atomic(folder / "work" / f"{config.path.stem.removesuffix('.model')}{suffix}", text)
    outputs = Outputs(
        folder=folder / "work",
        write_to=_plan_file(folder, suffix),
        result_json=folder / FILES["result"],
        html=folder / FILES["report"],
    )
    seen = models.seen(ask)
    measured = MeasuredRun() if seen.learned is None else MeasuredRun(earlier=seen.learned.seen)
    job = FileJob(
        path=path, dryrun=False, check=False, device=ask.device, made_for_model=True, margin=ask.margin,
        measured=measured, stage_limits=seen.limits, images=ask.images,
    )  # fmt: skip

    def watch(progress: Progress) -> None:
        unit = progress.unit_ms or 1.0
        figures = [None if value is None else value * unit for value in (progress.objective, progress.bound)]
        write_atomic(
            folder / PROGRESS, json.dumps({"seconds": progress.seconds, "step": figures[0], "bound": figures[1]})
        )

    try:
        planned = solve_file(job, SolveOptions(time_limit=ask.seconds), outputs, watch)
    except InterruptedSolve:
        return _so_far(folder)
    run = None if store is None else remember_solve(store, "taylor serve", [], planned)
    drawn = pipeline_view(planned.problem, planned.plan)
    answer = {"run": run, "unwritten": list(planned.unwritten), "pipeline": drawn}
    return answer | _shown(planned.result().to_dict())


def _plan_file(folder: Path, suffix: str) -> Path:
    """File for the plan: that of the framework, by its suffix."""
    return folder / next(name for name in FILES.values() if name.endswith(suffix))


def _shown(result: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a result for the page."""
    bound, unit = result["bound"], result["unit_ms"] or 1.0
    keep = ("status", "step_ms", "gap", "mfu", "mfu_precision", "tokens_per_second", "offset", "layers", "recompute",
            "peak_memory", "memory_limit", "bubble")  # fmt: skip
    return {"bound_ms": None if bound is None else bound * unit} | {name: result[name] for name in keep}


def _so_far(folder: Path) -> dict[str, Any]:
    """Take over a stopped solve's record of its best plan."""
    [config] = (folder / "work" / INTERRUPTED).glob("*-so-far.*")
    result = read_text(config.with_name(f"{config.stem.removesuffix('-so-far')}.json"))
    write_atomic(_plan_file(folder, config.suffix), config.read_bytes())
    write_atomic(folder / FILES["result"], result)
    return {"run": None, "stopped": True} | _shown(json.loads(result))


def _model_job(ask: Question, models: Models) -> ModelJob:
    """Job whose strategies are searched."""
    return ModelJob(
        models.path(ask.model), ask.ranks, ask.seq, ask.gbs, device=ask.device, margin=ask.margin,
        framework=ask.framework, software=features_of(ask.software), images=ask.images,
    )  # fmt: skip


def _rank(folder: Path, ask: Question, models: Models, store: Store | None) -> dict[str, Any]:
    files = write_strategies(_model_job(ask, models), folder / "work", RANKED)
    how = SolveOptions(time_limit=ask.seconds)
    options = RankOptions(how, 1, report=folder / FILES["report"], output=folder / "work")
    candidates = load_candidates(files, ask.device, margin=ask.margin, seen=models.seen(ask), images=ask.images)
    ranking = rank(candidates, options, own=False)
    write_atomic(folder / FILES["table"], ranking.csv.read_bytes())
    run = None if store is None else remember_ranking(store, "taylor serve", [], ranking)
    columns = ["dp", "tp", "pp", "ep", "cp", "vpp", "mbs", "cost", "gap", "mfu", "risk", "status"]
    table = _with_intervals(ranking.table, candidates)
    table = table.assign(peak=[max(peaks, default=math.nan) for peaks in table["peak_memory"].map(_stages)])
    table = table[[*columns, "low", "high", "peak"]]
    rows = json.loads(table.to_json(orient="values"))
    ties = tied_with_first(ranking.table)
    return {"run": run, "columns": list(table), "rows": rows, "ties": ties, "tie_share": NEIGHBOUR_ERROR}


def _size(folder: Path, ask: Question, models: Models) -> dict[str, Any]:
    """Curve of the job's speed over the number of devices, and what it says in words."""
    data = size([_model_job(ask, models)], SizeOptions(workers=1, seconds=ask.seconds), folder / "work").to_dict()
    [device] = data["devices"]
    write_document(folder / FILES["result"], "taylor.size/1", data)
    return {"sized": device, "lines": answer_lines(device, data)}


def _with_intervals(table: pd.DataFrame, candidates: Sequence[CandidateFile]) -> pd.DataFrame:
    """The ranking with the ends of each step's 90 % interval, ms; none where it is unknown."""
    known = {
        one.path.name: one.config.step_error(one.device.spec)
        for one in candidates
        if one.config is not None and one.device is not None
    }
    errors = [known.get(Path(file).name) for file in table["file"]]
    low = [math.nan if error is None else error.lower() for error in errors]
    high = [math.nan if error is None else error.upper() for error in errors]
    found: pd.DataFrame = table.assign(low=table["cost"] * low, high=table["cost"] * high)
    return found


def _stages(peaks: object) -> list[float]:
    """Peaks by stage of a row of a ranking; empty where it has no plan."""
    found = parse_json(peaks)
    return list(map(float, found)) if isinstance(found, list) else []


def main() -> int:
    """Do one job, and write its answer or the reason why there is none."""
    end_with_parent(int(os.environ[PARENT]))
    limit_memory(MOST_BYTES)
    os.nice(5)  # the page answers first
    folder = Path(sys.argv[1])
    try:
        answer: dict[str, Any] = work(folder)
    except TaylorError as error:
        answer = {"error": str(error)}
    except MemoryError:
        answer = {"error": f"needs more than {MOST_BYTES >> 30} GiB of memory"}
    except KeyboardInterrupt:
        answer = {"error": STOPPED}
    except Exception as error:  # a fault of ours must not leave the page waiting
        answer = {"error": f"{type(error).__name__}: {error}"}
    write_atomic(folder / DONE, json.dumps(answer, default=lambda value: asdict(value)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
