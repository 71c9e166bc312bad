"""Tables of a reinforcement-learning job: time and memory by phase, and the splits of its cards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table


class PhaseRow(NamedTuple):
    """One phase: its time in ms (None: not known), and the memory of its fullest card by category, MiB."""

    name: str
    ms: float | None
    parts: Mapping[str, float]
    usable_mib: float
    verdict: str


class SplitLine(NamedTuple):
    """One split: cards, times in ms (None: not solved), the lower bound of its iteration, its layout or the reason."""

    training_cards: int
    rollout_cards: int
    rollout_ms: float
    training_ms: float | None
    iteration_ms: float | None
    bound_ms: float
    layout: str


def duration(ms: float) -> str:
    """A time with its unit."""
    return f"{ms:,.0f} ms" if ms < 1e4 else f"{ms / 1e3:,.0f} s"


def phase_table(rows: Sequence[PhaseRow]) -> Table:
    """Table of phases: time, and memory of the fullest card."""
    table = Table(header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    table.add_column("phase")
    for name in ("time", "peak MiB", "free MiB"):
        table.add_column(name, justify="right")
    for name in ("", "largest parts, MiB"):
        table.add_column(name)
    for row in rows:
        total = sum(row.parts.values())
        largest = sorted(row.parts.items(), key=lambda part: -part[1])[:3]
        what = ", ".join(f"{name} {mib:,.0f}" for name, mib in largest if round(mib))
        time = "not known" if row.ms is None else duration(row.ms)
        table.add_row(row.name, time, f"{total:,.0f}", f"{row.usable_mib - total:,.0f}", row.verdict, what)
    return table


def split_table(rows: Sequence[SplitLine], best: int) -> Table:
    """Table of splits, the best in bold."""
    table = Table(header_style="bold", pad_edge=False, padding=(0, 1, 0, 0), box=SIMPLE_HEAD)
    for name in ("training", "roll-outs", "roll-out time", "training time", "iteration"):
        table.add_column(name, justify="right")
    table.add_column("layout of the training")
    for at, row in enumerate(rows):
        rollout = "" if math.isinf(row.rollout_ms) else duration(row.rollout_ms)
        training = "" if row.training_ms is None else duration(row.training_ms)
        whole = "" if math.isinf(row.bound_ms) else f"at least {duration(row.bound_ms)}"
        whole = whole if row.iteration_ms is None else duration(row.iteration_ms)
        cells = (str(row.training_cards), str(row.rollout_cards), rollout, training, whole, row.layout)
        table.add_row(*cells, style="bold" if at == best else None)
    return table
