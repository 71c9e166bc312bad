"""Activations that Megatron's flags move to the host, module by module."""

from __future__ import annotations

from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.cost_model.memory import offload
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import MovedModules

OFFLOADING, OFFLOAD_MODULES = "fine-grained-activation-offloading", "offload-modules"
MODULE_INPUTS = {
    "attn_norm": offload.ATTENTION_NORM,
    "qkv_linear": offload.PROJECTION_INPUT,
    "core_attn": offload.CORE_INPUTS,
    "attn_proj": offload.CONTEXT,
    "mlp_norm": offload.BLOCK_NORM,
    "expert_fc1": offload.EXPERT_INPUT,
    "moe_act": offload.EXPERT_INNER,
}
"""Tensor that each module of ``--offload-modules`` moves to the host: its input.

Megatron-LM d98e8a64 docs/user-guide/features/fine_grained_activation_offloading.md; megatron/core/transformer
transformer_config.py:2127-2199 says which go together.
"""
NOT_PRICED = ("fused_group_mlp", "gdp_qkv")
"""Modules that Megatron-LM d98e8a64 knows beside them (transformer_config.py:1339-1342) and that stay in no figure."""


def read_moved(flags: Flags) -> MovedModules | None:
    """The modules whose inputs a launch moves to the host; None where it moves none.

    Raises
    ------
    InputError
        When Megatron would not start; see `_refuse`.
    """
    if not flags.has(OFFLOADING):
        return None
    words = flags.listed(OFFLOAD_MODULES)
    _refuse(flags, words)
    stated = tuple(word for word in MODULE_INPUTS if word in words)
    # A module without a price leaves the flags among those that no figure has.
    priced = () if set(words) & set(NOT_PRICED) else (f"--{OFFLOADING}", f"--{OFFLOAD_MODULES}")
    return MovedModules(stated, priced) if stated else None


def _refuse(flags: Flags, words: Sequence[str]) -> None:
    """Refuse what Megatron-LM d98e8a64 does not start with.

    megatron/core/transformer/transformer_config.py:2127-2199; for the layers megatron/training/arguments.py:1935-1938.
    """
    moved = set(words)
    known = (*MODULE_INPUTS, *NOT_PRICED)
    cure = f"name some of {', '.join(known)}"
    if not words:
        raise flags.error(OFFLOAD_MODULES, f"names no module, which --{OFFLOADING} needs", "", cure)
    unknown = [word for word in words if word not in known]
    if unknown:
        raise flags.error(OFFLOAD_MODULES, "names no module whose input can be moved", unknown[0], cure)

    def clash(together: str, cure: str) -> InputError:
        return flags.error(OFFLOAD_MODULES, together, " ".join(words), cure)

    if "attn_proj" in moved and "core_attn" not in moved:
        raise clash("moves attn_proj without core_attn", "add core_attn")
    inside = sorted(moved & {"moe_act", "expert_fc1", "fused_group_mlp"})
    again = flags.text("recompute-granularity", default=None) == "selective" or flags.has("recompute-activations")
    if inside and again and "moe" in flags.listed("recompute-modules"):
        raise clash(f"moves {inside[0]} out of a block of experts that runs again whole",
                    f"take moe out of --recompute-modules, or {', '.join(inside)} out of it")  # fmt: skip
    if "fused_group_mlp" in moved:
        if not flags.has("use-transformer-engine-op-fuser"):
            cure = "add --use-transformer-engine-op-fuser"
            raise clash("moves fused_group_mlp, which only fused operators have", cure)
        if len(inside) > 1:
            raise clash("moves fused_group_mlp and parts of it", "take moe_act and expert_fc1 out")
    for other, runs in (("transformer-impl", "transformer_engine"), ("cpu-offloading-num-layers", "0")):
        found = flags.text(other, default=runs)
        if found != runs:
            raise flags.error(other, f"does not go with --{OFFLOADING}", found, "take one of the two out")
