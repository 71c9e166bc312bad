"""Table of a ranking, best candidate first, and the solved configuration that each row names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.base.errors import TaylorError
from taylor.base.files import printable
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.model.problem import MEMORY_TOLERANCE_MIB, PipelineProblem
from taylor.pipeline_solver.model.solution import CUT_OFF, FEASIBLE, OPTIMAL, OVER_LIMIT, Solution
from taylor.pipeline_solver.solving.result import Result, plan_of_row
from taylor.report.ranking import NOT_CERTAIN
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.showing.fit import Fit, is_or_are, named_flags, risk_of
from taylor.workflows.showing.verdict import sure_text

DEGREES = ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs", "micro_batches")
"""Columns of the ranking that are whole numbers."""

SPEED = (
    "samples_per_second", "tokens_per_second", "tokens_per_second_per_device", "tflops_per_device", "mfu",
    "mfu_precision", "train_days", "epoch_hours", "run_hours",
)  # fmt: skip
"""Columns of the performance at a step time."""

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
    "own",
    "gain",
    *SPEED,
    "bound_ms",
    "free_mib",
    "fullest_stage",
    "certainty",
    "risk",
)
"""Columns of the ranking: strategy, ratios, objective (body-layer forwards), cost (ms a step), proof, plan, memory;
then whether the row is a plan in a file before, the gain over that one (%), speed, the least free memory, its
certainty, and the probability that it runs out.
"""

PLACES = {str(OPTIMAL): 0, str(FEASIBLE): 0, str(CUT_OFF): 0, str(OVER_LIMIT): 1}
"""Order of the rows by status: plans that fit by their step time (or its bound, where there is no plan), the
baseline where it does not fit, all others.
"""

DOES_NOT_FIT = str(Fit.DOES_NOT_FIT)

NOT_SOLVED = {"status": "interrupted", "reason": "not solved yet"}
"""Cells of a candidate that was not reached."""


@dataclass(frozen=True)
class RankEntry:
    """Parts of a row of the ranking.

    Parameters
    ----------
    cells : mapping
        Result of the solve, or the reason why there is none.
    own : bool
        Whether the plan is the one in the candidate's file before.
    """

    candidate: CandidateFile
    cells: Mapping[str, Any]
    own: bool = False


def failed_row(reason: str) -> dict[str, Any]:
    """Cells of a candidate that could not be solved."""
    return {"status": "failed", "reason": reason}


def solved_row(problem: PipelineProblem, solution: Solution) -> dict[str, Any]:
    """Cells of a candidate that was solved, or whose plan was evaluated."""
    row = Result(problem, solution).row()
    if solution.bound is not None and problem.unit_ms is not None:
        row["bound_ms"] = solution.bound * problem.unit_ms
        if solution.status == CUT_OFF:
            row["reason"] = f"not among the best: no plan takes less than {row['bound_ms']:,.1f} ms"
    if solution.peak_memory_mib:
        stages = enumerate(zip(solution.peak_memory_mib, solution.memory_limit_mib, strict=True))
        free, stage = min((limit - peak, stage) for stage, (peak, limit) in stages)
        row |= {"free_mib": round(free, 1), "fullest_stage": stage}
        if solution.status == OVER_LIMIT:
            row["reason"] = _over_limit(solution, stage)
    return row


def _over_limit(solution: Solution, worst: int) -> str:
    stages = zip(solution.peak_memory_mib, solution.memory_limit_mib, strict=True)
    over = sum(peak > limit + MEMORY_TOLERANCE_MIB for peak, limit in stages)
    peak, limit = solution.peak_memory_mib[worst], solution.memory_limit_mib[worst]
    others = f"; {over - 1} more are over" if over > 1 else ""
    return f"{DOES_NOT_FIT}: stage {worst} needs {peak:,.0f} MiB, {peak - limit:,.0f} over its {limit:,.0f}{others}"


def ranked_table(
    entries: Sequence[RankEntry], folder: Path, length: TrainingLength = UNSTATED, *, stated: bool = True
) -> pd.DataFrame:
    """Put the candidates in order of step time, failures last, and write each solved one's configuration.

    Parameters
    ----------
    folder : Path
        Folder for the configurations with their plans.
    length : TrainingLength, optional
        Length of the training.
    stated : bool
        What it leaves out is as the files state it; off where these were made for a model.
    """
    taken: set[str] = set()
    records = [_record(entry, folder, taken, length, stated=stated) for entry in entries]
    own_speed = {
        entry.candidate.job: record.get("tokens_per_second")
        for entry, record in zip(entries, records, strict=True)
        if entry.own
    }
    for entry, record in zip(entries, records, strict=True):
        speed, own = record.get("tokens_per_second"), own_speed.get(entry.candidate.job)
        if speed and own:
            record["gain"] = 100.0 * (speed / own - 1.0)
    table = pd.DataFrame.from_records(records, columns=list(COLUMNS))
    for name in (*DEGREES, "fullest_stage"):  # whole numbers, also beside a row without any
        table[name] = table[name].astype("Int64" if table[name].isna().any() else "int64")
    keys = pd.DataFrame(
        {
            "place": table["status"].map(PLACES).fillna(len(PLACES)),
            "unknown": table["cost"].isna() & table["bound_ms"].isna(),
            "cost": table["cost"].astype(float).fillna(table["bound_ms"].astype(float)),
            "objective": table["objective"].astype(float),
        }
    )
    order = keys.sort_values(list(keys), kind="stable").index
    return table.loc[order].reset_index(drop=True)


def _certainty(candidate: CandidateFile, cells: Mapping[str, Any]) -> str | None:
    """Certainty that the fullest stage fits, in words; None where there is no plan that does."""
    config, memory, free = candidate.config, candidate.memory, cells.get("free_mib")
    if config is None or memory is None or free is None or free < 0:
        return None
    # A ranking has no interval of each candidate's peaks, so that a bounded flag is no reason for doubt here.
    higher = [flag for flag in config.unmodelled if flag.may_raise_memory and flag.most is None]
    if higher and not memory.every_flag:
        return f"{NOT_CERTAIN}: {named_flags(higher)} may raise the peak and {is_or_are(higher)} not modelled"
    limit = float(json.loads(cells["memory_limit"])[cells["fullest_stage"]])
    return sure_text(config.memory_error(memory.source), config.margin, limit - free, limit).removeprefix("; ")


def _risk(candidate: CandidateFile, cells: Mapping[str, Any]) -> tuple[float | None, bool]:
    """Largest probability that a stage runs out of memory, and whether every predicted peak is within its device's.

    The probability is None where no plan, or no error of its peaks, is known.
    """
    config, memory = candidate.config, candidate.memory
    if config is None or memory is None or not cells.get("peak_memory"):
        return None, False
    margin, known = config.margin, config.memory_error(memory.source)
    peaks, limits = (json.loads(cells[name]) for name in ("peak_memory", "memory_limit"))
    stages = list(zip(peaks, limits, strict=True))
    within = all(peak <= margin.within(limit, known) + MEMORY_TOLERANCE_MIB for peak, limit in stages)
    risks = [risk_of(known, peak, margin.around(limit, known)) for peak, limit in stages]
    found = [one for one in risks if one is not None]
    return (round(max(found), 4) if found else None), within


def _doubt(candidate: CandidateFile) -> str:
    """Clause on unmodelled flags that may lower the peaks of a plan over its limit; empty where there are none."""
    config, memory = candidate.config, candidate.memory
    lower = [] if config is None else [flag for flag in config.unmodelled if flag.may_lower_memory]
    if not lower or (memory is not None and memory.every_flag):
        return ""
    return f"; {named_flags(lower)} may lower the peak and {is_or_are(lower)} not modelled"


def _record(entry: RankEntry, folder: Path, taken: set[str], length: TrainingLength, *, stated: bool) -> dict[str, Any]:
    candidate = entry.candidate
    record: dict[str, Any] = {"own": int(entry.own)}
    if candidate.config is not None:
        record |= {name: getattr(candidate.config.strategy, name) for name in (*DEGREES, "sp")}
    if candidate.ratios is not None:
        ratios = candidate.ratios
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
    record |= entry.cells
    record["certainty"] = _certainty(candidate, entry.cells)
    record["risk"], within = _risk(candidate, entry.cells)
    if entry.cells.get("status") == OVER_LIMIT and within:
        record["reason"] = str(record["reason"]).replace(DOES_NOT_FIT, str(Fit.AT_RISK), 1)
    elif entry.cells.get("status") == OVER_LIMIT and (doubt := _doubt(candidate)):
        record["reason"] = str(record["reason"]).replace(DOES_NOT_FIT, NOT_CERTAIN, 1) + doubt
    record["file"] = printable(str(candidate.path))
    if record.get("cost"):
        speed = candidate.throughput(record["cost"], length, stated=stated)
        record |= {} if speed is None else {name: getattr(speed, name) for name in SPEED}
    plan = plan_of_row(record)
    if plan is not None and candidate.config is not None and not entry.own:
        try:
            target = folder / _free_name(candidate.path, taken)
            micro_batches = candidate.config.strategy.micro_batches if candidate.other_batch else None
            write_plan(candidate.config, plan, output=target, micro_batches=micro_batches)
            record["file"] = printable(str(target))
        except TaylorError as error:
            record["reason"] = str(error)
    return record


def _free_name(path: Path, taken: set[str]) -> str:
    """Name of the file, with a number where another candidate of the run has it."""
    name, number = path.name, 1
    while name in taken:
        number += 1
        name = f"{path.stem}-{number}{path.suffix}"
    taken.add(name)
    return name
