"""A result JSON read back: the problem that was solved and the plan that was found."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline_solver.problem import PipelineProblem

MTP_AMONG_LAYERS = "mtp_among_layers"
"""Key of a result: how many layers of the last kind are MTP layers, where the problem does not part them."""

_PROBLEM = TypeAdapter(PipelineProblem)


def problem_data(problem: PipelineProblem) -> dict[str, Any]:
    """The problem as plain data: everything that a second solve or a drawing needs."""
    data = _PROBLEM.dump_python(problem, mode="json")
    # What nobody pinned says nothing; and JSON has no keys that are pairs.
    unpinned = {"fixed_layers", "max_layers", "fixed_recompute"}
    if not problem.uniform_recompute:
        unpinned.add("uniform_recompute")
    return {key: value for key, value in data.items() if key not in unpinned}


@dataclass(frozen=True)
class SavedResult:
    """What a result file holds; `mtp_layers` of the last kind's layers predict further tokens (MTP)."""

    problem: PipelineProblem
    plan: PipelinePlan
    mtp_layers: int = 0


def read_result(path: Path) -> SavedResult:
    """Read a ``--result_json`` file.

    Raises
    ------
    InputError
        When it is not JSON, holds no plan, or its problem and plan do not go together.
    """
    try:
        result = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=path) from None
    if not isinstance(result, dict) or not result.get("layers") or "problem" not in result:
        raise InputError("holds no solved plan", file=path, cure="name a file that --result_json wrote")
    try:
        problem = _PROBLEM.validate_python(result["problem"])
        plan = PipelinePlan(
            {kind: as_grid(rows) for kind, rows in result["layers"].items()},
            {mode: as_grid(rows) for mode, rows in result["recompute"].items()},
        )
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in ("problem", *first["loc"]))
        raise InputError(first["msg"], file=path, field=field, value=first.get("input")) from None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise InputError(f"the plan is not one: {error}", file=path, field="layers, recompute") from None
    if (plan.stages, plan.interleaves) != (problem.stages, problem.interleaves):
        raise InputError("plan and problem differ in stages or interleaves", file=path, field="layers")
    mtp_layers = result.get(MTP_AMONG_LAYERS, 0)
    if not isinstance(mtp_layers, int) or not 0 <= mtp_layers <= problem.layers:
        raise InputError("must be a count of layers", file=path, field=MTP_AMONG_LAYERS, value=mtp_layers)
    return SavedResult(problem, plan, mtp_layers)
