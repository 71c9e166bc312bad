"""The layers of LongCat-Flash, which are alike in files of every program."""

from __future__ import annotations

from taylor.register.layers import AttentionSpec, LayerSpec, MlpSpec, MoeSpec


def two_halves(attention: AttentionSpec, mlp: MlpSpec, moe: MoeSpec) -> LayerSpec:
    """A layer of two attentions and two MLPs, with experts whose result joins behind both (arXiv:2509.01322 §2.2).

    The experts count with the first half, whose second norm they have in common with its MLP (transformers 5.23.0
    models/longcat_flash/modeling_longcat_flash.py, ``LongcatFlashDecoderLayer``; MindSpeed-LLM c77308a1
    mindspeed_llm/tasks/models/transformer/longcat_transformer_layer.py:127-347).
    """
    second = LayerSpec("mla+dense", attention, mlp=mlp)
    return LayerSpec("mla+dense+moe+mla+dense", attention, mlp=mlp, moe=moe, then=second)
