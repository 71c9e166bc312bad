"""Flavours of torchtitan's models that the register lacks under their name."""

from __future__ import annotations

from taylor.register.layers import AttentionSpec, LayerSpec, MlpSpec
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec


def _deepseek(name: str, layers: int, hidden: int, heads: int, ffn: int, q_rank: int | None, moe: MoeSpec) -> ModelSpec:
    mla = MlaSpec(512, 64, 128, 128, q_rank)
    return ModelSpec(name, layers, hidden, heads, heads, 192, ffn, 102400, mla=mla, moe=moe)


def _qwen3(size: str, layers: int, hidden: int, heads: int, ffn: int, tied: bool = True) -> ModelSpec:
    return ModelSpec(f"qwen3-{size}", layers, hidden, heads, 8, 128, ffn, 151936, tied_embedding=tied, qk_norm=True)


OWN_FLAVOURS = {
    # arXiv:2405.04434 (DeepSeek-V2 and its Lite form), which torchtitan lists under deepseek_v3.
    ("deepseek_v3", "16b"): _deepseek(
        "deepseek-v2-lite", 27, 2048, 16, 10944, None, MoeSpec(64, 6, 1408, 2, first_dense=1)
    ),
    ("deepseek_v3", "236b"): _deepseek(
        "deepseek-v2", 60, 5120, 128, 12288, 1536, MoeSpec(160, 6, 1536, 2, first_dense=1)
    ),
    # v0.2.2 torchtitan/models/qwen3/__init__.py:46-108.
    ("qwen3", "0.6b"): _qwen3("0.6b", 28, 1024, 16, 3072),
    ("qwen3", "1.7b"): _qwen3("1.7b", 28, 2048, 16, 6144),
    ("qwen3", "4b"): _qwen3("4b", 36, 2560, 32, 9728),
    ("qwen3", "14b"): _qwen3("14b", 40, 5120, 40, 17408, tied=False),
    # v0.2.2 torchtitan/models/llama4/__init__.py:38-50: experts in every layer, one of sixteen and a shared one, each
    # half as wide as the MLP would be (model/model.py, ``auto_scale_hidden_dim``).
    ("llama4", "17bx16e"): ModelSpec(
        "llama4-scout-17bx16e", 48, 5120, 40, 8, 128, 16384, 202048, moe=MoeSpec(16, 1, 8192, 1)
    ),
    # v0.2.2 torchtitan/models/llama4/__init__.py:51-62, model/args.py:63: experts in every second layer, one of 128.
    ("llama4", "17bx128e"): ModelSpec(
        "llama4-maverick-17bx128e",
        48,
        5120,
        40,
        8,
        128,
        16384,
        202048,
        moe=MoeSpec(128, 1, 8192, 1),
        pattern="24 x (1 attn+dense, 1 attn+moe)",
        kinds=(
            LayerSpec("attn+dense", AttentionSpec(40, 8, 128), mlp=MlpSpec(16384)),
            LayerSpec("attn+moe", AttentionSpec(40, 8, 128), moe=MoeSpec(128, 1, 8192, 1)),
        ),
    ),
}
