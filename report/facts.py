"""Facts that a page states before its charts: the job, the verdict, and what both rest on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module

GOOD, WARNING, BAD = "good", "warning", "bad"
"""Tones of an answer."""


@dataclass(frozen=True)
class Answer:
    """One question of a reader, answered in a few words.

    Parameters
    ----------
    tone : str
        `GOOD`, `WARNING`, `BAD`, or empty.
    """

    question: str
    answer: str
    detail: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Share:
    """Cell that shows parts of a whole as a bar: (name, fraction of 1) each."""

    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class PageTable:
    """Table of a page that needs no sorting.

    Parameters
    ----------
    note : str
        A sentence below the title.
    marked : int or None
        Highlighted row.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Share]]
    note: str = ""
    marked: int | None = None


@dataclass(frozen=True)
class PageFacts:
    """Head of a page.

    Parameters
    ----------
    title : str
        Subject of the page.
    model, device, ranks, batch, sequence, file : str
        The job as a reader writes it; empty where unknown.
    verdict : str
        The outcome in one sentence.
    answers : sequence of Answer
        Which plan, how much faster, whether it fits: the parts of the verdict.
    assumed : sequence of str
        A sentence for each value that no input gave.
    unmodelled : sequence of str
        A sentence for each flag whose effect is in no figure.
    what_if : sequence of str
        Effects of other limits or batches.
    notes : sequence of str
        Further lines, in the details.
    date, version : str
        Of the page; now and this release when not given.
    """

    title: str
    model: str = ""
    device: str = ""
    ranks: str = ""
    batch: str = ""
    sequence: str = ""
    file: str = ""
    verdict: str = ""
    answers: Sequence[Answer] = ()
    assumed: Sequence[str] = ()
    unmodelled: Sequence[str] = ()
    what_if: Sequence[str] = ()
    notes: Sequence[str] = ()
    date: str = field(default_factory=lambda: datetime.now().strftime("%Y-%m-%d %H:%M"))
    version: str = field(default_factory=lambda: str(import_module("taylor").__version__))

    @property
    def about(self) -> dict[str, str]:
        """Facts of the job, by name."""
        named = {
            "model": self.model,
            "device": self.device,
            "ranks": self.ranks,
            "batch": self.batch,
            "sequence": self.sequence,
            "file": self.file,
            "date": self.date,
            "Taylor": self.version,
        }
        return {name: value for name, value in named.items() if value}
