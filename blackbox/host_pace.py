"""The pace of a host that launches operators one after another, apart from the device's time, from small runs.

A small run may wait for its host where the large job does not: its operators are shorter. Two operators in a row that
both begin late show the time that the host needs for one, those behind long operators the device's own pause.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from taylor.blackbox.recorded import RecordedRun
from taylor.parsers.profiles.operators import OperatorSample

LONG = 0.8
"""Operators longer than this fraction of a run's others leave the host time to run ahead: the longest fifth holds the
GEMMs and attention, which take ten times a launch and more."""
LATE = 2.0
"""An operator that begins later than this multiple of the device's own pause, and `LEAST_LATE_NS`, waited."""
LEAST_LATE_NS = 1000.0
"""ns: profilers stamp times in µs with few digits, and a pause jitters by hundreds of ns; a launch takes tens of µs."""


@dataclass(frozen=True)
class HostPace:
    """Pauses of the device and the host's time for an operator, ns.

    Parameters
    ----------
    pause : float
        Between two operators where nothing is waited for.
    usual : float
        Host's time for an operator of any type; 0 where no run waited for its host.
    by_type : mapping of str to float
    """

    pause: float
    usual: float = 0.0
    by_type: Mapping[str, float] | None = None

    def passes_ns(self, operators: Sequence[tuple[str, float]]) -> float:
        """Time of a stretch of (type, device time) among others like it.

        The host launches ahead of the device as far as it can: a second stretch behind a first one takes this long.
        """
        once = self._played(operators)
        return self._played([*operators, *operators]) - once

    def _played(self, operators: Iterable[tuple[str, float]]) -> float:
        now = host = 0.0
        known = self.by_type or {}
        for kind, took in operators:
            host += known.get(kind, self.usual)
            now = max(now + self.pause, host) + took
        return now


def host_pace(runs: Sequence[RecordedRun]) -> HostPace:
    """Pace of the host and the device in small runs."""
    pauses = [pause for run in runs for pause in _after_long(run)]
    pause = float(median(pauses)) if pauses else 0.0
    late = max(LATE * pause, pause + LEAST_LATE_NS)
    shown: dict[str, list[float]] = {}
    for run in runs:
        waited_before = False
        for previous, one, idle in _followed(run):
            waited = idle > late
            if waited and waited_before:
                shown.setdefault(one.operator.type, []).append(one.start_ns - previous.start_ns)
            waited_before = waited
    by_type = {kind: float(median(each)) for kind, each in shown.items()}
    every = [each for found in shown.values() for each in found]
    return HostPace(pause, float(median(every)) if every else 0.0, by_type)


def _followed(run: RecordedRun) -> list[tuple[OperatorSample, OperatorSample, int]]:
    """(operator, next one, ns between them) of operators behind which nothing but the host is waited for."""
    found = []
    previous: OperatorSample | None = None
    for one in run.samples:  # Those of gradients too: what follows them waited for them.
        if not one.operator.is_compute:
            previous = None
            continue
        if previous is not None:
            found.append((previous, one, one.start_ns - previous.start_ns - previous.duration_ns))
        previous = one
    return found


def _after_long(run: RecordedRun) -> list[float]:
    """Pauses behind the longest operators."""
    followed = _followed(run)
    if not followed:
        return []
    lengths = sorted(previous.duration_ns for previous, _, _ in followed)
    least = lengths[min(len(lengths) - 1, int(LONG * len(lengths)))]
    return [float(max(0, idle)) for previous, _, idle in followed if previous.duration_ns >= least]
