"""The table of a ranking, best candidate first, and the solved configuration that each row names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from taylor.base.errors import TaylorError
from taylor.base.files import printable
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL
from taylor.pipeline_solver.result import plan_of_row
from taylor.pipeline_solver.solution import FEASIBLE, OPTIMAL
from taylor.workflows.candidate_file import CandidateFile

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

NOT_SOLVED = {"status": "interrupted", "reason": "not solved yet"}
"""Cells of a candidate whose turn did not come."""


def failed_row(reason: str) -> dict[str, Any]:
    """Cells of a candidate that could not be solved."""
    return {"status": "failed", "reason": reason}


def ranked_table(candidates: Sequence[CandidateFile], rows: Mapping[int, dict[str, Any]], folder: Path) -> pd.DataFrame:
    """Put the candidates in order of step time, failures last, and write each solved one's configuration.

    Parameters
    ----------
    rows : mapping of int to dict
        The cells of each candidate that was solved or failed, by its number.
    folder : Path
        Takes the configurations with their plans.
    """
    records = [_record(one, rows.get(number, NOT_SOLVED), folder) for number, one in enumerate(candidates)]
    table = pd.DataFrame.from_records(records, columns=list(COLUMNS))
    for name in DEGREES:  # whole numbers, also beside a row without any
        table[name] = table[name].astype("Int64" if table[name].isna().any() else "int64")
    solved = table["status"].isin([str(OPTIMAL), str(FEASIBLE)])
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


def _record(candidate: CandidateFile, row: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = {}
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
    record |= row
    plan = plan_of_row(record)
    record["file"] = printable(str(candidate.path))
    if plan is not None and candidate.config is not None:
        try:
            target = folder / candidate.path.name
            micro_batches = candidate.config.strategy.micro_batches if candidate.other_batch else None
            write_plan(candidate.config, plan, output=target, micro_batches=micro_batches)
            record["file"] = printable(str(target))
        except TaylorError as error:
            record["reason"] = str(error)
    return record
