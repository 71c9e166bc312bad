"""Fields of Megatron's configuration classes as the flags that mean them.

Tools that build Megatron's classes themselves have the defaults of the classes where the flags have others. Source of
the names and the defaults: NVIDIA/Megatron-LM d98e8a64 megatron/core/model_parallel_config.py,
megatron/core/transformer/transformer_config.py, megatron/core/optimizer/optimizer_config.py,
megatron/core/distributed/distributed_data_parallel_config.py, and megatron/training/arguments.py for the flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from taylor.parsers.megatron.named_sizes import flag, word
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.policy.options import NOTHING, items_of
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flag

CLASS_DEFAULTS = {"apply_rope_fusion": "false", "gradient_accumulation_fusion": "false"}
"""Switches that are off in Megatron's classes and on by its flags (model_parallel_config.py
``gradient_accumulation_fusion``, transformer_config.py ``apply_rope_fusion``)."""
RENAMED = {
    "fp8": "fp8-format",
    "fp8_param": "fp8-param-gather",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "use_custom_fsdp": "use-megatron-fsdp",
}
"""Fields under another name than their flag."""
NEGATED = {
    "apply_rope_fusion": "no-rope-fusion",
    "bias_dropout_fusion": "no-bias-dropout-fusion",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "grad_reduce_in_fp32": "grad-reduce-in-bf16",
    "masked_softmax_fusion": "no-masked-softmax-fusion",
    "overlap_p2p_comm": "no-overlap-p2p-communication",
}
"""Fields whose flag switches them off."""
_LISTS = ("recompute_modules", "offload_modules", "cuda_graph_modules", "moe_layer_freq")
_OF_FULL, _OF_SELECTIVE = ("recompute_method", "recompute_num_layers"), ("recompute_modules",)
GRANULARITY = "recompute_granularity"
_FIELDS = {name: field for field, name in (*RENAMED.items(), *NEGATED.items())}


def flags_of(fields: Mapping[str, Flag]) -> Iterator[Flag]:
    """The flags that mean some fields; a field that no flag means gives none.

    Parameters
    ----------
    fields : mapping of str to Flag
        Value by the field's name.
    """
    chosen = fields.get(GRANULARITY)
    granularity = chosen.values[0].text if chosen is not None else ""
    for name, each in fields.items():
        if (name in _OF_FULL and granularity != "full") or (name in _OF_SELECTIVE and granularity != "selective"):
            continue
        if (found := _flag(name, each)) is not None:
            yield found


def _flag(name: str, stated: Flag) -> Flag | None:
    value = stated.values[0]
    text = value.text.strip().lower()
    if text in NOTHING:
        return None
    if name in NEGATED:
        return flag(NEGATED[name]) if text == "false" else None
    called = RENAMED.get(name, name.replace("_", "-"))
    row = flag_table().find(called)
    if row is None:
        return None
    if text in ("true", "false"):
        return flag(called) if text == "true" else None
    if name in _LISTS:
        return Flag(called, word(f"--{called}"), tuple(map(word, items_of(value.text))))
    return Flag(called, word(f"--{called}"), (value,))


def means_flag(name: str) -> bool:
    """Return whether a flag says what a field says."""
    return name in NEGATED or name in RENAMED or flag_table().find(name.replace("_", "-")) is not None


def flag_of(field: str) -> str:
    """The flag that means a field."""
    return NEGATED.get(field) or RENAMED.get(field) or field.replace("_", "-")


def field_of(name: str) -> str:
    """The field that a flag means."""
    return _FIELDS.get(name, name.replace("-", "_"))


def field_value(name: str, setting: Setting) -> object:
    """A flag's setting as the value of its field; None where the field's own default says it."""
    row = flag_table().find(name)
    if isinstance(setting, bool):
        if field_of(name) in NEGATED:
            return not setting
        return setting if row is not None and not row.takes_value else None
    if isinstance(setting, tuple):
        return list(setting)
    return int(setting) if setting.isdecimal() and len(setting) < 19 else setting
