"""Searches the strategies of a configuration, writes the candidates, and on request solves and ranks them."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InfeasibleError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.dryrun.fitting.grey_box import CorrectedPeaks
from taylor.dryrun.interface import DryRunBackend
from taylor.nd_search.emit import emit_yaml, pruned_frame, write_candidates_csv, write_pruned_csv
from taylor.nd_search.encoder import peaks_with_encoder
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import SearchResult, estimated_all, search
from taylor.parsers.training_config import TrainingConfig
from taylor.profiling.folders import find_profile_folders
from taylor.register.device import DeviceSpec
from taylor.workflows.ranking.candidates import load_candidates, memory_by_dryruns
from taylor.workflows.ranking.own_plans import runs_on
from taylor.workflows.ranking.profiles import parse_profiles
from taylor.workflows.ranking.rank import Ranking, RankOptions, rank
from taylor.workflows.running.far_solve import sharing
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.searching.learned_peaks import LearnedPeaks
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.searching.search_memory import measured_peaks, replayed_peaks
from taylor.workflows.showing.fit import doubt_of_no
from taylor.workflows.solving.measured_peaks import learned_for_candidates
from taylor.workflows.statement.devices import ChosenDevice, choose_device
from taylor.workflows.statement.dryrun_backend import open_backend
from taylor.workflows.statement.job_facts import JobFacts, degrees_text, log_head, log_misspelled, log_notes
from taylor.workflows.statement.legality import rules_waived, why_illegal
from taylor.workflows.statement.measured_run import MeasuredRun, SeenMemory
from taylor.workflows.statement.module_choices import offered_words
from taylor.workflows.statement.options import AskedModules, DryRunOptions, FileJob
from taylor.workflows.statement.stated_file import read_for
from taylor.workflows.statement.towers import tower_lines


@dataclass(frozen=True)
class StrategySearchOptions:
    """Search space, and paths of the results.

    Parameters
    ----------
    space : SearchOptions
        Dimensions, bounds, rules, batch and ranks to plan for.
    rules_path : Path or None
        Folder of the user's own rules (Python): only one that the user named.
    datasets : mapping
        ``dryrun`` and ``profile``: the data set written into the emitted files, where given.
    profile_data : Path or None
        Folder of profiles, one folder a configuration, whose ratios take precedence over estimates.
    full : bool
        Whether to continue through ratios, solving, ranking and report.
    margin : MemoryMargin
        Memory that every device keeps free.
    modules : AskedModules
        Choices by module for the solves.
    measured : MeasuredRun
        Memory seen in a run of the plan in the file: it corrects every strategy's.
    stage_limits : tuple of (stage, MiB)
        Memory limits of single stages of every strategy that is solved.
    images : str
        Images of a job with an encoder, as of `FileJob`.
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
    margin: MemoryMargin = MemoryMargin()
    modules: AskedModules = AskedModules()
    measured: MeasuredRun = MeasuredRun()
    stage_limits: tuple[tuple[int, float], ...] = ()
    images: str = ""

    def read(self) -> TrainingConfig:
        """Read the configuration.

        Raises
        ------
        InputError
        """
        dryruns = self.dryruns
        return read_for(self.path, self.register_path, dryruns.env_json, self.margin, images=self.images)


@dataclass(frozen=True)
class StrategySearch:
    """Finished search and its files; `ranking` when it ran to the end."""

    config: TrainingConfig
    device: DeviceSpec
    result: SearchResult
    candidates_csv: Path
    pruned_csv: Path
    dryrun_files: tuple[Path, ...]
    profile_files: tuple[Path, ...]
    ranking: Ranking | None = None

    @property
    def files(self) -> dict[str, Path]:
        """Tables and folders of files by role."""
        folder = self.candidates_csv.parent.parent
        return {
            "candidates": self.candidates_csv,
            "pruned": self.pruned_csv,
            "dry-run": folder / "dryrun_yaml",
            "profile": folder / "profile_yaml",
        }


def search_strategies(options: StrategySearchOptions, executor: Executor | None = None) -> StrategySearch:
    """Search the strategies of one configuration and write candidates, reasons and files.

    Dry-runs and solves go to the `executor`, where one is given.

    Raises
    ------
    InputError
        Bad configuration, or rules that leave nothing.
    InfeasibleError
        No strategy fits the device's memory.
    """
    if options.profile_data is not None:
        find_profile_folders(options.profile_data, ())  # refused before anything is searched
    config = options.read()
    chosen = choose_device(config, options.device, options.register_path)
    device = chosen.spec
    offered_words(config, device, options.modules)  # refused before anything is searched
    _log_head(options, JobFacts(config, chosen))
    output = options.ranking.output
    with open_backend(options.dryruns, config, output, sharing(executor, output)) as backend:
        try:
            return _search(options, config, chosen, backend, executor)
        except InfeasibleError as error:
            if doubt := doubt_of_no(config.unmodelled):
                raise InfeasibleError(f"{error}{doubt}") from error
            raise


def _search(
    options: StrategySearchOptions,
    config: TrainingConfig,
    chosen: ChosenDevice,
    backend: DryRunBackend | None,
    executor: Executor | None,
) -> StrategySearch:
    device = chosen.spec
    corrected = _measured(options, config, device, backend)
    seen = _seen(options, config, chosen)
    solves = QuickSolves(
        config,
        chosen,
        options.modules,
        options.ranking.how,
        options.ranking.workers,
        estimated_memory=corrected is None,
        register_path=options.register_path,
        env_json=options.dryruns.env_json,
        store=SolveStore(options.ranking.output) if options.full else None,
        allow_illegal=rules_waived(options.space.disabled_rules, config),
        seen=seen,
    )
    if corrected is None:
        log.info("memory: estimated by the analytical model")
    base = peaks_with_encoder(config, device) if corrected is None else corrected
    result = search(
        config,
        device,
        options.space,
        options.rules_path,
        peak_of=base if seen.learned is None else LearnedPeaks(base, seen.learned.correction),
        sources_of=estimated_all if corrected is None else corrected.sources,
        quick_solve=solves,
    )
    for step, count in result.counts.items():
        log.info("strategies %s: %d", step, count)
    siblings = options.output.parent
    # The files first: where the configuration's form can state none of them, nothing remains on disk.
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
        else parse_profiles(
            dryrun_files,
            options.profile_data,
            device,
            options.ranking.output,
            options.register_path,
            options.dryruns.env_json,
        )
    )
    made = options.ranking.made_for_model
    own = [config.path] if not made and runs_on(config, options.space.world_size) else []
    loaded = load_candidates(
        [*dryrun_files, *own],
        device,
        profiled=profiled,
        gbs=options.space.gbs,
        ranks=options.space.world_size,
        memory_of=memory_of,
        register_path=options.register_path,
        env_json=options.dryruns.env_json,
        margin=options.margin,
        modules=options.modules,
        allow_illegal=rules_waived(options.space.disabled_rules, config),
        seen=seen,
        images=options.images,
    )
    candidates, compared = loaded[: len(dryrun_files)], loaded[len(dryrun_files) :]
    own_file = compared[0] if compared else False
    ranking = rank(candidates, options.ranking, executor, pruned=pruned_frame(result), own=own_file)
    return replace(done, ranking=ranking)


def _seen(options: StrategySearchOptions, config: TrainingConfig, chosen: ChosenDevice) -> SeenMemory:
    """Measured memory of the plan in the file, and limits of stages."""
    job = FileJob(options.path, device=options.device, margin=options.margin, measured=options.measured)
    seen = SeenMemory(learned_for_candidates(job, config, chosen, options.ranking.output), options.stage_limits)
    seen.refuse((), chosen.spec)
    return seen


def _log_head(options: StrategySearchOptions, facts: JobFacts) -> None:
    """Log the facts read and the search space, once for all strategies."""
    config, space = facts.config, options.space
    ranks = config.strategy.world_size if space.world_size is None else space.world_size
    batch = config.batch_on(ranks) if space.gbs is None else space.gbs
    searched = (
        f"searching {','.join(space.search)} on {ranks:,} ranks (the file: {degrees_text(config.strategy)} on "
        f"{config.strategy.world_size:,}); batch {batch:,} (the file: {config.strategy.global_batch:,}), "
        f"{facts.tokens_text()}"
    )
    log_misspelled([config])
    lines = [f"{config.path}: {facts.model_line(options.register_path)}", searched, facts.device_line()]
    ratios = ["time ratios: estimated by the analytical model"] if options.full and options.profile_data is None else []
    log_head([*lines, *ratios, *tower_lines(config, facts.device.spec)])
    if (reason := why_illegal(config, facts.device.spec)) is not None:
        log.warning("%s: the strategy in the file cannot start: %s", config.path.name, reason)
    log_notes(config)


def _measured(
    options: StrategySearchOptions, config: TrainingConfig, device: DeviceSpec, backend: DryRunBackend | None
) -> CorrectedPeaks | None:
    """Peaks of the strategies from dry-runs, earlier or new ones; None where there are none."""
    if options.dryrun_data is not None:
        folder = options.dryrun_data
        return replayed_peaks(config, device, options.space, options.rules_path, folder, options.output)
    if backend is not None:
        return measured_peaks(config, device, options.space, options.rules_path, backend, options.output)
    return None
