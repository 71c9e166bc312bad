"""LoRA of a launch by MindSpeed-LLM's flags."""

from __future__ import annotations

from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.register.adapters import Adapters, named_targets

TARGET_MODULES = "lora-target-modules"


def read_adapters(flags: Flags) -> Adapters | None:
    """`TrainingRules.adapters`: low-rank adapters beside the modules that ``--lora-target-modules`` names.

    Sources: MindSpeed-LLM c77308a1 mindspeed_llm/training/training.py:182-190 (no dropout; peft's layers),
    mindspeed_llm/tasks/posttrain/lora/lora_moe.py (experts have adapters each).

    Raises
    ------
    InputError
        When it names a module beside which no adapter is modelled.
    """
    names = [word.text for word in flags.by_name[TARGET_MODULES].values] if flags.has(TARGET_MODULES) else []
    if not names:
        return None
    where = {"file": flags.file, "field": f"--{TARGET_MODULES}"}
    rank: int = flags.integer("lora-r", default=16, high=MAX_SIZE)
    return Adapters(rank, named_targets(names, None, **where))
