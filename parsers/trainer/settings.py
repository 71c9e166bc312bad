"""Settings that LLaMA-Factory, axolotl and plain command lines share, read from names and values."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.strategy import GATHERED_RING, PASSED_RING
from taylor.parsers.text.fields import MAX_DEGREE, MAX_SIZE, Fields
from taylor.parsers.text.spelling import likely_meant
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.trainer.deepspeed import DeepSpeedConfig, beside
from taylor.parsers.trainer.fsdp import read_fsdp
from taylor.parsers.trainer.optimizers import MOMENTS
from taylor.parsers.trainer.sharding import DDP, Context, Sharding
from taylor.register.model import ModelSpec

_TYPES = ("float32", "bfloat16", "float16", "auto")
_WIDTHS = {
    **dict.fromkeys(("float32", "fp32", "float"), 4),
    **dict.fromkeys(_TYPES[1:], 2),
    "bf16": 2,
    "fp16": 2,
    "half": 2,
}
_ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attn")
"""transformers v4.57.1 src/transformers/modeling_utils.py (``AttentionInterface``); ``flash_attn`` is ms-swift's
(3602360a swift/arguments/base_args/model_args.py:34)."""
_SHARDS = ("DEEPSPEED", "FSDP")
_TRUE, _FALSE = ("true", "yes", "y", "1", "on"), ("false", "no", "n", "0", "off", "none", "null", "")
_ACCELERATE = re.compile(r"--config[_-]file[ =]+([\w./-]+\.ya?ml)\b")


def switch(fields: Fields, name: str, *, default: bool = False) -> bool:
    """A switch, as YAML or a command line writes it.

    Raises
    ------
    InputError
        When it is neither on nor off.
    """
    value = fields.raw(name)
    if value is None:
        return default
    low = str(value).strip().lower()
    if low not in (*_TRUE, *_FALSE):
        raise fields.error(name, "must be true or false", shortened(str(value), 60))
    return low in _TRUE


def count(fields: Fields, name: str, default: int | None = None, high: int = MAX_DEGREE) -> int:
    """A whole number, as YAML or a command line writes it.

    Raises
    ------
    InputError
        When it is another value, or is missing and has no default.
    """
    value = fields.raw(name)
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value.strip()):
        fields = Fields({**fields.data, name: int(value)}, fields.file, fields.prefix, fields.asked)
    if default is None:
        return int(fields.integer(name, high=high))
    return int(fields.integer(name, default=default, high=high))


def length_of(fields: Fields) -> TrainingLength:
    """The length of a training that ``max_steps`` states; -1, the Trainer's default, states none."""
    value = fields.raw("max_steps")
    steps = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value.strip()) else value
    return TrainingLength(steps=steps) if type(steps) is int and 0 < steps <= MAX_SIZE else UNSTATED


def loaded_bytes(fields: Fields, *names: str, default: str) -> int:
    """Bytes of a weight as it is loaded, by the first of the options that is there; 2 for a checkpoint's own type.

    Sources: modelscope/ms-swift 3602360a swift/arguments/base_args/model_args.py:74 (``torch_dtype``), huggingface/trl
    f2cd5771 trl/trainer/model_config.py:89-95 (``dtype``).

    Raises
    ------
    InputError
        When it names no type.
    """
    name = next((one for one in names if fields.raw(one) is not None), names[0])
    written = str(fields.raw(name) or default)
    kind = default if written.lower() in _FALSE else written.lower().removeprefix("torch.")
    if kind not in _WIDTHS:
        near = likely_meant(kind, _TYPES)
        cure = f"write {near or ' or '.join(_TYPES)}"
        raise fields.error(name, "is no type of weights", shortened(written, 40), cure)
    return _WIDTHS[kind]


def attends_eagerly(fields: Fields, name: str) -> bool:
    """Return whether attention writes its scores (``eager``); any kernel by another name does not.

    Raises
    ------
    InputError
        When the name is a letter from a known one.
    """
    written = fields.raw(name)
    near = None if written in _ATTENTIONS else likely_meant(str(written), _ATTENTIONS)
    if near is not None:
        raise fields.error(name, "is no way of attention", shortened(str(written), 40), f"write {near}")
    return bool(written == "eager")


def optimizer_of(fields: Fields, name: str, default: str) -> str:
    """The optimizer's name, as `MOMENTS` has it.

    Raises
    ------
    InputError
        When its states are not known.
    """
    value = fields.raw(name)
    written = default if value is None else str(value)
    low = written.lower()
    if low in MOMENTS:
        return low
    near = likely_meant(low, MOMENTS)
    cure = f"the optimizers whose states are known are {', '.join(MOMENTS)}" if near is None else f"write {near}"
    raise fields.error(name, "has states that are not modelled", shortened(written, 60), cure)


def fsdp_words(value: Any) -> list[str]:
    """Words of the setting ``fsdp``: a list, or a text with blanks or commas; none where it is switched off."""
    if isinstance(value, (list, tuple)):
        return [str(word) for word in value][:16]
    if value is None or value is False or str(value).lower() in _FALSE:
        return []
    return ["full_shard"] if value is True else re.split(r"[\s,]+", str(value))[:16]


class Accelerate:
    """A configuration of accelerate that a file names where it says how it is started.

    Source: huggingface/accelerate 16cb6eb8 src/accelerate/commands/config/config_args.py, ``ClusterConfig``.
    """

    def __init__(self, fields: Fields) -> None:
        self.fields = fields

    @classmethod
    def named_in(cls, text: str, home: Path) -> Accelerate | None:
        """The one that a text names behind ``--config_file``, in a comment too; None where it is not there."""
        for written in _ACCELERATE.findall(text):
            file = beside(written, home)
            if file is not None:
                source = YamlSource.read(file)
                if "distributed_type" in source.data:
                    return cls(Fields(source.data, source.file))
        return None

    @property
    def file(self) -> Path:
        """Its file."""
        return self.fields.file

    @property
    def world(self) -> int:
        """Ranks that it starts."""
        return count(self.fields, "num_processes", 1)

    @property
    def context(self) -> Context:
        """Context parallelism that it starts (src/accelerate/parallelism_config.py:253-258,
        src/accelerate/accelerator.py:1660).

        Raises
        ------
        InputError
            When it asks for a ring and for exchanged heads.
        """
        section, name = self.fields.section("parallelism_config"), "parallelism_config_"
        ring, heads = (count(section, f"{name}{size}", 1) for size in ("cp_size", "sp_size"))
        if ring > 1 and heads > 1:
            cure = "leave one of them out: cp_size needs FSDP, sp_size DeepSpeed"
            raise section.error(f"{name}sp_size", "does not go with cp_size", heads, cure)
        passes = section.raw(f"{name}cp_comm_strategy") == "alltoall"
        return Context(max(ring, heads), heads > 1, PASSED_RING if passes else GATHERED_RING)

    def deepspeed(self) -> DeepSpeedConfig | None:
        """The configuration of DeepSpeed that it names or states; None where it shards in another way.

        Raises
        ------
        InputError
            When there is no such file, or it is no DeepSpeed configuration.
        """
        if self._kind != "DEEPSPEED":
            return None
        section = self.fields.section("deepspeed_config")
        named = section.raw("deepspeed_config_file")
        if named is not None:
            return DeepSpeedConfig.read(named, self.file, "deepspeed_config.deepspeed_config_file")
        zero = {"stage": count(section, "zero_stage", 2) if section.raw("zero_stage") != 0 else 0}
        devices = ("offload_optimizer_device", "offload_optimizer")
        host = {two: {"device": section.raw(one)} for one, two in (devices,) if section.raw(one) is not None}
        return DeepSpeedConfig.read({"zero_optimization": {**zero, **host}}, self.file, "deepspeed_config")

    def sharding(self, model: ModelSpec, parameters: int) -> Sharding:
        """The division of states that it states."""
        if self._kind == "FSDP":
            return read_fsdp((), self.fields.section("fsdp_config"))
        zero = self.deepspeed()
        return Sharding(DDP) if zero is None else zero.sharding(model.hidden, parameters)

    @property
    def _kind(self) -> str:
        written = str(self.fields.raw("distributed_type"))
        near = likely_meant(written.upper(), _SHARDS)
        if near is not None:
            problem = "is none of accelerate's"
            raise self.fields.error("distributed_type", problem, shortened(written, 40), f"write {near}")
        return written.upper()


def started_deepspeed(
    zero: DeepSpeedConfig | None, fields: Fields, accelerate: Accelerate | None
) -> DeepSpeedConfig | None:
    """The configuration of DeepSpeed that a job runs: its file's, or accelerate's where the file does not shard.

    The Trainer compares both with its own options (transformers v4.57.1 src/transformers/trainer.py:5538, 5565-5576).
    """
    if zero is not None or accelerate is None or fsdp_words(fields.raw("fsdp")):
        return zero
    return accelerate.deepspeed()


def refuse(fields: Fields, name: str, why: str, cure: str, value: Any = None) -> InputError:
    """An error about a setting that trains something else than all weights of a language model."""
    return fields.error(name, why, shortened(str(fields.raw(name) if value is None else value), 80), cure)
