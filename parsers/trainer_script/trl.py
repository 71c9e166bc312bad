"""trl's own programs: ``trl sft`` and ``trl dpo``, or their scripts, with trl's defaults.

Sources: huggingface/trl f2cd5771 trl/trainer/base_config.py:61-107 (gradient checkpointing, bf16),
trl/trainer/sft_config.py:205 and dpo_config.py:188 (``max_length``), trl/cli/accelerate_config.py:19-49,
trl/accelerate_configs/*.yaml, trl/scripts/utils.py (``TrlParser``, ``--config``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.script_flags import FlagForm, flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.adapters import names_of
from taylor.parsers.trainer.deepspeed import beside
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.settings import Accelerate, switch
from taylor.parsers.trainer_script.launcher import TrainerScript
from taylor.parsers.trainer_script.read import plain_job, settings_of, world_of
from taylor.register.model import ModelSpec

NAME = "trl"
STARTS = re.compile(
    r"(?:\btrl\s+|\btrl\.scripts\.|\b(?:trl|examples)/scripts/(?=\w+\.py\b))(sft|dpo|grpo|kto|reward|rloo)\b"
)
"""A command of trl, and the program that it starts."""
FORM = FlagForm(
    telltale=("model-name-or-path", "dataset-name", "output-dir", "learning-rate", "per-device-train-batch-size",
              "max-length", "use-peft", "config", "gradient-accumulation-steps"),
    beside=("model-name-or-path", "output-dir", "learning-rate"),
    joint="_",
)  # fmt: skip
USUAL: Mapping[str, Any] = {"gradient_checkpointing": True, "max_length": 1024}
"""trl's defaults that differ from the Trainer's; bf16 is on too unless fp16 is."""
_FSDP = {"fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": False, "fsdp_offload_params": False}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "single_gpu": {"distributed_type": "NO"},
    "multi_gpu": {"distributed_type": "MULTI_GPU"},
    **{
        f"zero{stage}": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": stage}}
        for stage in (1, 2, 3)
    },
    "fsdp1": {
        "distributed_type": "FSDP",
        "fsdp_config": {**_FSDP, "fsdp_version": 1, "fsdp_reshard_after_forward": "FULL_SHARD"},
    },
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": {**_FSDP, "fsdp_version": 2}},
}
"""accelerate's configurations that trl ships, each for eight processes, but ``single_gpu`` for one."""
_OTHERS = {
    "grpo": "trains beside roll-outs",
    "rloo": "trains beside roll-outs",
    "kto": "keeps a reference model beside single answers",
    "reward": "trains a head of one label",
}


class TrlScript(TrainerScript):
    """Commands of trl's own programs."""

    form = FORM
    degree_words = {**TrainerScript.degree_words, "seq": "--max_length"}
    name = NAME
    title = "script of trl (sft, dpo)"
    telltale = re.compile(rf"^[^#\n]*{STARTS.pattern}", re.MULTILINE)

    def job(self, script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerScript.job`."""
        words = " ".join(word.text for word in launch_words(script, FORM))
        kind = _kind(words, script)
        flags = flags_of(script, FORM)
        given = {**_of_file(flags, script), **settings_of(flags, 0)}
        usual = USUAL if "fp16" in given else {**USUAL, "bf16": True}
        fields = Fields({**usual, **given}, script.file)
        _refuse_single_module(fields)
        accelerate = _accelerate(flags, script)
        job = plain_job(fields, accelerate, register_path, model, launcher=NAME)
        world = world_of(script, flags)
        if world is None and accelerate is None and "trl" not in flags.start.programs and "accelerate" not in words:
            world = 1
        return replace(
            job,
            world=job.world if world is None else world,
            pairs=kind == "dpo",
            notes=(*script.notes, *job.notes),
        )


def _kind(words: str, script: ShellScript) -> str:
    """The program that a command starts.

    Raises
    ------
    InputError
        When it is none of trl's, or one whose step is not modelled.
    """
    found = STARTS.search(words)
    if found is None:
        cure = "give the script that starts trl sft or trl dpo"
        raise InputError("starts no training: no command starts a program of trl", file=script.file, cure=cure)
    kind = found[1]
    if kind in _OTHERS:
        cure = "plan trl sft or trl dpo, or the update alone as a script of Hugging Face's Trainer"
        raise InputError(
            f"{_OTHERS[kind]}, which is not modelled", file=script.file, field="trl", value=kind, cure=cure
        )
    return kind


def _refuse_single_module(fields: Fields) -> None:
    """Refuse one module's name, which peft takes for a pattern of whole paths (trl/trainer/model_config.py:177-178).

    Raises
    ------
    InputError
        With the name.
    """
    names = names_of(fields.raw("lora_target_modules"))
    if switch(fields, "use_peft") and len(names) == 1 and re.fullmatch(r"\w+", names[0]):
        why = "is one name, which trl hands to peft as a pattern of a module's whole path: none has it"
        raise fields.error("lora_target_modules", why, names[0], "write all-linear, or name two modules or more")


def _of_file(flags: Flags, script: ShellScript) -> dict[str, Any]:
    """The options of the YAML behind ``--config``.

    Raises
    ------
    InputError
        When it is not found.
    """
    if not flags.has("config"):
        return {}
    written = flags.text("config")
    file = beside(written, script.file)
    if file is None:
        cure = "put it beside the script, or in a folder above it"
        raise InputError("is not found", file=script.file, field="--config", value=shortened(written, 120), cure=cure)
    return {str(name): value for name, value in YamlSource.read(file).data.items() if name != "env"}


def _accelerate(flags: Flags, script: ShellScript) -> Accelerate | None:
    """accelerate's configuration: the file that the command names, else trl's own of that name."""
    found = Accelerate.named_in(script.text, script.file)
    if found is not None:
        return found
    for option in ("accelerate-config", "config-file"):
        if flags.has(option):
            written = flags.text(option)
            file = beside(written, script.file)
            if file is not None:
                return Accelerate(Fields(YamlSource.read(file).data, file))
            name = Path(written).stem.removeprefix("deepspeed_")
            preset = PRESETS.get(name)
            if preset is None:
                cure = f"put it beside the script, or name one of {', '.join(PRESETS)}"
                raise InputError("is not found", file=script.file, field=f"--{option}", value=written, cure=cure)
            ranks = 1 if "NO" in preset.values() else 8
            return Accelerate(Fields({"num_processes": ranks, **preset}, Path(f"trl/accelerate_configs/{name}.yaml")))
    return None
