"""NeMo RL's YAML: policies that Megatron Core trains, and those on DTensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute, OneStage
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.named_jobs import NamedJobs
from taylor.parsers.nemo_rl.experiment import INHERITS, TELLTALE, RlExperiment
from taylor.parsers.nemo_rl.iteration import iteration_of
from taylor.parsers.nemo_rl.job import (
    DTENSOR,
    NAME,
    POLICY,
    SHARDED_NAME,
    RlMegatronJob,
    RlStart,
    sharded_job,
    sharded_unmodelled,
)
from taylor.parsers.nemo_rl.start_rules import START_RULES, with_ranks
from taylor.parsers.policy.sharded import refuse_other_degrees, sharded_config
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.start_rules import checked, of_options
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan

_USUAL = UsualDevice("h100-80g", "NeMo RL files")
_NO_DRYRUN = NoDryrun("is started by NeMo RL through Ray, which no dry-run has", cure="take the estimate")


class NemoRl(AlikeRecompute, NamedJobs, FlagLauncher):
    """Files whose policy Megatron Core trains, and the refusal of damaged ones."""

    recomputing = "NeMo RL"
    recompute_modes = BOTH_MODES
    degree_words = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
        "cp": "context_parallel_size",
        "op": "use_distributed_optimizer",
        "sp": "sequence_parallel",
        "vpp": "virtual_pipeline_model_parallel_size",
        "mbs": "train_micro_batch_size",
        "gbs": "train_global_batch_size",
        "seq": "max_total_sequence_length",
    }
    name = NAME
    title = "NeMo RL YAML"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset(
        {
            "activation_checkpointing",
            "recompute_granularity",
            "recompute_modules",
            "num_layers_in_first_pipeline_stage",
            "num_layers_in_last_pipeline_stage",
            "pipeline_model_parallel_layout",
            "virtual_pipeline_model_parallel_size",
            "model_overrides",
            "train_global_batch_size",
        }
    )
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    knows_parameters = False
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        if path.suffix.lower() not in self.suffixes:
            return False
        if TELLTALE.search(text):
            return _by_megatron(path) is not False
        return INHERITS.search(text) is not None and _by_megatron(path) is True

    def launch(self, path: Path) -> RlMegatronJob:
        """See `FlagLauncher.launch`."""
        return RlMegatronJob(RlStart(RlExperiment.read(path)))

    def launch_of(self, config: TrainingConfig) -> RlMegatronJob:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a file only names."""
        return RlMegatronJob(RlStart(RlExperiment.read(config.path), model=config.model))

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(RlStart(RlExperiment.read(config.path), model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = RlMegatronJob(RlStart(RlExperiment.read(path), register_path))
        return checked(job.config(), START_RULES, of_options(job.options))


class NemoRlSharded(OneStage):
    """Files whose policy is trained on DTensors."""

    recomputing = "the file"
    degree_words = {
        "dp": "num_nodes",
        "tp": "tensor_parallel_size",
        "ep": "expert_parallel_size",
        "cp": "context_parallel_size",
        "op": "dp_replicate_size",
        "sp": "sequence_parallel",
        "mbs": "train_micro_batch_size",
        "gbs": "train_global_batch_size",
        "seq": "max_total_sequence_length",
    }
    name = SHARDED_NAME
    title = "NeMo RL YAML of DTensors"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = frozenset({"activation_checkpointing", "train_global_batch_size", "dtensor_cfg"})
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        alike = path.suffix.lower() in self.suffixes and (TELLTALE.search(text) or INHERITS.search(text))
        return bool(alike) and _by_megatron(path) is False

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(RlStart(RlExperiment.read(config.path), model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = RlStart(RlExperiment.read(path), register_path)
        names = {"dp": "cluster.num_nodes", "gbs": f"{POLICY}train_global_batch_size"}
        config = sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)
        return checked(config, START_RULES, with_ranks(of_options(start.options), config.strategy.world_size))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        experiment = RlExperiment.read(config.path)
        start = RlStart(experiment, model=config.model)
        samples = config.strategy.dp * config.strategy.mbs * (micro_batches or config.strategy.micro_batches)
        wanted = _recompute(start, plan) | _batch(start, samples)
        return experiment.source.text, experiment.edited(wanted).source.text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        experiment = RlExperiment.read(config.path)
        start = RlStart(experiment, model=config.model)
        refuse_other_degrees(config, strategy, ("pp", "vpp"))
        own = config.strategy
        wanted: dict[str, object] = dict(extra)
        degrees = {"tensor_parallel_size": "tp", "context_parallel_size": "cp", "expert_parallel_size": "ep"}
        wanted |= {
            f"{DTENSOR}{key}": getattr(strategy, name)
            for key, name in degrees.items()
            if getattr(strategy, name) != getattr(own, name)
        }
        if strategy.sp != own.sp:
            wanted[f"{DTENSOR}sequence_parallel"] = strategy.sp
        if strategy.mbs != own.mbs:
            wanted[f"{POLICY}train_micro_batch_size"] = strategy.mbs // start.each
        wanted |= _batch(start, strategy.global_batch)
        wanted |= {} if plan is None else _recompute(start, plan)
        return experiment.edited(wanted).source.text


def _recompute(start: RlStart, plan: PipelinePlan) -> dict[str, object]:
    key = f"{DTENSOR}activation_checkpointing"
    return {} if plan.uses(FULL) == start.options.is_on(key) else {key: plan.uses(FULL)}


def _batch(start: RlStart, samples: int) -> dict[str, object]:
    return {} if samples == start.samples() else {f"{POLICY}train_global_batch_size": samples // start.each}


def _by_megatron(path: Path) -> bool | None:
    """Return whether Megatron Core trains a file's policy; None where the file says nothing."""
    try:
        options = RlExperiment.read(path).options()
        return options.is_on("policy.megatron_cfg.enabled")
    except InputError:
        return None  # The reader says what is wrong.
