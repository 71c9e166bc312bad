"""A process of the page's server that does the job of one folder: ``python -m taylor.serve.child FOLDER``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from taylor.base.errors import InterruptedSolve, TaylorError
from taylor.base.files import read_text, write_atomic
from taylor.base.orphans import end_with_parent
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.progress import Progress
from taylor.serve.question import Models, Question
from taylor.serve.script import megatron_script
from taylor.workflows.candidates import load_candidates
from taylor.workflows.history import Store, remember_ranking, remember_solve
from taylor.workflows.interrupted import FOLDER as INTERRUPTED
from taylor.workflows.model_job import ModelJob, write_strategies
from taylor.workflows.options import FileJob, Outputs
from taylor.workflows.planned_file import PlannedFile
from taylor.workflows.rank import RankOptions, rank
from taylor.workflows.solve_file import solve_file

JOB, PROGRESS, DONE = "job.json", "progress.json", "done.json"

FILES = {
    "config": "config.json",
    "script": "train.sh",
    "result": "result.json",
    "report": "report.html",
    "table": "ranking.csv",
}
"""What a job may leave for its user, by the name in a link."""

STOPPED = "stopped before there was a plan"

RANKED = 10


def work(folder: Path) -> dict[str, Any]:
    """Do the job of a folder.

    Raises
    ------
    TaylorError
        When there is no plan.
    """
    job = json.loads((folder / JOB).read_text(encoding="utf-8"))
    ask = Question.model_validate(job["ask"])
    models = Models(folder / "work", tuple(map(Path, job["folders"])))
    store = Store(job["store"]) if job["store"] else None
    return _rank(folder, ask, models, store) if job["kind"] == "rank" else _solve(folder, ask, models, store)


def _solve(folder: Path, ask: Question, models: Models, store: Store | None) -> dict[str, Any]:
    config = models.config(ask)
    text = launcher_of(config).with_strategy(config, config.strategy, None, {})
    path = write_atomic(folder / "work" / f"{config.path.stem.removesuffix('.model')}.json", text)
    outputs = Outputs(
        folder=folder / "work",
        write_to=folder / FILES["config"],
        result_json=folder / FILES["result"],
        html=folder / FILES["report"],
    )
    job = FileJob(path=path, dryrun=False, check=False, device=ask.device)

    def watch(progress: Progress) -> None:
        unit = progress.unit_ms or 1.0
        told = [None if value is None else value * unit for value in (progress.objective, progress.bound)]
        write_atomic(folder / PROGRESS, json.dumps({"seconds": progress.seconds, "step": told[0], "bound": told[1]}))

    try:
        planned = solve_file(job, SolveOptions(time_limit=ask.seconds), outputs, watch)
    except InterruptedSolve:
        return _so_far(folder)
    script_ms = _write_script(folder, ask, planned)
    run = None if store is None else remember_solve(store, "taylor serve", [], planned)
    return {"run": run, "script_ms": script_ms} | _told(planned.result().to_dict())


def _told(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a result."""
    bound, unit = result["bound"], result["unit_ms"] or 1.0
    keep = ("status", "step_ms", "gap", "mfu", "mfu_precision", "tokens_per_second", "offset", "layers", "recompute",
            "peak_memory", "memory_limit", "bubble")  # fmt: skip
    return {"bound_ms": None if bound is None else bound * unit} | {name: result[name] for name in keep}


def _so_far(folder: Path) -> dict[str, Any]:
    """Take over what a stopped solve has kept of its best plan."""
    [config] = (folder / "work" / INTERRUPTED).glob("*-so-far.json")
    result = read_text(config.with_name(config.name.replace("-so-far", "")))
    write_atomic(folder / FILES["config"], config.read_bytes())
    write_atomic(folder / FILES["result"], result)
    return {"run": None, "script_ms": None, "stopped": True} | _told(json.loads(result))


def _write_script(folder: Path, ask: Question, planned: PlannedFile) -> float | None:
    """Write a start script for Megatron-LM where it can say the model; the step time, ms, of the plan in it.

    Megatron knows one recompute choice for all chunks. A plan that has several is not put into the script: the script
    is solved as a file of its own, from that plan on.
    """
    text = megatron_script(planned.config, planned.plan, planned.facts.device.spec.devices_per_node)
    if text is None:
        return None
    path = write_atomic(folder / FILES["script"], text)
    job = FileJob(path=path, dryrun=False, check=False, device=ask.device)
    if read_config(path).plan != planned.plan:
        outputs = Outputs(folder=folder / "work", write_to=path)
        try:
            planned = solve_file(job, SolveOptions(time_limit=ask.seconds), outputs)
        except InterruptedSolve:
            path.unlink()
            return None
    step: float | None = planned.result().to_dict()["step_ms"]
    return step


def _rank(folder: Path, ask: Question, models: Models, store: Store | None) -> dict[str, Any]:
    job = ModelJob(models.path(ask.model), ask.ranks, ask.seq, ask.gbs, device=ask.device)
    files = write_strategies(job, folder / "work", RANKED)
    how = SolveOptions(time_limit=ask.seconds)
    options = RankOptions(how, 1, report=folder / FILES["report"], output=folder / "work")
    ranking = rank(load_candidates(files, ask.device), options, own=False)
    write_atomic(folder / FILES["table"], ranking.csv.read_bytes())
    run = None if store is None else remember_ranking(store, "taylor serve", [], ranking)
    columns = ["dp", "tp", "pp", "ep", "cp", "vpp", "mbs", "cost", "gap", "mfu", "status"]
    rows = json.loads(ranking.table[columns].to_json(orient="values"))
    return {"run": run, "columns": columns, "rows": rows}


def main() -> int:
    """Do one job, and leave its answer or the reason why there is none."""
    end_with_parent(int(os.environ["TAYLOR_SERVE_PARENT"]))
    os.nice(5)  # the page answers first
    folder = Path(sys.argv[1])
    try:
        told: dict[str, Any] = work(folder)
    except TaylorError as error:
        told = {"error": str(error)}
    except KeyboardInterrupt:
        told = {"error": STOPPED}
    except Exception as error:  # a fault of ours must not leave the page waiting
        told = {"error": f"{type(error).__name__}: {error}"}
    write_atomic(folder / DONE, json.dumps(told, default=lambda value: asdict(value)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
