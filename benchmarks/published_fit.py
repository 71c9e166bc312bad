"""The fit behind the registered devices' efficiencies: to published tables, which no configuration file describes.

The efficiencies are fractions of the peak (GEMMs, attention, memory, links). They minimise a
robust loss (soft L1, scale 5 %) over the logarithms of predicted by published times; a weak pull
(weight 0.05 a factor e) towards the assumed values settles what the rows say nothing about.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares

from benchmarks.published import MEGATRON, Case, all_cases, korthikanti, korthikanti_config
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.speed import ASSUMED_EFFICIENCY
from taylor.cost_model.time.step import estimate_ratios, layer_time, step_ms
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.device import DeviceSpec
from taylor.register.model import DENSE
from taylor.register.registry import Registry

FITTED = ("matmul", "attention", "memory", "network")
LOSS_SCALE = 0.05
PULL = 0.05
DENSE_OVER_MOE = 0.397
"""Measured dense/MoE forward ratio of DeepSeek-V3 at DP16 TP4 PP16 EP8 on Ascend, 256 rows an expert: settles how fast
experts' weights are read."""

STARTS_FROM = {"h100-80g": ("a100-80g", ("matmul", "attention"))}
"""Devices with few published rows: whose efficiencies they start from, and which of them their rows settle."""

LINKS = {"a100-80g": 0.711}
"""Shares of the link at which NCCL's measured gathers are met (`tests/cost_model/test_nccl.py`): not fitted here."""

TRANSFERRED = {
    **dict.fromkeys(("v100-16g", "v100-32g", "a100-40g"), "a100-80g"),
    "ascend-a3": "ascend-910b",
}
"""Devices without published rows and without tables of kernels, and whose efficiencies they take."""

Point = tuple[str, Callable[[DeviceSpec], float], float]
"""Name, prediction, published value."""


def predicted_ms(case: Case, device: DeviceSpec) -> float:
    """The model's step time of a case, ms."""
    card = replace(device, peak_tflops={"bf16": device.peak("bf16") * case.peak_share})
    return float(step_ms(case.model, case.strategy, case.rules, card, case.recomputed))


def step_points(cases: Sequence[Case]) -> list[Point]:
    """Published step times as points of the fit."""
    return [(f"{c.table}: {c.name}", lambda d, c=c: predicted_ms(c, d), c.step_ms) for c in cases]  # type: ignore[misc]


def layer_points() -> list[Point]:
    """Korthikanti's table 4: forward and backward of one layer of the 22 B model, by method."""
    model, strategy = korthikanti_config("megatron-22B")
    points: list[Point] = []
    for method, times in korthikanti()["tab4_22B_layer_ms"].items():
        if method == "columns":
            continue
        forward, backward = times
        used = strategy.replace(sp="seq" in method)
        mode = FULL if method == "full" else SELECT if "sel" in method else None

        def once(d: DeviceSpec, used: Strategy = used) -> float:
            return float(layer_time(model, DENSE, used, MEGATRON, d).forward)

        def back(d: DeviceSpec, used: Strategy = used, mode: str | None = mode) -> float:
            layer = layer_time(model, DENSE, used, MEGATRON, d)
            return float(layer.backward + (layer.recompute[mode] if mode else 0.0))

        points.append((f"Korthikanti 2022 table 4: {method} forward", once, forward))
        points.append((f"Korthikanti 2022 table 4: {method} backward", back, backward))
    return points


def fit(points: Sequence[Point], device: DeviceSpec, guess: Mapping[str, float] | None = None) -> dict[str, float]:
    """Efficiencies that suit the points best, shares in (0.02, 1); a good guess saves time and changes nothing else."""
    base: dict[str, float] = dict(ASSUMED_EFFICIENCY)
    free: tuple[str, ...] = FITTED
    if device.name in STARTS_FROM:
        other, free = STARTS_FROM[device.name]
        base |= Registry.load().device(other).efficiency
    if device.name in LINKS:
        base["network"] = LINKS[device.name]
        free = tuple(name for name in free if name != "network")
    start = np.log([base[name] for name in free])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        shares = {**base, **dict(zip(free, np.exp(logs).tolist(), strict=True))}
        card = replace(device, efficiency=shares)
        errors = np.log([predict(card) / published for _, predict, published in points]) / LOSS_SCALE
        # Soft L1 by hand, so that the pull keeps its own, plain square.
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, PULL * (logs - start) / LOSS_SCALE])

    first = start if guess is None else np.log([guess[name] for name in free])
    found = least_squares(residuals, first, bounds=(np.log(0.02), 0.0), x_scale=0.1, xtol=1e-6, ftol=1e-9)
    shares = {**base, **dict(zip(free, np.exp(found.x).tolist(), strict=True))}
    return {name: round(float(shares[name]), 3) for name in FITTED}


def operand_share(device: DeviceSpec) -> float:
    """Efficiency of reading experts' operands at which DeepSeek-V3's dense/MoE ratio is the measured one."""
    model = Registry.load().model("deepseek-v3-671b")
    strategy, rules = Strategy(16, 4, 16, 8, op=16, micro_batches=64), TrainingRules()

    def miss(share: float) -> float:
        card = replace(device, efficiency={**device.efficiency, "expert_operands": share})
        return estimate_ratios(model, strategy, rules, card).dense_forward - DENSE_OVER_MOE

    return round(float(brentq(miss, 0.01, 1.0)), 3) if miss(0.01) * miss(1.0) < 0 else 1.0


def calibrate() -> dict[str, dict[str, float]]:
    """Fitted efficiencies of every device that has published rows or takes another's.

    Those with tables of kernels (`benchmarks.device_tables`) have older stacks too, and are not fitted.
    """
    registry, cases = Registry.load(), all_cases()
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(case.device for case in cases):
        device = registry.device(name)
        if device.stacks:
            continue
        points = step_points([case for case in cases if case.device == name])
        if name == "a100-80g":
            points += layer_points()
        shares = fit(points, device)
        if name == "ascend-910b":
            shares["expert_operands"] = operand_share(replace(device, efficiency=shares))
        found[name] = shares
    return found | {name: found[other] for name, other in TRANSFERRED.items()}
