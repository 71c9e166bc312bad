"""Small runs of a user's training file: written, started one after another, read, and their results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import no_such_file, read_text, write_atomic
from taylor.base.kept import read_kept, write_kept
from taylor.blackbox.blocks import LawfulOperator, RunOperators, lawful_operators
from taylor.blackbox.foretold import ShowingRun, foretell, showing_run
from taylor.blackbox.law_summary import LawSummary, law_summary, laws_as_data
from taylor.blackbox.memory_laws import RISK
from taylor.blackbox.operator_base import OperatorBase, OperatorOrigin
from taylor.blackbox.operator_speed import Coverage, OperatorSpeeds
from taylor.blackbox.small_runs import (
    LEAST_TOKENS_CP,
    MODULES,
    MOST_RUNS,
    SEARCHABLE,
    SmallRun,
    candidate_runs,
    plan_small_runs,
    start_runs,
)
from taylor.dryrun.logs import last_lines
from taylor.dryrun.processes import ProgramRun, run_program
from taylor.parsers.launcher import Launcher, Tools
from taylor.parsers.profiles.ascend import KERNELS
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.registry import recognising
from taylor.parsers.small_run import JobSizes, Machines, ProfiledRun, ProfiledSteps, Switch
from taylor.register.registry import Registry
from taylor.workflows.measuring.operators import fill_base
from taylor.workflows.tuning.trace_memory import with_memory
from taylor.workflows.tuning.tune_nodes import Nodes
from taylor.workflows.tuning.tune_record import LOG, TRACES, profile_of
from taylor.workflows.tuning.tune_search import Searched, SearchOptions, ShownRun, search_plans

PROFILE, LAWS = "profile", "laws.json"
LEAST_ALIGNED = 2
"""Runs whose laws are fitted."""
ANSWER_S = 60.0
"""Seconds after the last small run within which the other nodes look for runs to verify."""
CARDS_CP = 16
"""Cards from which CP's runs show links in a node and between nodes. MindSpeed's manual asks for as many to search
(v2.1.0_core_r0.8.0 docs/features/auto_tuning.md:57, 028de58c docs/zh/features/auto_settings.md:73)."""
ENOUGH_COVERED = 0.7
"""Fraction of the job's time that a base must cover; below, a further small run is proposed."""


@dataclass(frozen=True)
class TuneOptions:
    """Job, machines and settings of a tuning.

    Parameters
    ----------
    nodes, per_node : int or None
        Machines of the small runs; those that the file starts where they are None.
    tokens : int or None
        Tokens of a sample in small runs, where not as `plan_small_runs` chooses.
    timeout_s : float
        Longest time of one run.
    dry : bool
        Whether to only write the runs.
    retry : bool
        Whether to start failed runs again.
    base : Path or None
        Operator base that the runs fill, and in which the job's operators are looked up; a new one in the work folder
        where it is None.
    origin : OperatorOrigin
        Hardware and software that the runs are measured on.
    ranks, batch : int or None
        Of the job that is searched; the file's where they are None.
    job_nodes : int or None
        Nodes of that job, each of as many cards as those of the small runs, where its ranks are not given.
    limit : float or None
        Memory of a device in bytes; nothing is searched where it is None.
    verify : bool
        Whether to start a small run for each of the best plans.
    risk : float
        Largest probability that a stage of a plan takes more memory than predicted.
    switches : collection of str
        As in `SearchOptions`.
    full_size : bool
        Whether to start each of the best plans itself for a few steps, on all the cards that the job has.
    """

    script: Path
    work_dir: Path
    _: KW_ONLY
    nodes: int | None = None
    per_node: int | None = None
    master_addr: str | None = None
    master_port: int | None = None
    node_rank: int | None = None
    searched: Collection[str] = SEARCHABLE
    tokens: int | None = None
    timeout_s: float = 1800.0
    dry: bool = False
    retry: bool = False
    base: Path | None = None
    origin: OperatorOrigin = OperatorOrigin("this cluster")
    ranks: int | None = None
    job_nodes: int | None = None
    batch: int | None = None
    limit: float | None = None
    verify: bool = True
    risk: float = RISK
    switches: Collection[str] = ()
    full_size: bool = False


@dataclass(frozen=True)
class Covered:
    """Coverage of the job at its own degrees by an operator base.

    Parameters
    ----------
    operators, unsure : int
        Numbers of operators predicted by laws, and not determined by them.
    coverage : Coverage
        Of the operators that compute.
    further : ShowingRun or None
        Proposed where too little of the time is covered.
    """

    operators: int
    unsure: int
    coverage: Coverage
    further: ShowingRun | None


@dataclass(frozen=True)
class Written:
    """File and outcome of a small run.

    Parameters
    ----------
    ended : str or None
        None where it has not run; empty where it ended well; else the error.
    """

    run: SmallRun
    file: Path
    seconds: float = 0.0
    ended: str | None = None

    @property
    def folder(self) -> Path:
        """Folder of the run's file, log and profile."""
        return self.file.parent


@dataclass(frozen=True)
class Tuned:
    """The runs, and their results where enough have run.

    Parameters
    ----------
    ranks : int
        Of the job that is planned.
    operators : tuple of LawfulOperator
        Those of the runs, with their laws.
    not_searched : str
        Reason why no plan was searched; empty where one was, or too few runs have ended.
    """

    sizes: JobSizes
    machines: Machines
    ranks: int
    runs: tuple[Written, ...]
    left_out: tuple[str, ...]
    operators: tuple[LawfulOperator, ...] = ()
    law_summary: LawSummary | None = None
    laws: Path | None = None
    covered: Covered | None = None
    searched: Searched | None = None
    not_searched: str = ""


def tune(options: TuneOptions) -> Tuned:
    """Write small runs, start those that have not run, and fit the laws of their measurements.

    When started again, it continues: a run that has ended is not started twice while its file stays the same.

    Raises
    ------
    InputError
        When the file cannot be cut down, or a profile is damaged.
    WriteError
        When a file cannot be written.
    """
    launcher = launcher_for(options.script)
    sizes = launcher.job_sizes(options.script)
    for sentence in sizes.misspelled:
        log.warning("%s: %s", options.script.name, sentence)
    _refuse_unknown(options, launcher.switches(options.script))
    if not options.dry:
        _refuse_start(launcher, options.script)
    machines = _machines(options, sizes)
    if not options.dry:
        launcher.run_command(options.script, options.script, Tools(sys.executable), machines)
    ranks = _job_ranks(options, machines, sizes)
    if options.full_size and ranks != machines.ranks:
        cure = f"say --world_size {machines.ranks}, or leave --full_size out"
        raise InputError("has as many ranks as there are cards available", field="--full_size", value=ranks, cure=cure)
    _refuse_unverified(options)
    _note_little(machines, options)
    modules = _modules(launcher, options)
    planned = plan_small_runs(sizes, machines, options.searched, options.tokens, modules)
    runs = [_written(one, launcher, machines, options) for one in planned.runs]
    several = machines.nodes > 1 and options.node_rank is not None and options.verify and not options.dry
    nodes = Nodes(options.work_dir, machines.nodes) if several else None
    if nodes is not None and not options.node_rank:
        nodes.open()
    if options.dry and launcher.traces_by_torch(options.script):
        path = with_memory({}, options.work_dir)["PYTHONPATH"]
        log.info("start the runs with PYTHONPATH=%s: %s", path, launcher.hook_reason)
    if not options.dry:
        runs = _all_started(planned.runs, launcher, sizes, machines, options)
    tuned = Tuned(sizes, machines, ranks, tuple(runs), planned.left_out)
    if options.node_rank:
        # The first node has the first rank's profile, and alone knows the next runs.
        if nodes is not None:
            nodes.serve(options.node_rank, partial(_begun, launcher, machines, options), options.timeout_s)
        return replace(tuned, not_searched="the first node searches the plans")
    try:
        return _from_runs(tuned, launcher, options, nodes)
    finally:
        if nodes is not None:
            nodes.close()


def _refuse_start(launcher: Launcher, script: Path) -> None:
    """Refuse to start the runs of a file that starts nothing by itself."""
    cure = "say --dry, let your scheduler start the files that it writes, and call it with --dry again"
    if launcher.program is not None:
        raise InputError(f"is started by {launcher.program.file} on every rank", file=script, cure=cure)
    if launcher.no_dryrun is not None:
        raise InputError("is started by another program, which is not called here", file=script, cure=cure)


def _from_runs(tuned: Tuned, launcher: Launcher, options: TuneOptions, nodes: Nodes | None) -> Tuned:
    """Results of the runs that have ended."""
    sizes, machines = tuned.sizes, tuned.machines
    done = [one for one in tuned.runs if one.ended == ""]
    found, file, covered, operators = None, None, None, tuple[LawfulOperator, ...]()
    # The runs that distinguish a dense layer from the embedding, or show a module, have no other use.
    single = [
        one
        for one in done
        if one.run.again is None and one.run.setting.pp == 1 and one.run.setting.dense <= sizes.least_dense
    ]
    shown = [one for one in single if _has_profile(one.folder)]
    if len(shown) < LEAST_ALIGNED <= len(done):
        log.warning("%s: the runs left no %s and no PyTorch traces, from which laws are read", launcher.title, KERNELS)
    if len(shown) >= LEAST_ALIGNED:
        operators = _laws(shown)
        file = write_atomic(options.work_dir / LAWS, json.dumps(laws_as_data(operators), indent=1) + "\n")
        found = _law_summary(operators, tuned.runs, sizes, machines)
        covered = _covered(operators, done, sizes, machines, options)
    tuned = replace(tuned, operators=operators, law_summary=found, laws=file, covered=covered)
    return tuned if found is None else _with_plans(tuned, done, launcher, options, nodes)


def _note_little(machines: Machines, options: TuneOptions) -> None:
    """Log where runs are smaller than CP needs."""
    if "cp" not in options.searched:
        return
    if machines.ranks < CARDS_CP:
        log.warning("%d cards are few where CP is searched: its runs on %d show more", machines.ranks, CARDS_CP)
    if options.tokens is not None and options.tokens < LEAST_TOKENS_CP:
        log.warning(
            "--tokens %d is short where CP is searched: kernels of less than %d tokens show other speeds",
            options.tokens,
            LEAST_TOKENS_CP,
        )


def _refuse_unverified(options: TuneOptions) -> None:
    """Refuse options that only verifying runs can serve, where there are none."""
    asked = {"--switches": options.switches, "--full_size": options.full_size}
    without = "--dry" if options.dry else "--no_verify"
    for flag, value in asked.items():
        if value and (options.dry or not options.verify):
            raise InputError(f"needs runs of the plans found, and {without} starts none", field=flag,
                             cure=f"leave one of them out: {flag} or {without}")  # fmt: skip


def _refuse_unknown(options: TuneOptions, there: Sequence[Switch]) -> None:
    unknown = sorted(set(options.switches) - {one.name for one in there})
    if unknown:
        names = ", ".join(one.name for one in there)
        cure = f"this file has {names}" if names else "this file has none"
        raise InputError("names none that the file has", field="--switches", value=", ".join(unknown), cure=cure)


def _modules(launcher: Launcher, options: TuneOptions) -> tuple[str, ...]:
    """Modules whose recompute is searched, where it is asked for."""
    if MODULES not in options.searched:
        return ()
    if modules := launcher.recompute_modules(options.script):
        return modules
    degrees = [one for one in options.searched if one != MODULES] or SEARCHABLE
    cure = "search degrees alone: " + ",".join(degrees)
    reason = f"cannot have {MODULES}: this file states no recompute by module"
    raise InputError(reason, field="--search", value=MODULES, cure=cure)


def _begun(launcher: Launcher, machines: Machines, options: TuneOptions, run: SmallRun) -> Written:
    """Run, started unless it has ended already."""
    return _started(_written(run, launcher, machines, options), launcher, machines, options)


def _with_plans(
    tuned: Tuned, done: Sequence[Written], launcher: Launcher, options: TuneOptions, nodes: Nodes | None
) -> Tuned:
    """Tuning with the best plans of the whole job, or with the reason why there are none."""
    batch = options.batch or tuned.sizes.batch
    if not launcher.knows_parameters:
        reason = f"parameters of a {launcher.title} are not known by name, whose memory a plan is searched with"
        return replace(tuned, not_searched=reason)
    if options.limit is None:
        return replace(tuned, not_searched="say --memory_gib, or a registered --device, to have plans searched")
    if batch is None:
        return replace(tuned, not_searched="the file does not say its batch: say --gbs")

    def verify(run: SmallRun) -> Path | None:
        if nodes is not None:
            nodes.order(run)
        one = _begun(launcher, tuned.machines, options, run)
        return one.folder if one.ended == "" and _has_profile(one.folder) else None

    def whole(run: SmallRun) -> Path | None:
        if nodes is not None:
            nodes.order(run)
        one = _begun(launcher, tuned.machines, options, run)
        return one.folder / LOG if one.ended == "" else None

    verifies = options.verify and not options.dry
    if verifies and nodes is not None and not nodes.answer(ANSWER_S):
        log.warning("no plan is verified: the other nodes do not look into %s for what to start", options.work_dir)
        verifies = False
    wanted = SearchOptions(
        options.script, options.work_dir, tuned.ranks, batch, options.limit, options.searched, _base_file(options),
        options.origin, verify if verifies else None, options.risk, options.switches,
        whole if verifies and options.full_size else None,
    )  # fmt: skip
    shown = [
        ShownRun(one.run.name, one.run.setting, one.folder, one.run.again) for one in done if _has_profile(one.folder)
    ]
    try:
        found = search_plans(shown, launcher, tuned.sizes, tuned.machines, wanted)
    except InputError as error:
        return replace(tuned, not_searched=str(error))
    return replace(tuned, searched=found)


def _base_file(options: TuneOptions) -> Path:
    return options.base or options.work_dir / "operators.sqlite"


def launcher_for(path: Path) -> Launcher:
    """Launcher of this training file.

    Raises
    ------
    InputError
        When the file is missing, or no launcher's.
    """
    if not path.is_file():
        raise no_such_file(path)
    launchers = recognising(path)
    if not launchers:
        cure = "name the script that starts the training"
        raise InputError("is no training file that is known", file=path, cure=cure)
    return launchers[0]


def memory_of(device: str) -> float | None:
    """Bytes that a job may take on a registered device; None where it is not registered."""
    try:
        return float(Registry.load().device(device).usable_memory_mib * (1 << 20))
    except InputError:
        return None


def _machines(options: TuneOptions, sizes: JobSizes) -> Machines:
    nodes = options.nodes or sizes.nodes
    per_node = options.per_node or sizes.per_node
    if nodes is None or per_node is None:
        cure = "say --nnodes and --nproc-per-node"
        raise InputError("does not say on how many cards it starts", file=options.script, cure=cure)
    return Machines(nodes, per_node, options.master_addr, options.master_port, options.node_rank)


def _job_ranks(options: TuneOptions, machines: Machines, sizes: JobSizes) -> int:
    """Ranks of the job that is planned.

    MindSpeed's manual gives both: its ranks are searched, its nodes are those of the small runs there, and are read by
    nothing else (MindSpeed 028de58c docs/zh/features/auto_settings.md:72-75,
    mindspeed/auto_settings/config/system_config.py:71-72, mindspeed/auto_settings/module/searcher.py:108).
    """
    of_nodes = (options.job_nodes or 0) * machines.per_node
    if options.ranks and of_nodes and options.ranks != of_nodes:
        log.warning("%d ranks are planned as said, not the %d of %d nodes", options.ranks, of_nodes, options.job_nodes)
    return options.ranks or of_nodes or sizes.job_ranks


def _written(run: SmallRun, launcher: Launcher, machines: Machines, options: TuneOptions) -> Written:
    """Write a run's file, unless it exists already, and find how it ended where it has run."""
    folder = options.work_dir.resolve() / run.name
    file = folder / _file_name(options)
    script, setting, whole = options.script, run.setting, run.whole
    if whole is None:
        profile = ProfiledSteps(folder / PROFILE, run.steps)
        text = launcher.small_run(script, ProfiledRun(setting, machines, profile, run.switched, run.again))
    else:
        text = launcher.whole_run(script, setting, whole, machines, run.steps)
    if not file.is_file() or read_text(file) != text:
        write_atomic(file, text)
    kept = read_kept(_ended_file(file, options))
    if isinstance(kept, dict) and kept.get("file") == _digest(text):
        return Written(run, file, float(kept["seconds"]), str(kept["failure"]))
    if options.dry and _has_profile(folder):
        return Written(run, file, ended="")  # Started by a scheduler.
    return Written(run, file)


def _all_started(
    planned: Sequence[SmallRun], launcher: Launcher, sizes: JobSizes, machines: Machines, options: TuneOptions
) -> list[Written]:
    """Start all runs, and others in place of those that failed.

    Several nodes start what is planned alone, for none knows what failed on another.
    """
    begin = partial(_begun, launcher, machines, options)
    if options.node_rank is not None:
        return [begin(run) for run in planned]
    return start_runs(planned, begin, lambda one: one.ended, sizes, machines.ranks)


def _file_name(options: TuneOptions) -> str:
    """File of a run; nodes that share a disk have one each, for it states which node it starts."""
    script = options.script
    return f"{script.stem}_{options.node_rank}{script.suffix}" if options.node_rank else script.name


def _has_profile(folder: Path) -> bool:
    return profile_of(folder) is not None


def _ended_file(file: Path, options: TuneOptions) -> Path:
    """Record of a run's end; nodes that share a disk have one each."""
    return file.parent / f"ended_{options.node_rank or 0}.json"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _started(one: Written, launcher: Launcher, machines: Machines, options: TuneOptions) -> Written:
    """Start a run that has not ended yet, in a process group of its own, and record how it ended."""
    if one.ended == "" or (one.ended is not None and not options.retry):
        return one
    log.info("run %s: %s", one.run.name, one.run.why)
    if not options.node_rank:
        # The output of an earlier start that was killed is no whole profile.
        for left in (PROFILE, TRACES):
            shutil.rmtree(one.folder / left, ignore_errors=True)
    command = launcher.run_command(one.file, options.script.resolve(), Tools(sys.executable), machines)
    own_log = one.folder / (f"run_{options.node_rank}.log" if options.node_rank else LOG)
    where = launcher.working_folder(options.script)
    environment = dict(os.environ)
    if one.run.whole is None and launcher.traces_by_torch(options.script):
        environment = with_memory(environment, options.work_dir)
    outcome = run_program(ProgramRun(command, environment, one.folder, own_log, options.timeout_s, where))
    failure = outcome.failure
    if not failure and one.run.whole is None and not options.node_rank and not _has_profile(one.folder):
        # A script that ends in `| tee train.log` ends well whatever its training does.
        failure = "ended without a profile"
    if failure:
        log.warning("run %s %s: %s", one.run.name, failure, " | ".join(last_lines(own_log)))
    data = {"file": _digest(read_text(one.file)), "seconds": outcome.seconds, "failure": failure}
    write_kept(_ended_file(one.file, options), data)
    return Written(one.run, one.file, outcome.seconds, failure)


def _laws(runs: Sequence[Written]) -> tuple[LawfulOperator, ...]:
    return lawful_operators([RunOperators(one.run.setting, _one_step(one)) for one in runs])


def _one_step(one: Written) -> tuple[Operator, ...]:
    """Operators of the last profiled step of a run's first rank."""
    source = profile_of(one.folder)
    assert source is not None
    table = source.operators()
    last = max((sample.step for sample in table.samples), default=-1)
    # Collectives have no shapes; their laws come from the sizes that they send (`blackbox.group_laws`).
    computing = (sample for sample in table.samples if sample.operator.is_compute)
    return tuple(sample.operator for sample in computing if sample.step == last)


def _law_summary(
    operators: Sequence[LawfulOperator], runs: Sequence[Written], sizes: JobSizes, machines: Machines
) -> LawSummary:
    """The laws, with as many further runs as remain beside those of these that did not fail."""
    candidates = candidate_runs(runs[0].run.setting, sizes, machines.ranks)
    started = sum(not one.ended and one.run.again is None for one in runs)
    return law_summary(operators, candidates, max(0, MOST_RUNS - started))


def _covered(
    operators: Sequence[LawfulOperator],
    done: Sequence[Written],
    sizes: JobSizes,
    machines: Machines,
    options: TuneOptions,
) -> Covered | None:
    """Fill the base from the runs, and look the job's operators up in it; None where no base is named."""
    if options.base is None:
        return None
    base = OperatorBase(options.base)
    fill_base(base, [one.folder for one in done if _has_profile(one.folder)], options.origin)
    foretold = foretell(operators, sizes.own)
    computing = [one for one in foretold.operators if one.is_compute]
    coverage = OperatorSpeeds(base.times(options.origin)).coverage(computing)
    further = None
    if coverage.by_time < ENOUGH_COVERED:
        further = showing_run(operators, coverage.unknown, sizes.own, sizes, machines.ranks)
    return Covered(len(foretold.operators), foretold.unsure, coverage, further)
