"""The world size of a launch by Megatron's flags: stated, or the least with which the job starts."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from taylor.base.errors import InputError
from taylor.cost_model.job.ranks import (
    OpenRanks,
    choices,
    least_multiple,
    megatron_products,
    megatron_unit,
    nearest_multiples,
)
from taylor.parsers.megatron.optimizer import INSTANCES, read_sharding
from taylor.parsers.text.flags import WORLD_FLAGS, Flags
from taylor.parsers.training_config import Misfit

EXTEND = "moe-tp-extend-ep"
TP_2D = "tp-2d"
GRID_FLAGS = (
    TP_2D,
    "tp-x",
    "tp-y",
    "enable-overlap-ag-with-matmul",
    "enable-overlap-matmul-with-rs",
    "enable-backward-overlap-ag-with-matmul",
)
"""MindSpeed's flags of TP in two dimensions: 028de58c mindspeed/features_manager/tensor_parallel/tp_2d.py:15-28."""
PER_NODE = ("nproc-per-node", "local-worker-num")


@dataclass(frozen=True)
class Ranks:
    """World size of a launch.

    Parameters
    ----------
    dp : int
        The data-parallel degree that follows.
    left_open : OpenRanks or None
        None where the launch states the world size.
    misfit : Misfit or None
        Reason why the job does not start on the ranks that it states.
    """

    dp: int
    left_open: OpenRanks | None = None
    misfit: Misfit | None = None


def read_ranks(flags: Flags, tp: int, pp: int, cp: int, ep: int) -> Ranks:
    """The world size of a launch with these degrees.

    What the launch does not state, or states by the default of a variable with which the job does not start, is the
    least legal world size that fills whole nodes.

    Raises
    ------
    InputError
        When no world size is legal.
    """
    expert_tp = expert_tensor(flags, tp)
    unit, why = megatron_unit(tp, pp, cp, ep, expert_tp), megatron_products(tp, pp, cp, ep, expert_tp)
    instances = flags.integer(INSTANCES, default=1) if read_sharding(flags).parallel_optimizer else 1
    if instances > 1:
        unit, why = lcm(unit, instances * tp * pp), f"{why}, and {instances} instances of the optimizer"
    world = flags.world_size()
    assumed = flags.assumed(*WORLD_FLAGS)
    if world is not None and (world % unit == 0 or not assumed):
        note = f"a world size of {world:,} is assumed, by the default of a variable that the script leaves open"
        left_open = OpenRanks(unit, why, note) if assumed else None
        dp = world // (tp * pp * cp) if world % (tp * pp * cp) == 0 else 1
        return Ranks(dp, left_open, _misfit(flags, world, (tp, pp, cp, ep, expert_tp)))
    per_node = ranks_of_a_node(flags)
    least = least_multiple(unit, per_node)
    nodes = f" in whole nodes of {per_node:,}" if per_node is not None and per_node > 1 else ""
    states = "does not say how many ranks it starts" if world is None else f"starts {world:,} ranks by a default alone"
    note = f"the file {states}: {least:,} is assumed, the least world size that is a multiple of {why}{nodes}"
    return Ranks(least // (tp * pp * cp), OpenRanks(unit, why, note))


def expert_tensor(flags: Flags, tp: int) -> int:
    """Ranks over which tensor parallelism splits an expert: TP unless the flags say otherwise."""
    if flags.has(EXTEND):
        return 1
    return int(flags.integer("expert-tensor-parallel-size", default=0, low=0)) or tp


def ranks_of_a_node(flags: Flags) -> int | None:
    """Ranks of a node, where the launch states them."""
    if flags.assumed(*PER_NODE):
        return None
    try:
        return flags.integer(*PER_NODE, default=None)
    except InputError:
        return None  # Set from the outside.


def _misfit(flags: Flags, world: int, degrees: tuple[int, int, int, int, int]) -> Misfit | None:
    """Reason why the job does not start on the ranks that the launch states."""
    tp, pp, cp, ep, expert_tp = degrees
    replica = tp * pp * cp
    if world % replica:
        near = choices(nearest_multiples(replica, world))
        return Misfit(
            next((f"--{name}" for name in WORLD_FLAGS if flags.has(name)), "#SBATCH"),
            world,
            f"makes {world:,} ranks, which TP x PP x CP = {tp} x {pp} x {cp} = {replica:,} does not divide",
            f"start {near} ranks, or lower TP, PP or CP; --world_size plans a copy for other ranks",
            "world-size",
            "Megatron-LM core_v0.16.0 megatron/training/arguments.py:317 and megatron/core/parallel_state.py:740 "
            "(0.4 to 0.19)",
        )
    experts = ep * expert_tp * pp
    if world % experts == 0 or (ep == 1 and not flags.has("expert-tensor-parallel-size")):
        return None
    near = choices(nearest_multiples(megatron_unit(tp, pp, cp, ep, expert_tp), world))
    return Misfit(
        "--expert-model-parallel-size",
        ep,
        f"does not fit the {world // pp:,} ranks of a stage, of {world:,} in all: EP x ETP x PP = {ep} x {expert_tp} x "
        f"{pp} = {experts:,} does not divide the world size",
        f"start {near} ranks, or lower EP or the stages",
        "ep-in-dp-cp" if expert_tp > 1 else "ep-in-dp-tp-cp",
        "Megatron-LM core_v0.16.0 megatron/core/parallel_state.py:792 (0.10 to 0.19; before, EP divides DP, "
        "core_v0.9.0 :536)",
    )


def read_tensor_grid(flags: Flags) -> tuple[int, int] | None:
    """TP's ranks that split tokens and outputs, by those that split the hidden size; None without ``--tp-2d``.

    Source: MindSpeed 028de58c mindspeed/features_manager/tensor_parallel/tp_2d.py:17-22, ``--tp-x`` and ``--tp-y``.
    """
    grid = flags.integer("tp-x", default=1), flags.integer("tp-y", default=1)
    return grid if flags.has(TP_2D) else None
