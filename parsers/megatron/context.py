"""Flags of the kind of context parallelism: a ring, exchanges of heads, or both at once."""

from __future__ import annotations

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.placing import Wanted
from taylor.parsers.text.flags import Flags

_ALGORITHM, _DEGREE = "context-parallel-algo", "ulysses-degree-in-cp"
_RING, _ULYSSES, _HYBRID = "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo"
_KIND, _SIZES = "cp-comm-type", "hierarchical-context-parallel-sizes"
CONTEXT_FLAGS = frozenset({_ALGORITHM, _DEGREE, _KIND, _SIZES})
"""Flags that a strategy with `Strategy.ulysses` states itself."""


def context_flags(flags: Flags, strategy: Strategy) -> Wanted:
    """Flags that say `Strategy.ulysses`; none where the strategy leaves it to the file.

    MindSpeed 028de58c mindspeed/features_manager/context_parallel/context_parallel_feature.py; Megatron-LM core_v0.16.0
    megatron/core/transformer/transformer_config.py, ``cp_comm_type``, megatron/training/arguments.py:405.
    """
    heads, ring = strategy.ulysses, strategy.cp // max(1, strategy.ulysses)
    if not heads:
        return {}
    both = heads > 1 and ring > 1
    if is_mindspeed(flags):
        name, words, split = _ALGORITHM, (_RING, _ULYSSES, _HYBRID), _DEGREE
        sizes: str | tuple[str, ...] = str(heads)
    else:
        name, words, split, sizes = _KIND, ("p2p", "a2a", "a2a+p2p"), _SIZES, (str(heads), str(ring))
    wanted: Wanted = {}
    if strategy.cp > 1 or flags.has(name):
        wanted[name] = words[2] if both else words[heads > 1]
    if both or flags.has(split):
        wanted[split] = sizes if both else False
    return wanted


def fixed_context(flags: Flags) -> str | None:
    """Why these flags keep their own kind; None where another one can be written."""
    if not is_mindspeed(flags):
        return None
    algorithm = flags.text(_ALGORITHM, default=_RING)
    if algorithm not in (_RING, _ULYSSES, _HYBRID):
        return f"is a matter of --{_ALGORITHM} {algorithm} here"
    alone = next((name for name in ("cp-window-size", "alibi-fusion-attn-type") if flags.has(name)), None)
    return None if alone is None else f"is fixed by --{alone}, which goes with one kind of context parallelism"
