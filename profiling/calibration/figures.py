"""The figures of a device that measured runs can determine, their range, and the device made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.errors.known_error import DEVICE_WIDTH
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY, typed_entries
from taylor.register.device import DeviceSpec

COMMON = "all speeds together"

SHARE, CREDIT, COST = "share", "credit", "cost"


@dataclass(frozen=True)
class Figure:
    """One figure of a device.

    Parameters
    ----------
    name : str
        As reports call it.
    keys : tuple of str
        Entries of `DeviceSpec.efficiency` that it moves together.
    kind : str
        `SHARE` of a peak, moves with all speeds and by itself; `CREDIT`, exposed fraction of a time; `COST`, none or
        more.
    width : float
        Prior knowledge, before anything is measured: for efficiencies and credits a standard deviation of the
        logarithm, for costs a plausible size, in the figure's unit.
    most : float
        No larger value is possible.
    """

    name: str
    keys: tuple[str, ...]
    kind: str
    width: float
    most: float = 1.0


FIGURES = (
    Figure("GEMMs", ("matmul",), SHARE, 0.1),
    Figure("attention", ("attention",), SHARE, 0.3),
    Figure("memory", ("memory",), SHARE, 0.3),
    Figure("operands of GEMMs", ("operands", "results"), SHARE, 0.3),
    Figure("links", ("network",), SHARE, 0.3),
    Figure("grouped GEMMs", ("expert_operands", "expert_results"), SHARE, 0.2),
    Figure("exposed share of TP in forward", ("tensor_shown_forward",), CREDIT, 0.5),
    Figure("exposed share of TP in backward", ("tensor_shown_backward",), CREDIT, 0.5),
    Figure("exposed share of the reduction", ("data_shown",), CREDIT, 0.7),
    Figure("exposed share of the reduction in a pipeline", ("data_shown_in_pipeline",), CREDIT, 0.7),
    Figure("softmax, FLOPs a score", ("softmax_flops",), COST, 500.0, most=5000.0),
    Figure("overhead of a layer, us", ("layer_us",), COST, 100.0, most=1e4),
    Figure("overhead of a step, ms", ("step_ms",), COST, 50.0, most=1e4),
)
OPERANDS_MOST = 10.0
OPERANDS = ("operands", "results", "expert_operands", "expert_results")
"""Beginnings of the fractions of bandwidth that may lie above 1, and their limit: operands are read during arithmetic,
on some cards results are written during that of the next tile."""
FURTHEST = 4.0
"""Standard deviations that nothing moves beyond."""


@dataclass(frozen=True)
class Figures:
    """All figures around a device: a point float64 [1 + figures], in standard deviations from its prior.

    Parameters
    ----------
    device : DeviceSpec
        Its registration gives the priors.
    """

    device: DeviceSpec

    @property
    def known(self) -> Mapping[str, float]:
        """Prior values, before anything is measured, by entry."""
        return {**ASSUMED_EFFICIENCY, **self.device.efficiency}

    @property
    def size(self) -> int:
        """Entries of a point: all speeds together, then `FIGURES`."""
        return 1 + len(FIGURES)

    def bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least and largest point."""
        least, largest = np.full(self.size, -FURTHEST), np.full(self.size, FURTHEST)
        for at, figure in enumerate(FIGURES, 1):
            if figure.kind == COST:
                least[at] = 0.0
            elif figure.kind == CREDIT:
                largest[at] = math.log(figure.most / self.known[figure.keys[0]]) / figure.width
        return least, largest

    def start(self) -> NDArray[np.float64]:
        """The prior, a little inside the bounds."""
        least, largest = self.bounds()
        return np.clip(np.zeros(self.size), least + 0.05, largest - 0.05)

    def values(self, point: NDArray[np.float64]) -> dict[str, float]:
        """Entries of `DeviceSpec.efficiency` at a point."""
        found = dict(self.known)
        for at, figure in enumerate(FIGURES, 1):
            moved = figure.width * float(point[at])
            for key in (*figure.keys, *(typed for each in figure.keys for typed in self._moved_with(each))):
                if figure.kind == COST:
                    found[key] = min(figure.most, max(moved + self.device.efficiency.get(key, 0.0), 0.0))
                    continue
                together = DEVICE_WIDTH * float(point[0]) if figure.kind == SHARE else 0.0
                most = OPERANDS_MOST if key.startswith(OPERANDS) else figure.most
                found[key] = min(most, found[key] * float(np.exp(together + moved)))
        return found

    def _moved_with(self, key: str) -> list[str]:
        """Entries of the device that state the same for another type or direction."""
        beside = {
            "attention": ("attention_backward", "attention_wide_backward", "scan", "delta_scan"),
            "memory": typed_entries("cast"),
        }
        return [each for each in beside.get(key, typed_entries(key)) if each in self.device.efficiency]

    def at(self, point: NDArray[np.float64]) -> DeviceSpec:
        """The device at a point."""
        return replace(self.device, efficiency=self.values(point))

    def interval(
        self, point: NDArray[np.float64], spread: NDArray[np.float64], at: int
    ) -> tuple[float, float, float, float]:
        """Value of figure number `at` (from 1 on), its least and largest with 95 %, and the fraction of its uncertainty
        that was removed: 0 nothing, 1 all.

        Parameters
        ----------
        spread : float64 [size, size]
            Covariance of the point.
        """
        figure = FIGURES[at - 1]
        key = figure.keys[0]
        value = self.values(point)[key]
        along = np.zeros(self.size)
        along[at] = figure.width
        if figure.kind == SHARE:
            along[0] = DEVICE_WIDTH
        deviation = math.sqrt(max(float(along @ spread @ along), 0.0))
        learned = 1 - deviation / float(np.linalg.norm(along))
        if figure.kind == COST:
            return value, max(value - 1.96 * deviation, 0.0), min(value + 1.96 * deviation, figure.most), learned
        far = float(np.exp(1.96 * deviation))
        return value, value / far, min(value * far, OPERANDS_MOST if key in OPERANDS else figure.most), learned
