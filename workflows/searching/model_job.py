"""Job made of a model alone: stated in a framework's own file, its strategy searched, the best one written."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from taylor.base.budget import TimeBudget
from taylor.base.console import log
from taylor.base.errors import InfeasibleError, InputError
from taylor.base.files import printable, write_atomic
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.strategy import Strategy
from taylor.nd_search.emit import emit_yaml
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.huggingface.registered import naming
from taylor.parsers.new_file import NewFile, NewJob, difference
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import config_of
from taylor.parsers.registry import launcher_of
from taylor.parsers.software import assumed_software, require_features
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.columns.stage_tuples import FEW_KINDS
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.solution import NO_SOLUTION
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec
from taylor.register.overrides import overridden
from taylor.register.registry import Registry
from taylor.report.compress import strategy_text
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.rank import Ranking, RankOptions, rank
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.job_facts import degrees_text
from taylor.workflows.statement.stated_file import read_for

USUAL_BATCH = 1024
"""Samples a step by default."""

SOLVED_STRATEGIES = 6
"""Strategies, the fastest by their first plan, that are solved and compared."""

RANKED_STRATEGIES = 20
"""Strategies, the fastest by their first plan, that a ranking of a model solves."""

SECONDS_EACH = 6.0
"""Longest time of one of them."""

SECONDS_CHOSEN = 30.0
"""Longest time of the proof for the chosen one by default."""

QUICK_SHARE = 0.25
"""Fraction of a time limit that the quick solves before the choice may take."""

LONG_SEQUENCE = 32_768
"""Tokens of a sample from which on context parallelism is searched too."""


NEUTRAL = "json"
"""Framework of a file that describes a model and its training, and starts none."""

FRAMEWORKS = (*NEW_FILES, NEUTRAL)
"""Values of ``--framework``."""

ASCEND = "ascend"
"""Beginnings of the names of Ascend's devices."""


@dataclass(frozen=True)
class ModelJob:
    """Model and resources of a training.

    Parameters
    ----------
    path : Path
        Configuration of the model.
    world_size : int
        Ranks to plan for.
    seq_length, gbs : int or None
        Tokens a sample and samples a step; the file's, else usual ones, which are logged.
    fix : mapping of dimension to int
        Given degrees.
    device : str or None
        Name of a registered device.
    margin : MemoryMargin
        Memory that every device keeps free.
    framework : str or None
        One of `FRAMEWORKS`: the framework of the job and of the written file. None: the usual one of the device
        that can describe the model.
    allow_illegal : tuple of str
        Legality rules that do not apply.
    software : mapping of str to str
        Features of the software and their values (`parsers.software.features_of`).
    images : str
        Images of a model with an encoder, as of `FileJob`.
    """

    path: Path
    world_size: int
    seq_length: int | None = None
    gbs: int | None = None
    fix: Mapping[str, int] = field(default_factory=dict)
    device: str | None = None
    register_path: Path | None = None
    max_expert_parallel: int = 64
    margin: MemoryMargin = MemoryMargin()
    framework: str | None = None
    allow_illegal: tuple[str, ...] = ()
    software: Mapping[str, str] = field(default_factory=dict)
    images: str = ""

    @property
    def name(self) -> str:
        """Name of its files: that of the model's file, or of its folder where that is a ``config.json``."""
        path = self.path.resolve()
        return printable(path.parent.name if path.stem == "config" and path.parent.name else path.stem)


def model_file(
    model: str, output: Path, register_path: Path | None = None, override: Mapping[str, int] | None = None
) -> Path:
    """Configuration of a named model.

    Parameters
    ----------
    model : str
        A ``config.json`` or a folder with one, or the name of a registered model.
    output : Path
        The folder ``jobs`` in it takes the file that names a registered model.
    override : mapping of str to int, optional
        Sizes of a registered model stated otherwise (`register.overrides.FIELDS`).

    Raises
    ------
    InputError
        When no such model is registered (the message lists similar names), or it has no such size.
    """
    path = config_of(Path(model))
    if path.suffix == ".json" or path.is_file():
        if override:
            raise InputError(
                "is for registered models", field="--override", value=next(iter(override)),
                cure=f"change the size in {path}",
            )  # fmt: skip
        return path
    found = Registry.load(register_path).model(model)
    name = "-".join([found.name, *(f"{size}-{value}" for size, value in (override or {}).items())])
    overridden(found, override or {})
    return write_atomic(
        output / "jobs" / re.sub(r"[^\w.+-]", "-", name) / "config.json", naming(found.name, override)
    )  # fmt: skip


@dataclass(frozen=True)
class ChosenStrategy:
    """Strategy chosen for a model's job.

    Parameters
    ----------
    path : Path
        A file of the job's framework with the strategy and its best plan so far, from which a further solve starts;
        without a plan the layers are evenly split and fully recomputed.
    software : tuple of str
        Features of the software that are assumed.
    runner_up : (str, float) or None
        Name and step, ms, of the next best strategy that was solved.
    """

    path: Path
    software: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None


def choose_strategy(
    job: ModelJob, how: SolveOptions, workers: int, output: Path, executor: Executor | None = None
) -> Path:
    """File of the chosen strategy of a job; see `chosen_strategy`."""
    return chosen_strategy(job, how, workers, output, executor).path


def chosen_strategy(
    job: ModelJob, how: SolveOptions, workers: int, output: Path, executor: Executor | None = None
) -> ChosenStrategy:
    """Search the strategies of a job, solve the fastest, and write the best of them as a configuration.

    Parameters
    ----------
    how : SolveOptions
        Settings of a strategy's solve; half of its time limit is for all of them, and each takes `SECONDS_EACH` at
        most.
    workers : int
        Strategies solved at once.
    output : Path
        The folder ``jobs`` in it takes the files.
    executor : concurrent.futures.Executor, optional
        Executor of the solves, in place of this machine.

    Raises
    ------
    InputError
        When the model cannot be read, or no strategy is legal.
    InfeasibleError
        When none fits the device's memory.
    """
    budget = TimeBudget.of(how.time_limit)
    folder = output / "jobs" / job.name
    files = write_strategies(job, output, SOLVED_STRATEGIES, how, workers)
    config = read_for(files[0], job.register_path, margin=job.margin)
    device = choose_device(config, job.device, job.register_path).spec
    # Half of the remaining time goes into the choice, whose solves queue for the processes.
    left = budget.part(2 * -(-len(files) // workers))
    limit = SECONDS_EACH if left is None else min(SECONDS_EACH, left)
    each = replace(how, time_limit=limit, workers=1)
    candidates = load_candidates(
        files, device, register_path=job.register_path, margin=job.margin, allow_illegal=job.allow_illegal,
        images=job.images,
    )  # fmt: skip
    options = RankOptions(each, workers, report=False, output=folder, prove=1)
    ranking = rank(candidates, options, executor, own=False)
    best = ranking.table.iloc[0]
    if not best["cost"] > 0:
        waiting = ranking.table[ranking.table["status"] == str(NO_SOLUTION)]
        if waiting.empty:
            raise InfeasibleError(f"{job.path}: none of the strategies solved has a plan: {best['reason']}")
        best = min((row for _, row in waiting.iterrows()), key=lambda row: _place(files, row["file"]))
        log.warning("no plan was found within %g s a strategy: the quickest by the estimate is taken", limit)
    for _, row in ranking.table.iterrows():
        if row["cost"] > 0:
            degrees = f"DP{row['dp']} TP{row['tp']} PP{row['pp']} EP{row['ep']} CP{row['cp']} VPP{row['vpp']}"
            log.info("  %s, micro-batch %s: %.0f ms a step", degrees, row["mbs"], row["cost"])
    chosen = read_for(Path(best["file"]), job.register_path)
    log.info("chosen: %s", degrees_text(chosen.strategy))
    plan = chosen.plan if best["cost"] > 0 else None
    text = launcher_of(config).with_strategy(config, chosen.strategy, plan, {})
    path = write_atomic(folder / f"{job.name}{config.path.suffix}", text)
    return ChosenStrategy(path, _software_assumed(job, config), _runner_up(ranking))


def _runner_up(ranking: Ranking) -> tuple[str, float] | None:
    """Second of the strategies that have a plan."""
    records: Any = ranking.table.to_dict("records")
    solved = [row for row in records if row["cost"] > 0]
    return (strategy_text(solved[1]), float(solved[1]["cost"])) if len(solved) > 1 else None


def _software_assumed(job: ModelJob, config: TrainingConfig) -> tuple[str, ...]:
    """Features that are assumed of the framework's software; none where its file was not made for the model."""
    new = NEW_FILES.get(config.rules.framework.name)
    if new is None:
        return ()
    text = assumed_software(new, job.software, experts=config.model.n_moe > 0)
    return tuple(text.split(", ")) if text else ()


def write_strategies(
    job: ModelJob, output: Path, most: int, how: SolveOptions = DEFAULT_OPTIONS, workers: int | None = None
) -> list[Path]:
    """Search the strategies of a job and write the fastest by a quick solve, each as a configuration.

    Parameters
    ----------
    output : Path
        The folder ``jobs`` in it takes them.
    most : int
        Most files written.
    how, workers
        Settings of the quick solves, and their number at once; the number of cores when omitted.

    Returns
    -------
    list of Path
        The fastest first; all in one folder, which has no other.

    Raises
    ------
    InputError
        When the model cannot be read, or no strategy is legal.
    InfeasibleError
        When none fits the device's memory, or none has a plan.
    """
    config = read_for(state_model(job, output), job.register_path, margin=job.margin, images=job.images)
    chosen = choose_device(config, job.device, job.register_path)
    workers = workers or os.cpu_count() or 1
    until = math.inf if how.time_limit is None else time.monotonic() + QUICK_SHARE * how.time_limit
    solves = QuickSolves(
        config,
        chosen,
        how=how,
        workers=workers,
        register_path=job.register_path,
        allow_illegal=job.allow_illegal,
        until=until,
    )
    space = replace(search_options(job, config), profile_num=most)
    found = search(config, chosen.spec, space, quick_solve=solves)
    which = [int(index) for index in found.chosen]
    log.info(
        "%s: %d legal strategies on %d ranks of %s, %d of them may fit; the quickest %d by their first plan are solved",
        job.name, found.counts["legal"], job.world_size, chosen.spec.name, len(found.candidates), len(which),
    )  # fmt: skip
    return emit_yaml(found, config, output / "jobs" / job.name / "strategies", which=which)


def _place(files: list[Path], name: str) -> int:
    """Place of a file among those that were solved, the fastest first."""
    return [printable(str(file)) for file in files].index(name)


def state_model(job: ModelJob, output: Path) -> Path:
    """Write a file of the job's framework that trains the model with a sequence and a batch, and no degrees yet.

    Parameters
    ----------
    output : Path
        The folder ``jobs`` in it takes it.

    Raises
    ------
    InputError
        When the model cannot be read, or the named framework cannot describe it.
    """
    config = read_for(job.path, job.register_path)
    device = choose_device(config, job.device, job.register_path).spec
    rules = config.rules if job.seq_length is None else config.rules.replace(seq_length=job.seq_length)
    stated = job.gbs or (config.strategy.global_batch if config.strategy.global_batch > 1 else None)
    samples = stated or usual_batch(job.world_size)
    if stated is None:
        log.info("no batch named: %d samples a step are assumed; --gbs names another", samples)
    if job.seq_length is None:
        log.info("no sequence named: %d tokens a sample; --seq names another", rules.seq_length)
    folder = output / "jobs" / job.name
    new = NewJob(config.model.replace(name=job.name), rules.seq_length, samples, job.world_size, per_node(device))
    asked, experts = job.software, config.model.n_moe > 0
    for one in _frameworks(job, config, device):
        require_features(one, asked, experts=experts)
        new = replace(new, software=one.settings(asked))
        target = folder / f"{job.name}.model{one.suffix}"
        problem = _write_new(one, new, target, job.register_path)
        if problem is None:
            by = "named" if job.framework else "assumed; --framework names another"
            log.info("framework: %s (%s, %s)", one.name, one.title, by)
            if rest := assumed_software(one, asked, experts=experts):
                log.info("software assumed: %s; --with names other features", rest)
            return target
        if job.framework:
            cure = f"use one of {', '.join(name for name in FRAMEWORKS if name != one.name)}"
            raise InputError(f"cannot describe {job.name}: {problem}", field="--framework", value=one.name, cure=cure)
        log.warning("%s's files cannot describe %s: %s", one.title, job.name, problem)
    if asked:
        cure = "name --framework megatron, or leave --with out"
        raise InputError("cannot be stated in JSON", field="--with", value=next(iter(asked)), cure=cure)
    log.info("framework: %s; the plan is written as JSON, which starts no training", rules.framework.name)
    strategy = Strategy(1, 1, 1, micro_batches=samples)
    text = launcher_of(config).with_strategy(config.replace(rules=rules, plan=None), strategy, None, {})
    return write_atomic(folder / f"{job.name}.model{config.path.suffix}", text)


def usual_batch(ranks: int) -> int:
    """Samples a step of a job that names none: about `USUAL_BATCH`, and a multiple of the ranks where they are fewer.

    Any data-parallel degree then divides it.
    """
    return max(1, round(USUAL_BATCH / ranks)) * ranks if ranks <= USUAL_BATCH else USUAL_BATCH


def per_node(device: DeviceSpec) -> int:
    """Devices of a host: those of its nearest links, eight where these join a whole rack."""
    cards = next((tier.cards for tier in device.links if tier.name == "node" and tier.cards), None)
    return cards or min(8, device.domain.cards or 8)


def _frameworks(job: ModelJob, config: TrainingConfig, device: DeviceSpec) -> list[NewFile]:
    """Frameworks to try, the named one alone; none for `NEUTRAL`.

    Raises
    ------
    InputError
        When there is none of that name.
    """
    asked = job.framework
    if asked == NEUTRAL:
        return []
    if asked is not None:
        if asked not in NEW_FILES:
            cure = f"use one of {', '.join(FRAMEWORKS)}"
            raise InputError("is no framework", field="--framework", value=asked, cure=cure)
        return [NEW_FILES[asked]]
    usual = [one for one in NEW_FILES.values() if one.on_ascend is device.name.startswith(ASCEND)]
    own = NEW_FILES.get(config.rules.framework.name)
    if own is not None and own not in (next(iter(NEW_FILES.values())), *usual):
        return [own]  # the model's own file names it
    return usual


def _write_new(one: NewFile, new: NewJob, target: Path, register_path: Path | None) -> str | None:
    """Write a framework's file for a model; returns the reason where the framework cannot state it."""
    try:
        write_atomic(target, one.text(new))
        written = read_for(target, register_path)
    except InputError as error:
        return error.problem
    return difference(_trained(one, new.model), written.model)


def _trained(one: NewFile, model: ModelSpec) -> ModelSpec:
    """Part of a model that a framework trains."""
    if not one.trains_mtp and model.mtp_layers:
        log.warning("%s trains %s without its MTP module", one.title, model.name)
        return model.replace(mtp_layers=0)
    return model


def search_options(job: ModelJob, config: TrainingConfig) -> SearchOptions:
    """Space of a job's strategies: small micro-batches, few virtual stages; contexts split where samples are long."""
    searched = ["dp", "tp", "pp", "ep", "mbs"]
    # With more runs of unlike layers a solve of several virtual stages is long.
    if len(config.model.layer_counts()) <= FEW_KINDS:
        searched.append("vpp")
    fix = dict(job.fix)
    if config.rules.seq_length >= LONG_SEQUENCE:
        searched.append("cp")
    else:  # the file names no degree: its reader may have split contexts to obey the batch
        fix.setdefault("cp", 1)
    return SearchOptions(
        world_size=job.world_size,
        max_expert_parallel=job.max_expert_parallel,
        search=tuple(searched),
        fix=fix,
        bounds={"mbs": (1, 4), "vpp": (1, 2)},
        spread=False,
        disabled_rules=job.allow_illegal,
    )
