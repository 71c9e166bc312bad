"""A script of Pai-Megatron-Patch with a README, as its repository writes them."""

SCRIPT = """\
#!/bin/bash
set -e
ENV=$1
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
MEGATRON_PATCH_PATH=$( dirname $( dirname ${CURRENT_DIR}))
if [ $ENV = dsw ]; then
    NNODES=1
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
MODEL_SIZE=$2
BATCH_SIZE=$3
GLOBAL_BATCH_SIZE=$4
SEQ_LEN=$5
TP=$6
PP=$7
SP=$8
AC=$9
EXTRA_VOCAB_SIZE=${10}
if [ $MODEL_SIZE = 1.7B ]; then
    NUM_LAYERS=28
    HIDDEN_SIZE=2048
elif [ $MODEL_SIZE = 4B ]; then
    NUM_LAYERS=36
    HIDDEN_SIZE=2560
fi
if [ $AC = full ]; then
    recompute=" --recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = none ]; then
    recompute=" "
fi
TP_COMM_OVERLAP=$(( ($TP > 1) ? 1 : 0 ))
overlap="--overlap-grad-reduce"
if [ $TP_COMM_OVERLAP -eq 1 ]; then
    overlap="--tp-comm-overlap --overlap-grad-reduce"
fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_option=" --sequence-parallel"
fi
run_cmd="torchrun $DISTRIBUTED_ARGS pretrain_qwen.py \\
    --num-layers ${NUM_LAYERS} \\
    --hidden-size ${HIDDEN_SIZE} \\
    --num-attention-heads 16 \\
    --intermediate-size 6144 \\
    --max-position-embeddings 40960 \\
    --seq-length ${SEQ_LEN} \\
    --micro-batch-size ${BATCH_SIZE} \\
    --global-batch-size ${GLOBAL_BATCH_SIZE} \\
    --tensor-model-parallel-size ${TP} \\
    --pipeline-model-parallel-size ${PP} \\
    --extra-vocab-size ${EXTRA_VOCAB_SIZE} \\
    --patch-tokenizer-type Qwen2Tokenizer \\
    --swiglu --bf16 --untie-embeddings-and-output-weights --disable-bias-linear \\
    ${recompute} ${overlap} ${sp_option}"
echo ${run_cmd}
eval ${run_cmd}
"""
ARGUMENTS = "dsw 4B 2 64 2048 2 4 true full 293"
README = """\
# Training
```bash
ENV=$1        # dsw, dlc
sh run_mcore.sh ENV
sh run_mcore.sh  \\
dsw  \\
4B 2 64 \\
2048   \\
2 4 true \\
full 293
```
"""
NEXT = """\
MEGATRON_PATCH_PATH=/patch
torchrun --nproc_per_node 8 --nnodes 1 PROGRAM \\
    --num-layers 4 --hybrid-override-pattern M-*- --is-hybrid-model \\
    --hybrid-attention-ratio 0.25 --hybrid-mlp-ratio 0.5 \\
    --mamba-state-dim 128 --mamba-head-dim 128 --mamba-num-groups 16 --mamba-num-heads 32 \\
    --hidden-size 2048 --ffn-hidden-size 5120 --num-attention-heads 16 --group-query-attention --num-query-groups 2 \\
    --kv-channels 256 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 512 \\
    --moe-shared-expert-intermediate-size 512 --seq-length 2048 --max-position-embeddings 2048 \\
    --padded-vocab-size 151936 --patch-tokenizer-type Qwen3Tokenizer \\
    --micro-batch-size 1 --global-batch-size 16 --expert-model-parallel-size 8 \\
    --swiglu --bf16 --untie-embeddings-and-output-weights --disable-bias-linear --position-embedding-type rope
"""
