"""FSDP as accelerate's and the Trainer's settings state it.

Source: huggingface/accelerate 16cb6eb8 src/accelerate/utils/dataclasses.py, ``FullyShardedDataParallelPlugin``;
src/accelerate/accelerator.py:1989-2031 and src/accelerate/utils/fsdp_utils.py:804-811: weights that train are stored in
fp32 under mixed precision, however they were loaded; huggingface/transformers v4.57.1
src/transformers/training_args.py, ``fsdp``.
"""

from __future__ import annotations

from collections.abc import Collection

from taylor.base.errors import shortened
from taylor.parsers.text.fields import Fields
from taylor.parsers.trainer.sharding import DDP, FSDP, Sharding

_STRATEGIES = {
    "full_shard": (True, False, False),
    "shard_grad_op": (True, True, False),
    "no_shard": (False, False, False),
    "hybrid_shard": (True, False, True),
    "hybrid_shard_zero2": (True, True, True),
}
"""Of each sharding strategy: it shards, its weights stay gathered, its shards are replicated (torch's
``ShardingStrategy``, in this order from 1)."""
PER_NODE = 8
"""Ranks of a node where shards are replicated between nodes and nothing states their number (assumed)."""


def on(fields: Fields, *names: str) -> bool | None:
    """A switch under one of its names, with or without ``fsdp_`` before it; None where it is not given.

    Raises
    ------
    InputError
        When it is neither true nor false.
    """
    known = _named(names)
    value = fields.raw(*known)
    if value is None or isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "false", "1", "0"):
        return str(value).lower() in ("true", "1")
    raise fields.error(known[0], "must be True or False", shortened(str(value), 60))


def _named(names: Collection[str]) -> list[str]:
    return [each for name in names for each in (name, f"fsdp_{name}")]


def read_fsdp(options: Collection[str], config: Fields, group: int | None = None, version: object = None) -> Sharding:
    """The division of states.

    The first version keeps what its outermost unit holds, the embedding and the head, from its forward to its backward
    (torch 2.13 torch/distributed/fsdp/_runtime_utils.py, ``_post_forward_reshard``); the second has units of their own
    for both (accelerate 16cb6eb8 src/accelerate/utils/fsdp_utils.py:861-873).

    Parameters
    ----------
    options : collection of str
        Words of ``fsdp``: ``full_shard``, ``auto_wrap``, ``offload``.
    config : Fields
        The section ``fsdp_config``.
    group : int, optional
        Ranks of one shard, where the file states them.
    version : int or str, optional
        FSDP's version where the file states it outside the section; the first by default.

    Raises
    ------
    InputError
        When an entry is wrong.
    """
    words = {str(word).strip().lower() for word in options}
    strategy, name = _strategy(words, config)
    shards, stays, replicated = _STRATEGIES[strategy]
    reshard = config.raw("reshard_after_forward", "fsdp_reshard_after_forward")
    if isinstance(reshard, bool):
        stays = not reshard
    elif isinstance(reshard, str) and reshard.lower() in (*_STRATEGIES, "true", "false"):
        low = reshard.lower()
        shards, stays, replicated = _STRATEGIES.get(low, (True, low == "false", False))
    elif reshard is not None:
        raise config.error(name, "must be True or False", shortened(str(reshard), 60))
    stated = version if version is not None else config.raw("fsdp_version", "version")
    on_host = "offload" in words or bool(on(config, "offload_params"))
    return Sharding(
        FSDP if shards else DDP,
        3 if shards else 0,
        stays_gathered=stays,
        whole_ends=shards and str(stated) != "2",
        group=(group or PER_NODE) if replicated or group else None,
        states_on_host=on_host,
        gradients_on_host=on_host,
        checkpoints=bool(on(config, "activation_checkpointing")),
        wide_weights=True,
    )


def _strategy(words: set[str], config: Fields) -> tuple[str, str]:
    name = "fsdp_sharding_strategy" if config.has("fsdp_sharding_strategy") else "sharding_strategy"
    written = config.raw(name)
    if written is None:
        return next((each for each in _STRATEGIES if each in words), "full_shard"), name
    if isinstance(written, int) and not isinstance(written, bool) and 1 <= written <= len(_STRATEGIES):
        return list(_STRATEGIES)[written - 1], name
    low = str(written).lower()
    if low not in _STRATEGIES:
        cure = f"write one of {', '.join(each.upper() for each in _STRATEGIES)}"
        raise config.error(name, "is no sharding strategy", shortened(str(written), 60), cure)
    return low, name
