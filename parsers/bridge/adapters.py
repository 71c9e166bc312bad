"""Low-rank adapters of Megatron-Bridge's ``peft`` section.

Source: NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/peft/lora.py:92-160 (fields and defaults).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.register.adapters import MEGATRON_TARGETS, Adapters, named_targets

_MOST_RANK = 2**16
_NOT_READ = ("exclude_modules", "normalize_moe_lora", "experts_shared_outer_loras")
_WHOLE = "set peft to null, or start a recipe of sft, to plan the training of all weights"


def adapters_of(peft: Mapping[str, Any] | None, file: Path) -> Adapters | None:
    """Adapters of the section; None where all weights train.

    Parameters
    ----------
    peft : mapping or None
        Fields of the section; ``kind`` is the name of its class.

    Raises
    ------
    InputError
        When they are of another kind than LoRA, or a field has a value that is not modelled.
    """
    if not peft:
        return None
    kind = peft.get("kind")
    if kind != "LoRA":
        problem = "trains adapters of another kind than LoRA, whose memory and step are not modelled"
        raise InputError(problem, file=file, field="peft", value=shortened(str(kind), 60), cure=_WHOLE)
    for name in _NOT_READ:
        if peft.get(name):
            shown = shortened(str(peft[name]), 60)
            cure = "leave it out to plan the adapters without it"
            raise InputError("is not modelled", file=file, field=f"peft.{name}", value=shown, cure=cure)
    dropped = _number(peft, "dropout", 0.0, file) > 0
    shared = peft.get("share_expert_adapters", True) is not False
    rank = int(_number(peft, "dim", 32, file, whole=True))
    return Adapters(rank, _targets(peft.get("target_modules"), file), dropped, gathers=True, shared_by_experts=shared)


def _targets(written: Any, file: Path) -> tuple[str, ...]:
    """Matrices with adapters, by modules' names; a pattern, of some layers, is not read."""
    if written in (None, []):
        return MEGATRON_TARGETS
    where = {"file": file, "field": "peft.target_modules", "value": shortened(str(written), 80)}
    if not isinstance(written, list) or not all(isinstance(name, str) for name in written):
        raise InputError("must be a list of modules", **where)
    if any("*" in name for name in written):
        raise InputError("names modules by a pattern, which is not read", cure="name them as linear_qkv", **where)
    return named_targets(written, None, **where)


def _number(peft: Mapping[str, Any], name: str, usual: float, file: Path, *, whole: bool = False) -> float:
    value = peft.get(name)
    if value is None:
        return usual
    low, high = (1, _MOST_RANK) if whole else (0, 1)
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not low <= value <= high:
        problem = f"must be a {'whole ' if whole else ''}number from {low} to {high:,}"
        raise InputError(problem, file=file, field=f"peft.{name}", value=shortened(str(value), 40))
    return float(value)
