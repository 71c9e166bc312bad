"""A model's measured times and memory as laws of samples and tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.cost_model.measured.fits import CURVE, LINE, MeasuredLaw
from taylor.cost_model.measured.profiles import (
    ComputationProfile,
    LayerMemory,
    MeasuredMemory,
    OtherMemory,
    ProfileRules,
    Shape,
)

FEWEST_BATCHES = 3
"""Batch sizes of one length that a line over samples takes; fewer are not distinguishable from noise."""


@dataclass(frozen=True)
class ForwardTime:
    """Forward time of one layer, or of embedding, head and loss.

    Parameters
    ----------
    by_length : MeasuredLaw
        ms a sample in batches of `batch`, by tokens.
    by_batch : MeasuredLaw or None
        ms, by samples, at one length; None where too few batch sizes were measured: every sample takes the same.
    batch : int
    """

    by_length: MeasuredLaw
    by_batch: MeasuredLaw | None
    batch: int

    def ms(self, samples: float, tokens: int) -> float:
        """Forward of a number of samples, a fraction of one too, ms."""
        if self.by_batch is None:
            return samples * self.by_length.at(tokens)
        # What a batch saves at the one length is taken for every length.
        return self.by_length.at(tokens) * self.batch * self.by_batch.at(samples) / self.by_batch.at(self.batch)

    def attention_ms(self, samples: float, tokens: int) -> float:
        """The part of it that grows with the square of the length: attention's scores, ms."""
        return samples * self.by_length.part(tokens, 2)


@dataclass(frozen=True)
class ModelLaws:
    """A model's figures from its profiles for any length and batch.

    Parameters
    ----------
    layer : mapping of kind to ForwardTime
    other : ForwardTime
        Embedding, head and loss.
    memory : MeasuredMemory
    rules : ProfileRules
        Whose profiler measured the memory.
    sequence_parallel : bool
        The memory tables are those with activations split over TP.
    """

    layer: Mapping[str, ForwardTime]
    other: ForwardTime
    memory: MeasuredMemory
    rules: ProfileRules
    sequence_parallel: bool

    @classmethod
    def of(
        cls, computation: ComputationProfile, memory: MeasuredMemory, rules: ProfileRules, *, sequence_parallel: bool
    ) -> ModelLaws:
        """The laws of a model's profiles.

        Raises
        ------
        InputError
            When a profile lacks the tables of a layer.
        """
        if not computation.layer_ms:
            raise InputError(
                "has no time of a layer",
                file=computation.source,
                field="layertype_0",
                cure="profile two numbers of layers",
            )
        tables = memory.table(sequence_parallel)
        for kind in computation.layer_ms:
            if kind not in tables.layer:
                raise InputError(
                    f"has no memory of the {kind} layers that {computation.source} times",
                    file=memory.source,
                    field=kind,
                    cure="profile computation and memory of the same model",
                )
        layer = {
            kind: _forward(times, CURVE, f"forward of a {kind} layer", computation.source)
            for kind, times in computation.layer_ms.items()
        }
        other = _forward(computation.other_ms, LINE, "forward of embedding, head and loss", computation.source)
        return cls(layer, other, memory, rules, sequence_parallel)

    def layer_memory(self, kind: str, tokens: int) -> LayerMemory:
        """Memory of a layer at a length: as measured there, else by lines over the lengths."""
        lengths = self.memory.table(self.sequence_parallel).layer[kind]
        if tokens in lengths:
            return lengths[tokens]
        ways = set.intersection(*(set(each.activation_mib) for each in lengths.values()))
        again = {length: each.recomputed_mib for length, each in lengths.items() if each.recomputed_mib is not None}
        return LayerMemory(
            max(each.parameter_mib for each in lengths.values()),
            {
                way: self._activation({n: each.activation_mib[way] for n, each in lengths.items()}, kind).at(tokens)
                for way in sorted(ways)
            },
            self._activation(again, kind).at(tokens) if again else None,
        )

    def end_memory(self, end: str, tokens: int) -> OtherMemory:
        """Memory outside layers at a length: of ``alone``, ``first`` or ``last``."""
        tables = self.memory.table(self.sequence_parallel)
        lengths = {"alone": tables.alone, "first": tables.first, "last": tables.last}[end]
        if tokens in lengths:
            return lengths[tokens]
        if not lengths:
            key = {"alone": "pp_off", "first": "pp_on_first", "last": "pp_on_last"}[end]
            raise InputError(
                "was not measured, and the memory of such stages needs it",
                file=self.memory.source,
                field=f"other_memory_{key}",
                cure="profile runs with this number of stages, or plan without a pipeline"
                if end != "alone"
                else "profile runs without a pipeline",
            )
        ways = sorted(set.intersection(*(set(each.states_mib) & set(each.activation_mib) for each in lengths.values())))
        states = {way: max(each.states_mib[way] for each in lengths.values()) for way in ways}
        activation = {}
        for way in ways:
            points = {length: each.activation_mib[way] for length, each in lengths.items()}
            activation[way] = self._activation(points, end).at(tokens) if any(points.values()) else 0.0
        return OtherMemory(states, activation)

    def _activation(self, points: Mapping[int, float], of: str) -> MeasuredLaw:
        return MeasuredLaw.through(
            points, LINE, of=f"activations of {of}", cause="tokens", unit="MiB", source=self.memory.source
        )

    def warnings(self, tokens: int) -> tuple[str, ...]:
        """Figures beyond the measured points at a length, one sentence each."""
        laws = [each.by_length for each in (*self.layer.values(), self.other)]
        for kind, lengths in self.memory.table(self.sequence_parallel).layer.items():
            points = {length: each.activation_mib[1] for length, each in lengths.items()}
            laws.append(self._activation(points, f"a {kind} layer"))
        return tuple(warning for warning in (law.warning(tokens) for law in laws) if warning is not None)

    @property
    def laws(self) -> tuple[MeasuredLaw, ...]:
        """The laws of time, kinds first."""
        times = (*self.layer.values(), self.other)
        return tuple(law for time in times for law in (time.by_length, time.by_batch) if law is not None)


def _forward(times: Mapping[Shape, float], powers: tuple[int, ...], of: str, source: str) -> ForwardTime:
    """Laws of a table of ms a sample by shape: by length at the smallest batch, by batch at its best known length."""
    by_batch: dict[int, dict[int, float]] = {}
    for shape, ms in times.items():
        by_batch.setdefault(shape.batch, {})[shape.tokens] = ms
    if not by_batch:
        raise InputError("has no measurement", file=source, field=of, cure="profile two numbers of layers")
    # The batch with most lengths; the smallest of those.
    batch = max(by_batch, key=lambda each: (len(by_batch[each]), -each))
    length = MeasuredLaw.through(by_batch[batch], powers, of=of, cause="tokens", unit="ms a sample", source=source)
    tokens = max(sorted(by_batch[batch]), key=lambda each: sum(each in by_tokens for by_tokens in by_batch.values()))
    samples = {each: by_tokens[tokens] * each for each, by_tokens in by_batch.items() if tokens in by_tokens}
    batches = None
    if len(samples) >= FEWEST_BATCHES:
        batches = MeasuredLaw.through(
            samples, LINE, of=f"{of}, {tokens} tokens", cause="samples", unit="ms", source=source
        )
    return ForwardTime(length, batches, batch)
