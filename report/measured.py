"""Profiles, costs by strategy and layer-wise plans, for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.measured.cost_table import CostRow, EndCosts
from taylor.cost_model.measured.fits import MeasuredLaw
from taylor.cost_model.measured.hardware import HardwareProfile
from taylor.cost_model.measured.layer_strategy import LayerwisePlan
from taylor.parsers.galvatron.folder import MeasuredModel, ProfileFolder
from taylor.parsers.paddlenlp.auto_tuner import TrainerArguments, TunedRun, TunerJob


def folder_pairs(folder: ProfileFolder) -> list[tuple[str, str]]:
    """Contents and gaps of folders, a name and a sentence each."""
    pairs = []
    for cluster, profile in folder.hardware.items():
        pairs.append(("cluster", f"{cluster}: {_hardware(profile)}"))
        pairs += [("missing", f"{cluster}: {each}") for each in profile.missing()]
    for model in folder.models.values():
        pairs.append(("model", f"{model.name}: {_model(model)}"))
    pairs += [("strategy", f"{path.name}: {plan_text(found.plan)}") for path, found in folder.strategies.items()]
    return pairs


def _hardware(profile: HardwareProfile) -> str:
    parts = []
    if profile.all_reduce_mib_a_ms:
        ranks = sorted({group.ranks for group in profile.all_reduce_mib_a_ms})
        slow, fast = min(profile.all_reduce_mib_a_ms.values()), max(profile.all_reduce_mib_a_ms.values())
        parts.append(f"all-reduce of {_span(ranks)} ranks at {slow:.3g} to {fast:.3g} GB/s")
    if profile.transfer_mib_a_ms:
        slow, fast = min(profile.transfer_mib_a_ms.values()), max(profile.transfer_mib_a_ms.values())
        parts.append(f"transfers at {slow:.3g} to {fast:.3g} GB/s")
    for name, table in (("all-reduce", profile.all_reduce), ("all-to-all", profile.all_to_all)):
        if table:
            sizes = sorted({size for times in table.values() for size in times.ms_of_mib})
            parts.append(f"{name} times of {_span(sorted(table))} ranks, {_span(sizes)} MiB")
    if profile.overlap_slowdown is not None:
        parts.append(f"{profile.overlap_slowdown:.3g} times slower under overlap")
    return "; ".join(parts)


def _model(model: MeasuredModel) -> str:
    parts = []
    if model.computation is None:
        parts.append("no computation profile")
    elif not model.computation.layer_ms:
        parts.append(
            f"{len(model.computation.runs_ms)} timed runs, which give no layer's time: profile two numbers of layers"
        )
    else:
        shapes = sorted({shape for times in model.computation.layer_ms.values() for shape in times})
        batches, lengths = sorted({each.batch for each in shapes}), sorted({each.tokens for each in shapes})
        kinds = ", ".join(model.computation.layer_ms)
        parts.append(f"forward of {kinds} layers with {_span(batches)} samples of {_span(lengths)} tokens")
    if model.memory is None:
        parts.append("no memory profile")
    elif not model.memory.tables:
        parts.append(
            f"memory of {len(model.memory.runs)} runs, which give no layer's memory: profile two numbers of layers"
        )
    else:
        lengths = sorted({n for table in model.memory.tables.values() for kind in table.layer.values() for n in kind})
        parts.append(f"memory with {_span(lengths)} tokens ({model.rules.name})")
    return "; ".join(parts)


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def laws_table(laws: Iterable[MeasuredLaw]) -> Table:
    """Laws through a model's times: their data and how well they fit."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in ("law", "through", "points", "largest residual"):
        table.add_column(name, justify="left" if name in ("law", "through") else "right")
    for law in laws:
        points = sorted(law.points)
        span = f"{points[0]:g}" if len(points) == 1 else f"{points[0]:g} to {points[-1]:g}"
        worst = max(map(abs, law.residuals.values()))
        table.add_row(Text(law.of), f"{span} {law.cause}", str(len(points)), f"{worst:.1%}")
    return table


def costs_table(rows: Sequence[CostRow]) -> Table:
    """One row a strategy of a layer."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("layer", no_wrap=True)
    table.add_column("strategy", no_wrap=True)
    for name in ("forward ms", "backward ms", "tail ms", "states MiB", "activation MiB", "working MiB"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.kind, row.strategy.name,
            *(f"{1e3 * each:.3f}" for each in (row.forward_s, row.backward_s, row.tail_s)),
            *(f"{each:.1f}" for each in (row.states_mib, row.activation_mib, row.working_mib)),
        )  # fmt: skip
    return table


def ends_table(ends: Mapping[str, EndCosts]) -> Table:
    """One row a strategy of embedding and head, and two where they are on two stages."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("ends", no_wrap=True)
    table.add_column("strategy", no_wrap=True)
    for name in ("forward ms", "backward ms", "tail ms", "states MiB", "activation MiB"):
        table.add_column(name, justify="right")
    for strategy, costs in ends.items():
        stages = [("both", costs.first)] if costs.last is None else [("first", costs.first), ("last", costs.last)]
        for name, cost in stages:
            table.add_row(
                name, strategy,
                *(f"{1e3 * each:.3f}" for each in (cost.forward_s, cost.backward_s, cost.tail_s)),
                *(f"{each:.1f}" for each in (cost.states_mib, cost.activation_mib)),
            )  # fmt: skip
    return table


def plan_text(plan: LayerwisePlan) -> str:
    """Layer-wise plan in one line."""
    kinds = len(set(plan.layers))
    how = f"all {plan.layers[0].name}" if kinds == 1 else f"{kinds} strategies"
    return (
        f"{len(plan.layers)} layers on {plan.stages} stages of {plan.layers[0].ranks} ranks, {how}; batch "
        f"{plan.global_batch} in {plan.micro_batches} micro-batches"
    )


def layerwise_table(plan: LayerwisePlan) -> Table:
    """One row for every run of equal layers, embedding and head last."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in ("stage", "layers"):
        table.add_column(name, justify="right")
    table.add_column("strategy", no_wrap=True)
    for stage, count, layer in plan.runs():
        table.add_row(str(stage), str(count), layer.name)
    table.add_row("ends", "", plan.ends.name)
    return table


def tuner_pairs(found: TunerJob | TrainerArguments) -> list[tuple[str, str]]:
    """Job of Paddle's auto tuner, or the arguments that it changes, a name and a sentence each."""
    if isinstance(found, TrainerArguments):
        tokens = "" if found.tokens is None else f" of {found.tokens} tokens"
        return [
            ("model", found.model),
            ("strategy", _degrees(found.strategy)),
            ("sharding", f"stage {found.sharding_stage}" if found.sharding_stage else "none"),
            ("recompute", found.recompute or "none"),
            ("batch", f"{found.strategy.global_batch} samples{tokens}"),
        ]
    sizes = f"{found.layers} layers, hidden {found.hidden}, {found.heads} heads, vocabulary {found.vocab}"
    space = [(name, ", ".join(map(str, values)) or "the tuner's choice") for name, values in found.space.items()]
    return [("job", f"{found.mode}: {sizes}, batch {found.global_batch}"), *space]


def tuned_table(runs: Sequence[TunedRun]) -> Table:
    """Runs of Paddle's auto tuner, as its history has them."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    for name in ("run", "strategy", "recompute", "step ms", "peak MiB", "failed"):
        table.add_column(name, justify="right" if name in ("run", "step ms", "peak MiB") else "left")
    for run in runs:
        figures = (run.step_ms, run.peak_mib)
        shown = ("" if each is None else f"{each:,.1f}" for each in figures)
        table.add_row(str(run.number), _degrees(run.strategy), Text(run.recompute or "none"), *shown, Text(run.error))
    return table


def _degrees(strategy: Strategy) -> str:
    text = f"dp{strategy.dp} tp{strategy.tp} pp{strategy.pp}"
    return f"{text}, {strategy.micro_batches} micro-batches of {strategy.mbs}"
