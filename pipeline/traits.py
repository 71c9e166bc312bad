"""The schedules that come with Taylor by name, and the facts of each that do not depend on its numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Callable

TO_FIRST, DEALT, EVEN = "to first", "dealt", "even"
"""Rounds that take the micro-batches beyond a whole number of rounds, see `schedule.ScheduleSpec.rounds`."""


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
        Rounds through the virtual stages have a set size, see `schedule.ScheduleSpec.group_size`.
    least_micro_batches : callable
        The fewest micro-batches for which its order exists, from the stages, both int or int array [n].
    low_memory_switch : bool
        Its warm-up depends on `schedule.ScheduleSpec.low_memory`.
    remainder : str
        Of rounds through the virtual stages: `TO_FIRST`, `DEALT` or `EVEN`, see `schedule.ScheduleSpec.rounds`.
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

TRAITS = {
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

SCHEDULES = tuple(TRAITS)
"""Every schedule that comes with Taylor, by name."""

SEARCHED, SEARCHED_V, SEARCHED_FREE = "searched", "searched-v", "searched-free"
"""Orders that are chosen for a plan (`ScheduleSpec.words`): on straight stages, on a V, and on a placement of chunks
that is chosen too (`ScheduleSpec.stage_of`)."""

TRAITS |= {SEARCHED: _ZERO_BUBBLE, SEARCHED_V: _V_SHAPE, SEARCHED_FREE: replace(_ZERO_BUBBLE, least_interleaves=2)}

SEARCHED_NAMES = (SEARCHED, SEARCHED_V, SEARCHED_FREE)

AUTO = "auto"
"""In place of a schedule's name or a number of virtual stages: every one that can run is tried."""
