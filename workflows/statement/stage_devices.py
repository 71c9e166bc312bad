"""Stages on several kinds of devices: speed and memory of each stage, and the orders to try."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.stage_comment import text_of
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline_solver.model.problem import PipelineProblem, StageTimes
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.options import ANY, LISTED, FileJob
from taylor.workflows.statement.time_ratios import SettledRatios, settle_ratios

FLAG = "--stage_devices"

MOST_ORDERS = 720
"""Most orders of stages that are tried: of six kinds of devices in rows, or of 5 + 5 stages of two in any order."""


@dataclass(frozen=True)
class OnStages:
    """Devices of the stages.

    Parameters
    ----------
    specs : tuple of DeviceSpec [S]
    times : mapping of a device's name to TimeRatios
        The estimate of the job on each.
    ratios : mapping of a device's name to SettledRatios
        Those that its stages are planned with: given, estimated on it, or a mixture.
    usual : DeviceSpec
        The device in whose times the problem is stated, whatever the order of the stages: the fastest.
    """

    specs: tuple[DeviceSpec, ...]
    times: dict[str, TimeRatios]
    ratios: dict[str, SettledRatios]
    usual: DeviceSpec

    @classmethod
    def of(cls, job: FileJob, config: TrainingConfig) -> OnStages | None:
        """Stages of a job as they are listed; None where all lie on one device.

        Raises
        ------
        InputError
            When a device is unknown, their number differs from the stages', or an order is requested where there is
            none.
        """
        if not job.stage_devices:
            if job.stage_order != LISTED:
                raise InputError(
                    f"has no effect without {FLAG}", field="--stage_order", value=job.stage_order,
                    cure="name what the stages lie on",
                )  # fmt: skip
            return None
        specs = listed_devices(job)
        stages = config.strategy.pp
        if len(specs) != stages:
            raise InputError(
                f"names {len(specs)} stages, and the pipeline has {stages}",
                file=config.path,
                field=FLAG,
                value=text_of(job.stage_devices),
                cure=f"let the numbers add up to {stages}",
            )
        if job.device is not None and job.device not in {spec.name for spec in specs}:
            raise InputError(
                "is not among the devices of the stages",
                field="--device",
                value=job.device,
                cure=f"leave it out: {FLAG} or the file's comment says what the stages lie on",
            )
        apart = {spec.name: spec for spec in specs}
        times = {
            name: estimate_ratios(config.model, config.strategy, config.rules, spec) for name, spec in apart.items()
        }
        ratios = {name: settle_ratios(job.ratios, config, spec) for name, spec in apart.items()}
        return cls(specs, times, ratios, apart[min(times, key=lambda name: (_unit(times[name]), name))])

    @property
    def described(self) -> str:
        """Devices in the order of the stages: ``4 stages on h100-80g (80 GiB), then 4 on a100-80g (80 GiB)``."""
        parts = [f"{count} on {spec.name} ({spec.memory_mib / 1024:.0f} GiB)" for spec, count in runs(self.specs)]
        return "stages: " + ", then ".join(parts)

    @property
    def rows(self) -> tuple[tuple[str, int], ...]:
        """Devices in the order of the stages, with the number of consecutive stages on each."""
        return tuple((spec.name, count) for spec, count in runs(self.specs))

    @property
    def ratio_lines(self) -> list[str]:
        """Time ratios of each device, the fastest first."""
        names = sorted(self.times, key=lambda name: (_unit(self.times[name]), name))
        return [f"{name}: time ratios {self.ratios[name].described}" for name in names]

    @property
    def assumptions(self) -> list[str]:
        """Sentence for each device that is not the usual one, and for the source of each one's ratios."""
        others = [name for name in self.times if name != self.usual.name]
        slower = [
            f"a stage on {name} takes {self._slowness(name):.4g} times as long as one on {self.usual.name}, as the "
            "estimate of a body layer's forward has it"
            for name in others
        ]
        return slower + list(dict.fromkeys(each for one in self.ratios.values() for each in one.assumptions))

    def average(self, device: DeviceSpec, precision: str) -> DeviceSpec:
        """Device that computes as fast as the stages' devices do on average."""
        if any(spec.peak_precision(precision) is None for spec in self.specs):
            return replace(device, peak_tflops={})
        peak = sum(spec.peak(precision) for spec in self.specs) / len(self.specs)
        return replace(device, peak_tflops={**device.peak_tflops, precision: peak})

    def orders(self, how: str) -> list[OnStages]:
        """Orders of the stages to try, the listed one first (`options.STAGE_ORDERS`).

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

    def on(self, problems: Mapping[str, PipelineProblem], config: TrainingConfig) -> PipelineProblem:
        """Problem on these stages, from that of each device as if all stages lay on it.

        A transfer takes the time of the slowest of their links, for sender and receiver depend on the order.
        """
        base = problems[self.usual.name]
        slowness = tuple(self._slowness(spec.name) for spec in self.specs)
        of_each = [[lag * self._slowness(name) for lag in _lags(one)] for name, one in problems.items()]
        lags = tuple(map(max, zip(*of_each, strict=True)))
        limits = tuple(
            limit if spec.name == self.usual.name else config.memory_limit_mib(spec)
            for limit, spec in zip(base.limit_mib, self.specs, strict=True)
        )
        # A choice that one device does not offer is not offered on any stage.
        names = tuple(name for name in base.choices if all(name in one.choices for one in problems.values()))
        here = [problems[spec.name] for spec in self.specs]
        times = tuple(map(StageTimes.of, here))
        first, last = (chunk_order(base.stages, base.interleaves, base.schedule.v_shape)[end][1] for end in (0, -1))
        tail = tuple(slow * one.tail[s] for s, (slow, one) in enumerate(zip(slowness, here, strict=True)) if one.tail)
        hosts = tuple(one.host_limit_mib[s] for s, one in enumerate(here) if one.host_limit_mib)
        return base.replace(
            limit_mib=limits,
            host_limit_mib=hosts if len(hosts) == base.stages else (),
            choices=names,
            slowness=slowness,
            stage_times=times if any(one != times[0] for one in times) else (),
            cards=tuple(spec.name for spec in self.specs),
            embedding_forward=here[first].embedding_forward,
            head_forward=here[last].head_forward,
            lag=max(lags, default=0.0),
            lags=lags if len(set(lags)) > 1 else (),
            tail=tail if len(tail) == base.stages else (),
        )

    def _slowness(self, name: str) -> float:
        return _unit(self.times[name]) / _unit(self.times[self.usual.name])


def listed_devices(job: FileJob) -> tuple[DeviceSpec, ...]:
    """Device of each stage of a job, in the order in which they are listed; empty where all lie on one.

    Raises
    ------
    InputError
        When a device is unknown.
    """
    register = Registry.load(job.register_path)
    return tuple(register.device(name) for name, count in job.stage_devices for _ in range(count))


def usual_device(job: FileJob, config: TrainingConfig) -> str | None:
    """Device to plan for: of several the fastest, whatever their order, else the requested one."""
    apart = {spec.name: spec for spec in listed_devices(job)}
    if not apart:
        return job.device

    def unit(name: str) -> float:
        return _unit(estimate_ratios(config.model, config.strategy, config.rules, apart[name]))

    return min(apart, key=lambda name: (unit(name), name))


def _lags(problem: PipelineProblem) -> tuple[float, ...]:
    return problem.lags or (problem.lag,) * (problem.stages * problem.interleaves - 1)


def runs(specs: Sequence[DeviceSpec]) -> list[tuple[DeviceSpec, int]]:
    """Devices of consecutive stages, and the number of stages on each."""
    return [(members[0], len(members)) for _, group in itertools.groupby(specs, lambda spec: spec.name)
            for members in [list(group)]]  # fmt: skip


def order_name(specs: Sequence[DeviceSpec]) -> str:
    """Devices as the flag writes them: ``h100-80g:4,a100-80g:4``."""
    return ",".join(f"{spec.name}:{count}" for spec, count in runs(specs))


def _unit(ratios: TimeRatios) -> float:
    assert ratios.unit_ms is not None  # an estimate has one
    return ratios.unit_ms


def _distinct(groups: list[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """Distinct orders of some groups, the given one first."""
    if not groups:
        yield ()
        return
    for first in dict.fromkeys(groups):
        rest = list(groups)
        rest.remove(first)
        for after in _distinct(rest):
            yield (first, *after)
