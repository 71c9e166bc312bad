"""Interface of a launcher: everything that its training files can say, behind one class.

A launcher is a folder of this package with one subclass of `Launcher`, and a line in `parsers.registry`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

from taylor.base.errors import InputError
from taylor.base.files import form_of
from taylor.cost_model.choices.module_choices import ModuleWords
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledRun, RunLog, RunSetting, Switch
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline.schedule import Schedule, ScheduleSpec


@dataclass(frozen=True)
class Program:
    """A program of the user's that starts training files.

    Parameters
    ----------
    file : str
        Name of its Python file.
    package : str
        Folder beside it that holds its sources: a change there makes kept dry-runs out of date.
    flags : str
        The command-line flags that say where it lies, for messages.
    """

    file: str
    package: str
    flags: str


@dataclass(frozen=True)
class Tools:
    """Start settings of a dry-run on this machine.

    Parameters
    ----------
    interpreter : str
        Python of the child process.
    program : Path or None
        The launcher's `Program`, where it was found.
    register_path : Path or None
        Folder of registrations that is passed on to the program.
    """

    interpreter: str
    program: Path | None = None
    register_path: Path | None = None


@dataclass(frozen=True)
class UsualDevice:
    """Default device of a family of jobs.

    Parameters
    ----------
    name : str
        The device's name in the register.
    jobs : str
        Whose jobs they are, as messages call them: ``MindSpeed files``.
    why : str
        Text that states the device, as the end of a sentence: ``by its name, pretrain_A3.sh``. Empty where it
        is the default of such jobs.
    known_by : str
        Sign that the file is of that family where other files of its kind are not, as a clause: ``it has
        --use-fused-rmsnorm``.
    """

    name: str
    jobs: str
    why: str = ""
    known_by: str = ""

    @property
    def reason(self) -> str:
        """Reason for this device, as the end of a sentence."""
        known = f", for {self.known_by}" if self.known_by else ""
        return f"{self.why} ({self.jobs}{known})" if self.why else f"the default for {self.jobs}{known}"


@dataclass(frozen=True)
class ExportForm:
    """One way to say a plan as text.

    Parameters
    ----------
    text : callable or None
        Takes a plan, whether MTP layers count in the offset, and whether odd virtual stages run through the
        stages in reverse; raises `InputError` where the form cannot say the plan.
    places_only : bool
        It says where layers stand and nothing of recompute.
    order : callable or None
        Of a form that says the order of tasks and no plan: takes a schedule, and raises as `text` does, which is None.
    """

    text: Callable[[PipelinePlan, bool, bool], str] | None
    places_only: bool = False
    order: Callable[[Schedule], str] | None = None


@dataclass(frozen=True)
class NarrowStates:
    """Optimizer states in lower precision.

    Parameters
    ----------
    name : str
        The states in words.
    flags : str
        Settings that the file lacks, as it would write them.
    optimizer : OptimizerStates
        States with them.
    """

    name: str
    flags: str
    optimizer: OptimizerStates


class NoDryrun(NamedTuple):
    """Reason why no program can dry-run a launcher's files, and what to do instead."""

    problem: str
    cure: str = "take the estimate, or torch's dry-run"


class Launcher(ABC):
    """Reads and writes the training files of one launcher, and knows what they can say.

    A subclass defines `name`, `title`, `suffixes`, `telltale`, `plan_keys`, `usual_device` and the abstract
    methods; the other methods describe a launcher whose files can say any plan and that starts them itself.
    """

    name: str
    """Its name in a `TrainingConfig`; unique."""
    title: str
    """Name of one of its files in messages, as in ``MindFormers YAML``."""
    suffixes: tuple[str, ...]
    """Suffixes of its files in lower case, the one of new files first."""
    telltale: re.Pattern[str]
    """Found in its files, and in no other launcher's with the same suffix."""
    plan_keys: frozenset[str]
    """Last part of the name of every entry, or every flag, that `with_plan` may change; the rest of a
    file is the user's."""
    usual_device: UsualDevice
    """Default device of its jobs; see `usual_device_of`."""
    no_dryrun: NoDryrun | None = None
    """Refusal of dry-runs of its files; None where `dryrun_command` starts one."""
    program: Program | None = None
    """The program that starts its files; None where a file starts itself."""
    export_forms: Mapping[str, ExportForm] = {}
    """Its ways to say a plan as text, by the name that ``--export`` takes."""
    profile_switches: Mapping[str, object] = {}
    """Entries, by dotted key, that make a run write a profile; empty where that is not known."""
    low_memory_variable: str | None = None
    """The environment variable with which its interleaving is of the low-memory kind; None where there is none."""
    degree_words: Mapping[str, str] = {}
    """Names in its files of the degrees of a strategy, by `Strategy`'s name, the batch (``gbs``) and a sample's length
    (``seq``)."""
    suffix_decides: bool = True
    """True: a file with one of its suffixes is a training file; off where other files have them too."""
    has_own_marks: bool = False
    """True: no other tool's file has its telltale, so that what its reader misses is the reason of a refusal."""
    starts_training: bool = True
    """True: a file, or `program` on it, starts a training; False where it only describes one."""
    knows_parameters: bool = False
    """True: every parameter of a small run is known by name, from which its memory in other jobs follows: its log lists
    them, or the file states a network whose classes are known (`rank_parameters`)."""
    hook_reason: str = "traces then record memory, which plans need"
    """What a small run that leaves traces of torch has from the module that is put beside it."""
    can_probe: bool = False
    """True: dry-runs may change a file's number of layers and stages to learn more of its memory."""

    def recognises(self, path: Path, text: str) -> bool:
        """Return whether a file with this name and text is one of the launcher's."""
        return form_of(path) in self.suffixes and self.telltale.search(text) is not None

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """Default device of a job of this configuration.

        Raises
        ------
        InputError
            When that takes another look at the file, and it cannot be read any more.
        """
        return self.usual_device

    def low_memory_in(self, environment: Mapping[str, str]) -> bool:
        """Return whether a job that is started with these variables runs VPP with low memory.

        Raises
        ------
        InputError
            When the variable is no whole number.
        """
        name = self.low_memory_variable
        written = environment.get(name, "").strip() if name is not None else ""
        try:
            return bool(int(written or 0))
        except ValueError:
            raise InputError(
                "must be 0 or 1", field=name, value=written, cure="correct or unset that environment variable"
            ) from None

    @abstractmethod
    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """Read a training file.

        Parameters
        ----------
        register_path : Path, optional
            The user's folder of registrations, for files that name a model and do not describe it.

        Raises
        ------
        InputError
            When the file is missing, is none of the launcher's, or holds a wrong value.
        """

    def home_of_plan(self, config: TrainingConfig) -> Path:
        """The file that a plan is written into: the configuration's own, or one that it names."""
        return config.path

    @abstractmethod
    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """The text of `home_of_plan` before and after a plan is written into it.

        Only entries named in `plan_keys`, or what they take their value from, differ.

        Parameters
        ----------
        plan : PipelinePlan
            One that `nearest_plan` leaves as it is.
        micro_batches : int, optional
            Micro-batches a step, set too when given.

        Raises
        ------
        InputError
            When the file's number of stages differs, or it cannot say the plan.
        """

    @abstractmethod
    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """The text of a file like the configuration's for another strategy.

        Parameters
        ----------
        plan : PipelinePlan or None
            Its layers and recompute; an even split when None. Where it holds more or fewer layers than
            the model, the file's numbers of layers follow.
        extra : mapping of dotted key to value
            Further entries to set.

        Raises
        ------
        InputError
            When the file cannot say the strategy or the plan.
        """

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """The iteration of reinforcement learning that a file states.

        Raises
        ------
        InputError
            When it states none.
        """
        cure = "give a script of verl or slime, or a YAML of NeMo RL"
        raise InputError("has no roll-outs: it is no job of reinforcement learning", file=config.path, cure=cure)

    def fixed_context(self, config: TrainingConfig) -> str | None:
        """The reason why a search cannot choose the ranks that exchange heads (`Strategy.ulysses`); else None."""
        return f"is not written into a {self.title}"

    def can_write(self, config: TrainingConfig, schedule: ScheduleSpec) -> bool:
        """Return whether a configuration's file can state a schedule: its own, or one that its framework runs.

        Parameters
        ----------
        config : TrainingConfig
            As read from the file.
        """
        return schedule.name == config.schedule.name or schedule.name in config.rules.framework.schedules

    def nearest_plan(self, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
        """The plan itself where the launcher's files can say it, else the nearest that fits memory.

        Returns
        -------
        PipelinePlan, tuple of str
            What can be written, and a sentence for each thing that had to change.
        """
        return plan, ()

    def uniform_recompute(self, layers: int, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The recompute choices where the launcher's files know one choice for all chunks alone.

        Parameters
        ----------
        layers : int
            Layers of the whole model.
        modes : sequence of str
            Recompute modes that may be chosen.

        Returns
        -------
        tuple of (mode, int)
            As `PipelineProblem.uniform_recompute`: mode, and recomputed layers a chunk at most. Empty where
            every chunk has a choice of its own.
        """
        return ()

    def barred_recompute(self, config: TrainingConfig) -> tuple[str, ...]:
        """Recompute modes with which the job does not start, whatever its layers."""
        return ()

    def chunk_positions(self, config: TrainingConfig, least: int) -> int | None:
        """Positions of layers that every chunk of the pipeline has, empty ones included, `least` or more.

        None where a chunk has no more than its layers.
        """
        return None

    def mtp_places(self, config: TrainingConfig) -> tuple[int, ...] | None:
        """Chunks that MTP layers may lie on together, as positions in model order, where a file names every chunk's
        content: then embedding, head and MTP layers may have chunks to themselves.

        Returns
        -------
        tuple of int or None
            None where the embedding, the head and all MTP layers stay with others on the first and the last chunk.
        """
        return None

    def module_words(self, config: TrainingConfig) -> ModuleWords:
        """The modules of a layer that a file can let run again or move to the host, by the launcher's own words."""
        return ModuleWords()

    @property
    def swap_parts(self) -> Mapping[str, str]:
        """Modules that files move to the host by words that are no choice, by the word; see `ModuleWords.offload`."""
        return {}

    def with_optimizer_on_host(self, config: TrainingConfig) -> TrainingConfig:
        """The configuration with the launcher's settings that keep the optimizer's states on the host.

        Raises
        ------
        InputError
            When its files know none, or the job does not start with them.
        """
        reason, cure = f"{self.title} has no optimizer on the host that is read here", "plan a Megatron-LM script"
        raise InputError(reason, file=config.path, field="--offload_optimizer", value="y", cure=cure)

    def narrow_states(self, config: TrainingConfig) -> tuple[NarrowStates, ...] | None:
        """Optimizer states in lower precision that the file could ask for and does not; None where it states none."""
        return None

    def job_sizes(self, path: Path) -> JobSizes:
        """Constraints on small runs of a file, whatever network it trains.

        Raises
        ------
        InputError
            When the file lacks a size, or small runs of its launcher's files cannot be written.
        """
        raise _no_small_run(path)

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """The text of a file that trains the same network cut down: few layers, other degrees, some steps profiled.

        Raises
        ------
        InputError
            When the file cannot say it.
        """
        raise _no_small_run(path)

    def traces_by_torch(self, path: Path) -> bool:
        """Return whether the small runs of a file leave traces of `torch.profiler`, not of a profiler of its own."""
        return False

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """The text of a file with other degrees, micro-batch and plan, whatever network it trains.

        Raises
        ------
        InputError
            When the file cannot say it.
        """
        raise _no_plan(path)

    def whole_run(self, path: Path, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> str:
        """The text of `planned_job` that ends after a few steps, and neither loads nor saves a checkpoint.

        Raises
        ------
        InputError
            When the file cannot say it.
        """
        raise _no_plan(path)

    def switches(self, path: Path) -> tuple[Switch, ...]:
        """Switches that small runs of a file can compare; none where they are not known."""
        return ()

    def recompute_modules(self, path: Path) -> tuple[str, ...]:
        """Modules of a layer whose recompute a file can state, one by one; none where it cannot."""
        return ()

    def rank_parameters(self, path: Path) -> Mapping[str, Mapping[str, int]]:
        """Elements on a rank by block (embedding, dense, layer, head) and name, as the file of a small run states them.

        Of layers those of one of each kind; none where the run's log lists them.

        Raises
        ------
        InputError
            When the network has parameters that are not known one by one.
        """
        return {}

    def run_log(self, text: str, dense: int = 0) -> RunLog:
        """Figures in the log of a small run with `dense` dense layers in front; none where they are not known."""
        return RunLog({}, None, None)

    def dataset_keys(self, dataset: str) -> dict[str, object]:
        """The entries, by dotted key, that make a file read this data set; none where that is not known."""
        return {}

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The command that starts a training file.

        Parameters
        ----------
        file : Path
            The file to start, a variant of `original`.

        Raises
        ------
        InputError
            When the launcher needs its program and `tools` has none, or nothing starts its files (`no_dryrun`).
        """
        if self.no_dryrun is None:
            raise NotImplementedError(f"{type(self).__name__} states neither dryrun_command nor no_dryrun")
        problem, cure = self.no_dryrun
        raise InputError(problem, file=original, field="--dryrun_backend", cure=cure)

    def run_command(self, file: Path, original: Path, tools: Tools, machines: Machines) -> tuple[str, ...]:
        """The command that starts a small run on a node of these machines; as a dry-run where its file names them.

        Raises
        ------
        InputError
            As of `dryrun_command`, or when the machines lack what the command needs.
        """
        return self.dryrun_command(file, original, tools)

    def working_folder(self, original: Path) -> Path | None:
        """Folder in which dry-runs of a file's variants run; None for a folder of their own.

        A file that starts itself names program, data and assets from the folder that it lies in.
        """
        return original.resolve().parent if self.program is None else None


def _no_small_run(path: Path) -> InputError:
    cure = (
        "small runs are written for Megatron's and MindSpeed's scripts, MindFormers' and Primus' YAML, and torchtitan's"
        " TOML"
    )
    return InputError("cannot be cut down to a small run", file=path, cure=cure)


def _no_plan(path: Path) -> InputError:
    cure = "they are for Megatron's and MindSpeed's scripts, MindFormers' and Primus' YAML, and torchtitan's TOML"
    return InputError("cannot be written for a network that is not known", file=path, cure=cure)
