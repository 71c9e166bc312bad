"""verl's programs that train: which options they have, and where each size stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

MEGATRON, FSDP, FSDP2, VEOMNI = "megatron", "fsdp", "fsdp2", "veomni"
SHARDED = (FSDP, FSDP2)


@dataclass(frozen=True)
class Program:
    """One kind of training program.

    Parameters
    ----------
    pattern : str
        Pattern of its module.
    title : str
        What it trains, as messages say it.
    model : tuple of str
        Keys of the model's path, the newest first.
    engine : str
        Prefix of Megatron's options; empty where it does not train by Megatron.
    sharding : str
        Prefix of FSDP's options.
    optimizer : str
        Prefix of the optimizer's options.
    ulysses : tuple of str
        Keys of the ranks that split a sample, the one that counts first.
    strategy : str
        Key of the trainer's kind.
    checkpoints : str
        Key of the recompute of every layer.
    samples, micro_batch, dynamic, tokens : str
        Keys of the batch, the micro-batch of a rank, whether micro-batches are packed by tokens, and their tokens.
    former_micro_batch : str
        Key of the micro-batch of all ranks together.
    adapters : tuple of str
        Keys of the rank of LoRA.
    liger : tuple of str
        Keys of fused kernels.
    defaults : mapping of str to str
        The program's own values where nothing is stated, by key.
    validates : bool
        It calls ``validate_config``, which checks the batch against the ranks.
    answers : str
        Key of the samples that come of one prompt; empty where nothing is rolled out.
    frozen_vision : str
        Key of the switch that freezes a vision part on FSDP.
    targets : str
        Key of the modules that adapters lie beside on FSDP.
    types : mapping of str to str
        Names of FSDP's options that this program writes otherwise, by verl's.
    states_iteration : bool
        `parsers.verl.iteration` knows its options of roll-outs.
    """

    pattern: str
    title: str
    model: tuple[str, ...]
    engine: str
    sharding: str
    optimizer: str
    ulysses: tuple[str, ...]
    strategy: str
    checkpoints: str
    samples: str
    micro_batch: str
    dynamic: str
    tokens: str
    former_micro_batch: str
    adapters: tuple[str, ...]
    defaults: Mapping[str, str]
    validates: bool = False
    answers: str = ""
    frozen_vision: str = "actor_rollout_ref.actor.freeze_vision_tower"
    targets: str = ""
    types: Mapping[str, str] = field(default_factory=dict)
    states_iteration: bool = True

    @property
    def rolls_out(self) -> bool:
        """Its samples are prompts with several answers each."""
        return bool(self.answers)

    def of_sharding(self, name: str) -> str:
        """The key of an option of FSDP, by verl's name for it."""
        return f"{self.sharding}{self.types.get(name, name)}"

    @property
    def is_critic(self) -> bool:
        """It is the critic of a policy."""
        return self.engine.startswith("critic.")


_ACTOR = "actor_rollout_ref.actor"
_RANKS = {"trainer.nnodes": "1", "trainer.n_gpus_per_node": "8"}
_ENGINE = {
    "tensor_model_parallel_size": "1",
    "expert_model_parallel_size": "1",
    "pipeline_model_parallel_size": "1",
    "context_parallel_size": "1",
    "use_distributed_optimizer": "true",
    "override_transformer_config.recompute_modules": "[core_attn]",
    "override_transformer_config.attention_backend": "flash",
}
"""Megatron's part: verl b178a3cd verl/trainer/config/engine/megatron.yaml:17-74."""
_SHARDING = {"model_dtype": "fp32", "dtype": "bfloat16", "fsdp_size": "-1", "reshard_after_forward": "true"}
"""FSDP's part: verl b178a3cd verl/trainer/config/engine/fsdp.yaml:26-74."""


def _below(prefix: str, values: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}{name}": value for name, value in values.items()}


PPO = Program(
    pattern=r"verl\.trainer\.main_ppo_(?:sync|v0)"
    r"|verl\.(?:trainer|experimental\.(?:one_step_off_policy|transfer_queue))\.main_ppo"
    r"|(?:\S*/)?(?:trainer|one_step_off_policy|transfer_queue)/main_ppo\.py",
    title="a policy",
    model=("actor_rollout_ref.model.path",),
    engine=f"{_ACTOR}.megatron.",
    sharding=f"{_ACTOR}.fsdp_config.",
    optimizer=f"{_ACTOR}.optim.",
    ulysses=(f"{_ACTOR}.ulysses_sequence_parallel_size", f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"),
    strategy=f"{_ACTOR}.strategy",
    checkpoints="actor_rollout_ref.model.enable_gradient_checkpointing",
    samples=f"{_ACTOR}.ppo_mini_batch_size",
    micro_batch=f"{_ACTOR}.ppo_micro_batch_size_per_gpu",
    dynamic=f"{_ACTOR}.use_dynamic_bsz",
    tokens=f"{_ACTOR}.ppo_max_token_len_per_gpu",
    former_micro_batch=f"{_ACTOR}.ppo_micro_batch_size",
    adapters=("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank"),
    defaults={
        **_RANKS,
        **_below(f"{_ACTOR}.megatron.", _ENGINE),
        **_below(f"{_ACTOR}.fsdp_config.", _SHARDING),
        f"{_ACTOR}.strategy": FSDP,
        f"{_ACTOR}.ppo_mini_batch_size": "256",
        f"{_ACTOR}.ppo_max_token_len_per_gpu": "16384",
        "actor_rollout_ref.model.enable_gradient_checkpointing": "true",
        "actor_rollout_ref.rollout.n": "1",
        "data.max_prompt_length": "512",
        "data.max_response_length": "512",
    },
    validates=True,
    answers="actor_rollout_ref.rollout.n",
)
"""Sources of the defaults, verl b178a3cd: verl/trainer/config/actor/actor.yaml:22-44, actor/dp_actor.yaml:27,
data/legacy_data.yaml, rollout/rollout.yaml, model/hf_model.yaml, ppo_trainer.yaml (``trainer``); of the programs that
validate: verl/trainer/main_ppo.py:297, verl/experimental/one_step_off_policy/main_ppo.py:152,
verl/experimental/transfer_queue/main_ppo.py:144, and of releases before and after 9f18abe5
verl/trainer/main_ppo_sync.py:1856 and 1dda039b verl/trainer/main_ppo_v0.py:179."""

FURTHER_PPO = replace(
    PPO,
    pattern=r"verl\.(?:trainer|experimental\.\w+)\.(?:main_ppo|fully_async_main|main_split)|recipe\.[\w.]+\.main_\w+"
    r"|(?:\S*/)?main_(?:ppo|dapo)\w*\.py",
    validates=False,
)
"""Programs with the same options that make no check of the batch as they start, or whose source is not known."""

CRITIC = replace(
    PPO,
    title="a critic",
    model=("critic.model.path",),
    engine="critic.megatron.",
    sharding="critic.fsdp.",
    optimizer="critic.optim.",
    ulysses=("critic.ulysses_sequence_parallel_size", "critic.fsdp.ulysses_sequence_parallel_size"),
    strategy="critic.strategy",
    checkpoints="critic.model.enable_gradient_checkpointing",
    samples="critic.ppo_mini_batch_size",
    micro_batch="critic.ppo_micro_batch_size_per_gpu",
    dynamic="critic.use_dynamic_bsz",
    tokens="critic.ppo_max_token_len_per_gpu",
    former_micro_batch="critic.ppo_micro_batch_size",
    adapters=("critic.model.lora_rank", "critic.model.lora.rank"),
    defaults={
        **_below("critic.megatron.", _ENGINE),
        **_below("critic.fsdp.", _SHARDING),
        "critic.strategy": FSDP,
        "critic.ppo_max_token_len_per_gpu": "32768",
        "critic.model.enable_gradient_checkpointing": "true",
    },
    validates=False,
    frozen_vision="critic.model.freeze_vision_tower",
)
"""The critic that a program trains beside the policy. Sources: verl 1dda039b verl/trainer/config/critic/critic.yaml,
dp_critic.yaml, megatron_critic.yaml; of its kind of trainer, that of the policy: ppo_trainer.yaml:30."""
FORMER_CRITIC_SHARDING = "critic.model.fsdp_config."
"""Prefix of its options of FSDP before ``critic.fsdp.``: verl b178a3cd verl/trainer/config/critic/dp_critic.yaml."""
MIRRORED = {
    CRITIC.samples: PPO.samples,
    CRITIC.dynamic: PPO.dynamic,
    "critic.ppo_epochs": f"{_ACTOR}.ppo_epochs",
}
"""Options of the critic that are the policy's where nothing is stated (critic.yaml:34, 43, 52)."""

SFT = Program(
    pattern=r"verl\.trainer\.sft_trainer(?:_ray)?",
    title="a supervised fine-tuning",
    model=("model.path",),
    engine="engine.",
    sharding="engine.",
    optimizer="optim.",
    ulysses=("engine.ulysses_sequence_parallel_size",),
    strategy="engine.strategy",
    checkpoints="model.enable_gradient_checkpointing",
    samples="data.train_batch_size",
    micro_batch="data.micro_batch_size_per_gpu",
    dynamic="data.use_dynamic_bsz",
    tokens="data.max_token_len_per_gpu",
    former_micro_batch="data.micro_batch_size",
    adapters=("model.lora_rank", "model.lora.rank"),
    defaults={
        **_RANKS,
        "trainer.n_gpus_per_node": "1",
        **_below("engine.", {**_ENGINE, **_SHARDING}),
        "data.train_batch_size": "256",
        "data.micro_batch_size_per_gpu": "4",
        "data.max_token_len_per_gpu": "8192",
        "data.use_dynamic_bsz": "true",
        "data.max_length": "1024",
        "model.enable_gradient_checkpointing": "true",
    },
)
"""Sources: verl b178a3cd verl/trainer/config/sft_trainer_engine.yaml:15-88, model/hf_model.yaml."""

FSDP_SFT = Program(
    pattern=r"verl\.trainer\.fsdp_sft_trainer|\S*\bfsdp_sft_trainer\.py",
    title="a supervised fine-tuning",
    model=("model.partial_pretrain",),
    engine="",
    sharding="model.fsdp_config.",
    optimizer="optim.",
    ulysses=("ulysses_sequence_parallel_size",),
    strategy="model.strategy",
    checkpoints="model.enable_gradient_checkpointing",
    samples="data.train_batch_size",
    micro_batch="data.micro_batch_size_per_gpu",
    dynamic="",
    tokens="",
    former_micro_batch="",
    adapters=("model.lora_rank",),
    defaults={
        **_RANKS,
        **_below("model.fsdp_config.", _SHARDING),
        "data.train_batch_size": "256",
        "data.micro_batch_size_per_gpu": "4",
        "data.max_length": "1024",
        "model.strategy": FSDP2,
        "model.enable_gradient_checkpointing": "true",
    },
)
"""Sources: verl b178a3cd verl/trainer/config/sft_trainer.yaml:4-75; ``data.micro_batch_size`` is read nowhere in
verl/trainer/fsdp_sft_trainer.py."""

_EASY = "worker.actor."
EASY_R1 = replace(
    PPO,
    pattern=r"verl\.trainer\.main",
    model=(f"{_EASY}model.model_path",),
    engine="",
    sharding=f"{_EASY}fsdp.",
    optimizer=f"{_EASY}optim.",
    ulysses=(f"{_EASY}ulysses_size",),
    strategy=f"{_EASY}strategy",
    checkpoints=f"{_EASY}model.enable_gradient_checkpointing",
    samples=f"{_EASY}global_batch_size",
    micro_batch=f"{_EASY}micro_batch_size_per_device_for_update",
    dynamic="",
    tokens="",
    former_micro_batch="",
    adapters=(f"{_EASY}model.lora.rank",),
    defaults={
        **_RANKS,
        f"{_EASY}strategy": FSDP,
        f"{_EASY}global_batch_size": "256",
        f"{_EASY}micro_batch_size_per_device_for_update": "4",
        f"{_EASY}model.enable_gradient_checkpointing": "true",
        f"{_EASY}fsdp.torch_dtype": "fp32",
        f"{_EASY}fsdp.mp_param_dtype": "bf16",
        f"{_EASY}fsdp.mp_reduce_dtype": "fp32",
        f"{_EASY}fsdp.fsdp_size": "-1",
        f"{_EASY}fsdp.enable_full_shard": "true",
        "worker.rollout.n": "1",
        "data.max_prompt_length": "512",
        "data.max_response_length": "512",
    },
    validates=False,
    answers="worker.rollout.n",
    frozen_vision=f"{_EASY}model.freeze_vision_tower",
    targets=f"{_EASY}model.lora.target_modules",
    types={
        "model_dtype": "torch_dtype",
        "dtype": "mp_param_dtype",
        "mixed_precision.param_dtype": "mp_param_dtype",
        "mixed_precision.reduce_dtype": "mp_reduce_dtype",
        "reshard_after_forward": "enable_full_shard",
    },
    states_iteration=False,
)
"""EasyR1, a fork of verl. Sources: hiyouga/EasyR1 b44b311b verl/workers/actor/config.py:24-136 (names and defaults),
verl/workers/fsdp_workers.py:118-160 (meshes, batch), 199 (fp32 weights without a type),
verl/workers/actor/dp_actor.py:242 (a packed micro-batch has the tokens of as many of the longest as are stated),
verl/trainer/config.py:45-111."""

PROGRAMS = (FSDP_SFT, SFT, PPO, FURTHER_PPO, EASY_R1)
CONFIGS = {"ppo_trainer": FSDP, "ppo_megatron_trainer": MEGATRON}
"""Kinds of trainer of verl's own configurations (verl/trainer/config), by their name."""


def program_of(words: list[str]) -> Program | None:
    """The program that a command starts; None where it trains nothing."""
    for program in PROGRAMS:
        pattern = re.compile(rf"(?:{program.pattern})")
        if any(pattern.fullmatch(word) for word in words):
            return program
    return None
