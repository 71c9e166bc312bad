"""Raw measurements of whole runs become tables of one layer and of the rest, by differences of layer numbers.

Two runs differ in the layers that one has more; the rest of the smaller run is embedding, head and loss.
Both profilers' arithmetic: Hetu-Galvatron cea12ff galvatron/core/profiler/model_profiler.py:409-806, paddle-galvatron
b0bdd07 paddlenlp/experimental/galvatron/profiler/model_profiler.py (`_process_computation_data`,
`_process_single_sequence_config`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from taylor.base.errors import InputError
from taylor.cost_model.measured.profiles import (
    ComputationProfile,
    LayerMemory,
    MeasuredMemory,
    MemoryLayout,
    MemoryRun,
    MemoryTables,
    OtherMemory,
    ProfileRules,
    RankMemory,
    Shape,
    TimedRun,
)

HALVED_WAYS = (2, 4, 8)
"""Ways that count as half of the next fewer where they were not measured."""


def kind_names(count: int) -> tuple[str, ...]:
    """The layer kinds of a model whose profile numbers them: one is the body, two are encoder and decoder."""
    named = {1: ("body",), 2: ("encoder", "decoder")}
    return named.get(count) or tuple(f"layers of group {index}" for index in range(count))


def run_key(run: TimedRun) -> str:
    """A timed run's key, for messages."""
    return f"{_layers(run.layers)}_{_shape(run.shape)}"


def memory_key(run: MemoryRun) -> str:
    """A memory run's group and key, for messages."""
    at = run.layout
    group = f"{at.pp}_{at.tp}_{at.dp}"
    group += "_c" * at.recompute + "_vtp" * at.vocabulary_split + "_sp" * at.sequence_parallel
    rank = f"rank{at.world - 1 if run.last else 0}"
    return f"{group}.{_layers(run.layers)}_{_shape(run.shape)}_{rank}"


def _layers(layers: tuple[int, ...]) -> str:
    return f"layernum[{','.join(map(str, layers))}]"


def _shape(shape: Shape) -> str:
    return f"bsz{shape.batch}_seq{','.join(map(str, shape.sequence))}"


@dataclass(frozen=True)
class _Steps:
    """The layer numbers of a profile: the smallest of every kind, and for each kind the run with more of it alone."""

    base: tuple[int, ...]
    more: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, layers: Iterable[tuple[int, ...]]) -> _Steps | None:
        """The steps among some layer numbers; None where a run that they need is missing."""
        known = set(layers)
        if not known or len({len(each) for each in known}) > 1:
            return None
        base = tuple(min(column) for column in zip(*known, strict=True))
        more = []
        for kind in range(len(base)):
            alone = [
                each
                for each in known
                if each[kind] > base[kind] and all(each[i] == base[i] for i in range(len(base)) if i != kind)
            ]
            if not alone:
                return None
            more.append(max(alone))
        return cls(base, tuple(more)) if base in known else None

    def growth(self, kind: int) -> int:
        """Layers that the larger run of a kind has more."""
        return self.more[kind][kind] - self.base[kind]


def with_layer_times(profile: ComputationProfile) -> ComputationProfile:
    """A profile whose tables are made of its raw runs; tables that need no run or miss one stay as they are.

    Raises
    ------
    InputError
        When more layers took less time.
    """
    layer_ms = {kind: dict(times) for kind, times in profile.layer_ms.items()}
    other_ms = dict(profile.other_ms)
    for shape in sorted({run.shape for run in profile.runs_ms}):
        steps = _Steps.of(run.layers for run in profile.runs_ms if run.shape == shape)
        if steps is None:
            continue
        base_ms = rest_ms = profile.runs_ms[TimedRun(steps.base, shape)]
        for kind, name in enumerate(kind_names(len(steps.base))):
            larger = TimedRun(steps.more[kind], shape)
            each = (profile.runs_ms[larger] - base_ms) / steps.growth(kind)
            if each <= 0:
                raise InputError(
                    f"takes no longer than with {steps.base[kind]} layers, so that a layer has no time",
                    file=profile.source,
                    field=run_key(larger),
                    value=profile.runs_ms[larger],
                    cure="measure both runs again on undisturbed devices",
                )
            layer_ms.setdefault(name, {})[shape] = each / shape.batch
            rest_ms -= steps.base[kind] * each
        other_ms[shape] = max(rest_ms / shape.batch, 0.0)
    return replace(profile, layer_ms=layer_ms, other_ms=other_ms)


def with_memory_tables(profile: MeasuredMemory, rules: ProfileRules) -> MeasuredMemory:
    """A profile whose tables are made of its raw runs; sequence lengths that miss a run stay as they are.

    Raises
    ------
    InputError
        When more layers took less memory.
    """
    tables = dict(profile.tables)
    for split in sorted({run.layout.sequence_parallel for run in profile.runs}):
        for world in sorted({run.layout.world for run in profile.runs}):
            runs = {
                run: memory
                for run, memory in profile.runs.items()
                if run.layout.sequence_parallel == split and run.layout.world == world
            }
            for sequence in sorted({run.shape.sequence for run in runs}):
                here = {run: memory for run, memory in runs.items() if run.shape.sequence == sequence}
                made = _Processing(here, rules, world, profile.source).table(split)
                if made is not None:
                    tables[split] = _joined(tables.get(split), made, sequence[0])
    return replace(profile, tables=tables)


_OneLength = tuple[Mapping[str, LayerMemory], OtherMemory, OtherMemory, OtherMemory]


def _joined(tables: MemoryTables | None, made: _OneLength, tokens: int) -> MemoryTables:
    layer, alone, first, last = made
    old = tables or MemoryTables({}, {}, {}, {})
    kinds = {kind: {**old.layer.get(kind, {}), tokens: memory} for kind, memory in layer.items()}
    return MemoryTables(
        {**old.layer, **kinds},
        *(
            {**ends, tokens: made} if made.states_mib else ends
            for ends, made in ((old.alone, alone), (old.first, first), (old.last, last))
        ),
    )


@dataclass(frozen=True)
class _Processing:
    """Memory runs of one world and one sequence length."""

    runs: Mapping[MemoryRun, RankMemory]
    rules: ProfileRules
    world: int
    source: str

    @cached_property
    def sharded(self) -> bool:
        """Return whether the runs sharded parameters too (ZeRO-3), as both profilers do by default.

        A layer's states on a rank are then the same under every TP, for the rest is split over DP; else they shrink
        with TP. One way alone does not decide it.
        """
        grown = {}
        for at in {run.layout for run in self.runs if run.layout.pp == 1 and not run.layout.recompute}:
            found = self._steps(at)
            if found is not None and not at.vocabulary_split:
                steps, batch = found
                more, base = (self._memory(at, layers, batch).states_mib for layers in (steps.more[0], steps.base))
                grown[at.tp] = max(more - base, 1e-9)
        least, most = min(grown, default=1), max(grown, default=1)
        return least == most or grown[least] / grown[most] < math.sqrt(most / least)

    def table(self, sequence_parallel: bool) -> _OneLength | None:
        """Their table; None where they do not separate a layer from the rest."""
        layouts = {run.layout for run in self.runs}
        plain = {at.tp: at for at in layouts if at.pp == 1 and not at.recompute and not at.vocabulary_split}
        found = {tp: self._layer(at) for tp, at in sorted(plain.items())}
        known = {tp: layer for tp, layer in found.items() if layer is not None}
        if 1 not in known:
            return None
        kinds = kind_names(len(known[1]))
        recomputed = [self._recomputed(at) for at in layouts if at.pp == 1 and at.recompute]
        layers = {}
        for index, kind in enumerate(kinds):
            activation = {tp: layer[index][1] for tp, layer in known.items()}
            if sequence_parallel:
                _halve(activation)
            most = [each[index] for each in recomputed if each is not None]
            layers[kind] = LayerMemory(
                parameter_mib=max(layer[index][0] * tp for tp, layer in known.items()),
                activation_mib=activation,
                recomputed_mib=max(most) if most else None,
            )
        alone, first, last = _Least(), _Least(), _Least()
        for at in sorted(at for at in layouts if not at.recompute and at.tp in known):
            self._rest(at, known[at.tp], alone, first, last)
        return layers, alone.memory(sequence_parallel), first.memory(sequence_parallel), last.memory(sequence_parallel)

    def _steps(self, at: MemoryLayout) -> tuple[_Steps, int] | None:
        """Layer numbers of a layout's runs on the first rank, and their batch."""
        mine = [run for run in self.runs if run.layout == at and not run.last]
        batch = max((run.shape.batch for run in mine), default=0)
        steps = _Steps.of(run.layers for run in mine if run.shape.batch == batch)
        return None if steps is None else (steps, batch)

    def _memory(self, at: MemoryLayout, layers: tuple[int, ...], batch: int, last: bool = False) -> RankMemory:
        sequence = next(iter(self.runs)).shape.sequence
        run = MemoryRun(at, layers, Shape(batch, sequence), last)
        if run not in self.runs:
            raise InputError(
                f"is missing, and the memory of the {'last' if last else 'first'} stage needs it",
                file=self.source,
                field=memory_key(run),
                cure="run that case of the profiler again",
            )
        return self.runs[run]

    def _layer(self, at: MemoryLayout) -> tuple[tuple[float, float], ...] | None:
        """Parameters on a rank without ZeRO and activation a sample of a layer, MiB, by kind."""
        found = self._steps(at)
        if found is None:
            return None
        steps, batch = found
        base = self._memory(at, steps.base, batch)
        layers = []
        for kind, larger in enumerate(steps.more):
            more = self._memory(at, larger, batch)
            states = (more.states_mib - base.states_mib) / steps.growth(kind)
            activation = (more.activation_mib - base.activation_mib) / steps.growth(kind)
            for part, figure in (("ms", states), ("act", activation)):
                if not figure > 0:
                    raise InputError(
                        f"is no more than with {steps.base[kind]} layers, or missing, so that a layer has no memory",
                        file=self.source,
                        field=f"{memory_key(MemoryRun(at, larger, self._shape(batch), False))}_{part}",
                        cure="run both cases of the profiler again",
                    )
            whole = states / self.rules.states_of_parameters * (at.dp if self.sharded else 1)
            layers.append((whole, activation * self.world / (at.tp * batch)))
        return tuple(layers)

    def _recomputed(self, at: MemoryLayout) -> tuple[float, ...] | None:
        """Activation a sample of a recomputed layer, by kind; Paddle's before it is split over TP."""
        layer = self._layer(at)
        whole = at.tp if self.rules.name == "paddle" else 1
        return None if layer is None else tuple(activation * whole for _, activation in layer)

    def _shape(self, batch: int) -> Shape:
        return Shape(batch, next(iter(self.runs)).shape.sequence)

    def _rest(
        self, at: MemoryLayout, layer: tuple[tuple[float, float], ...], alone: _Least, first: _Least, last: _Least
    ) -> None:
        """Take the memory of a layout's run outside its layers into the least figures."""
        paddle = self.rules.name == "paddle"
        mine = [run for run in self.runs if run.layout == at and not run.last]
        batch = max((run.shape.batch for run in mine), default=0)
        # A pipeline is measured with a layer of every kind a stage, the rest with the fewest layers.
        numbers = min((run.layers for run in mine if run.shape.batch == batch), default=())
        if not numbers:
            return
        # The split of the vocabulary: Paddle's runs all have it.
        ways = at.tp if at.vocabulary_split or paddle else 1
        # Without a pipeline all ranks are alike; Paddle has a file each for the first and last stage, and one may be
        # missing.
        with_last = at.pp > 1 and any(run.last for run in self.runs)
        for end in (False, True) if with_last else (False,):
            memory = self._memory(at, numbers, batch, end)
            counts = _on_stage(numbers, at.pp, end)
            layer_states = (
                sum(n * one[0] for n, one in zip(counts, layer, strict=True)) * self.rules.states_of_parameters
            )
            layer_activation = sum(n * one[1] for n, one in zip(counts, layer, strict=True))
            states = memory.states_mib - layer_states
            if self.sharded:
                replicas = self.world // at.pp if not paddle else at.dp
                states = (memory.states_mib - layer_states / at.dp) * replicas / (1 if paddle else ways)
            peak = memory.activation_mib if paddle and at.pp == 1 else max(memory.peak_mib, memory.activation_mib)
            samples = batch / at.dp
            rest = (peak - layer_activation * samples) / (batch * at.pp / self.world * (at.tp if paddle else ways))
            figures = (max(states, 0.0), max(rest, 0.0))
            (alone if at.pp == 1 else last if end else first).take(ways, *figures)


def _on_stage(numbers: tuple[int, ...], stages: int, last: bool) -> list[int]:
    """Layers by kind on the first or last of a number of equal stages."""
    kinds = [kind for kind, number in enumerate(numbers) for _ in range(number)]
    each = len(kinds) // stages
    mine = kinds[-each:] if last else kinds[:each]
    return [mine.count(kind) for kind in range(len(numbers))]


class _Least:
    """The least states and activations by ways, over the runs that measured them."""

    def __init__(self) -> None:
        self.states: dict[int, float] = {}
        self.activation: dict[int, float] = {}

    def take(self, ways: int, states: float, activation: float) -> None:
        self.states[ways] = min(self.states.get(ways, math.inf), states)
        self.activation[ways] = min(self.activation.get(ways, math.inf), activation)

    def memory(self, halve: bool) -> OtherMemory:
        """Both; ways that were not measured count as half of the next fewer where that is valid."""
        if halve:
            _halve(self.states)
            _halve(self.activation)
        return OtherMemory(dict(sorted(self.states.items())), dict(sorted(self.activation.items())))


def _halve(by_ways: dict[int, float]) -> None:
    for ways in HALVED_WAYS:
        if ways not in by_ways and ways // 2 in by_ways:
            by_ways[ways] = by_ways[ways // 2] / 2
