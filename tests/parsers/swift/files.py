"""Scripts of ms-swift and slime, as their repositories write them."""

SWIFT = """\
# 2 * 8 devices
PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True' \\
NPROC_PER_NODE=8 \\
NNODES=1 \\
megatron sft \\
    --model Qwen/Qwen3-8B-Base \\
    --dataset 'AI-ModelScope/alpaca-gpt4-data-zh#500' \\
              'swift/self-cognition#500' \\
    --tensor_model_parallel_size 2 \\
    --pipeline_model_parallel_size 4 \\
    --sequence_parallel true \\
    --micro_batch_size 1 \\
    --global_batch_size 16 \\
    --recompute_granularity full \\
    --recompute_method uniform \\
    --recompute_num_layers 1 \\
    --max_length 2048 \\
    --cross_entropy_loss_fusion true \\
    --attention_backend flash
"""
SLIME_MODEL = """\
NLAYERS="${MODEL_ARGS_NUM_LAYERS:-8}"
FIRST_K_DENSE_REPLACE=2

arr=()
for ((i=0; i<NLAYERS; i++)); do
  if (( i < FIRST_K_DENSE_REPLACE )); then
    arr+=(0)
  else
    arr+=(1)
  fi
done

printf -v MOE_LAYER_FREQ "[%s]" "$(IFS=', '; echo "${arr[*]}")"

MODEL_ARGS=(
   --disable-bias-linear
   --num-layers $NLAYERS
   --hidden-size 1024
   --ffn-hidden-size 4096
   --num-attention-heads 16
   --swiglu
   --normalization RMSNorm
   --position-embedding-type rope
   --untie-embeddings-and-output-weights
   --vocab-size 32000
   --num-experts 8
   --moe-layer-freq "$MOE_LAYER_FREQ"
   --moe-ffn-hidden-size 512
   --moe-router-topk 2
   --moe-grouped-gemm
)
"""
SLIME = """\
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/models/small.sh"

ROLLOUT_ARGS=(
   --prompt-data /data/prompts.jsonl
   --rollout-batch-size 32
   --n-samples-per-prompt 8
   --num-steps-per-rollout 4
   --rollout-max-response-len 8192
)

PERF_ARGS=(
   --tensor-model-parallel-size 2
   --sequence-parallel
   --pipeline-model-parallel-size 2
   --expert-model-parallel-size 4
   --expert-tensor-parallel-size 1
   --recompute-granularity full
   --recompute-method uniform
   --recompute-num-layers 1
   --use-dynamic-batch-size
   --max-tokens-per-gpu 9216
)

MISC_ARGS=(
   --attention-dropout 0.0
   --hidden-dropout 0.0
)

ray job submit --address="http://127.0.0.1:8265" \\
   -- python3 train.py \\
   --actor-num-nodes 2 \\
   --actor-num-gpus-per-node 8 \\
   --colocate \\
   ${MODEL_ARGS[@]} \\
   ${ROLLOUT_ARGS[@]} \\
   ${PERF_ARGS[@]} \\
   ${MISC_ARGS[@]}
"""
