"""Fields of Megatron-Bridge's ``ConfigContainer`` as Megatron's flags.

Most fields of ``model`` are those of Megatron's TransformerConfig, from which Megatron writes its flags: the flag is
the field with dashes. The others are here. Sources: NVIDIA-NeMo/Megatron-Bridge 067f987d
src/megatron/bridge/training/config.py, training/mixed_precision.py (MixedPrecisionConfig.setup: a set field goes before
those of model, optimizer and ddp), training/comm_overlap.py, models/gpt_provider.py:120-200; NVIDIA/Megatron-LM
d98e8a64 megatron/core/transformer/transformer_config.py, megatron/training/arguments.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.bridge.recipes import recipe_fields
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.mindspeed import telltales
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.text.flags import WORLD_FLAGS, Flag
from taylor.parsers.text.shell_start import given

RENAMED = {
    "model.fp8": "fp8-format",
    "model.fp4": "fp4-format",
    "model.fp4_param": "fp4-param-gather",
    "model.num_moe_experts": "num-experts",
    "model.layernorm_epsilon": "norm-epsilon",
    "model.virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "model.num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "model.num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "model.microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "model.hybrid_override_pattern": "hybrid-layer-pattern",
    "model.mamba_num_groups": "mamba-num-groups",
    "ddp.num_distributed_optimizer_instances": "num-distributed-optimizer-instances",
    "mixed_precision.fp8": "fp8-format",
    "mixed_precision.fp4": "fp4-format",
    "mixed_precision.fp8_param": "fp8-param-gather",
    "mixed_precision.fp4_param": "fp4-param-gather",
    "comm_overlap.overlap_moe_expert_parallel_comm": "overlap-moe-expert-parallel-comm",
}
"""Flags under another name than their field."""
SWITCHED_OFF = {
    "model.add_bias_linear": "disable-bias-linear",
    "model.apply_rope_fusion": "no-rope-fusion",
    "model.bias_dropout_fusion": "no-bias-dropout-fusion",
    "model.gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
    "model.masked_softmax_fusion": "no-masked-softmax-fusion",
    "model.share_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "ddp.grad_reduce_in_fp32": "grad-reduce-in-bf16",
    "mixed_precision.grad_reduce_in_fp32": "grad-reduce-in-bf16",
}
"""Switches whose false has a flag (arguments.py, ``store_false`` and ``--grad-reduce-in-bf16``)."""
SECTIONS = ("model", "train", "optimizer", "ddp", "mixed_precision", "comm_overlap")
"""Sections whose fields become flags; a later one goes before an earlier one."""
SPECIAL = frozenset(
    {
        "model.seq_length", "model.vocab_size", "model.should_pad_vocab", "model.make_vocab_size_divisible_by",
        "model.gated_linear_unit", "model.activation_func", "model.sequence_parallel", "model.num_query_groups",
        "model.pipeline_model_parallel_layout", "model.moe_layer_freq", "model.linear_attention_freq",
        "model.window_size", "model.window_attn_skip_freq", "model.bf16", "model.fp16", "model.params_dtype",
        "model.virtual_pipeline_model_parallel_size", "model.attention_backend", "model.cuda_graph_scope",
        "model.cuda_graph_modules", "model.bias_activation_fusion", "optimizer.bf16", "optimizer.fp16",
        "ddp.use_megatron_fsdp", "dist.use_megatron_fsdp", "model.group_query_attention", "model.cuda_graph_impl",
        "ddp.data_parallel_sharding_strategy", "model.mtp_num_layers", "model.cpu_offloading_num_layers",
    }
)  # fmt: skip
"""Fields that are read by rules of their own."""
_DTYPES = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float16": "fp16", "torch.uint8": "fp8",
           "bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}  # fmt: skip
_BACKENDS = {1: "flash", 2: "fused", 3: "unfused", 4: "local", 5: "auto"}
"""Megatron's AttnBackend (NVIDIA/Megatron-LM d98e8a64 megatron/core/transformer/enums.py)."""
_LAYOUT = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_ONE_WORD = ("moe_layer_freq", "linear_attention_freq", "window_attn_skip_freq")


def plain(value: Any) -> Any:
    """A value without Bridge's wrapping of what YAML has no word for: a dtype or function is its name, an enum its
    number; None for any other object."""
    if isinstance(value, Mapping):
        target, arguments = value.get("_target_"), value.get("_args_")
        if value.get("_call_") is False and isinstance(target, str):
            return target
        if isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], (int, str)):
            return arguments[0]
        return None
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def flattened(data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a configuration's sections, by ``section.field``."""
    fields: dict[str, Any] = {}
    for section, inside in data.items():
        for key, value in inside.items() if isinstance(inside, Mapping) else ():
            if isinstance(key, str) and not key.startswith("_"):
                fields[f"{section}.{key}"] = plain(value)
    return fields


def stated_flags(fields: Mapping[str, Any]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Flags that fields state: by name, the field and the flag's words; an absent flag says the rest."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for section in SECTIONS:
        for field, value in fields.items():
            if field.startswith(f"{section}.") and field not in SPECIAL and value is not None:
                _set_plain(found, field, value)
    for name, field, words in _special(fields):
        found[name] = field, words
    return found


def own_table() -> FlagTable:
    """Meaning of the fields that are no flags of Megatron's."""
    return load_flag_table("taylor.parsers.bridge", "options.yaml")


@cache
def known_fields(section: str) -> frozenset[str]:
    """Fields of a section that a recipe sets, a rule reads, or a row of the table explains."""
    fields = {*RENAMED, *SWITCHED_OFF, *SPECIAL, *own_table().rows, *recipe_fields()}
    return frozenset(field.partition(".")[2] for field in fields if field.startswith(f"{section}."))


def is_flag(field: str) -> bool:
    """Return whether a field has the name of one of Megatron's flags."""
    return flag_table().find(field.replace("_", "-")) is not None


def unread(fields: Mapping[str, Any], stated: Mapping[str, tuple[str, tuple[str, ...]]]) -> tuple[UnmodelledFlag, ...]:
    """Fields that are in force, became no flag, and cost something that no figure includes."""
    known = {field for field, _ in stated.values()}
    given = [
        (field, None if value is True else str(value)[:80])
        for field, value in fields.items()
        if field not in known and value not in (None, False, "", []) and own_table().find(field) is not None
    ]
    return own_table().unmodelled(given)


def refuse_frozen(fields: Mapping[str, Any], file: Path) -> None:
    """Refuse a job that trains a vision part alone.

    Raises
    ------
    InputError
        With the field.
    """
    if fields.get("model.freeze_language_model") is True:
        problem = "freezes the language model and trains the parts beside it, which are not planned"
        cure = "set it to false to plan the training of all weights"
        raise InputError(problem, file=file, field="model.freeze_language_model", value=True, cure=cure)


def flags_of(stated: Mapping[str, tuple[str, tuple[str, ...]]]) -> list[Flag]:
    """Flags in the form of a launch."""
    return [flag(name, *words) for name, (_, words) in stated.items()]


def flag(name: str, *words: str) -> Flag:
    """A flag that no text of a script states."""
    return Flag(name, given(f"--{name}"), tuple(map(given, words)))


def _set_plain(found: dict[str, tuple[str, tuple[str, ...]]], field: str, value: Any) -> None:
    """Take a field by its name; a false removes what an earlier section said."""
    key = field.partition(".")[2]
    if field in SWITCHED_OFF:
        name = SWITCHED_OFF[field]
        if value:
            found.pop(name, None)
        else:
            found[name] = field, ()
        return
    name = RENAMED.get(field, key.replace("_", "-"))
    row = flag_table().find(name)
    if row is None or name in (*WORLD_FLAGS, *telltales()):
        return
    if isinstance(value, bool) or not row.takes_value:
        if value:
            found[name] = field, ()
        else:
            found.pop(name, None)
        return
    words = _words(key, value)
    if words:
        found[name] = field, words


def _words(key: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return (str(value),) if key in _ONE_WORD else tuple(str(each) for each in value)
    if isinstance(value, str) and value.startswith("[") and value.endswith("]") and key not in _ONE_WORD:
        return tuple(part for part in value[1:-1].replace("'", "").replace('"', "").replace(",", " ").split())
    text = str(value)
    return (_DTYPES.get(text, text),)


def _special(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Flags of fields that are read by rules of their own."""

    def value(name: str) -> Any:
        return fields.get(f"model.{name}")

    yield from _vocabulary(fields)
    length = next(
        (fields[each] for each in ("model.seq_length", "dataset.seq_length") if fields.get(each) is not None), None
    )
    if length is not None:
        yield "seq-length", "model.seq_length", (str(length),)
        yield "max-position-embeddings", "model.seq_length", (str(length),)
    if value("gated_linear_unit"):
        yield "swiglu", "model.gated_linear_unit", ()
    groups, heads = value("num_query_groups"), value("num_attention_heads")
    if groups is not None and groups != heads:
        yield "group-query-attention", "model.num_query_groups", ()
        yield "num-query-groups", "model.num_query_groups", (str(groups),)
    if value("sequence_parallel") and value("tensor_model_parallel_size") not in (None, 1):
        yield "sequence-parallel", "model.sequence_parallel", ()
    interleaves = value("virtual_pipeline_model_parallel_size")
    layout = layout_text(value("pipeline_model_parallel_layout"))
    if layout:
        yield "pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", (layout,)
    elif interleaves not in (None, 1):
        field = "model.virtual_pipeline_model_parallel_size"
        yield "num-virtual-stages-per-pipeline-rank", field, (str(interleaves),)
    if value("mtp_num_layers"):
        yield "mtp-num-layers", "model.mtp_num_layers", (str(value("mtp_num_layers")),)
    if value("cpu_offloading") and value("cpu_offloading_num_layers"):
        field = "model.cpu_offloading_num_layers"
        yield "cpu-offloading-num-layers", field, (str(value("cpu_offloading_num_layers")),)
    if fields.get("comm_overlap.overlap_p2p_comm") is False and interleaves not in (None, 1):
        yield "no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", ()
    yield from _kinds(fields)
    yield from _kernels(fields)
    yield from _sharding(fields)
    fp16 = next((fields[f"{each}.fp16"] for each in ("mixed_precision", "model") if f"{each}.fp16" in fields), None)
    yield ("fp16" if fp16 else "bf16"), "mixed_precision.bf16", ()


def _vocabulary(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Rows of the embedding: padded only where ``should_pad_vocab`` says so (gpt_provider.py:258-263)."""
    rows = fields.get("model.vocab_size")
    if rows is None:
        return
    if fields.get("model.should_pad_vocab"):
        yield "vocab-size", "model.vocab_size", (str(rows),)
        multiple = fields.get("model.make_vocab_size_divisible_by", 128)
        yield "make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by", (str(multiple),)
    else:
        yield "padded-vocab-size", "model.vocab_size", (str(rows),)


def _kinds(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Which layers have experts, linear attention or a window."""
    for key in _ONE_WORD:
        value = fields.get(f"model.{key}")
        if value is not None and not (key == "moe_layer_freq" and fields.get("model.num_moe_experts") is None):
            yield key.replace("_", "-"), f"model.{key}", (str(value).replace("True", "1").replace("False", "0"),)
    window = fields.get("model.window_size")
    if isinstance(window, (list, tuple)) and len(window) == 2:
        yield "window-size", "model.window_size", (",".join(map(str, window)),)


def _kernels(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    backend = fields.get("model.attention_backend")
    backend = _BACKENDS.get(backend, backend) if isinstance(backend, int) else backend
    if isinstance(backend, str):
        word = backend.rpartition(".")[2]
        if word in _BACKENDS.values():
            yield "attention-backend", "model.attention_backend", (word,)
    kind = fields.get("model.cuda_graph_impl")
    parts = fields.get("model.cuda_graph_modules") or fields.get("model.cuda_graph_scope") or []
    words = parts if isinstance(parts, list) else str(parts).strip("[]").replace("'", "").replace(",", " ").split()
    words = [str(word).rpartition(".")[2] for word in words]
    if "full_iteration" in words and kind in (None, "none"):
        kind = "local"
    if kind not in (None, "none"):
        yield "cuda-graph-impl", "model.cuda_graph_impl", (str(kind),)
        if words:
            yield "cuda-graph-scope", "model.cuda_graph_scope", tuple(words)
    if fields.get("model.bias_activation_fusion") is False and fields.get("model.gated_linear_unit"):
        yield "no-bias-swiglu-fusion", "model.bias_activation_fusion", ()


def _sharding(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    if not (fields.get("ddp.use_megatron_fsdp") or fields.get("dist.use_megatron_fsdp")):
        return
    yield "use-megatron-fsdp", "ddp.use_megatron_fsdp", ()
    strategy = fields.get("ddp.data_parallel_sharding_strategy")
    if strategy is not None:
        yield "data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", (str(strategy),)


def layout_text(value: Any) -> str | None:
    """A layout as Megatron's text: a list of the chunks, each the list of its parts, or the text itself.

    Source: megatron/core/transformer/pipeline_parallel_layer_layout.py (``parse_str_to_list``).
    """
    if not isinstance(value, list):
        return value if isinstance(value, str) and value else None
    chunks = value
    if any(chunk and isinstance(chunk[0], list) for chunk in value if isinstance(chunk, list)):
        chunks = [chunk for stage in value for chunk in stage]
    return "|".join("".join(_LAYOUT.get(str(part), "?") for part in (chunk or [])) for chunk in chunks)
