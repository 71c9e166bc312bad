"""NeMo RL's start-up checks of the policy's backend, batch and splits.

Source: NVIDIA-NeMo/RL 7ea279ab nemo_rl/models/policy/lm_policy.py and nemo_rl/models/automodel/setup.py.
"""

from __future__ import annotations

from typing import Any

from taylor.parsers.start_rules import KeyRule, Keys, is_on, whole

_MEGATRON, _DTENSOR = "policy.megatron_cfg.", "policy.dtensor_cfg."
_PLACES = "NeMo-RL 7ea279ab nemo_rl/models"
_RANKS = "ranks of the policy"
_PACKED, _DYNAMIC = "policy.sequence_packing.enabled", "policy.dynamic_batching.enabled"


def with_ranks(keys: Keys, ranks: int) -> Keys:
    """Keys of a file, and the ranks that train its policy: the cluster's without those of roll-outs and others."""

    def value(key: str) -> Any:
        return ranks if key == _RANKS else keys(key)

    return value


def _by_megatron(keys: Keys) -> bool:
    return is_on(keys(f"{_MEGATRON}enabled"))


def _by_dtensor(keys: Keys) -> bool:
    return is_on(keys(f"{_DTENSOR}enabled")) and not _by_megatron(keys)


def _degree(keys: Keys, megatron: str, dtensor: str) -> int:
    return whole(keys, f"{_MEGATRON}{megatron}" if _by_megatron(keys) else f"{_DTENSOR}{dtensor}", 1)


def _replicates(keys: Keys) -> bool:
    return _by_dtensor(keys) and whole(keys, f"{_DTENSOR}dp_replicate_size", 1) > 1


def _whole_replicas(keys: Keys) -> bool:
    ranks = whole(keys, _RANKS, 1)
    names = ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size")
    for name in names:
        ranks //= whole(keys, f"{_DTENSOR}{name}", 1)
    return ranks % whole(keys, f"{_DTENSOR}dp_replicate_size", 1) == 0


START_RULES = (
    KeyRule(
        "one-backend",
        f"{_DTENSOR}enabled",
        lambda keys: _by_megatron(keys) and is_on(keys(f"{_DTENSOR}enabled")),
        f"is on beside {_MEGATRON}enabled",
        "switch one of the two off",
        f"{_PLACES}/policy/lm_policy.py:122",
    ),
    KeyRule(
        "draft-needs-megatron",
        "policy.draft.enabled",
        lambda keys: is_on(keys("policy.draft.enabled")) and not _by_megatron(keys),
        f"needs {_MEGATRON}enabled",
        "switch it off",
        f"{_PLACES}/policy/lm_policy.py:127",
    ),
    KeyRule(
        "draft-without-packing",
        "policy.draft.enabled",
        lambda keys: is_on(keys("policy.draft.enabled")) and is_on(keys(_PACKED)),
        f"does not go with {_PACKED}",
        "switch one of the two off",
        f"{_PLACES}/policy/lm_policy.py:134",
    ),
    KeyRule(
        "lora-needs-second-worker",
        f"{_DTENSOR}lora_cfg.enabled",
        lambda keys: (
            is_on(keys(f"{_DTENSOR}lora_cfg.enabled")) and _by_dtensor(keys) and not is_on(keys(f"{_DTENSOR}_v2"))
        ),
        f"needs {_DTENSOR}_v2",
        f"write {_DTENSOR}_v2: true",
        f"{_PLACES}/policy/lm_policy.py:175-177",
    ),
    KeyRule(
        "replicas-need-second-worker",
        f"{_DTENSOR}dp_replicate_size",
        lambda keys: _replicates(keys) and not is_on(keys(f"{_DTENSOR}_v2")),
        f"needs {_DTENSOR}_v2",
        f"write {_DTENSOR}_v2: true",
        f"{_PLACES}/policy/lm_policy.py:180",
    ),
    KeyRule(
        "replicas-in-ranks",
        f"{_DTENSOR}dp_replicate_size",
        lambda keys: _replicates(keys) and not _whole_replicas(keys),
        "does not divide the data-parallel ranks",
        "write a divisor",
        f"{_PLACES}/automodel/setup.py:471",
        any_strategy=False,
    ),
    KeyRule(
        "packed-or-dynamic",
        _DYNAMIC,
        lambda keys: is_on(keys(_DYNAMIC)) and is_on(keys(_PACKED)),
        f"does not go with {_PACKED}",
        "switch one of the two off",
        f"{_PLACES}/policy/lm_policy.py:325",
    ),
    KeyRule(
        "dynamic-without-pipeline",
        _DYNAMIC,
        lambda keys: (
            is_on(keys(_DYNAMIC))
            and _by_megatron(keys)
            and whole(keys, f"{_MEGATRON}pipeline_model_parallel_size", 1) > 1
        ),
        "does not go with pipeline stages",
        "switch it off, or take one stage",
        f"{_PLACES}/policy/lm_policy.py:313",
        any_strategy=False,
    ),
    KeyRule(
        "packed-without-context",
        _PACKED,
        lambda keys: (
            is_on(keys(_PACKED)) and _by_dtensor(keys) and whole(keys, f"{_DTENSOR}context_parallel_size", 1) > 1
        ),
        "does not go with context parallelism on DTensors",
        "switch it off, or take one context rank",
        f"{_PLACES}/automodel/setup.py:385",
        any_strategy=False,
    ),
    KeyRule(
        "log-probabilities-batch-under-tp",
        "policy.logprob_batch_size",
        lambda keys: (
            _degree(keys, "tensor_model_parallel_size", "tensor_parallel_size") >= 4
            and keys("policy.logprob_batch_size") is not None
            and str(keys("policy.logprob_batch_size")) != str(keys("policy.train_micro_batch_size"))
            and not is_on(keys("loss_fn.force_on_policy_ratio"))
        ),
        "is not policy.train_micro_batch_size under tensor parallelism of 4 or more",
        "write the same value, or set NRL_IGNORE_TP_ACCURACY_CHECK=1",
        f"{_PLACES}/policy/lm_policy.py:212",
        any_strategy=False,
    ),
)
