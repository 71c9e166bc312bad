"""Chooses the backend of the dry-runs, and logs it, or the reason why there is none, in one line."""

from __future__ import annotations

from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.dryrun.dataset import ensure_dataset
from taylor.dryrun.interface import DryRunBackend
from taylor.dryrun.launch import Starter
from taylor.dryrun.measure import PROBE_STAGES
from taylor.dryrun.mindspore_backend import MindsporeBackend
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.workflows.statement.options import DryRunOptions

ASCEND = "ascend"
"""Beginning of the names of the devices on which MindSpore runs a script."""

DRYRUNS = Path("dryrun")
"""Folder, below the output folder, of the dry-runs' files, logs and results."""


def open_backend(
    options: DryRunOptions, config: TrainingConfig, output: Path, executor: Executor | None = None
) -> AbstractContextManager[DryRunBackend | None]:
    """Context with the backend of the dry-runs; None in it when memory has to be estimated.

    One line logs what ``auto`` chose.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Where they run; its machines must see the folder of the results. This machine when not given.

    Raises
    ------
    InputError
        When the requested backend cannot run here.
    """
    if options.backend == "estimate":
        return nullcontext(None)
    if executor is not None:
        output = output.absolute()  # another machine has another working folder
    if options.backend == "torch":
        from taylor.dryrun.torch_backend import TorchBackend, require_torch, torch_version  # its data models take time

        require_torch()
        _refuse_beyond_stage_model(config)
        log.info("dry-runs: by torch %s on fake tensors, %d stages at once", torch_version(), options.parallel_num)
        return TorchBackend(
            output / DRYRUNS / "torch",
            parallel=options.parallel_num,
            timeout_s=options.timeout_s,
            retries=options.retries,
            executor=executor,
        )
    starter = Starter.find(
        launcher_of(config),
        options.mindformers,
        options.env_json,
        options.register_path,
        env_named=options.env_named,
    )
    why_not = _why_not(starter, options, config)
    if why_not:
        log.info("dry-runs: none can run here (%s)", why_not)
        return nullcontext(None)
    log.info("dry-runs: by %s with %s", starter.tools.program or f"bash {config.path}", starter.tools.interpreter)
    if options.env_json is not None and options.env_json.is_file():
        log.info("dry-runs: environment of %s", options.env_json)
    return MindsporeBackend(
        starter,
        output / DRYRUNS,
        _dataset_keys(starter, options, config),
        parallel=options.parallel_num,
        timeout_s=options.timeout_s,
        retries=options.retries,
        executor=executor,
    )


def beyond_stage_model(config: TrainingConfig) -> str:
    """What a job has that the stage model of torch knows nothing of, in words; empty where it has nothing such."""
    rules = config.rules
    parts = {
        "DoRA's adapters": rules.adapters is not None and rules.adapters.decomposed,
        "a tiled MLP": rules.mlp_tiles > 0,
        "a vision encoder": config.tower is not None,
    }
    return ", ".join(name for name, present in parts.items() if present)


def _refuse_beyond_stage_model(config: TrainingConfig) -> None:
    """Refuse to measure another training than the job's, as the stage model of torch would.

    Raises
    ------
    InputError
        See `beyond_stage_model`.
    """
    if found := beyond_stage_model(config):
        problem = f"measures a language model by its own operators, and this job has {found}"
        cure = "use --dryrun_backend estimate"
        raise InputError(problem, field="--dryrun_backend", value="torch", cure=cure)


def _dataset_keys(starter: Starter, options: DryRunOptions, config: TrainingConfig) -> dict[str, object]:
    """Entries that make a dry-run read the small data set, which is written where it is missing."""
    if options.small_dataset is None or not starter.launcher.dataset_keys(""):
        return {}
    strategy = config.strategy
    # Probes have as many micro-batches as stages.
    batch = strategy.dp * strategy.mbs * max(strategy.micro_batches, PROBE_STAGES[-1])
    dataset = ensure_dataset(options.small_dataset, config.rules.seq_length, config.model.vocab, starter, batch)
    return {} if dataset is None else starter.launcher.dataset_keys(str(dataset))


def _why_not(starter: Starter, options: DryRunOptions, config: TrainingConfig) -> str:
    """Reason why MindSpore cannot be used; raises where it was requested and there is nothing to start."""
    asked, program = options.backend == "mindspore", starter.launcher.program
    if not starter.launcher.starts_training:
        if asked:
            starter.launcher.dryrun_command(config.path, config.path, starter.tools)
        return f"a {starter.launcher.title} starts no training; --dryrun_backend torch measures its stages"
    if program is None:
        # A file that starts itself runs only on the user's request.
        return "" if asked else _how_to_run(config)
    if starter.tools.program is None:
        place = options.mindformers if options.mindformers is not None else "the flag's default"
        if asked:
            raise InputError(
                f"no {program.file} there",
                field=program.flags,
                value=str(place),
                cure=f"name {program.file} or its folder, or use --dryrun_backend estimate",
            )
        if options.mindformers is None:
            return f"no {program.file} is named: {program.flags}"
        return f"no {program.file} at {place}"
    if not asked and starter.mindspore_version() is None:
        return f"{starter.tools.interpreter} has no mindspore"
    return ""


def _how_to_run(config: TrainingConfig) -> str:
    """Reason why a file that starts itself is not run, with the backend that fits its framework."""
    of_mindspore = launcher_of(config).usual_device_of(config).name.startswith(ASCEND)
    if not of_mindspore and (found := beyond_stage_model(config)):
        return f"{config.path.name} starts itself, and torch's stage model has no {found}"
    fitting = "mindspore runs it" if of_mindspore else "torch measures its stages"
    return f"{config.path.name} starts itself; --dryrun_backend {fitting}"
