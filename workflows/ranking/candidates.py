"""From a folder of candidate files to a ranking: memory and ratios of each, failures named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from taylor.base.console import log, progress
from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.profile import MemoryProfile, RatioSource, TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.interface import DryRunBackend
from taylor.dryrun.launch import read_environment
from taylor.nd_search.emit import baseline_of
from taylor.parsers.read import read_config
from taylor.parsers.registry import is_training_file
from taylor.parsers.tables.candidates import read_candidates
from taylor.parsers.tables.ratios import read_ratios
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.workflows.ranking.candidate_file import CandidateFile, same_model
from taylor.workflows.ranking.comparable import note_sources, on_one_footing
from taylor.workflows.ranking.own_plans import runs_on
from taylor.workflows.ranking.profiles import parse_profiles
from taylor.workflows.ranking.rank import Ranking, RankOptions, rank
from taylor.workflows.running.far_solve import sharing
from taylor.workflows.solving.measured_peaks import learned_for_candidates
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.dryrun_backend import open_backend
from taylor.workflows.statement.job_facts import JobFacts, log_head, log_misspelled, log_unmodelled
from taylor.workflows.statement.legality import require_legal
from taylor.workflows.statement.measured_run import OUT_FLAG, PEAK_FLAG, LearnedMemory, MeasuredRun, SeenMemory
from taylor.workflows.statement.memory_source import obtain_memory
from taylor.workflows.statement.module_choices import assumptions, offered_words, with_host_priced
from taylor.workflows.statement.options import AskedModules, DryRunOptions, FileJob
from taylor.workflows.statement.schedules import log_interleaving
from taylor.workflows.statement.towers import tower_lines, with_images

if TYPE_CHECKING:
    from taylor.workflows.ranking.shard import Shard

LISTED_JOBS = 3
"""Most jobs that a ranking's first lines name; the candidates of one search are of one job."""


def config_files(folder: Path) -> list[Path]:
    """Configuration files of a folder, by name.

    Raises
    ------
    InputError
        When there is no such folder, or no configuration in it.
    """
    if not folder.is_dir():
        raise InputError(
            "no such folder", file=folder, cure="run parallel_tool.py first, or name the folder of candidates"
        )
    files = sorted(path for path in folder.iterdir() if path.is_file() and is_training_file(path))
    if not files:
        raise InputError("has no configuration file", file=folder, cure="run parallel_tool.py first")
    return files


def load_candidates(
    files: Iterable[Path],
    device: str | DeviceSpec | None = None,
    *,
    parser_result: Path | None = None,
    profiled: Mapping[Path, TimeRatios] | None = None,
    gbs: int | None = None,
    ranks: int | None = None,
    memory_of: Callable[[TrainingConfig], MemoryProfile] | None = None,
    register_path: Path | None = None,
    env_json: Path | None = None,
    margin: MemoryMargin = MemoryMargin(),  # noqa: B008 - frozen
    modules: AskedModules = AskedModules(),  # noqa: B008 - frozen
    allow_illegal: Sequence[str] = (),
    seen: SeenMemory = SeenMemory(),  # noqa: B008 - frozen
    images: str = "",
) -> list[CandidateFile]:
    """Read each file and join it with its measured ratios; missing ones are estimated.

    A file that cannot be read keeps its place, with the reason.

    Parameters
    ----------
    device : DeviceSpec or str, optional
        Device to plan for, or its name in the register; the usual one of each file's jobs when omitted.
    parser_result : path, optional
        CSV of measured ratios by (dp, tp, pp, ep).
    profiled : mapping of file to TimeRatios, optional
        Ratios parsed from profiles.
    gbs : int, optional
        Global batch to plan for, samples; a file with another batch gets other micro-batches.
    ranks : int, optional
        World size of files that leave it to their launch.
    memory_of : callable, optional
        Source of a configuration's memory; the analytical model when omitted. An error of it
        fails that candidate alone.
    register_path : path, optional
        The user's folder of registrations, for files that name their model.
    env_json : Path, optional
        Environment of the candidates' runs, as JSON.
    margin : MemoryMargin
        Memory that every device keeps free.
    modules : AskedModules
        Choices by module that are allowed.
    allow_illegal : sequence of str
        Legality rules that a candidate may break; one that breaks another keeps its place, with the rule.
    seen : SeenMemory
        What runs showed of the candidates' memory, and limits of single stages.
    images : str
        Images of jobs with an encoder, as of `FileJob`.

    Raises
    ------
    InputError
        When a file cannot state the requested choices by module, or has no encoder.
    """
    reading = _Reading(
        device=device,
        ratios=profiled or {},
        measured=read_ratios(parser_result) if parser_result is not None else {},
        gbs=gbs,
        ranks=ranks,
        memory_of=memory_of,
        register_path=register_path,
        environment=read_environment(env_json),
        margin=margin,
        modules=modules,
        allow_illegal=allow_illegal,
        seen=seen,
        images=images,
    )
    candidates = []
    paths = list(files)
    with progress("reading", len(paths)) as advance:
        for path in paths:
            advance(1, path.name)
            candidates.append(reading.candidate(path))
    candidates = on_one_footing(candidates)
    configs = [c.config for c in candidates if c.config is not None]
    _note_offload(candidates)
    note_sources(candidates)
    log_unmodelled(
        "candidates",
        list(dict.fromkeys(each.sentence for one in configs for each in one.unmodelled if each.meant is None)),
    )
    interleaved = next((each for each in configs if each.schedule.traits.low_memory_switch), None)
    if interleaved is not None:
        log_interleaving(interleaved.schedule, interleaved, given=False, env_json=env_json)
    if parser_result is not None and reading.measured:
        _note_ratios(candidates, reading.measured, parser_result)
    return candidates


@dataclass(frozen=True)
class _Reading:
    """Figures and settings with which candidates are read; see `load_candidates`."""

    device: str | DeviceSpec | None
    ratios: Mapping[Path, TimeRatios]
    measured: Mapping[tuple[int, int, int, int], TimeRatios]
    gbs: int | None
    ranks: int | None
    memory_of: Callable[[TrainingConfig], MemoryProfile] | None
    register_path: Path | None
    environment: Mapping[str, str]
    margin: MemoryMargin
    modules: AskedModules
    allow_illegal: Sequence[str]
    seen: SeenMemory
    images: str

    def candidate(self, path: Path) -> CandidateFile:
        """Candidate of a file; one that cannot be read, started or stated has the reason.

        Raises
        ------
        InputError
            When the file cannot state the requested choices by module, or has no encoder.
        """
        try:
            config = read_config(path, self.register_path, self.environment).replace(margin=self.margin)
            if self.ranks is not None and config.open_ranks is not None:
                config = config.on_ranks(self.ranks, self.gbs)
        except TaylorError as error:
            log.warning("%s", error)
            return CandidateFile(None, None, None, str(error), unread=path)
        config = with_images(config, self.images)
        own_batch = config.strategy.micro_batches
        if self.gbs is not None:
            try:
                config = config.replace(strategy=_with_batch(config.strategy, self.gbs, path))
            except InputError as error:
                return CandidateFile(config, None, None, str(error))
        chosen = choose_device(config, self.device, self.register_path)
        card = chosen.spec
        try:
            config = require_legal(with_host_priced(config, card), card, self.allow_illegal)
        except InputError as error:
            return CandidateFile(config, None, None, str(error), device=chosen)
        words = offered_words(config, card, self.modules)
        ratios = self.ratios.get(path) or self.measured.get(_degrees(config.strategy))
        if ratios is None:
            ratios = estimate_ratios(config.model, config.strategy, config.rules, card)
        try:
            memory = estimate_memory(config, card) if self.memory_of is None else self.memory_of(config)
        except TaylorError as error:
            return CandidateFile(config, None, ratios, str(error))
        other_batch = config.strategy.micro_batches != own_batch
        return CandidateFile(
            config, memory, ratios, other_batch=other_batch, device=chosen, modules=words, seen=self.seen
        )


def _note_ratios(
    candidates: Sequence[CandidateFile], measured: Mapping[tuple[int, int, int, int], TimeRatios], path: Path
) -> None:
    """Log the candidates without measured ratios, and the ratios without a candidate.

    Raises
    ------
    InputError
        When no candidate has any.
    """
    degrees = [_degrees(one.config.strategy) for one in candidates if one.config is not None]
    estimated = sum(one.ratios is not None and one.ratios.source == RatioSource.ESTIMATE for one in candidates)
    if degrees and estimated == len(degrees):
        raise InputError(
            f"has no row of any of the {len(degrees)} candidates, dp,tp,pp,ep = "
            f"{','.join(map(str, degrees[0]))} and so on",
            file=path,
            value=f"dp,tp,pp,ep = {','.join(map(str, min(measured)))}",
            cure="rank the files that were profiled, or leave --parser_result out: ratios are then estimated",
        )
    if estimated:
        log.warning(
            "%d of %d candidates have no row in %s: their ratios are estimated (column ratio_source)",
            estimated,
            len(degrees),
            path,
        )
    if unused := set(measured) - set(degrees):
        log.warning(
            "%s: %d rows have no configuration file, the first is dp,tp,pp,ep = %s", path, len(unused), min(unused)
        )


def _note_offload(candidates: Iterable[CandidateFile]) -> None:
    """Log the assumptions where something may be moved to the host."""
    moving = (c for c in candidates if c.config is not None and (c.config.moved or (c.modules and c.modules.offload)))
    for sentence in dict.fromkeys(line for c in moving if c.device is not None for line in assumptions(c.device.spec)):
        log.info("%s", sentence)


def _with_batch(strategy: Strategy, gbs: int, path: Path) -> Strategy:
    per_step = strategy.dp * strategy.mbs
    if gbs % per_step:
        raise InputError(
            f"is not divisible by data parallel x micro-batch size = {per_step}",
            file=path,
            field="--gbs",
            value=gbs,
            cure=f"use a multiple of {per_step}",
        )
    return replace(strategy, micro_batches=gbs // per_step)


def rank_folder(
    folder: Path,
    options: RankOptions,
    *,
    device: str | None = None,
    register_path: Path | None = None,
    dryruns: DryRunOptions = DryRunOptions(),  # noqa: B008 - frozen
    parser_result: Path | None = None,
    profile_data: Path | None = None,
    gbs: int | None = None,
    nd_path: Path | None = None,
    margin: MemoryMargin = MemoryMargin(),  # noqa: B008 - frozen
    executor: Executor | None = None,
    shard: Shard | None = None,
    modules: AskedModules = AskedModules(),  # noqa: B008 - frozen
    allow_illegal: Sequence[str] = (),
    measured: MeasuredRun = MeasuredRun(),  # noqa: B008 - frozen
    stage_limits: tuple[tuple[int, float], ...] = (),
    images: str = "",
) -> Ranking:
    """Solve every candidate file of a folder, or of a shard of it, and rank them.

    Ratios come from `parser_result`, else from the profiles in `profile_data`, else from estimates.
    The peak memory that a search predicted (`nd_path`, its candidates' CSV) appears beside the solved one.
    `measured` is of a run of the plan in the file that the candidates were searched from.
    Dry-runs and solves go to the `executor`, where one is given.

    Raises
    ------
    InputError
        When the folder has no configuration, the ratios' CSV or the folder of profiles is bad, or a file cannot state
        the requested choices by module or has no encoder.
    """
    files = config_files(folder)
    if shard is not None:
        files = shard.share(files)
    readable = [with_images(config, images) for config in _readable(files, register_path, margin)]
    for config in readable:
        offered_words(config, choose_device(config, device, register_path).spec, modules)
    _require_one_model(folder, readable)
    _log_jobs(folder, readable, device, register_path, gbs)
    baseline = _baseline(folder, readable, register_path, margin)
    job = FileJob(baseline[0] if baseline else folder, margin=margin, measured=measured)
    learned = _learned(job, baseline, options.output, device, register_path)
    seen = SeenMemory(learned, stage_limits)
    for config in readable[:1]:
        seen.refuse(readable, choose_device(config, device, register_path).spec)
    profiled: dict[Path, TimeRatios] = {}
    if parser_result is None and profile_data is not None:
        profiled = parse_profiles(files, profile_data, device, options.output, register_path, dryruns.env_json)
    elif parser_result is None:
        log.info("time ratios: estimated by the analytical model")
    with ExitStack() as open_backends:
        by_launcher = {
            launcher: memory_by_dryruns(
                open_backends.enter_context(
                    open_backend(dryruns, example, options.output, sharing(executor, options.output))
                ),
                dryruns,
                device,
                options.output,
                register_path,
            )
            for launcher, example in {config.launcher: config for config in reversed(readable)}.items()
        }
        loaded = load_candidates(
            [*files, *baseline],
            device,
            parser_result=parser_result,
            profiled=profiled,
            gbs=gbs,
            memory_of=lambda config: by_launcher[config.launcher](config),
            register_path=register_path,
            env_json=dryruns.env_json,
            margin=margin,
            modules=modules,
            allow_illegal=allow_illegal,
            seen=seen,
            images=images,
        )
    candidates, compared = loaded[: len(files)], loaded[len(files) :]
    peaks = {} if nd_path is None else {(c.dp, c.tp, c.pp, c.ep): c.peak_mib for c in read_candidates(nd_path)}
    known = [
        c if c.config is None else replace(c, nd_peak_mib=peaks.get(_degrees(c.config.strategy))) for c in candidates
    ]
    return rank(known, options, executor, own=compared[0] if compared else True)


def _require_one_model(folder: Path, configs: Sequence[TrainingConfig]) -> None:
    """Refuse a folder of different models.

    Raises
    ------
    InputError
    """
    models: dict[object, list[TrainingConfig]] = {}
    for config in configs:
        models.setdefault(same_model(config), []).append(config)
    if len(models) > 1:
        named = "; ".join(
            f"{alike[0].model.name} ({alike[0].path.name})" for alike in list(models.values())[:LISTED_JOBS]
        )
        more = f" and {len(models) - LISTED_JOBS} more" if len(models) > LISTED_JOBS else ""
        raise InputError(
            f"has configurations of {len(models)} different models, whose step times do not compare: {named}{more}",
            file=folder,
            cure="rank a folder of one model's candidates, such as parallel_tool.py writes for one configuration",
        )


def _baseline(
    folder: Path, configs: Sequence[TrainingConfig], register_path: Path | None, margin: MemoryMargin
) -> list[Path]:
    """Configuration behind the candidates of a search, where its plan compares with theirs; else none."""
    path = baseline_of(folder)
    if path is None or not configs:
        return []
    try:
        config = read_config(path, register_path).replace(margin=margin)
    except TaylorError as error:
        log.warning("the plan in the searched file is not compared: %s", error)
        return []
    return [path] if runs_on(config, configs[0].strategy.world_size) else []


def _learned(
    job: FileJob, baseline: Sequence[Path], output: Path, device: str | None, register_path: Path | None
) -> LearnedMemory | None:
    """Correction of the candidates' memory by runs of the plan in the file that they were searched from.

    Raises
    ------
    InputError
        When runs are named and the candidates come from no file.
    """
    if not baseline:
        if job.measured:
            raise InputError(
                "is of a run of the file that the candidates were searched from, which is not known", file=job.path,
                field=f"{PEAK_FLAG}, {OUT_FLAG}", cure="name it in taylor search, or solve the file that ran",
            )  # fmt: skip
        return None
    config = read_config(job.path, register_path).replace(margin=job.margin)
    return learned_for_candidates(job, config, choose_device(config, device, register_path), output)


def _degrees(strategy: Strategy) -> tuple[int, int, int, int]:
    return strategy.dp, strategy.tp, strategy.pp, strategy.ep


def _readable(files: Iterable[Path], register_path: Path | None, margin: MemoryMargin) -> list[TrainingConfig]:
    """Configurations that can be read; loading the candidates reports why others cannot."""
    configs = []
    for path in files:
        with suppress(TaylorError):
            configs.append(read_config(path, register_path).replace(margin=margin))
    return configs


def _log_jobs(
    folder: Path, configs: Iterable[TrainingConfig], device: str | None, register_path: Path | None, gbs: int | None
) -> None:
    """Log the facts read and the device planned for, once for all candidates that agree in them."""
    jobs: dict[tuple[object, ...], list[JobFacts]] = {}
    configs = list(configs)
    log_misspelled(configs)
    for config in configs:
        facts = JobFacts(config, choose_device(config, device, register_path))
        batch = f"batch {gbs or config.strategy.global_batch:,}, {facts.tokens_text()}"
        jobs.setdefault((config.launcher, config.model, batch, facts.device_line()), []).append(facts)
    for (_, _, *others), alike in list(jobs.items())[:LISTED_JOBS]:
        many = f"{len(alike)} candidate{'s' if len(alike) > 1 else ''}"
        encoder = tower_lines(alike[0].config, alike[0].device.spec)
        log_head([f"{folder}: {many}: {alike[0].model_line(register_path)}", *map(str, others), *encoder])
    if len(jobs) > LISTED_JOBS:
        log.info("%s: candidates of %d further jobs", folder, len(jobs) - LISTED_JOBS)


def memory_by_dryruns(
    backend: DryRunBackend | None,
    dryruns: DryRunOptions,
    device: str | DeviceSpec | None,
    output: Path,
    register_path: Path | None = None,
) -> Callable[[TrainingConfig], MemoryProfile]:
    """Source of a configuration's memory for `load_candidates`: dry-runs where they can run, or estimates."""

    def card(config: TrainingConfig) -> DeviceSpec:
        return choose_device(config, device, register_path).spec

    if backend is None:
        log.info("memory: estimated by the analytical model")
        return lambda config: estimate_memory(config, card(config))
    may_estimate = dryruns.backend == "auto"
    return lambda config: obtain_memory(
        config, card(config), memory_file=None, dryrun=True, backend=backend, output=output, may_estimate=may_estimate
    )
