"""A device's speeds as kernels reach them: time of arithmetic, of memory traffic, of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

import numpy as np

from taylor.cost_model.strategy import TrainingRules
from taylor.register.device import DeviceSpec

ASSUMED_EFFICIENCY: Mapping[str, float] = {
    "matmul": 0.7,
    "attention": 0.5,
    "memory": 0.8,
    "operands": 0.8,
    "network": 0.7,
    "expert_operands": 1.85,
    "expert_results": 0.61,
}
"""Shares of the peak where a device's registration gives none: of matrix products, of memory bandwidth by
element-wise kernels (a low share stands for unfused ones, which move more than is counted) and by a
product's operands, and of link bandwidth. Registered devices carry fitted ones. Those of routed experts' operands
(above 1: most of the reading runs beside arithmetic) and results: `cost_model.expert_products`."""


@dataclass(frozen=True)
class Speed:
    """A device's speeds with its efficiencies applied."""

    device: DeviceSpec
    peak_tflops: float
    product_tflops: float
    shares: Mapping[str, float]

    @classmethod
    def of(cls, device: DeviceSpec, rules: TrainingRules, *, in_layer: bool = False) -> Speed:
        """A device's registered shares, and the assumed ones beside them, of the peak of a job's precision.

        torch multiplies fp32 as fp32 unless it is told to take TF32. `in_layer`: matrix products run in the job's
        narrow type, where it has one; attention, and what is outside the layers, does not.
        """
        peak = products = device.peak(rules.precision)
        if in_layer and rules.narrow is not None:
            products = device.peak(rules.narrow.precision)
        return cls(device, peak, products, {**ASSUMED_EFFICIENCY, **device.efficiency})

    @property
    def network(self) -> float:
        """Share of the link bandwidth that collectives reach."""
        return self.shares["network"]

    def flops(self, group: str, amount: Any) -> Any:
        """Time of matrix work, ms."""
        peak = self.product_tflops if group == "matmul" else self.peak_tflops
        return amount / (peak * self.shares[group] * 1e9)

    def bytes(self, amount: Any, group: str = "memory") -> Any:
        """Time of memory traffic, ms."""
        return amount / (self.device.memory_gb_s * self.shares[group] * 1e6)

    def product(self, group: str, flops: Any, operands: Any) -> Any:
        """Time of a matrix product: its FLOPs or its operands, whichever takes longer, ms."""
        return np.maximum(self.flops(group, flops), self.bytes(operands, "operands"))
