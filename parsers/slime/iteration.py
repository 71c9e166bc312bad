"""What a slime script says of an iteration: roll-outs, log-probabilities, and what each phase leaves on the cards.

Source: THUDM/slime 624b824a. Phases: train.py:55-95 and slime/backends/megatron_utils/actor.py:196-240, 425-470: a
colocated training engine is paused whole while samples are generated and while weights are passed on, and resumed
whole for log-probabilities and training. The reference's weights lie on the host and take the policy's place for their
turn (actor.py ``_switch_model``); weights that are passed on come from the host too
(update_weight/update_weight_from_tensor.py, ``weights_getter``). Defaults: slime/utils/arguments.py:36-50, 528-530,
1937-1960; slime/backends/sglang_utils/arguments.py:47.

Under ``--advantage-estimator ppo`` a critic trains on the policy's cards in processes of its own
(slime/ray/placement_group.py:135, 189-208) with the policy's flags and an untied head of one value
(slime/utils/arguments.py:1669-1674, model_provider.py:109, 149); it values and trains, then the policy works, and each
is paused whole while the other has the cards (arguments.py:1961; actor.py ``train``, ``train_critic``).
"""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.memory.rollout_engine import FREE, RolloutEngine
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.rl_iteration import (
    CRITIC,
    ENGINE,
    LOG_PROBS,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    STATES,
    TRAINING,
    VALUES,
    Critic,
    RlIteration,
    stated_share,
    with_value_head,
)
from taylor.parsers.slime.script import CHECKPOINT, SlimeScript
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import TrainingConfig

_SHARE = 0.85
_NO_SHARE = (
    f"--sglang-mem-fraction-static is not stated: {_SHARE} is assumed, SGLang chooses one by the card and the layout"
)
_ROLES = "megatron-config-path"
_OVERRIDES = f"--{_ROLES} may give policy and critic settings of their own: those of the script are taken for both"


def iteration_of(script: SlimeScript, config: TrainingConfig) -> RlIteration:
    """The iteration of a script.

    Raises
    ------
    InputError
        When it generates no samples, or a value is wrong.
    """
    flags = script.flags
    prompts = flags.integer("rollout-batch-size", default=None)
    if prompts is None:
        cure = "evaluate its training with taylor solve -evaluate y"
        raise flags.error("rollout-batch-size", "is missing: the script has no roll-outs", cure=cure)
    answers = int(flags.integer("n-samples-per-prompt", default=1))
    colocated, cards = flags.has("colocate"), config.strategy.world_size
    wanted = flags.integer("rollout-num-gpus", default=cards if colocated else None)
    if wanted is None:
        raise flags.error("rollout-num-gpus", "is missing, and so is --colocate", cure="state one of the two")
    packed = flags.has("use-dynamic-batch-size")
    tokens = int(flags.integer("max-tokens-per-gpu", default=config.rules.seq_length, high=MAX_SIZE))
    scored = int(flags.integer("log-probs-max-tokens-per-gpu", default=tokens, high=MAX_SIZE))
    context, samples = config.strategy.cp, int(prompts) * answers
    each = max(1, samples // config.strategy.dp)
    notes = () if flags.has("sglang-mem-fraction-static") else (_NO_SHARE,)
    trains = flags.text("advantage-estimator", default="grpo") == "ppo"
    found = RlIteration(
        int(prompts),
        answers,
        int(flags.integer("rollout-max-prompt-len", default=0, low=0, high=MAX_SIZE)),
        int(flags.integer("rollout-max-response-len", default=config.rules.seq_length, high=MAX_SIZE)),
        updates=max(1, samples // config.strategy.global_batch),
        colocated=colocated,
        rollout_cards=int(wanted),
        engine=_engine(flags),
        resident=_resident(flags, colocated, trains),
        keeps_cache=colocated and flags.has("no-offload-rollout"),
        log_prob_samples=packed_samples(scored * context, config.rules.seq_length, each)
        if packed
        else config.strategy.mbs,
        packed_tokens=tokens * context if packed else None,
        log_prob_tokens=scored * context if packed else None,
        bucket_mib=flags.integer("update-weight-buffer-size", default=512 * 2**20, high=2**40) / 2**20,
        staleness=0 if colocated else 1,
        iterations=flags.known_count("num-rollout"),
        left_out=(*notes, *((_OVERRIDES,) if trains and flags.has(_ROLES) else ())),
    )
    return replace(found, critic=_critic(config, found)) if trains else found


def _critic(config: TrainingConfig, iteration: RlIteration) -> Critic:
    """The critic: the policy's layout, with a value head, and its states on the card while it works alone."""
    resident = {phase: STATES if phase in (VALUES, CRITIC) else frozenset[str]() for phase in iteration.resident}
    own = config.replace(model=with_value_head(config.model))
    return Critic(own, replace(iteration, resident=resident, left_out=()), own_process=True)


def _engine(flags: Flags) -> RolloutEngine:
    cards = int(flags.integer("rollout-num-gpus-per-engine", default=1))
    pp = int(flags.integer("sglang-pp-size", default=1))
    dp = int(flags.integer("sglang-dp-size", default=1)) if flags.has("sglang-enable-dp-attention") else 1
    name = "".join(char.text for char in flags.by_name[CHECKPOINT].values[0].chars) if flags.has(CHECKPOINT) else ""
    experts = max(flags.integer(f"sglang-{name}", default=1) for name in ("ep-size", "expert-parallel-size"))
    return RolloutEngine(
        "sglang",
        tp=max(1, cards // pp // dp),
        pp=pp,
        dp=dp,
        experts_split=experts > 1,
        weight_bytes=1 if "fp8" in name.lower() else 2,
        memory_share=stated_share(flags, "sglang-mem-fraction-static", _SHARE),
        share_of=FREE,
        concurrent=int(flags.integer("sglang-server-concurrency", default=512)),
    )


def _resident(flags: Flags, colocated: bool, critic: bool) -> dict[str, frozenset[str]]:
    """States of the policy on a training card by phase."""
    paused = critic or (colocated and not flags.has("no-offload-train"))
    kept = frozenset() if paused else STATES
    awake = frozenset({ENGINE}) if colocated and flags.has("no-offload-rollout") else frozenset()
    engine = frozenset({ENGINE}) if colocated else frozenset()
    phases = {ROLLOUT: kept | engine}
    if critic:
        phases |= {VALUES: awake, CRITIC: awake}
    if not flags.has("use-rollout-logprobs"):
        phases[LOG_PROBS] = STATES | awake
    if flags.has("use-kl-loss") or flags.number("kl-coef", default=0.0):
        phases[REFERENCE] = STATES | awake
    return {**phases, TRAINING: STATES | awake, RESHARDING: kept | engine}
