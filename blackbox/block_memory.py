"""A block's memory through one micro-batch: its tensors by their laws, each with its life in the order of allocations.

A life is an interval between allocations: from a tensor's own up to the first one that it does not live to see. Of it
runs show a lower and an upper limit; the order of frees between two allocations does not matter.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from taylor.blackbox.blocks import Condition
from taylor.blackbox.laws import FACTORS, Law, SizeFit
from taylor.parsers.small_run import RunSetting

TURN = "turn"
"""The event between a block's forward and backward pass."""
CARRIED = "carried"
"""First word of the names of tensors that a block's backward pass is given."""

_EP = FACTORS.index("ep")


@dataclass(frozen=True)
class BlockTrace:
    """Tensors that one block (embedding, layer, head) allocates for one micro-batch.

    Parameters
    ----------
    sizes : mapping of str to int
        Bytes of every tensor by its name.
    events : tuple of str
        ``+name`` where a tensor is allocated, ``-name`` where it is freed, `TURN` once between forward and
        backward pass. What is alive there is kept, unless the block runs again in the backward pass.
    kept_input : str
        The tensor that stays where the block runs again.
    """

    sizes: Mapping[str, int]
    events: tuple[str, ...]
    kept_input: str


@dataclass(frozen=True)
class TensorLaw:
    """A tensor by its laws, and when a run has it.

    Parameters
    ----------
    likely : Law or None
        A neighbour's law where runs leave several: of the predicted peak, not of its upper limit.
    """

    name: str
    fit: SizeFit
    condition: Condition | None
    likely: Law | None = None

    def is_met(self, run: RunSetting) -> bool:
        """Return whether a run has it."""
        # A stage has its blocks whatever the model's layers are.
        return self.condition is not None and self.condition.is_met(run.replace(layers=self.condition.least_layers))

    @property
    def unsure(self) -> bool:
        """Small runs do not show when a run has it, or no law."""
        return self.condition is None or not self.fit.laws

    def size(self, run: RunSetting) -> float:
        """Bytes in a run, of a parameter elements: by its likely law, or the most of all laws."""
        if self.likely is not None:
            return self.likely.at(run)
        return max((law.at(run) for law in self.fit.laws), default=0) * (1 + self.fit.spread)


@dataclass(frozen=True)
class BlockLife:
    """A block's bytes through one micro-batch, relative to those before it.

    Parameters
    ----------
    carried : float
        What its backward pass is given, the gradient: where the block runs again, this stays meanwhile.
    """

    input: float
    kept: float
    forward: float
    backward: float
    carried: float


@dataclass(frozen=True)
class LifeEnd:
    """End of a tensor's life where a condition is met.

    Parameters
    ----------
    place : int
        First place in the order of allocations at which it is gone.
    late : int
        Further allocations of its own, after the one before `place`, that a run's tensor may live to see.
    after : str
        Tensor that was allocated just before in all runs that show this end: its consumer's. Where a run has no such
        tensor, as a collective's over one rank, this one stands for it.
    """

    condition: Condition
    place: int
    after: str = ""
    late: int = 0


@dataclass(frozen=True)
class LifeSpan:
    """A tensor's life in the order of a block's allocations: born at one, gone from another one on."""

    name: str
    born: int
    ends: tuple[LifeEnd, ...]

    def end(self, run: RunSetting) -> LifeEnd:
        """The first end whose condition is met."""
        return next((one for one in self.ends if one.condition.is_met(run)), self.ends[-1])


@dataclass(frozen=True)
class BlockMemory:
    """A block's parameters, and its tensors with their lives.

    Parameters
    ----------
    turn : int
        Place of `TURN` in the order of allocations.
    kept_input : str
        Tensor that stays between both passes where the block runs again.
    """

    parameters: tuple[TensorLaw, ...]
    tensors: Mapping[str, TensorLaw]
    lives: tuple[LifeSpan, ...]
    turn: int
    kept_input: str

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Of DP and stages those on which any tensor depends."""
        conditions = [one.condition for one in (*self.parameters, *self.tensors.values()) if one.condition]
        conditions += [end.condition for life in self.lives for end in life.ends]
        asked = {name for each in conditions for name, _ in each.above}
        return tuple(name for name in ("dp", "pp") if name in asked)

    def largest(self) -> BlockMemory:
        """The block without its tensors' likely laws; itself where none has one."""
        if not any(one.likely for one in (*self.parameters, *self.tensors.values())):
            return self
        tensors = {name: replace(one, likely=None) for name, one in self.tensors.items()}
        parameters = tuple(replace(one, likely=None) for one in self.parameters)
        return replace(self, parameters=parameters, tensors=MappingProxyType(tensors))

    def unsure(self) -> list[str]:
        """Names of those without a law."""
        return [one.name for one in (*self.parameters, *self.tensors.values()) if one.unsure]

    def elements(self, run: RunSetting) -> tuple[float, float]:
        """Of dense parameters and of experts', on a rank."""
        dense = expert = 0.0
        for one in self.parameters:
            if one.is_met(run):
                split = all(law.exponents[_EP] < 0 for law in one.fit.laws)
                dense, expert = dense + (not split) * one.size(run), expert + split * one.size(run)
        return dense, expert

    @cached_property
    def _life_of(self) -> Mapping[str, LifeSpan]:
        return {life.name: life for life in self.lives}

    def _end(self, life: LifeSpan, run: RunSetting) -> int:
        """End of a life in a run; of a tensor whose consumer is not there, that of the consumer's own."""
        end, most = life.end(run), len(self.lives)
        place = end.place
        while end.after and end.after in self.tensors and not self.tensors[end.after].is_met(run) and most:
            end, most = self._life_of[end.after].end(run), most - 1
            place = max(place, end.place)
        return self._later(place, life.end(run).late, run)

    def _later(self, place: int, late: int, run: RunSetting) -> int:
        """The end `late` of a run's own allocations after the one before `place`, on the same side of the turn."""
        if not late:
            return place
        low, backward = place - 1, place > self.turn
        born = (
            life.born
            for life in self.lives[bisect.bisect_left(self.lives, low, key=lambda life: life.born) :]
            if (life.born > self.turn) == backward and self.tensors[life.name].is_met(run)
        )
        # A run without that allocation itself sees the next one in its stead.
        steps = late + (low != self.turn)
        return max((each + 1 for each in itertools.islice(born, steps)), default=place)

    def bytes_at_turn(self, name: str, run: RunSetting, kept: bool) -> float:
        """A tensor's bytes where a run keeps it between both passes, or where it does not; else 0."""
        tensor, life = self.tensors[name], self._life_of[name]
        if not tensor.is_met(run):
            return 0.0
        here = life.born <= self.turn < self._end(life, run)
        return tensor.size(run) if here == kept else 0.0

    def life(self, run: RunSetting) -> BlockLife:
        """Its bytes in a run."""
        change = np.zeros(len(self.lives) + 3)
        kept_input = carried = 0.0
        backward = (life.born for life in self.lives if life.born > self.turn and not life.name.startswith(CARRIED))
        first = next(backward, len(self.lives) + 1)
        for life in self.lives:
            tensor = self.tensors[life.name]
            if not tensor.is_met(run):
                continue
            size = tensor.size(run)
            if life.name == self.kept_input:
                kept_input = size
            end = self._end(life, run)
            if life.name.startswith(CARRIED) and end > first:
                carried += size
            change[life.born] += size
            change[end] -= size
        alive = np.cumsum(change)
        return BlockLife(
            kept_input,
            float(alive[self.turn]),
            float(alive[: self.turn + 1].max()),
            float(alive[self.turn :].max()),
            carried,
        )
