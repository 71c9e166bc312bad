"""verl's scripts: policies that Megatron trains, and those on sharded parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.megatron.write import PLAN_FLAGS
from taylor.parsers.policy.fields import field_of
from taylor.parsers.policy.launchers import MegatronPolicy, ShardedPolicy, counted
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.rl_iteration import RlIteration
from taylor.parsers.start_rules import checked, of_options
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
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
from taylor.register.model import ModelSpec

TELLTALE = re.compile(
    r"^[^#\n]*(?:\bactor_rollout_ref\.|\bverl\.trainer\.(?:(?:fsdp_)?sft_trainer|main(?![\w.])))", re.M
)
_USUAL = UsualDevice("h100-80g", "verl files")
_NO_DRYRUN = NoDryrun("is started by verl beside its roll-outs, which no dry-run has", cure="take the estimate")


def _start(path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> VerlStart:
    return VerlStart(ShellScript.read(path), register_path, model)


class Verl(MegatronPolicy):
    """Scripts whose policy Megatron trains, and the refusal of those that start no training."""

    degree_words = {
        **MegatronPolicy.degree_words,
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
    start = staticmethod(_start)
    job = VerlMegatronJob

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and not _is_sharded(path, text)

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(_start(config.path, model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        job = VerlMegatronJob(_start(path, register_path))
        return checked(job.config(), start_rules_of(job.program), of_options(job.options))


class VerlSharded(ShardedPolicy):
    """Scripts whose policy is trained on parameters that FSDP shards."""

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
    start = staticmethod(_start)
    fixed = ("tp", "pp", "ep", "vpp", "op")

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`."""
        return super().recognises(path, text) and _is_sharded(path, text)

    def iteration(self, config: TrainingConfig) -> RlIteration:
        """See `Launcher.iteration`."""
        return iteration_of(_start(config.path, model=config.model), config)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        start = _start(path, register_path)
        names = {"dp": "trainer.n_gpus_per_node", "gbs": start.program.samples}
        config = sharded_config(sharded_job(start), start.notes, sharded_unmodelled(start), names)
        return checked(config, start_rules_of(start.program), of_options(start.options))

    def texts(self, start: VerlStart, wanted: Mapping[str, object]) -> tuple[str, str]:
        """See `ShardedPolicy.texts`."""
        return start.command.script.text, start.command.edited(wanted).text

    def edits(self, start: VerlStart, own: Strategy, wanted: Strategy) -> dict[str, object]:
        """See `ShardedPolicy.edits`."""
        program = start.program
        found: dict[str, object] = {}
        if wanted.mbs != own.mbs:
            found[program.micro_batch] = wanted.mbs
        if wanted.cp != own.cp:
            found[program.ulysses[0]] = wanted.cp
        if wanted.global_batch != own.global_batch:
            found[program.samples] = counted(start.options, program.samples, wanted.global_batch, start.answers)
        return found

    def recompute(self, start: VerlStart, plan: PipelinePlan) -> dict[str, object]:
        """See `ShardedPolicy.recompute`."""
        key = start.program.checkpoints
        return {} if plan.uses(FULL) == start.options.is_on(key) else {key: plan.uses(FULL)}


def _is_sharded(path: Path, text: str) -> bool:
    try:
        return is_sharded(ShellScript(text, path))
    except InputError:
        return False  # The reader says what is wrong.
