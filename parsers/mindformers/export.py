"""A plan in the words of MindFormers' YAML."""

from __future__ import annotations

from taylor.parsers.mindformers.plan import written_offset, written_recompute
from taylor.parsers.text.yaml_source import flow_text
from taylor.parsers.training_config import body_layers
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid


def export_fragment(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    """The entries of a plan as a fragment of YAML."""
    layers = plan.total_layers() if mtp_counted else body_layers(plan)
    full, select = plan.recomputed(FULL), plan.recomputed(SELECT)
    until = as_grid(
        [[f + s if s else 0 for f, s in zip(*rows, strict=True)] for rows in zip(full, select, strict=True)]
    )
    chosen = written_recompute(until, None, None, layers) if plan.uses(SELECT) else False
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
        f"  recompute: {flow_text(written_recompute(full, None, None, layers))}",
        f"  select_recompute: {flow_text(chosen)}",
    ]
    return "\n".join(lines)
