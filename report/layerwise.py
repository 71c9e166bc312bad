"""A layer-wise plan's figures for a terminal: by stage, and of the step."""

from __future__ import annotations

from rich.table import Table

from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.layerwise.checker import LayerwiseCheck


def stage_table(found: LayerwiseCheck) -> Table:
    """One row a stage: layers, time of a micro-batch, end of step, memory."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in ("stage", "layers", "forward ms", "backward ms", "tail ms", "peak MiB", "free MiB"):
        table.add_column(name, justify="right")
    for number, stage in enumerate(found.stages):
        times = (stage.forward_s, stage.backward_s, stage.tail_s)
        table.add_row(
            str(number), str(stage.layers), *(f"{1e3 * each:,.3f}" for each in times), f"{stage.peak_mib:,.0f}",
            f"{found.usable_mib - stage.peak_mib:,.0f}",
        )  # fmt: skip
    return table


def check_pairs(found: LayerwiseCheck, plan: LayerwisePlan, formula_s: float | None) -> list[tuple[str, str]]:
    """The step, a name and a sentence each."""
    pairs = [
        ("step", f"{found.step_s:.6g} s, {plan.global_batch / found.step_s:.6g} samples/s"),
        ("memory", f"{found.usable_mib:,.0f} MiB of a rank may be used"),
    ]
    if formula_s is not None:
        off = formula_s / found.step_s - 1
        pairs.append(("Galvatron's formula", f"{formula_s:.6g} s, {abs(off):.2%} {'above' if off > 0 else 'below'}"))
    return pairs
