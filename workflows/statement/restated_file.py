"""A configuration for other ranks or another batch than its file states: a copy with the new values, to be planned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.space import with_ruled_splits
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.job_facts import degrees_text
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import read_for

FOLDER = "jobs"
"""Folder of the copies, below the folder of the results."""


def on_asked(job: FileJob, world_size: int | None, gbs: int | None, output: Path) -> FileJob:
    """Job on the requested ranks and with the requested batch.

    A file that leaves its ranks to its launch stays as it is; one that states others, or another batch, is copied.

    Raises
    ------
    InputError
        As `restate` and `TrainingConfig.on_ranks`.
    """
    config = read_for(job.path, job.register_path, job.dryruns.env_json, job.margin)
    if world_size is None or config.open_ranks is None:
        return replace(job, path=restate(job, world_size, gbs, output))
    if gbs is None:
        config.on_ranks(world_size)
        return replace(job, world_size=world_size)
    return replace(job, world_size=world_size, path=restate(job, world_size, gbs, output))


def restate(job: FileJob, world_size: int | None, gbs: int | None, output: Path) -> Path:
    """Write a copy of a job's file whose data-parallel degree and micro-batches fit other ranks or another batch.

    On other ranks the batch is the file's, or scales with them, as its framework has it (`TrainingConfig.batch_on`).
    The other degrees, and the plan in the file, stay. The file itself is not changed.

    Returns
    -------
    Path
        The copy.

    Raises
    ------
    InputError
        When the ranks cannot be divided so, or the batch is no multiple of the samples that run at once.
    """
    config = read_for(job.path, job.register_path, job.dryruns.env_json, job.margin)
    if world_size is not None and config.open_ranks is not None:
        return _written(job, config, config.on_ranks(world_size, gbs).strategy, output)
    own = config.strategy
    ranks = world_size or own.world_size
    samples = gbs or config.batch_on(ranks)
    replica = own.tp * own.pp * own.cp
    if ranks % replica:
        raise InputError(
            f"is no multiple of the file's TP x PP x CP = {replica}",
            file=job.path,
            field="--world_size",
            value=ranks,
            cure=f"name a multiple of {replica}, or search other degrees with parallel_tool.py",
        )
    dp = ranks // replica
    if samples % (dp * own.mbs):
        raise InputError(
            f"is no multiple of DP x micro-batch size = {dp} x {own.mbs}",
            file=job.path,
            field="--gbs" if gbs is not None else "--world_size",
            value=samples if gbs is not None else ranks,
            cure=f"name a batch that is a multiple of {dp * own.mbs} with --gbs",
        )
    device = choose_device(config, job.device, job.register_path).spec
    strategy = own.replace(dp=dp, micro_batches=samples // (dp * own.mbs))
    if dp != own.dp:
        options = SearchOptions(world_size=ranks, gbs=samples, fix={"sp": int(own.sp)})
        strategy = with_ruled_splits(strategy, SearchContext.settle(config, device, options), options)
    return _written(job, config, strategy, output)


def _written(job: FileJob, config: TrainingConfig, strategy: Strategy, output: Path) -> Path:
    target = output / FOLDER / config.path.stem / config.path.name
    written = emit_variant(config, strategy, target, plan=config.plan)
    log.info(
        "%s: planned as %s for %s on %d ranks, batch %d", job.path, written, degrees_text(strategy),
        strategy.world_size, strategy.global_batch,
    )  # fmt: skip
    return written
