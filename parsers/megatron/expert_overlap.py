"""The experts' exchange of one micro-batch beside the computation of another: what a launch with it cannot do."""

from __future__ import annotations

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit

EXPERT_OVERLAP = "overlap-moe-expert-parallel-comm"
FB_OVERLAP = "moe-fb-overlap"
"""MindSpeed's flag of such an overlap; `EXPERT_OVERLAP` is Megatron-LM's."""
_EXCHANGING = ("alltoall", "flex")


def misfit_expert_overlap(flags: Flags, strategy: Strategy) -> Misfit | None:
    """Launches that overlap the exchange and do not start.

    Source: Megatron-LM d98e8a64 megatron/core/transformer/transformer_config.py:3002-3046.
    """
    if not flags.has(EXPERT_OVERLAP):
        return None
    again = flags.text("recompute-granularity", default=None)
    dispatcher = flags.text("moe-token-dispatcher-type", default="allgather")
    problems = {
        "several stages without virtual stages": (strategy.pp > 1 and strategy.vpp == 1, "set virtual stages (VPP)"),
        "expert parallel 1": (strategy.ep == 1, "spread the experts"),
        "full recompute": (again == "full", "recompute some modules alone"),
        "a block of experts that runs again": (
            again == "selective" and "moe" in flags.listed("recompute-modules"),
            "take moe out of --recompute-modules",
        ),
        f"--moe-token-dispatcher-type {dispatcher}": (
            dispatcher not in _EXCHANGING,
            f"use one of {', '.join(_EXCHANGING)}",
        ),
    }
    for what, (found, cure) in problems.items():
        if found:
            return Misfit(f"--{EXPERT_OVERLAP}", "", f"does not start with {what}", f"{cure}, or leave it out")
    return None
