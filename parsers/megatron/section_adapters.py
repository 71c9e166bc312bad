"""Low-rank adapters that a section states by the fields of Megatron-Bridge's ``LoRA``: of Bridge, and of Primus' port.

Sources: NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/peft/lora.py:92-160; AMD-AGI/Primus fd1eeabb
primus/backends/megatron/peft/lora.py:56-105 (fewer fields, the same defaults), peft/utils.py:392-540 (the same layers).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.training_config import TrainingConfig
from taylor.register.adapters import DOWN, JOINED_UP, MEGATRON_TARGETS, Adapters, named_targets

_MOST_RANK = 2**16
_NOT_READ = ("exclude_modules", "normalize_moe_lora", "experts_shared_outer_loras")


def section_adapters(section: Mapping[str, Any], file: Path, place: str) -> Adapters:
    """Adapters of a section.

    Parameters
    ----------
    place : str
        Place of the section in the file, for errors.

    Raises
    ------
    InputError
        When a field has a value that is wrong or not modelled.
    """
    for name in _NOT_READ:
        if section.get(name):
            shown = shortened(str(section[name]), 60)
            cure = "leave it out to plan the adapters without it"
            raise InputError("is not modelled", file=file, field=f"{place}.{name}", value=shown, cure=cure)
    return Adapters(
        int(_number(section, "dim", 32, file, place, whole=True)),
        _targets(section, file, place),
        _number(section, "dropout", 0.0, file, place) > 0,
        gathers=True,
        shared_by_experts=section.get("share_expert_adapters", True) is not False,
    )


def section_dora(section: Mapping[str, Any], file: Path, place: str) -> Adapters:
    """Adapters of a section of Megatron-Bridge's ``DoRA``; see `section_adapters`.

    Source: Megatron-Bridge 067f987d src/megatron/bridge/peft/dora.py:60-75.
    """
    dora = bridge_dora(section_adapters(section, file, place), file, f"{place}.dropout")
    return replace(dora, shared_by_experts=True)


def bridge_dora(adapters: Adapters, file: Path, dropout: str) -> Adapters:
    """The DoRA of Megatron-Bridge in place of its LoRA.

    Raises
    ------
    InputError
        When it has a dropout, for which every frozen layer runs twice, its norm too.
    """
    if adapters.dropout:
        problem = "runs the frozen layer again under DoRA, which is not modelled"
        raise InputError(problem, file=file, field=dropout, cure="write 0, DoRA's default")
    return replace(adapters, decomposed=True)


def refuse_grouped_dora(config: TrainingConfig, field: str) -> None:
    """Refuse Megatron-Bridge's DoRA beside routed experts, whose grouped layers have no ``weight``.

    Source: Megatron-Bridge 067f987d src/megatron/bridge/peft/dora_layers.py:129 (``self.to_wrap.weight``).

    Raises
    ------
    InputError
        When an expert's matrix has an adapter.
    """
    adapters = config.rules.adapters
    if adapters is None or not (adapters.decomposed and adapters.gathers):
        return
    if config.model.moe is not None and adapters.beside_experts and adapters.reaches(JOINED_UP, DOWN):
        problem = "is DoRA beside routed experts, whose grouped layers Megatron-Bridge's DoRA cannot wrap"
        cure = "name linear_qkv and linear_proj alone, or take LoRA"
        raise InputError(problem, file=config.path, field=field, cure=cure)


def _targets(section: Mapping[str, Any], file: Path, place: str) -> tuple[str, ...]:
    """Matrices with adapters, by modules' names; a pattern, of some layers, is not read.

    An empty list gives every linear module one (peft/module_matcher.py:147-163).
    """
    if "target_modules" not in section:
        return MEGATRON_TARGETS
    written = section["target_modules"]
    where: dict[str, Any] = {"file": file, "field": f"{place}.target_modules", "value": shortened(str(written), 80)}
    if not written:
        problem, cure = "gives the head an adapter too, which is not modelled", "name the modules, or leave it out"
        raise InputError(problem, cure=cure, **where)
    if not isinstance(written, list) or not all(isinstance(name, str) for name in written):
        raise InputError("must be a list of modules", **where)
    if any("*" in name for name in written):
        raise InputError("names modules by a pattern, which is not read", cure="name them as linear_qkv", **where)
    return named_targets(written, None, **where)


def _number(
    section: Mapping[str, Any], name: str, usual: float, file: Path, place: str, *, whole: bool = False
) -> float:
    value = section.get(name)
    if value is None:
        return usual
    low, high = (1, _MOST_RANK) if whole else (0, 1)
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not low <= value <= high:
        problem = f"must be a {'whole ' if whole else ''}number from {low} to {high:,}"
        raise InputError(problem, file=file, field=f"{place}.{name}", value=shortened(str(value), 40))
    return float(value)
