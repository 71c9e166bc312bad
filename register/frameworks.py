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
    schedules : tuple of str
        Schedules (`pipeline.schedule.SCHEDULES`) that may be chosen for a job of this framework, in the
        order in which they are tried. A job whose file asks for another one still runs it: seqpipe needs
        a number of sequence splits that only the file tells, and MindSpeed's ``dualpipev`` a flag of its own.
    interleaved_schedule : str
        The one of `schedules` that it runs with several interleaves where a file asks for no other.
    """

    name: str
    schedules: tuple[str, ...]
    interleaved_schedule: str


MINDFORMERS = Framework("mindformers", ("1f1b", "gpipe", "interleaved", "zero_bubble_v"), "interleaved")
MEGATRON = Framework("megatron", ("1f1b", "gpipe", "megatron-interleaved"), "megatron-interleaved")
TORCHTITAN = Framework("torchtitan", ("1f1b", "gpipe", "megatron-interleaved", "zero_bubble_v"), "megatron-interleaved")

FRAMEWORKS = {each.name: each for each in (MINDFORMERS, MEGATRON, TORCHTITAN)}
"""Every known framework by its name."""
