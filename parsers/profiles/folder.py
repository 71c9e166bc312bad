"""The ranks of one profiled job, in the layout in which the profiler left them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.profiles.allocations import ALLOCATIONS, read_allocations
from taylor.parsers.profiles.ascend import KERNELS, OUTPUT, TRACE, read_ascend_rank
from taylor.parsers.profiles.kernels import RankProfile
from taylor.parsers.profiles.kineto import read_kineto
from taylor.parsers.profiles.kineto_tables import ProfileTables, read_kineto_tables
from taylor.parsers.profiles.operators import OperatorTable, read_operators
from taylor.parsers.profiles.transfers import TRANSFERS, read_transfers

ASCEND, KINETO = "ascend", "kineto"
MAX_FOLDERS = 200_000


@dataclass(frozen=True)
class RankSource:
    """Place of one rank's profile: an ``ASCEND_PROFILER_OUTPUT`` folder or a Kineto trace."""

    path: Path
    format: str

    @property
    def has_memory_tables(self) -> bool:
        """Return whether the profiler writes tables of memory beside the kernels."""
        return self.format == ASCEND

    def read(self) -> RankProfile:
        """Read its kernels; raises InputError as the format's reader does."""
        return read_ascend_rank(self.path) if self.format == ASCEND else read_kineto(self.path)

    @property
    def operators_file(self) -> Path:
        """File that has its operators."""
        return self.path / KERNELS if self.format == ASCEND else self.path

    @property
    def allocations_file(self) -> Path:
        """File that has its tensors."""
        return self.path / ALLOCATIONS if self.format == ASCEND else self.path

    def operators(self) -> OperatorTable:
        """Its operators with shapes; raises InputError where it was taken without."""
        if self.format == ASCEND:
            return read_operators(self.operators_file)
        return read_kineto_tables(self.path).operators

    def tables(self, memory: bool = True) -> ProfileTables:
        """Operators, collectives and, with `memory`, tensors.

        Raises
        ------
        InputError
            When it is damaged, lacks a table, or was taken without shapes or, with `memory`, without memory.
        """
        if self.format == ASCEND:
            allocations = read_allocations(self.allocations_file) if memory else ()
            return ProfileTables(self.operators(), read_transfers(self.path / TRANSFERS), allocations)
        tables = read_kineto_tables(self.path)
        if memory and tables.allocations is None:
            cure = (
                "keep PYTHONPATH of the run as `taylor tune` gives it, or let torch.profiler take profile_memory=True"
            )
            raise InputError("was taken without memory", file=self.path, field="[memory]", cure=cure)
        return tables


def rank_sources(folder: str | Path) -> list[RankSource]:
    """Every rank's profile below a folder, by path.

    Raises
    ------
    InputError
        When the folder is missing, or holds no profile.
    """
    top = Path(folder)
    if not top.is_dir():
        raise InputError("no such folder", file=top, cure="check the path")
    found: list[RankSource] = []
    for number, (place, folders, files) in enumerate(os.walk(top)):
        if number > MAX_FOLDERS:
            raise InputError(
                f"contains more than {MAX_FOLDERS} folders", file=top, cure="name the folder of the profiles"
            )
        folders.sort()
        here = Path(place)
        if here.name == OUTPUT or KERNELS in files or TRACE in files:
            found.append(RankSource(here, ASCEND))
            folders.clear()
            continue
        found += [RankSource(here / name, KINETO) for name in sorted(files) if _is_kineto(name)]
    if not found:
        raise InputError(
            f"contains no profile: no {OUTPUT} folder and no *trace.json", file=top, cure="name the folder of one job"
        )
    return found


def _is_kineto(name: str) -> bool:
    plain = name.lower().removesuffix(".gz")
    return plain.endswith((".trace.json", "_trace.json", "-trace.json")) or name.lower().endswith(".json.gz")
