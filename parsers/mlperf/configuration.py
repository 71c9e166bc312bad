"""A ``config_*.sh`` of an MLPerf submission as a launch by Megatron's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.flag_table import UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.new_file import model_flags
from taylor.parsers.mlperf import tuning
from taylor.parsers.mlperf.devices import is_blackwell
from taylor.parsers.mlperf.variables import DEFAULTS, NOTHING, SEQUENCE, Stated, Variables, amd_flags, nemo_flags
from taylor.parsers.named_model import named_model
from taylor.parsers.new_file import NewJob
from taylor.parsers.text.flag_edit import Setting, plain_value
from taylor.parsers.text.flags import WORLD_FLAGS, Flag, Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import given
from taylor.register.adapters import Adapters
from taylor.register.model import ModelSpec

NAME = "mlperf"
_MODELS = {"405b": "llama3-405b", "70b": "llama3-70b", "8b": "llama3-8b", tuning.MODEL: tuning.MODEL}
"""Models by MODEL_SIZE or SIZE (pretrain.py:216-240; train.py), and the one that is fine-tuned."""
_OTHERS = {
    "bert": "BERT", "dlrm": "DLRM, a recommender", "rgat": "RGAT, a graph network", "gnn": "a graph network",
    "retinanet": "RetinaNet, a detector", "ssd": "SSD, a detector", "flux": "FLUX, a diffusion model",
    "stable_diffusion": "Stable Diffusion", "unet3d": "3D U-Net", "resnet": "ResNet", "rnnt": "RNN-T",
    "maskrcnn": "Mask R-CNN",
}  # fmt: skip
"""Benchmarks without a language model of Megatron's layers, by words of their folders."""
_HARNESS = re.compile(r"\$\{oc\.env:(\w+),([^{},]*)\}")
_LENGTH = re.compile(r"^\s*encoder_seq_length:\s*(\d{1,7})\s*$", re.M)
_NO_SIZES = ("seq-length", "max-position-embeddings", "mtp-num-layers", "use-flash-attn")
_PRETRAINING = "custom.yaml"
_MOST_YAML = 2**20


class MlperfConfiguration(Launch):
    """A configuration; see `Launch`.

    `adapters` are what it trains beside frozen weights; None: all weights train.

    Parameters
    ----------
    script : ShellScript
    register_path : Path, optional
        The user's folder of registrations.

    Raises
    ------
    InputError
        When it is of another benchmark, or lacks a degree or a batch.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, register_path: Path | None = None) -> None:
        self.file, self.text = script.file, script.text
        stated = _exported(script)
        self._stated = stated
        tunes = tuning.is_tuning(self.file, stated)
        _refuse_others(self.file, stated, tunes=tunes)
        notes = list(script.notes)
        job = _tuning(self.file, stated) if tunes else _pretraining(self.file, stated)
        self.adapters = job.adapters
        self.one_copy = job.one_copy or is_blackwell(self.file)
        flags = job.flags
        self._variables = {name: variable for name, variable, _ in flags}
        sizes = self._sizes(job, register_path, notes)
        notes.append(f"model {job.size}, sequences of {job.length:,} tokens, by the harness")
        starting = [_flag(each) for each in flags if each[0] in WORLD_FLAGS]
        rest = [_flag(each) for each in flags if each[0] not in WORLD_FLAGS]
        fixed: tuple[Stated, ...] = (
            ("seq-length", "", (str(job.length),)),
            ("max-position-embeddings", "", (str(job.length),)),
            ("bf16", "", ()),
            ("grad-reduce-in-bf16", "", ()),
            ("hidden-dropout", "", ("0.0",)),
            ("attention-dropout", "", ("0.0",)),
            ("no-create-attention-mask-in-dataloader", "", ()),
        )
        self.flags = Flags(
            self.file, [*starting, *sizes, *rest, *map(_flag, fixed)], len(starting), self._variable_of
        ).of_other_tool()
        if self.one_copy and self.flags.has("fp8-format"):
            why = "the harness makes transposes again" if job.one_copy else "as Blackwell's GEMMs read it both ways"
            notes.append(f"weights in FP8 have one copy, {why}")
        self.notes = tuple(notes)
        cure = "solve with -write n: the harness splits layers evenly, by ASYM_PP_EMBED and ASYM_PP_LOSS"
        self.plan_error = InputError("cannot state the layers of each stage", file=self.file, cure=cure)

    @classmethod
    def read(cls, path: Path, register_path: Path | None = None) -> MlperfConfiguration:
        """Read a script with the files that it takes in; see `ShellScript.read`."""
        return cls(ShellScript.read(path), register_path)

    def _sizes(self, job: _Job, register_path: Path | None, notes: list[str]) -> list[Flag]:
        """The model's sizes as flags, and the model where no variable changes its layers."""
        if job.size not in _MODELS:
            known = ", ".join(name for name in _MODELS if name != tuning.MODEL)
            problem, cure = "is no model that is read", f"one of {known} is"
            raise InputError(problem, file=self.file, field="MODEL_SIZE", value=job.size, cure=cure)
        model, remarks = named_model(_MODELS[job.size], self.file, "MODEL_SIZE", register_path)
        notes += remarks
        wanted = job.stated.get("OVERWRITTEN_NUM_LAYERS", "")
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
        asked = {name: text for name, text in self._stated.items() if text.lower() not in NOTHING}
        return own.unmodelled([(name, text) for name, text in asked.items() if own.find(name) is not None])

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


@dataclass(frozen=True)
class _Job:
    """What a configuration states, by its harness: model, tokens of a sample, flags; `stated` are its variables."""

    stated: Mapping[str, str]
    size: str
    length: int
    flags: list[Stated]
    adapters: Adapters | None = None
    one_copy: bool = False


def _pretraining(file: Path, stated: Mapping[str, str]) -> _Job:
    harness = _harness(file, _PRETRAINING)
    values = Variables(file, stated, {**DEFAULTS, **_defaults(harness)})
    amd = "TENSOR_MODEL_PARALLEL" not in stated and "GBS" in stated
    match = _LENGTH.search(harness)
    size = values.text("SIZE" if amd else "MODEL_SIZE").lower()
    return _Job(
        stated, size, int(match[1]) if match else SEQUENCE, [*(amd_flags(values) if amd else nemo_flags(values))]
    )


def _tuning(file: Path, stated: Mapping[str, str]) -> _Job:
    harness = _harness(file, tuning.YAML)
    values = Variables(file, stated, tuning.tuning_defaults(file, harness, _defaults(harness), stated))
    return _Job(
        stated,
        tuning.MODEL,
        values.number("MAX_SEQLEN", SEQUENCE),
        [*tuning.tuning_flags(values, harness)],
        tuning.tuning_adapters(values),
        tuning.transposes_again(file, harness, stated),
    )


def _exported(script: ShellScript) -> dict[str, str]:
    """The variables that the script settles, and those of its start."""
    values: dict[str, str] = {}
    for name, variable in {**script.outside, **script.variables}.items():
        if variable.words and not variable.words[0].unknown and len(variable.words[0].text) < 1000:
            values[name] = variable.words[0].text
    return values


def _refuse_others(file: Path, stated: Mapping[str, str], *, tunes: bool) -> None:
    """Refuse a configuration of another benchmark, or a part that others take in."""
    words = "/".join(file.absolute().parts[-6:]).lower()
    what = next((title for word, title in _OTHERS.items() if word in words), None)
    if what is not None:
        cure = "give a config_*.sh of llama31_405b, llama31_8b or llama2_70b_lora"
        raise InputError(f"trains {what}, and only language models are planned", file=file, cure=cure)
    degrees = ("DGXNNODES",) if tunes else ("TENSOR_MODEL_PARALLEL", "TP", "PIPELINE_MODEL_PARALLEL")
    if stated.keys().isdisjoint(degrees):
        raise InputError(
            "states a part of an MLPerf configuration and no degrees",
            file=file,
            cure="give the config_SYSTEM_*.sh that takes it in by source",
        )


def _harness(file: Path, name: str) -> str:
    """The text of the harness' YAML near a script; empty where there is none."""
    for folder in (file.absolute().parent, file.absolute().parent.parent):
        for below in ("conf", "src/conf"):
            try:
                return read_text(folder / below / name, limit_bytes=_MOST_YAML)
            except (InputError, OSError):
                continue
    return ""


def _defaults(harness: str) -> dict[str, str]:
    return {name: value.strip() for name, value in _HARNESS.findall(harness)}


def _flag(stated: Stated) -> Flag:
    name, _, words = stated
    return Flag(name, given(f"--{name}"), tuple(map(given, words)))
