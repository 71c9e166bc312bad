"""A plan in the formats of other launchers, written to a file or printed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.parsers.export import export_forms, export_order, export_plan
from taylor.parsers.stage_comment import comment_of, rows_of
from taylor.pipeline.chunks import Placement
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import PipelinePlan, as_grid, deal_on
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.model.problem import PipelineProblem, card_rows
from taylor.pipeline_solver.solving.result import read_result
from taylor.register.model import DENSE, MTP
from taylor.register.tower import IN_FRONT
from taylor.workflows.statement.options import Export


def refuse_impossible(exports: Sequence[Export], interleaves: int, schedule: ScheduleSpec) -> None:
    """Refuse, before the solve, a form that can state no plan with this many virtual stages.

    Raises
    ------
    InputError
        When a form cannot.
    """
    least = PipelinePlan({DENSE: as_grid([[1]] * interleaves)}, {})
    # No tasks, for a form that states orders: it refuses a schedule of which it can state no order.
    idle = Schedule(schedule, 1, interleaves, 1, np.zeros((1, 0, 4), dtype=np.int32))
    for one in exports:
        if export_order(idle, one.form) is None:
            export_plan(least, one.form, placement=schedule.placement(1, interleaves))


def export_texts(
    exports: Sequence[Export], problem: PipelineProblem, plan: PipelinePlan, mtp_layers: int = 0
) -> list[tuple[Export, str]]:
    """Text of every export.

    Parameters
    ----------
    mtp_layers : int
        MTP layers that the problem counts as the last ones of another kind.

    Raises
    ------
    InputError
        When a form cannot state the plan.
    """
    pinned = any(kind.pinned for kind in problem.kinds)
    written = with_mtp(plan.with_runs_joined(MTP).without(*IN_FRONT), mtp_layers, problem.placement)
    texts = []
    forms = export_forms()
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    for one in exports:
        if (order := export_order(schedule, one.form)) is not None:
            texts.append((one, order))
            continue
        text = export_plan(written, one.form, mtp_counted=not pinned, placement=problem.placement)
        texts.append((one, with_cards(text, problem.cards)))
        if forms[one.form].places_only and any(any(map(any, grid)) for grid in plan.recompute.values()):
            log.warning("export %s: says where layers stand, not which are recomputed; json says both", one.form)
    return texts


def with_cards(text: str, cards: Sequence[str]) -> str:
    """Text of a plan with the devices of its stages: a key of JSON, else a comment before it."""
    if not cards:
        return text
    if text.startswith("{"):
        return json.dumps({**json.loads(text), "stage_devices": list(cards)}, indent=1)
    return f"{comment_of(rows_of(card_rows(cards)))}\n{text}"


def with_mtp(plan: PipelinePlan, mtp_layers: int, placement: Placement) -> PipelinePlan:
    """Plan whose last layers in model order are named as the MTP layers that they are."""
    if not mtp_layers or MTP in plan.layers:
        return plan
    counts = {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()}
    last_kind = list(counts)[-1]
    counts[MTP] = min(mtp_layers, counts[last_kind])
    counts[last_kind] -= counts[MTP]
    return PipelinePlan(deal_on(placement, counts, placement.values(plan.total_layers())), plan.recompute)


def export_what_can_be(
    exports: Sequence[Export],
    problem: PipelineProblem,
    plan: PipelinePlan,
    mtp_layers: int,
    failed: list[str],
) -> list[tuple[Export, str]]:
    """Texts of the forms that can state the plan; the others are logged, and their names added to `failed`."""
    texts: list[tuple[Export, str]] = []
    for one in exports:
        try:
            texts += export_texts([one], problem, plan, mtp_layers)
        except InputError as problem_with_it:
            log.warning("export %s is left out: %s", one.form, problem_with_it)
            failed.append(f"export {one.form}")
    return texts


def store_exports(texts: Sequence[tuple[Export, str]]) -> dict[str, str]:
    """Write the exports that have a file; keyed by role ``export FORM``.

    Raises
    ------
    InputError
        When a file cannot be written.
    """
    files = {}
    for one, text in texts:
        if one.path is not None:
            write_atomic(one.path, text + "\n")
            files[f"export {one.form}"] = str(one.path)
    return files


def print_exports(texts: Sequence[tuple[Export, str]]) -> None:
    """Print the exports without a file, each under its form."""
    for one, text in texts:
        if one.path is None:
            print(f"{one.form}: {text}" if "\n" not in text else f"{one.form}:\n{text}")


def export_saved(exports: Sequence[Export], solution: Path) -> list[tuple[Export, str]]:
    """Exports of a saved result.

    Raises
    ------
    InputError
        When the file is no result JSON (a ``.sol`` names no schedule), or a form cannot state its plan.
    """
    if solution.suffix == ".sol":
        raise InputError(
            "does not say the schedule that an export needs",
            file=solution,
            cure="name the result JSON of the same run (--result_json)",
        )
    saved = read_result(solution)
    return export_texts(exports, saved.problem, saved.plan, saved.mtp_layers)
