"""Flags of the kind of context parallelism: a ring, exchanges of heads, or both at once."""

from __future__ import annotations

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.placing import Wanted
from taylor.parsers.text.flags import Flags

ALGORITHM, _DEGREE = "context-parallel-algo", "ulysses-degree-in-cp"
RING, ULYSSES, HYBRID = "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo"
DEFAULT_ALGORITHM = RING
"""MindSpeed's algorithm where a file names none: MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/
context_parallel/context_parallel_feature.py:24, as since 2.2.0 (MindSpeed 028de58c: line 21 there). Up to 2.1.0
it was Ulysses (70116e9b mindspeed_llm/training/arguments.py:210); no file names its release."""
_KIND, _SIZES = "cp-comm-type", "hierarchical-context-parallel-sizes"
CONTEXT_FLAGS = frozenset({ALGORITHM, _DEGREE, _KIND, _SIZES})
"""Flags that a strategy with `Strategy.ulysses` states itself."""


def algorithm_of(flags: Flags) -> str:
    """The algorithm of MindSpeed's flag, stated or by default; empty for Megatron-LM, which has another flag."""
    return str(flags.text(ALGORITHM, default=DEFAULT_ALGORITHM if is_mindspeed(flags) else ""))


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
        name, words, split = ALGORITHM, (RING, ULYSSES, HYBRID), _DEGREE
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
    algorithm = algorithm_of(flags)
    if algorithm not in (RING, ULYSSES, HYBRID):
        return f"is a matter of --{ALGORITHM} {algorithm} here"
    alone = next((name for name in ("cp-window-size", "alibi-fusion-attn-type") if flags.has(name)), None)
    return None if alone is None else f"is fixed by --{alone}, which goes with one kind of context parallelism"
