"""What a recipe trains: adapters, frozen parts, states of the optimizer, and the types of its GEMMs.

Sources are lines of NVIDIA-NeMo/Automodel 36044ad3; nemo_automodel/components is left out of their paths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from taylor.base.errors import shortened
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.parsers.automodel.recipe import VISION
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.text.fields import Fields
from taylor.parsers.trainer.adapters import BASE_BYTES
from taylor.register.adapters import (
    ALL_HUGGING_FACE,
    DOWN,
    GATE,
    JOINED_UP,
    LATENTS,
    OUTPUT,
    TARGET_NAMES,
    UP,
    Adapters,
    named_targets,
)
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import AO_FP8_RECIPES, BLOCKWISE, MXFP8, TENSORWISE, NarrowProducts

_MOST_RANK = 2**16
_OTHER_NAMES = {
    **dict.fromkeys(("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "wq_a", "wq_b", "wkv"), (LATENTS,)),
    **dict.fromkeys(("wo_a", "wo_b"), (OUTPUT,)),
}
"""Modules of latent attention, in Hugging Face's classes and in components/models/deepseek_v4."""
_NAMES = {**TARGET_NAMES, **_OTHER_NAMES}
_ATTENTION, _MLP = ("self_attn",), ("mlp", "mlp.shared_experts")
_MODULES = {
    f"model.layers.0.{place}.{name}": target
    for name, targets in _NAMES.items()
    for target in targets
    for place in (_MLP if target in (JOINED_UP, GATE, UP, DOWN) else _ATTENTION)
}
"""Targets by the full names of a layer's linear modules, as most models of Hugging Face have them."""
_VISION = re.compile(r"vision|visual|image|multi_modal|audio|projector", re.IGNORECASE)
TYPES = {"bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp32": 4, "float32": 4, "float": 4}


def type_bytes(section: Fields, name: str, usual: int) -> int:
    """Bytes of a type by its name; `usual` where the file states none or ``auto``.

    Raises
    ------
    InputError
        When it is no type that is known.
    """
    written = section.raw(name)
    word = str(written).removeprefix("torch.").lower()
    if written is None or word == "auto":
        return usual
    if word not in TYPES:
        raise section.error(name, "is no type that is read", shortened(str(written), 40), f"use {', '.join(TYPES)}")
    return TYPES[word]


def adapters_of(top: Fields, model: ModelSpec, stored: int) -> Adapters | None:
    """Low-rank adapters beside frozen weights of `stored` bytes; None where the file states none.

    Joined experts are one module, which a pattern of linear modules does not match (_peft/lora.py:606-650,
    module_matcher.py:130-149).

    Raises
    ------
    InputError
        When it names a module that is not known.
    """
    if not top.has("peft"):
        return None
    peft = top.section("peft")
    names, left_out = _names(peft.raw("target_modules")), _names(peft.raw("exclude_modules"))
    if peft.raw("match_all_linear") is True or (left_out and not names):
        targets = set(ALL_HUGGING_FACE)
    else:
        names = names or ["*_proj"]
        targets = {target for name in names for target in _matched(peft, name)}
    for name in left_out:
        if not _VISION.search(name):
            targets -= set(_matched(peft, name))
    if not targets:
        raise peft.error("target_modules", "matches no linear module of a layer", cure="name modules, as *_proj")
    quantized = top.section("quantization")
    bits = 4 if quantized.raw("load_in_4bit") is True else 8 if quantized.raw("load_in_8bit") is True else None
    return Adapters(
        int(peft.integer("dim", default=8, high=_MOST_RANK)),
        tuple(sorted(targets)),
        float(peft.number("dropout", default=0.0, high=1.0)) > 0,
        BASE_BYTES[bits] if bits is not None else (4.0 if stored == 4 else None),
        beside_experts=any(_reaches(name, "model.layers.0.mlp.experts") for name in names),
        decomposed=peft.raw("use_dora") is True,
    )


def _names(written: Any) -> list[str]:
    if isinstance(written, str):
        return [written]
    return [str(name) for name in written][:64] if isinstance(written, list) else []


def _matched(peft: Fields, name: str) -> tuple[str, ...]:
    """Targets of a pattern: by the full names of a layer's modules, or by its last part where it names other places.

    A bare name is the full name of no module of a layer, and reaches nothing (module_matcher.py:144).
    """
    last = name.rsplit(".", 1)[-1]
    reached = {target for module, target in _MODULES.items() if _reaches(name, module)}
    if "experts" in last or name == last and "*" not in name:
        return ()
    if "*" not in last and last not in _NAMES:
        return named_targets([last], None, file=peft.file, field=peft.path("target_modules"))
    if not reached and name != last and not any(place in name for place in _ATTENTION + _MLP):
        reached = {target for module, targets in _NAMES.items() if _reaches(last, module) for target in targets}
    return tuple(sorted(reached & set(ALL_HUGGING_FACE) if "*" in last else reached))


def _reaches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name (module_matcher.py:36-37: ``.*`` stands for any letters too)."""
    return fnmatchcase(name, pattern.replace(".*", "*"))


def frozen_of(top: Fields, recipe: str, model: ModelSpec, notes: list[str]) -> tuple[str, ...]:
    """Parts that train in no way (utils/model_utils.py:364-392; recipes/vlm/finetune.py freezes the tower by default).

    Raises
    ------
    InputError
        When the language model is frozen.
    """
    if recipe != VISION and not top.has("freeze_config"):
        return ()
    section = top.section("freeze_config")
    if section.raw("freeze_language_model") is True:
        cure = "write false to plan the training of the language model"
        raise section.error(
            "freeze_language_model", "trains the other parts alone, and only language models are planned", True, cure
        )
    return frozen_vision(model, notes, freezes=section.raw("freeze_vision_tower") is not False)


@dataclass(frozen=True)
class Moments:
    """Bytes a parameter of an optimizer's moments, by its class, where weights have `stored` bytes.

    Parameters
    ----------
    count : int
        Values a parameter.
    others : int or None
        Those of parameters that are no matrices of a layer.
    bytes_each : int or None
        Bytes of a value; None: as the stored weight.
    """

    count: int
    others: int | None = None
    bytes_each: int | None = None


_CLASSES = {
    "Adam": Moments(2),
    "AdamW": Moments(2),
    "FusedAdam": Moments(2, bytes_each=4),
    "FlashAdamW": Moments(2, bytes_each=1),
    "SGD": Moments(0),
    "Muon": Moments(1, others=2),
    "NorMuon": Moments(1, others=2),
    "Dion2": Moments(1, others=2),
}
"""optim/optimizer.py:259-520. TransformerEngine keeps fp32 moments unless ``exp_avg_dtype`` says otherwise
(NVIDIA/TransformerEngine transformer_engine/pytorch/optimizers/fused_adam.py); FlashAdamW's are in 8 bits
(databricks/flashoptim README.md: 7 bytes a parameter, with weight, correction of 8 bits and gradient)."""


def optimizer_of(top: Fields, stored: int) -> OptimizerStates:
    """States of the optimizer, which updates stored weights, or a master copy beside weights in 16 bits.

    FSDP adds gradients up and reduces them in fp32 and stores shards in the weights' type (distributed/config.py:
    289-296; torch 2.13 torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``to_accumulated_grad_if_needed``).

    Raises
    ------
    InputError
        When its states are not known.
    """
    section = top.section("optimizer")
    name = str(section.raw("_target_") or "torch.optim.AdamW").rpartition(".")[2]
    kind = _CLASSES.get(name)
    if kind is None:
        cure = f"the optimizers whose states are known are {', '.join(_CLASSES)}"
        raise section.error("_target_", "has states that are not modelled", shortened(name, 60), cure)
    each = type_bytes(section, "exp_avg_dtype", kind.bytes_each or stored) if name == "FusedAdam" else kind.bytes_each
    width = stored if each is None else each
    policy = top.section("distributed").section("mp_policy")
    return OptimizerStates(
        gradient_bytes=stored,
        master_bytes=_master(section, name, stored),
        moments_bytes=kind.count * width,
        other_moments_bytes=None if kind.others is None else kind.others * width,
        reduced_bytes=type_bytes(policy, "reduce_dtype", 4),
        host_share=1.0 if top.section("distributed").section("offload_policy").has("_target_") else 0.0,
        host_updates=top.section("distributed").section("offload_policy").has("_target_"),
    )


def _master(section: Fields, name: str, stored: int) -> int | None:
    """Bytes of the weight that the optimizer updates beside the stored one: None as stored, the whole of it or its
    low half (``store_param_remainders``, ``master_weight_bits``)."""
    if stored == 4:
        return None
    if name == "FusedAdam" and section.raw("master_weights") is not False:
        return 2 if section.raw("store_param_remainders") is True else 4
    if name == "FlashAdamW":
        return max(0, (int(section.integer("master_weight_bits", default=24, low=16, high=32)) - 16) // 8)
    return 0


@dataclass(frozen=True)
class Narrow:
    """`TrainingRules.narrow`, `narrow_experts` and `narrow_gather`."""

    recipe: NarrowProducts | None = None
    experts: bool = True
    gather: bool = False


_ENGINE = {"current": TENSORWISE, "block": BLOCKWISE, "mxfp8": MXFP8}
"""models/common/utils.py:127-165, ``TEFp8Config``."""


def narrow_of(top: Fields, model: ModelSpec) -> Narrow:
    """GEMMs in 8 bits: torchao's by ``fp8`` (quantization/fp8.py:60-130), or TransformerEngine's by ``te_fp8``."""
    fp8, backend = top.section("fp8"), top.section("model").section("backend")
    if fp8.raw("enabled") is True:
        name = str(fp8.raw("recipe_name") or "tensorwise")
        if name not in AO_FP8_RECIPES:
            raise fp8.error("recipe_name", "is no recipe", name[:40], f"use one of {', '.join(AO_FP8_RECIPES)}")
        gathers = fp8.raw("enable_fsdp_float8_all_gather") is True
        return Narrow(AO_FP8_RECIPES[name], model.moe is None, gathers and name == "tensorwise")
    if not backend.has("te_fp8"):
        return Narrow()
    recipe = str(backend.section("te_fp8").raw("recipe") or "current")
    if recipe not in _ENGINE:
        raise backend.section("te_fp8").error("recipe", "is no recipe", recipe[:40], f"use {', '.join(_ENGINE)}")
    if backend.raw("linear") != "te":
        return Narrow()  # The experts' alone, which a remark names.
    return Narrow(_ENGINE[recipe], backend.raw("experts") == "te" or model.moe is None)
