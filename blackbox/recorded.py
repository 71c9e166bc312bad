"""One small run as its profile and its log recorded it: kernels, collectives, tensors, parameters."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from taylor.blackbox.blocks import RunOperators
from taylor.blackbox.group_laws import data_parallel, expert_data_parallel
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.profiles.transfers import Transfer
from taylor.parsers.small_run import RunLog, RunSetting

ELEMENT_BYTES = (1, 2, 4)
"""Of gradients and weights, as collectives carry them."""
LEAST_SHARE = 0.01
"""Fraction of all parameters' bytes below which collectives carry no gradients: small ones match a norm by chance,
whose parameters are a thousandth of a layer's."""
_OF_GRADIENTS = ("reducescatter", "allreduce", "allgather")
SAME_BYTES = 0.002
"""Fraction by which a collective may exceed its parameter: buckets are padded."""


@dataclass(frozen=True)
class RecordedRun:
    """Records of the first rank in a small run of one stage.

    Parameters
    ----------
    samples : tuple of OperatorSample
        One step's kernels and collectives in the order of their starts.
    transfers : mapping of str to Transfer
        Collectives by the names of their samples.
    allocations : tuple of Allocation
        One step's, in the order of their starts.
    of_weights : tuple of OperatorSample
        The step's work by which sharded weights are gathered and their gradients reduced, which is none of `samples`.
    memory_of_weights : tuple of Allocation
        Allocations of that work, which are none of `allocations`.
    """

    setting: RunSetting
    samples: tuple[OperatorSample, ...]
    transfers: Mapping[str, Transfer]
    allocations: tuple[Allocation, ...]
    log: RunLog
    of_weights: tuple[OperatorSample, ...] = ()
    memory_of_weights: tuple[Allocation, ...] = ()

    @property
    def start_bytes(self) -> int:
        """Bytes in use before the step's first allocation."""
        every = (*self.allocations[:1], *self.memory_of_weights[:1])
        first = min(every, key=lambda one: one.start_ns, default=None)
        return 0 if first is None else first.total - first.bytes

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use."""
        every = (one.total for one in (*self.allocations, *self.memory_of_weights))
        return max(*every, 0, self.log.peak or 0) if self.allocations else self.log.peak or 0

    @cached_property
    def gradients(self) -> Mapping[str, float]:
        """Bytes an element that data parallel ranks exchange, by kind of collective; see `_gradient_kinds`."""
        return {kind: each for (kind, _), (each, _, _) in self._gradient_kinds.items()}

    def group_of(self, sample: OperatorSample) -> tuple[int, int] | None:
        """(ranks, distance of their numbers) of a gradient's collective; None for any other."""
        transfer = self.transfers.get(sample.name)
        found = self._gradient_kinds.get((sample.operator.type, transfer.group)) if transfer is not None else None
        return None if found is None else found[1:]

    @cached_property
    def kept_samples(self) -> tuple[OperatorSample, ...]:
        """Samples without the collectives of gradients and weights: these follow parameters, not tokens.

        A collective stands before the first operator that ends after its start, whether it began a little before that
        operator or, on a stream of its own, a little after: two streams' order changes from run to run.
        """
        kept = [one for one in self.samples if not self._is_gradient(one)]
        computing = [one for one in kept if one.operator.is_compute]
        # Of two streams an earlier operator may end later: the first to end after a moment is where the maximum does.
        ends = list(itertools.accumulate((one.start_ns + one.duration_ns for one in computing), max))
        beside: dict[int, list[OperatorSample]] = {}
        for one in kept:
            if not one.operator.is_compute:
                beside.setdefault(bisect.bisect_right(ends, one.start_ns), []).append(one)
        found = list[OperatorSample]()
        for at in range(len(computing) + 1):
            found += _in_order(beside.get(at, []))
            found += computing[at : at + 1]
        return tuple(found)

    def waited_ns(self, sample: OperatorSample) -> float:
        """Part of a collective's time that it waited for other ranks."""
        transfer = self.transfers.get(sample.name)
        return 0.0 if transfer is None else max(0.0, sample.duration_ns - transfer.ns)

    @cached_property
    def gradient_samples(self) -> tuple[OperatorSample, ...]:
        """The others."""
        return tuple(one for one in self.samples if self._is_gradient(one))

    def operators(self) -> RunOperators:
        """`kept_samples` for alignment; a collective has what it sent as its only dimension."""
        return RunOperators(self.setting, tuple(self._operator(one) for one in self.kept_samples))

    def _operator(self, sample: OperatorSample) -> Operator:
        transfer = self.transfers.get(sample.name)
        if transfer is None:
            return sample.operator
        return Operator(sample.operator.type, sample.operator.core, (), (), ((transfer.bytes,),))

    def _is_gradient(self, sample: OperatorSample) -> bool:
        transfer = self.transfers.get(sample.name)
        return transfer is not None and (sample.operator.type, transfer.group) in self._gradient_kinds

    @cached_property
    def _gradient_kinds(self) -> dict[tuple[str, str], tuple[float, int, int]]:
        """(kind, group) whose collectives carry one parameter each and every one once a layer, with the
        bytes an element, the ranks and the distance of their numbers.

        A group of ranks may be that of CP or EP as well, and a tensor of tokens as large as a parameter, but the
        same tensor goes several times where a parameter goes once.
        """
        run = self.setting
        if self.of_weights:
            return {}
        sizes: dict[tuple[str, str], list[int]] = {}
        for one in self.samples:
            transfer = self.transfers.get(one.name)
            if transfer is not None and any(word in one.operator.type.lower() for word in _OF_GRADIENTS):
                sizes.setdefault((one.operator.type, transfer.group), []).append(transfer.bytes)
        elements = [
            size
            for name, block in self.log.parameters.items()
            for size in [*block.values()] * {"layer": run.layers - run.dense, "dense": run.dense}.get(name, 1)
        ]
        found: dict[tuple[str, str], tuple[float, int, int]] = {}
        for (kind, group), sent in sizes.items():
            for ranks, stride in (data_parallel(run), expert_data_parallel(run), (run.dp, run.tp * run.cp)):
                if ranks < 2:
                    continue
                factor = (ranks - 1) / ranks * (2 if "allreduce" in kind.lower() else 1)
                for each in ELEMENT_BYTES:
                    if _once(sent, [each * size * factor for size in elements]):
                        found.setdefault((kind, group), (float(each), ranks, stride))
        return found


def _in_order(collectives: Sequence[OperatorSample]) -> list[OperatorSample]:
    """Collectives in the order of their starts, those that run at the same time by their type."""
    found = list[OperatorSample]()
    for one in sorted(collectives, key=lambda each: each.start_ns):
        at = len(found)
        while at and found[at - 1].operator.type > one.operator.type and _together(found[at - 1], one):
            at -= 1
        found.insert(at, one)
    return found


def _together(left: OperatorSample, right: OperatorSample) -> bool:
    return left.start_ns < right.start_ns + right.duration_ns and right.start_ns < left.start_ns + left.duration_ns


def _once(sent: Sequence[int], wanted: Sequence[float]) -> bool:
    """Return whether each thing sent is another one of those wanted."""
    if sum(sent) < LEAST_SHARE * sum(wanted):
        return False
    left = sorted(wanted)
    for size in sorted(sent):
        slack = max(SAME_BYTES * size, 1024)
        while left and left[0] < size - slack:
            left.pop(0)
        if not left or left.pop(0) > size + slack:
            return False
    return bool(sent)
