"""Training frameworks: what each one does with memory, schedules and ranks, stated once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Framework:
    """One training framework.

    Parameters
    ----------
    name : str
        As tables and messages write it.
    interleaved_schedule : str
        The schedule (`pipeline.schedule.SCHEDULES`) that it runs with several interleaves where a
        file asks for no other.
    """

    name: str
    interleaved_schedule: str


MINDFORMERS = Framework("mindformers", "interleaved")
MEGATRON = Framework("megatron", "megatron-interleaved")
TORCHTITAN = Framework("torchtitan", "megatron-interleaved")

FRAMEWORKS = {each.name: each for each in (MINDFORMERS, MEGATRON, TORCHTITAN)}
"""Every known framework by its name."""
