"""Flavours of torchtitan's models that the register lacks under their name."""

from __future__ import annotations

from dataclasses import replace

from taylor.register.layers import SLIDING, AttentionSpec, LayerSpec, MlpSpec
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec


def _deepseek(name: str, layers: int, hidden: int, heads: int, ffn: int, q_rank: int | None, moe: MoeSpec) -> ModelSpec:
    mla = MlaSpec(512, 64, 128, 128, q_rank)
    return ModelSpec(name, layers, hidden, heads, heads, 192, ffn, 102400, mla=mla, moe=moe)


def _qwen3(size: str, layers: int, hidden: int, heads: int, ffn: int, tied: bool = True) -> ModelSpec:
    return ModelSpec(f"qwen3-{size}", layers, hidden, heads, 8, 128, ffn, 151936, tied_embedding=tied, qk_norm=True)


def _gpt_oss_debug() -> ModelSpec:
    moe = MoeSpec(8, 4, 2880, router_bias=True, expert_bias=True)
    whole = AttentionSpec(64, 8, 64, bias=True, output_bias=True, sinks=True)
    kinds = (
        LayerSpec("attn-sliding+moe", replace(whole, reach=SLIDING, window=128), moe=moe),
        LayerSpec("attn+moe", whole, moe=moe),
    )
    pattern = "2 x (1 attn-sliding+moe, 1 attn+moe)"
    return ModelSpec("gpt-oss-debug", 4, 256, 64, 8, 64, 2880, 2048, moe=moe, kinds=kinds, pattern=pattern)


_QWEN3_DEBUG = ModelSpec("qwen3-debug", 8, 256, 16, 8, 128, 3072, 2048, tied_embedding=True, qk_norm=True)

OWN_FLAVOURS = {
    # b5bcd76c torchtitan/models/llama3/__init__.py:100-130, with common/feed_forward.py:18-31.
    ("llama3", "debugmodel"): ModelSpec("llama3-debug", 6, 256, 16, 16, 16, 768, 2048),
    # b5bcd76c torchtitan/models/deepseek_v3/__init__.py:319-386.
    ("deepseek_v3", "debugmodel"): ModelSpec(
        "deepseek-v3-debug",
        6,
        256,
        16,
        16,
        192,
        1024,
        2048,
        mla=MlaSpec(512, 64, 128, 128),
        moe=MoeSpec(8, 3, 256, 2, first_dense=1),
    ),
    # b5bcd76c torchtitan/models/qwen3/__init__.py:197-250, 475-516.
    ("qwen3", "debugmodel"): _QWEN3_DEBUG,
    ("qwen3", "debugmodel_non_fused_qkv"): _QWEN3_DEBUG,
    ("qwen3", "debugmodel_moe"): _QWEN3_DEBUG.replace(
        name="qwen3-debug-moe", tied_embedding=False, moe=MoeSpec(64, 8, 768)
    ),
    # b5bcd76c torchtitan/models/gpt_oss/__init__.py:180-280.
    ("gpt_oss", "debugmodel"): _gpt_oss_debug(),
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
