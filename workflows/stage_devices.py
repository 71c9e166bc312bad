"""Stages on several kinds of devices: how fast and how large each stage is, and the orders in which they may stand."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time import estimate_ratios
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.problem import PipelineProblem
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.options import ANY, LISTED, FileJob

FLAG = "--stage_devices"

MOST_ORDERS = 720
"""Orders of stages that are tried at most: of six kinds of devices in rows, or of 5 + 5 stages of two in any order."""


@dataclass(frozen=True)
class OnStages:
    """What each stage lies on.

    Parameters
    ----------
    specs : tuple of DeviceSpec [S]
    times : mapping of a device's name to TimeRatios
        The estimate of the job on each.
    usual : DeviceSpec
        The device in whose times the problem is stated: that of the first stage as listed.
    """

    specs: tuple[DeviceSpec, ...]
    times: dict[str, TimeRatios]
    usual: DeviceSpec

    @classmethod
    def of(cls, job: FileJob, config: TrainingConfig) -> OnStages | None:
        """The stages of a job as they are listed; None where all lie on one device.

        Raises
        ------
        InputError
            When a device is unknown, or there are not as many as stages.
        """
        if not job.stage_devices:
            return None
        register = Registry.load(job.register_path)
        specs = tuple(register.device(name) for name, count in job.stage_devices for _ in range(count))
        stages = config.strategy.pp
        if len(specs) != stages:
            raise InputError(
                f"names {len(specs)} stages, and the pipeline has {stages}",
                file=config.path,
                field=FLAG,
                value=",".join(f"{name}:{count}" for name, count in job.stage_devices),
                cure=f"let the numbers add up to {stages}",
            )
        if job.device is not None and job.device not in {spec.name for spec in specs}:
            raise InputError(
                "is not among the devices of the stages",
                field="--device",
                value=job.device,
                cure=f"leave it out: {FLAG} says what the stages lie on",
            )
        times = {
            spec.name: estimate_ratios(config.model, config.strategy, config.rules, spec)
            for spec in {spec.name: spec for spec in specs}.values()
        }
        return cls(specs, times, specs[0])

    @property
    def described(self) -> str:
        """The devices in the order of the stages: ``4 stages on h100-80g (80 GiB), then 4 on a100-80g (80 GiB)``."""
        parts = [f"{count} on {spec.name} ({spec.memory_mib / 1024:.0f} GiB)" for spec, count in runs(self.specs)]
        return "stages: " + ", then ".join(parts)

    @property
    def assumptions(self) -> list[str]:
        """A sentence for each device that is not the usual one."""
        others = [name for name in self.times if name != self.usual.name]
        return [
            f"a stage on {name} takes {self._slowness(name):.4g} times as long as one on {self.usual.name}, as the "
            "estimate of a body layer's forward has it"
            for name in others
        ]

    def average(self, device: DeviceSpec, precision: str) -> DeviceSpec:
        """A device that computes as fast as the stages' devices do on average."""
        if any(spec.peak_precision(precision) is None for spec in self.specs):
            return replace(device, peak_tflops={})
        peak = sum(spec.peak(precision) for spec in self.specs) / len(self.specs)
        return replace(device, peak_tflops={**device.peak_tflops, precision: peak})

    def orders(self, how: str) -> list[OnStages]:
        """The orders of the stages to try, the listed one first (`options.STAGE_ORDERS`).

        Raises
        ------
        InputError
            When they are too many.
        """
        found = {tuple(spec.name for spec in order): order for order in self._orders(how)}
        return [replace(self, specs=order) for order in found.values()]

    def _orders(self, how: str) -> Iterator[tuple[DeviceSpec, ...]]:
        if how == LISTED:
            return iter([self.specs])
        groups = [(spec,) * count for spec, count in runs(self.specs)] if how != ANY else [(one,) for one in self.specs]
        rows = [tuple(spec.name for spec in group) for group in groups]
        count = math.factorial(len(rows)) // math.prod(map(math.factorial, Counter(rows).values()))
        if count > MOST_ORDERS:
            raise InputError(
                f"{count:,} orders of stages are too many to try",
                field="--stage_order",
                value=how,
                cure=f"name the devices in fewer rows, or take {LISTED} or groups",
            )
        by_name = {spec.name: spec for spec in self.specs}
        return ((*(by_name[name] for names in order for name in names),) for order in _distinct(rows))

    def on(self, problem: PipelineProblem, config: TrainingConfig) -> PipelineProblem:
        """The problem, which is stated for the usual device alone, on these stages.

        A transfer takes what the slowest of their links makes of it, for who sends to whom depends on the order.
        """
        usual = self.times[self.usual.name]
        slowest = max(each.lag * _unit(each) for each in self.times.values())
        longer_by = slowest / (usual.lag * _unit(usual)) if usual.lag else 1.0
        tails = problem.tail
        if tails and usual.tail:
            longer = [self.times[spec.name] for spec in self.specs]
            tails = tuple(
                tail * each.tail * _unit(each) / (usual.tail * _unit(usual))
                for tail, each in zip(tails, longer, strict=True)
            )
        limits = tuple(
            limit if spec.name == self.usual.name else config.memory_limit_mib(spec)
            for limit, spec in zip(problem.limit_mib, self.specs, strict=True)
        )
        slowness = tuple(self._slowness(spec.name) for spec in self.specs)
        lags = tuple(lag * longer_by for lag in problem.lags)
        return problem.replace(limit_mib=limits, slowness=slowness, lag=problem.lag * longer_by, lags=lags, tail=tails)

    def _slowness(self, name: str) -> float:
        return round(_unit(self.times[name]) / _unit(self.times[self.usual.name]), 6)


def runs(specs: Sequence[DeviceSpec]) -> list[tuple[DeviceSpec, int]]:
    """Devices of stages that follow each other, and how many do."""
    return [(members[0], len(members)) for _, group in itertools.groupby(specs, lambda spec: spec.name)
            for members in [list(group)]]  # fmt: skip


def order_name(specs: Sequence[DeviceSpec]) -> str:
    """The devices as the flag writes them: ``h100-80g:4,a100-80g:4``."""
    return ",".join(f"{spec.name}:{count}" for spec, count in runs(specs))


def _unit(ratios: TimeRatios) -> float:
    assert ratios.unit_ms is not None  # an estimate has one
    return ratios.unit_ms


def _distinct(groups: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The orders of some groups that differ, the given one first."""
    if not groups:
        yield ()
        return
    for first in dict.fromkeys(groups):
        rest = list(groups)
        rest.remove(first)
        for after in _distinct(rest):
            yield (first, *after)
