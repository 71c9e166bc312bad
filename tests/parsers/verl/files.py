"""Scripts of verl, as its repository writes them."""

MEGATRON = """\
set -x

n_resp_per_prompt=16
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 6))
COMMON_PP=${COMMON_PP:-4}
ACTOR_PP=${ACTOR_PP:-$COMMON_PP}
REF_PP=${REF_PP:-$COMMON_PP}

python3 -m verl.trainer.main_ppo --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=512 \\
    data.max_prompt_length=${max_prompt_length} \\
    data.max_response_length=${max_response_length} \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B-Base \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=${ACTOR_PP} \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method=uniform \\
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_num_layers=1 \\
    actor_rollout_ref.ref.megatron.pipeline_model_parallel_size=${REF_PP} \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=${n_resp_per_prompt} \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=2 \\
    trainer.total_epochs=15 $@
"""
SHARDED = """\
set -x

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=512 \\
    data.max_response_length=1024 \\
    actor_rollout_ref.model.path=$HOME/models/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \\
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 \\
    actor_rollout_ref.model.enable_gradient_checkpointing=True \\
    actor_rollout_ref.actor.fsdp_config.param_offload=False \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 $@
"""
TUNING = """\
nproc_per_node=$1
torchrun --standalone --nnodes=1 --nproc_per_node=$nproc_per_node \\
    -m verl.trainer.fsdp_sft_trainer \\
    data.train_batch_size=64 \\
    data.max_length=2048 \\
    model.partial_pretrain=Qwen/Qwen2.5-0.5B-Instruct \\
    ulysses_sequence_parallel_size=2
"""
CRITIC = """\
set -x

max_tokens=${MAX_TOKENS:-24576}

CRITIC=(
    critic.model.path="Qwen/Qwen3-1.7B"
    critic.model.use_remove_padding=True
    critic.optim.lr=1e-5
    critic.use_dynamic_bsz=True
    critic.ppo_max_token_len_per_gpu=${max_tokens}
    critic.megatron.tensor_model_parallel_size=1
    critic.megatron.pipeline_model_parallel_size=2
)

python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=2048 \\
    actor_rollout_ref.model.path=Qwen/Qwen3-8B \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=12288 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=2 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \\
    "${CRITIC[@]}" \\
    trainer.critic_warmup=0 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    model_engine=megatron "$@"
"""
