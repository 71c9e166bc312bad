"""verl's start-up checks of a policy's batch and of the ranks that split a sample.

Source: verl b178a3cd verl/utils/config.py (``validate_config``) and verl/workers/config/actor.py, which the programs
call that `Program.validates` says. Whole replicas and the heads of Ulysses are rules of the strategy
(`nd_search.legality`).
"""

from __future__ import annotations

from taylor.parsers.start_rules import KeyRule, Keys, is_on, whole
from taylor.parsers.verl.programs import Program

_ACTOR = "actor_rollout_ref.actor"
_PLACES = "verl b178a3cd verl"
_TRAIN, _PROMPTS = "data.train_batch_size", f"{_ACTOR}.ppo_mini_batch_size"
_ALL, _EACH = f"{_ACTOR}.ppo_micro_batch_size", f"{_ACTOR}.ppo_micro_batch_size_per_gpu"
_MEGATRON = f"{_ACTOR}.megatron."


def _packs(keys: Keys) -> bool:
    return is_on(keys(f"{_ACTOR}.use_dynamic_bsz"))


def _prompts_a_round(keys: Keys) -> int:
    return whole(keys, _TRAIN, 1024)


def _least_batch(keys: Keys) -> int:
    """Samples that all ranks take at once (config.py:86-107)."""
    ranks = whole(keys, "trainer.n_gpus_per_node", 8) * whole(keys, "trainer.nnodes", 1)
    if str(keys(f"{_ACTOR}.strategy")) != "megatron":
        return ranks
    degrees = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
    for name in degrees:
        ranks //= max(1, whole(keys, f"{_MEGATRON}{name}", 1))
    return max(1, ranks) * max(1, whole(keys, _EACH, 1))


def _splits_samples(keys: Keys) -> bool:
    """By the actor's own key alone, as it is checked before FSDP's is (actor.py:304-306)."""
    split = whole(keys, f"{_ACTOR}.ulysses_sequence_parallel_size", 1) > 1
    return split and str(keys(f"{_ACTOR}.strategy")) != "megatron"


START_RULES = (
    KeyRule(
        "one-micro-batch",
        _ALL,
        lambda keys: not _packs(keys) and keys(_ALL) is not None and keys(_EACH) is not None,
        f"stands beside {_EACH}",
        f"leave {_ALL} out",
        f"{_PLACES}/workers/config/actor.py:180",
    ),
    KeyRule(
        "mini-batch-in-round",
        _TRAIN,
        lambda keys: not _packs(keys) and _prompts_a_round(keys) < whole(keys, _PROMPTS, 256),
        f"is below {_PROMPTS}",
        f"write at least {_PROMPTS}",
        f"{_PLACES}/workers/config/actor.py:204",
        any_strategy=False,
    ),
    KeyRule(
        "round-by-ranks",
        _TRAIN,
        lambda keys: (
            not _packs(keys)
            and _prompts_a_round(keys) * whole(keys, "actor_rollout_ref.rollout.n", 1) % _least_batch(keys) != 0
        ),
        "times rollout.n is no multiple of the samples that all ranks take at once",
        "write another batch, or start other ranks",
        f"{_PLACES}/utils/config.py:110",
        any_strategy=False,
    ),
    KeyRule(
        "ulysses-without-padding",
        "actor_rollout_ref.model.use_remove_padding",
        lambda keys: (
            _splits_samples(keys)
            and keys("actor_rollout_ref.model.use_remove_padding") is not None
            and not is_on(keys("actor_rollout_ref.model.use_remove_padding"))
        ),
        "must be true where ranks split a sample",
        "write true",
        f"{_PLACES}/workers/config/actor.py:306",
        any_strategy=False,
    ),
)
_OF_ACTOR = tuple(rule for rule in START_RULES if rule.name == "one-micro-batch")
"""Those that the actor's class makes as it is built; the others are made by ``validate_config``."""


def start_rules_of(program: Program) -> tuple[KeyRule, ...]:
    """Checks of a program: a fine-tuning makes none of these, and a class that holds the actor's keys one."""
    if program.validates:
        return START_RULES
    return _OF_ACTOR if program.rolls_out else ()
