"""The pipeline problem: the input of a solver, the checker or an evaluation, and nothing else."""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.chunks import Placement
from taylor.pipeline.plan import FULL, NONE, SELECT, kind_of
from taylor.pipeline.schedule import ScheduleSpec

MEMORY_TOLERANCE_MIB = 1e-6
"""Tolerance of a stage's limit, one byte, because decimal figures of a profile are not exact in binary."""


@dataclass(frozen=True)
class Pairing:
    """Pairs of layers in a forward and a backward that run as one pass.

    A pass takes the positions of the forward's chunk from the first one on, and those of the backward's chunk from the
    last one back.

    Parameters
    ----------
    positions : int or None
        Positions of every chunk, the empty ones behind its layers; a layer paired with an empty one runs alone
        (MindSpeed 028de58c mindspeed/core/transformer/moe/moe_feature/fb_overlap/transformer_block.py:337-383 and
        transformer_layer.py:182-189). None: a chunk has as many as layers, and the surplus of the longer one runs alone
        (Megatron-LM d98e8a64 megatron/core/models/common/model_chunk_schedule_plan.py,
        ``TransformerModelChunkSchedulePlan.run``).
    """

    positions: int | None = None

    def count(self, own: Any, other: Any) -> Any:
        """Paired layers of a chunk with `own` layers, where the other chunk has `other`; int or int array."""
        fewer = np.minimum(own, other)
        return fewer if self.positions is None else np.clip(own + other - self.positions, 0, fewer)

    def keeps_first(self, backward: bool) -> bool:
        """Return whether the paired layers are the first ones of their chunk; else they are the last."""
        return self.positions is None and not backward


@dataclass(frozen=True)
class LayerChoice:
    """Effect of a choice (recompute of some modules, offload, …) on one layer, except for its activations.

    Parameters
    ----------
    forward, backward, weight_gradient : float
        Time added to a task of one micro-batch, in body-layer forward times: recompute and exposed transfers. Where
        weight gradients are not separate tasks, their time belongs to the backward.
    states_mib : float
        Additional MiB of weights, gradients and optimizer states on the device; negative where they are on the host.
    host_mib, host_states_mib : float
        MiB on the host: of every live micro-batch, and of states.
    link_time : float
        Time in which the host link carries a micro-batch's data, in each direction; of what is lent, the link to the
        lender. It costs nothing by itself: the exposed part is in `forward` and `backward`.
    lent_mib : float
        MiB of every live micro-batch on the device of another stage, `PipelineProblem.lenders`.
    """

    forward: float = 0.0
    backward: float = 0.0
    weight_gradient: float = 0.0
    states_mib: float = 0.0
    host_mib: float = 0.0
    host_states_mib: float = 0.0
    link_time: float = 0.0
    lent_mib: float = 0.0


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer.

    Parameters
    ----------
    name : str
        ``dense``, ``moe``, ``mtp``, ….
    count : int
        Layers of the kind in the model.
    forward : float
        Forward time of one layer; the body layer is 1.
    layer_mib : float
        Weights, gradients and optimizer states of one layer, MiB.
    activation_mib : mapping of mode to float
        Activations of one micro-batch in one layer, MiB, for ``none``, every mode of `recompute_ratio` and every one of
        `PipelineProblem.choices`.
    pinned_last : bool
        All layers of the kind lie together on the last chunk, or on one of `places`, and count neither in the least
        number of layers nor in the offset (MTP of mcore-style files). They are never recomputed.
    places : tuple of int
        Of a pinned kind: positions in model order of the chunks on one of which the solver may place it; empty for the
        last chunk alone. The kind comes behind all free ones, so chunks beyond it have none of these. Of one with
        `pinned_first` the position of its chunk, empty for the first.
    hand_over : float
        Of a pinned kind: data that it adds to every boundary behind it, as a multiple of the usual transfer.
    choices : mapping of choice to LayerChoice
        Cost of each of `PipelineProblem.choices` in a layer of the kind.
    added_forward, added_backward : float
        Of a pinned kind: time of one layer in a forward and a backward of its chunk beyond `forward` and
        `PipelineProblem.backward_ratio` times that, for a kind whose backward has another ratio (a frozen encoder has
        none).
    exposed_forward, exposed_backward : float
        Under a `PipelineProblem.pairing`: additional time of a layer's forward and backward where no layer of the other
        pass is paired with it and overlaps its communication.
    shared_mib : float
        Of a pinned kind: MiB that a stage holds once for all runs of the kind on it (`pipeline.plan.kind_of`), such as
        the copy of the embedding of MTP layers that are placed one by one.
    joined : bool
        No chunk begins with a layer of the kind: all of them lie on the chunk of the layer before them (layers that
        reuse its choice of tokens).
    pinned_first : bool
        All layers of the kind lie together on the first chunk, in front of all others, and are otherwise as
        pinned ones (layers of an encoder). It is listed behind the free kinds,
        as recompute counts from the first of these. With `places` they lie in front of those of that chunk (a run of
        an encoder that lies on several), and the chunks before it hold no free layers: `fixed_layers` says so.
    """

    name: str
    count: int
    forward: float
    layer_mib: float
    activation_mib: Mapping[str, float]
    pinned_last: bool = False
    places: tuple[int, ...] = ()
    hand_over: float = 0.0
    choices: Mapping[str, LayerChoice] = field(default_factory=dict)
    exposed_forward: float = 0.0
    exposed_backward: float = 0.0
    shared_mib: float = 0.0
    joined: bool = False
    added_forward: float = 0.0
    added_backward: float = 0.0
    pinned_first: bool = False

    @property
    def pinned(self) -> bool:
        """Return whether the kind lies on a chunk of its own choice, or on one of a few."""
        return self.pinned_first or self.pinned_last

    @property
    def added(self) -> tuple[float, float]:
        """`added_forward` and `added_backward`."""
        return self.added_forward, self.added_backward

    @property
    def exposed(self) -> tuple[float, float]:
        """`exposed_forward` and `exposed_backward`."""
        return self.exposed_forward, self.exposed_backward

    @property
    def least_mib(self) -> float:
        """Least states of a layer on the device under any choice, MiB."""
        return self.layer_mib + min([0.0, *(one.states_mib for one in self.choices.values())])

    @property
    def costs(self) -> tuple[Any, ...]:
        """All that distinguishes a layer of the kind from one of another kind."""
        choices = tuple(sorted(self.choices.items(), key=lambda item: item[0]))
        return (self.forward, *self.exposed, *self.added, self.layer_mib, tuple(self.activation_mib.items()), choices)


@dataclass(frozen=True)
class StageTimes:
    """Time ratios of one stage whose card has other ratios than the problem; in units of `slowness`.

    Parameters
    ----------
    forward : mapping of kind to float
        Forward time of a layer of each kind.
    backward_ratio : float
    recompute_ratio : mapping of mode to float
        As `PipelineProblem` has them.
    choices : mapping of kind to mapping of choice to LayerChoice
        As `LayerKind.choices`, for each kind.
    """

    forward: Mapping[str, float]
    backward_ratio: float
    recompute_ratio: Mapping[str, float]
    choices: Mapping[str, Mapping[str, LayerChoice]] = field(default_factory=dict)

    @classmethod
    def of(cls, problem: PipelineProblem) -> StageTimes:
        """The ratios of a problem for all its stages."""
        return cls(
            {kind.name: kind.forward for kind in problem.kinds},
            problem.backward_ratio,
            problem.recompute_ratio,
            {kind.name: kind.choices for kind in problem.kinds if kind.choices},
        )


@dataclass(frozen=True, repr=False)
class PipelineProblem:
    """Layers of every kind to place on S stages × V virtual stages, with recompute choices and memory limits.

    Times are in units of one body layer's forward time, memory in MiB.

    Parameters
    ----------
    stages, interleaves, micro_batches : int
        S, V and m.
    kinds : tuple of LayerKind
        In model order; a chunk has a contiguous run of the model's layers.
    static_mib, limit_mib : tuple of float [S]
        Memory apart from the layers, and the limit, of each stage.
    backward_ratio : float
        β: backward over forward without recompute; for head and embedding, too.
    recompute_ratio : mapping of mode to float
        ρ of every recompute mode of plans (``full``, ``select``).
    unsearched : tuple of str
        Those of them that the solver may not choose; a given plan with them can be evaluated.
    choices : tuple of str
        Further choices of a layer apart from the recompute modes, with costs in `LayerKind.choices`. In a chunk they
        follow the recompute modes in this order: a layer has one of them, or none.
    host_limit_mib : tuple of float [S] or empty
        Limit of host memory for one device of a stage; empty without a limit.
    lenders : tuple of int [S] or empty
        The stage on whose devices each stage keeps what its choices lend (`LayerChoice.lent_mib`), -1 for none. The
        lender reserves, for the whole step, as much as is ever there at once. It lends nothing away itself.
    lent_limit_mib : tuple of float [S] or empty
        Limit of what each stage lends away at once, for one device; empty without a limit.
    head_forward, embedding_forward : float
        Added to the forward of the last and of the first chunk.
    lag : float
        Transfer time on an edge that crosses stages.
    lags : tuple of float [V · S - 1] or empty
        The same by boundary where they differ, instead of `lag`: entry k between the chunks at positions k and k + 1 of
        the model, in either direction. Inside a stage nothing is transferred.
    tail : tuple of float [S] or empty
        Time after a stage's last task (gradient reduction, optimizer) before the step ends.
    slowness : tuple of float [S] or empty
        Factor on the times of a stage's tasks, for cards of different speed. Empty where all stages are alike;
        transfers and tails are as given.
    stage_times : tuple of StageTimes [S] or empty
        The ratios of each stage, instead of those of the kinds, `backward_ratio` and `recompute_ratio`, where cards
        have different ones. `head_forward` and `embedding_forward` are those of the stages on which they lie.
    cards : tuple of str [S] or empty
        Name of each stage's device where there are several kinds; not used by solvers.
    weight_gradient_share : float
        Fraction of a backward (without recompute) that is the weight gradient, for schedules that split it.
    min_layers : int
        Least number of layers a chunk.
    entries_alone : bool
        A chunk with the embedding, the head or a pinned kind may have no other layer.
    fixed_layers : mapping of (interleave, stage) to int
        Given total of layers of a chunk, of which pinned ones are none; 0 gives a chunk to the kinds that are pinned
        there in front (`LayerKind.pinned_first`) alone.
    max_layers : mapping of (interleave, stage) to int
        Upper bounds on a chunk's total of layers.
    fixed_recompute : mapping of (mode, interleave, stage) to int
        Given number of recomputed layers.
    uniform_recompute : tuple of (mode, int)
        When not empty, one (mode, n) of these applies to all chunks: the first n layers of each (all, where it has
        fewer) are recomputed in that mode, and no others. Flags of some launchers can only express this. Of
        `lending_choices` each chunk has its own counts nevertheless: no flag expresses these.
    pairing : Pairing or None
        Pairs of layers where a forward and a backward run as one pass (`pipeline.partners`); the times of the kinds are
        then those of a paired layer. None: every task takes these times.
    unit_ms : float or None
        Real time of one unit, ms.

    Raises
    ------
    ValueError
        With the invalid field and its value.
    """

    stages: int
    interleaves: int
    micro_batches: int
    kinds: tuple[LayerKind, ...]
    static_mib: tuple[float, ...]
    limit_mib: tuple[float, ...]
    schedule: ScheduleSpec = ScheduleSpec()
    backward_ratio: float = 2.0
    recompute_ratio: Mapping[str, float] = field(default_factory=lambda: {FULL: 1.0})
    unsearched: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    host_limit_mib: tuple[float, ...] = ()
    lenders: tuple[int, ...] = ()
    lent_limit_mib: tuple[float, ...] = ()
    head_forward: float = 0.0
    embedding_forward: float = 0.0
    lag: float = 0.0
    lags: tuple[float, ...] = ()
    tail: tuple[float, ...] = ()
    slowness: tuple[float, ...] = ()
    stage_times: tuple[StageTimes, ...] = ()
    cards: tuple[str, ...] = ()
    weight_gradient_share: float = 0.5
    min_layers: int = 1
    entries_alone: bool = False
    fixed_layers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    max_layers: Mapping[tuple[int, int], int] = field(default_factory=dict)
    fixed_recompute: Mapping[tuple[str, int, int], int] = field(default_factory=dict)
    uniform_recompute: tuple[tuple[str, int], ...] = ()
    pairing: Pairing | None = None
    unit_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("stages", "interleaves", "micro_batches"):
            _require(getattr(self, name) >= 1, f"{name} must be >= 1", getattr(self, name))
        for name in ("backward_ratio", "head_forward", "embedding_forward", "lag", "min_layers"):
            _require(getattr(self, name) >= 0, f"{name} must be >= 0", getattr(self, name))
        _require(
            0 <= self.weight_gradient_share <= 1, "weight_gradient_share must lie in 0 to 1", self.weight_gradient_share
        )
        self._leave_front_empty()
        if len(self.static_mib) != self.stages or len(self.limit_mib) != self.stages:
            raise ValueError("static_mib and limit_mib must have one entry a stage")
        if self.tail and len(self.tail) != self.stages:
            raise ValueError("tail must be empty or have one entry a stage")
        _require(all(tail >= 0 for tail in self.tail), "tail must be >= 0 on every stage", self.tail)
        if self.lags and len(self.lags) != self.stages * self.interleaves - 1:
            raise ValueError(
                "lags must be empty or have one entry a boundary between chunks, stages x virtual stages - 1"
            )
        _require(all(0 <= lag < inf for lag in self.lags), "lags must be >= 0 at every boundary", self.lags)
        if self.slowness and len(self.slowness) != self.stages:
            raise ValueError("slowness must be empty or have one entry a stage")
        _require(all(0 < slow < inf for slow in self.slowness), "slowness must be > 0 on every stage", self.slowness)
        for mode, ratio in self.recompute_ratio.items():
            _require(mode in (FULL, SELECT), f"recompute_ratio may name {FULL} and {SELECT}", mode)
            _require(ratio >= 0, f"recompute_ratio of {mode} must be >= 0", ratio)
        _require(
            all(mode in self.recompute_ratio for mode in self.unsearched),
            "unsearched must name modes of recompute_ratio",
            self.unsearched,
        )
        self._check_uniform()
        _require(
            len({*self.choices, FULL, SELECT, NONE}) == len(self.choices) + 3,
            f"choices must be named once, and otherwise than {FULL}, {SELECT} and {NONE}",
            self.choices,
        )
        names = [re.sub(r"\W", "_", name) for name in self.choices]
        _require(
            all(name and name[0].isalpha() for name in names) and len(set(names)) == len(names),
            "choices must begin with a letter and differ in their letters and digits",
            self.choices,
        )
        if self.host_limit_mib and len(self.host_limit_mib) != self.stages:
            raise ValueError("host_limit_mib must be empty or have one entry a stage")
        _require(all(mib >= 0 for mib in self.host_limit_mib), "host_limit_mib must be >= 0", self.host_limit_mib)
        self._check_lenders()
        self._check_kinds()
        self._check_stage_times()
        pinned = {
            "fixed_layers": list(self.fixed_layers),
            "max_layers": list(self.max_layers),
            "fixed_recompute": [(v, s) for _, v, s in self.fixed_recompute],
        }
        for name, chunks in pinned.items():
            for v, s in chunks:
                inside = 0 <= v < self.interleaves and 0 <= s < self.stages
                _require(inside, f"{name} must name chunks (virtual stage, stage) of the pipeline", (v, s))

    def _leave_front_empty(self) -> None:
        """Give no free layers to the chunks before a kind that is pinned in front of them."""
        lead = max((max(kind.places, default=0) for kind in self.kinds if kind.pinned_first and kind.count), default=0)
        empty = dict.fromkeys(self.placement.chunks[:lead], 0) if lead else {}
        taken = [chunk for chunk in empty if self.fixed_layers.get(chunk)]
        _require(not taken, "fixed_layers must give chunks before a kind pinned in front no layers", taken)
        if not empty.keys() <= self.fixed_layers.keys():
            object.__setattr__(self, "fixed_layers", {**self.fixed_layers, **empty})

    def _check_kinds(self) -> None:
        if not self.kinds or all(kind.pinned for kind in self.kinds):
            raise ValueError("at least one layer kind must be free to place")
        names = [kind.name for kind in self.kinds]
        _require(len(set(names)) == len(names), "every kind must have a name of its own", names)
        for kind in self.kinds:
            if not (kind.count >= 0 and kind.forward >= 0 and kind.layer_mib >= 0):
                raise ValueError(f"kind {kind.name}: count, forward and layer_mib must be >= 0")
            _require(kind.hand_over >= 0, f"kind {kind.name}: hand_over must be >= 0", kind.hand_over)
            shared = 0 <= kind.shared_mib < inf and (kind.pinned or not kind.shared_mib)
            _require(shared, f"kind {kind.name}: shared_mib must be >= 0, and 0 unless it is pinned", kind.shared_mib)
            finite = all(0 <= time < inf for time in kind.exposed)
            _require(finite, f"kind {kind.name}: exposed times must be >= 0", kind.exposed)
            own = all(0 <= time < inf for time in kind.added) and (kind.pinned or not any(kind.added))
            _require(own, f"kind {kind.name}: added times must be >= 0, and 0 unless it is pinned", kind.added)
            if kind.places:
                self._check_places(kind)
            missing = [mode for mode in (NONE, *self.recompute_ratio, *self.choices) if mode not in kind.activation_mib]
            if missing:
                raise ValueError(f"kind {kind.name}: activation_mib lacks {', '.join(missing)}")
            if lacking := [name for name in self.choices if name not in kind.choices]:
                raise ValueError(f"kind {kind.name}: choices lacks {', '.join(lacking)}")
            for name in self.choices:
                one = kind.choices[name]
                times = (one.forward, one.backward, one.weight_gradient, one.link_time)
                kept = (one.host_mib, one.host_states_mib, one.lent_mib, kind.layer_mib + one.states_mib)
                if not all(0 <= value < inf for value in (*times, *kept)):
                    raise ValueError(f"kind {kind.name}: choice {name} must have times and memory >= 0, found {one}")
        self._check_order_of_places()
        for kind in self.kinds:
            behind = not kind.pinned and (not kind.count or kind not in self.placed_kinds[:1])
            _require(behind or not kind.joined, "a joined kind must be free to place, behind another one", kind.name)

    def _check_stage_times(self) -> None:
        if self.stage_times and len(self.stage_times) != self.stages:
            raise ValueError("stage_times must be empty or have one entry a stage")
        if self.cards and len(self.cards) != self.stages:
            raise ValueError("cards must be empty or have one entry a stage")
        for one in self.stage_times:
            _require(one.backward_ratio >= 0, "backward_ratio of stage_times must be >= 0", one.backward_ratio)
            times = (*one.forward.values(), *one.recompute_ratio.values())
            _require(all(0 <= time < inf for time in times), "times of stage_times must be >= 0", times)
            names = [kind.name for kind in self.kinds if kind.name not in one.forward]
            names += [mode for mode in self.recompute_ratio if mode not in one.recompute_ratio]
            names += [
                f"{name} of {kind.name}"
                for kind in self.kinds
                for name in self.choices
                if name not in one.choices.get(kind.name, {})
            ]
            _require(not names, "stage_times must state every kind, recompute mode and choice", names)

    def _check_uniform(self) -> None:
        if any(count < 0 or (count and mode not in self.searched_modes) for mode, count in self.uniform_recompute):
            raise ValueError("uniform_recompute must name modes of recompute_ratio that are searched, counts >= 0")
        if any(mode in self.lending_choices for mode, _ in self.uniform_recompute):
            raise ValueError("uniform_recompute must not name choices that lend: chunks have their own counts of these")

    def _check_lenders(self) -> None:
        if self.lenders and len(self.lenders) != self.stages:
            raise ValueError("lenders must be empty or have one entry a stage")
        for stage, lender in enumerate(self.lenders):
            if not -1 <= lender < self.stages or lender == stage or (lender >= 0 and self.lenders[lender] >= 0):
                raise ValueError(
                    f"the lender of stage {stage} must be another stage that lends nothing away, or -1, found {lender}"
                )
        if self.lent_limit_mib and len(self.lent_limit_mib) != self.stages:
            raise ValueError("lent_limit_mib must be empty or have one entry a stage")
        _require(all(mib >= 0 for mib in self.lent_limit_mib), "lent_limit_mib must be >= 0", self.lent_limit_mib)
        if any(one.lent_mib for one in self._of_choices) and not (self.lenders or self.lent_limit_mib):
            raise ValueError("choices with lent_mib need lenders: the stage on which each stage keeps them")

    def _check_order_of_places(self) -> None:
        order = [kind.pinned_first + 2 * kind.pinned_last for kind in self.kinds if kind.count]
        if order != sorted(order) and any(kind.pinned_first for kind in self.kinds):
            raise ValueError("kinds pinned to the first chunk must be listed behind free kinds, before other ones")
        reached = 0
        for kind in self.pinned_kinds:
            ahead = [place for place in self.places_of(kind) if place >= reached]
            if not ahead:
                raise ValueError(f"kind {kind.name}: its places lie before those of a kind that comes before it")
            reached = ahead[0]

    def _check_places(self, kind: LayerKind) -> None:
        chunks, at = self.stages * self.interleaves, self.kinds.index(kind)
        rising = list(kind.places) == sorted({place for place in kind.places if 0 <= place < chunks})
        if not kind.pinned or not rising or (kind.pinned_first and len(kind.places) > 1):
            raise ValueError(
                f"kind {kind.name}: places must be rising positions of 0 to {chunks - 1}, of a pinned kind, one where "
                f"it is pinned in front, found {kind.places!r}"
            )
        if any(not one.pinned for one in self.kinds[at:]):
            raise ValueError(f"kind {kind.name}: a kind with places must come behind all kinds that are free to place")

    @property
    def placement(self) -> Placement:
        """The stage of every chunk."""
        return self.schedule.placement(self.stages, self.interleaves)

    @property
    def pinned_kinds(self) -> list[LayerKind]:
        """The pinned kinds that have layers."""
        return [kind for kind in self.kinds if kind.pinned and kind.count]

    def places_of(self, kind: LayerKind) -> tuple[int, ...]:
        """Positions in model order of the chunks on one of which a pinned kind lies."""
        return kind.places or ((0,) if kind.pinned_first else (self.stages * self.interleaves - 1,))

    def pinned_at(self, place: int) -> list[LayerKind]:
        """The pinned kinds on the chunk at a position; each must have one place only."""
        return [kind for kind in self.pinned_kinds if self.places_of(kind) == (place,)]

    def shared_on(self, places: Sequence[int]) -> float:
        """MiB that the stage of the chunks at these positions holds once for the pinned kinds there."""
        return shared_mib(kind for place in places for kind in self.pinned_at(place))

    def is_beyond(self, place: int) -> bool:
        """Return whether a pinned kind, at any of its places, excludes free layers from the chunk at a position."""
        return any(kind.pinned_last and place > max(self.places_of(kind)) for kind in self.pinned_kinds)

    @property
    def least_layers(self) -> tuple[int, ...]:
        """Least number of free layers of every chunk in model order, int [V · S], without limits by chunk."""
        last = self.stages * self.interleaves - 1
        alone = {0, last, *(place for kind in self.pinned_kinds for place in self.places_of(kind))}
        alone = alone | self.led_alone if self.entries_alone else self.led_alone
        return tuple(0 if place in alone else self.min_layers for place in range(last + 1))

    @property
    def led_alone(self) -> set[int]:
        """Positions of the chunks that kinds pinned there in front are given alone."""
        led = {self.places_of(kind)[0] for kind in self.pinned_kinds if kind.pinned_first}
        return {place for place in led if self.fixed_layers.get(self.placement.chunks[place]) == 0}

    @property
    def adds_pinned(self) -> bool:
        """Return whether a pinned kind has times beyond its forward and the problem's backward."""
        return any(any(kind.added) for kind in self.pinned_kinds)

    @property
    def free_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds that the solver places."""
        return tuple(kind for kind in self.kinds if not kind.pinned)

    @property
    def placed_kinds(self) -> list[LayerKind]:
        """The free kinds that have layers."""
        return [kind for kind in self.free_kinds if kind.count]

    def keeps_joined(self, layers: Sequence[int]) -> bool:
        """Return whether a chunk with these layers by placed kind begins and ends where no joined kind is split."""
        before = 0
        for kind, count in zip(self.placed_kinds, layers, strict=True):
            if kind.joined and count and not (before and count == kind.count):
                return False
            before = count
        return True

    @cached_property
    def border_strays(self) -> NDArray[np.int64]:
        """Layers from each position 0 ... L of the model to the nearest one at which a chunk may begin, int64 [L + 1].

        The last position is the end of the model.
        """
        counts, joined = zip(*((kind.count, kind.joined) for kind in self.placed_kinds), strict=True)
        places = np.arange(self.layers + 1)
        allowed = np.flatnonzero(~np.append(np.repeat(joined, counts), False))
        behind = np.searchsorted(allowed, places)
        ahead = np.maximum(behind - 1, 0)
        strays: NDArray[np.int64] = np.minimum(np.abs(allowed[behind] - places), np.abs(allowed[ahead] - places))
        return strays

    @property
    def searched_modes(self) -> tuple[str, ...]:
        """Modes and choices for the solver, in the order in which a chunk's layers take them."""
        modes = (mode for mode in (FULL, SELECT) if mode in self.recompute_ratio and mode not in self.unsearched)
        return (*modes, *self.choices)

    @property
    def _of_choices(self) -> Iterator[LayerChoice]:
        return (kind.choices[name] for kind in self.free_kinds for name in self.choices if name in kind.choices)

    @cached_property
    def lending_choices(self) -> tuple[str, ...]:
        """Choices under which a layer of some free kind keeps activations on a lender."""
        lends = {name for kind in self.free_kinds for name, one in kind.choices.items() if one.lent_mib}
        return tuple(name for name in self.choices if name in lends)

    @property
    def bounds_host(self) -> bool:
        """Return whether host memory can limit plans."""
        return bool(self.host_limit_mib) and any(one.host_mib or one.host_states_mib for one in self._of_choices)

    @property
    def bounds_lent(self) -> bool:
        """Return whether `lent_limit_mib` can limit plans."""
        return bool(self.lent_limit_mib) and any(one.lent_mib for one in self._of_choices)

    def limits_elsewhere(self, stage: int) -> tuple[float, ...]:
        """Limits of a stage's memory that is not on its devices, MiB: the host's, then the lender's, where bounded."""
        host = (self.host_limit_mib[stage],) if self.bounds_host else ()
        return (*host, self.lent_limit_mib[stage]) if self.bounds_lent else host

    def choice_of(self, kind: LayerKind, mode: str) -> LayerChoice:
        """Additional cost of a layer of a kind under a mode of `searched_modes`.

        Raises
        ------
        KeyError
            If the problem has no cost of the mode.
        """
        if mode in self.choices:
            return kind.choices[mode]
        return LayerChoice(backward=self.recompute_ratio[mode] * kind.forward)

    @property
    def pace(self) -> tuple[float, ...]:
        """`slowness` with explicit ones, float [S]."""
        return self.slowness or (1.0,) * self.stages

    @cached_property
    def first_alike(self) -> tuple[int, ...]:
        """The first stage with the same ratios as each one, int [S]."""
        return tuple(self.stage_times.index(one) for one in self.stage_times) or (0,) * self.stages

    def on_stage(self, stage: int) -> PipelineProblem:
        """The problem with the ratios of one stage; its pace remains that of `slowness`."""
        return self._on_cards[self.first_alike[stage]] if self.stage_times else self

    @cached_property
    def _on_cards(self) -> dict[int, PipelineProblem]:
        return {first: self._with_times(self.stage_times[first]) for first in sorted(set(self.first_alike))}

    def _with_times(self, times: StageTimes) -> PipelineProblem:
        kinds = tuple(
            replace(
                kind,
                forward=times.forward[kind.name],
                choices={name: times.choices[kind.name][name] for name in self.choices},
            )
            for kind in self.kinds
        )
        recompute = {mode: times.recompute_ratio[mode] for mode in self.recompute_ratio}
        return self.replace(kinds=kinds, backward_ratio=times.backward_ratio, recompute_ratio=recompute, stage_times=())

    @property
    def backward_ratios(self) -> tuple[float, ...]:
        """β of every stage, float [S]."""
        return tuple(one.backward_ratio for one in self.stage_times) or (self.backward_ratio,) * self.stages

    @cached_property
    def least_pace(self) -> tuple[float, ...]:
        """Least factor on the time of any work without recompute on a stage, float [S]."""
        if not self.stage_times:
            return self.pace
        usual = {kind.name: kind.forward for kind in self.kinds if kind.forward}
        return tuple(
            pace
            * ((1.0 + times.backward_ratio) / (1.0 + self.backward_ratio))
            * min(1.0, *(times.forward[name] / forward for name, forward in usual.items()))
            for pace, times in zip(self.pace, self.stage_times, strict=True)
        )

    @property
    def boundary_lags(self) -> tuple[float, ...]:
        """Transfer time at every boundary between chunks in model order, float [V · S - 1].

        It includes the transfers of pinned kinds, from the last of their places on.
        """
        lags = self.lags or (self.lag,) * (self.stages * self.interleaves - 1)
        added = [(max(self.places_of(kind)), kind.hand_over) for kind in self.pinned_kinds if kind.hand_over]
        if not added:
            return lags
        return tuple(lag * (1.0 + sum(more for at, more in added if at <= k)) for k, lag in enumerate(lags))

    @property
    def layers(self) -> int:
        """Layers that the solver places."""
        return sum(kind.count for kind in self.free_kinds)

    def replace(self, **changes: Any) -> PipelineProblem:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def fingerprint(self) -> str:
        """A hash of 64 letters and digits, equal for two problems only when all their fields are equal."""
        stated = [(one.name, getattr(self, one.name)) for one in fields(self)]
        return hashlib.sha256(repr(stated).encode()).hexdigest()

    def summary(self) -> str:
        """The problem in a few lines: the pipeline, its layers, the memory, the times."""
        lines = [
            f"{self.stages} stages x {self.interleaves} virtual stages, {self.micro_batches} micro-batches, "
            f"{self.schedule.name}"
        ]
        for kind in self.kinds:
            modes = {mode: mib for mode, mib in kind.activation_mib.items() if mode not in self.choices}
            kept = ", ".join(f"{mode} {mib:g}" for mode, mib in modes.items())
            pinned = f" on chunk {' or '.join(map(str, self.places_of(kind)))}" if kind.places else ""
            pinned = pinned or (" on the last chunk" if kind.pinned_last else "")
            pinned = pinned or (" on the first chunk" if kind.pinned_first else "")
            pinned = pinned or (" on the chunk of the layer before them" if kind.joined else "")
            lines.append(
                f"{kind.count} {kind.name} layers{pinned}: forward {kind.forward:g}, {kind.layer_mib:,g} MiB each; "
                f"a micro-batch keeps {kept} MiB by recompute"
            )
        lines.append(
            f"limit {_range(self.limit_mib)} MiB a stage, of which {_range(self.static_mib)} MiB without layers"
        )
        ratios = ", ".join(
            f"{mode} recompute {ratio:g}{' (not searched)' if mode in self.unsearched else ''}"
            for mode, ratio in self.recompute_ratio.items()
        )
        unit = "" if self.unit_ms is None else f"; unit {self.unit_ms:g} ms"
        lines.append(
            f"backward {self.backward_ratio:g}, {ratios + ', ' if ratios else ''}head {self.head_forward:g}, "
            f"embedding {self.embedding_forward:g}, transfer {span(self.lags or (self.lag,))}{unit}"
        )
        for name in self.choices:
            kept = ", ".join(f"{kind.name} {kind.activation_mib[name]:g}" for kind in self.free_kinds)
            lines.append(f"choice {name}: a micro-batch keeps {kept} MiB")
        if self.lenders:
            pairs = ", ".join(f"{s} on {at}" for s, at in enumerate(self.lenders) if at >= 0)
            lines.append(f"stages keep lent activations: {pairs}")
        if self.cards:
            lines.append(f"stages on {card_rows(self.cards)}")
        if self.slowness:
            lines.append(f"stages take {', '.join(f'{slow:g}' for slow in self.slowness)} times as long")
        if self.stage_times:
            lines.append(f"backward by stage {', '.join(f'{ratio:.4g}' for ratio in self.backward_ratios)}")
        given = len(self.fixed_layers) + len(self.max_layers) + len(self.fixed_recompute)
        if given:
            lines.append(f"given or bounded by chunk: {given} count{'s' if given > 1 else ''} of layers or recompute")
        for kind in (one for one in self.pinned_kinds if any(one.added)):
            lines.append("each {} layer takes {:.3g}/{:.3g} more, forward/backward".format(kind.name, *kind.added))
        if self.pairing is not None:
            alone = ", ".join("{} {:.3g}/{:.3g}".format(kind.name, *kind.exposed) for kind in self.kinds)
            lines.append(f"a layer without one beside it takes longer, forward/backward: {alone}")
        if self.uniform_recompute:
            lines.append(f"one recompute choice of {len(self.uniform_recompute)} applies to all chunks")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return "PipelineProblem: " + self.summary().replace("\n", "\n  ")


def shared_mib(kinds: Iterable[LayerKind]) -> float:
    """MiB that a stage with these pinned kinds holds once: for runs of the same kind, the greatest."""
    most: dict[str, float] = {}
    for kind in kinds:
        most[kind_of(kind.name)] = max(most.get(kind_of(kind.name), 0.0), kind.shared_mib)
    return sum(most.values())


def card_rows(cards: Sequence[str]) -> str:
    """The devices of the stages in rows: ``h100-80g:4,a100-80g:4``."""
    return ",".join(f"{name}:{len(list(row))}" for name, row in itertools.groupby(cards))


def _require(obeyed: bool, rule: str, found: object) -> None:
    if not obeyed:
        raise ValueError(f"{rule}, found {found!r}")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def span(values: Sequence[float]) -> str:
    """The least and the greatest of some figures, in a few digits; one figure where they are equal."""
    low, high = min(values), max(values)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
