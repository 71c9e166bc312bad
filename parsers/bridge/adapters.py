"""Low-rank adapters of Megatron-Bridge's ``peft`` section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.megatron.section_adapters import section_adapters, section_dora
from taylor.register.adapters import Adapters

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
        When they are of another kind than LoRA and DoRA, or a field has a value that is wrong or not modelled.
    """
    if not peft:
        return None
    if peft.get("kind") == "DoRA":
        return section_dora(peft, file, "peft")
    if peft.get("kind") != "LoRA":
        problem = "trains adapters of another kind than LoRA and DoRA, whose memory and step are not modelled"
        shown = shortened(str(peft.get("kind")), 60)
        raise InputError(problem, file=file, field="peft", value=shown, cure=_WHOLE)
    return section_adapters(peft, file, "peft")
