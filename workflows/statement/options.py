"""The option records of the jobs: what is planned and what is written; `SolveOptions` says how it is solved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taylor.cost_model.margin import MemoryMargin
from taylor.cost_model.profile import TimeRatios
from taylor.pipeline.schedule import AUTO

LISTED, GROUPS, ANY = "listed", "groups", "any"
STAGE_ORDERS = (LISTED, GROUPS, ANY)
"""Orders of stages on several kinds of devices: as listed; each row of stages as a whole, in any order; any order."""


@dataclass(frozen=True)
class RatioChoice:
    """Which time ratios the user gave; the others are estimated for the job, or the older tool's fixed ones.

    Parameters
    ----------
    dense_forward, backward, head, recompute, select : float or None
        As in `TimeRatios`; `recompute` and `select` are the ratios of full and of selective recompute.
    fixed : bool
        Whether what was not given is the older tool's: 0.33, 2, 1.5, 1 and 0.33 (the defaults of `TimeRatios`).
    """

    dense_forward: float | None = None
    backward: float | None = None
    head: float | None = None
    recompute: float | None = None
    select: float | None = None
    fixed: bool = False


@dataclass(frozen=True)
class DryRunOptions:
    """How dry-runs are run, where they can be.

    Parameters
    ----------
    backend : str
        ``auto`` (MindSpore where it can run, else the estimate), ``mindspore``, ``estimate``, ``torch``.
    mindformers : Path or None
        ``run_mindformer.py`` or its folder.
    env_json : Path or None
        Environment of the runs.
    env_named : bool
        Whether the user named `env_json`; the working folder's own file, taken by default, sets no program.
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
    """Whether recompute of some modules of a layer, and the move of some modules' inputs to the host, may be chosen."""

    recompute: bool = False
    offload: bool = False


@dataclass(frozen=True)
class FileJob:
    """One configuration file and everything that settles its pipeline problem.

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
        Whether the plan is dry-run in the end, where dry-runs can run.
    dryruns : DryRunOptions
    device : str or None
        Name of a registered device; the usual one of the launcher's jobs when None.
    register_path : Path or None
        Folder of further model and device registrations.
    search_select : bool or None
        Whether selective recompute may be chosen beside full recompute; None: where the file's own plan holds it.
    modules : AskedModules
    offload_optimizer : bool
        Whether the optimizer may be kept on the host, of all stages or of none.
    vpp : int, `AUTO` or None
        Interleaves; None keeps the file's.
    schedule : str or None
        A schedule's name or `AUTO`; None keeps the file's.
    low_memory : bool or None
        Whether interleaving is of the low-memory kind; None keeps the file's.
    dryrun_data : Path or None
        Logs of earlier dry-runs of the file's own plan, to take the memory from.
    margin : MemoryMargin
        What the plan leaves free on every device.
    train_tokens : float or None
        Tokens of the whole training, for its length in days.
    stage_devices : tuple of (str, int)
        Registered devices and how many stages in a row lie on each, where not all lie on one; empty: the file's own,
        else all lie on one.
    made_for_model : bool
        The file was made for a model: the plan in it is nobody's, so that nothing is compared with it.
    stage_order : str
        One of `STAGE_ORDERS`: which orders of those stages are tried.
    allow_illegal : tuple of str
        Legality rules that the job may break.
    world_size : int or None
        Ranks of the job, where the file leaves them to its launch.
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
    offload_optimizer: bool = False
    vpp: int | str | None = None
    schedule: str | None = None
    low_memory: bool | None = None
    dryrun_data: Path | None = None
    margin: MemoryMargin = MemoryMargin()
    train_tokens: float | None = None
    made_for_model: bool = False
    stage_devices: tuple[tuple[str, int], ...] = ()
    stage_order: str = LISTED
    allow_illegal: tuple[str, ...] = ()
    world_size: int | None = None

    @property
    def given_vpp(self) -> int | None:
        """The interleaves asked for; None where they come from the file or are left to the tool."""
        return self.vpp if isinstance(self.vpp, int) else None

    @property
    def given_schedule(self) -> str | None:
        """The schedule asked for; None where it comes from the file or is left to the tool."""
        return None if self.schedule == AUTO else self.schedule

    @property
    def has_choices(self) -> bool:
        """Whether the tool chooses the interleaves or the schedule."""
        return AUTO in (self.vpp, self.schedule)


@dataclass(frozen=True)
class Export:
    """A form of `parsers.export.export_forms`, and the file to write; None prints it."""

    form: str
    path: Path | None = None


@dataclass(frozen=True)
class Outputs:
    """Where the results of one configuration file go; a None is not written.

    Parameters
    ----------
    folder : Path
        Holds ``model_mps``, ``sol_output``, ``memory_info`` and ``dryrun``.
    write : bool
        Whether the plan is written into the configuration.
    write_to : Path or None
        The file that takes the configuration with its plan; None means in place.
    result_json, trace, html, picture : Path or None
        The result as data, the step as a Chrome trace, the report page, the pipeline as a picture.
    exports : sequence of Export
        The plan in the words of other launchers.
    what_if : bool
        Whether the problem is solved again with other limits and another batch, however long it took.
    mps_form : str
        ``compact`` or ``full``, see `pipeline_solver.milp.model_files`.
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
    mps_form: str = "compact"

    @property
    def named(self) -> dict[str, Path]:
        """The files that the user named, by the flag that names them."""
        flags = {
            "-o": self.write_to,
            "--result_json": self.result_json,
            "--trace": self.trace,
            "--html": self.html,
            "--png": self.picture,
            **{f"--export {one.form}": one.path for one in self.exports},
        }
        return {flag: path for flag, path in flags.items() if path is not None}
