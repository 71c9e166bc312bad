"""The ranks of a job whose file leaves them to its launch: the least world size with which its framework starts."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm


@dataclass(frozen=True)
class OpenRanks:
    """A world size that a file does not state.

    Parameters
    ----------
    unit : int
        Every legal world size is a multiple of it.
    why : str
        The multiple, as messages write it: ``TP x PP x CP = 8 and EP x ETP x PP = 32``.
    note : str
        The sentence that reports the world size that is assumed.
    shards_grow : bool
        The ranks that optimizer states (under FSDP, parameters) are divided over grow with data parallelism. Off: their
        number is stated.
    """

    unit: int
    why: str
    note: str
    shards_grow: bool = True


def megatron_unit(tp: int, pp: int, cp: int, ep: int = 1, expert_tp: int = 1) -> int:
    """Least world size of Megatron-LM: a multiple of TP x PP x CP and of EP x ETP x PP.

    Source: core_v0.16.0 megatron/training/arguments.py:314-318 and megatron/core/parallel_state.py:738-741, 785-794.
    """
    return lcm(tp * pp * cp, ep * expert_tp * pp)


def torchtitan_shards(tp: int, cp: int, ep: int = 1, expert_tp: int = 1) -> int:
    """Least ``data_parallel_shard_degree`` of torchtitan: with CP and TP it holds EP x ETP ranks.

    Source: v0.2.2 torchtitan/distributed/parallel_dims.py:58-70, 138, 154.
    """
    return ep * expert_tp // gcd(cp * tp, ep * expert_tp)


def least_multiple(unit: int, per_node: int | None) -> int:
    """The least multiple of a unit that fills whole nodes, where the ranks of a node are known."""
    return unit if per_node is None else lcm(unit, per_node)


def nearest_multiples(unit: int, world: int) -> tuple[int, ...]:
    """The multiples of a unit next to a world size, below and above: its nearest legal values."""
    below = world // unit * unit
    return tuple(value for value in ((below,) if below == world else (below, below + unit)) if value > 0)


def choices(values: tuple[int, ...]) -> str:
    """Values to choose from, as a sentence lists them."""
    return " or ".join(f"{value:,}" for value in values)


def megatron_products(tp: int, pp: int, cp: int, ep: int = 1, expert_tp: int = 1) -> str:
    """The products of degrees that `megatron_unit` is a multiple of, as messages write them."""
    dense, experts = tp * pp * cp, ep * expert_tp * pp
    text = f"TP x PP x CP = {dense:,}"
    return text if dense % experts == 0 else f"{text} and EP x ETP x PP = {experts:,}"
