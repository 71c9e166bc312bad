"""Readings of a file by both sides: the fields that are compared, and the reasons why a file has none."""

from __future__ import annotations

from typing import TypeAlias

FIELDS = (
    "layers",  # transformer layers that compute something, without multi-token prediction
    "hidden",
    "heads",
    "kv_heads",
    "ffn",  # width of the dense MLP
    "vocab",  # as trained: padded where the launcher pads
    "experts",  # 1 where there are none
    "top_k",  # 0 where there are none
    "expert_width",  # 0 where there are none
    "sequence",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "dp",
    "mbs",
    "batch",  # samples a step
    "recompute",  # none, selective, full: the strongest that any layer has
    "sharded_optimizer",
)
"""The twenty fields: ten of the model and its data, ten of how it is run."""

PLACES = (
    "layers_at",  # layers of every chunk of every stage, without multi-token prediction
    "experts_at",  # of these, those with experts
    "full_at",  # of these, those that run again as a whole
)
"""Three more, as grids in text (`positions`), where the launcher's own code is on this machine to count them."""

FURTHER = (
    "ranks",  # of the policy or the training
    "accumulation",  # micro-batches a step
    "compute_bytes",  # of a GEMM's numbers
    "weight_bytes",  # of a stored weight
    "zero",  # 0 nothing is sharded, 1 the optimizer's states, 2 gradients too, 3 weights too
    "adapter_rank",  # 0 where all weights train
    "adapter_targets",  # matrices beside which adapters lie
)
"""Seven more of launchers that train policies, shard weights or train adapters."""

Value: TypeAlias = "int | str | bool"
Reading: TypeAlias = "dict[str, Value]"
"""Field to value; a field that the file does not settle is left out."""


class NothingToRead(Exception):
    """The file starts no training whose sizes it settles; says why."""


def whole(value: object) -> int | None:
    """A whole number written as one, as a float without a fraction, or as text; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(value) if isinstance(value, (int, str)) else None
    except ValueError:
        return None


def settled(values: dict[str, Value | None]) -> Reading:
    """The fields that hold a value."""
    return {name: value for name, value in values.items() if value is not None}
