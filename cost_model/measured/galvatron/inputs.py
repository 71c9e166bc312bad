"""Inputs of Galvatron's cost models from profiles: its modes, and its plain fits.

The fits are least squares without a bound on any coefficient, as its search makes them; everything else here is
fitted by `taylor.cost_model.measured.fits`. Hetu-Galvatron cea12ff
galvatron/core/search_engine/search_engine.py:286-404, paddle-galvatron b0bdd07
paddlenlp/experimental/galvatron/cost_model/profile_data_parser.py:68-196.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from scipy.optimize import curve_fit

from taylor.base.errors import InputError
from taylor.cost_model.measured.hardware import ALL_REDUCE, HardwareProfile
from taylor.cost_model.measured.profiles import ComputationProfile, LayerMemory, MeasuredMemory, OtherMemory, Shape

STATIC, BATCH, SEQUENCE = "static", "batch", "sequence"
TIME_MODES = (STATIC, BATCH, SEQUENCE)
MEMORY_MODES = (STATIC, SEQUENCE)
FEWEST_BATCHES = 8
"""Batch sizes that its line over the batch asks for."""

Kept = TypeVar("Kept")


@dataclass(frozen=True)
class BatchTime:
    """Forward time by samples: slope · samples + start.

    Parameters
    ----------
    slope_ms : float
        ms a sample.
    start_ms : float
    """

    slope_ms: float
    start_ms: float = 0.0

    def ms(self, samples: float) -> float:
        """Time of a number of samples, a fraction of one too, ms."""
        return self.slope_ms * samples + self.start_ms


@dataclass(frozen=True)
class GalvatronInputs:
    """A model's figures at one sequence length.

    Parameters
    ----------
    layer : mapping of kind to BatchTime
    other : BatchTime
        Embedding, head and loss.
    memory : mapping of kind to LayerMemory
    ends : mapping of str to OtherMemory
        Memory outside layers: ``alone``, ``first``, ``last``, as far as measured.
    """

    layer: Mapping[str, BatchTime]
    other: BatchTime
    memory: Mapping[str, LayerMemory]
    ends: Mapping[str, OtherMemory]

    def end(self, name: str) -> OtherMemory:
        """Memory of one end.

        Raises
        ------
        InputError
            When it was not measured.
        """
        if name in self.ends:
            return self.ends[name]
        key = {"alone": "pp_off", "first": "pp_on_first", "last": "pp_on_last"}[name]
        raise InputError(
            "was not measured at this length, and the memory of such stages needs it",
            file="memory_profiling_*.json",
            field=f"other_memory_{key}",
            cure="profile it, or take --memory_mode sequence where another length was measured",
        )


def galvatron_inputs(
    computation: ComputationProfile,
    memory: MeasuredMemory,
    tokens: int,
    *,
    time_mode: str,
    memory_mode: str,
    sequence_parallel: bool = True,
) -> GalvatronInputs:
    """Inputs of its search for one sequence length.

    Parameters
    ----------
    tokens : int
        Tokens a sample.
    time_mode : str
        One of `TIME_MODES`: a time a sample as it was measured, a line over batch sizes, a curve over lengths.
    memory_mode : str
        One of `MEMORY_MODES`: as it was measured, or scaled from the longest sequence.

    Raises
    ------
    InputError
        When the profiles lack what a mode needs.
    """
    tables = memory.table(sequence_parallel)
    layer = {kind: _time(times, computation, tokens, time_mode, kind) for kind, times in computation.layer_ms.items()}
    if not layer:
        raise InputError(
            "has no time of a layer",
            file=computation.source,
            field="layertype_0",
            cure="profile two numbers of layers, and process the raw profile",
        )
    other = _time(computation.other_ms, computation, tokens, time_mode, None)
    by_end = {"alone": tables.alone, "first": tables.first, "last": tables.last}
    if memory_mode == SEQUENCE:
        longest = max(next(iter(tables.layer.values())))
        scale = tokens / longest

        ends = {
            name: replace(
                by_length[longest],
                activation_mib={w: mib * scale for w, mib in by_length[longest].activation_mib.items()},
            )
            for name, by_length in by_end.items()
            if longest in by_length
        }
        kinds = {}
        for kind, lengths in tables.layer.items():
            long = _at(lengths, longest, memory, kind)
            kinds[kind] = LayerMemory(
                lengths[min(lengths)].parameter_mib,
                {ways: mib / longest * tokens for ways, mib in long.activation_mib.items()},
                None if long.recomputed_mib is None else long.recomputed_mib / longest * tokens,
            )
        return GalvatronInputs(layer, other, kinds, ends)
    kinds = {kind: _at(lengths, tokens, memory, kind) for kind, lengths in tables.layer.items()}
    ends = {name: by_length[tokens] for name, by_length in by_end.items() if tokens in by_length}
    return GalvatronInputs(layer, other, kinds, ends)


def _at(lengths: Mapping[int, Kept], tokens: int, memory: MeasuredMemory, what: str) -> Kept:
    if tokens in lengths:
        return lengths[tokens]
    raise InputError(
        f"was measured with {', '.join(map(str, sorted(lengths))) or 'no'} tokens and not with {tokens}",
        file=memory.source,
        field=what,
        cure="profile that length, or take --memory_mode sequence",
    )


def _time(
    times: Mapping[Shape, float], profile: ComputationProfile, tokens: int, mode: str, kind: str | None
) -> BatchTime:
    name = "layertype_other" if kind is None else f"layertype of {kind}"
    here = {shape: ms for shape, ms in times.items() if shape.tokens == tokens}
    if mode == STATIC:
        if not here:
            raise InputError(
                f"was not measured with {tokens} tokens",
                file=profile.source,
                field=f"{name}, seq{tokens}",
                cure="profile that length, or take --time_mode sequence",
            )
        return BatchTime(next(iter(here.values())))
    if mode == BATCH:
        if len(here) < FEWEST_BATCHES:
            raise InputError(
                f"was measured with {len(here)} batch sizes at {tokens} tokens, and a line takes {FEWEST_BATCHES}",
                file=profile.source,
                field=f"{name}, seq{tokens}",
                cure="profile more batch sizes, or take --time_mode static",
            )
        batches = [shape.batch for shape in here]
        slope, start = plain_fit(lambda x, m, c: m * x + c, batches, [ms * shape.batch for shape, ms in here.items()])
        return BatchTime(slope, start)
    single = {shape.tokens: ms for shape, ms in times.items() if shape.batch == 1}
    needed = 2 if kind is None else 3
    if len(single) < needed:
        raise InputError(
            f"was measured with {len(single)} lengths at batch 1, and the curve takes {needed}",
            file=profile.source,
            field=f"{name}, bsz1",
            cure="profile more lengths, or take --time_mode static",
        )
    lengths, measured = list(single), list(single.values())
    if kind is None:
        line = plain_fit(lambda x, m, c: m * x + c, lengths, measured)
        return BatchTime(line[0] * tokens + line[1])
    curve = plain_fit(lambda x, a, b, c: a * x * x + b * x + c, lengths, measured)
    return BatchTime(curve[0] * tokens * tokens + curve[1] * tokens + curve[2])


@dataclass(frozen=True)
class MessageLines:
    """Times of collectives as Galvatron reads them: the measured one where the size was measured, else a line's.

    Parameters
    ----------
    hardware : HardwareProfile
    fewest : int
        Sizes that a line takes.
    """

    hardware: HardwareProfile
    fewest: int
    _lines: dict[tuple[str, int], tuple[float, ...]] = field(default_factory=dict, compare=False, repr=False)

    def line(self, collective: str, ways: int) -> tuple[float, ...]:
        """ms a MiB, and ms at size 0, of least squares over all sizes.

        Raises
        ------
        InputError
            When too few sizes were measured.
        """
        if (collective, ways) not in self._lines:
            times = self.hardware.times(collective, ways).ms_of_mib
            if len(times) < self.fewest:
                raise InputError(
                    f"has {len(times)} sizes, and a line through them takes {self.fewest}",
                    file=self.hardware.source.get(collective),
                    field=f"{'allreduce' if collective == ALL_REDUCE else 'all2all'}_size_{ways}_…MB_time",
                    cure="measure more sizes, from 1 MB to 1024 MB",
                )
            self._lines[collective, ways] = plain_fit(lambda x, m, c: m * x + c, list(times), list(times.values()))
        return self._lines[collective, ways]

    def ms(self, collective: str, ways: int, mib: float) -> float:
        """Time of a collective, ms.

        Raises
        ------
        InputError
            As `line`.
        """
        times = self.hardware.times(collective, ways).ms_of_mib
        if mib in times:
            return times[int(mib)]
        slope, start = self.line(collective, ways)
        return slope * mib + start


def plain_fit(law: Callable[..., object], x: list[int], y: list[float]) -> tuple[float, ...]:
    """Least squares without bounds, by the routine that Galvatron calls, to reproduce its digits."""
    found, _ = curve_fit(law, np.array(x), np.array(y))
    return tuple(map(float, found))
