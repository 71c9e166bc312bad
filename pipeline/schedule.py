"""The order of tasks on every stage: a schedule, independent of the tasks' times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable, Protocol

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.chunks import chunk_at, position_of

FORWARD, BACKWARD, WEIGHT_GRADIENT = 0, 1, 2
"""Directions of a task. With `WEIGHT_GRADIENT` tasks, `BACKWARD` is the input gradient alone."""

TO_FIRST, DEALT, EVEN = "to first", "dealt", "even"
"""Rounds that take the micro-batches beyond a whole number of rounds, see `ScheduleSpec.rounds`."""


@dataclass(frozen=True)
class ScheduleTraits:
    """Facts of a schedule that do not depend on its stages, virtual stages and micro-batches.

    Parameters
    ----------
    least_interleaves, most_interleaves : int, int or None
        The numbers of virtual stages with which frameworks run it; None is no limit.
    fixed_interleaves : int or None
        The only number of virtual stages for which its order is defined.
    one_forward_one_backward : bool
        It is 1F1B in some number of virtual stages, so that another number asks for another such schedule.
    v_shape : bool
        Odd virtual stages run through the stages in reverse.
    split_backward : bool
        Weight gradients are separate tasks.
    sequence_splits : bool
        A sequence may go through the pipeline in pieces.
    piece_rounds : bool
        A round has as many pieces as stages where others have as many micro-batches. It needs no more pieces of a
        sequence than stages, and the pieces of all micro-batches fill a round.
    short_warm_up : bool
        A stage warms up with one piece more than the stage behind it, whatever its virtual stages.
    even_stages : bool
        It runs on an even number of stages.
    whole_rounds : bool
        Rounds through the virtual stages have a set size, see `ScheduleSpec.group_size`.
    least_micro_batches : callable
        The fewest micro-batches for which its order exists, from the stages, both int or int array [n].
    low_memory_switch : bool
        Its warm-up depends on `ScheduleSpec.low_memory`.
    remainder : str
        Of rounds through the virtual stages: `TO_FIRST`, `DEALT` or `EVEN`, see `ScheduleSpec.rounds`.
    keeps_all : bool
        Every forward comes before the first backward.
    needs_pipeline : bool
        Frameworks run it with two stages or more.
    put_off : int or None
        Of straight zero-bubble schedules: number of micro-batches by which a stage begins its weight gradients later
        than the stage before it, and by which its warm-up is shorter. None of all other schedules.
    """

    least_interleaves: int = 1
    most_interleaves: int | None = None
    fixed_interleaves: int | None = None
    one_forward_one_backward: bool = False
    v_shape: bool = False
    split_backward: bool = False
    sequence_splits: bool = False
    piece_rounds: bool = False
    short_warm_up: bool = False
    even_stages: bool = False
    whole_rounds: bool = False
    least_micro_batches: Callable[[Any], Any] = lambda stages: 1
    low_memory_switch: bool = False
    remainder: str = TO_FIRST
    keeps_all: bool = False
    needs_pipeline: bool = False
    put_off: int | None = None

    def offered_with(self, interleaves: int) -> bool:
        """Return whether frameworks run the schedule with this number of virtual stages."""
        most = interleaves if self.most_interleaves is None else self.most_interleaves
        return self.least_interleaves <= interleaves <= most


PLAIN = "1f1b"
"""1F1B with one virtual stage; also the name of the interleaved forms in files that give V separately."""

_V_SHAPE = ScheduleTraits(
    least_interleaves=2,
    most_interleaves=2,
    fixed_interleaves=2,
    v_shape=True,
    split_backward=True,
    needs_pipeline=True,
)


def _up_and_down(stages: Any) -> Any:
    """Micro-batches that fill the way to the last stage and back, int or int array [n] as the stages are."""
    return 2 * stages - 1


_ZERO_BUBBLE = ScheduleTraits(split_backward=True, needs_pipeline=True)

_SEQPIPE = ScheduleTraits(sequence_splits=True, remainder=DEALT, needs_pipeline=True)
_PIECE_ROUNDS = replace(_SEQPIPE, least_interleaves=2, piece_rounds=True)

_TRAITS = {
    "gpipe": ScheduleTraits(most_interleaves=1, keeps_all=True),
    PLAIN: ScheduleTraits(most_interleaves=1, fixed_interleaves=1, one_forward_one_backward=True),
    "interleaved": ScheduleTraits(least_interleaves=2, one_forward_one_backward=True, low_memory_switch=True),
    "megatron-interleaved": ScheduleTraits(least_interleaves=2, one_forward_one_backward=True, whole_rounds=True),
    "torch-interleaved": ScheduleTraits(least_interleaves=2, one_forward_one_backward=True, remainder=EVEN),
    "seqpipe": _SEQPIPE,
    "seqvpp": _PIECE_ROUNDS,
    "seqsmartvpp": replace(_PIECE_ROUNDS, short_warm_up=True, even_stages=True),
    "zero_bubble_v": replace(_V_SHAPE, least_micro_batches=_up_and_down),
    "dualpipev": replace(_V_SHAPE, least_micro_batches=_up_and_down),
    "zbv": _V_SHAPE,
    "zb-h1": replace(_ZERO_BUBBLE, most_interleaves=1, fixed_interleaves=1, put_off=1),
    "zb-h2": replace(
        _ZERO_BUBBLE, most_interleaves=1, fixed_interleaves=1, put_off=2, least_micro_batches=_up_and_down
    ),
    "interleaved-zb": replace(_ZERO_BUBBLE, least_interleaves=2, remainder=EVEN, put_off=1),
}

SCHEDULES = tuple(_TRAITS)
"""Every known schedule by name."""

SEARCHED, SEARCHED_V = "searched", "searched-v"
"""Orders that are chosen for a plan (`ScheduleSpec.words`), on straight stages and on a V."""

_TRAITS |= {SEARCHED: _ZERO_BUBBLE, SEARCHED_V: _V_SHAPE}


class InterleavingFramework(Protocol):
    """Facts that `ScheduleSpec.for_interleaves` asks of a framework (`register.frameworks.Framework` has it)."""

    @property
    def interleaved_schedule(self) -> str:
        """The schedule that it runs with several virtual stages where a file asks for no other."""


AUTO = "auto"
"""In place of a schedule's name or a number of virtual stages: every one that can run is tried."""


@dataclass(frozen=True)
class ScheduleSpec:
    """The schedule that a job runs.

    Parameters
    ----------
    name : str
        One of `SCHEDULES`, or `SEARCHED` or `SEARCHED_V`. ``1f1b`` with several virtual stages is not a schedule:
        `for_interleaves` names the one that a framework runs then.
    low_memory : bool
        Of schedules with a low-memory switch: one more warm-up forward a stage instead of two. MindSpore
        runs it where its environment asks for it, and not otherwise.
    seq_splits : int
        Of schedules with sequence splits: pieces a sequence is cut into.
    group_size : int or None
        Of schedules with rounds of a set size: micro-batches of a round; None = as many as stages.
    one_ahead : bool
        Of schedules with rounds of a set size: one more forward warms up, so that a forward of the steady state does
        not wait for the backward beside it and both can run as one. Megatron-LM does so with
        ``--overlap-moe-expert-parallel-comm`` (d98e8a64 megatron/core/pipeline_parallel/schedules.py:966-970).
    whole_drain : bool
        Of DualPipeV: no weight gradient is put off, not even where the pipeline drains. MindSpeed runs it so without
        ``--dualpipev-dw-detach``.
    bubble_share : float or None
        Of interleaved rounds: from the S-th micro-batch alive in the first virtual stage of stage s on, S - 1 - 2s more
        keep their layers' inputs alone, this fraction of their activations, until they run again in the pipeline's
        bubble. MindSpeed's ``--recompute-in-bubble`` (028de58c mindspeed/core/pipeline_parallel/ripipe_schedules.py:
        369-378, 476-487: forwards of the first pp·vpp chunks of a stage keep all; 780: warm-up + 1 - pp·vpp more do
        not). None: off.
    words : tuple of str
        Of searched orders: the order of every stage (`pipeline.words`). Empty before there is one: the memory to plan
        with is then that of ZB-H1, its interleaved form, or torch's ZBV.
    """

    name: str = PLAIN
    low_memory: bool = False
    seq_splits: int = 1
    group_size: int | None = None
    one_ahead: bool = False
    whole_drain: bool = False
    bubble_share: float | None = None
    words: tuple[str, ...] = ()

    def for_interleaves(self, interleaves: int, framework: InterleavingFramework) -> ScheduleSpec:
        """The schedule that runs when a framework is asked for this one with a number of virtual stages.

        1F1B with several virtual stages is the framework's interleaved order, and an interleaved order
        with one is 1F1B. An interleaved order that was asked for by name stays, and so does every other
        schedule, even where it does not exist for that number (`build_schedule` checks).
        """
        if not self.traits.one_forward_one_backward:
            return self
        if interleaves == 1:
            return replace(self, name=PLAIN)
        return replace(self, name=framework.interleaved_schedule) if self.name == PLAIN else self

    def renamed(self, name: str) -> ScheduleSpec:
        """Another schedule of the same job: its switches stay, and its sequence splits where that one has them."""
        other = replace(self, name=name, words=())
        return other if other.traits.sequence_splits else replace(other, seq_splits=1)

    @property
    def name_without_interleaves(self) -> str:
        """Name of the schedule in a file that gives the number of virtual stages separately."""
        return PLAIN if self.traits.one_forward_one_backward else self.name

    @property
    def traits(self) -> ScheduleTraits:
        """Facts of the schedule that do not depend on its numbers; ValueError when its name is unknown."""
        if self.name not in _TRAITS:
            raise ValueError(f"unknown schedule {self.name!r}; known are {', '.join(SCHEDULES)}")
        return _TRAITS[self.name]

    @property
    def searched(self) -> bool:
        """Return whether the order is chosen for the plan, and no generator's."""
        return self.name in (SEARCHED, SEARCHED_V)

    @property
    def v_shape(self) -> bool:
        """Return whether odd virtual stages run through the stages in reverse."""
        return self.traits.v_shape

    def warm_up_step(self, interleaves: int) -> int | None:
        """Pieces that a stage sends forward before its first backward beyond those of the stage behind it.

        None where the order has no such constant: GPipe runs all forwards first, and the orders with separate weight
        gradients are read off the schedule itself.
        """
        if not (self.traits.one_forward_one_backward or self.traits.sequence_splits):
            return None
        if interleaves == 1 or self.traits.short_warm_up:
            return 1
        return 1 if self.traits.low_memory_switch and self.low_memory else 2

    @property
    def ahead(self) -> int:
        """Forwards in every stage's warm-up beyond those of the schedule's name."""
        return int(self.one_ahead and self.traits.whole_rounds)

    def fits_pieces(self, stages: Any, micro_batches: Any) -> Any:
        """Return whether rounds of pieces can run; int or int array [n] each, bool or bool array [n].

        Source: MindSpore's ``SeqvppScheduler::ComputeCycleList`` (mindspore-ai/mindspore_test 71155665
        mindspore/ccsrc/frontend/parallel/pipeline_transformer/seqpipe_scheduler.cc), and for even stages its
        ``seqsmartvpp`` (mindspore/python/mindspore/context.py, ``pipeline_scheduler``).
        """
        if not self.traits.piece_rounds:
            return micro_batches > 0
        fits = (stages >= self.seq_splits) & (micro_batches * self.seq_splits >= stages)
        return fits & (stages % 2 == 0) if self.traits.even_stages else fits

    @property
    def pieces_wanted(self) -> str:
        """The condition of `fits_pieces`, as the end of a sentence."""
        even = "an even number of stages, " if self.traits.even_stages else ""
        return f"needs {even}no more pieces of a sequence than stages, and as many pieces in all as stages"

    def fits_rounds(self, stages: Any, micro_batches: Any) -> Any:
        """Return whether rounds of a set size can run; int or int array [n] each, bool or bool array [n].

        A round has S micro-batches at least, and so has the remainder (Megatron-LM core_v0.16.0
        megatron/core/pipeline_parallel/schedules.py:995-1015).
        """
        if not self.traits.whole_rounds:
            return micro_batches > 0
        size = stages if self.group_size is None else self.group_size
        rest = micro_batches % size
        return (size >= stages) & (size <= micro_batches) & ((rest == 0) | (rest >= stages))

    def rounds_wanted(self, stages: int) -> str:
        """The condition of `fits_rounds`, as the end of a sentence."""
        if self.group_size is None:
            return f"needs micro-batches in multiples of the {stages} stages"
        left = f"with a remainder of 0 or at least {stages}"
        short = f" (groups of {stages} or more)" if self.group_size < stages else ""
        return f"needs micro-batches in groups of {self.group_size}{short}, {left}"

    def rounds(self, stages: int, micro_batches: int) -> list[tuple[int, int]]:
        """Micro-batches of the rounds that pass through the virtual stages one after the other: runs of (size, rounds).

        Rounds of a set size (`group_size`) come in full but the last, which takes the remainder (Megatron-LM's
        ``get_schedule_table``, core_v0.16.0 megatron/core/pipeline_parallel/schedules.py:798). Other rounds have S of
        them; fewer than S are one round. The remainder goes to the first round
        (MindSpore's interleaving, ``offset_`` in ``pipeline_scheduler.cc``), or is dealt one a round, from
        the first round on and around again (its seqpipe, ``ComputeCycleList`` in ``seqpipe_scheduler.cc``). Rounds of
        pieces (its seqvpp and seqsmartvpp, there too) have S // n micro-batches of n pieces in place of S.
        Torch's rounds are equal (``torch.distributed.pipelining.schedules.ScheduleInterleaved1F1B``).

        Raises
        ------
        ValueError
            When rounds must be equal and cannot be.
        """
        if self.traits.whole_rounds:
            size = stages if self.group_size is None else self.group_size
            full, rest = divmod(micro_batches, size)
            runs = [(size, full), (rest, int(rest > 0))]
        else:
            size = max(1, stages // self.seq_splits) if self.traits.piece_rounds else stages
            count = max(1, micro_batches // size)
            each, ahead = divmod(micro_batches, count)
            if self.traits.remainder == TO_FIRST:
                runs = [(micro_batches - stages * (count - 1), 1), (stages, count - 1)]
            elif ahead and self.traits.remainder == EVEN:
                raise ValueError(f"{self.name} needs {count} equal rounds, found {micro_batches} micro-batches")
            else:
                runs = [(each + 1, ahead), (each, count - ahead)]
        return [run for run in runs if run[1]]

    def round_sizes(self, stages: int, micro_batches: int) -> list[int]:
        """Micro-batches of every round, see `rounds`."""
        return [size for size, times in self.rounds(stages, micro_batches) for _ in range(times)]

    def head_stage(self, stages: int) -> int:
        """The stage that holds the model's last chunk, with head and loss: the last, of a V shape the first."""
        return 0 if self.v_shape else stages - 1


@dataclass(frozen=True)
class Schedule:
    """The fixed task order of every stage.

    Parameters
    ----------
    order : int32 [stages, tasks, 4]
        Row t of stage s is its t-th task: (direction, interleave, micro-batch, sequence split).
    whole : bool [stages, tasks], optional
        The input gradients whose backward runs whole: the chunk before theirs gets the gradient when the weight
        gradient behind them is done. None: there are none.
    """

    spec: ScheduleSpec
    stages: int
    interleaves: int
    micro_batches: int
    order: NDArray[np.int32]
    whole: NDArray[np.bool_] | None = None

    @property
    def v_shape(self) -> bool:
        """Return whether odd virtual stages run through the stages in reverse."""
        return self.spec.v_shape

    @property
    def chunks(self) -> int:
        """Chunks in the model, stages · virtual stages."""
        return self.stages * self.interleaves

    def chunk_at(self, position: int) -> tuple[int, int]:
        """(interleave, stage) of the chunk at a position in model order."""
        return chunk_at(position, self.stages, self.v_shape)

    def position(self, interleave: int, stage: int) -> int:
        """Position in model order of the chunk (interleave, stage)."""
        return position_of(interleave, stage, self.stages, self.v_shape)

    @property
    def directions(self) -> int:
        """Kinds of task: forward and backward, with separate weight gradients 3."""
        return 3 if self.spec.traits.split_backward else 2

    def blocks(self) -> NDArray[np.int64]:
        """direction · V + interleave of every task, int64 [stages, tasks]."""
        return (self.order[:, :, 0] * self.interleaves + self.order[:, :, 1]).astype(np.int64)

    def pieces(self) -> NDArray[np.int64]:
        """micro-batch · splits + sequence split of every task, int64 [stages, tasks]."""
        return (self.order[:, :, 2] * self.spec.seq_splits + self.order[:, :, 3]).astype(np.int64)
