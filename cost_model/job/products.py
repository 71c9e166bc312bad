"""Dense GEMMs of a layer on one rank, in the order in which they run; scalars and arrays alike."""

from __future__ import annotations

from typing import NamedTuple

from taylor.cost_model.job.strategy_table import Quantity


class Product(NamedTuple):
    """One dense GEMM of a layer: elements in and out a token on a rank; whether it adds a bias."""

    width_in: Quantity
    width_out: Quantity
    bias: bool = False

    @property
    def weights(self) -> Quantity:
        """Elements of its matrix on a rank."""
        return self.width_in * self.width_out
