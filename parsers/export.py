"""A plan as text for users of other launchers."""

from __future__ import annotations

import json
from typing import Callable

from taylor.base.errors import InputError
from taylor.parsers.megatron.layout import layout_text
from taylor.parsers.mindformers.plan import chunk_order, written_offset, written_recompute
from taylor.parsers.text.yaml_source import flow_text
from taylor.parsers.torchtitan.write import part_names
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, as_grid
from taylor.register.model import MTP


def export_plan(plan: PipelinePlan, form: str, *, mtp_counted: bool = True, v_shape: bool = False) -> str:
    """A plan in another launcher's words.

    Parameters
    ----------
    form : str
        One of `FORMS`: ``megatron-layout`` (the value of ``--pipeline-model-parallel-layout``),
        ``mindspeed-list`` (that of ``--num-layer-list``), ``mindformers`` (a YAML fragment),
        ``torchtitan`` (an override for its Python configurations) or ``json``.
    mtp_counted : bool
        MTP layers count in MindFormers' offset.
    v_shape : bool
        Odd interleaves run through the stages in reverse.

    Raises
    ------
    InputError
        When the form is unknown or cannot say the plan.
    """
    if form not in FORMS:
        raise InputError("is not a known form of export", field="form", value=form, cure=f"use {', '.join(FORMS)}")
    return FORMS[form](plan, mtp_counted, v_shape)


def _layout(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    if v_shape:
        raise InputError("Megatron's layout runs all interleaves forwards: it cannot say a V", field="form")
    return layout_text(plan)


def _mindspeed(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    if plan.interleaves > 1:
        raise InputError(
            "--num-layer-list holds for one interleave alone",
            field="form",
            value=plan.interleaves,
            cure="use the layout, or a script with --noop-layers",
        )
    return ",".join(map(str, _body(plan)[0]))


def _mindformers(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    held = plan.total_layers() if mtp_counted else _body(plan)
    full, select = _grid(plan, FULL), _grid(plan, SELECT)
    until = as_grid(
        [[f + s if s else 0 for f, s in zip(*rows, strict=True)] for rows in zip(full, select, strict=True)]
    )
    chosen = written_recompute(until, None, None, held) if any(map(any, select)) else False
    lines = [
        "parallel_config:",
        f"  pipeline_stage: {plan.stages}",
        "model:",
        "  model_config:",
        f"    offset: {flow_text(written_offset(plan, mtp_counted, None))}",
    ]
    if plan.interleaves > 1:
        lines.append(f"    pp_interleave_num: {plan.interleaves}")
        lines += [
            "parallel:",
            "  pipeline_config:",
            "    pipeline_interleave: True",
            f'    pipeline_scheduler: "{"zero_bubble_v" if v_shape else "1f1b"}"',
        ]
    lines += [
        "recompute_config:",
        f"  recompute: {flow_text(written_recompute(full, None, None, held))}",
        f"  select_recompute: {flow_text(chosen)}",
    ]
    return "\n".join(lines)


def _torchtitan(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    return "--parallelism.module_fqns_per_model_part=" + json.dumps(part_names(plan, v_shape), separators=(",", ":"))


def _json(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    data = {
        "stages": plan.stages,
        "interleaves": plan.interleaves,
        "order": [list(chunk) for chunk in chunk_order(plan.stages, plan.interleaves, v_shape)],
        "offset": plan.offset(() if mtp_counted else (MTP,)),
        "layers": dict(plan.layers),
        "recompute": dict(plan.recompute),
    }
    return json.dumps(data, indent=1)


def _body(plan: PipelinePlan) -> Grid:
    return plan.total_layers([kind for kind in plan.layers if kind != MTP])


def _grid(plan: PipelinePlan, mode: str) -> Grid:
    return plan.recompute.get(mode, ((0,) * plan.stages,) * plan.interleaves)


PLACING_FORMS = ("megatron-layout", "mindspeed-list", "torchtitan")
"""Forms that say where layers stand and nothing of recompute."""

FORMS: dict[str, Callable[[PipelinePlan, bool, bool], str]] = {
    "megatron-layout": _layout,
    "mindspeed-list": _mindspeed,
    "mindformers": _mindformers,
    "torchtitan": _torchtitan,
    "json": _json,
}
"""What can be exported, by name."""
