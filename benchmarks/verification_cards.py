"""Measured pre-training steps of Megatron-Bridge's verification cards, each stated as a job.

A card names its recipe; `CARDS` has what the recipe sets and the card's columns lack, from NVIDIA-NeMo/Megatron-Bridge
067f987d, ``src/megatron/bridge/{recipes,perf_recipes}``, with the file of each. Cards that no job states are listed
with the reason (`reason_against`): packed samples of unknown lengths, adapters on frozen weights, images.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER, Strategy, TrainingRules
from taylor.cost_model.time.step import step_ms
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import ATTENTION_CORE, EXPERT_ACTIVATION, EXPERT_BLOCK, LATENT_UP, MEGATRON, NORMS
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import MXFP8, NVFP4, NarrowProducts
from taylor.register.registry import Registry

DEVICES = {"H100": "h100-80g", "GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}
PRECISIONS: Mapping[str, NarrowProducts | None] = {"bf16": None, "fp8_mx": MXFP8, "nvfp4": NVFP4}

LAYER, ROUTER = (GRAPHED_MIXER, GRAPHED_ROUTER), (GRAPHED_ROUTER,)
WHOLE = (GRAPHED_MIXER, GRAPHED_ROUTER, GRAPHED_EXPERTS)
"""Scopes of CUDA graphs: attention, Mamba, router and preprocessing; router and preprocessing; the whole iteration."""


@dataclass(frozen=True)
class Recipe:
    """Facts that a card's recipe sets.

    Parameters
    ----------
    model : str
        Registered model.
    file : str
        Where the recipe stands, below ``src/megatron/bridge``.
    sizes : mapping
        In place of empty columns of the card: seq, gbs, mbs, tp, pp, ep, vpp.
    recomputed : tuple of str
        Modules that run again; `FULL` alone for whole layers.
    graphed : tuple of str
        Parts that CUDA graphs start.
    by_node : bool
        HybridEP carries the experts' tokens.
    overlap_experts, sharded, deterministic : bool
        Expert exchanges beside the neighbouring micro-batch; Megatron-FSDP; deterministic kernels.
    capacity : float or None
        Capacity factor of the experts.
    mtp : int or None
        MTP modules; the model's own when not given.
    balanced : bool
        The router is forced to balance the experts.
    """

    model: str
    file: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    recomputed: tuple[str, ...] = ()
    graphed: tuple[str, ...] = ()
    by_node: bool = True
    overlap_experts: bool = False
    sharded: bool = False
    deterministic: bool = False
    capacity: float | None = None
    mtp: int | None = None
    balanced: bool = True


_NANO = {"seq": 8192, "tp": 1, "pp": 1, "ep": 8}
_NEMOTRON = "recipes/nemotronh/gb200/nemotron_3_nano.py"
_NEMOTRON_PERF = "perf_recipes/nemotronh/gb200/nemotronh.py"
_GPT_OSS_20B = Recipe(
    "gpt-oss-20b",
    "recipes/gpt_oss/h100/gpt_oss.py:37",
    {"seq": 4096, "gbs": 512, "mbs": 1, "tp": 2, "pp": 4, "ep": 4},
    by_node=False,
    balanced=False,
)
_GLM_5_2 = Recipe(
    "glm-5", "recipes/glm/gb200/glm5.py:35", {"gbs": 1024, "mbs": 1, "tp": 1, "pp": 6, "ep": 32}, (FULL,),
    by_node=False, deterministic=True, mtp=1, balanced=False,
)  # fmt: skip
_LIGHTNING = Recipe(
    "nemotron-3.5-lightning-30b-a3b",
    f"{_NEMOTRON}:160",
    {**_NANO, "gbs": 512, "mbs": 2},
    mtp=2,
    balanced=False,
)
_SUPER = {"seq": 4096}
"""Not stated: by the card's 248.6 model TFLOP/s a device a token then takes 84 GFLOP, as by the GB300 card (85)."""
_SUPER_PARTS = (NORMS, EXPERT_ACTIVATION, EXPERT_BLOCK, ATTENTION_CORE)
_QWEN_30B = Recipe("qwen3-30b-a3b", "perf_recipes/qwen/gb300/qwen3_moe.py:301", {"mbs": 8, **_NANO, "seq": 4096},
                   graphed=WHOLE)  # fmt: skip

CARDS: Mapping[tuple[str, str], Recipe] = {
    ("deepseek-v3", "pretrain_performance/GB300"): Recipe(
        "deepseek-v3-671b", "perf_recipes/deepseek/gb300/deepseek_v3.py:133", {"vpp": 8}, graphed=WHOLE
    ),
    ("deepseek-v4-flash", "pretrain_performance/GB300"): Recipe(
        "deepseek-v4-flash", "perf_recipes/deepseek/gb200/deepseek_v4.py", {}, (LATENT_UP,), WHOLE, capacity=1.5
    ),
    ("deepseek-v4-flash", "checkpoint_resume/GB200"): Recipe(
        "deepseek-v4-flash",
        "recipes/deepseek/gb200/deepseek_v4.py:41",
        {"seq": 4096, "gbs": 256, "mbs": 1, "tp": 1, "pp": 8, "ep": 8},
        (EXPERT_ACTIVATION, LATENT_UP),
        balanced=False,
    ),
    ("glm5-2", "pretrain/GB200"): _GLM_5_2,
    ("glm5-2", "checkpoint_resume/GB200"): _GLM_5_2,
    ("gpt-oss-120b", "pretrain_performance/GB200"): Recipe(
        "gpt-oss-120b",
        "perf_recipes/gpt_oss/gb200/gpt_oss.py:181",
        {"seq": 4096},
        (NORMS, EXPERT_ACTIVATION),
        by_node=False,
        overlap_experts=True,
    ),
    ("gpt-oss-20b", "pretrain/H100"): _GPT_OSS_20B,
    ("gpt-oss-20b", "checkpoint_resume/H100"): _GPT_OSS_20B,
    ("nemotron-3-nano-30b-a3b", "pretrain_performance/GB300"): Recipe(
        "nemotron-3-nano-30b-a3b", "perf_recipes/nemotronh/gb300/nemotronh.py:404", {}, graphed=LAYER
    ),
    ("nemotron-3-super-120b-a12b", "pretrain/H100"): Recipe(
        "nemotron-3-super-120b-a12b", "recipes/nemotronh/nemotron_3_super.py:32", _SUPER, _SUPER_PARTS, capacity=1.1,
        balanced=False,
    ),
    ("nemotron-3-super-120b-a12b", "pretrain_performance/H100"): Recipe(
        "nemotron-3-super-120b-a12b", "perf_recipes/nemotronh/h100/nemotronh.py:71", _SUPER, _SUPER_PARTS, capacity=1.1
    ),
    ("nemotron-3-super-120b-a12b", "pretrain_performance/GB300"): Recipe(
        "nemotron-3-super-120b-a12b", "perf_recipes/nemotronh/gb300/nemotronh.py:180", {}, graphed=LAYER
    ),
    ("nemotron-3.5-lightning", "pretrain/GB200"): _LIGHTNING,
    ("nemotron-3.5-lightning", "checkpoint_resume/GB200"): _LIGHTNING,
    ("nemotron-3.5-lightning", "pretrain_fsdp/GB200/variants/fp8_mx"): Recipe(
        "nemotron-3.5-lightning-30b-a3b", f"{_NEMOTRON_PERF}:548", _NANO, sharded=True, mtp=2
    ),
    ("nemotron-3.5-lightning", "pretrain_performance/GB200"): Recipe(
        "nemotron-3.5-lightning-30b-a3b", f"{_NEMOTRON_PERF}:476", {**_NANO, "gbs": 512, "mbs": 2}, graphed=LAYER, mtp=2
    ),
    ("qwen3-235b-a22b", "pretrain_performance/GB200"): Recipe(
        "qwen3-235b-a22b", "perf_recipes/qwen/gb200/qwen3_moe.py:462", {}, graphed=WHOLE
    ),
    ("qwen3-30b-a3b", "pretrain/GB200"): Recipe(
        "qwen3-30b-a3b", "recipes/qwen/gb200/qwen3_moe.py:28", {}, graphed=ROUTER, overlap_experts=True, balanced=False
    ),
    ("qwen3-30b-a3b", "pretrain_performance/GB300"): _QWEN_30B,
    ("qwen3-30b-a3b", "pretrain_weak_scaling/GB300/points/1"): _QWEN_30B,
    ("qwen3-30b-a3b", "pretrain_weak_scaling/GB300/points/3"): _QWEN_30B,
}  # fmt: skip

ELSEWHERE = {
    ("deepseek-v3", "pretrain_performance/H100"): "the same run is mbridge-cards/deepseek-v3_1024h100_bf16.sh",
    ("qwen3-30b-a3b", "pretrain_performance/H100"): "the same run is mbridge-qwen3-30b/ep16_hybridep_canonical.sh",
    ("qwen3-30b-a3b", "checkpoint_resume/H100"): "neither card nor recipe of that name states the degrees",
}
"""Cards of pre-training that stand in another set, or whose job is not stated."""


@dataclass(frozen=True)
class CardStep:
    """One card as a job, with its measured step, ms."""

    name: str
    model: ModelSpec
    strategy: Strategy
    rules: TrainingRules
    device: DeviceSpec
    measured_ms: float
    recomputed: Mapping[str, float] | None

    @property
    def predicted_ms(self) -> float:
        """Step that the analytical model predicts for layers spread evenly, ms."""
        found = step_ms(self.model, self.strategy, self.rules, self.device, self.recomputed, balanced=True)
        return float(found)


def reason_against(model: str, item: str) -> str | None:
    """Reason why a card is no row here; None where it is one."""
    if (model, item) in CARDS:
        return None
    if (known := ELSEWHERE.get((model, item))) is not None:
        return known
    kind = item.split("/")[0]
    if kind.startswith("peft"):
        return "low-rank adapters freeze the weights whose gradients are counted here"
    if kind.startswith("sft"):
        return "samples are packed, and their lengths, which attention depends on, are not stated"
    return "trains on images: the vision tower is not stated"


def card_steps(file: Path, registry: Registry) -> tuple[list[CardStep], dict[str, str]]:
    """Every card that states a job, and the reason for each other one by its name."""
    steps, without = [], {}
    with file.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            name = f"{row['model']} {row['item']}"
            why = reason_against(row["model"], row["item"])
            if why is None:
                steps.append(_step(name, row, CARDS[row["model"], row["item"]], registry))
            else:
                without[name] = why
    return steps, without


def _step(name: str, row: Mapping[str, str], recipe: Recipe, registry: Registry) -> CardStep:
    def size(column: str, missing: int = 1) -> int:
        return int(row[column]) if row[column] else recipe.sizes.get(column, missing)

    model = registry.model(recipe.model)
    if recipe.mtp is not None:
        model = model.replace(mtp_layers=recipe.mtp)
    device = next(registry.device(DEVICES[part]) for part in row["item"].split("/") if part in DEVICES)
    tp, pp, cp = size("tp"), size("pp"), size("cp")
    dp, mbs = size("gpus") // (tp * pp * cp), size("mbs")
    strategy = Strategy(
        dp, tp, pp, size("ep"), cp, dp * cp, tp > 1, size("vpp"), mbs, size("gbs") // (dp * mbs)
    )  # fmt: skip
    parts = () if recipe.recomputed == (FULL,) else recipe.recomputed
    rules = TrainingRules(
        framework=MEGATRON,
        seq_length=size("seq", 4096),
        param_bytes=2,
        parameter_shard=recipe.sharded,
        expert_tensor_parallel=False,
        fused_norms=True,
        narrow=PRECISIONS[row["precision"]],
        selective=parts,
        dispatch_by_node=recipe.by_node,
        overlap_experts=recipe.overlap_experts,
        capacity_factor=recipe.capacity,
        graphed=recipe.graphed,
        deterministic=recipe.deterministic,
    )
    share = {SELECT: 1.0} if parts else {FULL: 1.0} if recipe.recomputed else None
    return CardStep(name, model, strategy, rules, device, float(row["step_ms"]), share)
