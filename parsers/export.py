"""A plan as text for users of other launchers."""

from __future__ import annotations

import json

from taylor.base.errors import InputError
from taylor.parsers import registry
from taylor.parsers.launcher import ExportForm
from taylor.pipeline.chunks import FREE, Placement
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.register.model import MTP

JSON = "json"
"""Form of a plan with all that it says, also of placements that no launcher has."""


def export_plan(plan: PipelinePlan, form: str, *, mtp_counted: bool = True, placement: Placement | None = None) -> str:
    """A plan in another launcher's words.

    Parameters
    ----------
    form : str
        One of `export_forms`: ``megatron-layout`` (the value of ``--pipeline-model-parallel-layout``),
        ``mindspeed-list`` (that of ``--num-layer-list``), ``mindformers`` (a YAML fragment),
        ``torchtitan`` (an override for its Python configurations) or ``json``.
    mtp_counted : bool
        MTP layers count in MindFormers' offset.
    placement : Placement, optional
        The stage of every chunk; a loop where it is left out.

    Raises
    ------
    InputError
        When the form is unknown or cannot say the plan.
    """
    placement = placement or Placement.shaped(plan.stages, plan.interleaves, v_shape=False)
    forms = export_forms()
    if form not in forms:
        raise InputError("is not a known form of export", field="form", value=form, cure=f"use {', '.join(forms)}")
    if form == JSON:
        return _json(plan, mtp_counted, placement)
    text = forms[form].text
    if text is None:
        raise InputError(
            "expresses an order of tasks, not a plan", field="form", value=form, cure="export a schedule in this form"
        )
    if placement.name == FREE:
        raise InputError(
            "puts a plan's chunks on a loop or a V, not on freely chosen stages",
            field="form", value=form, cure=f"use {JSON} for the plan, torch-actions for the order of its tasks",
        )  # fmt: skip
    return text(plan, mtp_counted, placement.name == "V")


def export_order(schedule: Schedule, form: str) -> str | None:
    """The order of a schedule's tasks in a form of `export_forms`; None where it says plans.

    Raises
    ------
    InputError
        When the form cannot say the order.
    """
    order = export_forms()[form].order
    return None if order is None else order(schedule)


def export_names() -> tuple[str, ...]:
    """Names of the export forms, known without importing any launcher."""
    return (*registry.form_names(), JSON)


def export_forms() -> dict[str, ExportForm]:
    """Export forms by name: every launcher's forms, and `JSON`, which `export_plan` writes itself."""
    forms = {name: form for launcher in registry.LAUNCHERS for name, form in launcher.export_forms.items()}
    return {**forms, JSON: ExportForm(None)}


def _json(plan: PipelinePlan, mtp_counted: bool, placement: Placement) -> str:
    data = {
        "stages": plan.stages,
        "interleaves": plan.interleaves,
        "order": [list(chunk) for chunk in placement.chunks],
        "offset": plan.offset(() if mtp_counted else (MTP,)),
        "layers": plan.by_kind(),
        "recompute": dict(plan.recompute),
    }
    return json.dumps(data, indent=1)
