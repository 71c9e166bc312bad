"""The fields of a NeMo RL YAML, composed by OmegaConf with the bases that it inherits.

Source: NVIDIA-NeMo/RL 7ea279ab, by file and line.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.differential_reading.checkout import LINEAR, product_of, quotient, targets
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole

_MOST_BASES = 16
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def read_experiment(path: Path) -> list[Reading]:
    """The fields of the policy's training that a file and its bases describe.

    Raises
    ------
    NothingToRead
        When they describe none, or OmegaConf is missing.
    """
    if find_spec("omegaconf") is None:
        raise NothingToRead("needs OmegaConf, which composes NeMo RL's files (pip install hydra-core)")
    data = composed(path)
    policy = data.get("policy")
    if not isinstance(policy, dict) or "train_global_batch_size" not in policy:
        raise NothingToRead("describes no policy of NeMo RL")
    megatron = _part(policy, "megatron_cfg")
    ranks = _ranks(data, policy)
    # nemo_rl/algorithms/dpo.py:602, rm.py:542: a sample is a pair.
    pair = 2 if "dpo" in data or "rm" in data else 1
    packed = any(_part(policy, name).get("enabled") for name in ("sequence_packing", "dynamic_batching"))
    shared: dict[str, Value | None] = {
        "ranks": ranks,
        "sequence": whole(policy.get("max_total_sequence_length")),
        "batch": product_of(whole(policy.get("train_global_batch_size")), pair),
        "mbs": None if packed else product_of(whole(policy.get("train_micro_batch_size")), pair),
        "compute_bytes": _BYTES.get(str(policy.get("precision"))),
    }
    own = _megatron(megatron, ranks) if megatron.get("enabled") else _dtensor(_part(policy, "dtensor_cfg"), ranks)
    return [settled(shared | own)]


def composed(path: Path) -> dict[str, Any]:
    """A file over its bases, as nemo_rl/utils/config.py:35-110 composes them; what stays open is None."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    for name, function in (
        ("add", lambda a, b: a + b),
        ("mul", lambda a, b: a * b),
        ("div", lambda a, b: a / b),
        ("max", max),
    ):
        OmegaConf.register_new_resolver(name, function, replace=True)
    try:
        config = _inherited(path, _MOST_BASES)
        plain = OmegaConf.to_container(config)
    except (OmegaConfBaseException, OSError, ValueError) as error:
        raise NothingToRead(f"is not composed by OmegaConf: {type(error).__name__}") from None
    found = _filled(config, plain)
    if not isinstance(found, dict):
        raise NothingToRead("is no mapping")
    return found


def _inherited(path: Path, most: int) -> Any:
    from omegaconf import DictConfig, OmegaConf

    if most == 0:
        raise ValueError("inherits too many files")
    own = OmegaConf.load(path)
    if not isinstance(own, DictConfig):
        raise ValueError("is no mapping")
    bases = own.pop("defaults", [])
    base = OmegaConf.create({})
    for each in [bases] if isinstance(bases, str) else list(bases):
        base = _over(base, _inherited(path.parent / str(each), most - 1))
    return _over(base, own)


def _over(base: Any, own: Any) -> Any:
    """``_override_`` at the top level of sections drops what stands below (config.py:35-55)."""
    from omegaconf import DictConfig, OmegaConf

    for key in list(own):
        if not OmegaConf.is_missing(own, key) and isinstance(own[key], DictConfig) and own[key].get("_override_"):
            own[key].pop("_override_")
            base.pop(key, None)
    return OmegaConf.merge(base, own)


def _filled(config: Any, plain: Any) -> Any:
    """Interpolations resolved one by one; one that is not resolved is None."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    def value(parent: Any, key: Any, text: Any) -> Any:
        if isinstance(text, dict):
            return {name: value(parent[key], name, each) for name, each in text.items()}
        if isinstance(text, str) and ("${" in text or text == "???"):
            try:
                found = parent[key]
            except (OmegaConfBaseException, ValueError, TypeError, ZeroDivisionError):
                return None
            return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
        return text

    return {key: value(config, key, each) for key, each in plain.items()}


def _part(data: dict[str, Any], *names: str) -> dict[str, Any]:
    """A section by the names of those above; empty where one is missing."""
    for name in names:
        found = data.get(name)
        data = found if isinstance(found, dict) else {}
    return data


def _ranks(data: dict[str, Any], policy: dict[str, Any]) -> int | None:
    """Ranks of the policy (nemo_rl/algorithms/grpo.py:758-914); None with teachers of their own."""
    cluster = _part(data, "cluster")
    each, total = whole(cluster.get("gpus_per_node")), whole(cluster.get("num_nodes"))
    if each is None or total is None or _part(data, "on_policy_distillation", "non_colocated_teachers").get("enabled"):
        return None
    nodes = total
    if "grpo" in data and _has_reward_model(data):
        reward = _part(data, "env", "reward_model", "resources")
        taken = whole(reward.get("gpus_per_node")) if total == 1 else whole(reward.get("num_nodes"))
        if taken is None:
            return None
        each, nodes = (each - taken, nodes) if total == 1 else (each, nodes - taken)
    colocated = _part(policy, "generation", "colocated")
    if colocated.get("enabled", True) or not any(name in data for name in ("grpo", "ppo", "distillation")):
        return each * nodes
    generation = _part(colocated, "resources")
    taken = whole(generation.get("gpus_per_node" if nodes == 1 else "num_nodes"))
    if taken is None:
        return None
    return (each - taken) * nodes if nodes == 1 else each * (nodes - taken)


def _has_reward_model(data: dict[str, Any]) -> bool:
    """nemo_rl/data/datasets/utils.py:291, ``extract_necessary_env_names``: a dataset names the environment."""

    def names(section: Any) -> list[Any]:
        if isinstance(section, list):
            return [name for each in section for name in names(each)]
        if not isinstance(section, dict):
            return []
        return [section.get("env_name"), *(name for each in section.values() for name in names(each))]

    return "reward_model" in names(data.get("data"))


def _megatron(section: dict[str, Any], ranks: int | None) -> dict[str, Value | None]:
    """nemo_rl/models/megatron/setup.py:858-1209, 1071-1085 (recompute), 1772-1791 (adapters)."""
    tp, pp, cp, ep = (
        whole(section.get(f"{name}_parallel_size", 1))
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    granularity = section.get("recompute_granularity") or "full"
    peft = _part(section, "peft")
    on = bool(peft.get("enabled"))
    return {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "dp": quotient(ranks, tp, pp, cp),
        "recompute": str(granularity) if section.get("activation_checkpointing") else "none",
        "sharded_optimizer": bool(_part(section, "optimizer").get("use_distributed_optimizer")),
        "adapter_rank": whole(peft.get("dim")) if on else 0,
        "adapter_targets": _targets(peft, LINEAR) if on else None,
    }


def _dtensor(section: dict[str, Any], ranks: int | None) -> dict[str, Value | None]:
    """nemo_rl/models/automodel/setup.py:463-520, 664-673 (adapters)."""
    tp, cp, ep, copies = (
        whole(section.get(name, 1))
        for name in ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "dp_replicate_size")
    )
    shards = quotient(ranks, tp, copies)
    lora = _part(section, "lora_cfg")
    on = bool(lora.get("enabled"))
    return {
        "tp": tp,
        "pp": 1,
        "cp": cp,
        "ep": ep,
        "dp": quotient(ranks, tp, cp),
        "recompute": "full" if section.get("activation_checkpointing") else "none",
        "zero": None if shards is None else 3 if shards > 1 else 0,
        "adapter_rank": whole(lora.get("dim")) if on else 0,
        "adapter_targets": None if not on else LINEAR if lora.get("match_all_linear") else _targets(lora, LINEAR),
    }


def _targets(section: dict[str, Any], default: str) -> str | None:
    return None if section.get("exclude_modules") else targets(section.get("target_modules"), default)
