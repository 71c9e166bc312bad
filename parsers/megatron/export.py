"""A plan in the words of Megatron's and MindSpeed's flags."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.megatron.layout import layout_text
from taylor.parsers.training_config import body_layers
from taylor.pipeline.plan import PipelinePlan


def export_layout(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    """The value of ``--pipeline-model-parallel-layout``."""
    if v_shape:
        raise InputError("Megatron's layout runs every virtual stage forwards: it cannot express a V", field="form")
    return layout_text(plan)


def export_layer_list(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    """The value of MindSpeed's ``--num-layer-list``."""
    if plan.interleaves > 1:
        raise InputError(
            "--num-layer-list works without virtual stages only",
            field="form",
            value=plan.interleaves,
            cure="use the layout, or a script with --noop-layers",
        )
    return ",".join(map(str, body_layers(plan)[0]))
