"""Schedules of plug-ins: a name, its traits and a function that gives the order of tasks."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.plugins import Group, Loaded, PlugIn, failure, load_all, refuse_known
from taylor.pipeline.traits import AUTO, TRAITS, ScheduleTraits

ROUNDS = frozenset(
    {"one_forward_one_backward", "sequence_splits", "piece_rounds", "short_warm_up", "whole_rounds",
     "low_memory_switch", "put_off"}
)  # fmt: skip
"""Traits from which the orders of Taylor's own schedules are built; a plug-in gives its order itself."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


@dataclass(frozen=True)
class OwnSchedule:
    """A schedule of a plug-in.

    Parameters
    ----------
    order : callable
        Takes stages, virtual stages and micro-batches, and returns the tasks of every stage in order, each a tuple
        (direction, virtual stage, micro-batch, 0): direction 0 is forward, 1 backward (of `split_backward` the input
        gradient), 2 the weight gradient. `build_schedule` checks that each task is there once and that no stage waits
        for ever. Raises ValueError for numbers with which the schedule does not run.
    traits : ScheduleTraits
        None of `ROUNDS` is set.
    """

    order: Callable[[int, int, int], Sequence[Sequence[Sequence[int]]]]
    traits: ScheduleTraits = ScheduleTraits()


@dataclass(frozen=True)
class PluggedSchedule:
    """The schedule of an installed plug-in."""

    plugin: PlugIn
    own: OwnSchedule

    @property
    def traits(self) -> ScheduleTraits:
        """Facts that do not depend on its numbers."""
        return self.own.traits

    def tasks(self, stages: int, interleaves: int, micro_batches: int) -> list[list[Any]]:
        """The tasks of every stage in order.

        Raises
        ------
        ValueError
            When the plug-in fails, or gives another number of stages or tasks; the message names it.
        """
        directions = 3 if self.traits.split_backward else 2
        try:
            found = [list(tasks) for tasks in self.own.order(stages, interleaves, micro_batches)]
            shapes = {(len(tasks), *{len(task) for task in tasks}) for tasks in found}
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"the {self.plugin} fails: {failure(error)}") from error
        wanted = (directions * interleaves * micro_batches, 4)
        if len(found) != stages or shapes != {wanted}:
            raise ValueError(f"the {self.plugin} must give {stages} stages of {wanted[0]} tasks of four numbers")
        return found

    def digest(self) -> str:
        """Digest of the file with its order, by which kept solves of another version are not found again."""
        source = inspect.getsourcefile(inspect.unwrap(self.own.order))
        text = Path(source).read_bytes() if source else b""
        return hashlib.sha256(f"{self.plugin}".encode() + text).hexdigest()


@cache
def loaded_schedules() -> tuple[Loaded[PluggedSchedule], ...]:
    """Every plug-in of schedules; its entry point's name is the schedule's."""
    return load_all(Group.SCHEDULES, _accepted)


@cache
def plugged_schedules() -> Mapping[str, PluggedSchedule]:
    """The schedules of plug-ins by name."""
    return {each.plugin.name: each.value for each in loaded_schedules() if each.value is not None}


def _accepted(plugin: PlugIn, found: Any) -> PluggedSchedule:
    if not isinstance(found, OwnSchedule):
        raise TypeError("must be a taylor.pipeline.plugged.OwnSchedule")
    if not _NAME.fullmatch(plugin.name):
        raise ValueError("a schedule's name has small letters, digits, `-`, `_` and `.`, 40 at most")
    refuse_known(plugin.name, (*TRAITS, AUTO), "schedule")
    plain = ScheduleTraits()
    wrong = [each.name for each in fields(plain) if each.name in ROUNDS]
    wrong = [name for name in wrong if getattr(found.traits, name) != getattr(plain, name)]
    if wrong:
        raise ValueError(f"the traits {', '.join(wrong)} belong to Taylor's own orders; leave them out")
    return PluggedSchedule(plugin, found)
