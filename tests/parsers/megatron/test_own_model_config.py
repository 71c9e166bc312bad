"""MindSpeed-MM's own configuration of a language model beside what is read of its JSON and its script."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, package, source, without_package
from taylor.parsers.megatron.launcher import Megatron
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan
from tests.parsers.megatron.test_model_file import DECODER, job

PLACE = "MindSpeed-MM", "57069cd5"
LAYERS = ((4, 8, 8, 8),)
TELLTALE: dict[str, Any] = {
    "recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 3, "num_query_groups": 2,
    "kv_channels": 96, "normalization": "RMSNorm", "num_moe_experts": 16, "moe_router_topk": 3,
    "moe_ffn_hidden_size": 512, "moe_shared_expert_intermediate_size": 640, "add_qkv_bias": True, "qk_layernorm": True,
    "gated_linear_unit": True, "moe_grouped_gemm": True, "sequence_parallel": True, "bf16": True,
}  # fmt: skip
"""A value of each field that a script could state, other than the field's default."""
NAMES = {"gated_linear_unit": "swiglu", "num_moe_experts": "num-experts"}
"""Flags that are not named as their field."""


@cache
def own() -> SimpleNamespace:
    """MindSpeed-MM's `get_model_config` on megatron-core's own classes, and its reader of a JSON."""
    text = "mindspeed_mm/utils/transformer_model_config.py", "mindspeed_mm/configs/config.py"
    try:
        around = {
            "ModelParallelConfig": package("megatron.core.model_parallel_config").ModelParallelConfig,
            "TransformerConfig": package("megatron.core.transformer.transformer_config").TransformerConfig,
            "MLATransformerConfig": package("megatron.core.transformer.transformer_config").MLATransformerConfig,
            "pm": SimpleNamespace(register_patch=lambda *_, **__: None, apply_patches=lambda: None),
            "get_dtype": lambda name: None,
            "quick_gelu": None,
            "gelu_tanh": None,
        }
        build, absent = without_package(source(*PLACE, text[0]), "megatron", "mindspeed", "mindspeed_mm")
        reader, less = without_package(source(*PLACE, text[1]), "megatron", "mindspeed", "mindspeed_mm")
    except NotHere as missing:
        pytest.skip(str(missing))
    module = loaded("own_transformer_model_config", build, **{**absent, **around})
    read = loaded("own_config_reader", reader, **{**less, "get_dtype": around["get_dtype"]})
    module.ConfigReader = read.ConfigReader
    return module


def configured(decoder: dict[str, Any], **script: Any) -> Any:
    """What MindSpeed-MM builds of a ``text_decoder`` under a script's flags."""
    module = own()
    required = dict.fromkeys(vars(module.MindSpeedArgsRequired)["__dataclass_fields__"])
    module.get_args = lambda: SimpleNamespace(**{**required, **script})
    return module.get_model_config(module.ConfigReader(decoder))


@pytest.mark.parametrize("field", TELLTALE)
def test_a_scripts_flag_counts_where_it_reaches_the_language_model(field: str, tmp_path: Path) -> None:
    value, flag = TELLTALE[field], NAMES.get(field, field.replace("_", "-"))
    decoder = {key: DECODER[key] for key in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")}
    tensors = {"tensor_model_parallel_size": 2} if field == "sequence_parallel" else {}
    assert getattr(configured(decoder), field, None) != value
    taken = getattr(configured(decoder, **{field: value}, **tensors), field, None) == value
    file = job(tmp_path, {"text_decoder": {**decoder, "pipeline_num_layers": [4, 8, 8, 8]}}, f"--{flag} {value}")
    assert Megatron().launch(file).flags.has(flag) == taken == (field in ("sequence_parallel", "bf16"))


def test_a_false_of_the_json_counts_above_the_scripts_flag(tmp_path: Path) -> None:
    data = {**DECODER, "moe_grouped_gemm": False}
    assert configured(data, moe_grouped_gemm=True).moe_grouped_gemm is False
    file = job(tmp_path, {"text_decoder": data}, "--moe-grouped-gemm")
    (note,) = read_config(file).notes
    assert note.startswith("--moe-grouped-gemm: no effect on the language model")
    assert not Megatron().launch(file).flags.has("moe-grouped-gemm")


@pytest.mark.parametrize(
    "recompute",
    [{FULL: ((2, 2, 2, 2),)}, {FULL: LAYERS}, {SELECT: LAYERS}, {}],
    ids=["first layers", "all layers", "attention", "none"],
)
def test_a_written_plan_is_configured_as_it_says(recompute: dict[str, Any], tmp_path: Path) -> None:
    earlier = {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": 5}
    file = job(tmp_path, {"text_decoder": {**DECODER, **earlier}})
    plan = PipelinePlan({"dense": LAYERS}, recompute)
    write_plan(read_config(file), plan)
    built = configured(json.loads((file.parent / "model.json").read_text(encoding="utf-8"))["text_decoder"])
    assert built.pipeline_num_layers == list(LAYERS[0])
    # Megatron runs the first `recompute_num_layers` of a chunk again, or all of it in parts of as many.
    method, count = built.recompute_method, built.recompute_num_layers
    assert built.recompute_granularity == ("selective" if SELECT in recompute else "full" if recompute else None)
    full = recompute.get(FULL, ((0,) * 4,))[0]
    if built.recompute_granularity == "full":
        assert (method, count) == (("uniform", 1) if full == LAYERS[0] else ("block", full[0]))
    else:
        assert method is None and count is None
