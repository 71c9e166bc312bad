"""What a verl script says of an iteration: roll-outs, log-probabilities, and what each phase leaves on the cards.

Source: verl-project/verl 1dda039b. Phases: verl/workers/engine_workers.py:800-850 (``update_weights``: the engine's
weights wake, the policy's are gathered into buckets, then leave, then the cache wakes). Offload:
verl/workers/engine/megatron/transformer_impl.py:653-655, 723-750 and verl/utils/megatron_utils.py:663-780: gradients
leave with the parameters, and log-probabilities load none. Under FSDP gradients exist in a step alone, and the
reference is sharded in the host's memory (verl/workers/engine/fsdp/transformer_impl.py:405-416, 440-444).
Defaults: verl/trainer/config/rollout/rollout.yaml, ref/ref.yaml, data/legacy_data.yaml:42, ppo_trainer.yaml.
"""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.memory.rollout_engine import FREE, WHOLE, RolloutEngine
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.policy.options import Options
from taylor.parsers.rl_iteration import (
    COPY,
    CRITIC,
    ENGINE,
    LOG_PROBS,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    STATES,
    TRAINING,
    VALUES,
    WEIGHTS,
    RlIteration,
    stated_share,
)
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl.critic import critic_of, kept_states, trains_critic
from taylor.parsers.verl.job import VerlStart
from taylor.parsers.verl.programs import MEGATRON

_ROLLOUT, _ACTOR, _REF = "actor_rollout_ref.rollout.", "actor_rollout_ref.actor.", "actor_rollout_ref.ref."


def iteration_of(start: VerlStart, config: TrainingConfig) -> RlIteration:
    """The iteration of a script.

    Raises
    ------
    InputError
        When the program rolls nothing out, or a value is wrong.
    """
    options, program = start.options, start.program
    if not program.states_iteration:
        cure = "evaluate its training with taylor solve -evaluate y"
        raise options.error(program.samples, "is of EasyR1, whose roll-outs are not read", cure=cure)
    if not program.rolls_out:
        cure = "evaluate its training with taylor solve -evaluate y"
        raise options.error(program.samples, f"is of {program.title}, which has no roll-outs", cure=cure)
    prompts = int(options.integer("data.train_batch_size", default=1024, low=0, high=2**31))
    mini = int(options.integer(program.samples, high=2**31))
    prompts = prompts or mini * int(options.integer("async_training.trigger_parameter_sync_step", default=1))
    epochs = int(options.integer(f"{_ACTOR}ppo_epochs", default=1))
    colocated = options.is_on("actor_rollout_ref.hybrid_engine", default=True)
    context = config.strategy.cp
    each = max(1, prompts * start.answers // config.strategy.dp)
    packed = options.is_on(program.dynamic)
    tokens = int(options.integer(program.tokens, high=MAX_SIZE)) * context
    scored = int(options.integer(f"{_ROLLOUT}log_prob_max_token_len_per_gpu", default=tokens // context)) * context
    counted = options.integer(f"{_ROLLOUT}log_prob_micro_batch_size_per_gpu", default=config.strategy.mbs)
    megabytes = options.integer(f"{_ROLLOUT}checkpoint_engine.update_weights_bucket_megabytes", default=2048)
    cards = config.strategy.world_size
    if not colocated:
        cards = options.integer("rollout.n_gpus_per_node") * options.integer("rollout.nnodes", default=1)
    trains = trains_critic(options)
    found = RlIteration(
        prompts,
        start.answers,
        int(options.integer("data.max_prompt_length", low=0, high=MAX_SIZE)),
        int(options.integer("data.max_response_length", high=MAX_SIZE)),
        updates=max(1, prompts // mini) * epochs,
        colocated=colocated,
        rollout_cards=int(cards),
        engine=_engine(options),
        resident=_resident(start, colocated, trains),
        keeps_cache=not options.is_on(f"{_ROLLOUT}free_cache_engine", default=True),
        log_prob_samples=packed_samples(scored, config.rules.seq_length, each) if packed else int(counted),
        packed_tokens=tokens if packed else None,
        log_prob_tokens=scored if packed else None,
        bucket_mib=float(megabytes),
        staleness=0 if colocated else 1,
        iterations=options.known_count("trainer.total_training_steps"),
    )
    if not trains:
        return found
    critic = critic_of(start, config, found)
    return replace(found, critic=critic, left_out=critic.iteration.left_out)


def _engine(options: Options) -> RolloutEngine:
    name = str(options.text(f"{_ROLLOUT}name", default="vllm"))
    dp = int(options.integer(f"{_ROLLOUT}data_parallel_size", default=1))
    return RolloutEngine(
        name,
        tp=int(options.integer(f"{_ROLLOUT}tensor_model_parallel_size", default=2)),
        pp=int(options.integer(f"{_ROLLOUT}pipeline_model_parallel_size", default=1)),
        dp=dp,
        experts_split=options.integer(f"{_ROLLOUT}expert_parallel_size", default=1) > 1,
        weight_bytes=1 if options.text(f"{_ROLLOUT}quantization", default="") == "fp8" else 2,
        memory_share=stated_share(options, f"{_ROLLOUT}gpu_memory_utilization", 0.5),
        share_of=FREE if name == "sglang" else WHOLE,
        concurrent=int(options.integer(f"{_ROLLOUT}max_num_seqs", default=256)) * dp,
    )


def _resident(start: VerlStart, colocated: bool, critic: bool) -> dict[str, frozenset[str]]:
    """States of the policy on a training card by phase."""
    options = start.options
    by_megatron = start.kind == MEGATRON
    kept = set(kept_states(options, start.program, start.kind))
    leaves = WEIGHTS not in kept
    scored = options.is_on(f"{_ACTOR}use_kl_loss") or options.is_on("algorithm.use_kl_in_reward")
    away = options.is_on(f"{_REF}megatron.param_offload", default=leaves) if by_megatron else True
    kept |= {COPY} if scored and not away else set()
    sleeps = options.is_on(f"{_ROLLOUT}free_cache_engine", default=True)
    kept |= {ENGINE} if colocated and not sleeps else set()
    phases = {ROLLOUT: kept | {ENGINE} if colocated else kept}
    if not options.is_on("algorithm.rollout_correction.bypass_mode"):
        phases[LOG_PROBS] = kept | {WEIGHTS}
    if scored:
        phases[REFERENCE] = kept | ({COPY} if by_megatron else set())
    if critic:
        phases |= {VALUES: kept, CRITIC: kept}
    phases[TRAINING] = kept | STATES
    phases[RESHARDING] = kept | {WEIGHTS} | ({ENGINE} if colocated else set())
    return {phase: frozenset(states) for phase, states in phases.items()}
