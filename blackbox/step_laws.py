"""The time of a large job's step from small runs: operators by the base and its lines, collectives by theirs.

What runs in each pass of each block, and how large it is there, follows the laws of shapes; a step then is the
pipeline's, which the exact solver finds.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from statistics import median

import numpy as np
from scipy.optimize import nnls

from taylor.base.errors import InputError
from taylor.blackbox.blocks import ONCE, LawfulOperator, lawful_operators
from taylor.blackbox.collective_lines import TRANSFER, Collective, CollectiveLines
from taylor.blackbox.group_laws import (
    GROUPS,
    LawfulCollective,
    buffer_of,
    data_parallel,
    expert_data_parallel,
    kind_of,
    lawful_collective,
)
from taylor.blackbox.host_pace import host_pace
from taylor.blackbox.memory_laws import MemoryLaws
from taylor.blackbox.module_runs import Again, KindModules, Module, choices
from taylor.blackbox.operator_speed import Estimate, OperatorSpeeds
from taylor.blackbox.passes import PassPart, all_parts
from taylor.blackbox.recorded import SAME_BYTES, RecordedRun
from taylor.blackbox.rejection import ROBUST
from taylor.blackbox.sharded_weights import (
    Elements,
    GroupTimes,
    WeightTimes,
    both_ns,
    copy_ns,
    forward_ns,
    weight_samples,
)
from taylor.blackbox.stage_problem import (
    DENSE,
    EMBEDDING,
    HEAD,
    LAYER,
    AgainTimes,
    BlockTimes,
    even_stages,
    layer_counts,
    layer_names,
)
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunSetting, ShardedWeights

NS = 1e-6
"""ms in a ns."""
LEAST_BESIDE = 0.2
"""Fraction of the shorter one's time that a collective and an operator share where they run beside each other. One that
only waits for the other shares the jitter of its start, a few percent."""
MOSTLY = 0.9
"""Fraction of a collective's time beside an earlier one from which on it counts as wholly beside it: of a receive, its
send. What of it sticks out for less is noise of their starts."""
HEAD_FORWARD = 1 / 3
"""Fraction of the head's operators that are its forward pass: one GEMM of three."""
FORWARD_OF = {DENSE: PassPart.DENSE, LAYER: PassPart.FORWARD}
"""The forward pass of each kind of layer, in the order of the model."""
Blocks = Sequence[tuple[str, Again]]
_ONE_RANK = dict.fromkeys(("pp", "dp", "vpp", "replicas"), 1)
"""Degrees on which the time of a part does not depend."""


@dataclass(frozen=True)
class Time:
    """A time in ns and one standard deviation of it."""

    ns: float
    error: float


@dataclass(frozen=True)
class _PlacedOperator:
    """A collective of a part.

    Parameters
    ----------
    shown : float
        Fraction of its time that is exposed where nothing is known to run beside it.
    beside : tuple of (LawfulOperator, float)
        Operators that run at the same time, with the fraction of each that follows its start: only what it takes
        beyond them is exposed.
    """

    operator: LawfulOperator
    law: LawfulCollective
    shown: float
    beside: tuple[tuple[LawfulOperator, float], ...] = ()


class StepLaws:
    """Step times from small runs.

    Parameters
    ----------
    runs : sequence of RecordedRun
        Those of one stage.
    neighbours : sequence of RecordedRun
        First stages of those of several: they show transfers between stages.
    memory : MemoryLaws
        Of the same runs: parameters, and what a layer hands on.
    speeds : OperatorSpeeds
        Times of operators.
    per_node : int
        Ranks of a node.
    hidden_reduction : bool
        The job reduces gradients beside its backward pass.
    dense : RecordedRun or None
        A run with one dense layer more, where there are dense layers in front of others.
    weights : ShardedWeights or None
        Precision of weights that ranks share and gather.

    Raises
    ------
    InputError
        When the runs do not show which operators are a layer's.
    """

    def __init__(
        self,
        runs: Sequence[RecordedRun],
        neighbours: Sequence[RecordedRun],
        memory: MemoryLaws,
        speeds: OperatorSpeeds,
        per_node: int,
        *,
        hidden_reduction: bool,
        dense: RecordedRun | None = None,
        weights: ShardedWeights | None = None,
    ) -> None:
        self.memory, self.speeds, self.hidden_reduction = memory, speeds, hidden_reduction
        shown = [run.operators() for run in runs]
        self.operators = lawful_operators(shown)
        ways = all_parts(self.operators, shown, None if dense is None else dense.operators())
        if not ways:
            cure = "profile every small run with the same flags"
            raise InputError("do not show the same passes of a layer", field="small runs", cure=cure)
        self.parts = ways[0]
        self.unsure: list[str] = []
        self._compute: dict[PassPart, list[LawfulOperator]] = defaultdict(list)
        self._collectives: dict[PassPart, list[_PlacedOperator]] = defaultdict(list)
        self._order: dict[PassPart, list[LawfulOperator | _PlacedOperator]] = defaultdict(list)
        self._place(runs)
        self.lines = CollectiveLines(self._samples(runs, neighbours), per_node)
        self.pace = host_pace(runs)
        self.gradients = runs[0].gradients
        self._least = min(run.setting.layers for run in runs)
        self._update = self._fitted_update(runs)
        self.weights = None if weights is None else self._weight_times(runs, weights)
        self.modules: Mapping[str, tuple[Module, ...]] = {}
        self._known: dict[tuple[PassPart, RunSetting], Time] = {}
        self._block_times: dict[RunSetting, BlockTimes] = {}

    def with_speeds(self, speeds: OperatorSpeeds) -> StepLaws:
        """The same laws with other times of operators."""
        found = copy(self)
        found.speeds, found._known, found._block_times = speeds, {}, {}
        return found

    def with_modules(self, memory: MemoryLaws) -> StepLaws:
        """The same laws with modules that may run again alone in each kind of layer, which the memory laws know."""
        found = copy(self)
        found.modules = {kind: tuple(each.values()) for kind, each in memory.modules.items()}
        found.memory, found._block_times = memory, {}
        return found

    # What was found ---------------------------------------------------------------------------------------------

    def _place(self, runs: Sequence[RecordedRun]) -> None:
        settings = [run.setting for run in runs]
        computing = [self._computing(number, run) for number, run in enumerate(runs)]
        for one, part in zip(self.operators, self.parts, strict=True):
            if part is None or one.repeats:
                continue
            if one.like.is_compute:
                self._compute[part].append(one)
                self._order[part].append(one)
                continue
            samples = {run: runs[run].kept_samples[place] for run, place in one.places.items()}
            transfers = [runs[run].transfers.get(sample.name) for run, sample in samples.items()]
            sent = [transfer.bytes for transfer in transfers if transfer is not None]
            law = lawful_collective(one, sent, settings) if len(sent) == len(samples) else None
            if law is None:
                self.unsure.append(one.like.type)
                continue
            placed = self._placed(one, law, samples, runs, computing)
            self._collectives[part].append(placed)
            self._order[part].append(placed)

    def _computing(self, number: int, run: RecordedRun) -> list[tuple[int, int, LawfulOperator]]:
        """(start, end, operator) of what computes in a run, in order."""
        found = []
        for one in self.operators:
            if one.like.is_compute and number in one.places:
                sample = run.kept_samples[one.places[number]]
                found.append((sample.start_ns, sample.start_ns + sample.duration_ns, one))
        return sorted(found, key=lambda each: each[:2])

    @staticmethod
    def _placed(
        one: LawfulOperator,
        law: LawfulCollective,
        samples: Mapping[int, OperatorSample],
        runs: Sequence[RecordedRun],
        computing: Sequence[Sequence[tuple[int, int, LawfulOperator]]],
    ) -> _PlacedOperator:
        """A collective with what it runs beside; of two at the same time the later one is not exposed."""
        free, beside = list[float](), dict[int, tuple[LawfulOperator, list[float]]]()
        hidden = [_behind_another(sample, runs[run]) for run, sample in samples.items()]
        for run, sample in samples.items():
            spans = computing[run]
            for begin, end, operator in spans:
                if not operator.repeats:
                    beside.setdefault(id(operator), (operator, []))[1].append(_after_start(sample, (begin, end)))
            free.append(1 - _overlap(sample, [(begin, end) for begin, end, _ in spans]))
        if median(hidden) > MOSTLY:
            return _PlacedOperator(one, law, 0.0)
        usual = [(operator, median(shown)) for operator, shown in beside.values()]
        return _PlacedOperator(one, law, median(free), tuple(each for each in usual if each[1]))

    def _samples(
        self, runs: Sequence[RecordedRun], neighbours: Sequence[RecordedRun]
    ) -> list[tuple[Collective, float]]:
        found = []
        for run in runs:
            for sample in run.gradient_samples:
                group, transfer = run.group_of(sample), run.transfers[sample.name]
                if group is not None:
                    found.append(_timed(sample, group, transfer.bytes, transfer.ns))
            for name, group, sent, ns in weight_samples(run):
                kind = kind_of(name)
                found.append((Collective(kind, *group, buffer_of(kind, group[0], sent)), ns))
        for placed in (one for part in self._collectives.values() for one in part):
            for number, place in placed.operator.places.items():
                run = runs[number]
                sample = run.kept_samples[place]
                transfer = run.transfers[sample.name]
                found.append(_timed(sample, GROUPS[placed.law.group](run.setting), transfer.bytes, transfer.ns))
        for run in neighbours:
            apart = (2, run.setting.ranks // run.setting.pp)
            hand_over = round(self.memory.micro_batch(run.setting, (LAYER, True))[0])
            found += [_timed(sample, apart, sent.bytes, sent.ns) for sample, sent in _to_next_stage(run, hand_over)]
        return found

    def _fitted_update(self, runs: Sequence[RecordedRun]) -> tuple[float, float, float]:
        """ns of the optimizer's step: fixed, for an element of a rank's shard, for an element on it."""
        rows, took = [], []
        for number, run in enumerate(runs):
            places = [
                one.places[number]
                for one, part in zip(self.operators, self.parts, strict=True)
                if part is PassPart.STEP and one.like.is_compute and number in one.places
            ]
            took.append(float(sum(run.kept_samples[place].duration_ns for place in places)))
            rows.append(self._update_work(run.setting, _small_blocks(run.setting)))
        work = np.array(rows)
        scale = np.maximum(work.max(axis=0), 1.0)
        found = nnls(work / scale, np.array(took))[0] / scale
        return float(found[0]), float(found[1]), float(found[2])

    def _update_work(self, run: RunSetting, names: Sequence[str]) -> tuple[float, float, float]:
        dense, expert = self.memory.elements(run, names)
        shares = dense / data_parallel(run)[0] + expert / expert_data_parallel(run)[0]
        return 1.0, shares, dense + expert

    def _weight_times(self, runs: Sequence[RecordedRun], weights: ShardedWeights) -> WeightTimes:
        elements = [self._elements(run.setting, _small_blocks(run.setting)) for run in runs]
        return WeightTimes(weights, *copy_ns(runs, elements), lambda one: self.collective_ns(one)[0])

    def _elements(self, run: RunSetting, names: Sequence[str]) -> list[Elements]:
        return [self.memory.elements(run, [name]) for name in names]

    # What follows -----------------------------------------------------------------------------------------------

    def operators_of(self, run: RunSetting) -> list[Operator]:
        """The computing operators of one micro-batch in one layer, the embedding and the head."""
        return [one for part in PassPart if part is not PassPart.STEP for one in self.operators_in(part, run)]

    def operators_in(self, part: PassPart, run: RunSetting) -> list[Operator]:
        """The computing operators of one micro-batch in a part."""
        found = list[Operator]()
        for one in self._compute[part]:
            operator = self._at(one, run)
            if operator is not None:
                found += [operator] * (one.count or ONCE).at(run)
        return found

    def _at(self, one: LawfulOperator, run: RunSetting) -> Operator | None:
        if one.condition is not None and not one.condition.is_met(run.replace(layers=self._least)):
            return None
        operator = one.at(run)
        if operator is None and all(fit.laws for fit in one.fits):
            # Laws that runs cannot distinguish: the simplest.
            inputs = tuple(tuple(fit.laws[0].at(run) for fit in shape) for shape in one.inputs)
            outputs = tuple(tuple(fit.laws[0].at(run) for fit in shape) for shape in one.outputs)
            operator = Operator(one.like.type, one.like.core, one.like.dtypes, inputs, outputs)
        return operator

    def part(self, part: PassPart, run: RunSetting) -> Time:
        """One micro-batch's time in a part.

        Raises
        ------
        InputError
            When nothing like one of its operators was measured.
        """
        key = (part, run.replace(layers=self._least, **_ONE_RANK))
        if key not in self._known:
            self._known[key] = self._timed_part(part, run)
        return self._known[key]

    def least_fraction(self, run: RunSetting, overlapped: Collection[str]) -> float:
        """Least fraction of a layer's time that remains where collectives of these `GROUPS` cost nothing."""
        parts = (PassPart.FORWARD, PassPart.BACKWARD)
        return min(self._timed_part(part, run, overlapped).ns / self.part(part, run).ns for part in parts)

    def _layer_choices(self, run: RunSetting) -> tuple[AgainTimes, ...]:
        """Choices by module that are worth having in a run."""
        if not self.modules:
            return ()
        kinds = list(layer_counts(run))
        found = choices([self._kind_modules(run, kind) for kind in kinds])
        return tuple(
            AgainTimes(name, {kind: each * NS for kind, each in zip(kinds, ns, strict=True)}) for name, ns in found
        )

    def _kind_modules(self, run: RunSetting, kind: str) -> KindModules:
        """The modules of a kind of layer, with what they cost in a run."""
        return KindModules(
            self.modules[kind],
            self.memory.micro_batch(run, (kind, False))[0],
            lambda one: self.memory.saved_bytes(run, kind, [one]),
            lambda operators: self._timed_part(FORWARD_OF[kind], run, only=operators).ns,
        )

    def forward_operators(self) -> dict[str, list[int]]:
        """By kind of layer: places of the operators of its forward pass among all."""
        found = {kind: [at for at, one in enumerate(self.parts) if one is part] for kind, part in FORWARD_OF.items()}
        return {kind: places for kind, places in found.items() if places}

    def _timed_part(
        self,
        part: PassPart,
        run: RunSetting,
        overlapped: Collection[str] = (),
        only: Collection[int] | None = None,
    ) -> Time:
        wanted = None if only is None else {id(self.operators[at]) for at in only}
        order, single = list[tuple[str, float]](), 0.0
        alike: dict[Hashable, float] = defaultdict(float)
        for one in self._order[part]:
            lawful = one if isinstance(one, LawfulOperator) else one.operator
            if wanted is not None and id(lawful) not in wanted:
                continue
            times = (lawful.count or ONCE).at(run)
            if isinstance(one, _PlacedOperator):
                if one.law.group in overlapped:
                    continue
                ns, error, key = self._exposed(one, run)
                alike[key] += times * error
                order += [(one.operator.like.type, ns)] * (times if ns else 0)
                continue
            operator = self._at(one, run)
            if operator is None:
                continue
            estimate = self._estimate(operator)
            if estimate.exact:
                single += (times * estimate.ns * estimate.error) ** 2
            else:  # One line's error is the same for all its operators; it states the median.
                alike[operator.type] += times * estimate.ns * ROBUST * estimate.error
            order += [(operator.type, estimate.ns)] * times
        error = math.sqrt(single + sum(each**2 for each in alike.values()))
        return Time(self.pace.passes_ns(order), error)

    def _estimate(self, operator: Operator) -> Estimate:
        estimate = self.speeds.estimate(operator)
        if estimate is None:
            cure = "start the small runs again with a longer profile"
            raise InputError("was measured in no small run", field="operator", value=operator.type, cure=cure)
        return estimate

    def _exposed(self, placed: _PlacedOperator, run: RunSetting) -> tuple[float, float, Hashable]:
        """Exposed time of a collective, one standard deviation of it in ns, and what shares that error."""
        collective = placed.law.at(run) if placed.law.condition.is_met(run.replace(layers=self._least)) else None
        if collective is None or collective.group < 2:
            return 0.0, 0.0, ""
        ns, error = self.collective_ns(collective)
        key = collective.kind, collective.group
        if not placed.beside:
            return placed.shown * ns, placed.shown * ns * error, key
        computing = [(self._at(one, run), share) for one, share in placed.beside]
        beside = sum(share * (self._estimate(one).ns + self.pace.pause) for one, share in computing if one is not None)
        # The error of what hides it is in the sum of the pass already, and does not move the longer of the two.
        return max(0.0, ns - beside), min(ns * error, max(0.0, ns * (1 + error) - beside)), key

    def collective_ns(self, collective: Collective) -> tuple[float, float]:
        """Time of a collective, and one standard deviation of it as a fraction: its line states the median error.

        Raises
        ------
        InputError
            When no small run used such a link.
        """
        line = self.lines.line(collective)
        if line is None:
            link = collective.link(self.lines.per_node)
            cure = "give the small runs two whole nodes"
            raise InputError("was used by no small run", field="link", value=link, cure=cure)
        return line.at(collective), ROBUST * line.error

    def tail_ns(self, run: RunSetting, blocks: Blocks, backward: float) -> float:
        """Time after a stage's last micro-batch: gradients reduced, weights updated and gathered.

        Parameters
        ----------
        backward : float
            Its last backward pass, ns, which may overlap the reduction.
        """
        names = [name for name, _ in blocks]
        if self.weights is not None:
            return self._weights_tail(run, names)
        reduce = gather = 0.0
        dense, expert = self.memory.elements(run, names)
        for kind, each in self.gradients.items():
            for elements, (ranks, stride) in ((dense, data_parallel(run)), (expert, expert_data_parallel(run))):
                if elements and ranks > 1:
                    ns, _ = self.collective_ns(Collective(kind_of(kind), ranks, stride, round(each * elements)))
                    if "gather" in kind.lower():
                        gather += ns
                    else:
                        reduce += ns
        if self.hidden_reduction:
            reduce = max(0.0, reduce - backward)
        return reduce + gather + float(np.dot(self._update, self._update_work(run, names)))

    def _weights_tail(self, run: RunSetting, names: Sequence[str]) -> float:
        """The same where weights are shared: with stages all gradients are reduced one after another."""
        assert self.weights is not None
        update = float(np.dot(self._update, self._update_work(run, names)))
        if run.pp == 1:
            return update
        each = self._elements(run, names)
        copies = sum(sum(self.weights.copies_ns(one)) / 2 for one in each)
        return update + copies + sum(self.weights.reduce_ns(one, run) for one in each)

    def _late_weights(self, run: RunSetting, blocks: Blocks) -> float:
        """Time by which the first forward pass of a stage waits for its weights."""
        assert self.weights is not None
        passes = {EMBEDDING: PassPart.BEFORE, **FORWARD_OF}
        groups = list[GroupTimes]()
        for name, _ in blocks:
            one = self.memory.elements(run, [name])
            forward = self.part(passes[name], run).ns if name in passes else 0.0
            groups.append(GroupTimes(forward, 0.0, self.weights.gather_ns(one, run), 0.0))
        return sum(forward_ns(groups)) - sum(group.forward for group in groups)

    def _groups(self, run: RunSetting, *, again: bool) -> list[GroupTimes]:
        """The blocks of the whole model with what gathers their weights, where layers run again or not."""
        assert self.weights is not None
        names = _small_blocks(run)
        parts = {EMBEDDING: (PassPart.BEFORE, PassPart.AFTER), DENSE: (PassPart.DENSE, PassPart.DENSE_BACKWARD),
                 LAYER: (PassPart.FORWARD, PassPart.BACKWARD)}  # fmt: skip
        known = dict[str, GroupTimes]()
        for name in dict.fromkeys(names):
            elements = self.memory.elements(run, [name])
            out, into = self.weights.copies_ns(elements)
            if name == HEAD:
                # Its weights stay between its passes, which are one part.
                both = self.part(PassPart.HEAD, run).ns
                forward, backward, into = HEAD_FORWARD * both, (1 - HEAD_FORWARD) * both, into - out
            else:
                forward, backward = (self.part(part, run).ns for part in parts[name])
                backward -= forward if name != EMBEDDING and not again else 0.0
            gather, reduce = self.weights.gather_ns(elements, run), self.weights.reduce_ns(elements, run)
            known[name] = GroupTimes(forward + out, backward + into, gather, reduce)
        return [known[name] for name in names]

    def block_times(self, run: RunSetting) -> BlockTimes:
        """The times that the exact solver divides, ms; layers of the tails are dealt evenly."""
        run = run.replace(vpp=1)
        if run not in self._block_times:
            self._block_times[run] = self._timed_blocks(run)
        return self._block_times[run]

    def _timed_blocks(self, run: RunSetting) -> BlockTimes:
        forward, both = self.part(PassPart.FORWARD, run).ns, self.part(PassPart.BACKWARD, run).ns
        backward = both - forward
        share = NS / (1 + backward / forward)
        ends = [self.part(part, run).ns for part in (PassPart.BEFORE, PassPart.AFTER, PassPart.HEAD)]
        hand_over = round(self.memory.micro_batch(run, (LAYER, True))[0])
        lag = self.collective_ns(Collective(TRANSFER, 2, run.ranks // run.pp, hand_over))[0] if run.pp > 1 else 0.0
        again = self._layer_choices(run)
        tails = self._tails_ms(run, even_stages(run), again)
        alone, twice = (self.part(part, run).ns for part in (PassPart.DENSE, PassPart.DENSE_BACKWARD))
        if self.weights is not None and run.pp == 1:
            return self._gathered_blocks(run, tails)
        return BlockTimes(
            (ends[0] + ends[1]) * share, forward * NS, ends[2] * share, backward * NS, lag * NS, tails,
            (alone * NS, (twice - alone) * NS), again,
        )  # fmt: skip

    def _gathered_blocks(self, run: RunSetting, tails: tuple[float, ...]) -> BlockTimes:
        """The times of a model without stages, whose weights are gathered in each pass.

        A layer takes as long as the longer of its operators and its weights. The ends take what remains of the whole.
        """
        plain, whole = self._groups(run, again=False), self._groups(run, again=True)

        def backward(group: GroupTimes) -> float:
            return max(group.backward, group.gather + group.reduce)

        layer, full = plain[-2], whole[-2]
        first, second = max(layer.forward, layer.gather), backward(layer)
        dense = plain[1] if run.dense else None
        alone = (0.0, 0.0) if dense is None else (max(dense.forward, dense.gather), backward(dense))
        layers = (run.layers - run.dense) * (first + second) + run.dense * sum(alone)
        ends = max(0.0, both_ns(plain).all - layers) / (1 + second / first)
        return BlockTimes(
            ends * NS, first * NS, 0.0, second * NS, 0.0, tails, (alone[0] * NS, alone[1] * NS),
            whole_again=(backward(full) - second) / first,
        )  # fmt: skip

    def tails_ms(self, run: RunSetting, stages: Sequence[Blocks]) -> tuple[float, ...]:
        """Time after the last micro-batch of every stage, ms."""
        return self._tails_ms(run, stages, self.block_times(run).again)

    def _tails_ms(self, run: RunSetting, stages: Sequence[Blocks], again: Sequence[AgainTimes]) -> tuple[float, ...]:
        """The same, where each choice by module adds its time to a layer's backward pass."""
        once: dict[tuple[str, Again], float] = {}
        for name, first, second in (
            (LAYER, PassPart.FORWARD, PassPart.BACKWARD),
            (DENSE, PassPart.DENSE, PassPart.DENSE_BACKWARD),
        ):
            alone, both = self.part(first, run).ns, self.part(second, run).ns
            once |= {(name, False): both - alone, (name, True): both}
        once |= {(kind, one.name): once[kind, False] + ms / NS for one in again for kind, ms in one.ms.items()}
        # The first micro-batch waits on every stage in turn.
        late = sum(self._late_weights(run, blocks) for blocks in stages) if self.weights and run.pp > 1 else 0.0
        return tuple(
            (late + self.tail_ns(run, blocks, sum(once.get(block, 0.0) for block in blocks))) * NS for blocks in stages
        )

    def relative_error(self, run: RunSetting) -> float:
        """One standard deviation of a layer's time, as a fraction."""
        both, forward = self.part(PassPart.BACKWARD, run), self.part(PassPart.FORWARD, run)
        return (both.error + forward.error) / (both.ns + forward.ns)

    def passes_ns(self, run: RunSetting) -> float:
        """Both passes of a small run's only micro-batch, every layer run again."""
        if self.weights is not None:
            return both_ns(self._groups(run, again=True)).operators
        ends = sum(self.part(part, run).ns for part in (PassPart.BEFORE, PassPart.HEAD, PassPart.AFTER))
        dense = self.part(PassPart.DENSE, run).ns + self.part(PassPart.DENSE_BACKWARD, run).ns
        layer = self.part(PassPart.FORWARD, run).ns + self.part(PassPart.BACKWARD, run).ns
        return ends + run.dense * dense + (run.layers - run.dense) * layer

    def measured_passes_ns(self, run: RecordedRun) -> float:
        """The same as a run recorded it, from its first operator to the last before the step's own.

        What its collectives waited for other ranks does not count: a slow node of the small runs is none of the job's.
        """
        once = {one.like.type for one in self._compute[PassPart.STEP]}
        shown = [one for one in run.kept_samples if one.operator.type not in once]
        if run.of_weights:
            # Before and behind its operators a step sums up tokens and norms of gradients.
            own = [at for at, one in enumerate(shown) if one.operator.is_compute]
            shown = shown[own[0] : own[-1] + 1]
        computing = [(one.start_ns, one.start_ns + one.duration_ns) for one in shown if one.operator.is_compute]
        waiting = [(one.start_ns, one.start_ns + run.waited_ns(one)) for one in shown]
        # A send and a receive wait at the same time, and operators may run meanwhile.
        waited = _length([*computing, *waiting]) - _length(computing)
        begin = min(one.start_ns for one in shown)
        return float(max(one.start_ns + one.duration_ns for one in shown) - begin) - waited


def _small_blocks(run: RunSetting) -> list[str]:
    return [EMBEDDING, *layer_names(run), HEAD]


def _to_next_stage(run: RecordedRun, hand_over: int) -> list[tuple[OperatorSample, Transfer]]:
    """A run's sends to the next stage: those of the group whose every send has the bytes that a layer hands on.

    Ring attention sends too, to ranks nearby; where it sends as much, it sends more often.
    """
    groups = defaultdict[str, list[tuple[OperatorSample, Transfer]]](list)
    for sample in run.samples:
        sent = run.transfers.get(sample.name)
        if sent is not None and kind_of(sample.operator.type) == TRANSFER and "send" in sample.operator.type.lower():
            groups[sent.group].append((sample, sent))
    alike = [each for each in groups.values() if all(abs(sent.bytes - hand_over) <= hand_over * SAME_BYTES
                                                     for _, sent in each)]  # fmt: skip
    return min(alike or groups.values(), key=len, default=[])


def _timed(sample: OperatorSample, group: tuple[int, int], sent: int, ns: float) -> tuple[Collective, float]:
    kind = kind_of(sample.operator.type)
    return Collective(kind, *group, buffer_of(kind, group[0], sent)), ns


def _after_start(sample: OperatorSample, span: tuple[int, int]) -> float:
    """Fraction of an operator's time that follows a collective's start; 0 where they hardly run at the same time.

    What remains of it when the collective ends counts as well: a longer one would run beside it.
    """
    begin, took = max(sample.start_ns, span[0]), span[1] - span[0]
    shared = min(sample.start_ns + sample.duration_ns, span[1]) - begin
    return (span[1] - begin) / took if shared > LEAST_BESIDE * min(sample.duration_ns, took) else 0.0


def _length(spans: Iterable[tuple[float, float]]) -> float:
    """Time that spans cover together."""
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _behind_another(sample: OperatorSample, run: RecordedRun) -> float:
    """Fraction of a collective's time during which one that began no later, and stands before it, runs too."""
    earlier = list[tuple[int, int]]()
    for one in run.kept_samples:
        if one is sample:
            break
        if not one.operator.is_compute:
            earlier.append((one.start_ns, one.start_ns + one.duration_ns))
    return _overlap(sample, sorted(earlier))


def _overlap(sample: OperatorSample, busy: Sequence[tuple[int, int]]) -> float:
    """Fraction of a collective's time during which operators compute."""
    start, end = sample.start_ns, sample.start_ns + sample.duration_ns
    at = max(0, bisect.bisect_left(busy, (start, 0)) - 1)
    covered = 0
    while at < len(busy) and busy[at][0] < end:
        covered += max(0, min(end, busy[at][1]) - max(start, busy[at][0]))
        at += 1
    return min(1.0, covered / max(1, end - start))
