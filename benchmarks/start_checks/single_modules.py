"""Start-up checks of verl, NeMo RL and OLMo-core: each module runs by itself, with stand-ins for what it imports."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from benchmarks.mindspeed.stand_ins import alone, torch_alone

Check = Callable[[dict[str, Any]], None]
_OLMO_BASES = (
    "Config", "ContextParallelConfig", "DataParallelConfig", "ExpertParallelConfig", "PipelineParallelConfig",
    "TensorParallelConfig", "TrainModuleConfig", "ModuleConfig", "ModelConfig", "TrainModule",
)  # fmt: skip
_NEMO_RL_BASES = (
    "ColocatablePolicyInterface", "GenerationInterface", "_BaseNeMoAutoModelClass", "AutoModelForTokenClassification"
)  # fmt: skip
"""Classes from which those of OLMo-core and of NeMo RL derive."""


class _Section(dict[str, Any]):
    """A section whose keys are attributes too; those that are not stated are off."""

    def __getattr__(self, name: str) -> Any:
        value = self.get(name)
        return _Section(value) if isinstance(value, dict) else value


def verl(root: Path) -> Check:
    """verl's ``validate_config`` with its classes of the actor; Hydra's merge with the defaults is left out."""
    actors = alone(root, "verl/workers/config/actor.py", BaseConfig=type("BaseConfig", (), {"_mutable_fields": set()}))
    module = alone(root, "verl/utils/config.py")

    def actor_of(section: _Section) -> Any:
        kind = actors.McoreActorConfig if section.strategy == "megatron" else actors.FSDPActorConfig
        return kind(**section, rollout_n=1)

    module.omega_conf_to_dataclass = actor_of

    def check(settings: dict[str, Any]) -> None:
        module.validate_config(_Section(settings), use_reference_policy=False, use_critic=False)

    return check


def nemo_rl(root: Path) -> Check:
    """NeMo RL's ``Policy``, then the set-up of its workers on DTensors."""
    os.environ |= {"TORCH_CUDA_ARCH_LIST": "9.0"}
    bases = {name: type(name, (), {}) for name in _NEMO_RL_BASES}
    policies = alone(root, "nemo_rl/models/policy/lm_policy.py", **bases)
    torch = MagicMock()
    # It ends where its own class is imported from elsewhere.
    given = {"torch": torch, "NeMoAutoModelForTokenClassification": ImportError(), **bases}
    given["create_device_mesh"] = lambda *words, **named: (MagicMock(), MagicMock())
    worker = alone(root, "nemo_rl/models/automodel/setup.py", **given)

    def check(settings: dict[str, Any]) -> None:
        cluster = settings["cluster"]
        ranks = cluster["gpus_per_node"] * cluster["num_nodes"]
        torch.distributed.get_world_size.return_value = ranks
        config = settings["policy"]
        policies.Policy(MagicMock(world_size=lambda: ranks), config, tokenizer=None)
        if config["dtensor_cfg"]["enabled"]:
            prepared = worker.validate_and_prepare_config(config, None, 0)
            worker.setup_distributed(config, prepared)

    return check


class _Words(str, Enum):
    """OLMo-core's base of its enumerations."""


def olmo(root: Path) -> Check:
    """OLMo-core's configurations of recompute and contexts, its module of training and its wrapping of blocks."""
    transformer, trained = "src/olmo_core/nn/transformer", "src/olmo_core/train/train_module/transformer"
    common = {
        "torch": torch_alone(), "nn": MagicMock(Module=object), "StrEnum": _Words, "beta_feature": lambda kind: kind,
        "OLMoConfigurationError": ValueError, "is_distributed": lambda: False,
        **{name: type(name, (), {"as_dict": lambda self, **how: {"name": None}}) for name in _OLMO_BASES},
    }  # fmt: skip
    blocks = {
        name: kind
        for name, kind in vars(alone(root, f"{transformer}/block.py", **common)).items()
        if isinstance(kind, type) and name.endswith("Block")
    }
    empty = {name: lambda kind=kind, **sizes: object.__new__(kind) for name, kind in blocks.items()}
    own = alone(root, f"{transformer}/config.py", **common, **empty)
    common["TransformerActivationCheckpointingMode"] = own.TransformerActivationCheckpointingMode
    configs = alone(root, f"{trained}/config.py", **common)
    module = alone(root, f"{trained}/train_module.py", **common)
    models = alone(root, f"{transformer}/model.py", **common, **blocks)

    def check(settings: dict[str, Any]) -> None:
        stated = settings["train_module"]
        if "cp_config" in stated:
            configs.TransformerContextParallelConfig(**stated["cp_config"])
        if "ac_config" not in stated:
            return
        words = dict(stated["ac_config"])
        if "mode" in words:
            words["mode"] = own.TransformerActivationCheckpointingMode(words["mode"])
        recompute = configs.TransformerActivationCheckpointingConfig(**words)
        compiles = stated.get("compile_model", False)
        module.TransformerTrainModule(MagicMock(), MagicMock(), 1, 1, compile_model=compiles, ac_config=recompute)
        block = object.__new__(own.TransformerBlockConfig)
        block.name = own.TransformerBlockType(settings["model"]["block"]["name"])
        built = block.build(d_model=1, block_idx=0, n_layers=1)
        model = SimpleNamespace(blocks=MagicMock(values=lambda: [built]), named_modules=list)
        models.Transformer.apply_activation_checkpointing(
            model, recompute.mode, recompute.block_interval, recompute.modules, recompute.activation_memory_budget
        )

    return check
