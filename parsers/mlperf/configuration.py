"""A ``config_*.sh`` of an MLPerf submission as a launch by Megatron's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.flag_table import UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.new_file import model_flags
from taylor.parsers.mlperf.variables import DEFAULTS, SEQUENCE, Stated, Variables, amd_flags, nemo_flags
from taylor.parsers.named_model import named_model
from taylor.parsers.new_file import NewJob
from taylor.parsers.text.flag_edit import Setting, plain_value
from taylor.parsers.text.flags import WORLD_FLAGS, Flag, Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import given
from taylor.register.model import ModelSpec

NAME = "mlperf"
_MODELS = {"405b": "llama3-405b", "70b": "llama3-70b", "8b": "llama3-8b"}
"""Models by MODEL_SIZE or SIZE (pretrain.py:216-240; train.py)."""
_OTHERS = {
    "bert": "BERT", "dlrm": "DLRM, a recommender", "rgat": "RGAT, a graph network", "gnn": "a graph network",
    "retinanet": "RetinaNet, a detector", "ssd": "SSD, a detector", "flux": "FLUX, a diffusion model",
    "stable_diffusion": "Stable Diffusion", "unet3d": "3D U-Net", "resnet": "ResNet", "rnnt": "RNN-T",
    "maskrcnn": "Mask R-CNN",
}  # fmt: skip
"""Benchmarks without a language model of Megatron's layers, by words of their folders."""
_HARNESS = re.compile(r"\$\{oc\.env:(\w+),([^{},]*)\}")
_LENGTH = re.compile(r"^\s*encoder_seq_length:\s*(\d{1,7})\s*$", re.M)
_ADAPTERS = re.compile(r"lora", re.I)
_NO_SIZES = ("seq-length", "max-position-embeddings", "mtp-num-layers", "use-flash-attn")
_MOST_YAML = 2**20


class MlperfConfiguration(Launch):
    """A configuration; see `Launch`.

    Parameters
    ----------
    script : ShellScript
    register_path : Path, optional
        The user's folder of registrations.

    Raises
    ------
    InputError
        When it is of another benchmark, trains adapters, or lacks a degree or a batch.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, register_path: Path | None = None) -> None:
        self.file, self.text = script.file, script.text
        stated = _exported(script)
        self._stated = stated
        _refuse_others(self.file, stated)
        harness = _harness(self.file)
        defaults, length = _defaults(harness), _length(harness)
        values = Variables(self.file, stated, defaults)
        notes = list(script.notes)
        amd = "TENSOR_MODEL_PARALLEL" not in stated and "GBS" in stated
        flags = [*(amd_flags(values) if amd else nemo_flags(values))]
        self._variables = {name: variable for name, variable, _ in flags}
        size = values.text("SIZE" if amd else "MODEL_SIZE").lower()
        sizes = self._sizes(size, values, register_path, notes)
        notes.append(f"model {size}, sequences of {length:,} tokens, by the harness")
        starting = [_flag(each) for each in flags if each[0] in WORLD_FLAGS]
        rest = [_flag(each) for each in flags if each[0] not in WORLD_FLAGS]
        fixed: tuple[Stated, ...] = (
            ("seq-length", "", (str(length),)),
            ("max-position-embeddings", "", (str(length),)),
            ("bf16", "", ()),
            ("grad-reduce-in-bf16", "", ()),
            ("hidden-dropout", "", ("0.0",)),
            ("attention-dropout", "", ("0.0",)),
            ("no-create-attention-mask-in-dataloader", "", ()),
        )
        self.flags = Flags(
            self.file, [*starting, *sizes, *rest, *map(_flag, fixed)], len(starting), self._variable_of
        ).of_other_tool()
        self.notes = tuple(notes)
        cure = "solve with -write n: the harness splits layers evenly, by ASYM_PP_EMBED and ASYM_PP_LOSS"
        self.plan_error = InputError("cannot state the layers of each stage", file=self.file, cure=cure)

    @classmethod
    def read(cls, path: Path, register_path: Path | None = None) -> MlperfConfiguration:
        """Read a script with the files that it takes in; see `ShellScript.read`."""
        return cls(ShellScript.read(path), register_path)

    def _sizes(self, size: str, values: Variables, register_path: Path | None, notes: list[str]) -> list[Flag]:
        """The model's sizes as flags, and the model where no variable changes its layers."""
        if size not in _MODELS:
            problem, cure = "is no model that is read", f"one of {', '.join(_MODELS)} is"
            raise InputError(problem, file=self.file, field="MODEL_SIZE", value=size, cure=cure)
        model, remarks = named_model(_MODELS[size], self.file, "MODEL_SIZE", register_path)
        notes += remarks
        wanted = values.stated.get("OVERWRITTEN_NUM_LAYERS", "")
        layers = int(wanted) if wanted.isdigit() and 1 <= int(wanted) <= 1000 else model.n_layers
        self.model: ModelSpec | None = model if layers == model.n_layers else None
        stated = {**model_flags(NewJob(model, 1, 1, 1, 1)), "num-layers": layers}
        return [
            _flag((name, "", () if value is None else (str(value).strip('"'),)))
            for name, value in stated.items()
            if name not in _NO_SIZES
        ]

    def named(self, found: UnmodelledFlag) -> UnmodelledFlag:
        """A flag that no figure includes, by the variable that states it."""
        return replace(found, name=self._variable_of(found.name.removeprefix("--")))

    def unread(self) -> tuple[UnmodelledFlag, ...]:
        """Variables that cost something and became no flag."""
        own = load_flag_table("taylor.parsers.mlperf", "variables.yaml")
        return own.unmodelled([(name, text) for name, text in self._stated.items() if own.find(name) is not None])

    def _variable_of(self, name: str) -> str:
        return getattr(self, "_variables", {}).get(name) or f"--{name}"

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> MlperfConfiguration:
        """See `Launch.with_flags`.

        Raises
        ------
        InputError
            Always: variables that other files of the submission read state the job.
        """
        assert self.plan_error is not None
        raise self.plan_error

    def with_ranks(self, world: int) -> tuple[MlperfConfiguration, dict[str, Setting]]:
        """See `Launch.with_ranks`."""
        return self, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return plain_value(value, self.file, name)


def _exported(script: ShellScript) -> dict[str, str]:
    """The variables that the script settles, and those of its start."""
    values: dict[str, str] = {}
    for name, variable in {**script.outside, **script.variables}.items():
        if variable.words and not variable.words[0].unknown and len(variable.words[0].text) < 1000:
            values[name] = variable.words[0].text
    return values


def _refuse_others(file: Path, stated: Mapping[str, str]) -> None:
    """Refuse a configuration of another benchmark, of adapters, or a part that others take in."""
    words = "/".join(file.absolute().parts[-6:]).lower()
    what = next((title for word, title in _OTHERS.items() if word in words), None)
    if what is not None:
        cure = "give a config_*.sh of llama31_405b or llama31_8b"
        raise InputError(f"trains {what}, and only language models are planned", file=file, cure=cure)
    if _ADAPTERS.search(words) or any(name.startswith("LORA") for name in stated):
        raise InputError(
            "trains adapters (LoRA) by a harness of its own, whose variables are not read",
            file=file,
            cure="give a config_*.sh of llama31_405b or llama31_8b",
        )
    if not {"TENSOR_MODEL_PARALLEL", "TP", "PIPELINE_MODEL_PARALLEL"} & set(stated):
        raise InputError(
            "states a part of an MLPerf configuration and no degrees",
            file=file,
            cure="give the config_SYSTEM_*.sh that takes it in by source",
        )


def _harness(file: Path) -> str:
    """The text of the harness' YAML beside a script; empty where there is none."""
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        try:
            return read_text(folder / "conf" / "custom.yaml", limit_bytes=_MOST_YAML)
        except (InputError, OSError):
            continue
    return ""


def _defaults(harness: str) -> dict[str, str]:
    found = {name: value.strip() for name, value in _HARNESS.findall(harness)}
    return {**DEFAULTS, **found}


def _length(harness: str) -> int:
    match = _LENGTH.search(harness)
    return int(match[1]) if match else SEQUENCE


def _flag(stated: Stated) -> Flag:
    name, _, words = stated
    return Flag(name, given(f"--{name}"), tuple(map(given, words)))
