"""What a NeMo RL file says of an iteration: roll-outs, log-probabilities, and what each phase leaves on the cards.

Source: NVIDIA-NeMo/RL 7ea279ab. Phases: nemo_rl/algorithms/grpo.py:3205-3330 and
nemo_rl/weight_sync/ipc_weight_synchronizer.py:66-106. Offload:
nemo_rl/models/policy/workers/megatron_policy_worker.py:2931-3190 (gradients and optimizer leave before weights are
passed on, the weights after; the optimizer comes back for training alone, unless ``offload_optimizer_for_refit`` is
off, nemo_rl/models/megatron/setup.py:375) and dtensor_policy_worker_v2.py:1223-1300. The reference's weights lie on the
host and take the policy's place for their turn (megatron_policy_worker.py:1971-2000). The bucket of weights is a share
of what is free (ipc_weight_synchronizer.py:117-134), so that only one tensor counts.
"""

from __future__ import annotations

from taylor.cost_model.memory.rollout_engine import FREE, WHOLE, RolloutEngine
from taylor.parsers.nemo_rl.job import MEGATRON, POLICY, RlStart
from taylor.parsers.policy.job import packed_samples
from taylor.parsers.policy.options import Options
from taylor.parsers.rl_iteration import (
    ENGINE,
    LOG_PROBS,
    OPTIMIZER,
    REFERENCE,
    RESHARDING,
    ROLLOUT,
    STATES,
    TRAINING,
    WEIGHTS,
    RlIteration,
    stated_share,
)
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.training_config import TrainingConfig

_GENERATION, _LOSS = f"{POLICY}generation.", "loss_fn."


def iteration_of(start: RlStart, config: TrainingConfig) -> RlIteration:
    """The iteration of a file.

    Raises
    ------
    InputError
        When the file has no roll-outs, or a value is wrong.
    """
    options = start.options
    if not options.has("grpo.num_prompts_per_step"):
        cure = "evaluate its training with taylor solve -evaluate y"
        raise options.error("grpo.num_prompts_per_step", "is missing: the file has no roll-outs of GRPO", cure=cure)
    prompts = int(options.integer("grpo.num_prompts_per_step", high=2**31))
    answers = int(options.integer("grpo.num_generations_per_prompt", default=1))
    colocated = options.is_on(f"{_GENERATION}colocated.enabled", default=True)
    whole = options.integer("cluster.gpus_per_node") * options.integer("cluster.num_nodes", default=1)
    cards = config.strategy.world_size
    longest, dp = config.rules.seq_length, config.strategy.dp
    each = max(1, prompts * answers // dp)
    counted = int(options.integer(f"{POLICY}logprob_batch_size", default=config.strategy.mbs))
    packed = next(
        (name for name in ("sequence_packing", "dynamic_batching") if options.is_on(f"{POLICY}{name}.enabled")), None
    )
    tokens = scored = None
    if packed is not None:
        usual = longest * config.strategy.mbs
        tokens = int(options.integer(f"{POLICY}{packed}.train_mb_tokens", default=usual, high=MAX_SIZE))
        scored = int(options.integer(f"{POLICY}{packed}.logprob_mb_tokens", default=longest * counted, high=MAX_SIZE))
    answer = int(options.integer(f"{_GENERATION}max_new_tokens", default=longest, high=MAX_SIZE))
    return RlIteration(
        prompts,
        answers,
        max(0, longest - answer),
        min(answer, longest),
        updates=max(1, prompts * answers // config.strategy.global_batch),
        colocated=colocated,
        rollout_cards=cards if colocated else int(whole) - cards,
        engine=_engine(options),
        resident=_resident(start, colocated),
        log_prob_samples=counted if scored is None else packed_samples(scored, longest, each),
        packed_tokens=tokens,
        log_prob_tokens=scored,
        bucket_mib=0.0,
        staleness=0 if colocated else 1,
    )


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
