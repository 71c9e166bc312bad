"""Options of a search: dimensions, pins, bounds, limits; and the facts that rules evaluate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Protocol

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.parsers.megatron.context import CONTEXT_FLAGS
from taylor.parsers.registry import launcher_of
from taylor.parsers.stated_flags import StatedFlags
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

DIMENSIONS = ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "micro_batches", "ulysses")
"""Every dimension of a strategy that can be searched, pinned or bounded, in the order files list them."""


class PeakEstimate(Protocol):
    """Peak memory of many strategies at once: `cost_model.memory.breakdown.best_case_peak_mib`, or one fitted to
    dry-runs.
    """

    def __call__(
        self,
        model: ModelSpec,
        rules: TrainingRules,
        table: StrategyTable,
        recompute: str = "best",
        device_limit_mib: float | None = None,
        schedule: ScheduleSpec = ...,
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Peak MiB [n] of the heaviest stage, and that stage [n]."""
        ...


SP_RULE = "sp-with-tp"
"""Name of the rule of experience that sequence parallelism is on wherever tp > 1."""

RECOMPUTE_CHOICES = ("best", "none", "full")


@dataclass(frozen=True)
class SearchOptions:
    """Settings of a search.

    Parameters
    ----------
    world_size : int or None
        Ranks to plan for; None = the file's dp·tp·pp·cp.
    gbs : int or None
        Samples a step; None = those of the file, which follow the ranks where it states the batch of each.
    max_expert_parallel : int
        Largest EP that is accepted.
    search : tuple of str
        Dimensions searched (of `DIMENSIONS`). Others keep the file's value, except op and sp, which
        follow by rule: op = dp·cp where the file's parallel optimizer is on, sp where tp > 1.
        `micro_batches` and `mbs` are tied by the batch: naming either searches both. `ulysses` is the number of context
        ranks that exchange heads: a ring, Ulysses, and both at once.
    fix : mapping of dimension to int
        Pinned dimensions (sp: 0 or 1).
    bounds : mapping of dimension to (low, high)
        Values outside are not built.
    recompute : str
        Recompute assumed for the peak: ``best`` (fits most), ``none`` or ``full``.
    profile_num : int
        Approximate number of strategies to choose for profiling.
    spread : bool
        Whether the choice is spread over tp, pp and ep, as for a profile of each; else it is the fastest.
    disabled_rules : tuple of str
        Names of rules that are disabled.
    device_limit_mib : float or None
        Memory limit, MiB; None = the file's, else the device's usable memory, less the job's margin.
    """

    world_size: int | None = None
    gbs: int | None = None
    max_expert_parallel: int = 64
    search: tuple[str, ...] = ("dp", "tp", "pp", "ep")
    fix: Mapping[str, int] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    recompute: str = "best"
    profile_num: int = 20
    spread: bool = True
    disabled_rules: tuple[str, ...] = ()
    device_limit_mib: float | None = None

    def __post_init__(self) -> None:
        for field_name, names in (("--search", self.search), ("--fix", self.fix), ("--max/--min", self.bounds)):
            for name in names:
                if name not in DIMENSIONS:
                    raise InputError(
                        "is no search dimension",
                        field=field_name,
                        value=name,
                        cure=f"choose from {','.join(DIMENSIONS)}",
                    )
        for flag, number in (
            ("--world_size", self.world_size),
            ("--gbs", self.gbs),
            ("--max_expert_parallel", self.max_expert_parallel),
            ("--profile_num", self.profile_num),
        ):
            if number is not None and number < 1:
                raise InputError("must be a positive integer", field=flag, value=number)
        for name, pinned in self.fix.items():
            if pinned < (0 if name == "sp" else 1) or (name == "sp" and pinned > 1):
                raise InputError("is no value of this dimension", field=f"--fix {name}", value=pinned)
        for name, (low, high) in self.bounds.items():
            if low > high:
                raise InputError("lower bound above the upper", field=name, value=(low, high))
        if self.recompute not in RECOMPUTE_CHOICES:
            raise InputError(
                "is no recompute class", field="--recompute", value=self.recompute, cure="best, none or full"
            )

    @property
    def rules_left_out(self) -> tuple[str, ...]:
        """Names of the rules that do not apply: those disabled, and the rule of thumb that sp=0 is pinned against."""
        return (*self.disabled_rules, *((SP_RULE,) if self.fix.get("sp") == 0 else ()))


@dataclass(frozen=True)
class SearchContext:
    """All inputs of the space and its rules, settled from file, device and options.

    Parameters
    ----------
    layers : int
        Layers of the pipeline (MTP ones included where the file counts them).
    device_limit_mib : float
        Device memory a strategy may use, MiB.
    peak_of : PeakEstimate
        Source of peak memory.
    flags : StatedFlags
        Flags of the launch in addition to its strategy, for rules that read flags.
    chooses_context : bool
        Strategies state the context ranks that exchange heads.
    """

    model: ModelSpec
    rules: TrainingRules
    device: DeviceSpec
    own: Strategy
    schedule: ScheduleSpec
    world_size: int
    gbs: int
    layers: int
    max_expert_parallel: int
    device_limit_mib: float
    peak_of: PeakEstimate = best_case_peak_mib
    flags: StatedFlags = StatedFlags()
    chooses_context: bool = False

    @classmethod
    def settle(
        cls,
        config: TrainingConfig,
        device: DeviceSpec,
        options: SearchOptions,
        peak_of: PeakEstimate = best_case_peak_mib,
    ) -> SearchContext:
        """Fill open options from the file, then from the device."""
        own = config.strategy
        world = options.world_size or own.world_size
        chooses = "ulysses" in (*options.search, *options.fix)
        if chooses and (why := launcher_of(config).fixed_context(config)) is not None:
            cure = "leave it out, or search a Megatron, MindSpeed or MindFormers file that says no other kind"
            raise InputError(f"the kind of context parallelism {why}", field="--search", value="ulysses", cure=cure)
        limit = options.device_limit_mib or config.memory_limit_mib(device)
        return cls(
            model=config.model,
            rules=config.rules,
            device=device,
            own=own,
            schedule=config.schedule,
            world_size=world,
            gbs=options.gbs or config.batch_on(world),
            layers=config.model.n_layers + (config.model.mtp_layers if config.mtp_counted else 0),
            max_expert_parallel=options.max_expert_parallel,
            device_limit_mib=limit,
            peak_of=peak_of,
            flags=config.flags.without(CONTEXT_FLAGS) if chooses else config.flags,
            chooses_context=chooses,
        )

    @classmethod
    def of_job(cls, config: TrainingConfig, device: DeviceSpec) -> SearchContext:
        """Return the facts for a stated job: its own ranks and batch, and no limit of a search."""
        return cls.settle(config, device, SearchOptions(max_expert_parallel=max(1, config.strategy.ep)))
