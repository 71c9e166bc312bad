"""Measurements of a hardware profile, in order; each has a name and is kept by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

ALL_REDUCE, TIMED_REDUCE, ALL_TO_ALL, TRANSFER, OVERLAP = (
    "allreduce",
    "allreduce_time",
    "all2all_time",
    "p2p",
    "overlap",
)
PRODUCTS, ATTENTION, COPY, HOST_LINK = "products", "attention", "copy", "host_link"
TOGETHER = (ALL_REDUCE, TRANSFER, TIMED_REDUCE, ALL_TO_ALL, OVERLAP)
ALONE = (PRODUCTS, ATTENTION, COPY, HOST_LINK)
"""Measurements of single devices, by every rank at once."""
KINDS = (*TOGETHER, *ALONE)

MIB = 2**20


@dataclass(frozen=True)
class HardwarePlan:
    """A cluster and its measurements.

    Parameters
    ----------
    nodes, per_node : int
    max_tp, max_pp : int
        Largest groups of timed collectives, and of stages.
    start_mib, end_mib : int
        Sizes of timed collectives, doubled from the first to the last; MiB.
    bandwidth_mib : int
        Message of the bandwidths, MiB.
    overlap_multiply : int
        Communication over computation while both overlap.
    width : int
        Of GEMMs and attention: hidden size.
    kinds : tuple of str
        Some of `KINDS`.
    repeats, attempts : int
        Samples of a measurement, and tries of a disturbed one.
    """

    nodes: int = 1
    per_node: int = 8
    max_tp: int = 8
    max_pp: int = 8
    start_mib: int = 1
    end_mib: int = 1024
    bandwidth_mib: int = 256
    overlap_multiply: int = 4
    width: int = 4096
    kinds: tuple[str, ...] = KINDS
    repeats: int = 9
    attempts: int = 3

    @property
    def world(self) -> int:
        """Ranks."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """Name of the cluster in Galvatron's files."""
        return f"{self.nodes}nodes_{self.per_node}gpus_per_node"


@dataclass(frozen=True)
class HardwareJob:
    """One measurement.

    Parameters
    ----------
    ranks : int
        Of the group; stages, of a transfer.
    consecutive : bool
        The group's ranks are consecutive; else they are spread evenly over the world.
    """

    kind: str
    ranks: int = 1
    consecutive: bool = True
    mib: int = 0

    @property
    def key(self) -> str:
        """Its name: kept measurements are found by it."""
        if self.kind in ALONE or self.kind == OVERLAP:
            return self.kind
        size = f" {self.mib} MiB"
        spread = "" if self.kind != ALL_REDUCE else f" consec {int(self.consecutive)}"
        return f"{self.kind} {self.ranks}{spread}{size}"


def hardware_jobs(plan: HardwarePlan) -> Iterator[HardwareJob]:
    """Every measurement of a plan: groups as Galvatron has them (its core/profiler/hardware_profiler.py:
    `_halving_tp_degrees`, `_p2p_pp_deg_sweep`; profile_hardware/profile_allreduce.py)."""
    halved = [plan.world >> step for step in range(plan.world.bit_length()) if plan.world >> step > 1]
    transfers = reversed([size for size in halved if size <= plan.max_pp])
    timed = [size for size in halved if size <= plan.max_tp]
    by_kind: dict[str, Iterable[HardwareJob]] = {
        ALL_REDUCE: _bandwidths(plan, halved),
        TRANSFER: (HardwareJob(TRANSFER, ranks, mib=plan.bandwidth_mib) for ranks in transfers),
        TIMED_REDUCE: _timed(TIMED_REDUCE, plan, timed),
        ALL_TO_ALL: _timed(ALL_TO_ALL, plan, timed),
        OVERLAP: [HardwareJob(OVERLAP, plan.world)] if halved else [],
        **{kind: [HardwareJob(kind)] for kind in ALONE},
    }
    return chain.from_iterable(jobs for kind, jobs in by_kind.items() if kind in plan.kinds)


def _bandwidths(plan: HardwarePlan, groups: Sequence[int]) -> Iterator[HardwareJob]:
    for ranks in groups:
        for consecutive in (True,) if ranks == plan.world else (True, False):
            yield HardwareJob(ALL_REDUCE, ranks, consecutive, plan.bandwidth_mib)


def _timed(kind: str, plan: HardwarePlan, groups: Sequence[int]) -> Iterator[HardwareJob]:
    for ranks in groups:
        mib = plan.start_mib
        while mib <= plan.end_mib:
            yield HardwareJob(kind, ranks, mib=mib)
            mib *= 2


def group_of(rank: int, job: HardwareJob, world: int) -> tuple[int, ...]:
    """The ranks of a rank's group."""
    if job.consecutive:
        first = rank // job.ranks * job.ranks
        return tuple(range(first, first + job.ranks))
    stride = world // job.ranks
    return tuple(range(rank % stride, world, stride))
