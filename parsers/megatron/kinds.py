"""Positions of the layer stack that hold experts: ``--first-k-dense-replace`` and ``--moe-layer-freq``.

Positions count what ``--noop-layers`` leaves empty too. MindSpeed-LLM tests the global layer number and
only then puts an empty layer there (mindspeed_llm/core/transformer/transformer_block.py,
``_transformer_block_build_layers``, 2.0.0 to master; 1.0.RC3 and 1.0.0 have no empty layers). Megatron's
list is as long as ``--num-layers`` (megatron/core/models/gpt/gpt_layer_specs.py,
``get_gpt_decoder_layer_specs``, core 0.9 to main).
"""

from __future__ import annotations

from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.parsers.megatron.frequency import list_text, read_list, read_number
from taylor.parsers.megatron.hybrid import read_hybrid
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flags import Flags

DENSE_FIRST, PATTERN = "first-k-dense-replace", "moe-layer-freq"
LAYER_LIST, NOOPS = "num-layer-list", "noop-layers"


def layer_positions(flags: Flags) -> int:
    """Positions of layers: the letters of a hybrid model's pattern, else ``--num-layers``."""
    hybrid = read_hybrid(flags)
    if hybrid is not None:
        return len(hybrid.letters)
    positions: int = flags.integer("num-layers", high=MAX_LAYERS)
    return positions


def empty_positions(flags: Flags) -> frozenset[int]:
    """Positions, from 0, that hold no layer."""
    return frozenset(flags.integers(NOOPS, high=layer_positions(flags) - 1) or [])


def layer_list(flags: Flags) -> list[int] | None:
    """``--num-layer-list`` where it holds; ``--noop-layers`` switches it off.

    Source: MindSpeed-LLM 2.0.0 to master, features_manager/pipeline_parallel/num_layer_list.py,
    ``validate_args``.
    """
    return None if empty_positions(flags) else flags.integers(LAYER_LIST, low=0)


def has_experts(flags: Flags) -> list[bool]:
    """Return whether a layer at each position has experts, in a model that has some.

    Raises
    ------
    InputError
        When the flags do not fit each other.
    """
    return _has_experts(flags, tested_positions(flags, layer_positions(flags)))


def kind_flags(flags: Flags, wanted: Sequence[bool | None], mindspeed: bool) -> dict[str, str | bool]:
    """The flags that make every position have experts or not, as it is to be; empty where they say it already.

    Parameters
    ----------
    wanted : sequence of bool or None
        True: the layer at a position has experts; None: there is no layer.
    mindspeed : bool
        The launcher knows ``--first-k-dense-replace``.
    """
    try:
        now = _has_experts(flags, range(len(wanted)))
    except InputError:
        now = []
    if len(now) == len(wanted) and all(kind in (None, experts) for kind, experts in zip(wanted, now, strict=True)):
        return {}
    first = next((len(wanted) - at for at, kind in enumerate(reversed(wanted)) if kind is False), 0)
    if not any(wanted[:first]):
        if says_dense_first(flags, mindspeed):
            return {DENSE_FIRST: str(first), PATTERN: "1"}
        return {PATTERN: f"([0]*{first}+[1]*{len(wanted) - first})"}
    listed: dict[str, str | bool] = {PATTERN: list_text([bool(kind) for kind in wanted])}
    return {**listed, DENSE_FIRST: False} if flags.has(DENSE_FIRST) else listed


def says_dense_first(flags: Flags, mindspeed: bool) -> bool:
    """Return whether a script's kinds are written as ``--first-k-dense-replace`` rather than as a list."""
    return flags.has(DENSE_FIRST) or (mindspeed and not _is_list(flags))


def starts_with(dense_first: int, positions: int, stages: int) -> bool:
    """Return whether MindSpeed-LLM starts with this number of dense positions.

    From 2.1.0 on it refuses those that fill the first stage (features_manager/transformer/
    transformer_block.py, ``validate_args``).
    """
    return dense_first < 1 or stages == 1 or dense_first < positions // stages


def dense_first(flags: Flags) -> int:
    """``--first-k-dense-replace``; 0 where it is off (absent, 0, or below)."""
    return max(0, flags.integer(DENSE_FIRST, default=0, low=-1, high=MAX_LAYERS))


def _is_list(flags: Flags) -> bool:
    return "[" in flags.text(PATTERN, default="1")


def tested_positions(flags: Flags, layers: int) -> Sequence[int]:
    """The number by which each position is tested: its own, but under ``--num-layer-list`` that of even stages.

    ``_get_layer_offset`` (MindSpeed mindspeed/core/transformer/transformer_block.py, 2.0.0 to master) knows
    nothing of the list.
    """
    listed = layer_list(flags)
    if not listed or sum(listed) != layers:
        return range(layers)
    each = layers // len(listed)
    return [stage * each + at for stage, count in enumerate(listed) for at in range(count)]


def _has_experts(flags: Flags, positions: Sequence[int]) -> list[bool]:
    """Return whether a layer at each of the positions has experts, by the flags."""
    if _is_list(flags):
        if flags.has(DENSE_FIRST):
            raise flags.error(PATTERN, f"cannot be a list beside --{DENSE_FIRST}", flags.text(PATTERN))
        listed = read_list(flags, PATTERN, len(positions)) or []
        return [listed[min(position, len(listed) - 1)] for position in positions]
    # `i % -1 == 0` holds for every i: -1 means that all layers have experts, as 1 does.
    every = read_number(flags, PATTERN) or 1
    first = dense_first(flags)
    return [position >= first and position % every == 0 for position in positions]
