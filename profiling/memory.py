"""Peak and static memory of a stage, from the memory files beside its kernels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import TaylorError
from taylor.parsers.profiles.ascend_tables import (
    MEMORY_RECORD,
    OPERATOR_MEMORY,
    read_memory_record,
    read_operator_memory,
)


@dataclass(frozen=True)
class ProfiledMemory:
    """Memory of a stage's heaviest rank, MiB.

    Parameters
    ----------
    peak_mib : float
        The most that tensors took at once; the memory pool's size where the files do not state tensors.
    static_mib : float or None
        The least that tensors took: weights, gradients and optimizer states, which stay.
    """

    peak_mib: float
    static_mib: float | None

    def worse(self, other: ProfiledMemory) -> ProfiledMemory:
        """The heavier of two ranks, figure by figure."""
        known = [value for value in (self.static_mib, other.static_mib) if value is not None]
        return ProfiledMemory(max(self.peak_mib, other.peak_mib), max(known, default=None))


def read_profiled_memory(output: Path, until_ns: int) -> tuple[ProfiledMemory | None, list[str]]:
    """Memory in the files of an ``ASCEND_PROFILER_OUTPUT`` folder, and notes on omissions.

    A record that ends before the last attention kernel (`until_ns`) was cut: its peak is not known.
    """
    notes: list[str] = []
    peak: float | None = None
    static: float | None = None
    try:
        if (output / MEMORY_RECORD).is_file():
            record = read_memory_record(output / MEMORY_RECORD)
            if record.last_ns < until_ns:
                notes.append(f"{output / MEMORY_RECORD} is ignored: it ends before the last step does (cut short?)")
                return None, notes
            peak = record.peak_allocated_mib if record.peak_allocated_mib is not None else record.peak_reserved_mib
            static = record.least_allocated_mib
        if (output / OPERATOR_MEMORY).is_file():
            allocated = read_operator_memory(output / OPERATOR_MEMORY)
            # The operators' own table starts with the profile: it can only miss what the record shows.
            peak = max(allocated, peak) if peak is not None else None
    except TaylorError as error:
        return None, [*notes, f"memory is ignored: {error}"]
    return (ProfiledMemory(peak, static), notes) if peak is not None else (None, notes)
