"""Option records of the jobs: what is planned and what is written; `SolveOptions` controls the solve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.profile import TimeRatios
from taylor.pipeline.schedule import AUTO, SEARCHED_NAMES
from taylor.workflows.statement.measured_run import MeasuredRun

LISTED, GROUPS, ANY = "listed", "groups", "any"
STAGE_ORDERS = (LISTED, GROUPS, ANY)
"""Orders of stages on several kinds of devices: as listed; each row of stages as a whole, in any order; any order."""

NESTED = "nested"
"""Place of an encoder of images: the first stage, or where the file has it."""


@dataclass(frozen=True)
class RatioChoice:
    """Time ratios that the user gave; the others are estimated for the job, or the older tool's fixed ones.

    Parameters
    ----------
    dense_forward, backward, head, recompute, select : float or None
        As in `TimeRatios`; `recompute` and `select` are the ratios of full and of selective recompute.
    fixed : bool
        Whether missing ratios are the older tool's: 0.33, 2, 1.5, 1 and 0.33 (the defaults of `TimeRatios`).
    """

    dense_forward: float | None = None
    backward: float | None = None
    head: float | None = None
    recompute: float | None = None
    select: float | None = None
    fixed: bool = False


@dataclass(frozen=True)
class DryRunOptions:
    """Settings of the dry-runs, where they can run.

    Parameters
    ----------
    backend : str
        ``auto`` (MindSpore where it can run, else the estimate), ``mindspore``, ``estimate``, ``torch``.
    mindformers : Path or None
        ``run_mindformer.py`` or its folder.
    env_json : Path or None
        Environment of the runs.
    env_named : bool
        Whether the user named `env_json`; the default, a file in the working folder, sets no program.
    parallel_num : int
        Runs at once.
    small_dataset : Path or None
        Data set that the runs read; written where it is missing.
    register_path : Path or None
        Folder of model registrations that the runs load.
    timeout_s : float
        Seconds one run may take.
    retries : int
        Further attempts after a failure that may pass.
    """

    backend: str = "auto"
    mindformers: Path | None = None
    env_json: Path | None = None
    env_named: bool = True
    parallel_num: int = 2
    small_dataset: Path | None = None
    register_path: Path | None = None
    timeout_s: float = 3600.0
    retries: int = 1


@dataclass(frozen=True)
class AskedModules:
    """Choices by module that are allowed: recompute of a layer's modules, offload of modules' inputs."""

    recompute: bool = False
    offload: bool = False


@dataclass(frozen=True)
class FileJob:
    """One configuration file and everything that defines its pipeline problem.

    Parameters
    ----------
    path : Path
        The configuration: MindFormers YAML, Megatron or MindSpeed script, torchtitan TOML.
    ratios : RatioChoice or TimeRatios
        Times of the parts of the model, relative to the body layer's forward: some of them, or all.
    memory_file : Path or None
        Memory profile to use instead of dry-runs.
    dryrun : bool
        Whether memory is measured by dry-runs, where they can run.
    check : bool
        Whether the final plan is dry-run, where dry-runs can run.
    dryruns : DryRunOptions
    device : str or None
        Name of a registered device; the usual one of the launcher's jobs when None.
    register_path : Path or None
        Folder of further model and device registrations.
    search_select : bool or None
        Whether selective recompute may be chosen beside full recompute; None: where the plan in the file uses it.
    modules : AskedModules
    lend : str
        Stages that may keep activations on others: ``mirror``, or pairs ``STAGE:LENDER``; empty for none.
    tensors : bool
        Whether every saved tensor of a layer may be kept, made again or moved to the host.
    images : str
        Images a sample and patches an image, ``1.5x1024``, of a job with an encoder; empty: as its reader assumes.
    encoder : str
        Place of an encoder, one of `own_ranks.PLACES`; beyond ``nested`` it is planned there too.
    offload_optimizer : bool
        Whether the optimizer may be kept on the host, of all stages or of none.
    vpp : int, `AUTO` or None
        Virtual stages; None keeps the file's.
    schedule : str or None
        A schedule's name or `AUTO`; None keeps the file's.
    low_memory : bool or None
        Whether the interleaved schedule is of the low-memory kind; None keeps the file's.
    dryrun_data : Path or None
        Logs of earlier dry-runs of the baseline, as the source of the memory.
    margin : MemoryMargin
        Memory that the plan leaves free on every device.
    length : TrainingLength
        Length of the training, for its days and hours; what it leaves out is as the file states it.
    stage_devices : tuple of (str, int)
        Registered devices and the number of consecutive stages on each, where not all lie on one; empty: the file's,
        else all lie on one.
    made_for_model : bool
        Whether the file was made for a model: the plan in it is nobody's, so that nothing is compared with it.
    stage_order : str
        One of `STAGE_ORDERS`: the orders of those stages that are tried.
    allow_illegal : tuple of str
        Legality rules that the job may break.
    world_size : int or None
        Ranks of the job, where the file leaves them to its launch.
    measured : MeasuredRun
        Memory seen in a run of the plan in the file.
    stage_limits : tuple of (stage, MiB)
        Memory limits of single stages, instead of that of their devices.
    """

    path: Path
    ratios: RatioChoice | TimeRatios = RatioChoice()
    memory_file: Path | None = None
    dryrun: bool = True
    check: bool = True
    dryruns: DryRunOptions = field(default_factory=DryRunOptions)
    device: str | None = None
    register_path: Path | None = None
    search_select: bool | None = None
    modules: AskedModules = AskedModules()
    lend: str = ""
    tensors: bool = False
    images: str = ""
    encoder: str = NESTED
    offload_optimizer: bool = False
    vpp: int | str | None = None
    schedule: str | None = None
    low_memory: bool | None = None
    dryrun_data: Path | None = None
    margin: MemoryMargin = MemoryMargin()
    length: TrainingLength = UNSTATED
    made_for_model: bool = False
    stage_devices: tuple[tuple[str, int], ...] = ()
    stage_order: str = LISTED
    allow_illegal: tuple[str, ...] = ()
    world_size: int | None = None
    measured: MeasuredRun = MeasuredRun()
    stage_limits: tuple[tuple[int, float], ...] = ()

    @property
    def given_vpp(self) -> int | None:
        """Requested virtual stages; None where they come from the file or the tool chooses them."""
        return self.vpp if isinstance(self.vpp, int) else None

    @property
    def given_schedule(self) -> str | None:
        """Requested schedule; None where it comes from the file or the tool chooses it."""
        return None if self.schedule == AUTO else self.schedule

    @property
    def has_choices(self) -> bool:
        """Return whether the tool chooses the virtual stages or the schedule."""
        return AUTO in (self.vpp, self.schedule)

    @property
    def is_searched(self) -> bool:
        """Return whether the order of tasks is chosen for the plan."""
        return self.schedule in SEARCHED_NAMES


@dataclass(frozen=True)
class Export:
    """A form of `parsers.export.export_forms`, and the file to write; None prints it."""

    form: str
    path: Path | None = None


@dataclass(frozen=True)
class Origin:
    """Command of a result, and what it did before the solve.

    Parameters
    ----------
    command : str
        Command line; empty where there is none.
    software : tuple of str
        Features of the software that were assumed for a job made for a model.
    runner_up : (str, float) or None
        Name and step, ms, of the next best strategy, where several were solved.
    """

    command: str = ""
    software: tuple[str, ...] = ()
    runner_up: tuple[str, float] | None = None


NO_ORIGIN = Origin()
"""Of a result that no command line made."""


@dataclass(frozen=True)
class Outputs:
    """Paths of the results of one configuration file; a None is not written.

    Parameters
    ----------
    folder : Path
        Parent of ``model_mps``, ``sol_output``, ``memory_info`` and ``dryrun``.
    work : Path or None
        Folder of the files that are needed during the command alone, where `folder` cannot be written.
    write : bool
        Whether the plan is written into the configuration.
    write_to : Path or None
        File for the configuration with its plan; None means in place.
    result_json, trace, html, picture : Path or None
        Result as data, step as a Chrome trace, report page, pipeline as a picture.
    exports : sequence of Export
        The plan in the formats of other launchers.
    what_if : bool
        Whether the problem is solved again with other limits and another batch, however long it took.
    next_seconds : float
        Longest time of the solves that show which changes would gain most; 0 for none.
    mps_form : str
        ``compact`` or ``full``, see `pipeline_solver.milp.model_files`.
    origin : Origin
        Command that the results are of.
    """

    folder: Path = Path("pipeline_output")
    write: bool = True
    write_to: Path | None = None
    result_json: Path | None = None
    trace: Path | None = None
    html: Path | None = None
    picture: Path | None = None
    exports: Sequence[Export] = ()
    what_if: bool = False
    next_seconds: float = 0.0
    mps_form: str = "compact"
    origin: Origin = Origin()
    work: Path | None = None

    @property
    def work_folder(self) -> Path:
        """Folder of the files that are needed during the command."""
        return self.folder if self.work is None else self.work

    @property
    def named(self) -> dict[str, Path]:
        """Files that the user named, by the flag that names them."""
        flags = {
            "-o": self.write_to,
            "--result_json": self.result_json,
            "--trace": self.trace,
            "--html": self.html,
            "--png": self.picture,
            **{f"--export {one.form}": one.path for one in self.exports},
        }
        return {flag: path for flag, path in flags.items() if path is not None}
