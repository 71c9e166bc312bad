"""trl's own programs, ``trl sft`` and ``trl dpo``, those of open-r1 and the alignment handbook, and their YAML files.

Sources: huggingface/trl f2cd5771 trl/trainer/base_config.py:61-107 (gradient checkpointing, bf16),
trl/trainer/sft_config.py:205 and dpo_config.py:188 (``max_length``), trl/cli/accelerate_config.py:19-49,
trl/accelerate_configs/*.yaml, trl/scripts/utils.py (``TrlParser``, ``--config``); huggingface/open-r1 1416fa0c
src/open_r1/sft.py:53, 161 (``TrlParser``), setup.py:72 (trl 0.18.0, whose trainers have transformers' defaults:
huggingface/trl 5e2ef1a9 trl/trainer/sft_config.py:124, dpo_config.py:235); huggingface/alignment-handbook 925acdf
scripts/sft.py, scripts/dpo.py, setup.py:69 (trl from 0.19.1 on).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.flag_table import EITHER, LESS, UnmodelledFlag
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.script_flags import FlagForm, flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.trainer.adapters import names_of
from taylor.parsers.trainer.deepspeed import beside
from taylor.parsers.trainer.job import TrainerJob
from taylor.parsers.trainer.launcher import TrainerYaml
from taylor.parsers.trainer.settings import Accelerate, switch
from taylor.parsers.trainer_script.launcher import TrainerScript
from taylor.parsers.trainer_script.read import ACCUMULATION, CHECKPOINTS, MBS, plain_job, settings_of, world_of
from taylor.register.model import ModelSpec

NAME = "trl"
LENGTH, OLD_LENGTH = "max_length", "max_seq_length"
"""The length of a sample, and its name before 0.20 (huggingface/trl 5e2ef1a9 trl/trainer/sft_config.py:183)."""
STARTS = re.compile(
    r"(?:\btrl\s+|\btrl\.scripts\.|\b(?:trl|examples)/scripts/(?=\w+\.py\b)|\b(?P<older>open_r1/)(?=\w+\.py\b)"
    r"|\bscripts/(?:run_)?(?=\w+\.py\s(?:\\?\s)*(?:\S+\.ya?ml|--config)\b))(?P<kind>sft|dpo|grpo|kto|reward|rloo|orpo)\b"
)
"""A command of trl, and the program that it starts; ``older`` is one of a trl with transformers' defaults."""
FORM = FlagForm(
    telltale=("model-name-or-path", "dataset-name", "output-dir", "learning-rate", "per-device-train-batch-size",
              "max-length", "use-peft", "config", "gradient-accumulation-steps"),
    beside=("model-name-or-path", "output-dir", "learning-rate"),
    joint="_",
    starts=STARTS,
)  # fmt: skip
USUAL: Mapping[str, Any] = {"gradient_checkpointing": True, LENGTH: 1024}
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
    "orpo": "trains pairs without a reference model",
}
_KEYS = {
    "grpo": ("num_generations", "reward_funcs", "vllm_mode", "use_vllm"),
    "dpo": ("max_prompt_length", "beta", "precompute_ref_log_probs", "rpo_alpha"),
}
"""Options of one program alone, by which a YAML says whose it is."""


_UNSTATED_DIVISION = UnmodelledFlag(
    "--config_file of accelerate launch",
    None,
    memory=LESS,
    time=EITHER,
    placement=None,
    why="the division of states stands in the command that starts this file; here every rank has all of them",
)


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
        kind, older = _started(words, script)
        flags = flags_of(script, FORM)
        given = {**_of_file(flags, script, words), **settings_of(flags, 0)}
        accelerate = _accelerate(flags, script)
        job = _job(Fields(_with_usual(given, older=older), script.file), accelerate, kind, register_path, model)
        world = world_of(script, flags)
        if world is None and accelerate is None and "trl" not in flags.start.programs and "accelerate" not in words:
            world = 1
        return replace(job, world=job.world if world is None else world, notes=(*script.notes, *job.notes))


class TrlYaml(TrainerYaml):
    """The YAML that a program of trl takes behind ``--config``: the division of states stands in its command alone."""

    degree_words = {"mbs": MBS, "gbs": ACCUMULATION, "seq": "max_length"}
    name = f"{NAME}-yaml"
    title = "YAML of trl (sft, dpo)"
    telltale = re.compile(
        r"\A(?=[\s\S]*^model_name_or_path\s*:)(?![\s\S]*^(?:stage|finetuning_type|template)\s*:)"
        r"(?=[\s\S]*^per_device_train_batch_size\s*:)",
        re.MULTILINE,
    )
    plan_keys = frozenset({MBS, ACCUMULATION, CHECKPOINTS})

    def job(self, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> TrainerJob:
        """See `TrainerYaml.job`."""
        given = _settings(source)
        kind = next((kind for kind, keys in _KEYS.items() if any(key in given for key in keys)), "sft")
        _refuse_others(kind, source.file)
        job = _job(
            Fields(_with_usual(given, older=False), source.file, asked=source.asked), None, kind, register_path, model
        )
        notes = (
            f"its options are those of trl {kind}: nothing else says which program takes this YAML",
            "give the script that starts this YAML (accelerate launch --config_file ...) to plan with its division",
        )
        unmodelled = (*job.unmodelled, _UNSTATED_DIVISION)
        return replace(job, launcher=self.name, notes=(*job.notes, *notes), unmodelled=unmodelled)

    def edits(
        self, source: YamlSource, recomputes: bool | None, mbs: int | None, accumulation: int | None
    ) -> Mapping[YamlPath, Any]:
        """See `TrainerYaml.edits`."""
        wanted = {CHECKPOINTS: recomputes, MBS: mbs, ACCUMULATION: accumulation}
        return {(name,): value for name, value in wanted.items() if value is not None}


def _with_usual(given: Mapping[str, Any], *, older: bool) -> dict[str, Any]:
    """Options with the defaults of trl before them; an older one has the Trainer's for all but the length."""
    if older:
        return {LENGTH: USUAL[LENGTH], **given}
    return {**USUAL, **({} if "fp16" in given else {"bf16": True}), **given}


def _job(
    fields: Fields, accelerate: Accelerate | None, kind: str, register_path: Path | None, model: ModelSpec | None
) -> TrainerJob:
    _refuse_single_module(fields)
    if fields.has(OLD_LENGTH):
        fields = Fields({**fields.data, LENGTH: fields.raw(OLD_LENGTH)}, fields.file, fields.prefix, fields.asked)
    return replace(plain_job(fields, accelerate, register_path, model, launcher=NAME), pairs=kind == "dpo")


def _started(words: str, script: ShellScript) -> tuple[str, bool]:
    """The program that a command starts, and whether its trl has transformers' defaults.

    Raises
    ------
    InputError
        When it is none of trl's, or one whose step is not modelled.
    """
    found = STARTS.search(words)
    if found is None:
        cure = "give the script that starts trl sft or trl dpo"
        raise InputError("starts no training: no command starts a program of trl", file=script.file, cure=cure)
    _refuse_others(found["kind"], script.file)
    return found["kind"], found["older"] is not None


def _refuse_others(kind: str, file: Path) -> None:
    """Refuse a program whose step is not modelled.

    Raises
    ------
    InputError
        With the program.
    """
    if kind in _OTHERS:
        cure = "plan trl sft or trl dpo, or the update alone as a script of Hugging Face's Trainer"
        raise InputError(f"{_OTHERS[kind]}, which is not modelled", file=file, field="trl", value=kind, cure=cure)


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


def _settings(source: YamlSource) -> dict[str, Any]:
    """The options of a YAML: all but the variables that it sets for the program."""
    return {str(name): value for name, value in source.data.items() if name != "env"}


def _of_file(flags: Flags, script: ShellScript, words: str) -> dict[str, Any]:
    """The options of the YAML behind ``--config``, or behind the program.

    Raises
    ------
    InputError
        When it is not found.
    """
    behind = re.search(r"\.py\s+([^\s-]\S*\.ya?ml)\b", words)
    if not flags.has("config") and behind is None:
        return {}
    written = flags.text("config") if behind is None else behind[1]
    file = beside(written, script.file)
    if file is None:
        cure = "put it beside the script, or in a folder above it"
        raise InputError("is not found", file=script.file, field="--config", value=shortened(written, 120), cure=cure)
    return _settings(YamlSource.read(file))


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
