"""Facts of an order of tasks that was chosen for a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """

    found: OrderFound
    known: str
    known_step: float

    def to_dict(self) -> dict[str, Any]:
        """Chosen order as plain data."""
        return {
            "bound": self.found.bound,
            "proven": self.found.proven,
            "known": self.known,
            "known_step": self.known_step,
        }
