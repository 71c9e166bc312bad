"""Searches the strategies of a configuration, writes the candidates, and on request solves and ranks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.cost_model.memory import StageBreakdown, best_case_peak_mib, lightest_plan, stage_breakdown
from taylor.cost_model.strategy import Strategy
from taylor.dryrun.estimate import device_limit_mib
from taylor.dryrun.interface import DryRun, DryRunBackend
from taylor.dryrun.stage_memory import StageMemory
from taylor.nd_search.emit import emit_yaml, pruned_frame, write_candidates_csv, write_pruned_csv
from taylor.nd_search.options import PeakEstimate, SearchContext, SearchOptions
from taylor.nd_search.rules import list_rules
from taylor.nd_search.search import SearchResult, explain, search
from taylor.nd_search.space import with_ruled_splits
from taylor.nd_search.user_rules import load_user_rules
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.register.device import DeviceSpec
from taylor.workflows.candidates import load_candidates, memory_by_dryruns
from taylor.workflows.dryrun_result import stage_memories
from taylor.workflows.memory_source import open_backend
from taylor.workflows.options import DryRunOptions
from taylor.workflows.profiles import parse_profiles
from taylor.workflows.rank import Ranking, RankOptions, rank
from taylor.workflows.schedules import require_schedule
from taylor.workflows.search_memory import measured_peaks, replayed_peaks
from taylor.workflows.stated_file import find_device, read_with_notes


@dataclass(frozen=True)
class StrategySearchOptions:
    """What to search and where the results go.

    Parameters
    ----------
    space : SearchOptions
        Dimensions, bounds, rules, batch and ranks to plan for.
    rules_path : Path or None
        Folder of the user's own rules (Python): only one that the user named.
    datasets : mapping
        ``dryrun`` and ``profile``: the data set written into the emitted files, where given.
    profile_data : Path or None
        Folder of profiles, one folder a configuration, whose ratios go before estimates.
    full : bool
        Go on through ratios, solving, ranking and report.
    """

    path: Path
    space: SearchOptions
    dryruns: DryRunOptions = field(default_factory=DryRunOptions)
    dryrun_data: Path | None = None
    device: str | None = None
    register_path: Path | None = None
    rules_path: Path | None = None
    output: Path = Path("output/nd_output")
    datasets: Mapping[str, str] = field(default_factory=dict)
    rank_num: int = 64
    profile_data: Path | None = None
    full: bool = False
    ranking: RankOptions = field(default_factory=RankOptions)


@dataclass(frozen=True)
class StrategySearch:
    """A finished search and its files; `ranking` when it went on to the end."""

    config: TrainingConfig
    device: DeviceSpec
    result: SearchResult
    candidates_csv: Path
    pruned_csv: Path
    dryrun_files: tuple[Path, ...]
    profile_files: tuple[Path, ...]
    ranking: Ranking | None = None


@dataclass(frozen=True)
class Explanation:
    """Why a strategy is or is not a candidate; its memory by stage under the most recompute, MiB.

    `measured` is what a dry-run of the same plan saw, of the stages that ran, where a backend sees it.
    """

    reasons: tuple[str, ...]
    stages: tuple[StageBreakdown, ...]
    limit_mib: float
    measured: tuple[StageMemory, ...] = ()


def search_strategies(options: StrategySearchOptions) -> StrategySearch:
    """Search the strategies of one configuration and write candidates, reasons and files.

    Raises
    ------
    InputError
        Bad configuration, or rules that leave nothing.
    InfeasibleError
        No strategy fits the device's memory.
    """
    config, device = _read(options)
    with open_backend(options.dryruns, config, options.ranking.output) as backend:
        return _search(options, config, device, backend)


def _search(
    options: StrategySearchOptions, config: TrainingConfig, device: DeviceSpec, backend: DryRunBackend | None
) -> StrategySearch:
    peak_of, source = _peaks(options, config, device, backend)
    result = search(config, device, options.space, options.rules_path, peak_of=peak_of, memory_source=source)
    for step, count in result.counts.items():
        log.info("strategies %s: %d", step, count)
    siblings = options.output.parent
    # The files first: where the configuration's form can hold none of them, nothing at all is left behind.
    dryrun_files = emit_yaml(result, config, siblings / "dryrun_yaml", dataset=options.datasets.get("dryrun"))
    candidates_csv = write_candidates_csv(result, options.output / "nd_candidate_config.csv")
    pruned_csv = write_pruned_csv(result, options.output / "pruned.csv")
    profile_files = emit_yaml(
        result,
        config,
        siblings / "profile_yaml",
        dataset=options.datasets.get("profile"),
        profile=True,
        rank_num=options.rank_num,
    )
    done = StrategySearch(config, device, result, candidates_csv, pruned_csv, tuple(dryrun_files), tuple(profile_files))
    if not options.full:
        return done
    memory_of = memory_by_dryruns(backend, options.dryruns, device, options.ranking.output)
    profiled = (
        {}
        if options.profile_data is None
        else parse_profiles(dryrun_files, options.profile_data, device, options.ranking.output)
    )
    candidates = load_candidates(dryrun_files, device, profiled=profiled, memory_of=memory_of)
    return replace(done, ranking=rank(candidates, options.ranking, pruned=pruned_frame(result)))


def _peaks(
    options: StrategySearchOptions, config: TrainingConfig, device: DeviceSpec, backend: DryRunBackend | None
) -> tuple[PeakEstimate, str]:
    """Where the search takes its peaks from, and the name of that source."""
    if options.dryrun_data is not None:
        folder = options.dryrun_data
        return replayed_peaks(config, device, options.space, options.rules_path, folder, options.output), "replay"
    if backend is not None:
        peaks = measured_peaks(config, device, options.space, options.rules_path, backend, options.output)
        if peaks is not None:
            return peaks, backend.name
    log.info("memory: estimated by closed forms")
    return best_case_peak_mib, "estimate"


def describe_rules(options: StrategySearchOptions) -> str:
    """The rules, one line each, the user's own included."""
    return list_rules(load_user_rules(options.rules_path))


def explain_strategy(options: StrategySearchOptions, name: str) -> Explanation:
    """Why one strategy is, or is not, a candidate, and what memory it needs.

    Parameters
    ----------
    name : str
        Degrees as file names carry them, ``DP16_TP4_PP16_EP8``; ``CP``, ``VPP`` and ``MBS`` may follow.

    Raises
    ------
    InputError
        When the name is not of that form.
    """
    config, device = _read(options)
    strategy = _strategy_of(name, config, options.space.gbs)
    strategy = with_ruled_splits(strategy, SearchContext.settle(config, device, options.space), options.space)
    lines = explain(config, device, options.space, strategy, options.rules_path)
    limit = device_limit_mib(config, device)
    if strategy.micro_batches < 1 or strategy.pp * strategy.vpp > sum(config.model.layer_counts().values()):
        return Explanation(tuple(lines), (), limit)
    try:
        require_schedule(config.replace(strategy=strategy))
    except InputError as error:
        return Explanation((*lines, f"no memory by stage: {error.problem}"), (), limit)
    recompute = NONE if options.space.recompute == "none" else FULL
    schedule = config.schedule_for(strategy.vpp)
    plan = lightest_plan(config.model, strategy, config.rules, recompute, schedule)
    stages = stage_breakdown(config.model, strategy, config.rules, plan, schedule)
    measured: tuple[StageMemory, ...] = ()
    if options.dryruns.backend == "torch":
        with open_backend(options.dryruns, config, options.ranking.output) as backend:
            assert backend is not None
            run = DryRun(config.replace(schedule=schedule), strategy, plan)
            measured = stage_memories(backend.measure([run])[0])
    return Explanation(tuple(lines), tuple(stages), limit, measured)


def _read(options: StrategySearchOptions) -> tuple[TrainingConfig, DeviceSpec]:
    return read_with_notes(options.path), find_device(options.device, options.register_path)


def _strategy_of(name: str, config: TrainingConfig, gbs: int | None) -> Strategy:
    degrees: dict[str, int] = {}
    for part in name.upper().split("_"):
        match = re.fullmatch(r"(DP|TP|PP|EP|CP|VPP|MBS)([1-9][0-9]{0,6})", part)
        if match is None:
            raise InputError("is not of the form DP16_TP4_PP16_EP8", field="--explain", value=name)
        degrees[match[1].lower()] = int(match[2])
    own = config.strategy
    strategy = own.replace(**degrees)
    batch = gbs or own.global_batch * config.micro_batch_interleave
    per_step = strategy.dp * strategy.mbs * config.micro_batch_interleave
    return strategy.replace(micro_batches=batch // per_step)
