"""Taylor for Python: read a configuration, evaluate it, solve it, search and rank strategies, write the results.

The functions write files only on request, and need nothing but the file they are given: the analytical model estimates
what no argument states. `docs/api.md` has examples.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.budget import TimeBudget
from taylor.base.documents import RESULT
from taylor.base.errors import InputError
from taylor.base.files import form_of
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.dryrun.estimate import estimate_memory
from taylor.nd_search.emit import emit_yaml
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search as search_space
from taylor.parsers.named_model import model_as as own_shape
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.software import features_of
from taylor.parsers.stage_comment import rows_of
from taylor.parsers.tables.device_prices import DevicePrice, read_device_prices
from taylor.parsers.tables.generation import GenerationSpeed
from taylor.parsers.tables.memory_profile import read_memory_profile
from taylor.parsers.text.shell_start import ShellStart
from taylor.parsers.text.shell_start import started as shell_started
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.milp.model_files import write_mps, write_sol
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.pipeline_solver.model.solution import PROVEN_GAP
from taylor.pipeline_solver.solving.result import Result
from taylor.pipeline_solver.timing import evaluate as evaluation
from taylor.register.device import DeviceSpec
from taylor.results import Found, Planned
from taylor.schemas.writing import write_document
from taylor.workflows.ranking.candidates import config_files, load_candidates
from taylor.workflows.ranking.own_plans import runs_on
from taylor.workflows.ranking.rank import PROVEN_CANDIDATES, Ranking, RankOptions
from taylor.workflows.ranking.rank import rank as rank_candidates
from taylor.workflows.rl.evaluate import RlChoice, RlResult, evaluated
from taylor.workflows.rl.split import SplitPlan, split_cards
from taylor.workflows.searching.model_job import ModelJob, choose_strategy, model_file
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.searching.size import LEAST, MOST, Size, SizeOptions
from taylor.workflows.searching.size import size as size_training
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.encoder_places import with_places
from taylor.workflows.solving.evaluate_file import evaluate_own, own_solution
from taylor.workflows.solving.measured_peaks import with_measured
from taylor.workflows.solving.solve_file import plan_or_raise, solve_stated
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.legality import refuse_unknown_rules, rules_waived
from taylor.workflows.statement.measured_run import ALLOCATED, MeasuredRun, StageMeasurement
from taylor.workflows.statement.options import LISTED, NESTED, AskedModules, FileJob, RatioChoice
from taylor.workflows.statement.own_ranks import refuse_places, require_place
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.towers import with_images

Configuration = str | Path | TrainingConfig
"""Path of a configuration, or the configuration that `read` returned."""


def read(path: str | Path) -> TrainingConfig:
    """Read a training configuration: MindFormers YAML, Megatron or MindSpeed script, torchtitan TOML.

    Raises
    ------
    InputError
        When the file cannot be read, is of no known kind, or has wrong values.
    """
    return read_config(path)


@contextmanager
def started(
    *, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None, model_as: str | Path | None = None
) -> Iterator[None]:
    """Read the training files of the block as they are started.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of the script.
    env : mapping of str to str, optional
        Variables of its environment; those of this process are not read.
    model_as : str or path, optional
        Whose shape the model has that the file names, as a checkpoint of one's own: a registered model, or a
        config.json or its folder.

    Raises
    ------
    InputError
        When no file that was read names a model for which `model_as` could stand.
    """
    start = ShellStart(tuple(map(str, arguments)) or None, {name: str(value) for name, value in (env or {}).items()})
    with shell_started(start), own_shape(None if model_as is None else str(model_as)):
        yield


def evaluate(
    what: Configuration | PipelineProblem,
    plan: PipelinePlan | None = None,
    *,
    device: str | DeviceSpec | None = None,
    ratios: TimeRatios | None = None,
    memory: str | Path | MemoryProfile | None = None,
    measured_peaks: Mapping[int, float] | None = None,
    out_of_memory: Sequence[int] = (),
    peak_of: str = ALLOCATED,
    earlier: Sequence[StageMeasurement] = (),
    stage_limits: Mapping[int, float] | None = None,
    stage_devices: str | Sequence[tuple[str, int]] = (),
    risk: float | None = None,
    margin: float | str | None = None,
    allow_illegal: Sequence[str] = (),
    images: str = "",
) -> Planned:
    """Evaluate a plan: step time, peak memory by stage, idle time.

    Parameters
    ----------
    what : path, TrainingConfig or PipelineProblem
    plan : PipelinePlan, optional
        The plan; the one in the configuration when omitted. A problem needs one.
    device, ratios, memory, measured_peaks, out_of_memory, peak_of, earlier, stage_limits, stage_devices, risk, margin
    allow_illegal, images
        As in `solve`. The measured run is that of the plan in the configuration, whatever `plan` is.

    Raises
    ------
    InputError
        When the configuration has no plan, or the plan has another shape than the problem.
    """
    if isinstance(what, PipelineProblem):
        if plan is None:
            raise InputError("a problem has no plan of its own", field="plan", cure="give the plan to evaluate")
        return Planned(Result(what, evaluation.evaluate(what, plan), job={"schema": RESULT}))
    config = _with_margin(what, risk, margin)
    stated = {
        "allow_illegal": tuple(allow_illegal),
        "stage_devices": _rows(stage_devices),
        "measured": _run(measured_peaks, out_of_memory, peak_of, earlier),
        "stage_limits": _by_stage(stage_limits),
        "images": images,
    }
    whole = _stated(config, device, ratios, **stated)
    profile = _memory(memory, whole)
    whole = with_measured(whole, profile)
    config = config if plan is None else config.replace(plan=plan)
    file = whole if plan is None else replace(_stated(config, device, ratios, **stated), learned=whole.learned)
    problem = file.problem(profile)
    solution = evaluate_own(config, problem)
    own = solution if plan is None else own_solution(whole, profile)
    return _planned(PlannedFile(config, file.facts, profile, problem, solution, own=own))


def solve(
    what: Configuration | PipelineProblem,
    *,
    device: str | DeviceSpec | None = None,
    ratios: TimeRatios | None = None,
    memory: str | Path | MemoryProfile | None = None,
    vpp: int | str | None = None,
    schedule: str | None = None,
    select: bool | None = None,
    low_mem: bool | None = None,
    recompute_modules: bool = False,
    offload: bool = False,
    lend: str = "",
    tensors: bool = False,
    images: str = "",
    encoder: str = NESTED,
    offload_optimizer: bool = False,
    stage_devices: str | Sequence[tuple[str, int]] = (),
    stage_order: str = LISTED,
    measured_peaks: Mapping[int, float] | None = None,
    out_of_memory: Sequence[int] = (),
    peak_of: str = ALLOCATED,
    earlier: Sequence[StageMeasurement] = (),
    stage_limits: Mapping[int, float] | None = None,
    risk: float | None = None,
    margin: float | str | None = None,
    solver: str = "HIGHS",
    time_limit: float | None = None,
    gap: float = PROVEN_GAP,
    workers: int = 1,
    on_progress: OnProgress | None = None,
    allow_illegal: Sequence[str] = (),
    params: SolverParams = DEFAULT_PARAMS,
) -> Planned:
    """Find the layers and the recompute of every pipeline stage for the fastest step within the memory of every device.

    Parameters
    ----------
    what : path, TrainingConfig or PipelineProblem
        A problem contains everything but `solver`, `time_limit`, `gap`, `workers`, `on_progress` and `params`, the
        only arguments it takes.
    device : str or DeviceSpec, optional
        Device to plan for, or its name in the register; the usual one of the launcher's jobs when omitted.
    ratios : TimeRatios, optional
        Times of the model's parts; estimated for the configuration on the device when omitted. ``TimeRatios()`` are
        the older tool's fixed ones.
    memory : path or MemoryProfile, optional
        Memory of layers and stages, or its JSON file; estimated when omitted.
    vpp : int or "auto", optional
        Virtual stages; the file's when omitted, every number that can run when ``"auto"``.
    schedule : str, optional
        Name of a schedule, or ``"auto"``; the file's when omitted.
    select : bool, optional
        Whether selective recompute may be chosen beside full recompute; by default where the plan in the file uses it.
    low_mem : bool, optional
        Whether the interleaved schedule is of the low-memory kind; as the file says when omitted.
    recompute_modules, offload, offload_optimizer : bool
        Whether recompute by module, saved inputs on the host, and the optimizer on the host may be chosen.
    lend : str
        Stages whose saved activations may lie on another one: ``"mirror"``, or pairs ``"0:7,1:7"``.
    tensors : bool
        Whether every saved tensor of a layer may be kept, made again or moved to the host; needs torch.
    images : str
        Images a sample on average, and where needed patches an image, of a job with a vision encoder: ``"2.5"``,
        ``"1.5x1024"``; clips and seconds of a job with an encoder of sound: ``"2x30s"``; both: ``"1.5x1024+2x30s"``.
    encoder : str
        ``nested``: a vision encoder lies on the first stage, or as the file has it. It is planned on several of the
        first stages, too (``spread``), on ranks of its own (``beside``), in the pipeline's bubbles (``bubbles``), or in
        all places (``best``).
    stage_devices : str or sequence of (name, stages)
        Stages on several kinds of devices: ``"a100-80g:4,h100-80g:4"``, or the same as pairs.
    stage_order : str
        Their orders to try: ``listed``, ``groups`` or ``any``.
    measured_peaks : mapping of stage to MiB, optional
        Peaks that a run of the plan in the configuration had: the memory model is corrected by them.
    out_of_memory : sequence of int
        Stages that ran out of memory in a run of that plan.
    peak_of : str
        Meaning of `measured_peaks`: ``allocated`` (torch's ``max_memory_allocated``) or ``card`` (all that the job
        takes of a device).
    earlier : sequence of StageMeasurement
        `Planned.measurements` of an earlier plan of the same job.
    stage_limits : mapping of stage to MiB, optional
        Memory limits of single stages, instead of that of their device.
    risk : float, optional
        Probability from 0 to 0.5 with which a real peak may exceed its limit; 0 lets the predicted peak reach it. The
        configuration's when omitted: 0.05 of estimated memory, 0 of measured memory.
    margin : float or str, optional
        Memory that every device keeps free: MiB, or per cent of the limit as ``"5%"``.
    solver : str
        ``HIGHS``, ``HIGHS-MILP``, ``CBC``, or any solver that Pyomo finds.
    time_limit : float, optional
        Seconds for the solve; then the best plan so far is returned with its proven bound.
    gap : float
        Relative gap at which the plan counts as proven.
    workers : int
        Processes that divide the work; the result is the same with any number.
    on_progress : callable, optional
        Called with a `Progress` now and then.
    allow_illegal : sequence of str
        Names of legality rules that the configuration may break (`taylor rules` lists them).
    params : SolverParams
        Parameters of the solver's methods; the result's JSON records those that differ from the defaults.

    Raises
    ------
    InputError
        Bad configuration, memory profile or option; or the framework does not start the job as it is stated.
    InfeasibleError
        No plan exists; the message gives the shortage.
    NoSolutionError
        The time limit ended the search before a plan was found.
    """
    how = SolveOptions(solver=solver, time_limit=time_limit, gap=gap, workers=workers, params=params)
    if isinstance(what, PipelineProblem):
        given: dict[str, object] = {"device": device, "ratios": ratios, "memory": memory, "vpp": vpp}
        given |= {"schedule": schedule, "measured_peaks": measured_peaks, "stage_limits": stage_limits}
        given |= {"out_of_memory": out_of_memory or None, "earlier": earlier or None, "risk": risk, "margin": margin}
        given |= {"low_mem": low_mem, "stage_devices": stage_devices or None, "select": select or None}
        given |= {"recompute_modules": recompute_modules or None, "offload": offload or None}
        given |= {"offload_optimizer": offload_optimizer or None, "lend": lend or None, "images": images or None}
        given |= {"tensors": tensors or None, "encoder": None if encoder == NESTED else encoder}
        named = [name for name, value in given.items() if value is not None]
        if named:
            raise InputError("is settled by the problem itself", field=named[0], cure="change the problem")
        return Planned(Result(what, plan_or_raise(what, how, on_progress, "the problem"), job={"schema": RESULT}))
    config, budget = _with_margin(what, risk, margin), TimeBudget.of(time_limit)
    choices: dict[str, Any] = {"search_select": select, "vpp": vpp, "schedule": schedule, "low_memory": low_mem}
    choices |= {"modules": AskedModules(recompute_modules, offload), "offload_optimizer": offload_optimizer}
    choices |= {"lend": lend, "tensors": tensors, "images": images, "encoder": require_place(encoder)}
    choices |= {"stage_devices": _rows(stage_devices), "stage_order": stage_order}
    choices |= {"allow_illegal": tuple(allow_illegal), "stage_limits": _by_stage(stage_limits)}
    run = _run(measured_peaks, out_of_memory, peak_of, earlier)
    file = _stated(config, device, ratios, measured=run, **choices)
    if not file.job.has_choices:
        file.refuse_early(())
    profile = _memory(memory, file)
    refuse_places(file, profile.source)
    file = with_measured(file, profile)
    return _planned(with_places(file, solve_stated(file, profile, how, on_progress), how, budget))


def search(
    what: Configuration,
    *,
    device: str | DeviceSpec | None = None,
    rules_path: str | Path | None = None,
    allow_illegal: Sequence[str] = (),
    risk: float | None = None,
    margin: float | str | None = None,
    images: str = "",
    **options: Any,
) -> Found:
    """Search the parallel strategies of a configuration: those that obey the rules and fit the memory.

    Parameters
    ----------
    device : str or DeviceSpec, optional
        Device to plan for, or its name in the register; the usual one of the launcher's jobs when omitted.
    rules_path : path, optional
        Folder of one's own rules; its Python files are run.
    allow_illegal : sequence of str
        Names of legality rules that do not apply.
    risk, margin, images
        As in `solve`.
    **options
        Fields of `SearchOptions`: ``world_size``, ``gbs``, ``search``, ``fix``, ``bounds``, ``profile_num``, ….

    Raises
    ------
    InputError
        Bad configuration or option, or rules that leave nothing.
    InfeasibleError
        No strategy fits the memory.
    """
    config = _with_margin(what, risk, margin)
    rules = None if rules_path is None else Path(rules_path)
    refuse_unknown_rules(allow_illegal, config)
    options["disabled_rules"] = (*options.get("disabled_rules", ()), *allow_illegal)
    chosen = choose_device(config, device)
    config = with_images(config, images)
    solves = QuickSolves(config, chosen, allow_illegal=rules_waived(options["disabled_rules"], config))
    found = search_space(config, chosen.spec, SearchOptions(**options), rules, quick_solve=solves)
    return Found(config, found, images)


def rank(
    candidates: Found | str | Path | Iterable[str | Path],
    *,
    device: str | DeviceSpec | None = None,
    ratios: str | Path | None = None,
    gbs: int | None = None,
    solver: str = "HIGHS",
    time_limit: float | None = None,
    gap: float = PROVEN_GAP,
    workers: int | None = None,
    prove: int | None = PROVEN_CANDIDATES,
    output: str | Path = "pipeline_output",
    report: bool | str | Path = False,
    allow_illegal: Sequence[str] = (),
    risk: float | None = None,
    margin: float | str | None = None,
    images: str = "",
) -> Ranking:
    """Solve every candidate and rank them by step time.

    Candidates are files: those that a search chose are written first, below `output`, together with the table and the
    solved configurations. A solve of an earlier call there is not repeated.

    Parameters
    ----------
    candidates : Found, path of a folder, or paths of files
    device : str or DeviceSpec, optional
        Device to plan for; the device of the search where there was one, else the usual one of each file's jobs.
    ratios : path, optional
        CSV of measured ratios by (dp, tp, pp, ep); estimated when omitted.
    gbs : int, optional
        Global batch, samples; that of each file when omitted.
    time_limit : float, optional
        Seconds for each candidate.
    gap : float
        Relative gap at which a plan counts as proven.
    workers : int, optional
        Candidates solved at once, a process each; the number of cores when omitted.
    prove : int, optional
        Number of best candidates that are solved to their proof; the others stop where it is proven that they are not
        among them. None: all are.
    report : bool or path
        Page to write, True beside the table.
    allow_illegal : sequence of str
        Names of legality rules that a candidate may break.
    risk, margin, images
        As in `solve`; those of the search where there was one.

    Raises
    ------
    InputError
        When there is no candidate, or the table of ratios is bad.
    """
    output = Path(output)
    compared: list[Path] = []
    ranks: int | None = None
    free = _margin(MemoryMargin(), risk, margin)
    if isinstance(candidates, Found):
        free = _margin(candidates.config.margin, risk, margin)
        device, images = device or candidates.result.device, candidates.images
        files = _emit(candidates, output / "candidates")
        ranks = candidates.result.candidates.row(0).world_size
        compared = [candidates.config.path] if runs_on(candidates.config, ranks) else []
    elif isinstance(candidates, (str, Path)):
        files = config_files(Path(candidates))
    else:
        files = [Path(file) for file in candidates]
    options = RankOptions(
        how=SolveOptions(solver=solver, time_limit=time_limit, gap=gap),
        workers=workers or os.cpu_count() or 1,
        report=Path(report) if isinstance(report, str) else report,
        output=output,
        prove=prove,
    )
    table = None if ratios is None else Path(ratios)
    known = load_candidates(
        [*files, *compared], device, parser_result=table, gbs=gbs, allow_illegal=allow_illegal, ranks=ranks,
        margin=free, images=images,
    )  # fmt: skip
    own = known[-1] if compared else not isinstance(candidates, Found)
    return rank_candidates(known[: len(files)], options, own=own)


def choose(
    model: str | Path,
    world_size: int,
    *,
    device: str | None = None,
    seq: int | None = None,
    gbs: int | None = None,
    risk: float | None = None,
    margin: float | str | None = None,
    time_limit: float | None = None,
    gap: float = PROVEN_GAP,
    fix: Mapping[str, int] | None = None,
    workers: int | None = None,
    output: str | Path = "pipeline_output",
    framework: str | None = None,
    software: Sequence[str] = (),
    override: Mapping[str, int] | None = None,
    allow_illegal: Sequence[str] = (),
    images: str = "",
    seq_length: int | None = None,
) -> TrainingConfig:
    """Choose the strategy of a model on a number of ranks: search, solve the fastest, take the best of them.

    The solved files, and the returned configuration, are written to the folder ``jobs`` below `output`.

    Parameters
    ----------
    model : str or path
        Name of a registered model, or a Hugging Face ``config.json`` or its folder.
    world_size : int
        Ranks to plan for.
    device : str, optional
        Name of a device in the register; ``h100-80g`` when omitted.
    seq, gbs : int, optional
        Tokens a sample and samples a step; usual ones when omitted.
    risk, margin, time_limit, gap, allow_illegal, images
        As in `solve`; the time limit is for all solves of the choice.
    fix : mapping of dimension to int, optional
        Given degrees.
    workers : int, optional
        Strategies solved at once, a process each; the number of cores when omitted.
    framework : str, optional
        ``megatron``, ``mindspeed``, ``mindformers``, ``torchtitan``, or ``json`` for a file that starts nothing; the
        usual one of the device when omitted.
    software : sequence of str
        Features of the software, as ``--with`` names them: ``("tp-comm-overlap", "fp8=mxfp8")``.
    override : mapping of str to int, optional
        Sizes of a registered model stated otherwise: ``{"num_layers": 14}``.
    seq_length : int, optional
        The older name of `seq`.

    Returns
    -------
    TrainingConfig
        Configuration in the framework's file, which starts a training with the strategy and an even split of the
        layers: `solve` finds a plan for it, and `write` writes that.

    Raises
    ------
    InputError
        When there is no such model, or no strategy is legal.
    InfeasibleError
        When none fits the device's memory.
    """
    folder = Path(output)
    job = ModelJob(
        model_file(str(model), folder, override=override), world_size, seq or seq_length, gbs, fix=dict(fix or {}),
        device=device, framework=framework, software=features_of(software), allow_illegal=tuple(allow_illegal),
        margin=_margin(MemoryMargin(), risk, margin), images=images,
    )  # fmt: skip
    how = SolveOptions(time_limit=time_limit, gap=gap)
    return read_config(choose_strategy(job, how, workers or os.cpu_count() or 1, folder))


def size(
    model: str | Path,
    *,
    device: str | Sequence[str] = (),
    tokens: float | None = None,
    days: float | None = None,
    seq: int | None = None,
    gbs: int | None = None,
    min_devices: int = LEAST,
    max_devices: int = MOST,
    prices: str | Path | Mapping[str, DevicePrice] | None = None,
    fix: Mapping[str, int] | None = None,
    workers: int | None = None,
    time_limit: float | None = None,
    output: str | Path = "pipeline_output",
    framework: str | None = None,
    software: Sequence[str] = (),
    override: Mapping[str, int] | None = None,
    risk: float | None = None,
    margin: float | str | None = None,
    allow_illegal: Sequence[str] = (),
    images: str = "",
    seq_length: int | None = None,
) -> Size:
    """Size a training: the least devices that fit, those that meet a deadline, the curve, energy and price.

    Parameters
    ----------
    model, seq, gbs, fix, framework, software, override, risk, margin, allow_illegal, images, seq_length
        As in `choose`; the batch is the same on every number of devices.
    device : str or sequence of str
        Names of devices in the register; the usual one of the framework when omitted.
    tokens : float, optional
        Tokens of the whole training; without them there are no days, energy and price.
    days : float, optional
        Deadline of the training.
    min_devices, max_devices : int
        Ends of the curve, which doubles from the first.
    prices : path or mapping of str to DevicePrice, optional
        CSV of ``device,watts,price_per_hour``, or its rows by device.
    time_limit : float, optional
        Seconds after which no further solve begins.
    output : path
        The folder ``jobs`` in it takes the model's files.

    Raises
    ------
    InputError
        When there is no such model or device, or the table of prices is bad.
    InfeasibleError
        When no number of devices of the curve fits any device.
    """
    named = (device,) if isinstance(device, str) else tuple(device)
    path = model_file(str(model), Path(output), override=override)
    jobs = [
        ModelJob(
            path, max_devices, seq or seq_length, gbs, fix=dict(fix or {}), device=each, framework=framework,
            software=features_of(software), margin=_margin(MemoryMargin(), risk, margin),
            allow_illegal=tuple(allow_illegal), images=images,
        )
        for each in named or (None,)
    ]  # fmt: skip
    table = prices if isinstance(prices, Mapping) else {} if prices is None else read_device_prices(Path(prices))
    workers = workers or os.cpu_count() or 1
    options = SizeOptions(tokens, days, min_devices, max_devices, table, workers, time_limit)
    return size_training(jobs, options, Path(output))


def evaluate_rl(
    what: Configuration,
    speed: GenerationSpeed,
    *,
    mean_prompt: int | None = None,
    mean_answer: int | None = None,
    device: str | DeviceSpec | None = None,
) -> RlResult:
    """Evaluate one iteration of a reinforcement-learning job: memory and time of every phase.

    Parameters
    ----------
    what : path or TrainingConfig
        Script of verl or slime, YAML of NeMo RL.
    speed : GenerationSpeed
        Measured speed of one engine: ``GenerationSpeed.of(6000, alone=80)``, or `read_generation` of a CSV.
    mean_prompt, mean_answer : int, optional
        Mean tokens; the longest when omitted.
    device : str or DeviceSpec, optional
        As in `evaluate`.

    Raises
    ------
    InputError
        When the configuration is of no such job, or states a wrong value.
    """
    config = what if isinstance(what, TrainingConfig) else read_config(what)
    file = _stated(config, device, None).as_it_recomputes()
    iteration = launcher_of(config).iteration(config)
    return evaluated(file.running, iteration, file.chosen, RlChoice(speed, mean_prompt, mean_answer))


def split_rl(found: RlResult, cards: int | None = None, time_limit: float = 120.0) -> SplitPlan:
    """Find how many cards train and how many generate, one iteration ahead, so that an iteration takes least.

    Parameters
    ----------
    found : RlResult
        The job, as `evaluate_rl` returned it.
    cards : int, optional
        Cards to split; those of the job when omitted.
    time_limit : float
        Seconds; the bound says how far a better split may be away.

    Raises
    ------
    InputError
        When the cards cannot be split.
    InfeasibleError
        When no split has a training that fits.
    """
    return split_cards(found.config, found.iteration, found.chosen, found.choice, cards or found.cards, time_limit)


def write(what: Planned | Found, path: str | Path | None = None) -> list[Path]:
    """Write a plan, or the candidates of a search, and return the files written.

    Parameters
    ----------
    what : Planned or Found
    path : path, optional
        For a plan, the file's suffix selects the output: the configuration with the plan in it (the suffix of the
        configuration's file), the result (``.json``), a page (``.html``), a picture (``.png``, ``.svg``), the
        model (``.mps``) or the solution (``.sol``). When omitted, the plan goes into the configuration's file,
        whose first original is kept as ``NAME.orig``. For a search, a folder: it gets a configuration for each
        chosen strategy.

    Raises
    ------
    InputError
        When the suffix is none of these, the configuration cannot state the plan, or the file cannot be written.
    """
    if isinstance(what, Found):
        if path is None:
            raise InputError("is needed to write what a search found", field="path", cure="name a folder")
        return _emit(what, Path(path))
    if path is None:
        if what.config is None:
            raise InputError("is needed to write the plan of a problem", field="path", cure="name a file")
        return [write_plan(what.config, what.plan)]
    target = Path(path)
    suffix = form_of(target)
    own = () if what.config is None else launcher_of(what.config).suffixes
    if what.config is not None and suffix in own:
        return [write_plan(what.config, what.plan, output=target)]
    if suffix == ".json":
        return [write_document(target, RESULT, what.result.to_dict())]
    if suffix == ".mps":
        write_mps(what.problem, what.solution, target)
        return [target]
    if suffix == ".sol":
        write_sol(what.problem, what.solution, target)
        return [target]
    if suffix in (".html", ".png", ".svg"):
        from taylor.report.outputs import write_views

        title = target.stem if what.config is None else what.config.path.stem
        page, picture = (target, None) if suffix == ".html" else (None, target)
        contents: dict[str, Any] = {}
        if what.planned is not None and page is not None:
            from taylor.workflows.showing.page_facts import memory_parts, page_facts, page_tables

            plan = what.planned
            contents = {"facts": page_facts(plan), "parts": memory_parts(plan), "tables": page_tables(plan)}
        write_views(what.problem, what.solution, title=title, html=page, picture=picture, **contents)
        return [target]
    known = ", ".join((*own, ".json", ".html", ".png", ".svg", ".mps", ".sol"))
    raise InputError("is no kind of file that a plan is written to", file=target, value=suffix, cure=f"use {known}")


def _stated(
    config: TrainingConfig, device: str | DeviceSpec | None, ratios: TimeRatios | None, **choices: Any
) -> StatedFile:
    job = FileJob(config.path, ratios=ratios or RatioChoice(), dryrun=False, check=False, **choices)
    return StatedFile.of(job, config, choose_device(config, device))


def _with_margin(what: Configuration, risk: float | None, margin: float | str | None) -> TrainingConfig:
    """Configuration with the risk and the margin that are named."""
    config = what if isinstance(what, TrainingConfig) else read_config(what)
    return config.replace(margin=_margin(config.margin, risk, margin))


def _margin(own: MemoryMargin, risk: float | None, margin: float | str | None) -> MemoryMargin:
    """Margin with what is named of it.

    Raises
    ------
    InputError
        When the risk or the margin is none.
    """
    try:
        known = own if margin is None else replace(MemoryMargin.parse(str(margin)), risk=own.risk)
    except ValueError:
        cure = "name MiB (2048) or per cent of the limit ('5%')"
        raise InputError("is no margin", field="margin", value=margin, cure=cure) from None
    try:
        return known if risk is None else replace(known, risk=MemoryMargin(risk=risk).risk)
    except (TypeError, ValueError):
        raise InputError("is no risk", field="risk", value=risk, cure="name a share from 0 to 0.5") from None


def _rows(stage_devices: str | Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    """Devices of the stages, a row of stages each.

    Raises
    ------
    InputError
        When the text states none.
    """
    if not isinstance(stage_devices, str):
        return tuple((str(name), int(count)) for name, count in stage_devices)
    try:
        return tuple(rows_of(stage_devices))
    except ValueError as wrong:
        raise InputError(str(wrong), field="stage_devices", value=stage_devices) from None


def _run(
    peaks: Mapping[int, float] | None, out_of_memory: Sequence[int], peak_of: str, earlier: Sequence[StageMeasurement]
) -> MeasuredRun:
    return MeasuredRun(_by_stage(peaks), tuple(out_of_memory), peak_of, tuple(earlier))


def _by_stage(figures: Mapping[int, float] | None) -> tuple[tuple[int, float], ...]:
    return tuple((int(stage), float(mib)) for stage, mib in (figures or {}).items())


def _memory(memory: str | Path | MemoryProfile | None, file: StatedFile) -> MemoryProfile:
    if memory is None:
        return estimate_memory(file.running, file.device)
    return memory if isinstance(memory, MemoryProfile) else read_memory_profile(Path(memory))


def _planned(planned: PlannedFile) -> Planned:
    return Planned(planned.result(), planned.config.replace(schedule=planned.problem.schedule), planned)


def _emit(found: Found, folder: Path) -> list[Path]:
    return list(emit_yaml(found.result, found.config, folder))
