"""The memory of any stage of a large job from the tensors of small runs.

Every parameter, and every tensor that a block's forward and backward pass allocates, follows a law of its own
(`blackbox.block_memory`). What a small run shows of a tensor's life, when it is allocated and when it is freed, holds
in the large job too: there only sizes, the number of layers and the micro-batches in flight differ. So peaks are found
by going through a stage's blocks again with the large sizes, and may be at another place than in small runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from taylor.base.errors import InputError
from taylor.blackbox.block_memory import BlockLife, BlockMemory, BlockTrace
from taylor.blackbox.module_runs import Again, Module, saved_bytes
from taylor.blackbox.sharded_weights import BlockBytes, WeightMemory
from taylor.cost_model.choices.module_choices import words_of
from taylor.parsers.small_run import RunSetting

LEAST_MARGIN = 0.01
"""Fraction added to a peak before it is checked against a limit, where the laws miss small runs' peaks by less."""
RISK = 0.01
"""Default probability that a stage takes more than its predicted maximum."""


@dataclass(frozen=True)
class RunMemory:
    """Memory of the first rank of one stage in a small run.

    Parameters
    ----------
    blocks : tuple of (str, bool)
        Its blocks in their order, and which run again in the backward pass.
    in_flight : int
        Micro-batches whose forward pass has run, at most, and their backward pass has not.
    parameters : mapping of str to mapping of str to int
        By block and name: elements on this rank.
    step : int
        Bytes that the optimizer's step takes on top.
    start : int
        All bytes in use before the first forward pass.
    traces : mapping of str to BlockTrace
        By block.
    peak : int
        Peak bytes in use.
    forward : mapping of str to tuple of (int, str)
        By block that runs again: places of its first forward pass's allocations, and the names that they have in
        `traces`.
    """

    setting: RunSetting
    blocks: tuple[tuple[str, Again], ...]
    in_flight: int
    parameters: Mapping[str, Mapping[str, int]]
    step: int
    start: int
    traces: Mapping[str, BlockTrace]
    peak: int
    forward: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class PredictedPeak:
    """The memory of one stage.

    Parameters
    ----------
    static, peak : float
        Bytes kept between steps, and the peak.
    upper : float
        The peak with all that small runs leave open.
    unsure : tuple of str
        Tensors without a law; such a stage is never said to fit.
    """

    static: float
    peak: float
    upper: float
    unsure: tuple[str, ...] = ()

    def fits(self, limit: float) -> bool:
        """Return whether the stage surely stays below `limit` bytes."""
        return not self.unsure and self.upper <= limit


DENSE_SHARES: Mapping[str, Callable[[RunSetting], float]] = MappingProxyType(
    {
        "whole": lambda run: 1.0,
        "over shards": lambda run: run.shards,
        "over DP": lambda run: run.dp,
    }
)
"""Divisor of the optimizer's elements for a rank's shard. Shards: DP times CP over the copies of the weights."""
EXPERT_SHARES: Mapping[str, Callable[[RunSetting], float]] = MappingProxyType(
    {
        "whole": lambda run: 1.0,
        "over shards by EP": lambda run: run.expert_shards,
        # Experts that TP does not split are the same on its ranks, which share their optimizer too.
        "over TP, DP and CP by EP": lambda run: max(1.0, run.tp * run.dp * run.cp / run.ep),
        "over DP and CP": lambda run: run.dp * run.cp,
        "over DP": lambda run: run.dp,
    }
)


@dataclass(frozen=True)
class MemorySharding:
    """Bytes that follow the elements on a rank.

    Parameters
    ----------
    base : float
        Independent of elements: contexts, workspaces, buffers of links.
    whole, shared : float
        An element, on every rank that has it, and on one of those that share it.
    dense, expert : str
        Ranks that share both kinds of parameters.
    """

    base: float
    whole: float
    shared: float
    dense: str
    expert: str

    def of(self, dense: float, expert: float, run: RunSetting) -> float:
        """Bytes for these elements on a rank, without other memory."""
        shares = dense / DENSE_SHARES[self.dense](run) + expert / EXPERT_SHARES[self.expert](run)
        return self.whole * (dense + expert) + self.shared * shares


@dataclass(frozen=True)
class MemoryLaws:
    """Memory laws from small runs.

    Parameters
    ----------
    states, step : tuple of MemorySharding
        The ways of sharding that meet every run, of the memory kept between steps and of the optimizer's step on
        top; the largest counts. Empty where none does.
    risk : float
        Probability that a stage takes more than `PredictedPeak.upper`.
    modules : mapping of str to mapping of str to Module
        By block: those that it may run again in its place, by their names.
    weights : WeightMemory or None
        Of weights that ranks share and gather.
    """

    blocks: Mapping[str, BlockMemory]
    states: tuple[MemorySharding, ...]
    step: tuple[MemorySharding, ...]
    runs: tuple[RunMemory, ...]
    risk: float = RISK
    modules: Mapping[str, Mapping[str, Module]] = field(default_factory=dict)
    weights: WeightMemory | None = None
    _known: dict[tuple[str | int, ...], tuple[BlockLife, tuple[float, float]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def stage(
        self, run: RunSetting, blocks: Sequence[tuple[str, Again]], in_flight: int, *, accumulates: bool = True
    ) -> PredictedPeak:
        """The memory of a stage.

        Parameters
        ----------
        blocks : sequence of (str, bool)
            Its blocks in their order, each with whether it runs again in the backward pass.
        in_flight : int
            Micro-batches in flight at most; of 1F1B min(micro-batches, pp - stage).
        accumulates : bool
            A step has more of them.

        Raises
        ------
        InputError
            When small runs did not have such a block.
        """
        peak = self._stage(run, blocks, in_flight, accumulates=accumulates)
        if self.largest is not self:
            return self._above(peak, self.largest._stage(run, blocks, in_flight, accumulates=accumulates))
        return self._above(peak, peak)

    def chunks(
        self, run: RunSetting, chunks: Sequence[Sequence[tuple[str, Again]]], tasks: NDArray[np.int32]
    ) -> PredictedPeak:
        """The memory of a stage of several chunks.

        Parameters
        ----------
        chunks : sequence of blocks
            As of `stage`, a chunk each.
        tasks : int32 [n, >= 2]
            Its tasks, in order: backward or not, and the chunk.

        Raises
        ------
        InputError
            When small runs did not have such a block.
        """
        peak = self._chunks(run, chunks, tasks)
        return self._above(peak, peak if self.largest is self else self.largest._chunks(run, chunks, tasks))

    def _above(self, peak: PredictedPeak, largest: PredictedPeak) -> PredictedPeak:
        """A peak with its upper limit, which follows the largest of the laws that runs leave."""
        return replace(peak, upper=max(peak.peak, largest.peak) * (1 + self.margin))

    @cached_property
    def largest(self) -> MemoryLaws:
        """The same laws, where several meet the runs the largest; these themselves where one law meets each tensor."""
        blocks = {name: block.largest() for name, block in self.blocks.items()}
        same = all(block is self.blocks[name] for name, block in blocks.items())
        return self if same else replace(self, blocks=MappingProxyType(blocks), _known={})

    def _chunks(
        self, run: RunSetting, chunks: Sequence[Sequence[tuple[str, Again]]], tasks: NDArray[np.int32]
    ) -> PredictedPeak:
        alone = self._stage(run, [block for blocks in chunks for block in blocks], 1)
        passes = [self._passes(run, blocks) for blocks in chunks]
        kept, most = (np.array([each[at] for each in passes]) for at in (0, 1))
        backward, chunk = tasks[:, 0] > 0, tasks[:, 1]
        change = np.where(backward, -1.0, 1.0) * kept[chunk]
        # Beside a task's own micro-batch: all memory kept before it.
        beside = np.cumsum(change) - change - np.where(backward, kept[chunk], 0.0)
        micro = float((beside + most[chunk]).max())
        peak = alone.static + max(micro, self.step_bytes(run, [block for blocks in chunks for block in blocks]))
        return PredictedPeak(alone.static, peak, peak, alone.unsure)

    def micro_batch(self, run: RunSetting, block: tuple[str, Again]) -> tuple[float, float]:
        """Bytes that a block keeps of a micro-batch between its two passes, and the most that it takes in them."""
        name, again = block
        life, _ = self._block(run, name)
        most = max(life.forward + life.carried * (again is True), life.backward)
        if isinstance(again, str):
            known = self.modules[name]  # Layers of a kind may lack a module.
            mine = [known[word] for word in words_of(again)[0] if word in known]
            freed, added = self.saved_bytes(run, name, mine)
            return max(0.0, life.kept - freed + added), most
        return life.input if again else life.kept, most

    def saved_bytes(self, run: RunSetting, name: str, modules: Sequence[Module]) -> tuple[float, float]:
        """Bytes that a layer no longer keeps where modules of it run again, and those that it keeps in addition."""
        block = self.blocks[name]
        return saved_bytes(modules, lambda tensor, kept: block.bytes_at_turn(tensor, run, kept), run)

    def elements(self, run: RunSetting, names: Sequence[str]) -> tuple[float, float]:
        """Elements of dense parameters and of experts on a rank that holds blocks of these names."""
        each = {name: self._block(run, name)[1] for name in set(names)}
        return sum(each[name][0] for name in names), sum(each[name][1] for name in names)

    def _block(self, run: RunSetting, name: str) -> tuple[BlockLife, tuple[float, float]]:
        """A block's bytes and elements, kept for all runs in which they are the same."""
        block = self.blocks[name]
        asked = (run.tp, run.cp, run.ep, run.mbs, run.seq, run.experts, run.dense)
        key = (name, *asked, *(getattr(run, each) for each in block.asked))
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = (block.life(run), block.elements(run))
        return known

    def step_bytes(self, run: RunSetting, blocks: Sequence[tuple[str, Again]]) -> float:
        """Bytes that the optimizer's step takes on top of the states of these blocks."""
        return _most(self.step, *self.elements(run, [name for name, _ in blocks]), run)

    @cached_property
    def margin(self) -> float:
        """The fraction by which a peak may be above the laws' prediction.

        As of one more small run, by Student's t: mean + t s sqrt(1 + 1/n), a prediction interval of one side.
        """
        above = np.array([one.peak / max(1.0, self.run_peak(one)) - 1 for one in self.runs])
        count = len(above)
        if count < 2:
            return max(LEAST_MARGIN, 2 * float(above.max()))
        student = float(stdtrit(count - 1, 1 - self.risk))
        wide = float(above.mean() + student * above.std(ddof=1) * np.sqrt(1 + 1 / count))
        return max(LEAST_MARGIN, wide)

    def run_peak(self, run: RunMemory) -> float:
        """The peak of a small run of one micro-batch by these laws."""
        return self._stage(run.setting, run.blocks, run.in_flight, accumulates=False).peak

    def _stage(
        self, run: RunSetting, blocks: Sequence[tuple[str, Again]], in_flight: int, *, accumulates: bool = True
    ) -> PredictedPeak:
        names = [name for name, _ in blocks]
        for name in names:
            if name not in self.blocks:
                cure = "give one of " + ", ".join(self.blocks)
                raise InputError("was in no small run", field="block", value=name, cure=cure)
        dense, expert = self.elements(run, names)
        static = max((way.base for way in self.states), default=0.0) + _most(self.states, dense, expert, run)
        kept, most = self._passes(run, blocks)
        step = self.step_bytes(run, blocks)
        most += (in_flight - 1) * kept
        resident = 0.0
        if self.weights is not None:
            each = [self.elements(run, [name]) for name in names]
            resident = sum(self.weights.resident(size, run, accumulates=accumulates) for size in each)
            passes = [self.block_bytes(run, block) for block in blocks]
            most = self.weights.peak(run, passes, each, in_flight, accumulates=accumulates)
            step += sum(self.weights.shard(size, run) for size in each)
        peak = static + max(most, step)
        static += resident
        unsure = [f"{name}.{one}" for name in sorted(set(names)) for one in self.blocks[name].unsure()]
        unsure += [] if self.states else ["states"]
        return PredictedPeak(static, peak, peak, tuple(unsure))

    def block_bytes(self, run: RunSetting, block: tuple[str, Again]) -> BlockBytes:
        """A block's bytes of one micro-batch, apart by its passes."""
        life, _ = self._block(run, block[0])
        return BlockBytes(self.micro_batch(run, block)[0], life.forward, life.backward, life.input)

    def _passes(self, run: RunSetting, blocks: Sequence[tuple[str, Again]]) -> tuple[float, float]:
        """Bytes that a chunk keeps of a micro-batch between its two passes, and the most that it takes in them."""
        lives = {block: self.micro_batch(run, block) for block in set(blocks)}
        # A block that runs again has its forward pass once more before its backward pass.
        most = before = 0.0
        for block in blocks:
            kept, own = lives[block]
            most = max(most, before + own)
            before += kept
        return before, most


def _most(ways: Sequence[MemorySharding], dense: float, expert: float, run: RunSetting) -> float:
    return max((way.of(dense, expert, run) for way in ways), default=0.0)
