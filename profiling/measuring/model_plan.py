"""Runs of a model's profile, a few layers at a time, by batch or by length, and the tables made of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from taylor.profiling.measuring.samples import TimedSample

COMPUTATION, MEMORY = "computation", "memory"
STATIC, BATCH, SEQUENCE = "static", "batch", "sequence"
MODES = (STATIC, BATCH, SEQUENCE)
STATES, ACTIVATION, PEAK = "ms", "act", "act_peak"
"""Kinds of memory by their names in Galvatron's files: states, activations behind a forward, the peak; MiB."""


@dataclass(frozen=True)
class ModelPlan:
    """Layers to run, in the words of Galvatron's profiler (its core/profiler/args_schema.py).

    Parameters
    ----------
    batches, lengths : tuple of int
        Samples and tokens a sample; more than one of either in the modes `BATCH` and `SEQUENCE`.
    layers_min, layers_max : int
        The two layer numbers whose difference gives a layer's figures.
    layer_types : int
    max_tp : int
        Largest tensor parallel degree of a memory profile.
    """

    kind: str = COMPUTATION
    mode: str = STATIC
    batches: tuple[int, ...] = (1,)
    lengths: tuple[int, ...] = (4096,)
    layers_min: int = 1
    layers_max: int = 2
    layer_types: int = 1
    max_tp: int = 1
    precision: str = "bf16"
    name: str = "model"
    hidden: int = 4096
    heads: int = 32
    ffn: int = 11008
    vocab: int = 32000
    repeats: int = 5
    attempts: int = 3


@dataclass(frozen=True)
class ModelRun:
    """One run: layers by type, samples a rank, tokens, tensor parallel degree, and whether layers are recomputed."""

    layers: tuple[int, ...]
    batch: int
    length: int
    tp: int = 1
    recomputed: bool = False

    @property
    def key(self) -> str:
        """Its name: measurements are kept by it."""
        return json.dumps([list(self.layers), self.batch, self.length, self.tp, self.recomputed])


def model_runs(plan: ModelPlan) -> Iterator[ModelRun]:
    """Every run: all types at the smaller number of layers, then each type at the larger one."""
    least = (plan.layers_min,) * plan.layer_types
    layers = [least]
    for at in range(plan.layer_types):
        layers.append(tuple(plan.layers_max if each == at else plan.layers_min for each in range(plan.layer_types)))
    degrees = [1] if plan.kind == COMPUTATION else [1 << step for step in range(plan.max_tp.bit_length())]
    for length in plan.lengths:
        for batch in plan.batches:
            for tp in degrees:
                for counts in layers:
                    yield ModelRun(counts, batch, length, tp)
                    if plan.kind == MEMORY:
                        yield ModelRun(counts, batch, length, tp, recomputed=True)


def model_tables(plan: ModelPlan, measured: Mapping[str, TimedSample]) -> dict[str, dict[str, object]]:
    """Galvatron's raw profile, by file name; of computation with the tables made of it."""
    table: dict[str, object] = {}
    if plan.kind == COMPUTATION:
        times = {run: measured[run.key].value for run in _measured_runs(plan, measured)}
        for run, value in times.items():
            table[f"layernum[{_counts(run)}]_bsz{run.batch}_seq{run.length}"] = value
        table |= _layers(plan, times)
        return {f"computation_profiling_{plan.precision}_{plan.name}_all.json": table} if table else {}
    for run in _measured_runs(plan, measured, STATES):
        data = plan.max_tp // run.tp
        group = table.setdefault(f"1_{run.tp}_{data}{'_c' if run.recomputed else ''}", {})
        assert isinstance(group, dict)
        for figure in (STATES, ACTIVATION, PEAK):
            name = f"layernum[{_counts(run)}]_bsz{run.batch * data}_seq{run.length}_rank0_{figure}"
            group[name] = measured[f"{run.key} {figure}"].value
    return {f"memory_profiling_{plan.precision}_{plan.name}_all.json": table} if table else {}


def _layers(plan: ModelPlan, times: Mapping[ModelRun, float]) -> dict[str, float]:
    """Time of a layer of each type, and of all the rest, ms a sample; 0 of a rest that noise makes negative."""
    found: dict[str, float] = {}
    least = (plan.layers_min,) * plan.layer_types
    more = plan.layers_max - plan.layers_min
    for base, whole in times.items():
        if base.layers != least:
            continue
        each = []
        for at in range(plan.layer_types):
            counts = tuple(plan.layers_max if one == at else plan.layers_min for one in range(plan.layer_types))
            larger = times.get(ModelRun(counts, base.batch, base.length))
            if larger is None or larger <= whole:
                break
            each.append((larger - whole) / more)
        if len(each) < plan.layer_types:
            continue
        shape = f"bsz{base.batch}_seq{base.length}"
        found |= {f"layertype_{at}_{shape}": time / base.batch for at, time in enumerate(each)}
        found[f"layertype_other_{shape}"] = max(whole - plan.layers_min * sum(each), 0.0) / base.batch
    return found


def _measured_runs(plan: ModelPlan, measured: Mapping[str, TimedSample], figure: str = "") -> list[ModelRun]:
    """Runs that were measured: those of the plan, and shorter ones that took their place."""
    lengths = {*plan.lengths}
    for length in plan.lengths:
        while length > 1:
            length //= 2
            lengths.add(length)
    whole = replace(plan, lengths=tuple(sorted(lengths)))
    return [run for run in model_runs(whole) if (f"{run.key} {figure}" if figure else run.key) in measured]


def _counts(run: ModelRun) -> str:
    return ",".join(map(str, run.layers))
