"""Step times predicted for NVIDIA's published performance tables, beside the measured ones.

    python -m benchmarks.published_performance [FILE] [--rows | --fit]

FILE (``../shared/data/recipes/performance.csv``) holds the rows of Megatron-Bridge's performance summary; pre-training
alone is compared, for low-rank fine-tuning freezes what is counted here. A step is the analytical model's for layers
spread evenly, in the precision of the row, with CUDA graphs, dispatcher and overlap of the experts' exchanges as the
row's recipe has them today (``memory_notes``); offload is in the recipes and not in the model. Of all constants one saw
rows of this file: `DeviceSpec.operation_us`, those of `FIT_SYSTEMS` alone (``--fit``). Kendall's tau is over the plans
of a system (models, sizes, degrees, precisions); one that was published for several releases counts once, with the
median of its steps.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from scipy.optimize import minimize_scalar
from scipy.stats import kendalltau

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER, Strategy, TrainingRules
from taylor.cost_model.time.step import step_ms
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import DENSE_MLP, EXPERT_ACTIVATION, EXPERT_BLOCK, LATENT_UP, MEGATRON, NORMS
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import MXFP8, NVFP4, TENSORWISE
from taylor.register.registry import Registry

FILE = Path(__file__).resolve().parents[2] / "shared" / "data" / "recipes" / "performance.csv"

MODELS = {
    "deepseek_v3": "deepseek-v3-671b",
    "deepseek_v4_flash": "deepseek-v4-flash",
    "llama3_70b": "llama3-70b",
    "llama3_8b": "llama3-8b",
    "nemotron_3_5_lightning": "nemotron-3.5-lightning-30b-a3b",
    "nemotron_3_nano": "nemotron-3-nano-30b-a3b",
    "nemotron_3_ultra": "nemotron-3-ultra-550b-a55b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
}
DEVICES = {
    "DGX-H100": "h100-80g",
    "DGX-B200": "b200-180g",
    "DGX-B300": "b300-270g",
    "DGX-GB200": "gb200-nvl72",
    "DGX-GB300": "gb300-nvl72",
}
RECIPES = {"BF16": None, "FP8": TENSORWISE, "FP8-CS": TENSORWISE, "MXFP8": MXFP8, "FP8-MX": MXFP8, "NVFP4": NVFP4}
"""Precisions in the tables: ``FP8`` and ``FP8-CS`` scale by tensor, ``MX`` by block of 32."""

FIT_SYSTEMS = ("DGX-B200", "DGX-B300")
"""Systems whose steps of models with experts settle `DeviceSpec.operation_us`; the others have no part in it."""

DISPATCHED_BY_NODE = ("deepseek_v3",)
"""Models whose recipes inherit HybridEP where their notes name no dispatcher: Megatron-Bridge 067f987d
src/megatron/bridge/recipes/deepseek/h100/deepseek_v3.py:160, 256."""

OVERLAPS_TENSOR = ("llama3_70b",)
"""Models whose recipes on H100 overlap tensor-parallel transfers: Megatron-Bridge 067f987d
src/megatron/bridge/perf_recipes/llama/h100/llama3.py:133, 175 (``tp_comm_overlap_cfg``)."""

PARTS = {
    "mla_up_proj": LATENT_UP,
    "mlp": DENSE_MLP,
    "layernorm": NORMS,
    "moe": EXPERT_BLOCK,
    "moe_act": EXPERT_ACTIVATION,
}
"""Modules that a recipe's notes recompute."""


@dataclass(frozen=True)
class PublishedStep:
    """One row: the system, the model, its plan in words, both step times, ms; the registered model, and the job."""

    system: str
    model: str
    plan: str
    predicted_ms: float
    measured_ms: float
    base: str = ""
    job: tuple[ModelSpec, Strategy, TrainingRules, DeviceSpec] | None = None

    @property
    def error(self) -> float:
        """Relative error of the predicted step."""
        return self.predicted_ms / self.measured_ms - 1


def published_steps(file: Path, operation_us: float | None = None) -> list[PublishedStep]:
    """Every pre-training row of the file with the step that the analytical model predicts.

    Parameters
    ----------
    operation_us : float, optional
        In place of the devices' own (`DeviceSpec.operation_us`).
    """
    registry = Registry.load()
    with file.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["task"].startswith("Pre-Training")]
    return [_step(row, registry, operation_us) for row in rows]


def fitted_operation_us(file: Path) -> float:
    """The start of an operation that suits `FIT_SYSTEMS` best: soft L1, scale 5 %, over logarithms."""

    def loss(operation_us: float) -> float:
        steps = [step for step in published_steps(file, operation_us) if step.system in FIT_SYSTEMS]
        errors = [math.log(1 + step.error) / 0.05 for step in steps if not step.model.startswith("LLAMA")]
        return sum(2 * (math.sqrt(1 + error**2) - 1) for error in errors)

    return float(minimize_scalar(loss, bounds=(0.0, 200.0), method="bounded").x)


def _step(row: Mapping[str, str], registry: Registry, operation_us: float | None) -> PublishedStep:
    model, device = registry.model(MODELS[row["base"]]), registry.device(DEVICES[row["system"]])
    if operation_us is not None:
        device = replace(device, operation_us=operation_us)
    if "w/o MTP" in row["model"]:
        model = model.replace(mtp_layers=0)
    tp, pp, cp, vpp, ep = (_number(row[name]) for name in ("tp", "pp", "cp", "vp", "ep"))
    mbs, samples = _number(row["mbs"]), _number(row["gbs"])
    dp = _number(row["gpus"]) // (tp * pp * cp)
    sharded = _number(row["fsdp"], 0)
    strategy = Strategy(dp, tp, pp, ep, cp, sharded or dp * cp, tp > 1, vpp, mbs, samples // (dp * mbs))
    dropping = "(tokendrop)" in row["model"]
    whole = re.search(r"recompute full\s+block (\d+)", row["memory_notes"])
    recomputed = [part for word, part in PARTS.items() if word in row["memory_notes"].replace("+", " ").split()]
    rules = TrainingRules(
        framework=MEGATRON,
        seq_length=_number(row["seq"]),
        param_bytes=2,
        parameter_shard=sharded > 0,
        whole_ends=sharded > 0,
        expert_tensor_parallel=False,
        fused_norms=True,
        narrow=RECIPES[row["precision"]],
        selective=tuple(recomputed),
        dispatch_by_node=any(f"dispatcher {name}" in row["memory_notes"] for name in ("deepep", "hybridep"))
        or row["base"] in DISPATCHED_BY_NODE,
        overlap_experts="EP all-to-all overlap" in row["memory_notes"],
        capacity_factor=1.0 if dropping else None,
        static_experts=dropping,
        graphed=_graphed(row["memory_notes"], dropping),
        overlap_tensor=row["base"] in OVERLAPS_TENSOR and row["system"] == "DGX-H100",
    )
    share = {FULL: int(whole[1]) / model.n_layers} if whole else {SELECT: 1.0} if recomputed else None
    predicted = float(step_ms(model, strategy, rules, device, share, balanced=True))
    plan = f"{row['gpus']} x {row['precision']} gbs{samples} tp{tp} pp{pp} vp{vpp} ep{ep} mbs{mbs} fsdp{sharded}"
    job = (model, strategy, rules, device)
    return PublishedStep(row["system"], row["model"], plan, predicted, float(row["step_ms"]), MODELS[row["base"]], job)


def _graphed(notes: str, dropping: bool) -> tuple[str, ...]:
    """Parts of a layer that a recipe's CUDA graphs hold: dropless experts only where one holds the whole step.

    Megatron-LM d98e8a64 megatron/core/transformer/moe/README.md:514.
    """
    if "CUDA graph" not in notes:
        return ()
    whole = dropping or "full_iteration" in notes
    return (GRAPHED_MIXER, GRAPHED_ROUTER, *((GRAPHED_EXPERTS,) if whole else ()))


def _number(text: str, missing: int = 1) -> int:
    return int(text) if text.strip().isdigit() else missing


def summary(steps: Iterable[PublishedStep]) -> list[str]:
    """A line for each system: rows, models, median error, Kendall's rank correlation."""
    by_system: dict[str, list[PublishedStep]] = {}
    for step in steps:
        by_system.setdefault(step.system, []).append(step)
    lines = []
    for system, mine in sorted(by_system.items()):
        tau = order_of_plans(mine)
        size = median(abs(step.error) for step in mine)
        plans, models = len({(step.model, step.plan) for step in mine}), len({step.model for step in mine})
        predicted = f"{len(mine)} rows, {plans} plans, {models} models"
        lines.append(f"{system:<10} {predicted}: median error {size:.1%}, Kendall {tau:.3f}")
    return lines


def order_of_plans(steps: Iterable[PublishedStep]) -> float:
    """Kendall's tau between the predicted and measured steps of one system's plans."""
    measured: dict[tuple[str, str], list[float]] = {}
    predicted: dict[tuple[str, str], float] = {}
    for step in steps:
        measured.setdefault((step.model, step.plan), []).append(step.measured_ms)
        predicted[step.model, step.plan] = step.predicted_ms
    return float(kendalltau(list(predicted.values()), [median(measured[plan]) for plan in predicted]).statistic)


def main() -> int:
    """Print the summary, and with ``--rows`` every row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=FILE)
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--fit", action="store_true", help="fit the start of an operation, and print it")
    args = parser.parse_args()
    if args.fit:
        print(f"{fitted_operation_us(args.file):.0f} us an operation")
        return 0
    steps = published_steps(args.file)
    if args.rows:
        for step in steps:
            predicted = f"{step.predicted_ms:9.0f} of {step.measured_ms:9.0f} ms {step.error:+7.1%}"
            print(f"{step.system:<10} {step.model:<26} {step.plan:<58} {predicted}")
    print("\n".join(summary(steps)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
