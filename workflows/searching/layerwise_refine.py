"""Best candidates of a ranking, each searched layer by layer on estimates: the cost of one strategy for all layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.console import log, progress
from taylor.base.errors import InputError, TaylorError
from taylor.base.interrupts import delay_interrupts, presses
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.layerwise.checker import check_plan
from taylor.layerwise.search import OuterSpace
from taylor.layerwise.space import SpaceLimits
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, values_in_order
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.solution import FEASIBLE, OPTIMAL
from taylor.pipeline_solver.solving.result import plan_of_row
from taylor.report.compress import strategy_text
from taylor.schemas.writing import write_document
from taylor.workflows.layerwise.layerwise import LayerwiseRequest
from taylor.workflows.layerwise.layerwise_outputs import Wanted, write_outputs
from taylor.workflows.layerwise.layerwise_search import ESTIMATE, SearchedJob, SearchRequest, plan_record, search_job
from taylor.workflows.searching.search import StrategySearch

MOST_REFINED = 3
"""Candidates that are refined, the best of those with a plan that fits."""
TIME_LIMIT_S = 60.0
"""Seconds of one candidate by default."""
FOLDER = "layerwise"
"""Folder, in that of a run, of the plans."""


@dataclass(frozen=True)
class RefinedCandidate:
    """Candidate, and its result with strategies by layer.

    Parameters
    ----------
    name : str
    ranked_ms : float
        Its step in the ranking, ms: on the costs of its launcher.
    searched : SearchedJob or None
    own : LayerwisePlan or None
        Its ranked plan as a layer-wise one; None where none states its recompute.
    own_ms : float or None
        Step of that plan on the layer-wise costs, ms.
    own_faults : tuple of str
        Reasons why that plan would not run, if any: it exceeds the memory under these costs.
    reason : str
        Reason why it is not refined; empty where it is.
    """

    name: str
    ranked_ms: float
    searched: SearchedJob | None = None
    own: LayerwisePlan | None = None
    own_ms: float | None = None
    own_faults: tuple[str, ...] = ()
    reason: str = ""

    @property
    def differing(self) -> int | None:
        """Layers whose strategy is not the candidate's."""
        plan = None if self.searched is None else self.searched.result.plan
        if plan is None or self.own is None:
            return None
        return sum(ours != own for ours, own in zip(plan.layers, self.own.layers, strict=True))

    def row(self) -> list[str]:
        """By `report.layerwise.REFINED_COLUMNS`."""
        assert self.searched is not None
        result, differing = self.searched.result, self.differing
        own = "-" if self.own_ms is None else f"{self.own_ms:,.1f}{'*' * bool(self.own_faults)}"
        gain = "-" if self.own_ms is None or self.own_faults else f"{self.own_ms / (1e3 * result.step_s) - 1:+.1%}"
        layers = "-" if differing is None else f"{differing} of {self.searched.job.layers}"
        return [
            self.name, f"{self.ranked_ms:,.1f}", own, f"{1e3 * result.step_s:,.1f}", gain, f"{result.gap:.2%}", layers
        ]  # fmt: skip

    def to_dict(self) -> Mapping[str, Any]:
        """Refinement as plain data."""
        return {
            "candidate": self.name,
            "ranked_ms": self.ranked_ms,
            "own_ms": self.own_ms,
            "own_plan": None if self.own is None else plan_record(self.own),
            "own_faults": list(self.own_faults),
            "layers_that_differ": self.differing,
            "reason": self.reason,
            "layerwise": None if self.searched is None else self.searched.to_dict(),
        }


@dataclass(frozen=True)
class Refinement:
    """Candidates in the order of the ranking, notes for the table, and the files by role."""

    every: tuple[RefinedCandidate, ...]
    notes: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    interrupted: bool

    @property
    def refined(self) -> tuple[RefinedCandidate, ...]:
        """Those with a result."""
        return tuple(one for one in self.every if not one.reason)

    @property
    def left_out(self) -> tuple[RefinedCandidate, ...]:
        """Those without one."""
        return tuple(one for one in self.every if one.reason)


def refine_best(done: StrategySearch, time_limit: float | None = None) -> Refinement:
    """Search the best candidates of a ranked search layer by layer; their batch, stages and virtual stages stay.

    Parameters
    ----------
    time_limit : float, optional
        Seconds of each; default `TIME_LIMIT_S`.
    """
    assert done.ranking is not None and done.ranking.folder is not None
    table, folder = done.ranking.table, done.ranking.folder / FOLDER
    solved = table[(table["own"] == 0) & table["status"].isin([str(OPTIMAL), str(FEASIBLE)]) & table["cost"].notna()]
    every, files, notes, interrupted, before = [], [], [], False, presses()
    for row in solved.head(MOST_REFINED).to_dict("records"):
        name, ranked_ms = strategy_text(row), float(row["cost"])
        if interrupted:
            every.append(RefinedCandidate(name, ranked_ms, reason="Ctrl-C ended the search before its turn"))
            continue
        try:
            one = _refined(done, row, time_limit or TIME_LIMIT_S)
            assert one.searched is not None
            interrupted = one.searched.result.interrupted
            if not one.reason:
                written = write_outputs(one.searched, Wanted(folder / Path(str(row["file"])).stem))
                files += [("layer-wise plan", file) for file in written.files.values()]
                notes += [f"{name}: {note}" for note in written.notes]
        except TaylorError as error:
            one = RefinedCandidate(name, ranked_ms, reason=str(error))
        except KeyboardInterrupt:
            one = RefinedCandidate(name, ranked_ms, reason="Ctrl-C ended its search")
            interrupted = True
        interrupted = interrupted or presses() > before
        every.append(one)
    refined = tuple(one for one in every if not one.reason)
    if every:
        with delay_interrupts():
            data = {"candidates": [one.to_dict() for one in every]}
            files.append(("layer-wise", str(write_document(folder / "layerwise.json", "taylor.refined/1", data))))
    else:
        notes.append("layer by layer nothing is refined: no candidate has a plan that fits")
    if refined:
        notes.insert(0, "own: the ranked plan on the layer-wise costs, estimates under Galvatron; ranked: on its own")
    if any(one.own_faults for one in refined):
        notes.insert(1, "*: does not fit under these costs")
    return Refinement(tuple(every), tuple(notes), tuple(files), interrupted)


def _refined(done: StrategySearch, row: Mapping[str, Any], time_limit: float) -> RefinedCandidate:
    """Search one candidate.

    Raises
    ------
    InputError
        When layer-wise costs cannot state it.
    """
    config, name = done.config, strategy_text(row)
    dp, tp, pp, cp, vpp, m = (int(row[key]) for key in ("dp", "tp", "pp", "cp", "vpp", "micro_batches"))
    schedule = _schedule(config, row)
    request = SearchRequest(
        LayerwiseRequest(
            (), config.rules.seq_length, 0, min(json.loads(row["memory_limit"])) / 1024, ESTIMATE,
            sequence_parallel=bool(row["sp"]) or tp == 1,
        ),
        dp * tp * pp * cp, None,
        OuterSpace(
            (dp * int(row["mbs"]) * m,), (m,), (pp,), (vpp,), schedule.name, schedule.name,
            SpaceLimits(all_degrees=any(degree & (degree - 1) for degree in (dp, tp))),
        ),
        device=done.device, time_limit=time_limit, rival=False, model=config.model,
    )  # fmt: skip
    with progress(f"layer by layer: {name}", None) as moved:
        searched = search_job(request, report=lambda text: log.info("%s: %s", name, text), moved=moved)
    ranked_ms, result = float(row["cost"]), searched.result
    if result.plan is None:
        ended = "Ctrl-C" if result.interrupted else f"the time limit of {time_limit:g} s"
        fits = f"no strategy of its layers fits {searched.job.limit_mib:,.0f} MiB under the layer-wise costs"
        why = fits if result.most_samples_a_s == 0 else f"{ended} ended the search before any plan"
        return RefinedCandidate(name, ranked_ms, searched, reason=why)
    own = _own_plan(config, row, schedule)
    if own is None:
        return RefinedCandidate(name, ranked_ms, searched)
    found = check_plan(searched.job, own, searched.provider)
    return RefinedCandidate(name, ranked_ms, searched, own, 1e3 * found.step_s, found.faults)


def _schedule(config: TrainingConfig, row: Mapping[str, Any]) -> ScheduleSpec:
    """Schedule of the candidate; refuses what layer-wise costs and plans cannot state.

    Raises
    ------
    InputError
        With the field.
    """
    for field, what in (("ep", "expert"), ("cp", "context")):
        if row[field] > 1:
            raise InputError(f"the layer-wise costs know no {what} parallelism", field=field.upper(), value=row[field])
    kinds = config.model.kind_counts
    if len(kinds) > 1:
        raise InputError(
            "the ranked plan mixes kinds of layers, and those of one kind are refined", field="layers",
            value=", ".join(kinds), cure="taylor layerwise --costs estimate takes kinds that stand together",
        )  # fmt: skip
    if row["micro_batches"] < row["pp"]:
        raise InputError(
            f"a layer-wise plan has one for each of {row['pp']} stages", field="micro-batches",
            value=row["micro_batches"],
        )  # fmt: skip
    spec = config.schedule.for_interleaves(int(row["vpp"]), config.rules.framework)
    if spec != ScheduleSpec(spec.name) or not (spec.traits.one_forward_one_backward or spec.name == "gpipe"):
        raise InputError("layer-wise plans run no such schedule, or not with its switches", field="schedule",
                         value=spec.name)  # fmt: skip
    return spec


def _own_plan(config: TrainingConfig, row: Mapping[str, Any], schedule: ScheduleSpec) -> LayerwisePlan | None:
    """Ranked plan, layer by layer; None where it recomputes by module, which no layer-wise plan states.

    A distributed optimizer is ZeRO-2 here, the least that a layer-wise plan has.
    """
    plan = plan_of_row(row)
    if plan is None or any(mode != FULL for mode in plan.recompute):
        return None
    v_shape = schedule.v_shape
    [grid] = plan.layers.values()
    division, full = (values_in_order(each, v_shape) for each in (grid, plan.recomputed(FULL)))
    dp, tp = int(row["dp"]), int(row["tp"])
    zero = 0 if dp == 1 else 3 if config.rules.parameter_shard else 2 if int(row["op"]) > 1 else 0
    kept, again = (LayerStrategy(tp=tp, dp=dp, zero=zero, recompute=each) for each in (False, True))
    layers = [again if at < count else kept for size, count in zip(division, full, strict=True) for at in range(size)]
    return LayerwisePlan(
        tuple(division), tuple(layers), EndStrategy(tp=tp, dp=dp, zero=zero), dp * int(row["mbs"]) *
        int(row["micro_batches"]), int(row["micro_batches"]), schedule.name, interleaves=int(row["vpp"]),
    )  # fmt: skip
