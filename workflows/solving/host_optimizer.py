"""Solves a job with its optimizer on the device and on the host, the same for all stages; keeps the better."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.registry import launcher_of
from taylor.pipeline.schedule import SEARCHED, SEARCHED_V
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.progress import OnProgress
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.evaluate_file import own_solution
from taylor.workflows.solving.variants import Variant, best_variant
from taylor.workflows.statement.module_choices import require_host_link
from taylor.workflows.statement.stated_file import StatedFile

FLAG = "--offload_optimizer"
ON_DEVICE, ON_HOST = "optimizer on the device", "optimizer on the host"


def on_host(file: StatedFile) -> StatedFile:
    """File with its optimizer on the host.

    Raises
    ------
    InputError
        When files of the launcher, or this one, cannot state it, the device has no link to its host in the register,
        or the job chooses an option that cannot be combined with it.
    """
    if file.job.has_choices or file.job.schedule in (SEARCHED, SEARCHED_V) or file.stages is not None:
        cure = "choose one after the other"
        reason = "is not combined with -vpp auto, -schedule auto, a searched order or --stage_devices"
        raise InputError(reason, field=FLAG, value="y", cure=cure)
    require_host_link(file.device, FLAG)
    config = launcher_of(file.config).with_optimizer_on_host(file.config)
    return StatedFile.of(file.job, config, file.chosen)


def solve_on_device_and_host(
    file: StatedFile,
    memory: MemoryProfile,
    how: SolveOptions,
    on_progress: OnProgress | None,
    store: SolveStore | None,
) -> PlannedFile:
    """Better plan of both; see `best_variant`.

    Raises
    ------
    InputError
        As in `on_host`, or when the memory was measured or given with the optimizer where it is.
    """
    moved = on_host(file)
    if memory.source != MemorySource.ESTIMATE:
        raise InputError(
            f"needs estimated memory: the {memory.source} profile has the optimizer where the file puts it",
            field=FLAG,
            value="y",
            cure="leave out -memory and dry-runs (-dryrun n)",
        )
    variants = [Variant(file, memory, ON_DEVICE), Variant(moved, moved.memory_like(memory), ON_HOST)]
    chosen, problem, solution, tried = best_variant(variants, how, on_progress, store)
    own = own_solution(file, memory)
    config = chosen.file.config
    return PlannedFile(config, chosen.file.facts, chosen.memory, problem, solution, tried, own=own)
