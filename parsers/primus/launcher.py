"""Primus of AMD, whose experiments train with Megatron or with torchtitan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import Launcher, NoDryrun, Tools, UsualDevice
from taylor.parsers.megatron import small_run
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.write import PLAN_FLAGS
from taylor.parsers.primus import titan
from taylor.parsers.primus.devices import stated_device
from taylor.parsers.primus.experiment import BRIDGE, MEGATRON, TELLTALE, TORCHTITAN, Experiment
from taylor.parsers.primus.job import NAME, PrimusJob
from taylor.parsers.primus.layer_ids import with_layer_ids
from taylor.parsers.primus.recipe_job import NAME as BY_RECIPE
from taylor.parsers.primus.recipe_job import START_RULES, RecipeJob
from taylor.parsers.small_run import JobSizes, ProfiledRun
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.torchtitan import write
from taylor.parsers.torchtitan.launcher import Torchtitan
from taylor.parsers.torchtitan.read import config_from_source
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

_USUAL = UsualDevice("mi300x-192g", "Primus files")
"""Primus runs on AMD's devices alone."""
_NO_DRYRUN = NoDryrun("is started by Primus, which runs no training without its devices")


class Primus(FlagLauncher):
    """Experiments of the Megatron backend, and the refusal of those of backends that are not read."""

    degree_words = {word: flag.removeprefix("--").replace("-", "_") for word, flag in FlagLauncher.degree_words.items()}
    name = NAME
    title = "Primus YAML"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset(flag.replace("-", "_") for flag in PLAN_FLAGS)
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return path.suffix.lower() in self.suffixes and Experiment.backend(path, text) not in (None, TORCHTITAN, BRIDGE)

    def written(self, flag: str, setting: Setting) -> str:
        """See `FlagLauncher.written`."""
        return f"{flag.replace('-', '_')}: {'true' if setting is True else setting}"

    def launch(self, path: Path) -> PrimusJob:
        """See `FlagLauncher.launch`."""
        experiment = Experiment.read(path)
        _require(experiment, MEGATRON)
        return PrimusJob(experiment)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = self.launch(path)
        config = config_from_launch(job)
        if job.ids:
            config = with_layer_ids(config, job.experiment, job.ids)
        unmodelled = (*map(job.named, config.unmodelled), *job.unread())
        return config.replace(rules=config.rules.replace(adapters=job.adapters), unmodelled=unmodelled)

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`; recompute by the numbers of layers gives way to Megatron's own options."""
        before, after = super().with_plan(config, plan, micro_batches)
        return before, self.launch(config.path).stripped().text if after == before else after

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        job = self.launch(config.path)
        after = super().with_strategy(config, strategy, plan, extra)
        return job.stripped().text if after == job.text else after

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The device that the file states."""
        return _device_of(config)

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`; a stack of single modules deals its layers itself."""
        job = self.launch(path)
        if job.plan_error is not None:
            raise job.plan_error
        return small_run.job_sizes(job)

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """See `Launcher.small_run`; presets that the file names are found wherever it lies."""
        job = small_run.small_run(self.launch(path), run)
        assert isinstance(job, PrimusJob)
        return job.in_workspace(run.profile.folder).text


class PrimusRecipe(FlagLauncher):
    """Experiments of the Megatron-Bridge backend, by a published recipe; no plan is written into them."""

    degree_words = Primus.degree_words
    name = BY_RECIPE
    title = "Primus YAML of Megatron-Bridge"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset[str]()
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return path.suffix.lower() in self.suffixes and Experiment.backend(path, text) == BRIDGE

    def launch(self, path: Path) -> RecipeJob:
        """See `FlagLauncher.launch`."""
        return self._job(path)

    def launch_of(self, config: TrainingConfig) -> RecipeJob:
        """See `FlagLauncher.launch_of`."""
        return self._job(config.path, model=config.model)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = self._job(path, register_path)
        config = config_from_launch(job)
        rules = config.rules.replace(adapters=job.adapters)
        misfits = (*config.misfits, *misfits_of(START_RULES, of_mapping(dict(job.experiment.options))))
        return config.replace(rules=rules, misfits=misfits, unmodelled=(*config.unmodelled, *job.unread()))

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The device that the file states."""
        return _device_of(config)

    def job_sizes(self, path: Path) -> JobSizes:
        """None: a recipe's model cannot be cut down."""
        return Launcher.job_sizes(self, path)

    @staticmethod
    def _job(path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> RecipeJob:
        experiment = Experiment.read(path)
        _require(experiment, BRIDGE)
        return RecipeJob(experiment, register_path, model)


class PrimusTorchtitan(Torchtitan):
    """Experiments of the torchtitan backend."""

    name = titan.NAME
    title = "Primus YAML of torchtitan"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    export_forms = {}

    def job_sizes(self, path: Path) -> JobSizes:
        """None: what starts an experiment of this backend has no module of Taylor's beside it.

        Raises
        ------
        InputError
            Always.
        """
        cure = "write the job as a TOML file of torchtitan v0.2.0 to v0.2.2 for `taylor tune`"
        raise InputError("is an experiment of torchtitan, which cannot be cut down", file=path, cure=cure)

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return path.suffix.lower() in self.suffixes and Experiment.backend(path, text) == TORCHTITAN

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        experiment = Experiment.read(path)
        _require(experiment, TORCHTITAN)
        config = config_from_source(titan.as_toml(experiment), Registry.load(register_path))
        titan.refuse_other_sizes(experiment, config.model)
        config = titan.started_by_primus(config)
        return config.replace(
            launcher=self.name,
            notes=(*experiment.unused, *config.notes),
            unmodelled=(*config.unmodelled, *titan.own_settings(experiment)),
        )

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        experiment = Experiment.read(config.path)
        before = titan.as_toml(experiment)
        after = write.with_plan(before, config, plan, micro_batches)
        return experiment.source.text, titan.edited(experiment, before, after).source.text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are ``section.key``."""
        experiment = Experiment.read(config.path)
        before = titan.as_toml(experiment)
        after = write.with_strategy(before, config, strategy, plan, extra)
        return titan.edited(experiment, before, after).source.text

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The device that the file states."""
        return _device_of(config)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """See `Launcher.dryrun_command`: none, unlike a file of torchtitan's own."""
        return Launcher.dryrun_command(self, file, original, tools)


def _require(experiment: Experiment, framework: str) -> None:
    if experiment.framework != framework:
        raise InputError(
            "has trainers of several backends",
            file=experiment.file,
            field="modules",
            value=experiment.framework,
            cure="give an experiment with one trainer",
        )


def _device_of(config: TrainingConfig) -> UsualDevice:
    stated = stated_device(config.path, read_text(config.path))
    return _USUAL if stated is None else replace(_USUAL, name=stated[0], why=stated[1])
