"""DeepSeek-V4 as MindSpeed-LLM's ``--spec …deepseek4_spec`` builds it: compressed attention, residual streams.

Sources: Ascend/MindSpeed-LLM c77308a1 mindspeed_llm/tasks/models/transformer/deepseek4/csa.py:119-270 (projections; the
head's size is ``--qk-head-dim``, the rotary part in it; a layer's compression by its global number),
features_manager/transformer/mhc_feature.py (streams).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from taylor.parsers.compressed import HEAVY, RATIOS, SPARSE, WINDOW, CompressedLayers
from taylor.parsers.megatron.kinds import empty_positions, layer_positions, tested_positions
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec

SPEC = "deepseek4_spec"
SETTLED = frozenset(
    {"o-lora-rank", "o-groups", "sliding-window-size", "compress-ratios", "index-n-heads", "index-head-dim",
     "index-topk", "enable-dsa-indexer", "kv-compress", "enable-mhc", "hc-mult", "n-hash-layers", "spec", "mtp-spec"}
)  # fmt: skip
"""Flags that define these layers: their rows, written for other models, do not apply."""
_RATIOS = "compress-ratios"


def is_deepseek4(flags: Flags) -> bool:
    """Return whether the launch builds such layers."""
    return any(SPEC in word for word in flags.words("spec"))


def head_size(flags: Flags) -> int:
    """The size of a head, its rotary part in it."""
    size: int = flags.integer("qk-head-dim", high=MAX_SIZE)
    return size


def compressed_model(flags: Flags, plain: ModelSpec) -> tuple[list[LayerSpec], tuple[LayerSpec], int]:
    """The layers, that of an MTP module, and the parameters that stand beside all layers.

    Raises
    ------
    InputError
        When a flag is missing or wrong.
    """
    moe = plain.moe
    if moe is None:
        raise flags.error("num-experts", "is missing: the layers of this spec have experts")
    ratios = _ratios(flags)
    kinds = [RATIOS.get(ratio, HEAVY) for ratio in ratios]
    sparse = SPARSE in kinds
    sizes = CompressedLayers(
        hidden=plain.hidden,
        heads=plain.n_heads,
        head_dim=plain.head_dim,
        window=flags.integer("sliding-window-size", high=MAX_SIZE),
        q_rank=flags.integer("q-lora-rank", high=MAX_SIZE),
        output_rank=flags.integer("o-lora-rank", high=MAX_SIZE),
        output_groups=flags.integer("o-groups", high=MAX_SIZE),
        index_heads=flags.integer("index-n-heads", high=MAX_SIZE) if sparse else 0,
        index_dim=flags.integer("index-head-dim", high=MAX_SIZE) if sparse else 0,
        index_top=flags.integer("index-topk", high=MAX_SIZE) if sparse else 0,
        streams=flags.integer("hc-mult", default=4, high=1024) if flags.has("enable-mhc") else 0,
    )
    positions = layer_positions(flags)

    def layer(at: int) -> LayerSpec:
        kind, rate = kinds[at], ratios[at]
        # A rate that is not the usual one makes a kind of its own.
        name = f"{kind}+moe" if RATIOS.get(rate) == kind else f"{kind}{rate}+moe"
        return sizes.layer(name, kind, rate, moe)

    after = layer(positions) if len(ratios) > positions else sizes.layer(f"{WINDOW}+moe", WINDOW, 0, moe)
    return [layer(at) for at in _numbers(flags)], (after,), sizes.extra_parameters


def ratio_flags(flags: Flags, positions: Sequence[LayerSpec | None]) -> dict[str, Setting]:
    """``--compress-ratios`` for layers at these positions, in model order; nothing where the flag says it already.

    The program finds a layer's ratio by its position, empty ones included. Entries behind the last position are of MTP
    modules and stay behind it.
    """
    if not flags.has(_RATIOS):
        return {}
    now = [_ratio(word) for word in flags.words(_RATIOS)]
    wanted = [0 if each is None or each.attention is None else each.attention.compression for each in positions]
    wanted += now[layer_positions(flags) :]
    free = {at for at, each in enumerate(positions) if each is None}
    if len(now) == len(wanted) and all(now[at] == ratio for at, ratio in enumerate(wanted) if at not in free):
        return {}
    return {_RATIOS: tuple(map(str, wanted))}


def _numbers(flags: Flags) -> list[int]:
    """The number, from 0, by which each layer finds its entry: empty positions count, and hold none."""
    positions, empty = layer_positions(flags), empty_positions(flags)
    tested = tested_positions(flags, positions)
    return [tested[at] for at in range(positions) if at not in empty]


def _ratios(flags: Flags) -> list[int]:
    """Tokens to a compressed key in every layer, 0 where there is a window alone."""
    words = flags.words(_RATIOS)
    wrong = next((word for word in words if not re.fullmatch(r"\d{1,6}", word)), None)
    if wrong is not None:
        raise flags.error(_RATIOS, "must be whole numbers, one a layer", wrong)
    last = max(_numbers(flags), default=-1)
    if len(words) <= last:
        raise flags.error(_RATIOS, f"has {len(words)} entries, and there is a layer {last + 1}")
    return [_ratio(word) for word in words]


def _ratio(word: str) -> int:
    """An entry's tokens to a compressed key; the program takes 0 and 1 alike."""
    return 0 if int(word) <= 1 else int(word)
