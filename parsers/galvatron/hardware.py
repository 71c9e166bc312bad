"""Hardware tables: bandwidths of all-reduces and transfers, times of collectives by size, slow-down under overlap.

Written by Hetu-Galvatron cea12ff galvatron/profile_hardware/profile_allreduce.py:143-154, profile_all2all.py:77,
profile_p2p.py, profile_overlap.py; Paddle's port leaves ``_consec_`` out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.measured.hardware import (
    ALL_REDUCE,
    ALL_TO_ALL,
    TRANSFER,
    HardwareProfile,
    MessageTimes,
    RankGroup,
)
from taylor.parsers.galvatron.values import MAX_RANKS, WHOLE, matches, number, read_table, refuse_contradiction, whole

_BANDWIDTH = re.compile(rf"allreduce_size_{WHOLE}(?:_consec_([01]))?")
_TRANSFER = re.compile(rf"pp_size_{WHOLE}")
_TIME = re.compile(rf"(allreduce|all2all)_size_{WHOLE}_{WHOLE}MB_time")
_OVERLAP = re.compile("overlap_coe")
MAX_MIB = 2**20


@dataclass
class _Found:
    """Tables read of one cluster so far."""

    bandwidth: dict[RankGroup, float] = field(default_factory=dict)
    transfer: dict[int, float] = field(default_factory=dict)
    times: dict[str, dict[int, dict[int, float]]] = field(
        default_factory=lambda: {ALL_REDUCE: {}, ALL_TO_ALL: {}}  # by ranks, then by size
    )
    overlap: float | None = None
    source: dict[str, str] = field(default_factory=dict)


def read_hardware(files: Iterable[Path]) -> HardwareProfile:
    """Read the hardware tables of one cluster; each file is recognised by its keys.

    Parameters
    ----------
    files : iterable of Path
        Any of ``allreduce_bandwidth_*.json``, ``p2p_bandwidth_*.json``, ``sp_time_*.json``,
        ``overlap_coefficient.json``.

    Raises
    ------
    InputError
        When a file cannot be read, a key is unknown, a figure is no positive number, or two contradict each other.
    """
    found = _Found()
    for file in files:
        _take(found, file)
    return HardwareProfile(
        all_reduce_mib_a_ms=found.bandwidth,
        transfer_mib_a_ms=found.transfer,
        all_reduce={ranks: MessageTimes(times) for ranks, times in sorted(found.times[ALL_REDUCE].items())},
        all_to_all={ranks: MessageTimes(times) for ranks, times in sorted(found.times[ALL_TO_ALL].items())},
        overlap_slowdown=found.overlap,
        source=found.source,
    )


def _take(found: _Found, file: Path) -> None:
    data = read_table(file)
    if not data:
        raise InputError("contains no measurement", file=file, cure="run the profiler that writes it again")
    first = next(iter(data))
    for pattern, take in ((_TIME, _take_times), (_BANDWIDTH, _take_bandwidths), (_TRANSFER, _take_transfers)):
        if pattern.fullmatch(first):
            take(found, data, file)
            return
    _take_overlap(found, data, file)


def _take_bandwidths(found: _Found, data: dict[str, object], file: Path) -> None:
    found.source["bandwidth"] = str(file)
    for key, match, value in matches(data, _BANDWIDTH, file, "allreduce_size_8_consec_1 or allreduce_size_8"):
        ranks = whole(match[1], file, key, "ranks")
        group = RankGroup(ranks, None if match[2] is None else match[2] == "1")
        bandwidth = number(value, file, key, "GB/s")
        refuse_contradiction(found.bandwidth.get(group), bandwidth, file, key, "the reduction of gradients")
        found.bandwidth[group] = bandwidth
    stated = {group.consecutive is None for group in found.bandwidth}
    if len(stated) > 1:
        odd = next(group for group in found.bandwidth if group.consecutive is None)
        raise InputError(
            "does not say whether its ranks follow each other, and other keys do",
            file=file,
            field=f"allreduce_size_{odd.ranks}",
            cure="write _consec_1 or _consec_0 behind it, or leave both out everywhere",
        )


def _take_transfers(found: _Found, data: dict[str, object], file: Path) -> None:
    found.source[TRANSFER] = str(file)
    for key, match, value in matches(data, _TRANSFER, file, "pp_size_2, pp_size_4, …"):
        stages = whole(match[1], file, key, "stages")
        bandwidth = number(value, file, key, "GB/s")
        refuse_contradiction(found.transfer.get(stages), bandwidth, file, key, "transfers between stages")
        found.transfer[stages] = bandwidth


def _take_times(found: _Found, data: dict[str, object], file: Path) -> None:
    for key, match, value in matches(data, _TIME, file, "allreduce_size_8_64MB_time or all2all_size_8_64MB_time"):
        collective = ALL_REDUCE if match[1] == "allreduce" else ALL_TO_ALL
        found.source[collective] = str(file)
        ranks = whole(match[2], file, key, "ranks", MAX_RANKS)
        mib = whole(match[3], file, key, "MB", MAX_MIB)
        times = found.times[collective].setdefault(ranks, {})
        time_ms = number(value, file, key, "ms")
        refuse_contradiction(times.get(mib), time_ms, file, key, "tensor parallel layers")
        times[mib] = time_ms


def _take_overlap(found: _Found, data: dict[str, object], file: Path) -> None:
    for key, _, value in matches(
        data, _OVERLAP, file, "allreduce_size_…, pp_size_…, all2all_size_…_…MB_time or overlap_coe, one kind a file"
    ):
        slowdown = number(value, file, key, "a factor")
        if not 1 <= slowdown <= 100:
            raise InputError(
                "must be from 1 to 100: how much longer computation takes beside communication",
                file=file,
                field=key,
                value=slowdown,
                cure="measure it again",
            )
        refuse_contradiction(found.overlap, slowdown, file, key, "gradients reduced beside the backward")
        found.overlap = slowdown
        found.source["overlap"] = str(file)
