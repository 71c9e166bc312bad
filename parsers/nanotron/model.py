"""The model that a nanotron file describes under ``model.model_config``.

Sources are lines of huggingface/nanotron 2411b022. A model class is known by a mark of its own in the section, as
``is_llama_config`` (src/nanotron/config/models_config.py:73, 129).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.register.layers import SLIDING, AttentionSpec, LayerSpec, MambaSpec, MlpSpec, MoeSpec
from taylor.register.model import ModelSpec
from taylor.register.pattern import pattern_of

LLAMA, QWEN, MAMBA = "llama", "qwen2", "mamba"
READ = (LLAMA, QWEN, MAMBA)
_MARKS = {"is_llama_config": LLAMA, "is_qwen2_config": QWEN, "is_mamba_config": MAMBA}
_OTHERS = ("is_llamoe_config", "is_starcoder2_config")
_ALL = -1
"""The number in ``moe_config.layers`` that stands for all layers (models_config.py:47, 193-194)."""


def section_of(top: Fields) -> Fields:
    """The section that describes the model."""
    return top.section("model").section("model_config")


def family(top: Fields) -> str:
    """The model class of a file: one of `READ`.

    A section without a mark is a Qwen2 model (src/nanotron/config/config.py:317-318).

    Raises
    ------
    InputError
        When the class is none that is read.
    """
    section = section_of(top)
    for mark, name in _MARKS.items():
        if section.raw(mark):
            return name
    marks = [name for name in section.data if str(name).startswith("is_") and str(name).endswith("_config")]
    if not marks:
        return QWEN
    known = "one of nanotron's examples" if marks[0] in _OTHERS[:1] else "not read here"
    cure = f"give a file with {', '.join(_MARKS)}, or write the model's config.json and plan that with -hf"
    raise section.error(str(marks[0]), f"names a model class that is {known}", section.data[marks[0]], cure)


def read_model(top: Fields, tp: int, notes: list[str]) -> ModelSpec:
    """The model; its vocabulary as nanotron pads it.

    Parameters
    ----------
    tp : int
        Ranks that split the vocabulary: a multiple of theirs and of ``make_vocab_size_divisible_by``
        (src/nanotron/trainer.py:988-992, helpers.py:52-60).

    Raises
    ------
    InputError
        When a size is missing, wrong, or contradicts another.
    """
    section = section_of(top)
    kind = family(top)
    vocab = section.integer("vocab_size", high=MAX_SIZE)
    unit = tp * top.section("model").integer("make_vocab_size_divisible_by", default=1, high=MAX_SIZE)
    padded = -(-vocab // unit) * unit
    if padded != vocab:
        notes.append(f"model.model_config.vocab_size {vocab} is padded to {padded}")
    if kind == MAMBA:
        return _mamba(section, top.file.stem, padded)
    model = _decoder(section, kind, top.file.stem, padded)
    return _with_experts(section, model, notes) if section.raw("moe_config") else model


def _decoder(section: Fields, kind: str, name: str, vocab: int) -> ModelSpec:
    """Defaults: models_config.py:62-93 (Llama), 117-161 (Qwen2)."""
    hidden = section.integer("hidden_size", default=4096, high=MAX_SIZE)
    heads = section.integer("num_attention_heads", default=32)
    groups = section.integer("num_key_value_heads", default=heads)
    if hidden % heads:
        raise section.error("hidden_size", f"must be a multiple of the {heads} attention heads", hidden)
    if heads % groups:
        raise section.error("num_key_value_heads", f"must divide the {heads} attention heads", groups)
    layers = section.integer("num_hidden_layers", default=32, high=MAX_LAYERS)
    ffn = section.integer("intermediate_size", default=11008, high=MAX_SIZE)
    # Llama's projections have no bias whatever the file says: src/nanotron/models/llama.py:388-396.
    bias = kind == QWEN and bool(section.boolean("attention_bias", default=False))
    model = ModelSpec(
        name=name,
        n_layers=layers,
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=groups,
        head_dim=hidden // heads,
        ffn_hidden=ffn,
        vocab=vocab,
        tied_embedding=section.boolean("tie_word_embeddings", default=False),
        attention_bias=bias,
    )
    window = section.integer("sliding_window_size", default=None, high=MAX_SIZE) if kind == QWEN else None
    if window is None:
        return model
    attention = AttentionSpec(heads, groups, hidden // heads, reach=SLIDING, window=window, bias=bias)
    layer = LayerSpec("window", attention, mlp=MlpSpec(ffn))
    return model.replace(kinds=(layer,), pattern=f"{layers} window")


def _with_experts(section: Fields, model: ModelSpec, notes: list[str]) -> ModelSpec:
    """Experts in the layers that the file names (models_config.py:32-58, src/nanotron/models/qwen.py:595-609)."""
    chosen = section.section("moe_config")
    shared = bool(chosen.boolean("enable_shared_expert", default=False))
    experts = MoeSpec(
        n_experts=chosen.integer("num_experts", default=8),
        top_k=chosen.integer("top_k", default=2),
        expert_hidden=chosen.integer("moe_intermediate_size", default=1408, high=MAX_SIZE),
        n_shared=int(shared),
        shared_hidden=chosen.integer("shared_expert_intermediate_size", default=5632, high=MAX_SIZE)
        if shared
        else None,
        shared_gate=shared,
    )
    if experts.top_k > experts.n_experts:
        raise chosen.error("top_k", f"is above the {experts.n_experts} experts", experts.top_k)
    places = _places_of_experts(chosen, model.n_layers)
    dense = model.layer(model.body_kind)
    if not model.pattern and len(places) == model.n_layers:
        return model.replace(moe=experts)
    with_experts = LayerSpec(f"{dense.name}+moe", dense.attention, moe=experts)
    names = [with_experts.name if at in places else dense.name for at in range(model.n_layers)]
    kinds = tuple(kind for kind in (dense, with_experts) if kind.name in names)
    return model.replace(moe=experts, kinds=kinds, pattern=pattern_of(names))


def _places_of_experts(chosen: Fields, layers: int) -> set[int]:
    places = chosen.raw("layers")
    if places is None or places == [_ALL]:
        return set(range(layers))
    if not isinstance(places, list) or not all(isinstance(at, int) and 0 <= at < layers for at in places):
        raise chosen.error("layers", f"must list layers from 0 to {layers - 1}, or be [-1] for all", str(places)[:80])
    return set(places)


def _mamba(section: Fields, name: str, vocab: int) -> ModelSpec:
    """Mamba-1 alone in every layer, without an MLP (examples/mamba/mamba.py:67-160, 438-515, config.py:35-60)."""
    hidden = section.integer("d_model", default=2560, high=MAX_SIZE)
    layers = section.integer("num_hidden_layers", default=64, high=MAX_LAYERS)
    mixer = section.section("ssm_cfg")
    inner = mixer.integer("expand", default=2, high=64) * hidden
    written: Any = mixer.raw("dt_rank")
    rank = -(-hidden // 16) if written in (None, "auto") else mixer.integer("dt_rank", high=MAX_SIZE)
    spec = MambaSpec(
        inner,
        inner,
        mixer.integer("d_state", default=16, high=MAX_SIZE),
        conv_kernel=mixer.integer("d_conv", default=4, high=64),
        dt_rank=rank,
        conv_bias=mixer.boolean("conv_bias", default=True),
        projection_bias=mixer.boolean("bias", default=False),
        gate_norm=False,
    )
    kind = LayerSpec("mamba", mamba=spec)
    return ModelSpec(name, layers, hidden, inner, inner, 1, 0, vocab, kinds=(kind,), pattern=f"{layers} mamba")


def block_costs(model: ModelSpec, data: Mapping[str, Any], kind: str) -> tuple[float, float]:
    """Costs of a layer and of the head by which nanotron deals its blocks to the stages.

    Every layer counts alike, with the plain MLP's width whether or not it has experts (src/nanotron/models/llama.py:
    938-950, qwen.py:813-825). Mamba's layers count one and its head nothing (examples/mamba/mamba.py:635-659).
    """
    if kind == MAMBA:
        return 1.0, 0.0
    width = model.n_heads * (model.hidden // model.n_heads)
    ffn = data.get("intermediate_size", 11008)
    return float(4 * width * model.hidden + 3 * ffn * model.hidden), float(model.vocab * model.hidden)
