"""NeMo RL's YAML: policies that Megatron Core trains, and those on DTensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute
from taylor.parsers.launcher import NoDryrun, UsualDevice
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
from taylor.parsers.policy.launchers import MegatronPolicy, ShardedPolicy, counted
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.start_rules import checked, of_options
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.model import ModelSpec

_USUAL = UsualDevice("h100-80g", "NeMo RL files")
_NO_DRYRUN = NoDryrun("is started by NeMo RL through Ray, which no dry-run has", cure="take the estimate")
_DEGREES = {
    "tensor_parallel_size": "tp",
    "context_parallel_size": "cp",
    "expert_parallel_size": "ep",
    "sequence_parallel": "sp",
}
"""Options of ``dtensor_cfg``."""


def _start(path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> RlStart:
    return RlStart(RlExperiment.read(path), register_path, model)


class NemoRl(AlikeRecompute, MegatronPolicy):
    """Files whose policy Megatron Core trains, and the refusal of damaged ones."""

    recomputing = "NeMo RL"
    recompute_modes = BOTH_MODES
    degree_words = {
        **MegatronPolicy.degree_words,
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
    start = staticmethod(_start)
    job = RlMegatronJob

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        if path.suffix.lower() not in self.suffixes:
            return False
        if TELLTALE.search(text):
            return _by_megatron(path) is not False
        return INHERITS.search(text) is not None and _by_megatron(path) is True

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(_start(config.path, model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = RlMegatronJob(_start(path, register_path))
        return checked(job.config(), START_RULES, of_options(job.options))


class NemoRlSharded(ShardedPolicy):
    """Files whose policy is trained on DTensors."""

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
    start = staticmethod(_start)
    fixed = ("pp", "vpp")

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        alike = path.suffix.lower() in self.suffixes and (TELLTALE.search(text) or INHERITS.search(text))
        return bool(alike) and _by_megatron(path) is False

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(_start(config.path, model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = _start(path, register_path)
        names = {"dp": "cluster.num_nodes", "gbs": f"{POLICY}train_global_batch_size"}
        config = sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)
        return checked(config, START_RULES, with_ranks(of_options(start.options), config.strategy.world_size))

    def texts(self, start: RlStart, wanted: Mapping[str, object]) -> tuple[str, str]:
        """See `ShardedPolicy.texts`."""
        return start.experiment.source.text, start.experiment.edited(wanted).source.text

    def edits(self, start: RlStart, own: Strategy, wanted: Strategy) -> dict[str, object]:
        """See `ShardedPolicy.edits`."""
        found: dict[str, object] = {
            f"{DTENSOR}{key}": getattr(wanted, name)
            for key, name in _DEGREES.items()
            if getattr(wanted, name) != getattr(own, name)
        }
        for name, samples, before in (
            ("train_micro_batch_size", wanted.mbs, own.mbs),
            ("train_global_batch_size", wanted.global_batch, own.global_batch),
        ):
            if samples != before:
                found[f"{POLICY}{name}"] = counted(start.options, f"{POLICY}{name}", samples, start.each)
        return found

    def recompute(self, start: RlStart, plan: PipelinePlan) -> dict[str, object]:
        """See `ShardedPolicy.recompute`."""
        key = f"{DTENSOR}activation_checkpointing"
        return {} if plan.uses(FULL) == start.options.is_on(key) else {key: plan.uses(FULL)}


def _by_megatron(path: Path) -> bool | None:
    """Return whether Megatron Core trains a file's policy; None where the file says nothing."""
    try:
        options = RlExperiment.read(path).options()
        return options.is_on("policy.megatron_cfg.enabled")
    except InputError:
        return None  # The reader says what is wrong.
