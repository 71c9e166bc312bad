"""verl's scripts: policies that Megatron trains, and those on sharded parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.alike_recompute import OneStage
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.write import PLAN_FLAGS
from taylor.parsers.named_jobs import NamedJobs
from taylor.parsers.policy.fields import field_of
from taylor.parsers.policy.sharded import refuse_other_degrees, sharded_config
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.start_rules import checked, of_options
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl.command import VerlCommand
from taylor.parsers.verl.iteration import iteration_of
from taylor.parsers.verl.job import (
    NAME,
    SHARDED_NAME,
    VerlMegatronJob,
    VerlStart,
    is_sharded,
    sharded_job,
    sharded_unmodelled,
)
from taylor.parsers.verl.start_rules import start_rules_of
from taylor.pipeline.plan import FULL, PipelinePlan

TELLTALE = re.compile(
    r"^[^#\n]*(?:\bactor_rollout_ref\.|\bverl\.trainer\.(?:(?:fsdp_)?sft_trainer|main(?![\w.])))", re.M
)
_USUAL = UsualDevice("h100-80g", "verl files")
_NO_DRYRUN = NoDryrun("is started by verl beside its roll-outs, which no dry-run has", cure="take the estimate")


class Verl(NamedJobs, FlagLauncher):
    """Scripts whose policy Megatron trains, and the refusal of those that start no training."""

    degree_words = {
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "ep": "expert_model_parallel_size",
        "cp": "context_parallel_size",
        "op": "use_distributed_optimizer",
        "sp": "sequence_parallel",
        "vpp": "virtual_pipeline_model_parallel_size",
        "mbs": "ppo_micro_batch_size_per_gpu",
        "gbs": "ppo_mini_batch_size",
        "seq": "data.max_response_length",
    }
    name = NAME
    title = "verl script"
    suffixes = (".sh",)
    telltale = TELLTALE
    plan_keys = frozenset(
        {
            *map(field_of, PLAN_FLAGS),
            *("ppo_mini_batch_size", "train_batch_size", "override_transformer_config", "actor_rollout_ref"),
        }
    )
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    knows_parameters = False
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and not _is_sharded(path, text)

    def launch(self, path: Path) -> VerlMegatronJob:
        """See `FlagLauncher.launch`."""
        return VerlMegatronJob(VerlStart(ShellScript.read(path)))

    def launch_of(self, config: TrainingConfig) -> VerlMegatronJob:
        """See `FlagLauncher.launch_of`: of the model that is known, and that a script only names."""
        return VerlMegatronJob(VerlStart(ShellScript.read(config.path), model=config.model))

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(VerlStart(ShellScript.read(config.path), model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = VerlMegatronJob(VerlStart(ShellScript.read(path), register_path))
        return checked(job.config(), start_rules_of(job.program), of_options(job.options))


class VerlSharded(OneStage):
    """Scripts whose policy is trained on parameters that FSDP shards."""

    recomputing = "the file"
    degree_words = {
        "dp": "trainer.nnodes",
        "cp": "ulysses_sequence_parallel_size",
        "op": "fsdp_size",
        "mbs": "ppo_micro_batch_size_per_gpu",
        "gbs": "ppo_mini_batch_size",
        "seq": "data.max_response_length",
    }
    name = SHARDED_NAME
    title = "verl script of FSDP"
    suffixes = (".sh",)
    telltale = TELLTALE
    plan_keys = frozenset(
        {"enable_gradient_checkpointing", "ppo_mini_batch_size", "train_batch_size", "global_batch_size"}
    )
    usual_device = _USUAL
    no_dryrun = _NO_DRYRUN
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and _is_sharded(path, text)

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(VerlStart(ShellScript.read(config.path), model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = VerlStart(ShellScript.read(path), register_path)
        names = {"dp": "trainer.n_gpus_per_node", "gbs": start.program.samples}
        config = sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)
        return checked(config, start_rules_of(start.program), of_options(start.options))

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        script = ShellScript.read(config.path)
        command = VerlCommand.of(script)
        start = VerlStart(script, model=config.model)
        wanted: dict[str, object] = {}
        if plan.uses(FULL) != start.options.is_on(start.program.checkpoints):
            wanted[start.program.checkpoints] = plan.uses(FULL)
        samples = config.strategy.dp * config.strategy.mbs * (micro_batches or config.strategy.micro_batches)
        if samples != start.samples():
            if samples % start.answers:
                raise start.options.error(
                    start.program.samples, f"counts {start.answers} samples as one", samples, "plan other micro-batches"
                )
            wanted[start.program.samples] = samples // start.answers
        return script.text, command.edited(wanted).text

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are options."""
        start = VerlStart(ShellScript.read(config.path), model=config.model)
        program = start.program
        refuse_other_degrees(config, strategy, ("tp", "pp", "ep", "vpp", "op"))
        wanted: dict[str, object] = dict(extra)
        if strategy.mbs != config.strategy.mbs:
            wanted[program.micro_batch] = strategy.mbs
        if strategy.cp != config.strategy.cp:
            wanted[program.ulysses[0]] = strategy.cp
        if strategy.global_batch != config.strategy.global_batch and strategy.global_batch % start.answers == 0:
            wanted[program.samples] = strategy.global_batch // start.answers
        if plan is not None and plan.uses(FULL) != start.options.is_on(program.checkpoints):
            wanted[program.checkpoints] = plan.uses(FULL)
        return start.command.edited(wanted).text


def _is_sharded(path: Path, text: str) -> bool:
    try:
        return is_sharded(ShellScript(text, path))
    except InputError:
        return False  # The reader says what is wrong.
