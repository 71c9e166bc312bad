"""The operators of one rank with their shapes and types, from Ascend's ``kernel_details.csv``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.profiles.kernels import COMPUTE, classify, parse_us
from taylor.parsers.profiles.tables import stream_rows

Shape = tuple[int, ...]
_SIZE = r"\s*(?:\d{1,16}\s*)?"
_SHAPES = re.compile(rf"{_SIZE}(?:[,;]{_SIZE})*")
_NOTHING = ("", "N/A")
MOST_DIMENSION = 2**53
"""A larger one is no dimension of a tensor."""


@dataclass(frozen=True, order=True)
class Operator:
    """Identity of an operator, apart from its time.

    Parameters
    ----------
    type : str
        As the profiler calls it: ``MatMulV2``, ``hcom_allGather_``.
    core : str
        The part of the chip that runs it: ``AI_CORE``, ``AI_VECTOR_CORE``, ``HCCL``.
    dtypes : tuple of str
        Of the inputs.
    inputs, outputs : tuple of shapes
        A shape is a tuple of dimensions; that of a number is empty.
    """

    type: str
    core: str = ""
    dtypes: tuple[str, ...] = ()
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()

    @property
    def is_compute(self) -> bool:
        """Return whether it computes; collectives and transfers do not."""
        return classify("", self.type)[0] == COMPUTE and self.core not in ("HCCL", "COMMUNICATION")


@dataclass(frozen=True)
class OperatorSample:
    """One run of an operator.

    Parameters
    ----------
    step : int
        The profiler's number of the step; −1 where it gives none.
    name : str
        Of this one run of it: more is known of collectives under their names.
    """

    operator: Operator
    start_ns: int
    duration_ns: int
    step: int = -1
    name: str = ""


@dataclass(frozen=True)
class OperatorTable:
    """The operators of one rank in the order of their starts.

    Parameters
    ----------
    unread : int
        Rows left out, for their shapes are no shapes.
    """

    samples: tuple[OperatorSample, ...]
    unread: int = 0


def read_operators(path: str | Path) -> OperatorTable:
    """Read ``kernel_details.csv`` of a profile taken with shapes.

    Raises
    ------
    InputError
        When it is damaged, or was taken without shapes.
    """
    file = Path(path)
    needed = ("Name", "Type", "Start Time(us)", "Duration(us)", "Accelerator Core")
    shaped = ("Input Shapes", "Input Data Types", "Output Shapes", "Step Id")
    samples, unread = list[OperatorSample](), 0
    ragged = list[int]()
    for line, cells in stream_rows(file, needed, shaped, ragged=ragged):
        name, kind, start, duration, core = (cell or "" for cell in cells[:5])
        if cells[5] is None:
            cure = "profile at level 1 with --profile-record-shapes"
            raise InputError("was taken without shapes", file=file, field="Input Shapes", cure=cure)
        try:
            start_ns, duration_ns = parse_us(start), parse_us(duration)
        except ValueError:
            field, value = f"row {line}, Start Time(us) and Duration(us)", f"{start.strip()}, {duration.strip()}"
            cure = "are two columns swapped?"
            raise InputError("must be a time in us", file=file, field=field, value=value, cure=cure) from None
        inputs, outputs = parse_shapes(cells[5]), parse_shapes(cells[7] or "")
        if inputs is None or outputs is None:
            unread += 1
            continue
        step = (cells[8] or "").strip()
        kind = kind.strip() if kind.strip() not in _NOTHING else name.strip()
        operator = Operator(kind, core.strip(), _words(cells[6] or ""), inputs, outputs)
        number = int(step) if step.isdigit() and len(step) <= 9 else -1
        samples.append(OperatorSample(operator, start_ns, duration_ns, number, name.strip()))
    samples.sort(key=lambda one: one.start_ns)
    return OperatorTable(tuple(samples), unread + len(ragged))


@lru_cache(maxsize=65536)
def parse_shapes(cell: str) -> tuple[Shape, ...] | None:
    """The shapes in a cell, ``8192,2,640;;16``; None where it holds something else (columns shifted by a comma)."""
    text = cell.strip().strip('"')
    if text in _NOTHING:
        return ()
    if not _SHAPES.fullmatch(text):
        return None
    shapes = tuple(tuple(int(size) for size in part.split(",") if size.strip()) for part in text.split(";"))
    return shapes if all(size < MOST_DIMENSION for shape in shapes for size in shape) else None


@lru_cache(maxsize=4096)
def _words(cell: str) -> tuple[str, ...]:
    text = cell.strip().strip('"')
    return () if text in _NOTHING else tuple(word.strip() for word in text.split(";"))
