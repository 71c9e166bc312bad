"""Which positions of the layer stack hold experts: ``--first-k-dense-replace`` and ``--moe-layer-freq``.

Positions count what ``--noop-layers`` leaves empty too. MindSpeed-LLM tests the global layer number and
only then puts an empty layer there (mindspeed_llm/core/transformer/transformer_block.py,
``_transformer_block_build_layers``, 2.0.0 to master; 1.0.RC3 and 1.0.0 have no empty layers). Megatron's
list is as long as ``--num-layers`` (megatron/core/models/gpt/gpt_layer_specs.py,
``get_gpt_decoder_layer_specs``, core 0.9 to main).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taylor.base.errors import InputError
from taylor.parsers.megatron.flags import Flags
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.register.model import MOE

DENSE_FIRST, PATTERN = "first-k-dense-replace", "moe-layer-freq"
LAYER_LIST, NOOPS = "num-layer-list", "noop-layers"


def empty_positions(flags: Flags) -> frozenset[int]:
    """Positions, from 0, that hold no layer."""
    layers = flags.integer("num-layers", high=MAX_LAYERS)
    return frozenset(flags.integers(NOOPS, high=layers - 1) or [])


def layer_list(flags: Flags) -> list[int] | None:
    """``--num-layer-list`` where it holds; ``--noop-layers`` switches it off.

    Source: MindSpeed-LLM 2.0.0 to master, features_manager/pipeline_parallel/num_layer_list.py,
    ``validate_args``.
    """
    return None if empty_positions(flags) else flags.integers(LAYER_LIST, low=0)


def dense_layers(flags: Flags) -> int:
    """Dense layers at the front of a model that has experts.

    Raises
    ------
    InputError
        When a dense layer follows one with experts, or the flags do not fit each other.
    """
    empty = empty_positions(flags)
    has_experts = _has_experts(flags, _tested_positions(flags))
    kinds = [experts for position, experts in enumerate(has_experts) if position not in empty]
    dense = kinds.count(False)
    if any(kinds[:dense]):
        raise flags.error(
            PATTERN,
            "dense and MoE layers that alternate are not supported",
            flags.text(PATTERN, default="1"),
            "dense layers must come first, as in ([0]*3+[1]*58)",
        )
    return dense


def kind_flags(flags: Flags, kinds: Sequence[str | None], mindspeed: bool) -> dict[str, str | bool]:
    """The flags that make every position the kind it is to be; empty where they say it already.

    Parameters
    ----------
    kinds : sequence of str or None
        The kind of each position; None where there is no layer. Dense layers come first.
    mindspeed : bool
        Whether the launcher knows ``--first-k-dense-replace``.
    """
    wanted = [None if kind is None else kind == MOE for kind in kinds]
    try:
        now = _has_experts(flags, range(len(kinds)))
    except InputError:
        now = []
    if len(now) == len(wanted) and all(kind in (None, experts) for kind, experts in zip(wanted, now, strict=True)):
        return {}
    first = next((len(wanted) - at for at, kind in enumerate(reversed(wanted)) if kind is False), 0)
    if says_dense_first(flags, mindspeed):
        return {DENSE_FIRST: str(first), PATTERN: "1"}
    return {PATTERN: f"([0]*{first}+[1]*{len(wanted) - first})"}


def says_dense_first(flags: Flags, mindspeed: bool) -> bool:
    """Whether a script's kinds are written as ``--first-k-dense-replace`` rather than as a list."""
    return flags.has(DENSE_FIRST) or (mindspeed and not _is_list(flags))


def starts_with(dense_first: int, positions: int, stages: int) -> bool:
    """Whether MindSpeed-LLM starts with so many dense positions of all.

    From 2.1.0 on it refuses those that fill the first stage (features_manager/transformer/
    transformer_block.py, ``validate_args``).
    """
    return dense_first < 1 or stages == 1 or dense_first < positions // stages


def dense_first(flags: Flags) -> int:
    """``--first-k-dense-replace``; 0 where it is off (absent, 0, or below)."""
    return max(0, flags.integer(DENSE_FIRST, default=0, low=-1, high=MAX_LAYERS))


def _is_list(flags: Flags) -> bool:
    return "[" in flags.text(PATTERN, default="1")


def _tested_positions(flags: Flags) -> Sequence[int]:
    """The number by which each position is tested: its own, but under ``--num-layer-list`` that of even stages.

    ``_get_layer_offset`` (MindSpeed mindspeed/core/transformer/transformer_block.py, 2.0.0 to master) knows
    nothing of the list.
    """
    layers = flags.integer("num-layers", high=MAX_LAYERS)
    listed = layer_list(flags)
    if not listed or sum(listed) != layers:
        return range(layers)
    each = layers // len(listed)
    return [stage * each + at for stage, count in enumerate(listed) for at in range(count)]


def _has_experts(flags: Flags, positions: Sequence[int]) -> list[bool]:
    """Whether a layer at each of the positions has experts, by the flags."""
    if _is_list(flags):
        if flags.has(DENSE_FIRST):
            raise flags.error(PATTERN, f"cannot be a list beside --{DENSE_FIRST}", flags.text(PATTERN))
        pattern = _listed_pattern(flags)
        if len(pattern) != len(positions):
            raise flags.error(
                PATTERN, f"names {len(pattern)} layers; --num-layers has {len(positions)}", flags.text(PATTERN)
            )
        return [pattern[min(position, len(pattern) - 1)] for position in positions]
    # `i % -1 == 0` holds for every i: -1 means that all layers have experts, as 1 does.
    every = abs(flags.integer(PATTERN, default=1, low=-MAX_LAYERS, high=MAX_LAYERS))
    first = dense_first(flags)
    if every == 0:
        raise flags.error(PATTERN, "must not be 0", 0, "use 1 for experts in every layer")
    return [position >= first and position % every == 0 for position in positions]


def _listed_pattern(flags: Flags) -> list[bool]:
    """``--moe-layer-freq`` as a list such as ``([0]*3+[1]*58)``: True where a layer has experts."""
    text = flags.text(PATTERN)
    bits: list[str] = []
    for term in re.sub(r"[\s()\"']", "", text).split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", term)
        if match is None or len(bits) > MAX_LAYERS:
            raise flags.error(PATTERN, "is no list of 0 and 1 that can be read", text, "write one as ([0]*3+[1]*58)")
        bits += match[1].split(",") * int(match[2] if match[2] is not None else 1)
    return [bit == "1" for bit in bits]
