"""A result as plain data: a JSON file, a row of a table, and both read back."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.pipeline.plan import FULL, Grid, PipelinePlan, as_grid, deal_on, kind_of
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import (
    UNLENT_BOUND,
    UNLENT_OBJECTIVE,
    BubbleShares,
    Solution,
    Status,
    Termination,
)
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_BOUND, UNRESTRICTED_OBJECTIVE
from taylor.pipeline_solver.timing.evaluate import host_memory_mib, lent_memory_mib, link_shares

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MTP_AMONG_LAYERS = "mtp_among_layers"
"""Key of a result: the number of layers of the last kind that are MTP layers, where the problem does not separate
them."""


@cache
def _problem_adapter() -> TypeAdapter[PipelineProblem]:
    from pydantic import TypeAdapter  # here: printing a plan needs none, and it takes a while to load

    return TypeAdapter(PipelineProblem)


@dataclass(frozen=True)
class Result:
    """A problem with its solution, and what a reader of the result needs with them.

    Parameters
    ----------
    problem : PipelineProblem
    solution : Solution
    memory_source : str or None
        Source of the memory figures: ``estimate``, ``dry-run``, ….
    mtp_layers : int
        Number of layers of the last kind that are MTP layers, where the problem does not separate them.
    dryrun : sequence of mappings or None
        The dry-run of the plan as plain data, a stage an entry.
    alternatives : sequence of mappings
        The other schedules and numbers of virtual stages that were tried, as plain data.
    unmodelled : sequence of str
        A sentence for each flag of the configuration whose effect is in none of the figures.
    peak_interval_mib : sequence of (float or None, float or None) [pp], or None
        Range of each stage's peak under the effect of those flags, MiB; None: no bound is known. None as a whole: each
        peak is as it stands.
    files : mapping of str to str
        Path of every file written, by role.
    job : mapping of str to plain data
        The caller's data of the job that the problem belongs to; first in the file, and read back unchanged.
    """

    problem: PipelineProblem
    solution: Solution
    memory_source: str | None = None
    mtp_layers: int = 0
    dryrun: Sequence[Mapping[str, Any]] | None = None
    alternatives: Sequence[Mapping[str, Any]] = ()
    unmodelled: Sequence[str] = ()
    peak_interval_mib: Sequence[tuple[float | None, float | None]] | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def plan(self) -> PipelinePlan:
        """The solution's plan.

        Raises
        ------
        ValueError
            When there is none.
        """
        if self.solution.plan is None:
            raise ValueError(f"the solution has no plan: {self.solution.message or self.solution.status}")
        return self.solution.plan

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON-able data, with the keys of a ``--result_json`` file."""
        return {**self.job, **self._solved()}

    def _solved(self) -> dict[str, Any]:
        """All but the data of the job."""
        problem, solution, plan = self.problem, self.solution, self.solution.plan
        found = solution.statistics
        data: dict[str, Any] = {
            "status": solution.status.value,
            "termination": None if solution.termination is None else solution.termination.value,
            "objective": solution.objective,
            "bound": None if solution.gap is None else solution.bound,
            "gap": solution.gap,
            "unit_ms": problem.unit_ms,
            "solve_seconds": round(solution.seconds, 3),
            "solver": solution.solver,
            "schedule": problem.schedule.name,
            "stages": problem.stages,
            "interleaves": problem.interleaves,
            "micro_batches": problem.micro_batches,
            "offset": None if plan is None else _lists(plan.offset(_uncounted(problem))),
            "layers": {} if plan is None else {kind: _lists(grid) for kind, grid in plan.by_kind().items()},
            "recompute": {} if plan is None else _recompute(problem, plan),
            "peak_memory": [round(value, 3) for value in solution.peak_memory_mib],
            "peak_memory_interval": [[_rounded(low), _rounded(high)] for low, high in self._intervals()],
            "memory_limit": list(solution.memory_limit_mib),
            "memory_source": self.memory_source,
            "unmodelled": list(self.unmodelled),
            "bubble": solution.bubble_dict(),
        }
        if self.dryrun is not None:
            data["dryrun"] = [dict(stage) for stage in self.dryrun]
        if problem.choices and plan is not None:
            data["host_memory"] = [round(value, 3) for value in host_memory_mib(problem, plan)]
            data["host_link"] = [round(value, 6) for value in link_shares(problem, plan, lent=False)]
        if problem.lenders and plan is not None:
            data["lent_memory"] = [round(value, 3) for value in lent_memory_mib(problem, plan)]
            data["lent_link"] = [round(value, 6) for value in link_shares(problem, plan, lent=True)]
        data["message"] = solution.message
        if solution.params:
            data["params"] = dict(solution.params)
        if UNRESTRICTED_BOUND in found:
            # The optimum with any recompute by chunk, where the file can only express one choice for all.
            data["unrestricted"] = {
                "objective": found.get(UNRESTRICTED_OBJECTIVE),
                "bound": found[UNRESTRICTED_BOUND],
            }
        if UNLENT_OBJECTIVE in found:
            data["unlent"] = {"objective": found[UNLENT_OBJECTIVE], "bound": found.get(UNLENT_BOUND)}
        if self.mtp_layers:
            data[MTP_AMONG_LAYERS] = self.mtp_layers
        return data | {
            "alternatives": [dict(one) for one in self.alternatives],
            "problem": problem_data(problem),
            "files": dict(self.files),
        }

    def _intervals(self) -> Sequence[tuple[float | None, float | None]]:
        if self.peak_interval_mib is not None:
            return self.peak_interval_mib
        return [(peak, peak) for peak in self.solution.peak_memory_mib]

    def to_json(self) -> str:
        """`to_dict` as the text of a file, one key a line."""
        lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in self.to_dict().items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def row(self) -> dict[str, Any]:
        """The result as plain cells of a table of candidates.

        Nested figures (``offset``, ``layers``, ``recompute``, ``peak_memory``, ``memory_limit``) are JSON text, times
        are in body-layer forwards, ``cost`` is in ms and ``time`` in seconds. An unknown figure has no cell.
        """
        problem, solution, plan = self.problem, self.solution, self.solution.plan
        row: dict[str, Any] = {
            "pp": problem.stages,
            "vpp": problem.interleaves,
            "micro_batches": problem.micro_batches,
            "objective": solution.objective,
            "bound": solution.bound,
            "gap": solution.gap,
            "solver": solution.solver,
            "status": solution.status.value,
            "time": round(solution.seconds, 3),
            "reason": solution.message,
            "memory_limit": json.dumps([round(value) for value in problem.limit_mib]),
        }
        if solution.objective is not None and problem.unit_ms is not None:
            row["cost"] = solution.objective * problem.unit_ms
        if plan is not None:
            row["offset"] = json.dumps(plan.offset(_uncounted(problem)))
            row["layers"] = json.dumps(dict(plan.layers))
            row["recompute"] = json.dumps(_recompute(problem, plan))
            row["peak_memory"] = json.dumps([round(value) for value in solution.peak_memory_mib])
        return row

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], file: Path | None = None) -> Result:
        """The result that `to_dict` gave; fields that older files lack stay empty.

        Parameters
        ----------
        file : Path, optional
            Source of the data, for messages.

        Raises
        ------
        InputError
            If there is no plan, or problem and plan do not match.
        """
        if not data.get("layers") or "problem" not in data:
            raise InputError("has no solved plan", file=file, cure="name a file that --result_json wrote")
        problem = _problem_of(data["problem"], file)
        plan = _plan_of(data, problem, file)
        if (plan.stages, plan.interleaves) != (problem.stages, problem.interleaves):
            raise InputError("plan and problem differ in stages or virtual stages", file=file, field="layers")
        mtp_layers = data.get(MTP_AMONG_LAYERS, 0)
        if not isinstance(mtp_layers, int) or not 0 <= mtp_layers <= problem.layers:
            raise InputError("must be a count of layers", file=file, field=MTP_AMONG_LAYERS, value=mtp_layers)
        try:
            result = cls(
                problem,
                _solution_of(data, plan),
                memory_source=data.get("memory_source"),
                mtp_layers=mtp_layers,
                dryrun=data.get("dryrun"),
                alternatives=tuple(data.get("alternatives", ())),
                unmodelled=tuple(data.get("unmodelled", ())),
                peak_interval_mib=_interval_of(data.get("peak_memory_interval")),
                files=dict(data.get("files", {})),
            )
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise InputError(f"is not a saved result: {error}", file=file) from None
        own = result.to_dict()
        return replace(result, job={key: value for key, value in data.items() if key not in own})


def read_result(path: Path) -> Result:
    """Read a ``--result_json`` file.

    Raises
    ------
    InputError
        If it is not JSON, has no plan, or its problem and plan do not match.
    """
    try:
        data = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=path) from None
    return Result.from_dict(data if isinstance(data, dict) else {}, path)


def plan_of_row(row: Mapping[str, Any]) -> PipelinePlan | None:
    """The plan of a row, None for a candidate without one."""
    layers, recompute = row.get("layers"), row.get("recompute")
    if not isinstance(layers, str) or not isinstance(recompute, str):
        return None
    modes = {mode: as_grid(rows) for mode, rows in json.loads(recompute).items()}
    return PipelinePlan(
        {kind: as_grid(rows) for kind, rows in json.loads(layers).items()},
        {mode: grid for mode, grid in modes.items() if mode == FULL or any(map(any, grid))},
    )


def problem_data(problem: PipelineProblem) -> dict[str, Any]:
    """The problem as plain data: everything that a second solve or a drawing needs."""
    data = _problem_adapter().dump_python(problem, mode="json")
    # Empty pins say nothing; and JSON has no keys that are pairs.
    unpinned = {"fixed_layers", "max_layers", "fixed_recompute"}
    if not problem.uniform_recompute:
        unpinned.add("uniform_recompute")
    idle_where_empty = ("unsearched", "choices", "host_limit_mib", "lenders", "lent_limit_mib", "lags", "entries_alone")
    unpinned |= {name for name in idle_where_empty if not getattr(problem, name)}
    for kind in data["kinds"]:
        idle = [] if problem.choices else ["choices"]
        seldom = ("shared_mib", "joined", "pinned_first", "added_forward", "added_backward")
        idle += [name for name in seldom if not kind[name]]
        for name in idle if kind["places"] else [*idle, "places", "hand_over"]:
            kind.pop(name)
    return {key: value for key, value in data.items() if key not in unpinned}


def _uncounted(problem: PipelineProblem) -> tuple[str, ...]:
    """Kinds that the offset leaves out."""
    return tuple(kind.name for kind in problem.kinds if kind.pinned)


def _recompute(problem: PipelineProblem, plan: PipelinePlan) -> dict[str, list[list[int]]]:
    """Recomputed layers of every mode that is searched or in the plan, [vpp][pp] each."""
    known = (*problem.recompute_ratio, *problem.choices)
    modes = [mode for mode in known if mode in problem.searched_modes or plan.uses(mode)]
    return {mode: _lists(plan.recomputed(mode)) for mode in modes}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _interval_of(data: Any) -> tuple[tuple[float | None, float | None], ...] | None:
    if data is None:
        return None
    ends = [[None if end is None else float(end) for end in stage] for stage in data]
    return tuple((low, high) for low, high in ends)


def _lists(grid: Sequence[Sequence[int]]) -> list[list[int]]:
    return [list(row) for row in grid]


def _problem_of(data: Any, file: Path | None) -> PipelineProblem:
    from pydantic import ValidationError

    try:
        return _problem_adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(str(part) for part in ("problem", *first["loc"]))
        raise InputError(first["msg"], file=file, field=field_name, value=first.get("input")) from None


def _plan_of(data: Mapping[str, Any], problem: PipelineProblem, file: Path | None) -> PipelinePlan:
    """The plan that a result states by kind; runs of a kind that lie apart follow from the problem's layer order."""
    try:
        plan = PipelinePlan(
            {kind: as_grid(rows) for kind, rows in data["layers"].items()},
            {mode: as_grid(rows) for mode, rows in data["recompute"].items()},
        )
        runs = {kind.name: kind.count for kind in problem.kinds if not kind.pinned}
        if all(kind.name in plan.layers for kind in problem.kinds):
            return plan
        placement = problem.placement
        alone = [kind for kind in problem.kinds if kind.pinned]
        pinned: dict[str, Grid] = {}
        for of, several in itertools.groupby(alone, key=lambda kind: kind_of(kind.name)):
            by_run = {kind.name: kind.count for kind in several}
            pinned |= deal_on(placement, by_run, placement.values(plan.layers[of]))
        sizes = placement.values(plan.total_layers([kind for kind in plan.layers if kind not in pinned]))
        dealt = PipelinePlan({**deal_on(placement, runs, sizes), **pinned}, plan.recompute)
        if dealt.by_kind() != plan.by_kind():
            raise ValueError("its layers are not those of the problem in their order")
        return dealt
    except (ValueError, TypeError, AttributeError, KeyError, IndexError) as error:
        raise InputError(f"the plan is not one: {error}", file=file, field="layers, recompute") from None


def _solution_of(data: Mapping[str, Any], plan: PipelinePlan) -> Solution:
    bubble, unrestricted, unlent = data.get("bubble"), data.get("unrestricted") or {}, data.get("unlent") or {}
    end = data.get("termination")
    reached = {UNRESTRICTED_OBJECTIVE: unrestricted.get("objective"), UNRESTRICTED_BOUND: unrestricted.get("bound")}
    reached |= {UNLENT_OBJECTIVE: unlent.get("objective"), UNLENT_BOUND: unlent.get("bound")}
    return Solution(
        Status(data.get("status", Status.FEASIBLE)),
        None if end is None else Termination(end),
        plan=plan,
        objective=data.get("objective"),
        bound=data.get("bound"),
        solver=data.get("solver", ""),
        seconds=float(data.get("solve_seconds", 0.0)),
        peak_memory_mib=tuple(map(float, data.get("peak_memory", ()))),
        memory_limit_mib=tuple(map(float, data.get("memory_limit", ()))),
        bubble=None if bubble is None else BubbleShares(**bubble),
        statistics={name: value for name, value in reached.items() if value is not None},
        message=data.get("message", ""),
        params=data.get("params", {}),
    )
