"""Measurements of a cluster: bandwidths and times of collectives, transfers, and overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from taylor.base.errors import InputError

ALL_REDUCE = "all-reduce"
ALL_TO_ALL = "all-to-all"
TRANSFER = "transfer"


@dataclass(frozen=True)
class MessageTimes:
    """Times of one collective in one group, by the size of the tensor that every rank holds.

    Parameters
    ----------
    ms_of_mib : mapping of int to float
        Time, ms, by size, MiB.
    """

    ms_of_mib: Mapping[int, float]

    def between_ms(self, mib: float) -> float:
        """The time between the two measured sizes around it, ms; beyond them proportional to the nearest one.

        A line through all sizes is ruled by the largest ones and may be far off, even below 0, at the small ones.
        """
        sizes = sorted(self.ms_of_mib)
        if mib <= 0:
            return 0.0
        if mib < sizes[0]:  # The start-up time is most of a small message's, so that it is no less.
            return self.ms_of_mib[sizes[0]]
        if mib > sizes[-1]:
            return self.ms_of_mib[sizes[-1]] * mib / sizes[-1]
        return float(np.interp(mib, sizes, [self.ms_of_mib[size] for size in sizes]))


@dataclass(frozen=True)
class RankGroup:
    """A kind of group of ranks.

    Parameters
    ----------
    ranks : int
    consecutive : bool or None
        The ranks are consecutive; None where a file does not distinguish the two.
    """

    ranks: int
    consecutive: bool | None = None

    def __str__(self) -> str:
        way = {None: "", True: " in a row", False: " apart"}[self.consecutive]
        return f"{self.ranks} ranks{way}"


@dataclass(frozen=True)
class HardwareProfile:
    """Measurements of a cluster; empty or None where a file is missing.

    Parameters
    ----------
    all_reduce_mib_a_ms : mapping of RankGroup to float
        Bus bandwidth of all-reduces: 2 (g − 1) / g of the tensor over its time, MiB a ms ("GB/s" in the files).
    transfer_mib_a_ms : mapping of int to float
        Bandwidth between neighbouring stages by their number, MiB a ms.
    all_reduce, all_to_all : mapping of int to MessageTimes
        Times by ranks of the group (in a row) and size.
    overlap_slowdown : float or None
        Factor on the time of computation and communication while they run beside each other, >= 1.
    source : mapping of str to str
        The file that each part was read from, by `ALL_REDUCE`, `ALL_TO_ALL`, `TRANSFER`, ``overlap``, ``bandwidth``.
    """

    all_reduce_mib_a_ms: Mapping[RankGroup, float] = field(default_factory=dict)
    transfer_mib_a_ms: Mapping[int, float] = field(default_factory=dict)
    all_reduce: Mapping[int, MessageTimes] = field(default_factory=dict)
    all_to_all: Mapping[int, MessageTimes] = field(default_factory=dict)
    overlap_slowdown: float | None = None
    source: Mapping[str, str] = field(default_factory=dict)

    def bandwidth(self, ranks: int, consecutive: bool) -> float:
        """Bus bandwidth of an all-reduce, MiB a ms; the whole cluster's group is both kinds at once.

        Raises
        ------
        InputError
            When no such group was measured.
        """
        known = self.all_reduce_mib_a_ms
        for group in (RankGroup(ranks, consecutive), RankGroup(ranks)):
            if group in known:
                return known[group]
        widest = max((group.ranks for group in known), default=0)
        if ranks == widest and RankGroup(ranks, True) in known:
            return known[RankGroup(ranks, True)]
        kind = f"_consec_{int(consecutive)}" if any(group.consecutive is not None for group in known) else ""
        raise InputError(
            "is missing, and the reduction of gradients needs it",
            file=self.source.get("bandwidth", "allreduce_bandwidth_*.json"),
            field=f"allreduce_size_{ranks}{kind}",
            cure="measure it, or leave out strategies with such groups",
        )

    def transfer(self, stages: int) -> float:
        """Bandwidth between neighbouring stages, MiB a ms.

        Raises
        ------
        InputError
            When no pipeline of this number of stages was measured.
        """
        if stages in self.transfer_mib_a_ms:
            return self.transfer_mib_a_ms[stages]
        raise InputError(
            "is missing, and the transfers between pipeline stages need it",
            file=self.source.get(TRANSFER, "p2p_bandwidth_*.json"),
            field=f"pp_size_{stages}",
            cure="measure it, or exclude strategies with this number of stages",
        )

    def times(self, collective: str, ranks: int) -> MessageTimes:
        """Times of a collective, `ALL_REDUCE` or `ALL_TO_ALL`, in a group.

        Raises
        ------
        InputError
            When it was not measured.
        """
        name, table = ("allreduce", self.all_reduce) if collective == ALL_REDUCE else ("all2all", self.all_to_all)
        if ranks in table:
            return table[ranks]
        raise InputError(
            f"is missing, and {'tensor' if collective == ALL_REDUCE else 'Ulysses'} parallel layers need it",
            file=self.source.get(collective, "sp_time_*.json"),
            field=f"{name}_size_{ranks}_…MB_time",
            cure="measure it for messages of 1 MB to 1024 MB, or leave out strategies with such groups",
        )

    def slowdown(self) -> float:
        """The slow-down under overlap.

        Raises
        ------
        InputError
            When it was not measured.
        """
        if self.overlap_slowdown is None:
            raise InputError(
                "is missing, and the reduction of gradients beside the backward needs it",
                file=self.source.get("overlap", "overlap_coefficient.json"),
                field="overlap_coe",
                cure="measure it, or give a file with 1.0 where nothing slows down",
            )
        return self.overlap_slowdown

    def missing(self) -> tuple[str, ...]:
        """Missing figures, one clause each, with what needs them."""
        parts = (
            (self.all_reduce_mib_a_ms, "allreduce_bandwidth_*.json: the reduction of gradients"),
            (self.transfer_mib_a_ms, "p2p_bandwidth_*.json: pipelines"),
            (self.all_reduce, "allreduce_size_* of sp_time_*.json: tensor parallel layers"),
            (self.all_to_all, "all2all_size_* of sp_time_*.json: Ulysses"),
            (self.overlap_slowdown, "overlap_coefficient.json: gradients reduced beside the backward"),
        )
        return tuple(needed for part, needed in parts if not part)


def overlapped_ms(compute_ms: float, communication_ms: float, slowdown: float) -> float:
    """Time of a computation and a communication that start together, ms; both are slower while both run."""
    both = min(compute_ms, communication_ms)
    return both * slowdown + max(compute_ms, communication_ms) - both
