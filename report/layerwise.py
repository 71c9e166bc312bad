"""Figures of a layer-wise plan for a terminal: by stage, of the step, and of its search."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table

from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.layerwise.checker import LayerwiseCheck
from taylor.layerwise.search import SearchResult, Tried

MOST_TRIED = 12
"""Outer choices that a terminal shows."""


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
    """Step, as names with a sentence each."""
    pairs = [
        ("step", f"{found.step_s:.6g} s, {plan.global_batch / found.step_s:.6g} samples/s"),
        ("memory", f"{found.usable_mib:,.0f} MiB of a rank may be used"),
    ]
    if formula_s is not None:
        off = formula_s / found.step_s - 1
        pairs.append(("Galvatron's formula", f"{formula_s:.6g} s, {abs(off):.2%} {'above' if off > 0 else 'below'}"))
    return pairs


REFINED_COLUMNS = ("candidate", "ranked ms", "own ms", "layer-wise ms", "gain", "gap", "layers that differ")


def refined_table(rows: Sequence[Sequence[str]]) -> Table:
    """One row a candidate, by `REFINED_COLUMNS`: its result with strategies by layer."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in REFINED_COLUMNS:
        table.add_column(name, justify="left" if name == "candidate" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


TRIED_COLUMNS = ("batch", "micro-batches", "stages", "interleaves", "ends", "bound s", "step s", "outcome")


def outcome_of(tried: Tried) -> str:
    """Outcome of one outer choice, in a few words."""
    if not math.isfinite(tried.bound_s):
        return "nothing fits"
    if tried.solution is None:
        return "cut off by its relaxation"
    if tried.solution.plan is None:
        return "cut off by its contents"
    return "solved"


def tried_row(tried: Tried) -> list[str]:
    """One outer choice, by `TRIED_COLUMNS`."""
    outer, solution = tried.outer, tried.solution
    ends = outer.ends.name if tried.only is None else f"all {tried.only.name}"
    if outer.buffer_tp is not None:
        ends += f", buffer tp{outer.buffer_tp}"
    step = "" if solution is None or solution.plan is None else f"{solution.step_s:.6g}"
    bound = f"{tried.bound_s:.6g}" if math.isfinite(tried.bound_s) else ""
    numbers = (outer.global_batch, outer.micro_batches, outer.stages, outer.interleaves)
    return [*map(str, numbers), ends, bound, step, outcome_of(tried)]


def tried_table(result: SearchResult) -> Table:
    """Most promising outer choices, with their outcomes."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in TRIED_COLUMNS:
        table.add_column(name, justify="left" if name in ("ends", "outcome") else "right", no_wrap=True)
    for tried in result.tried[:MOST_TRIED]:
        table.add_row(*tried_row(tried))
    return table


def tried_text(result: SearchResult) -> str:
    """Number of outer choices by outcome."""
    counts: dict[str, int] = {}
    for tried in result.tried:
        counts[outcome_of(tried)] = counts.get(outcome_of(tried), 0) + 1
    parts = [f"{count} {name}" for name, count in counts.items()]
    return f"{len(result.tried)} choices of batch, micro-batches, stages and ends: " + ", ".join(parts)


def proof_text(result: SearchResult) -> str:
    """Proof of a search's plan."""
    if not math.isfinite(result.most_samples_a_s):
        return "nothing is proven yet: not every choice was bounded"
    return f"no plan of the space has more than {result.most_samples_a_s:.6g} samples/s, gap {result.gap:.3%}"
