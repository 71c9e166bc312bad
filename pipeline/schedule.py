"""The order of tasks on every stage: a schedule, independent of the tasks' times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from taylor.pipeline.chunks import Placement, chunk_at, position_of
from taylor.pipeline.plugged import plugged_schedules
from taylor.pipeline.traits import AUTO as AUTO
from taylor.pipeline.traits import EVEN, TO_FIRST, TRAITS
from taylor.pipeline.traits import PLAIN as PLAIN
from taylor.pipeline.traits import SCHEDULES as SCHEDULES
from taylor.pipeline.traits import SEARCHED as SEARCHED
from taylor.pipeline.traits import SEARCHED_FREE as SEARCHED_FREE
from taylor.pipeline.traits import SEARCHED_NAMES as SEARCHED_NAMES
from taylor.pipeline.traits import SEARCHED_V as SEARCHED_V
from taylor.pipeline.traits import ScheduleTraits as ScheduleTraits

FORWARD, BACKWARD, WEIGHT_GRADIENT = 0, 1, 2
"""Directions of a task. With `WEIGHT_GRADIENT` tasks, `BACKWARD` is the input gradient alone."""


def schedule_names() -> tuple[str, ...]:
    """Every schedule with an order of its own, those of plug-ins last."""
    return (*SCHEDULES, *plugged_schedules())


class InterleavingFramework(Protocol):
    """Facts that `ScheduleSpec.for_interleaves` asks of a framework (`register.frameworks.Framework` has it)."""

    @property
    def interleaved_schedule(self) -> str:
        """The schedule that it runs with several virtual stages where a file asks for no other."""


@dataclass(frozen=True)
class ScheduleSpec:
    """The schedule that a job runs.

    Parameters
    ----------
    name : str
        One of `schedule_names` or of `SEARCHED_NAMES`. ``1f1b`` with several virtual stages is not a schedule:
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
    stage_of : tuple of int
        Of `SEARCHED_FREE`: the stage of every chunk in model order (`Placement`). Empty before there is one: a loop.
    """

    name: str = PLAIN
    low_memory: bool = False
    seq_splits: int = 1
    group_size: int | None = None
    one_ahead: bool = False
    whole_drain: bool = False
    bubble_share: float | None = None
    words: tuple[str, ...] = ()
    stage_of: tuple[int, ...] = ()

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
        other = replace(self, name=name, words=(), stage_of=())
        return other if other.traits.sequence_splits else replace(other, seq_splits=1)

    @property
    def name_without_interleaves(self) -> str:
        """Name of the schedule in a file that gives the number of virtual stages separately."""
        return PLAIN if self.traits.one_forward_one_backward else self.name

    @property
    def traits(self) -> ScheduleTraits:
        """Facts of the schedule that do not depend on its numbers.

        Raises
        ------
        ValueError
            When its name is unknown.
        """
        if (shipped := TRAITS.get(self.name)) is not None:
            return shipped
        if (plugged := plugged_schedules().get(self.name)) is not None:
            return plugged.traits
        raise ValueError(f"unknown schedule {self.name!r}; known are {', '.join(schedule_names())}")

    @property
    def searched(self) -> bool:
        """Return whether the order is chosen for the plan, and no generator's."""
        return self.name in SEARCHED_NAMES

    @property
    def v_shape(self) -> bool:
        """Return whether odd virtual stages run through the stages in reverse."""
        return self.traits.v_shape

    def placement(self, stages: int, interleaves: int) -> Placement:
        """The stage of every chunk."""
        if self.stage_of:
            return Placement(self.stage_of)
        return Placement.shaped(stages, interleaves, v_shape=self.v_shape)

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
        if self.stage_of:
            return self.stage_of[-1]
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

    @cached_property
    def placement(self) -> Placement:
        """The stage of every chunk."""
        return self.spec.placement(self.stages, self.interleaves)

    @property
    def nbytes(self) -> int:
        """Memory of the order."""
        return int(self.order.nbytes) + (0 if self.whole is None else int(self.whole.nbytes))

    @property
    def chunks(self) -> int:
        """Chunks in the model, stages · virtual stages."""
        return self.stages * self.interleaves

    def chunk_at(self, position: int) -> tuple[int, int]:
        """(interleave, stage) of the chunk at a position in model order."""
        if self.spec.stage_of:
            return self.placement.chunks[position]
        return chunk_at(position, self.stages, self.v_shape)

    def position(self, interleave: int, stage: int) -> int:
        """Position in model order of the chunk (interleave, stage)."""
        if self.spec.stage_of:
            return self.placement.positions[interleave, stage]
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
