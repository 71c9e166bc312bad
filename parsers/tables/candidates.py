"""The candidate strategies that a search wrote (``nd_candidate_config.csv``)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.tables.ratios import DEGREES, _cell, _column, _degree, _table

_OPTIONAL = ("cp", "op", "vpp", "mbs", "micro_batches")


@dataclass(frozen=True)
class CandidateRow:
    """One row: the degrees that the file names, and the peak memory in MiB where it gives one."""

    dp: int
    tp: int
    pp: int
    ep: int
    peak_mib: float | None = None
    cp: int | None = None
    op: int | None = None
    sp: bool | None = None
    vpp: int | None = None
    mbs: int | None = None
    micro_batches: int | None = None

    @property
    def key(self) -> tuple[int, int, int, int]:
        """(dp, tp, pp, ep)."""
        return self.dp, self.tp, self.pp, self.ep


def read_candidates(path: str | Path) -> list[CandidateRow]:
    """Read the candidates, in the order of the file.

    Columns ``dp,tp,pp,ep`` are needed; ``peakMem`` (MiB), ``cp``, ``op``, ``sp``, ``vpp``, ``mbs``
    and ``micro_batches`` are read where they are; others are passed by.

    Raises
    ------
    InputError
        When the file is missing or empty, a column is missing, or a cell is wrong; with the row.
    """
    file = Path(path)
    header, rows = _table(file)
    place = {name: _column(header, (name,), file) for name in DEGREES}
    place |= {name: _column(header, (name,), file) for name in (*_OPTIONAL, "sp", "peakMem") if name in header}
    candidates = []
    for line, cells in rows:
        numbers = {
            name: _degree(cells[place[name]], file, line, name)
            for name in (*DEGREES, *_OPTIONAL)
            if name in place and (name in DEGREES or cells[place[name]].strip())
        }
        peak = cells[place["peakMem"]].strip() if "peakMem" in place else ""
        sp = cells[place["sp"]].strip() if "sp" in place else ""
        candidates.append(
            CandidateRow(
                **numbers,
                peak_mib=_cell(peak, file, line, "peakMem") if peak else None,
                sp=_switch(sp, file, line) if sp else None,
            )
        )
    if not candidates:
        raise InputError("contains no strategy, only the header", file=file)
    return candidates


def _switch(text: str, file: Path, line: int) -> bool:
    if text.lower() not in ("true", "false", "0", "1", "y", "n"):
        raise InputError("must be True or False", file=file, field=f"row {line}, column sp", value=text)
    return text.lower() in ("true", "1", "y")
