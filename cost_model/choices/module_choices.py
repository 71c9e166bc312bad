"""Choices of a layer by module: what runs again and what lies on the host, with its time and memory.

A choice names some of the modules that a launcher's files can name. What runs again costs its time in the backward
(`selective_time`); what is moved to the host costs the time by which the link is slower than the layer: the transfer
of a layer runs beside the computation of the next one, in the backward beside the one before. The first layers of a
chunk are under a choice together, so each overlaps with one layer's computation, not more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeVar

from taylor.cost_model.choices.nested_choices import Point, lowest_chain
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.offload import CONTEXT, CORE_INPUTS, HOST_LINK_SHARE, KEPT_NOTHING_OF, offloaded_bytes
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.time.step import layer_time
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import EXPERT_ACTIVATION, EXPERT_BLOCK, SHARED_EXPERTS
from taylor.register.model import ModelSpec

MOST_CHOICES = 6
"""Choices by module that a job is offered at most."""

Chosen = TypeVar("Chosen")

OFFLOAD_MARK = "offload:"
"""Mark in a choice's name before the modules whose inputs lie on the host."""


@dataclass(frozen=True)
class ModuleWords:
    """The modules that a launcher's files can name.

    Parameters
    ----------
    recompute : mapping of word to tuple of str
        Parts that run again, of `register.frameworks`.
    offload : mapping of word to str
        Part that is moved to the host: one of `offload.OFFLOADED`.
    nested : bool
        Files count the layers of every module from a chunk's first one, so that choices must be nested
        (`nested_choices`), and a module runs again in no layer that lacks it.
    """

    recompute: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    offload: Mapping[str, str] = field(default_factory=dict)
    nested: bool = False


@dataclass(frozen=True)
class ModuleCost:
    """Cost of a choice in one layer of a kind, for one micro-batch.

    Parameters
    ----------
    forward, backward : float
        Time that it adds, over the layer's forward time.
    link : float
        Time for which the link to the host is busy in each direction, over the layer's forward time.
    kept_mib, host_mib : float
        Kept alive on the device, and on the host.
    """

    forward: float
    backward: float
    link: float
    kept_mib: float
    host_mib: float


@dataclass(frozen=True)
class ModuleChoice:
    """Modules that run again, modules whose inputs lie on the host, and the cost by kind of layer."""

    recompute: tuple[str, ...]
    offload: tuple[str, ...]
    costs: Mapping[str, ModuleCost]

    @property
    def name(self) -> str:
        """Name in reports: ``layernorm+moe_act``, ``offload:core_attn+attn_proj``, ``moe_act+offload:core_attn``."""
        return choice_name(self.recompute, self.offload)


def choice_name(again: Sequence[str], moved: Sequence[str]) -> str:
    """The name of a choice by its modules; see `words_of`."""
    return "+".join([*again, *([OFFLOAD_MARK + "+".join(moved)] if moved else [])])


def words_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Modules that run again and modules that are moved, from a choice's name."""
    again, _, moved = name.partition(OFFLOAD_MARK)
    return tuple(filter(None, again.split("+"))), tuple(filter(None, moved.split("+")))


def module_choices(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    device: DeviceSpec,
    words: ModuleWords,
    most: int = MOST_CHOICES,
    own: ModuleWords | None = None,
    through: Sequence[tuple[str, ...]] = (),
) -> list[ModuleChoice]:
    """Choices by module that are worth offering, by rising time over the whole model; nested ones by falling size.

    Without a link to the host in the register only `own` moves anything, in no time. Of all sets of
    modules those stay that no other one, nor none or full recompute, is as good as in time and memory of the model's
    layers; of many, those between which the front has its largest steps.

    Parameters
    ----------
    own : ModuleWords, optional
        All the modules of a choice that is always offered: the job's current one.
    through : sequence of tuples of str
        The same of nested choices, by rising size.
    """
    kinds = {kind: count for kind, count in model.body_counts.items() if count}
    if device.host_link_gb_s is None:
        words = replace(words, offload={})
    bench = _Bench(model, strategy, rules, device, words, tuple(kinds), own)
    plain = [ModuleChoice((), (), {kind: bench.of_mode(kind, mode) for kind in kinds}) for mode in (NONE, FULL)]

    def total(one: ModuleChoice) -> tuple[float, float]:
        times = (n * (one.costs[kind].forward + one.costs[kind].backward) for kind, n in kinds.items())
        return sum(times), sum(n * one.costs[kind].kept_mib for kind, n in kinds.items())

    if words.nested:
        sets = _nested(bench, total, (total(plain[0]), total(plain[1])), through)
        return [ModuleChoice(again, (), bench.costs(again, ())) for again in reversed(sets)]
    found = [ModuleChoice(again, moved, bench.costs(again, moved)) for again, moved in _sets(bench.effective_words())]
    scored = sorted(((*total(one), len(one.recompute) + len(one.offload), one) for one in (*plain, *found)), key=_first)
    front: list[tuple[float, float, ModuleChoice]] = []
    for time, mib, _, one in scored:
        if not front or mib < front[-1][1] * (1 - 1e-6):
            front.append((time, mib, one))
    front = [entry for entry in front if entry[2] not in plain]
    chosen = [one for _, _, one in spread(front, most)]
    if own is not None:
        stated = tuple(own.recompute), tuple(own.offload)
        if all((one.recompute, one.offload) != stated for one in chosen):
            chosen.append(ModuleChoice(*stated, bench.costs(*stated)))
    return chosen


def stated_choices(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    device: DeviceSpec,
    words: ModuleWords,
    names: Sequence[str],
) -> list[ModuleChoice]:
    """Choices with these names, in their order."""
    kinds = tuple(kind for kind, count in model.body_counts.items() if count)
    bench = _Bench(model, strategy, rules, device, words, kinds)
    return [ModuleChoice(again, moved, bench.costs(again, moved)) for again, moved in map(words_of, names)]


def _nested(
    bench: _Bench,
    total: Callable[[ModuleChoice], Point],
    ends: tuple[Point, Point],
    through: Sequence[tuple[str, ...]],
) -> list[tuple[str, ...]]:
    """The chain of sets of modules to be offered, by rising size."""
    points: dict[tuple[str, ...], Point] = {}

    def point(again: tuple[str, ...]) -> Point:
        if again not in points:
            points[again] = total(ModuleChoice(again, (), bench.costs(again, ())))
        return points[again]

    effective = bench.effective_words().recompute
    words = [word for word in bench.words.recompute if word in effective or any(word in one for one in through)]
    return lowest_chain(
        words, point, ends, lambda again: _starts({part for word in again for part in bench.parts[word]}), through
    )


class _Bench:
    """Costs of sets of modules in each kind of layer; repeated requests are cached."""

    def __init__(
        self,
        model: ModelSpec,
        strategy: Strategy,
        rules: TrainingRules,
        device: DeviceSpec,
        words: ModuleWords,
        kinds: tuple[str, ...],
        own: ModuleWords | None = None,
    ) -> None:
        own = own or ModuleWords()
        self.parts = {**words.recompute, **own.recompute}
        self.model, self.strategy, self.rules, self.device, self.words = model, strategy, rules, device, words
        self.kinds = kinds
        self.times = {kind: layer_time(model, kind, strategy, rules, device) for kind in kinds}
        self.kept = {kind: self._kept(kind, NONE, rules) for kind in kinds}
        self.moved = {
            (kind, word): float(offloaded_bytes(model, kind, (part,), strategy, rules)) / MIB
            for kind in kinds
            for word, part in {**words.offload, **own.offload}.items()
        }
        self._again: dict[tuple[str, tuple[str, ...]], tuple[float, float]] = {}

    def effective_words(self) -> ModuleWords:
        """The words that free memory in some layer of the model."""
        recompute = {
            word: part
            for word, part in self.words.recompute.items()
            if any(self.again(kind, (word,))[1] < self.kept[kind] * (1 - 1e-9) for kind in self.kinds)
        }
        offload = {
            word: part
            for word, part in self.words.offload.items()
            if any(self.moved[kind, word] > 0 for kind in self.kinds)
        }
        return ModuleWords(recompute, offload)

    def again(self, kind: str, words: tuple[str, ...]) -> tuple[float, float]:
        """Time, ms, of what runs again, and MiB kept, in a layer of a kind."""
        if self.words.nested and len(words) > 1:
            words = tuple(word for word in words if self.again(kind, (word,))[0])
        if not words:
            return 0.0, self.kept[kind]
        if (kind, words) not in self._again:
            parts = tuple(dict.fromkeys(part for word in words for part in self.parts[word]))
            rules = self.rules.replace(selective=parts)
            time = layer_time(self.model, kind, self.strategy, rules, self.device).recompute[SELECT]
            kept = self._kept(kind, SELECT, rules)
            lacks = self.words.nested and kept >= self.kept[kind] * (1 - 1e-9)
            self._again[kind, words] = 0.0 if lacks else float(time), kept
        return self._again[kind, words]

    def costs(self, again: tuple[str, ...], moved: tuple[str, ...]) -> dict[str, ModuleCost]:
        """Cost of a set of modules in each kind of layer."""
        return {kind: self._cost(kind, again, moved) for kind in self.kinds}

    def of_mode(self, kind: str, mode: str) -> ModuleCost:
        """Cost of no recompute, or of full recompute."""
        time = self.times[kind]
        again = 0.0 if mode == NONE else float(time.recompute[mode] / time.forward)
        return ModuleCost(0.0, again, 0.0, self._kept(kind, mode, self.rules), 0.0)

    def _cost(self, kind: str, again: tuple[str, ...], moved: tuple[str, ...]) -> ModuleCost:
        forward, backward = float(self.times[kind].forward), float(self.times[kind].backward)
        repeated, kept = self.again(kind, again)
        # Parts that run again need not be moved.
        host = min(kept, sum(self.moved[kind, word] for word in moved))
        bandwidth = self.device.host_link_gb_s
        link = 0.0 if bandwidth is None else host * MIB / (1e6 * HOST_LINK_SHARE * bandwidth)
        return ModuleCost(
            max(0.0, link - forward) / forward,
            (repeated + max(0.0, link - backward - repeated)) / forward,
            link / forward,
            max(0.0, kept - host),
            host,
        )

    def _kept(self, kind: str, mode: str, rules: TrainingRules) -> float:
        return float(activation_bytes(self.model, kind, mode, self.strategy, rules)) / MIB


def _first(entry: tuple[float, float, int, ModuleChoice]) -> tuple[float, float, int]:
    return entry[0], entry[1], entry[2]


def spread(front: Sequence[tuple[float, float, Chosen]], most: int) -> list[tuple[float, float, Chosen]]:
    """The most distinct points of a front (time rising, memory falling): each splits the largest remaining step."""
    if len(front) <= most:
        return list(front)
    chosen = {0, len(front) - 1}
    while len(chosen) < most:
        left = sorted(chosen)
        gaps = [
            ((front[a][1] - front[b][1]) * (front[b][0] - front[a][0]), a, b)
            for a, b in zip(left, left[1:], strict=False)
            if b > a + 1
        ]
        if not gaps:
            break
        _, a, b = max(gaps)
        middle = (front[a][1] + front[b][1]) / 2
        chosen.add(min(range(a + 1, b), key=lambda index: abs(front[index][1] - middle)))
    return [front[index] for index in sorted(chosen)]


def _sets(words: ModuleWords) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Sets of modules that a job can start with, but for the empty one."""
    for again in _subsets(list(words.recompute)):
        parts = {part for word in again for part in words.recompute[word]}
        if not _starts(parts):
            continue
        for moved in _subsets(list(words.offload)):
            inputs = {words.offload[word] for word in moved}
            if CONTEXT in inputs and CORE_INPUTS not in inputs:
                continue  # Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:2148
            if any(parts & set(KEPT_NOTHING_OF.get(part, ())) for part in inputs):
                continue
            if again or moved:
                yield again, moved


def _starts(parts: Collection[str]) -> bool:
    """Return whether parts can run again together: not what runs again with the whole block of experts."""
    return EXPERT_BLOCK not in parts or not {EXPERT_ACTIVATION, SHARED_EXPERTS}.intersection(parts)


def _subsets(items: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for size in range(len(items) + 1):
        yield from combinations(items, size)
