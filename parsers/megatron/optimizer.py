"""Tensors that an optimizer keeps, and those that its replicas split: optimizer, gradient and sharding flags."""

from __future__ import annotations

import re
from typing import NamedTuple

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import Misfit

OPTIMIZERS = {"adam": (8, 8), "sgd": (4, 4), "lion": (4, 4), "muon": (4, 8), "dist_muon": (4, 8)}
"""Bytes of fp32 moments, of a layer's matrices and of all other parameters.

Adam has two; SGD one (its momentum) and none where ``--sgd-momentum`` is 0; Lion one. Muon keeps the momentum of
two-dimensional parameters that are neither embedding nor head and leaves the rest to Adam or to
``--muon-scalar-optimizer``. Sources: Megatron-LM main megatron/core/optimizer/__init__.py:527-625 and
emerging_optimizers.py:140-147, 584-593; routers, which are matrices too, are counted with the rest here.
"""
WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of the types that flags name (megatron/training/arguments.py:1077)."""
_FP32, _HALF = 4, 2
_BRIDGE = re.compile(r"^[ \t]*#[^\n]{0,400}\bMegatron-Bridge\b", re.MULTILINE)


def usual_recipe(text: str) -> str:
    """The fp8 recipe that the optimizer is configured with where a launch names none.

    Megatron-Bridge hands one per tensor to the optimizer, of jobs without fp8 too (Megatron-Bridge 067f987d
    src/megatron/bridge/training/mixed_precision.py:50, 129-131; config.py:2016, 2070), and so Megatron keeps the master
    weights; a script that was restated from it names it in a comment.
    """
    return "tensorwise" if _BRIDGE.search(text) else "delayed"


def read_optimizer(flags: Flags, notes: list[str], recipe: str = "delayed") -> OptimizerStates:
    """`TrainingRules.optimizer` of a launch.

    Sources, all of Megatron-LM main unless another is named: gradients are fp32 beside bf16 weights unless
    ``--grad-reduce-in-bf16`` or ``--main-grads-dtype`` says otherwise, and fp16 beside fp16 ones unless
    ``--accumulate-allreduce-grads-in-fp32`` does (megatron/training/arguments.py:1195-1219). The step casts gradients
    in 16 bits to fp32, except where transformer engine's optimizer takes them as they are
    (core/optimizer/distrib_optimizer.py:2770-2795; docs/user-guide/features/dist_optimizer.md counts the copy: 20 bytes
    a parameter of fp16). That one owns the master weights too unless an fp8 recipe other than delayed is in force, and
    of fp32 ones beside bf16 weights it keeps the 16 bits that those lack (core/optimizer/optimizer_config.py:190,
    407-414; TransformerEngine 2.1 and later, pytorch/optimizers/fused_adam.py:213, 626). MindSpeed's
    ``--reuse-fp32-param`` does the same (docs/zh/features/reuse-fp32-param.md of MindSpeed master: 2/d bytes less).
    Megatron-FSDP has types of its own (docs/user-guide/features/megatron_fsdp.md, «Mixed-Precision & Quantization»).

    Parameters
    ----------
    recipe : str
        The fp8 recipe where the launch names none (`usual_recipe`).

    Raises
    ------
    InputError
        When a type or a share is none that the flag takes.
    """
    if not flags.has("bf16", "fp16"):
        # The fp32 optimizer has no second weight; its moments are those of the kind.
        moments, others = _moments(flags)
        return OptimizerStates(moments_bytes=moments, other_moments_bytes=others)
    aware, offload = flags.has(AWARE), flags.has(CPU_OFFLOAD)
    if aware and not read_sharding(flags).parallel_optimizer:
        notes.append("--use-precision-aware-optimizer starts with a split optimizer alone")
    moments, others = _moments(flags)
    if aware and not offload:
        # Adam alone starts with it; on the host its moments are fp32.
        moments = others = sum(_width(flags, name) for name in ("exp-avg-dtype", "exp-avg-sq-dtype"))
    if "muon" in flags.text("optimizer", default="adam"):
        notes.append("Muon: its iterations are in no step time; a replica's whole matrices count as an even share")
    gradient = _gradient_bytes(flags, notes)
    master, takes_half = _master(flags, notes, recipe)
    return OptimizerStates(
        gradient_bytes=gradient,
        master_bytes=master,
        moments_bytes=moments,
        other_moments_bytes=others,
        step_bytes=0 if takes_half or gradient == _FP32 else _FP32,
        host_share=_host_share(flags),
        host_updates=offload and not flags.has(SWAPPED),
        host_overlaps=offload and not flags.has(SWAPPED) and flags.has(OVERLAPPED),
    )


def _master(flags: Flags, notes: list[str], recipe: str) -> tuple[int, bool]:
    """Bytes of a master weight, and whether the step takes gradients in 16 bits as they are."""
    aware = flags.has("use-precision-aware-optimizer")
    if flags.has(*MEGATRON_FSDP):
        written = flags.text(FSDP_MASTER, default="fp32")
        return 0 if written == AUTO else _width(flags, FSDP_MASTER), aware
    master = _width(flags, "main-params-dtype") if aware else _FP32
    delayed = flags.text("fp8-recipe", default=recipe) == "delayed"
    offload = flags.has("optimizer-cpu-offload")
    engine_owns = aware and (delayed or master < _FP32 or offload)
    if engine_owns and not offload and master == _FP32 and flags.has("bf16") and not flags.has("fp8-param-gather"):
        notes.append("transformer engine 2.1 or later is assumed: of master weights it keeps what bf16 lacks")
        return _HALF, True
    if aware and not engine_owns and not flags.has("fp8-recipe"):
        notes.append(
            "its comments name Megatron-Bridge, whose default recipe leaves master weights to Megatron, in fp32"
        )
    return _HALF if flags.has("reuse-fp32-param") else master, engine_owns


def _width(flags: Flags, name: str) -> int:
    written = flags.text(name, default="fp32")
    if written not in WIDTHS:
        raise flags.error(name, "is no type that it takes", written, f"use one of {', '.join(WIDTHS)}")
    return WIDTHS[written]


def _gradient_bytes(flags: Flags, notes: list[str]) -> int:
    if flags.has("use-torch-fsdp2"):
        return _HALF  # Torch's own, of the weight's type: core/optimizer/optimizer.py:1097-1100.
    reduces_half = flags.has("grad-reduce-in-bf16")
    if flags.has(*MEGATRON_FSDP):
        if flags.text(FSDP_GRADIENT, default=AUTO) != AUTO:
            return _width(flags, FSDP_GRADIENT)
        if not reduces_half:
            notes.append("Megatron-FSDP's gradients are counted in fp32, as to core 0.16; later releases take bf16")
        return _HALF if reduces_half else _FP32
    if flags.has("fp16"):
        return _FP32 if flags.has("accumulate-allreduce-grads-in-fp32") else _HALF
    aware = flags.has("use-precision-aware-optimizer")
    return _HALF if reduces_half or (aware and _width(flags, "main-grads-dtype") < _FP32) else _FP32


def _moments(flags: Flags) -> tuple[int, int]:
    """Bytes of a matrix's and of another parameter's moments; Adam's where the optimizer is not known here."""
    name = flags.text("optimizer", default="adam")
    moments, others = OPTIMIZERS.get(name, OPTIMIZERS["adam"])
    if name == "sgd" and flags.number("sgd-momentum", default=0.9) == 0:
        return 0, 0
    if moments < others and flags.text("muon-scalar-optimizer", default="adam") == "lion":
        others = OPTIMIZERS["lion"][1]
    return moments, others


def _host_share(flags: Flags) -> float:
    """Fraction of the optimizer's states in the host's memory.

    Sources: Megatron-LM main megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py (moments and fp32 weights of
    the offloaded parameters are made on the host); MindSpeed master docs/zh/features/swap-optimizer.md (all of them are
    there but during the step, when no activation is alive).
    """
    if flags.has(SWAPPED):
        return 1.0
    if not flags.has(CPU_OFFLOAD):
        return 0.0
    share: float = flags.number("optimizer-offload-fraction", default=1.0)
    if share > 1:
        raise flags.error("optimizer-offload-fraction", "must be from 0 to 1", share)
    return share


AWARE, CPU_OFFLOAD, OVERLAPPED = (
    "use-precision-aware-optimizer", "optimizer-cpu-offload", "overlap-cpu-optimizer-d2h-h2d"
)  # fmt: skip
SWAPPED = "swap-optimizer"
BESIDE_OPTIMIZER = ("use-distributed-optimizer", "num-layers")


HALF_MOMENTS: dict[str, Setting] = {AWARE: True, "exp-avg-dtype": "bf16", "exp-avg-sq-dtype": "bf16"}
HALF_GRADIENTS: dict[str, Setting] = {"main-grads-dtype": "bf16"}
BYTE_MOMENTS: dict[str, Setting] = {AWARE: True, "exp-avg-dtype": "fp8", "exp-avg-sq-dtype": "fp8"}


def narrow_state_flags(flags: Flags, *, mindspeed: bool) -> dict[str, dict[str, Setting]]:
    """Flags of a launch that keep states in lower precision, by the states in words; the least change first.

    Empty where the job does not start with them. Sources: Megatron-LM main megatron/training/arguments.py:3667-3678
    (the flags), core/optimizer/optimizer_config.py:380-420 (Adam's, of a split optimizer, beside 16-bit weights); of
    MindSpeed master docs/zh/features/reuse-fp32-param.md.
    """
    starts = flags.has("bf16") and read_sharding(flags).parallel_optimizer and not flags.has(*FULL_SHARDING)
    if not starts or flags.text("optimizer", default="adam") != "adam" or _host_share(flags):
        return {}
    if mindspeed:
        if flags.has("reuse-fp32-param"):
            return {}
        return {"master weights as what their 16-bit weights lack": {"reuse-fp32-param": True}}
    return {
        "Adam's moments in 16 bits": HALF_MOMENTS,
        "Adam's moments and gradients in 16 bits": {**HALF_MOMENTS, **HALF_GRADIENTS},
        "Adam's moments in 8 bits, gradients in 16 bits": {**BYTE_MOMENTS, **HALF_GRADIENTS},
    }


def misfit_host_optimizer(flags: Flags) -> Misfit | None:
    """Jobs with the optimizer on the host that do not start.

    Source: Megatron-LM d98e8a64 megatron/training/arguments.py:1884-1893. MindSpeed's own are start rules
    (`nd_search.mindspeed`).
    """
    if flags.has(CPU_OFFLOAD):
        if not flags.has(AWARE):
            return Misfit(f"--{CPU_OFFLOAD}", "", f"does not start without --{AWARE}", f"add --{AWARE}")
        if flags.has("fp8-param-gather") and flags.text("fp8-recipe", default="delayed") != "delayed":
            problem = "does not start with --fp8-param-gather and a recipe other than delayed"
            return Misfit(f"--{CPU_OFFLOAD}", "", problem, "take one of the two out, or --fp8-recipe delayed")
    return None


def host_optimizer_flags(flags: Flags, *, mindspeed: bool) -> dict[str, Setting]:
    """Flags that keep a launch's optimizer on the host.

    Raises
    ------
    InputError
        When it is there already, or the job would not start with them.
    """
    wanted: dict[str, Setting] = {SWAPPED: True} if mindspeed else {CPU_OFFLOAD: True, AWARE: True, OVERLAPPED: True}
    (first, *_) = wanted
    if _host_share(flags):
        raise flags.error(first, "is set already, so that there is nothing to choose", "", "leave the choice out")
    blocked = {
        "Megatron-FSDP's optimizer": flags.has(*FULL_SHARDING),
        "an optimizer that is not split": not read_sharding(flags).parallel_optimizer,
        "any but Adam": flags.text("optimizer", default="adam") != "adam",
        "fp32 weights": not flags.has("bf16", "fp16"),
        "--reuse-fp32-param": flags.has("reuse-fp32-param"),
        "--fp8-param-gather": flags.has("fp8-param-gather"),
    }
    for what, found in blocked.items():
        if found:
            raise flags.error(first, f"does not go with {what}", "", "leave the choice of the host's optimizer out")
    return wanted


MEGATRON_FSDP = ("use-megatron-fsdp", "use-custom-fsdp")
FULL_SHARDING = (*MEGATRON_FSDP, "use-torch-fsdp2")
FSDP_MASTER, FSDP_GRADIENT, AUTO = "megatron-fsdp-main-params-dtype", "megatron-fsdp-main-grads-dtype", "auto"
STRATEGY = "data-parallel-sharding-strategy"
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
INSTANCES = "num-distributed-optimizer-instances"


class Sharding(NamedTuple):
    """Tensors that the replicas of a parameter split: `TrainingRules` has the same names."""

    parallel_optimizer: bool = False
    gradient_shard: bool = False
    parameter_shard: bool = False


def read_sharding(flags: Flags) -> Sharding:
    """Tensors that the flags split.

    Sources, Megatron-LM main: docs/user-guide/features/megatron_fsdp.md, «Data-Parallel Sharding Strategies», and
    megatron/training/arguments.py:3190; ``--use-torch-fsdp2`` splits all of it (core/distributed/
    torch_fully_sharded_data_parallel.py); Muon under a split optimizer deals whole matrices to the replicas
    (arguments.py:1726-1737, core/optimizer/layer_wise_optimizer.py).

    Raises
    ------
    InputError
        When the strategy is none of Megatron-FSDP's.
    """
    if flags.has("use-torch-fsdp2"):
        return Sharding(True, True, True)
    if flags.has(*MEGATRON_FSDP):
        written = flags.text(STRATEGY, default=STRATEGIES[-1])
        if written not in STRATEGIES:
            raise flags.error(STRATEGY, "is no sharding strategy", written, f"use one of {', '.join(STRATEGIES)}")
        rank = STRATEGIES.index(written)
        return Sharding(rank >= 1, rank >= 2, rank >= 3)
    layer_wise = flags.text("optimizer", default="adam") == "dist_muon"
    return Sharding(flags.has("use-distributed-optimizer") or layer_wise)


def optimizer_degree(flags: Flags, replicas: int) -> int:
    """Ways in which they are split: among all replicas, or within each of several instances.

    Source: Megatron-LM main megatron/core/parallel_state.py:924-929, 1448-1451 (the number of instances divides DP
    times CP, and the experts' replicas likewise).

    Raises
    ------
    InputError
        When the number of instances does not divide the replicas.
    """
    if not read_sharding(flags).parallel_optimizer:
        return 1
    instances: int = flags.integer(INSTANCES, default=1)
    if replicas % instances:
        raise flags.error(INSTANCES, f"must divide the {replicas} ranks of data and context parallel", instances)
    return replicas // instances


def split_flags(flags: Flags, strategy: Strategy) -> dict[str, Setting]:
    """Flags that have to change so that a launch splits its optimizer as a strategy says.

    Raises
    ------
    InputError
        When the launch's own sharding splits what the strategy leaves whole.
    """
    replicas, ways = strategy.dp * strategy.cp, strategy.op
    if replicas == 1:
        return {INSTANCES: False} if flags.has(INSTANCES) else {}
    wanted: dict[str, Setting] = {}
    given = flags.has("use-distributed-optimizer")
    if flags.has(*FULL_SHARDING):
        if (ways > 1) != read_sharding(flags).parallel_optimizer:
            flag = next(name for name in FULL_SHARDING if flags.has(name))
            raise flags.error(flag, f"settles what is split; it cannot be split {ways} ways", cure="leave op as it is")
    elif (ways > 1) != given and flags.text("optimizer", default="adam") != "dist_muon":
        wanted["use-distributed-optimizer"] = ways > 1
    instances = replicas // ways if ways > 1 else 1
    if instances != flags.integer(INSTANCES, default=1):
        wanted[INSTANCES] = str(instances) if instances > 1 else False
    return wanted
