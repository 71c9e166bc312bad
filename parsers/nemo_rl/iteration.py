"""What a NeMo RL file says of an iteration: roll-outs, log-probabilities, and what each phase leaves on the cards.

Source: NVIDIA-NeMo/RL 7ea279ab. Phases: nemo_rl/algorithms/grpo.py:3205-3330 and
nemo_rl/weight_sync/ipc_weight_synchronizer.py:66-106. Offload:
nemo_rl/models/policy/workers/megatron_policy_worker.py:2931-3190 (gradients and optimizer leave before weights are
passed on, the weights after; the optimizer comes back for training alone, unless ``offload_optimizer_for_refit`` is
off, nemo_rl/models/megatron/setup.py:375) and dtensor_policy_worker_v2.py:1223-1300. The reference's weights lie on the
host and take the policy's place for their turn (megatron_policy_worker.py:1971-2000). The bucket of weights is a share
of what is free (ipc_weight_synchronizer.py:117-134), so that only one tensor counts.

Under PPO a value model trains in processes of its own (nemo_rl/algorithms/ppo.py:1515-1660): it values the samples
before the policy scores them, and trains before the policy in each of ``ppo_epochs``; each of the two lies on the host
while the other works (nemo_rl/models/value/workers/megatron_value_worker.py:777-967). Its head gives one value and has
no tie to the embedding (374).
"""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.memory.rollout_engine import FREE, WHOLE, RolloutEngine
from taylor.parsers.nemo_rl.job import MEGATRON, POLICY, RlMegatronJob, RlStart, sharded_job
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.policy.options import Options
from taylor.parsers.policy.sharded import sharded_config
from taylor.parsers.rl_iteration import (
    CRITIC,
    ENGINE,
    LOG_PROBS,
    OPTIMIZER,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    STATES,
    TRAINING,
    VALUES,
    WEIGHTS,
    Critic,
    RlIteration,
    stated_share,
    with_value_head,
)
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.training_config import TrainingConfig

_TURNS = "policy and value model change places in each of ppo.ppo_epochs: their moves to the host are counted once"
_GENERATION, _LOSS = f"{POLICY}generation.", "loss_fn."


def iteration_of(start: RlStart, config: TrainingConfig) -> RlIteration:
    """The iteration of a file.

    Raises
    ------
    InputError
        When the file has no roll-outs, or a value is wrong.
    """
    options = start.options
    trains = options.has("ppo.num_prompts_per_step")
    way = "ppo." if trains else "grpo."
    if not options.has(f"{way}num_prompts_per_step"):
        cure = "evaluate its training with taylor solve -evaluate y"
        raise options.error(f"{way}num_prompts_per_step", "is missing: the file has no roll-outs", cure=cure)
    prompts = int(options.integer(f"{way}num_prompts_per_step", high=2**31))
    answers = int(options.integer(f"{way}num_generations_per_prompt", default=1))
    epochs = int(options.integer("ppo.ppo_epochs", default=1)) if trains else 1
    colocated = options.is_on(f"{_GENERATION}colocated.enabled", default=True)
    whole = options.integer("cluster.gpus_per_node") * options.integer("cluster.num_nodes", default=1)
    cards = config.strategy.world_size
    longest, dp = config.rules.seq_length, config.strategy.dp
    each = max(1, prompts * answers // dp)
    counted = int(options.integer(f"{POLICY}logprob_batch_size", default=config.strategy.mbs))
    tokens, scored = _packed_tokens(options, longest * config.strategy.mbs, longest * counted)
    answer = int(options.integer(f"{_GENERATION}max_new_tokens", default=longest, high=MAX_SIZE))
    found = RlIteration(
        prompts,
        answers,
        max(0, longest - answer),
        min(answer, longest),
        updates=epochs * max(1, prompts * answers // config.strategy.global_batch),
        colocated=colocated,
        rollout_cards=cards if colocated else int(whole) - cards,
        engine=_engine(options),
        resident=_resident_of_ppo(options, colocated) if trains else _resident(start, colocated),
        log_prob_samples=counted if scored is None else packed_samples(scored, longest, each),
        packed_tokens=tokens,
        log_prob_tokens=scored,
        bucket_mib=0.0,
        staleness=0 if colocated else 1,
        left_out=(_TURNS,) if epochs > 1 else (),
    )
    return replace(found, critic=_critic(start, config, found, epochs)) if trains else found


def _packed_tokens(options: Options, training: int, scoring: int) -> tuple[int | None, int | None]:
    """Tokens that micro-batches of training and of scoring are packed to, by default these; None where none are."""
    for name in ("sequence_packing", "dynamic_batching"):
        if options.is_on(f"{POLICY}{name}.enabled"):
            return (
                int(options.integer(f"{POLICY}{name}.train_mb_tokens", default=training, high=MAX_SIZE)),
                int(options.integer(f"{POLICY}{name}.logprob_mb_tokens", default=scoring, high=MAX_SIZE)),
            )
    return None, None


def _critic(policy: RlStart, config: TrainingConfig, iteration: RlIteration, epochs: int) -> Critic:
    """The value model: ``value``, which has the policy's options by the same names."""
    start = RlStart(policy.experiment.value_model())
    if start.by_megatron:
        trained = RlMegatronJob(start).config()
    else:
        names = {"dp": "cluster.num_nodes", "gbs": "value.train_global_batch_size"}
        trained = sharded_config(sharded_job(start), start.notes, (), names)
    trained = trained.replace(model=with_value_head(start.model))
    strategy, longest = trained.strategy, trained.rules.seq_length
    counted = int(start.options.integer(f"{POLICY}logprob_batch_size", default=strategy.mbs))
    tokens, scored = _packed_tokens(start.options, longest * strategy.mbs, longest * counted)
    each = max(1, iteration.samples // strategy.dp)
    resident = dict.fromkeys(iteration.resident, frozenset[str]())
    own_iteration = replace(
        iteration,
        updates=epochs * max(1, iteration.samples // strategy.global_batch),
        resident={**resident, VALUES: frozenset({WEIGHTS}), CRITIC: STATES},
        log_prob_samples=counted if scored is None else packed_samples(scored, longest, each),
        packed_tokens=tokens,
        log_prob_tokens=scored,
        left_out=(),
    )
    return Critic(trained, own_iteration, own_process=True).on_cards(config.strategy.world_size)


def _engine(options: Options) -> RolloutEngine:
    name = str(options.text(f"{_GENERATION}backend", default="vllm"))
    if name not in ("vllm", "sglang"):
        raise options.error(f"{_GENERATION}backend", "is no engine that is read", name, "write vllm or sglang")
    below = f"{_GENERATION}{name}_cfg."
    tp = int(options.integer(f"{below}tensor_parallel_size", default=options.integer(f"{below}tp_size", default=1)))
    experts = int(options.integer(f"{below}expert_parallel_size", default=1))
    share = "gpu_memory_utilization" if name == "vllm" else "mem_fraction_static"
    return RolloutEngine(
        name,
        tp=tp,
        pp=int(options.integer(f"{below}pipeline_parallel_size", default=1)),
        dp=max(1, experts // tp),
        experts_split=experts > 1,
        weight_bytes=1 if options.text(f"{below}precision", default="bfloat16") == "fp8" else 2,
        memory_share=stated_share(options, f"{below}{share}", 0.6),
        share_of=WHOLE if name == "vllm" else FREE,
        concurrent=int(options.integer(f"{below}max_num_seqs", default=1024)),
        cache_bytes=1 if "fp8" in str(options.text(f"{below}kv_cache_dtype", default="auto")) else 2,
    )


def _resident_of_ppo(options: Options, colocated: bool) -> dict[str, frozenset[str]]:
    """States of the policy on a training card by phase: all leave while the value model has the cards.

    The reference scores the samples unless that is skipped, as by default (nemo_rl/algorithms/ppo.py:181, 1546),
    whatever the penalty.
    """
    engine = frozenset({ENGINE}) if colocated else frozenset[str]()
    phases = {ROLLOUT: engine, VALUES: frozenset[str](), LOG_PROBS: frozenset({WEIGHTS})}
    if not options.is_on("ppo.skip_reference_policy_logprobs_calculation", default=True):
        phases[REFERENCE] = frozenset({WEIGHTS})
    return {**phases, CRITIC: frozenset[str](), TRAINING: STATES, RESHARDING: frozenset({WEIGHTS}) | engine}


def _resident(start: RlStart, colocated: bool) -> dict[str, frozenset[str]]:
    """States on a training card by phase."""
    options = start.options
    stays = start.by_megatron and not options.is_on(f"{MEGATRON}offload_optimizer_for_refit", default=True)
    kept = frozenset({OPTIMIZER}) if stays or not colocated else frozenset()
    engine = frozenset({ENGINE}) if colocated else frozenset()
    on_policy = options.is_on(f"{_LOSS}force_on_policy_ratio")
    scored = options.number(f"{_LOSS}reference_policy_kl_penalty", default=0.01) > 0
    phases = {ROLLOUT: kept | engine if colocated else STATES}
    if not on_policy:
        phases[LOG_PROBS] = kept | {WEIGHTS}
    if scored and not options.is_on("grpo.skip_reference_policy_logprobs_calculation"):
        phases[REFERENCE] = kept | {WEIGHTS}
    return {**phases, TRAINING: STATES, RESHARDING: kept | {WEIGHTS} | engine}
