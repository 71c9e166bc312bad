"""What an indexer of sparse attention keeps and needs as single operations of torch, against a list of its tensors.

The list follows MindSpeed-LLM c77308a1 mindspeed_llm/tasks/models/transformer/dsa_indexer.py; numbers are its lines.
One entry a tensor: elements and bytes each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.backward_workspace import gradient_workspace_bytes, workspace_bytes
from taylor.parsers.read import read_config
from taylor.register import frameworks
from taylor.register.layers import AttentionSpec, LayerSpec, MlaSpec
from taylor.register.model import ModelSpec

S, HEADS, INDEX_HEADS, INDEX_DIM = 2048, 128, 64, 128
KEPT = {
    "query as fp32 (95), kept by the product (98)": (INDEX_HEADS * S * INDEX_DIM, 4),
    "relu_out (99), kept by itself and by the product with the weights (101)": (INDEX_HEADS * S * S, 4),
    "attention_mask of bytes (660), kept by the attention": (S * S, 1),
}
IN_THE_LOSS = {
    "matmul_input_buffer (980), one for all layers that stays": (HEADS * S * S, 2),
    "matmul_result (985)": (HEADS * S * S, 2),
    "its cast to fp32 for the softmax (999)": (HEADS * S * S, 4),
    "the softmax (999)": (HEADS * S * S, 4),
}


def _bytes(tensors: dict[str, tuple[int, int]]) -> int:
    return sum(elements * size for elements, size in tensors.values())


@pytest.mark.parametrize(("cp", "tp"), [(1, 1), (2, 1), (1, 4)])
def test_an_indexer_keeps_the_scores_of_all_pairs_on_every_rank(cp: int, tp: int) -> None:
    """Under context parallelism the query is gathered, under tensor parallelism the attention's heads are split."""
    latent = MlaSpec(kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, q_lora_rank=1536)
    layer = LayerSpec("mla", AttentionSpec(HEADS, HEADS, 192, v_head_dim=128, latent=latent))
    model = ModelSpec("m", 4, 7168, HEADS, HEADS, 128, 18432, 1024, kinds=(layer,), pattern="4 mla")
    without = TrainingRules(framework=frameworks.MEGATRON, seq_length=S)
    rules, strategy = without.replace(torch_indexer=(INDEX_HEADS, INDEX_DIM)), Strategy(1, tp, 1, cp=cp, sp=False)

    kept, plain = (float(activation_bytes(model, "mla", "none", strategy, each)) for each in (rules, without))
    assert kept - plain == _bytes(KEPT)
    assert activation_bytes(model, "mla", "full", strategy, rules) == activation_bytes(
        model, "mla", "full", strategy, without
    )
    room = float(gradient_workspace_bytes(model, "mla", strategy, rules))
    assert room == _bytes(IN_THE_LOSS) / tp
    rebuilt = kept - float(activation_bytes(model, "mla", "full", strategy, rules))
    assert float(workspace_bytes(model, strategy, rules)) == rebuilt + room


@pytest.mark.parametrize(
    ("flags", "indexer"),
    [
        ("", None),
        ("--enable-dsa-indexer", (64, 128)),
        ("--enable-dsa-indexer --index-n-heads 32 --index-head-dim 64", (32, 64)),
        ("--enable-dsa-indexer --use-fused-lightning-indexer", None),
        ("--enable-dsa-indexer --use-fused-lightning-indexer-loss", None),
    ],
)
def test_a_fused_kernel_keeps_no_scores(tmp_path: Path, flags: str, indexer: tuple[int, int] | None) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --spec mindspeed_llm.tasks.models.spec.deepseek_spec layer_spec "
        "--num-layers 4 --hidden-size 1024 --ffn-hidden-size 4096 --num-attention-heads 16 --seq-length 4096 "
        "--max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --vocab-size 32000 --bf16 "
        "--multi-latent-attention --qk-pos-emb-head-dim 64 --qk-head-dim 128 --q-lora-rank 256 --kv-lora-rank 128 "
        f"--v-head-dim 128 --use-flash-attn --swiglu --normalization RMSNorm {flags}\n"
    )
    assert read_config(path).rules.torch_indexer == indexer
