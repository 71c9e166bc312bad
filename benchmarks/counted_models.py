"""Parameters counted by transformers against those read from the same config.json: random small models of each type.

Every model is built on torch's meta device, so nothing is allocated. Needs transformers (5.23.0 is what the readers
cite) beside torch; neither is a dependency. Run as ``python -m benchmarks.counted_models [--models N] [TYPE ...]``.
"""

from __future__ import annotations

import argparse
import importlib
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import layer_parameters, total_parameters
from taylor.parsers.huggingface.model import READERS, model_types, read_model
from taylor.register.layers import CHUNKED, FULL_REACH, SLIDING
from taylor.register.model import ModelSpec
from taylor.register.pattern import kinds_in_order

FILE = Path("config.json")
NO_TRANSFORMERS = "transformers is not installed: pip install transformers==5.23.0 beside torch"
TEXT_CONFIGS = {
    "step3p5": ("transformers.models.step3p7.configuration_step3p7", "Step3p7TextConfig"),
}
"""Classes of language models that transformers registers under no name of their own."""
WINDOWED = ("sliding_attention", "chunked_attention")
IN_ENCODER = re.compile(r"vision|visual|audio|embed_audio|embed_vision")
IN_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")


@dataclass(frozen=True)
class Outcome:
    """Outcome of one model.

    Parameters
    ----------
    kind : str
        ``equal``, ``differs``, ``refused`` (by the reader) or ``unbuilt`` (transformers takes no such values).
    reason : str
        The difference, or the reason.
    """

    kind: str
    reason: str = ""


def _one(*choices: Any) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(choices)


def _from(low: int, high: int, step: int = 1) -> Callable[[random.Random], Any]:
    return lambda rng: rng.randrange(low, high + 1, step)


SIZES: dict[str, Callable[[random.Random], Any]] = {
    "vocab_size": _from(40, 90),
    "vocab_size_per_layer_input": _from(40, 90),
    "hidden_size_per_layer_input": _one(0, 8, 12),
    "num_kv_shared_layers": _one(0, 0, 1),
    "intermediate_size": _from(16, 48),
    "intermediate_size_mlp": _from(16, 48),
    "dense_intermediate_size": _from(16, 48),
    "ffn_dim": _from(16, 48),
    "n_inner": _one(None, 20, 30),
    "n_positions": _from(16, 40),
    "max_position_embeddings": _from(16, 40),
    "moe_intermediate_size": _from(8, 24),
    "shared_expert_intermediate_size": _from(8, 24),
    "shared_intermediate_size": _one(8, 12, 20),
    "moe_shared_expert_intermediate_size": _from(8, 24),
    "share_expert_dim": _from(8, 24),
    "moe_latent_size": _one(None, 12, 16),
    "n_shared_experts": _from(1, 3),
    "num_shared_experts": _from(1, 3),
    "moe_num_shared_experts": _from(0, 3),
    "n_group": _one(1),
    "topk_group": _one(1),
    "first_k_dense_replace": _from(0, 3),
    "num_dense_layers": _from(0, 3),
    "kv_lora_rank": _from(8, 24),
    "q_lora_rank": _one(None, 12, 20),
    "o_lora_rank": _from(4, 12),
    "o_groups": _one(1, 2),
    "qk_rope_head_dim": _one(4, 8),
    "qk_nope_head_dim": _from(4, 12, 2),
    "v_head_dim": _from(4, 12, 2),
    "index_n_heads": _from(1, 4),
    "index_head_dim": _one(16, 24),
    "index_topk": _from(4, 16),
    "index_block_size": _from(4, 16),
    "index_topk_blocks": _from(1, 4),
    "hc_mult": _from(2, 4),
    "sliding_window": _one(4, 8, None),
    "attention_chunk_size": _one(4, 8),
    "max_window_layers": _from(0, 5),
    "decoder_sparse_step": _from(1, 3),
    "interleave_moe_layer_step": _from(1, 3),
    "mlp_only_layers": _one(None, [], [1], [0, 2]),
    "moe_layer_start_index": _from(0, 2),
    "moe_layer_end_index": _one(-1, 1, 3),
    "moe_layer_interval": _from(1, 3),
    "attn_layer_period": _from(2, 4),
    "attn_layer_offset": _from(0, 1),
    "expert_layer_period": _from(1, 3),
    "expert_layer_offset": _one(0),
    "attn_layer_indices": _one(None, [0], [1, 2]),
    "state_size": _from(4, 12),
    "ssm_state_size": _from(4, 12),
    "mamba_d_state": _from(4, 12),
    "mamba_d_conv": _from(2, 5),
    "conv_kernel": _from(2, 5),
    "n_groups": _one(1, 2),
    "mamba_n_groups": _one(1, 2),
    "time_step_rank": _one("auto", 6),
    "mamba_dt_rank": _one("auto", 6),
    "mamba_num_heads": _one(4, 6),
    "mamba_head_dim": _one(8, 12),
    "linear_num_key_heads": _one(1, 2),
    "linear_num_value_heads": _one(2, 4),
    "linear_key_head_dim": _one(8, 12),
    "linear_value_head_dim": _one(8, 12),
    "linear_conv_kernel_dim": _from(2, 5),
    "linear_num_heads": _one(2, 4),
    "linear_head_dim": _one(8, 12),
    "num_sliding_attention_heads": _one(None, 8),
    "global_attn_every_n_layers": _from(2, 4),
    "sliding_window_pattern": _from(2, 4),
    "no_rope_layer_interval": _from(2, 4),
    "pad_token_id": _one(None, 0),
    "num_mtp_layers": _one(0, 1),
    "layerdrop": _one(0.0),
    "conv_L_cache": _from(2, 5),
    "block_multiple_of": _one(4, 16),
    "block_ffn_dim_multiplier": _one(0.5, 1.0, 1.3),
    "full_attn_idxs": _one(None, [0], [0, 1]),
}
"""Possible values of a field, by its name; fields that only fit together are drawn in `_fitting`."""
NOT_COMPARED = ("longcat_flash",)
"""Types of which transformers 5.23.0 builds what no checkpoint has: input matrices of the experts that hold nothing."""
WITHIN = ("qwen3_vl_text", "qwen3_vl_moe_text")
"""Language models that transformers builds with their encoder alone."""
VISION_SIZES: dict[str, Callable[[random.Random], Any]] = {
    "depth": _from(1, 3),
    "num_hidden_layers": _from(1, 3),
    "hidden_size": _one(16, 32),
    "intermediate_size": _from(16, 40),
    "num_attention_heads": _one(2, 4),
    "num_key_value_heads": _one(2),
    "head_dim": _one(8, 12),
    "num_heads": _one(2, 4),
    "in_channels": _one(1, 3),
    "num_channels": _one(1, 3),
    "patch_size": _one(2, 4),
    "spatial_merge_size": _one(1, 2),
    "temporal_patch_size": _one(1, 2),
    "out_hidden_size": _from(16, 40),
    "num_position_embeddings": _one(16, 25),
    "position_embedding_size": _one(16, 20),
    "deepstack_visual_indexes": _one([], [0], [0, 1]),
    "image_size": _one(16, 24),
}
LISTED = {
    "mlp_layer_types": ("dense", "sparse"),
    "layers_block_type": ("mamba", "attention", "moe", "mlp"),
}
LAYER_TYPES = {
    "linear": ("linear_attention", "full_attention"),
    "sliding": ("sliding_attention", "full_attention"),
    "chunked": ("chunked_attention", "full_attention"),
    "mamba": ("mamba", "attention"),
    "v4": ("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
    "conv": ("conv", "full_attention"),
    "m3": ("full_attention", "minimax_m3_sparse"),
}
LISTS_OF = {
    "qwen3_next": "linear", "qwen3_5_text": "linear", "qwen3_5_moe_text": "linear", "kimi_linear": "linear",
    "minimax": "linear", "granitemoehybrid": "mamba", "llama4_text": "chunked", "deepseek_v4": "v4",
    "minimax_m3_vl_text": "m3", "lfm2": "conv", "lfm2_moe": "conv", "bailing_hybrid": "linear",
}  # fmt: skip
"""Names that a type's ``layer_types`` can hold; windows and full attention where it is not named here."""
FIXED: dict[str, dict[str, Any]] = {
    "gemma4_text": {"use_bidirectional_attention": None},
    "opt": {"layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False, "do_layer_norm_before": True},
    "phi": {"qk_layernorm": False},
    "stablelm": {"qk_layernorm": False, "use_parallel_residual": False},
    "kimi_linear": {"tie_word_embeddings": False},
    "bailing_hybrid": {"tie_word_embeddings": False},
    "dbrx": {"tie_word_embeddings": False},
    "nemotron_h": {"tie_word_embeddings": False, "mlp_bias": False},
}
SWITCHES_LEFT = {
    "use_cache", "is_decoder", "is_encoder_decoder", "return_dict", "output_attentions", "use_mambapy",
    "add_cross_attention", "norm_topk_prob", "rope_interleave", "residual_in_fp32", "use_bidirectional_attention",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Count models of every type, or of those named; 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=40, metavar="N", help="models of each type (default: 40)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("types", nargs="*", metavar="TYPE", help="model types (default: all that transformers knows)")
    args = parser.parse_args(arguments)
    try:
        importlib.import_module("transformers")
    except ImportError:
        print(NO_TRANSFORMERS, file=sys.stderr)
        return 2
    total: Counter[str] = Counter()
    outer = [name for name, each in model_types().items() if each.encoder]
    for model_type in args.types or sorted({*READERS, *outer} - {*WITHIN, *NOT_COMPARED}):
        config_class = _config_class(model_type)
        if config_class is None:
            print(f"{model_type:22} unknown to transformers")
            continue
        outcomes = list(campaign(model_type, config_class, args.models, args.seed))
        counts = Counter(outcome.kind for outcome in outcomes)
        total += counts
        print(f"{model_type:22} " + "  ".join(f"{kind} {count}" for kind, count in sorted(counts.items())))
        for kind in ("differs", "refused", "unbuilt"):
            for reason, times in Counter(each.reason for each in outcomes if each.kind == kind).most_common(3):
                print(f"    {kind} {times} x {reason}")
    print("all: " + "  ".join(f"{kind} {count}" for kind, count in sorted(total.items())))
    return 1 if total["differs"] else 0


def campaign(model_type: str, config_class: Any, models: int, seed: int) -> Iterable[Outcome]:
    """Random models of a type, each counted by both."""
    for number in range(models):
        rng = random.Random(f"{model_type} {seed} {number}")
        known = model_types()[model_type]
        if not known.text:
            yield compare(model_type, config_class, draw(rng, model_type, config_class))
            continue
        text_class = _config_class(known.text) or type(config_class().get_text_config())
        data: dict[str, Any] = {name: {} for name in ("text_config", "vision_config")}
        data["text_config"] = draw(rng, known.text, text_class)
        data["vision_config"] = {name: VISION_SIZES[name](rng) for name in known.vision if name in VISION_SIZES}
        if known.counted and rng.random() < 0.5:
            data["tie_word_embeddings"] = rng.random() < 0.5
        yield compare(model_type, config_class, data)


def compare(model_type: str, config_class: Any, data: dict[str, Any]) -> Outcome:
    """One configuration, counted by transformers and read here."""
    try:
        config = config_class(**data)
        counted, by_layer = count(config)
    except Exception as error:  # whatever transformers says about values that it does not take
        return Outcome("unbuilt", f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:150])
    try:
        model, _ = read_model({"model_type": model_type, **data}, FILE)
    except InputError as error:
        return Outcome("refused", f"{error.field}: {error.problem}"[:150])
    read = total_parameters(model)
    layers = [layer_parameters(model, kind) for kind in kinds_in_order(model.pattern)]
    if read == counted and layers == by_layer:
        return _kinds(config, model)
    at = next((at for at, (a, b) in enumerate(zip(layers, by_layer, strict=False)) if a != b), None)
    where = f"layer {at}: {layers[at]} read, {by_layer[at]} counted" if at is not None else "outside the layers"
    return Outcome("differs", f"{read - counted:+,} of {counted:,}, {where}; {data}")


def _kinds(config: Any, model: ModelSpec) -> Outcome:
    """Return whether every layer mixes its tokens as ``layer_types`` says, once transformers has filled it in."""
    wanted = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
    for at, (said, name) in enumerate(zip(wanted, kinds_in_order(model.pattern), strict=False)):
        layer = model.layer(name)
        window = {"sliding_attention": SLIDING, "chunked_attention": CHUNKED}.get(said, FULL_REACH)
        if window == SLIDING and not getattr(config, "sliding_window", None):
            window = FULL_REACH
        if said in ("linear_attention", "mamba"):
            fits = layer.linear is not None or layer.mamba is not None
        elif said in ("full_attention", "attention", *WINDOWED):
            fits = layer.attention is not None and layer.attention.reach == window
        else:
            continue
        if not fits:
            return Outcome("differs", f"layer {at} is {said}, read as {name}")
    return Outcome("equal")


def count(config: Any) -> tuple[int, list[int]]:
    """Parameters of a model that transformers builds, and of every layer of its language model."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    if not hasattr(config, "tie_word_embeddings"):
        config.tie_word_embeddings = False
    with torch.device("meta"):
        try:
            model = transformers.AutoModelForCausalLM.from_config(config)
        except ValueError:
            model = _language_model(config)
    model.tie_weights()
    layers: Counter[int] = Counter()
    for name, parameter in model.named_parameters():
        found = IN_LAYER.search(name)
        if found is not None and IN_ENCODER.search(name) is None:
            layers[int(found[1])] += parameter.numel()
    return sum(each.numel() for each in model.parameters()), [layers[at] for at in range(len(layers))]


def _language_model(config: Any) -> Any:
    """Of a language model that transformers builds inside another alone: that one with an LM head."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    try:
        return transformers.AutoModelForImageTextToText.from_config(config)
    except ValueError:
        pass
    name = type(config).__name__.removesuffix("Config").removesuffix("Text")
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    model = getattr(module, f"{name}TextModel")(config)
    if not config.tie_word_embeddings:
        model.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    return model


def draw(rng: random.Random, model_type: str, config_class: Any) -> dict[str, Any]:
    """A random small configuration: every field of the class that may matter, some of them left out."""
    data = _fitting(rng, model_type, config_class)
    layers = next((data[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in data), 0)
    for each in fields(config_class):
        default = each.default if each.default is not MISSING else None
        if each.name in data or each.name in SWITCHES_LEFT or each.name in FIXED.get(model_type, {}):
            continue
        if each.name == "layer_types":
            kinds = LAYER_TYPES[LISTS_OF.get(model_type, "sliding")]
            if rng.random() < 0.5 or model_type == "lfm2_moe":
                data[each.name] = [rng.choice(kinds) for _ in range(layers)]
        elif each.name in LISTED:
            if rng.random() < 0.5 and model_type != "deepseek_v4":
                data[each.name] = [rng.choice(LISTED[each.name]) for _ in range(layers)]
        elif each.name in SIZES:
            value = SIZES[each.name](rng)
            if value is not None or "None" in str(each.type):
                data[each.name] = value
        elif isinstance(default, bool) and rng.random() < 0.6:
            data[each.name] = rng.random() < 0.5
    data.update(FIXED.get(model_type, {}))
    return data


def _fitting(rng: random.Random, model_type: str, config_class: Any) -> dict[str, Any]:
    """The fields that only fit together: heads, widths, layers, experts."""
    known = {each.name for each in fields(config_class)}
    heads = rng.choice((2, 4, 6))
    hidden = heads * rng.choice((8, 12, 16)) * (2 if heads == 2 else 1)
    layers = rng.randrange(2, 9)
    data: dict[str, Any] = {}

    def put(value: Any, *names: str) -> None:
        for name in names:
            if name in known:
                data[name] = value
                return

    put(hidden, "hidden_size", "n_embd", "d_model")
    put(heads, "num_attention_heads", "n_head", "num_heads", "n_heads")
    put(layers, "num_hidden_layers", "n_layer", "num_layers", "n_layers")
    if "num_key_value_heads" in known:
        data["num_key_value_heads"] = rng.choice([each for each in (1, 2, 3, 4, heads) if heads % each == 0])
    if rng.random() < 0.6 or model_type in ("nemotron", "deepseek_v4", "ministral") or "hunyuan" in model_type:
        put(rng.choice((8, 16, 20)), "head_dim", "attention_head_dim")
    if model_type == "deepseek_v4":
        data.update(num_key_value_heads=1, n_shared_experts=1, mlp_bias=False)
    experts = rng.choice((2, 4, 6))
    put(experts, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    put(rng.choice((1, 2)), "num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")
    _fit_sections(rng, model_type, known, data)
    return data


def _fit_sections(rng: random.Random, model_type: str, known: set[str], data: dict[str, Any]) -> None:
    """Mixers other than softmax attention, and nested sections."""
    hidden = next((data[name] for name in ("hidden_size", "n_embd", "d_model") if name in data), 0)
    heads = next((data[name] for name in ("num_attention_heads", "n_head", "num_heads", "n_heads") if name in data), 1)
    layers = next((data[name] for name in ("num_hidden_layers", "n_layer", "num_layers") if name in data), 0)
    if "mamba_n_heads" in known:
        data["mamba_expand"] = 2
        data["mamba_n_heads"] = rng.choice([each for each in (2, 4, 8) if 2 * hidden % each == 0])
    if model_type == "mamba2":
        data.update(expand=2, num_heads=4, head_dim=hidden // 2)
    if model_type == "kimi_linear" and rng.random() < 0.5:
        full = sorted(rng.sample(range(1, layers + 1), rng.randrange(0, layers)))
        data["linear_attn_config"] = {
            "full_attn_layers": full,
            "kda_layers": [each for each in range(1, layers + 1) if each not in full],
            "head_dim": 8,
            "num_heads": 4,
            "short_conv_kernel_size": 3,
        }
        data.update(layer_types=None, linear_num_heads=4, linear_head_dim=8)
    if model_type == "helium":
        data["head_dim"] = hidden // heads
    if model_type == "nemotron_h":
        data["layers_block_type"] = [rng.choice(LISTED["layers_block_type"]) for _ in range(layers)]
    if model_type == "dbrx":
        data["attn_config"] = {"rope_theta": 10000.0}
        data["attn_config"]["kv_n_heads"] = rng.choice([each for each in (1, 2, heads) if heads % each == 0])
        data["ffn_config"] = {
            "ffn_hidden_size": rng.choice((16, 40)),
            "moe_num_experts": rng.choice((2, 4, 6)),
            "moe_top_k": 1,
        }
    if model_type == "falcon_h1":
        data["mamba_d_ssm"] = rng.choice((None, 32, 64))
        data["mamba_n_heads"] = rng.choice([each for each in (2, 4) if (data["mamba_d_ssm"] or 2 * hidden) % each == 0])
    if model_type == "bailing_hybrid":
        data["num_key_value_heads"] = heads


def _config_class(model_type: str) -> Any:
    if model_type in TEXT_CONFIGS:
        module, name = TEXT_CONFIGS[model_type]
        return getattr(importlib.import_module(module), name)
    mapping = importlib.import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING
    if model_type not in mapping or model_types()[model_type].source.startswith("PaddlePaddle"):
        return None
    return mapping[model_type]


if __name__ == "__main__":
    sys.exit(main())
