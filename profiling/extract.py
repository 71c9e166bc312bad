"""The time ratios of one profiled configuration, from the profiles of its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.profiles.folder import RankSource, rank_sources
from taylor.parsers.profiles.kernels import RankProfile
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import SELECT, PipelinePlan
from taylor.pipeline.schedule import Schedule
from taylor.profiling.match import ProfileMisfit, match, reruns_attention_alone
from taylor.profiling.measure import again_after_send, measure_by_name, measure_windows
from taylor.profiling.memory import ProfiledMemory, read_profiled_memory
from taylor.profiling.norms import find_norms
from taylor.profiling.pattern import (
    ATTENTION_ALONE,
    NO_ATTENTION,
    WITH_ATTENTION,
    StagePattern,
    stage_pattern,
    task_order,
)
from taylor.profiling.pool import RankTimes, pool_windows
from taylor.profiling.ratios import RatioFigures, ratios_of
from taylor.profiling.tasks import measure_tasks, names_tasks, task_pattern
from taylor.profiling.transfer import Transfers, transfer_time, transfers_of
from taylor.register.frameworks import ATTENTION_CORE

MEASURES = ("dmratio", "bfratio", "re_grow_ration", "hratio", "moe_bw")
"""The five figures, by their names in the result table."""


@dataclass(frozen=True)
class ExtractedRatios:
    """Figures from the profiles of one configuration.

    Parameters
    ----------
    ratios : TimeRatios or None
        None when there are `problems`, so that no doubtful figure is used silently.
    spread : mapping of measure to float
        Scatter of one sample relative to the figure; measures as in `MEASURES`.
    samples : mapping of measure to int
        Number of samples of each; 0 for one that is not measured.
    transfer_ms : float or None
        Time to hand an activation to the next stage.
    memory : mapping of stage to ProfiledMemory
        Peak and static memory, where the ranks have memory files.
    steps : int
        Whole steps measured, over all ranks.
    stages : tuple of int
        Stages of which at least one rank was read.
    problems : tuple of str
        Differences from the configuration, each with its likeliest cause.
    missing : tuple of str
        Measures that the profiles do not determine; `ratios` holds a default there.
    notes : tuple of str
        Omissions and assumptions.
    """

    config: TrainingConfig
    ratios: TimeRatios | None
    spread: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, int] = field(default_factory=dict)
    transfer_ms: float | None = None
    memory: Mapping[int, ProfiledMemory] = field(default_factory=dict)
    steps: int = 0
    stages: tuple[int, ...] = ()
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def extract_ratios(config: TrainingConfig, folder: str | Path) -> ExtractedRatios:
    """Match the profiles below a folder to a configuration's schedule and measure its layers.

    Everything that does not fit, a damaged file included, is listed in `problems`, and the configuration has no ratios.
    Ranks that are absent are no problem: measures that the others do not give are named in `missing`.

    Parameters
    ----------
    config : TrainingConfig
        The configuration that was profiled (its stages, layers, recompute, micro-batches).
    folder : path
        Folder of its ranks' profiles, in the profiler's own layout.

    Raises
    ------
    InputError
        When there is no such folder or no profile in it.
    """
    sources = rank_sources(folder)
    if config.plan is None:
        reason = "; ".join(config.notes) or "the file does not settle them"
        return ExtractedRatios(config, None, problems=(f"layers and recompute are not known: {reason}",))
    if config.rules.interleaved_parts > 1:
        return ExtractedRatios(
            config,
            None,
            problems=(
                f"micro_batch_interleave_num is {config.rules.interleaved_parts}: overlapped halves of a micro-batch "
                "cannot be distinguished; profile with 1",
            ),
        )
    collected = _Collected(config, config.plan, task_order(config))
    for source in sources:
        collected.take(source)
    return collected.result(Path(folder))


class _Collected:
    """Measurements of the ranks read so far."""

    def __init__(self, config: TrainingConfig, plan: PipelinePlan, schedule: Schedule) -> None:
        self._config, self._plan, self._schedule = config, plan, schedule
        self._patterns: dict[int, list[StagePattern]] = {}
        self._windows: list[RankTimes] = []
        self._transfers: dict[int, Transfers] = {}
        self._memory: dict[int, ProfiledMemory] = {}
        self._problems: list[str] = []
        self._notes: list[str] = []
        self._seen: dict[int, Path] = {}
        self._steps: dict[int, int] = {}

    def take(self, source: RankSource) -> None:
        """Read, match and measure one rank; note what is wrong with it."""
        try:
            profile = source.read()
        except TaylorError as error:
            self._problems.append(str(error))
            return
        self._notes += profile.notes
        try:
            rank, stage = self._place(profile)
            if names_tasks(profile):
                self._take_tasks(profile, rank, stage)
                return
            try:
                pattern, steps = self._matched(profile, stage)
            except ProfileMisfit as misfit:
                raise ProfileMisfit(str(misfit) + self._other_stage(profile, stage)) from None
            times = measure_windows(profile, pattern, steps)
        except ProfileMisfit as misfit:
            who = f"rank {profile.rank}" if profile.rank is not None else "a rank without a number"
            self._problems.append(f"{who} ({profile.path}): {misfit}")
            return
        self._windows.append(
            RankTimes(
                rank,
                pattern,
                times,
                tuple(measure_by_name(profile, pattern, steps)),
                find_norms(profile, pattern, steps),
                tuple(again_after_send(profile, pattern, steps)),
            )
        )
        self._transfers[rank] = transfers_of(profile, self._schedule, stage, len(steps))
        self._steps[stage] = self._steps.get(stage, 0) + len(steps)
        if source.has_memory_tables:
            memory, notes = read_profiled_memory(source.path, int(profile.end_ns[steps[-1, -1]]))
            self._notes += notes
            if memory is not None:
                known = self._memory.get(stage)
                self._memory[stage] = memory if known is None else known.worse(memory)

    def _take_tasks(self, profile: RankProfile, rank: int, stage: int) -> None:
        """Measure a rank by the ranges that name its tasks."""
        pattern = task_pattern(self._schedule, self._plan, stage)
        times = measure_tasks(profile, pattern)
        self._notes.append(
            f"rank {rank}: no attention kernel of a known name; measured by its forward and backward "
            "ranges, which do not show how many layers ran: offset and recompute count as configured"
        )
        self._windows.append(RankTimes(rank, pattern, times))
        self._transfers[rank] = transfers_of(profile, self._schedule, stage, len(times))
        self._steps[stage] = self._steps.get(stage, 0) + len(times)

    def _place(self, profile: RankProfile) -> tuple[int, int]:
        """Rank and stage of a profile: ranks go stage by stage (the pipeline is the outermost dimension)."""
        strategy = self._config.strategy
        per_stage = strategy.world_size // strategy.pp
        rank = profile.rank
        if rank is None:
            fitting = [stage for stage in range(strategy.pp) if self._fits(profile, stage)]
            if len(fitting) != 1:
                what = f"fits stages {fitting}" if fitting else "fits no stage"
                raise ProfileMisfit(f"neither file nor folder names its rank, and it {what}")
            self._notes.append(f"{profile.path}: no rank is given; it fits stage {fitting[0]} alone")
            rank = fitting[0] * per_stage
        if rank >= strategy.world_size:
            raise ProfileMisfit(
                f"the configuration has only {strategy.world_size} ranks: a profile of another configuration"
            )
        if rank in self._seen:
            raise ProfileMisfit(
                f"another profile of the same rank is {self._seen[rank]}: profiles of two runs are mixed"
            )
        self._seen[rank] = profile.path
        return rank, rank // per_stage

    def _matched(self, profile: RankProfile, stage: int) -> tuple[StagePattern, NDArray[np.int64]]:
        """The pattern of a stage that fits a profile, and its markers; the first misfit when none fits."""
        if stage not in self._patterns:
            # Selective recompute may run attention again or not: its kernels decide, for the counts differ.
            alone = set(self._config.rules.recomputed_parts) == {ATTENTION_CORE}
            forms = [NO_ATTENTION, ATTENTION_ALONE if alone else WITH_ATTENTION]
            selects = any(row[stage] for row in self._plan.recomputed(SELECT))
            self._patterns[stage] = [
                stage_pattern(self._schedule, self._plan, stage, form) for form in forms[: 2 if selects else 1]
            ]
        usual, *others = self._patterns[stage]
        micro_batches, ring = self._schedule.micro_batches, self._config.strategy.cp
        try:
            return usual, match(profile, usual, micro_batches, ring)
        except ProfileMisfit:
            for pattern in others:
                with suppress(ProfileMisfit):
                    steps = match(profile, pattern, micro_batches, ring)
                    if reruns_attention_alone(profile, pattern, steps):
                        return pattern, steps
            raise

    def _fits(self, profile: RankProfile, stage: int) -> bool:
        try:
            self._matched(profile, stage)
        except ProfileMisfit:
            return False
        return True

    def _other_stage(self, profile: RankProfile, stage: int) -> str:
        others = [other for other in range(self._schedule.stages) if other != stage and self._fits(profile, other)]
        return f" (it would fit stage {others[0]}, not stage {stage}: another order of ranks?)" if others else ""

    def result(self, folder: Path) -> ExtractedRatios:
        """The ratios of everything taken."""
        stages = tuple(sorted(self._steps))
        absent = [stage for stage in range(self._schedule.stages) if stage not in self._steps]
        if absent and not self._problems:
            self._notes.append(f"{folder}: no profile of stage {', '.join(map(str, absent))}")
        figures = RatioFigures(ratios=None)
        transfer_ms = None
        if not self._problems:
            transfer_ms, lost = transfer_time(self._schedule, self._config.strategy, self._transfers)
            measured, straggled = pool_windows(self._windows)
            self._notes += lost + straggled
            figures = ratios_of(self._plan, self._schedule, measured, transfer_ms)
        if len(self._problems) == 0 and figures.ratios is None and not figures.problems:
            raise InputError("gives no time of a layer", file=folder)
        return ExtractedRatios(
            self._config,
            figures.ratios,
            figures.spread,
            figures.samples,
            transfer_ms,
            self._memory,
            sum(self._steps.values()),
            stages,
            (*self._problems, *figures.problems),
            figures.missing,
            (*self._notes, *figures.notes),
        )
