"""The model's shape from a MindFormers file, legacy or mcore style, or a Hugging Face config.json."""

from __future__ import annotations

from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.register.model import MlaSpec, ModelSpec, MoeSpec

EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "num_moe_experts", "expert_num")
_QK_NORM_FAMILIES = ("qwen3",)
_QKV_BIAS_FAMILIES = ("qwen2",)


def read_model(model: Fields, moe: Fields, *, mcore: bool, name: str) -> ModelSpec:
    """Read a model's shape.

    Parameters
    ----------
    model : Fields
        ``model.model_config``, or a Hugging Face config.
    moe : Fields
        ``moe_config`` of a legacy file; the same as `model` for the mcore style.
    mcore : bool
        Generation whose defaults apply.

    Raises
    ------
    InputError
        When a size is missing, not a whole number, out of range, or a form that no layer kind covers.
    """
    layers = model.integer("num_hidden_layers", "num_layers", "n_layer", high=MAX_LAYERS)
    hidden = model.integer("hidden_size", high=MAX_SIZE)
    heads = model.integer("num_attention_heads", "num_heads", "n_head", high=MAX_SIZE)
    mla = _read_mla(model)
    head_dim = model.integer("head_dim", "kv_channels", default=None, high=MAX_SIZE)
    if head_dim is None:
        if mla is not None:
            head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim
        elif hidden % heads:
            raise model.error("hidden_size", f"must be a multiple of the {heads} attention heads", hidden)
        else:
            head_dim = hidden // heads
    kv_heads = _kv_heads(model, heads, mcore=mcore, latent=mla is not None)
    if heads % kv_heads:
        raise model.error("num_key_value_heads", f"must divide the {heads} attention heads", kv_heads)
    gpt2 = "gpt2" in _family(model)
    bias = model.boolean("add_bias_linear", default=gpt2)
    ffn = _ffn_hidden(model, hidden, gpt2)
    qk_norm_default = mla is None and _family(model).startswith(_QK_NORM_FAMILIES)
    return ModelSpec(
        name=name,
        n_layers=layers,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        ffn_hidden=ffn,
        vocab=model.integer("vocab_size", "padded_vocab_size", high=MAX_SIZE),
        gated_mlp=not gpt2 and model.boolean("gated_linear_unit", default=True),
        tied_embedding=_tied(model, gpt2),
        learned_positions=model.integer("max_position_embeddings", default=0, high=MAX_SIZE) if gpt2 else 0,
        norm_bias=gpt2 or model.raw("normalization") == "LayerNorm",
        attention_bias=bias
        or model.boolean(
            "attention_bias", "add_qkv_bias", "qkv_has_bias", default=_family(model).startswith(_QKV_BIAS_FAMILIES)
        ),
        output_bias=bias or model.boolean("attn_proj_has_bias", "out_proj_has_bias", default=False),
        mlp_bias=bias or model.boolean("mlp_bias", default=False),
        # On multi-head latent attention the switch means the norms of the latent vectors, which are always there.
        qk_norm=mla is None and model.boolean("qk_layernorm", "use_qk_norm", default=qk_norm_default),
        mla=mla,
        moe=_read_moe(moe, model, layers, ffn, mcore=mcore),
        mtp_layers=read_mtp_depth(model)[0],
    )


_KV_HEADS = ("num_key_value_heads", "num_query_groups", "n_kv_heads")


def _kv_heads(model: Fields, heads: int, *, mcore: bool, latent: bool) -> int:
    """Key and value heads; the ChatGLM classes share them among queries where ``multi_query_attention`` says so.

    Latent attention has as many as query heads and no part takes the entry: master mindformers/parallel_core/
    training_graph/transformer/multi_latent_attention.py:101-119, r1.5.0 research/deepseek3/deepseek2_model.py:391-395.
    Mcore groups heads only where the entry, which may be the class default, is below the query heads: master
    mindformers/parallel_core/training_graph/transformer/attention.py:133-135.
    """
    if latent:
        model.has(*_KV_HEADS)
        return heads
    if model.has("multi_query_group_num") and model.boolean("multi_query_attention", default=True):
        groups: int = model.integer("multi_query_group_num", high=MAX_SIZE)
    else:
        groups = model.integer(*_KV_HEADS, default=heads, high=MAX_SIZE)
    return min(groups, heads) if mcore else groups


def read_mtp_depth(model: Fields) -> tuple[int, bool]:
    """MTP layers, and whether they count among the layers that the offset spreads."""
    if model.has("mtp_depth"):
        return model.integer("mtp_depth", low=0, high=64), True
    return model.integer("mtp_num_layers", "num_nextn_predict_layers", default=0, low=0, high=64), False


def _family(model: Fields) -> str:
    return str(model.raw("model_type", "type") or "").lower()


def _tied(model: Fields, gpt2: bool) -> bool:
    if model.has("untie_embeddings_and_output_weights"):
        return not model.boolean("untie_embeddings_and_output_weights")
    return model.boolean("tie_word_embeddings", default=gpt2)


def _read_mla(model: Fields) -> MlaSpec | None:
    if not model.boolean("multi_latent_attention", default=model.has("kv_lora_rank")):
        return None
    # Where the switch is written, the ranks may be left to MLATransformerConfig (MindFormers master,
    # mindformers/parallel_core/transformer_config.py:830); without it they must be in the file or its class.
    given = model.has("multi_latent_attention")
    sizes = {
        "kv_lora_rank": (("kv_lora_rank",), 512),
        "qk_rope_head_dim": (("qk_rope_head_dim", "qk_pos_emb_head_dim"), 64),
        "qk_nope_head_dim": (("qk_nope_head_dim", "qk_head_dim"), 128),
        "v_head_dim": (("v_head_dim",), 128),
    }
    read = {
        size: model.integer(*names, high=MAX_SIZE, **({"default": default} if given else {}))
        for size, (names, default) in sizes.items()
    }
    q_rank = model.integer("q_lora_rank", default=512 if given else 0, low=0, high=MAX_SIZE) or None
    return MlaSpec(**read, q_lora_rank=q_rank)


def _ffn_hidden(model: Fields, hidden: int, gpt2: bool) -> int:
    """Width of the dense MLP; where no key gives it, the rule of the legacy LlamaConfig.

    That rule: two thirds of 4·hidden, times ``ffn_dim_multiplier`` (to which MindFormers adds 0.01),
    rounded up to ``multiple_of``. It gives the published 13824 of LLaMA2-13B and 28672 of LLaMA-70B.
    """
    if model.has("intermediate_size", "ffn_hidden_size"):
        return model.integer("intermediate_size", "ffn_hidden_size", high=MAX_SIZE)
    if gpt2 or model.has("expand_ratio"):
        return hidden * model.integer("expand_ratio", default=4, high=1024)
    wide = 4 * hidden
    if model.has("ffn_dim_multiplier"):
        wide = int((model.number("ffn_dim_multiplier", low=0.01, high=100) + 0.01) * wide)
    multiple = model.integer("multiple_of", default=256, high=MAX_SIZE)
    return -(-int(2 * wide / 3) // multiple) * multiple


def _read_moe(moe: Fields, model: Fields, layers: int, ffn: int, *, mcore: bool) -> MoeSpec | None:
    experts = moe.integer(*EXPERTS, default=1, high=MAX_SIZE)
    if experts <= 1:
        return None
    first_dense = moe.integer("first_k_dense_replace", default=_dense_prefix(moe), low=0, high=MAX_LAYERS)
    if first_dense > layers:
        raise moe.error("first_k_dense_replace", f"must be at most the {layers} layers", first_dense)
    for name in ("decoder_sparse_step", "moe_layer_freq"):
        if moe.raw(name) not in (None, 1):
            raise moe.error(
                name,
                "dense and MoE layers that alternate are not supported",
                moe.raw(name),
                "dense layers must come first",
            )
    expert_hidden = moe.integer("moe_intermediate_size", "moe_ffn_hidden_size", default=ffn, high=MAX_SIZE)
    top_k = moe.integer("num_experts_per_tok", "num_experts_chosen", "moe_router_topk", default=1, high=experts)
    shared_hidden = moe.integer(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", default=0, low=0, high=MAX_SIZE
    )
    n_shared = moe.integer(
        "n_shared_experts",
        "shared_expert_num",
        "num_shared_experts",
        default=1 if shared_hidden else 0,
        low=0,
        high=experts,
    )
    qwen2 = _family(model).startswith("qwen2")
    return MoeSpec(
        n_experts=experts,
        top_k=top_k,
        expert_hidden=expert_hidden,
        n_shared=n_shared,
        shared_hidden=(shared_hidden or None) if n_shared else None,
        first_dense=first_dense,
        correction_bias=_correction_bias(moe, mcore),
        shared_gate=bool(n_shared) and moe.boolean("use_shared_expert_gating", default=qwen2),
    )


def _dense_prefix(moe: Fields) -> int:
    dense = moe.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or sorted(map(str, dense)) != sorted(map(str, range(len(dense)))):
        raise moe.error("mlp_only_layers", "dense layers must come first", dense)
    return len(dense)


def _correction_bias(moe: Fields, mcore: bool) -> bool:
    if mcore:
        return moe.boolean("moe_router_enable_expert_bias", default=False) or moe.raw("topk_method") == "noaux_tc"
    return moe.boolean("balance_via_topk_bias", default=False)
