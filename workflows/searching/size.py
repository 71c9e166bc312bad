"""How many devices a training takes: the least that fit, those that meet a deadline, the curve, energy and price."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InputError, NoSolutionError, TaylorError
from taylor.cost_model.job.length import SECONDS_A_DAY
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.profile import MemorySource
from taylor.nd_search.search import search
from taylor.nd_search.steps import SolvedStep
from taylor.parsers.tables.device_prices import DevicePrice
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.searching.model_job import ModelJob, per_node, search_options, state_model
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.searching.scaling import MEMORY, RULES, TIME, Knee, SizePoint, efficiency_of, kept_of, knee_of
from taylor.workflows.showing.verdict_data import VerdictFacts, figures_fit, no_plan
from taylor.workflows.statement.devices import ChosenDevice, choose_device
from taylor.workflows.statement.job_facts import parameters_text
from taylor.workflows.statement.legality import rules_waived
from taylor.workflows.statement.options import NO_ORIGIN, Origin
from taylor.workflows.statement.stated_file import read_for

LEAST, MOST = 8, 16_384
"""Devices at the ends of the curve by default."""

MOST_DEVICES = 1 << 20
"""Most devices of a curve."""

SHORTLIST = 4
"""Strategies a number of devices, the fastest by the formula, that are solved; where none has a plan, twice as many
more."""

STEPS = 8
"""Numbers of devices that are tried between one of the curve that is too small and the next."""


@dataclass(frozen=True)
class SizeOptions:
    """Question of a sizing.

    Parameters
    ----------
    tokens : float or None
        Tokens of the whole training; without them there are no days, energy and price.
    days : float or None
        Deadline, days.
    least, most : int
        Devices at the ends of the curve.
    prices : mapping of str to DevicePrice
        Power and price by device; none where the user states none.
    workers : int
        Solves at once, a process each.
    seconds : float or None
        Time after which no further solve begins.
    """

    tokens: float | None = None
    days: float | None = None
    least: int = LEAST
    most: int = MOST
    prices: Mapping[str, DevicePrice] = field(default_factory=dict)
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST_DEVICES:
            problem, cure = "are no ends of a curve", f"name two numbers from 1 to {MOST_DEVICES:,}, the smaller first"
            raise InputError(problem, field="--min_devices, --max_devices", value=(self.least, self.most), cure=cure)
        if self.days is not None and self.tokens is None:
            raise InputError("needs the length of the training", field="--days", cure="name --tokens, as 1.5T")
        for name, value in (("--days", self.days), ("--tokens", self.tokens)):
            if value is not None and not 0 < value < math.inf:
                raise InputError("must be above 0", field=name, value=value)

    @property
    def sizes(self) -> list[int]:
        """Numbers of devices of the curve: the least, its doublings, and the most."""
        doublings = [self.least << turn for turn in range((self.most // self.least).bit_length())]
        return doublings if doublings[-1] == self.most else [*doublings, self.most]


@dataclass(frozen=True)
class DeviceSize:
    """Answer for one device.

    Parameters
    ----------
    device : DeviceSpec
    config : TrainingConfig
        The job, without its degrees.
    curve : tuple of SizePoint
        From few devices to many.
    least : SizePoint or None
        The least number of devices on which a strategy fits; None where none of the curve's range does.
    in_time : SizePoint or None
        The least number found that meets the deadline by the predicted step; None without one or where none does.
    surely_in_time : SizePoint or None
        Likewise by the upper end of the step's interval.
    price : DevicePrice
        As the user states it.
    unsolved : tuple of int
        Numbers of devices that the time limit left without a plan.
    allowed : tuple of str
        Legality rules that the job may break.
    """

    device: DeviceSpec
    config: TrainingConfig
    curve: tuple[SizePoint, ...]
    least: SizePoint | None
    in_time: SizePoint | None = None
    surely_in_time: SizePoint | None = None
    price: DevicePrice = DevicePrice()
    unsolved: tuple[int, ...] = ()
    allowed: tuple[str, ...] = ()

    @cached_property
    def knee(self) -> Knee | None:
        """Knee of the curve."""
        return knee_of(self.curve)

    @property
    def assumptions(self) -> list[str]:
        """Sentences on what makes the answer less sure: a device without published runs, an early end."""
        sentences = []
        if not self.device.is_measured:
            sentences.append("its speeds are fitted to no published run, so its intervals are wider")
        if self.unsolved:
            few, many = min(self.unsolved), max(self.unsolved)
            sentences.append(f"the time limit left numbers of devices unsolved, from {few:,} to {many:,}")
        if self.allowed:
            sentences.append(f"the framework's rules may be broken: {', '.join(self.allowed)}")
        return sentences

    def costs(self, point: SizePoint, tokens: float | None) -> dict[str, float | None]:
        """Days, device-hours, energy and price of a training on a point's devices; None where one is not known."""
        seconds = None if tokens is None else point.seconds(tokens)
        if seconds is None:
            return dict.fromkeys(("days", "device_hours", "energy_mwh", "price"))
        hours, price = seconds / 3600 * point.devices, self.price
        return {
            "days": seconds / SECONDS_A_DAY,
            "device_hours": hours,
            "energy_mwh": None if price.watts is None else hours * price.watts / 1e6,
            "price": None if price.price_per_hour is None else hours * price.price_per_hour,
        }

    def point_dict(self, point: SizePoint | None, tokens: float | None) -> dict[str, Any] | None:
        """A point with its costs as plain data."""
        if point is None:
            return None
        kept, efficiency = kept_of(self.curve), efficiency_of(self.curve)
        interval = None if tokens is None else point.seconds_interval(tokens)
        return {
            "devices": point.devices,
            "strategy": None if point.strategy is None else point.strategy.degrees(),
            "step_ms": point.step_ms,
            "step_interval_ms": point.step_interval_ms,
            "tokens_per_second": point.tokens_per_second,
            "tokens_per_second_per_device": point.speed,
            "kept": kept.get(point.devices),
            "efficiency": efficiency.get(point.devices),
            **self.costs(point, tokens),
            "days_interval": None if interval is None else [end / SECONDS_A_DAY for end in interval],
            "lacks": point.lacks,
            "reason": point.reason,
        }

    def verdict_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """Verdict on the least number of devices; without one, on the largest of the curve."""
        least, known = self.least, self.config.memory_error(MemorySource.ESTIMATE)
        if least is None:
            last = self.curve[-1]
            solution, fit = no_plan(last.reason, proven=all(point.lacks == MEMORY for point in self.curve))
        else:
            solution, fit = figures_fit(least.peaks_mib, least.limits_mib, self.config, known)
        step_ms = None if least is None else least.step_ms
        return VerdictFacts(self.config, self.device, fit, solution, known, step_ms, True, origin=origin).to_dict()

    def to_dict(self, tokens: float | None, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "device": self.device.name,
            "memory_mib": self.device.memory_mib,
            "framework": self.config.rules.framework.name,
            "verdict": self.verdict_dict(origin),
            "least": self.point_dict(self.least, tokens),
            "in_time": self.point_dict(self.in_time, tokens),
            "surely_in_time": self.point_dict(self.surely_in_time, tokens),
            "knee": None if self.knee is None else self.knee.to_dict(),
            "watts": self.price.watts,
            "price_per_hour": self.price.price_per_hour,
            "currency": self.price.currency,
            "assumed": self.assumptions,
            "curve": [self.point_dict(point, tokens) for point in self.curve],
        }


@dataclass(frozen=True, repr=False)
class Size:
    """Answer of a sizing: one `DeviceSize` a device.

    Parameters
    ----------
    model : str
        Model and its parameters, in words.
    seq_length, gbs : int
        Tokens a sample and samples a step, the same on every number of devices.
    tokens, days : float or None
        Length of the training and the deadline, as asked.
    devices : tuple of DeviceSize
    """

    model: str
    seq_length: int
    gbs: int
    tokens: float | None
    days: float | None
    devices: tuple[DeviceSize, ...]

    def to_dict(self, origin: Origin = NO_ORIGIN) -> dict[str, Any]:
        """The answer as plain data."""
        return {
            "schema": "taylor.size/1",
            "model": self.model,
            "sequence": self.seq_length,
            "global_batch": self.gbs,
            "tokens": self.tokens,
            "deadline_days": self.days,
            "devices": [each.to_dict(self.tokens, origin) for each in self.devices],
        }

    def summary(self) -> str:
        """The answer in lines of text."""
        from taylor.report.size import size_lines

        return "\n".join(size_lines(self.to_dict()))

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        from taylor.report.size import size_html

        return size_html(self.to_dict())

    def plot(self) -> Any:
        """Curves of speed and efficiency over the number of devices, a matplotlib figure."""
        from taylor.report.size import size_figure

        return size_figure(self.to_dict())


def size(jobs: Sequence[ModelJob], options: SizeOptions, output: Path) -> Size:
    """Size a training on several devices.

    Parameters
    ----------
    jobs : sequence of ModelJob
        The same job on each device; its ranks are not used.
    output : Path
        The folder ``jobs`` in it takes the model's files.

    Raises
    ------
    InputError
        When the model cannot be read, a device is not registered, or a price names a device that is not asked for.
    InfeasibleError
        When no number of devices of the curve fits any device.
    NoSolutionError
        When the time limit left numbers of devices unsolved, and the others fit none.
    """
    prices = _by_device(options.prices, jobs)
    until = math.inf if options.seconds is None else time.monotonic() + options.seconds
    found: list[DeviceSize] = []
    config: TrainingConfig | None = None
    for job in jobs:
        run = _Sizing(job, options, output / (job.device or "usual"), until)
        found.append(run.answer(prices.get(run.chosen.spec.name, DevicePrice())))
        config = run.config
    assert config is not None
    if all(each.least is None for each in found):
        raise _why_none(jobs[0].name, found)
    name = f"{jobs[0].name}, {parameters_text(config.model)}"
    return Size(name, config.rules.seq_length, config.strategy.global_batch, options.tokens, options.days, tuple(found))


def _why_none(name: str, found: Sequence[DeviceSize]) -> TaylorError:
    unsolved = sorted({devices for each in found for devices in each.unsolved})
    if unsolved:
        few, many = unsolved[0], unsolved[-1]
        return NoSolutionError(
            f"{name}: no plan was found in time on {few:,} to {many:,} devices; --time_limit allows more"
        )
    last = found[0].curve[-1]
    sizes = f"{found[0].curve[0].devices:,} to {last.devices:,} devices"
    return InfeasibleError(f"{name}: no strategy on {sizes} (--max_devices names more): {last.reason}")


def _by_device(prices: Mapping[str, DevicePrice], jobs: Sequence[ModelJob]) -> dict[str, DevicePrice]:
    """Prices by the registered names of their devices.

    Raises
    ------
    InputError
        When a name is none of a registered device.
    """
    registry = Registry.load(jobs[0].register_path)
    return {registry.device(name).name: price for name, price in prices.items()}


@dataclass(frozen=True)
class _Sizing:
    """A job on one device, sized."""

    job: ModelJob
    options: SizeOptions
    output: Path
    until: float
    known: dict[int, SizePoint] = field(default_factory=dict)

    @cached_property
    def config(self) -> TrainingConfig:
        """The job with its sequence and batch, and no degrees yet."""
        job = replace(self.job, world_size=1)
        return read_for(state_model(job, self.output), job.register_path, margin=job.margin, images=job.images)

    @cached_property
    def chosen(self) -> ChosenDevice:
        """The device."""
        return choose_device(self.config, self.job.device, self.job.register_path)

    @cached_property
    def solves(self) -> QuickSolves:
        """Quick solves of strategies of any number of devices."""
        return QuickSolves(
            self.config, self.chosen, workers=self.options.workers, register_path=self.job.register_path,
            allow_illegal=rules_waived(self.job.allow_illegal, self.config), until=self.until,
        )  # fmt: skip

    def answer(self, price: DevicePrice) -> DeviceSize:
        """The curve, the least number that fits, and those that meet the deadline."""
        name, sizes = self.chosen.spec.name, self.options.sizes
        log.info("%s: %d numbers of devices from %s to %s", name, len(sizes), f"{sizes[0]:,}", f"{sizes[-1]:,}")
        curve = self.points(sizes)
        least = self._first(curve, lambda point: point.step_ms is not None)
        soon, sure = (None, None) if self.options.days is None else (self._in_time(curve, end) for end in (0, 1))
        unsolved = tuple(sorted(devices for devices, point in self.known.items() if point.lacks == TIME))
        allowed = tuple(self.job.allow_illegal)
        return DeviceSize(self.chosen.spec, self.config, tuple(curve), least, soon, sure, price, unsolved, allowed)

    def _in_time(self, curve: Sequence[SizePoint], end: int) -> SizePoint | None:
        """The least number that meets the deadline, by the step (end 0) or by the upper end of its interval (1)."""
        assert self.options.tokens is not None and self.options.days is not None
        tokens, limit = self.options.tokens, self.options.days * SECONDS_A_DAY

        def meets(point: SizePoint) -> bool:
            interval = point.seconds_interval(tokens)
            seconds = point.seconds(tokens) if end == 0 or interval is None else interval[1]
            return seconds is not None and seconds <= limit

        return self._first(curve, meets)

    def _first(self, curve: Sequence[SizePoint], wanted: Callable[[SizePoint], bool]) -> SizePoint | None:
        """The point with the fewest devices that is as wanted: of the curve, or of `STEPS` numbers below it.

        Where already the curve's first point is as wanted, fewer devices are tried.
        """
        at = next((at for at, point in enumerate(curve) if wanted(point)), None)
        if at is None:
            return None
        below = self._between(curve[at - 1].devices, curve[at].devices) if at else _halves(self.options.least)
        return next((point for point in self.points(below) if wanted(point)), curve[at])

    def _between(self, few: int, many: int) -> list[int]:
        """Numbers of devices between two neighbours of the curve, whole hosts where there are that many."""
        host = per_node(self.chosen.spec)
        host = host if host <= few else 1
        step = max(host, (many - few) // STEPS // host * host)
        return list(range(few + step, many, step))

    def points(self, sizes: Sequence[int]) -> list[SizePoint]:
        """The fastest strategy of each number of devices; none is searched twice."""
        self.known.update(self._points([devices for devices in sizes if devices not in self.known]))
        return [self.known[devices] for devices in sizes]

    def _points(self, sizes: Sequence[int]) -> dict[int, SizePoint]:
        """The fastest strategy by the first plan of those that the formula finds fastest."""
        ranked: dict[int, list[Strategy]] = {}
        found: dict[int, SizePoint] = {}
        limit = self.config.memory_limit_mib(self.chosen.spec)
        for devices in sizes:
            try:
                ranked[devices] = self._ranked(devices)
            except TaylorError as error:
                lacks = MEMORY if isinstance(error, InfeasibleError) else RULES
                reason = str(error).removeprefix(f"{self.config.path}: ")
                found[devices] = SizePoint(devices, lacks=lacks, reason=reason)
        for begin, end in ((0, SHORTLIST), (SHORTLIST, 3 * SHORTLIST)):
            planned = {devices for devices, point in found.items() if point.step_ms is not None}
            tried = [one for devices in ranked if devices not in planned for one in ranked[devices][begin:end]]
            for strategy, step in zip(tried, self.solves(tried, limit) if tried else (), strict=True):
                devices = strategy.world_size
                best = found.get(devices)
                if step.ms is None:
                    # One strategy without a plan yet leaves it open whether the number fits.
                    if best is None or (best.lacks == MEMORY and not step.refused):
                        found[devices] = _without_plan(devices, step.refused)
                elif best is None or best.step_ms is None or step.ms < best.step_ms:
                    found[devices] = self._point(strategy, step)
        return found

    def _ranked(self, devices: int) -> list[Strategy]:
        """Strategies that obey the rules and fit, the fastest by the formula first."""
        space = search_options(replace(self.job, world_size=devices), self.config)
        space = replace(space, gbs=self.config.strategy.global_batch, profile_num=3 * SHORTLIST)
        found = search(self.config, self.chosen.spec, space)
        return [found.candidates.row(int(number)) for number in found.chosen]

    def _point(self, strategy: Strategy, step: SolvedStep) -> SizePoint:
        assert step.ms is not None
        step_ms = step.ms
        config, spec = self.config.replace(strategy=strategy), self.chosen.spec
        known = config.step_error(spec)
        tokens = strategy.global_batch * config.rules.seq_length / (step_ms / 1e3)
        ends = (step_ms * known.lower(), step_ms * known.upper())
        return SizePoint(
            strategy.world_size, strategy, step_ms, ends, tokens, peaks_mib=step.peaks_mib, limits_mib=step.limits_mib
        )


def _without_plan(devices: int, refused: str) -> SizePoint:
    """Point of a strategy without a plan, which does not fit, or ran out of time where no reason refuses it."""
    return SizePoint(devices, lacks=MEMORY if refused else TIME, reason=refused or "no plan was found in time")


def _halves(devices: int) -> list[int]:
    """Halves of a number of devices, down to 1, the smallest first."""
    return sorted(devices >> turn for turn in range(1, devices.bit_length()))
