"""The memory of any stage of a large job from the tensors of small runs.

Every parameter, and every tensor that a block's forward and backward pass allocates, follows a law of its own
(`blackbox.laws`). What a small run shows of a tensor's life, when it is allocated and when it is freed, holds in
the large job too: there only sizes, the number of layers and the micro-batches in flight differ. So peaks are found by
going through a stage's blocks again with the large sizes, and a peak may move to another place than in small runs.

A life is an interval between allocations: from a tensor's own up to the first one that it does not live to see. Of it
runs show a lower and an upper limit; the order of frees between two allocations does not matter.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import stdtrit

from taylor.base.errors import InputError
from taylor.blackbox.blocks import CONDITIONED, Condition, condition_of
from taylor.blackbox.laws import FACTORS, Fitter, Law, SizeFit
from taylor.blackbox.module_runs import Again, Module, saved_bytes
from taylor.blackbox.sharded_weights import BlockBytes, WeightMemory
from taylor.cost_model.choices.module_choices import words_of
from taylor.parsers.small_run import RunSetting, ShardedWeights

TURN = "turn"
"""The event between a block's forward and backward pass."""
CARRIED = "carried"
"""First word of the names of tensors that a block's backward pass is given."""
SAME_SHARE = 0.005
"""Fraction of the greatest run by which any may deviate from one way of sharding; flat buffers are padded."""
LEAST_MARGIN = 0.01
"""Fraction added to a peak before it is checked against a limit, where the laws miss small runs' peaks by less."""
RISK = 0.01
"""Default probability that a stage takes more than its predicted maximum."""

EXACT_SHARE = 0.0005
"""Ways that deviate from the runs by less tie; else those count that deviate at most twice as much as the best."""

LATE = 3
"""Allocations by which a tensor's end may change from run to run: another stream gives memory back by events, at
which the allocator looks at when it is asked for the next one. More is taken for another end, under a condition."""
_EXPLANATIONS = ((0, 0), (1, 0), (2, 0), (0, LATE), (1, LATE), (3, 0), (2, LATE), (3, LATE))
"""(conditions, allocations late) that may explain a tensor's ends, the likeliest first. A condition is a degree that is
above one or not. Three conditions explain by chance what a dozen runs show of an end that comes late by chance, and
then state it too early elsewhere."""

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


_DENSE: Mapping[str, Callable[[RunSetting], float]] = MappingProxyType(
    {
        "whole": lambda run: 1.0,
        "over shards": lambda run: run.shards,
        "over DP": lambda run: run.dp,
    }
)
"""Divisor of the optimizer's elements for a rank's shard. Shards: DP times CP over the copies of the weights."""
_EXPERT: Mapping[str, Callable[[RunSetting], float]] = MappingProxyType(
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
        shares = dense / _DENSE[self.dense](run) + expert / _EXPERT[self.expert](run)
        return self.whole * (dense + expert) + self.shared * shares


@dataclass(frozen=True)
class _Tensor:
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
        # A stage has its blocks whatever the model's layers are.
        return self.condition is not None and self.condition.is_met(run.replace(layers=self.condition.least_layers))

    @property
    def unsure(self) -> bool:
        return self.condition is None or not self.fit.laws

    def size(self, run: RunSetting) -> float:
        if self.likely is not None:
            return self.likely.at(run)
        return max((law.at(run) for law in self.fit.laws), default=0) * (1 + self.fit.spread)


@dataclass(frozen=True)
class _Life:
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
class _End:
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
class _Interval:
    """A tensor's life in the order of a block's allocations: born at one, gone from another one on."""

    name: str
    born: int
    ends: tuple[_End, ...]

    def end(self, run: RunSetting) -> _End:
        """The first end whose condition is met."""
        return next((one for one in self.ends if one.condition.is_met(run)), self.ends[-1])


@dataclass(frozen=True)
class _Block:
    parameters: tuple[_Tensor, ...]
    tensors: Mapping[str, _Tensor]
    lives: tuple[_Interval, ...]
    turn: int
    kept_input: str

    @cached_property
    def asked(self) -> tuple[str, ...]:
        """Of DP and stages those on which any tensor depends."""
        conditions = [one.condition for one in (*self.parameters, *self.tensors.values()) if one.condition]
        conditions += [end.condition for life in self.lives for end in life.ends]
        asked = {name for each in conditions for name, _ in each.above}
        return tuple(name for name in ("dp", "pp") if name in asked)

    def largest(self) -> _Block:
        """The block without its tensors' likely laws; itself where none has one."""
        if not any(one.likely for one in (*self.parameters, *self.tensors.values())):
            return self
        tensors = {name: replace(one, likely=None) for name, one in self.tensors.items()}
        parameters = tuple(replace(one, likely=None) for one in self.parameters)
        return replace(self, parameters=parameters, tensors=MappingProxyType(tensors))

    def unsure(self) -> list[str]:
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
    def _life_of(self) -> Mapping[str, _Interval]:
        return {life.name: life for life in self.lives}

    def _end(self, life: _Interval, run: RunSetting) -> int:
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

    def life(self, run: RunSetting) -> _Life:
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
        return _Life(
            kept_input,
            float(alive[self.turn]),
            float(alive[: self.turn + 1].max()),
            float(alive[self.turn :].max()),
            carried,
        )


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

    blocks: Mapping[str, _Block]
    states: tuple[MemorySharding, ...]
    step: tuple[MemorySharding, ...]
    runs: tuple[RunMemory, ...]
    risk: float = RISK
    modules: Mapping[str, Mapping[str, Module]] = field(default_factory=dict)
    weights: WeightMemory | None = None
    _known: dict[tuple[str | int, ...], tuple[_Life, tuple[float, float]]] = field(
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

    def elements(self, run: RunSetting, blocks: Sequence[tuple[str, Again]]) -> tuple[float, float]:
        """Elements of dense parameters and of experts on a rank that holds these blocks."""
        each = {name: self._block(run, name)[1] for name, _ in set(blocks)}
        return sum(each[name][0] for name, _ in blocks), sum(each[name][1] for name, _ in blocks)

    def _block(self, run: RunSetting, name: str) -> tuple[_Life, tuple[float, float]]:
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
        return _most(self.step, *self.elements(run, blocks), run)

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
        for name, _ in blocks:
            if name not in self.blocks:
                cure = "give one of " + ", ".join(self.blocks)
                raise InputError("was in no small run", field="block", value=name, cure=cure)
        used = {name for name, _ in blocks}
        dense, expert = self.elements(run, blocks)
        static = max((way.base for way in self.states), default=0.0) + _most(self.states, dense, expert, run)
        kept, most = self._passes(run, blocks)
        step = self.step_bytes(run, blocks)
        most += (in_flight - 1) * kept
        held = 0.0
        if self.weights is not None:
            each = [self.elements(run, [block]) for block in blocks]
            held = sum(self.weights.held(size, run, accumulates=accumulates) for size in each)
            passes = [self.block_bytes(run, block) for block in blocks]
            most = self.weights.peak(run, passes, each, in_flight, accumulates=accumulates)
            step += sum(self.weights.shard(size, run) for size in each)
        peak = static + max(most, step)
        static += held
        unsure = [f"{name}.{one}" for name in sorted(used) for one in self.blocks[name].unsure()]
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


def memory_laws(runs: Sequence[RunMemory], risk: float = RISK, weights: ShardedWeights | None = None) -> MemoryLaws:
    """Fit the laws of all tensors and the sharding of all states.

    Parameters
    ----------
    weights : ShardedWeights or None
        Precision of weights that ranks share and gather.

    Raises
    ------
    InputError
        When there is no run.
    """
    if not runs:
        raise InputError("are missing", field="small runs", cure="start them with memory in their profile")
    names = dict.fromkeys(name for run in runs for name in run.traces)
    blocks = {name: _block(name, [run for run in runs if name in run.traces]) for name in names}
    totals = [_elements(run, blocks) for run in runs]
    settings = [run.setting for run in runs]
    states = _shardings([run.start for run in runs], totals, settings)
    step = _shardings([run.step for run in runs], totals, settings)
    apart = None if weights is None else WeightMemory(weights)
    return MemoryLaws(MappingProxyType(blocks), states, step, tuple(runs), risk, weights=apart)


def _block(name: str, runs: Sequence[RunMemory]) -> _Block:
    settings = [run.setting for run in runs]
    traces = [run.traces[name] for run in runs]
    order = _births([trace.events for trace in traces])
    tensors = _tensors([trace.sizes for trace in traces], settings, order)
    parameters = _tensors([run.parameters.get(name, {}) for run in runs], settings)
    lives = _lives([trace.events for trace in traces], order, settings)
    return _Block(tuple(parameters.values()), MappingProxyType(tensors), lives, order.index(TURN), traces[0].kept_input)


def _tensors(
    sizes: Sequence[Mapping[str, int]], settings: Sequence[RunSetting], order: Sequence[str] = ()
) -> dict[str, _Tensor]:
    fitters: dict[tuple[int, ...], Fitter] = {}
    names = list(dict.fromkeys(name for each in sizes for name in each))
    conditions = {name: condition_of([name in each for each in sizes], settings) for name in names}
    at = {name: place for place, name in enumerate(order or names)}

    def fit(shown: Mapping[int, int]) -> SizeFit:
        places = tuple(sorted(shown))
        fitter = fitters.setdefault(places, Fitter([settings[place] for place in places]))
        return fitter.fit([shown[place] for place in places])

    shown = {name: {place: each[name] for place, each in enumerate(sizes) if name in each} for name in names}
    found: dict[str, _Tensor] = {}
    for name in names:
        mine = fit(shown[name])
        if not mine.settled:
            near = sorted((other for other in names if other != name), key=lambda one: abs(at[one] - at[name]))
            for other in near:
                if _is_kin(conditions[name], conditions[other], shown[name], shown[other]):
                    joint = fit({**shown[other], **shown[name]})
                    if joint.laws and not joint.spread and len(joint.laws) < max(2, len(mine.laws)):
                        mine = joint
                        break
        found[name] = _Tensor(name, mine, conditions[name])
    return {name: _with_likely(name, found, shown, at) for name in names}


def _with_likely(
    name: str, found: Mapping[str, _Tensor], shown: Mapping[str, Mapping[int, int]], at: Mapping[str, int]
) -> _Tensor:
    """A tensor of several laws with that of the nearest tensor as large: it passes from one operator to the next."""
    one = found[name]
    if len(one.fit.laws) < 2 or one.condition is None:
        return one
    near = sorted((other for other in found if other != name), key=lambda other: abs(at[other] - at[name]))
    for other in near:
        settled = found[other].fit.settled and shown[name].keys() <= shown[other].keys()
        if settled and all(shown[other][run] == size for run, size in shown[name].items()):
            return replace(one, likely=found[other].fit.laws[0])
    return one


def _is_kin(mine: Condition | None, its: Condition | None, shown: Mapping[int, int], other: Mapping[int, int]) -> bool:
    """Return whether another tensor may be the same one: at another place in other runs, or an earlier turn's."""
    if mine is None or its is None:
        return False
    if mine.opposite_in(its):
        return True
    turns = mine.turns > its.turns and shown.keys() <= other.keys()
    return turns and all(other[run] == size for run, size in shown.items())


def _births(orders: Collection[tuple[str, ...]]) -> tuple[str, ...]:
    """One order of all runs' allocations and `TURN`, the longest run's first; what it lacks follows its predecessor.

    Where runs differ in the order of two allocations, the longest one's counts.
    """
    born = [[event.removeprefix("+") for event in order if event[0] != "-"] for order in orders]
    longest, *others = sorted(born, key=len, reverse=True)
    merged = list(longest)
    for order in others:
        known = set(merged)
        for before, name in itertools.pairwise(("", *order)):
            if name not in known:
                merged.insert(merged.index(before) + 1 if before else 0, name)
                known.add(name)
    return tuple(merged)


@dataclass(frozen=True)
class _Shown:
    """Runs beside one common order of allocations.

    Parameters
    ----------
    order : sequence of str
        Names of all allocations, and `TURN`.
    settings : sequence of RunSetting
        One a run.
    born : sequence of sequence of int
        By run: the places of its own allocations, rising.
    """

    order: Sequence[str]
    settings: Sequence[RunSetting]
    born: Sequence[Sequence[int]]

    @property
    def turn(self) -> int:
        return self.order.index(TURN)

    def allocations(self, run: int, begin: int, end: int) -> int:
        """Number of allocations that a run has after the place `begin`, up to `end` with it."""
        return bisect.bisect_right(self.born[run], end) - bisect.bisect_right(self.born[run], begin)


def _lives(
    orders: Sequence[tuple[str, ...]], order: Sequence[str], settings: Sequence[RunSetting]
) -> tuple[_Interval, ...]:
    """The interval of every tensor's life that all runs show."""
    at = {name: place for place, name in enumerate(order)}
    seen: dict[str, dict[int, tuple[int, int]]] = {}
    for run, events in enumerate(orders):
        last, freed = 0, list[str]()
        for event in (*events, "+"):
            if event[0] == "-":
                freed.append(event[1:])
                continue
            place = at[event.removeprefix("+")] if event != "+" else len(order)
            for name in freed:
                # Between two allocations: it saw the former, and not the latter.
                seen.setdefault(name, {})[run] = (last, max(place, last + 1))
            last, freed = place, []
    born = [sorted(at[event[1:]] for event in events if event[0] == "+") for events in orders]
    shown = _Shown(order, settings, born)
    return tuple(
        _Interval(name, place, _ends(seen.get(name, {}), shown)) for place, name in enumerate(order) if name != TURN
    )


def _ends(seen: Mapping[int, tuple[int, int]], shown: _Shown) -> tuple[_End, ...]:
    """Ends of a tensor's life by the conditions that runs differ in; the latest where none explains them."""
    if not seen:
        return (_End(Condition(), len(shown.order)),)
    for conditions, slack in _EXPLANATIONS:
        if found := _explained(seen, shown, conditions, slack):
            return found
    return (_End(Condition(), max(low for low, _ in seen.values()) + 1),)


def _explained(seen: Mapping[int, tuple[int, int]], shown: _Shown, depth: int, slack: int) -> tuple[_End, ...]:
    """Ends under as few conditions as explain all runs, at most `depth`; empty where none do."""
    common = _common_end(seen, shown, slack)
    if common is not None:
        return (common,)
    settings = shown.settings
    for most in range(depth):
        for name in CONDITIONED:
            halves = [{run: limits for run, limits in seen.items() if (getattr(settings[run], name) > 1) == above}
                      for above in (True, False)]  # fmt: skip
            parts = [_explained(half, shown, most, slack) if half else () for half in halves]
            if all(parts):
                return tuple(
                    replace(end, condition=Condition(((name, above), *end.condition.above)))
                    for part, above in zip(parts, (True, False), strict=True)
                    for end in part
                )
        for turns in sorted({settings[run].cp for run in seen} - {1})[:-1]:
            # A loop of several turns frees in a later one what it keeps in its last.
            halves = [{run: limits for run, limits in seen.items() if (settings[run].cp > turns) == above}
                      for above in (True, False)]  # fmt: skip
            parts = [_explained(half, shown, most, slack) for half in halves]
            if all(parts):
                return (*(replace(end, condition=replace(end.condition, turns=turns)) for end in parts[0]), *parts[1])
    return ()


def _common_end(seen: Mapping[int, tuple[int, int]], shown: _Shown, slack: int) -> _End | None:
    """The latest end within all limits; None where they contradict each other.

    Parameters
    ----------
    slack : int
        Allocations of its own by which a run may show another end on the same side of the turn. The earliest then
        counts, with the most allocations that a run shows beyond it: other runs have others there, and fewer.
    """
    lows = [low for low, _ in seen.values()]
    first, last, high = min(lows), max(lows), min(high for _, high in seen.values())
    if last < high:
        after = shown.order[first] if first == last else ""
        return _End(Condition(), high, "" if after == TURN else after)
    late = max(shown.allocations(run, first, low) for run, (low, _) in seen.items())
    one_side = (first < shown.turn) == (last < shown.turn)
    return _End(Condition(), first + 1, late=late) if one_side and late <= slack else None


def _elements(run: RunMemory, blocks: Mapping[str, _Block]) -> tuple[float, float]:
    each = [blocks[name].elements(run.setting) for name, _ in run.blocks]
    return sum(dense for dense, _ in each), sum(expert for _, expert in each)


def _shardings(
    sizes: Sequence[int], totals: Sequence[tuple[float, float]], settings: Sequence[RunSetting]
) -> tuple[MemorySharding, ...]:
    """The ways of sharding that give all runs' bytes, by least squares without negative parts."""
    found = list[tuple[float, MemorySharding]]()
    measured = np.array(sizes, dtype=np.float64)
    if not measured.any():
        return (MemorySharding(0.0, 0.0, 0.0, "whole", "whole"),)
    for dense, expert in itertools.product(_DENSE, _EXPERT):
        unit = MemorySharding(0.0, 0.0, 1.0, dense, expert)
        shares = [unit.of(*total, run) for total, run in zip(totals, settings, strict=True)]
        columns = np.array([np.ones(len(sizes)), [sum(total) for total in totals], shares]).T
        scale = np.maximum(columns.max(axis=0), 1.0)
        weights = nnls(columns / scale, measured)[0] / scale
        base, whole, shared = map(float, weights)
        left = float(np.abs(columns @ weights - measured).max() / measured.max())
        found.append((left, MemorySharding(base, whole, shared, dense, expert)))
    allowed = min(SAME_SHARE, max(EXACT_SHARE, 2 * min(left for left, _ in found)))
    return tuple(way for left, way in found if left <= allowed)
