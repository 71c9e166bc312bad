"""Automodel's start-up checks of degrees, batch, pipeline, recompute, precision and adapters.

Source: NVIDIA-NeMo/Automodel 36044ad3 nemo_automodel. Checks of data, checkpoints and loggers are not here, for no plan
depends on them. What the split of a pipeline refuses is an error of reading (`parsers.automodel.pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.start_rules import KeyRule, Keys, of_mapping, whole
from taylor.parsers.text.fields import Fields

_AT = "Automodel 36044ad3 nemo_automodel"
_DP, _ROUNDS = " dp", " shards"
"""Keys of facts that follow from the ranks; no file has a key with a blank."""
_D = "distributed"
_SIZES = ("dp_size", "dp_replicate_size", "tp_size", "cp_size", "ep_size", "pp_size", "pipeline", "moe")
_COMMON = (*_SIZES, "strategy", "_target_", "_recursive_", "_convert_", "activation_checkpointing", "autocast_dtype")
_OPTIONS = {
    "fsdp2": (
        "sequence_parallel", "tp_plan", "patch_is_packed_sequence", "mp_policy", "offload_policy",
        "activation_checkpointing_scope", "defer_fsdp_grad_sync", "reshard_after_forward",
        "enable_async_tensor_parallel", "enable_compile", "enable_fsdp2_prefetch", "fsdp2_backward_prefetch_depth",
        "fsdp2_forward_prefetch_depth", "multimodal",
    ),
    "megatron_fsdp": (
        "megatron_fsdp_unit_modules", "zero_dp_strategy", "init_fsdp_with_meta_device", "grad_reduce_in_fp32",
        "preserve_fp32_weights", "overlap_grad_reduce", "overlap_param_gather", "check_for_nan_in_grad",
        "report_nan_in_param_grad", "average_in_collective", "disable_bucketing", "calculate_per_token_loss",
        "keep_fp8_transpose_cache", "nccl_ub", "fsdp_double_buffer",
    ),
    "ddp": (
        "activation_checkpointing_scope", "broadcast_buffers", "find_unused_parameters", "static_graph",
        "bucket_cap_mb", "gradient_as_bucket_view",
    ),
}  # fmt: skip
"""Fields of the strategies' classes (components/distributed/config.py:231-460)."""


def in_words(top: Fields, strategy: Strategy) -> Keys:
    """Keys of a recipe, with the facts of its ranks."""
    of_file = of_mapping(top.data)
    shards = strategy.op // strategy.cp if strategy.op % strategy.cp == 0 else strategy.op
    facts: dict[str, Any] = {_DP: strategy.dp, _ROUNDS: shards}
    return lambda key: facts[key] if key in facts else of_file(key)


def _strategy(keys: Keys) -> str:
    written = str(keys(f"{_D}.strategy") or "fsdp2").lower()
    return "megatron_fsdp" if written in ("megatron-fsdp", "mfsdp") else written


def _size(keys: Keys, name: str) -> int:
    return max(1, whole(keys, f"{_D}.{name}", 1))


def _rule(
    name: str, field: str, broken: Callable[[Keys], bool], problem: str, cure: str, place: str, *, always: bool = True
) -> KeyRule:
    return KeyRule(f"automodel-{name}", field, broken, problem, cure, f"{_AT}/{place}", any_strategy=always)


def _alone(strategy: str, degree: str, line: int) -> KeyRule:
    word = degree.removesuffix("_size").replace("_", "-")
    return _rule(
        f"{strategy.replace('_', '-')}-without-{word}",
        f"{_D}.{degree}",
        lambda keys: _strategy(keys) == strategy and _size(keys, degree) > 1,
        f"does not go with strategy {strategy}",
        "write 1, or strategy: fsdp2",
        f"components/distributed/mesh_utils.py:{line}",
        always=False,
    )


def _unknown_option(keys: Keys) -> str | None:
    section = keys(_D)
    known = {*_COMMON, *_OPTIONS.get(_strategy(keys), ())}
    return next((name for name in section if name not in known), None) if isinstance(section, dict) else None


def _fills(keys: Keys) -> bool:
    pp = _size(keys, "pp_size")
    local = whole(keys, "step_scheduler.local_batch_size", 1)
    each = max(1, whole(keys, f"{_D}.pipeline.pp_microbatch_size", 1))
    return pp == 1 or local // each >= pp


def _divides(keys: Keys) -> bool:
    once = whole(keys, "step_scheduler.local_batch_size", 1) * max(1, int(keys(_DP)))
    return whole(keys, "step_scheduler.global_batch_size", 32) % once == 0


def _targets(keys: Keys) -> tuple[bool, bool, bool]:
    """Return whether the adapters name modules, leave some out, and take all linear ones."""
    return bool(keys("peft.target_modules")), bool(keys("peft.exclude_modules")), keys("peft.match_all_linear") is True


def _narrow_without_engine(keys: Keys) -> bool:
    backend = "model.backend."
    return (
        keys(f"{backend}te_fp8") is not None
        and "te" not in (keys(f"{backend}linear") or "te", keys(f"{backend}experts"))
    )  # fmt: skip


START_RULES = (
    _rule(
        "known-option",
        _D,
        lambda keys: _unknown_option(keys) is not None,
        "has an option that its strategy does not know",
        "leave it out",
        "components/distributed/config.py:488-491",
    ),
    _alone("ddp", "tp_size", 96),
    _alone("ddp", "pp_size", 97),
    _alone("ddp", "cp_size", 98),
    _alone("ddp", "ep_size", 99),
    _alone("ddp", "dp_replicate_size", 71),
    _alone("megatron_fsdp", "pp_size", 86),
    _alone("megatron_fsdp", "ep_size", 87),
    _alone("megatron_fsdp", "dp_replicate_size", 71),
    _rule(
        "replicas-divide-dp",
        f"{_D}.dp_replicate_size",
        lambda keys: _strategy(keys) == "fsdp2" and int(keys(_DP)) % _size(keys, "dp_replicate_size") != 0,
        "does not divide the data-parallel ranks",
        "write a divisor of them",
        "components/distributed/mesh_utils.py:308",
        always=False,
    ),
    _rule(
        "replicas-below-dp",
        f"{_D}.dp_replicate_size",
        lambda keys: 1 < _size(keys, "dp_replicate_size") >= int(keys(_DP)),
        "leaves no ranks to shard over",
        "write fewer, or strategy: ddp",
        "components/distributed/mesh_utils.py:310",
        always=False,
    ),
    _rule(
        "pipeline-is-stated",
        f"{_D}.pp_size",
        lambda keys: _size(keys, "pp_size") > 1 and not isinstance(keys(f"{_D}.pipeline"), dict),
        "asks for a pipeline, and distributed.pipeline is missing",
        "write pipeline: {} for its defaults",
        "recipes/_dist_utils.py:211",
        always=False,
    ),
    _rule(
        "micro-batches-fill-stages",
        f"{_D}.pipeline.pp_microbatch_size",
        lambda keys: not _fills(keys),
        "makes fewer micro-batches of a local batch than pp_size",
        "raise step_scheduler.local_batch_size, or write a smaller micro-batch",
        "recipes/llm/train_ft.py:547",
        always=False,
    ),
    _rule(
        "batch-is-whole",
        "step_scheduler.global_batch_size",
        lambda keys: not _divides(keys),
        "is no multiple of local_batch_size x data-parallel ranks",
        "write a multiple, or start other ranks",
        "components/training/step_scheduler.py:114",
        always=False,
    ),
    _rule(
        "selective-without-megatron-fsdp",
        f"{_D}.activation_checkpointing",
        lambda keys: (
            str(keys(f"{_D}.activation_checkpointing")).lower() == "selective" and _strategy(keys) == "megatron_fsdp"
        ),
        "is selective, which strategy megatron_fsdp does not have",
        "write true, or strategy: fsdp2",
        "recipes/_dist_utils.py:181",
    ),
    _rule(
        "async-tp-needs-sp",
        f"{_D}.enable_async_tensor_parallel",
        lambda keys: (
            keys(f"{_D}.enable_async_tensor_parallel") is True
            and _size(keys, "tp_size") > 1
            and (keys(f"{_D}.sequence_parallel") is not True or _size(keys, "ep_size") > 1)
        ),
        "needs sequence_parallel, and no parallel experts",
        "write sequence_parallel: true, or leave it out",
        "components/distributed/parallelizer.py:331, components/moe/parallelizer.py:1004",
        always=False,
    ),
    _rule(
        "te-fp8-needs-te",
        "model.backend.te_fp8",
        _narrow_without_engine,
        "needs linear or experts of transformer engine",
        "write linear: te or experts: te",
        "components/models/common/utils.py:449",
    ),
    _rule(
        "qat-without-peft",
        "qat.enabled",
        lambda keys: keys("qat.enabled") is True and keys("peft") is not None,
        "does not go with peft",
        "leave one of the two out",
        "recipes/llm/train_ft.py:219",
    ),
    _rule(
        "adapters-by-one-rule",
        "peft.target_modules",
        lambda keys: sum(_targets(keys)) > 1,
        "does not go with exclude_modules or match_all_linear",
        "leave all but one of the three out",
        "components/_peft/module_matcher.py:110-117",
    ),
)
