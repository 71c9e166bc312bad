"""Facts of an order of tasks that was chosen for a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from taylor.pipeline.chunks import Placement
from taylor.pipeline_solver.orders.order_search import OrderFound


@dataclass(frozen=True)
class ChosenOrder:
    """Order of a plan, and the known order that it is compared with.

    Parameters
    ----------
    found : OrderFound
        Order of the plan that is reported.
    known : str
        Generator whose best plan takes the least time.
    known_step : float
        That plan's step time, in body-layer forwards.
    placement : Placement or None
        Where the stages of chunks were chosen too: the stage of every chunk.
    shape, shape_step : str, float or None
        The fixed shape, a loop or a V, whose best plan and order take the least time, and that time.
    """

    found: OrderFound
    known: str
    known_step: float
    placement: Placement | None = None
    shape: str = ""
    shape_step: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Chosen order as plain data."""
        placed = self.placement
        chosen = {"shape": self.shape, "shape_step": self.shape_step} if placed is not None else {}
        return {
            "bound": self.found.bound,
            "proven": self.found.proven,
            "known": self.known,
            "known_step": self.known_step,
            **({} if placed is None else {"stage_of": list(placed.stage_of), "placement": placed.name, **chosen}),
        }
