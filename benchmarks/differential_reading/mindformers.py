"""The fields of a MindFormers file, from `yaml.safe_load` alone.

Sources: MindFormers r1.5.0 for the legacy generation, r1.7.0 for the one with Hugging Face names, by file and line.
"""

from __future__ import annotations

from typing import Any

import yaml

from benchmarks.differential_reading.positions import of_yaml
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole

_WIDTH_TABLES = {
    # Class: width of its MLP where the file has none, by file and line.
    "InternLM2Config": 14336,  # research/internlm2/internlm2_config.py:97
    "ChatGLM2Config": 13696,  # mindformers/models/glm2/glm2_config.py:128
    "DeepseekV2Config": 12288,
    "DeepseekV3Config": 18432,
}


_CLASSES = {
    # model_type of the new generation: sizes of its class, by file and line.
    "deepseek_v3": {  # r1.8.0 mindformers/models/deepseek3/configuration_deepseek_v3.py:159-179
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
    },
    "qwen3_moe": {  # r1.8.0 mindformers/models/qwen3_moe/configuration_qwen3_moe.py:182-204
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "qwen3": {  # r1.8.0 mindformers/models/qwen3/configuration_qwen3.py:163-169
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 22016,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
    },
}


def read_yaml(text: str) -> list[Reading]:
    """The fields of the training that a file describes.

    Raises
    ------
    NothingToRead
        When it describes none, or leaves the model's sizes to another file.
    """
    try:
        top = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise NothingToRead(f"is no YAML: {type(error).__name__}") from None
    if not isinstance(top, dict) or not ({"model", "parallel_config", "pretrained_model_dir"} & set(top)):
        raise NothingToRead("is no training file")
    if top.get("run_mode") in ("predict", "eval", "export"):
        raise NothingToRead("trains nothing")
    model = _mapping(_mapping(top, "model"), "model_config")
    model = {**_CLASSES.get(str(model.get("model_type")), {}), **model}
    reading = {**_model(top, model), **_run(top, model)}
    if "layers" not in reading or "hidden" not in reading:
        raise NothingToRead("the model's sizes are not in the file")
    return [reading | of_yaml(top, model, reading, _is_new(top, model))]


def _is_new(top: dict[str, Any], model: dict[str, Any]) -> bool:
    """Return whether a file is of the generation with Hugging Face names."""
    return top.get("use_legacy") is False or "num_hidden_layers" in model or "model_type" in model


def _mapping(data: Any, name: str) -> dict[str, Any]:
    found = data.get(name) if isinstance(data, dict) else None
    return found if isinstance(found, dict) else {}


def _first(data: dict[str, Any], *names: str, default: int | None = None) -> int | None:
    for name in names:
        if data.get(name) is not None:
            return whole(data[name])
    return default


def _model(top: dict[str, Any], model: dict[str, Any]) -> Reading:
    experts_of = model if _is_new(top, model) else _mapping(top, "moe_config")
    heads = _first(model, "num_attention_heads", "num_heads", "n_head")
    hidden = _first(model, "hidden_size")
    kv_heads = _first(model, "num_key_value_heads", "n_kv_heads", "num_query_groups", default=heads)
    kind = str(model.get("type"))
    if kind.startswith("ChatGLM") and model.get("multi_query_attention", True):
        kv_heads = _first(model, "multi_query_group_num", default=2)  # glm2_config.py:142-143
    elif model.get("multi_query_attention"):
        kv_heads = _first(model, "multi_query_group_num")  # research/yizhao/convert_weight.py:72-80
    if kind == "InternLM2Config":
        kv_heads = _first(model, "n_kv_heads", default=8)  # internlm2_config.py:96
    if model.get("kv_lora_rank"):
        kv_heads = heads  # research/deepseek3/deepseek2_model.py:391-395: latent attention takes no other number.
    experts = _first(experts_of, "num_experts", "n_routed_experts", "num_local_experts", "expert_num", default=1)
    ffn = _width(model, kind, hidden)
    top_k = _first(experts_of, "num_experts_per_tok", "num_experts_chosen", "moe_router_topk", default=1)
    width = _first(experts_of, "moe_intermediate_size", "moe_ffn_hidden_size", default=ffn)
    many = experts is not None and experts > 1
    data = _mapping(_mapping(_mapping(top, "train_dataset"), "data_loader"), "config")
    values: dict[str, Value | None] = {
        "layers": _first(model, "num_hidden_layers", "num_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "ffn": ffn,
        "vocab": _first(model, "vocab_size", "padded_vocab_size"),
        "experts": experts,
        "top_k": top_k if many else 0,
        "expert_width": width if many else 0,
        "sequence": _first(model, "seq_length", default=_first(data, "seq_length")),
    }
    return settled(values)


def _width(model: dict[str, Any], kind: str, hidden: int | None) -> int | None:
    """The MLP's width; without one the rule of modules/transformer and models/llama/llama_layer.py:312-319."""
    stated = _first(model, "intermediate_size", "ffn_hidden_size", default=_WIDTH_TABLES.get(kind))
    if stated is not None or hidden is None:
        return stated
    if kind == "GPT2Config":
        return hidden * (_first(model, "expand_ratio", default=4) or 4)  # gpt2_config.py:121
    wide = 4 * hidden
    if model.get("ffn_dim_multiplier") is not None:
        wide = int((float(model["ffn_dim_multiplier"]) + 0.01) * wide)
    wide = int(2 * wide / 3)
    multiple = _first(model, "multiple_of", default=256) or 256
    return (wide + multiple - 1) // multiple * multiple


def _run(top: dict[str, Any], model: dict[str, Any]) -> Reading:
    degrees, runner, parallel = (
        _mapping(top, "parallel_config"),
        _mapping(top, "runner_config"),
        _mapping(top, "parallel"),
    )
    dp, tp = _first(degrees, "data_parallel", default=1), _first(degrees, "model_parallel", default=1)
    pp, cp = _first(degrees, "pipeline_stage", default=1), _first(degrees, "context_parallel", default=1)
    pipeline = _mapping(parallel, "pipeline_config")
    interleaves = _first(model, "pp_interleave_num", default=1) if pipeline.get("pipeline_interleave") else 1
    # trainer/base_trainer.py:196-219: micro_batch_num counts with stages, gradient_accumulation_steps without.
    parts = _first(top, "micro_batch_interleave_num", default=1)
    size = _first(runner, "batch_size", default=_first(model, "batch_size", default=1))
    if pp is not None and pp > 1:
        rounds = _first(degrees, "micro_batch_num", default=1)
    else:
        rounds = _first(runner, "gradient_accumulation_steps", default=1)
    mbs = None if size is None or parts is None else size * parts
    batch = None if mbs is None or dp is None or rounds is None else mbs * dp * rounds
    values: dict[str, Value | None] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": _first(degrees, "expert_parallel", default=1),
        "vpp": interleaves,
        "dp": dp,
        "mbs": mbs,
        "batch": batch,
        "recompute": _recompute(top.get("recompute_config")),
        "sharded_optimizer": bool(parallel.get("enable_parallel_optimizer")),
    }
    return settled(values)


def _recompute(entry: Any) -> str:
    if isinstance(entry, bool):
        return "full" if entry else "none"
    if not isinstance(entry, dict):
        return "none"
    if _any(entry.get("recompute")):
        return "full"
    return "selective" if _any(entry.get("select_recompute")) else "none"


def _any(entry: Any) -> bool:
    if isinstance(entry, dict):
        return any(map(_any, entry.values()))
    if isinstance(entry, list):
        return any(map(_any, entry))
    return bool(entry)
