"""Tensors that one rank allocates and frees, from torch_npu's ``operator_memory.csv``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.profiles.kernels import parse_us
from taylor.parsers.profiles.tables import stream_rows

ALLOCATIONS = "operator_memory.csv"
_KB = 1024
_MB = 1 << 20


@dataclass(frozen=True)
class Allocation:
    """One tensor's life.

    Parameters
    ----------
    name : str
        The operator that allocated it, as the profiler calls it.
    start_ns : int
    end_ns : int or None
        Time of its release; None where that was after the profile.
    total : int
        Bytes allocated on the device just after.
    of_weights : bool
        FSDP allocated it, to gather weights or to reduce their gradients.
    """

    name: str
    bytes: int
    start_ns: int
    end_ns: int | None
    total: int
    of_weights: bool = False


def read_allocations(path: str | Path) -> tuple[Allocation, ...]:
    """Every allocation of a profile taken with memory, in the order of their starts.

    Raises
    ------
    InputError
        When the table is missing or damaged.
    """
    file = Path(path)
    needed = ("Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Allocation Total Allocated(MB)")
    found = []
    for line, cells in stream_rows(file, needed):
        name, size, start, end, total = (str(cell or "").strip() for cell in cells)
        try:
            if not start:  # Allocated before the profile began.
                continue
            ended = parse_us(end) if end else None
            one = Allocation(name, round(float(size) * _KB), parse_us(start), ended, round(float(total) * _MB))
        except (ValueError, OverflowError):
            field, value = f"row {line}", f"{size}, {start}, {end}, {total}"
            cure = "are two columns swapped?"
            raise InputError("must be sizes and times", file=file, field=field, value=value, cure=cure) from None
        if one.bytes > 0:
            found.append(one)
    return tuple(sorted(found, key=lambda one: one.start_ns))
