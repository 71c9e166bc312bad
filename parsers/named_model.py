"""A model that a launch names: by a folder with its config.json, or by its Hugging Face name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.huggingface.file import read_model_file
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

_VARIANTS = re.compile(
    r"-(?:instruct|base|chat|it|thinking|think|reasoning|fp8|bf16|fp16|hf|bnb|nf4|linearized|int4|int8|4bit|8bit|unsloth|awq|gptq|preview|pt|mcore|dequantized|deduped|sft|dpo|rlvr|\d{4})$",
    re.IGNORECASE,
)
"""Ends of a name that change a model's weights and not its shape, as in ``Qwen3-30B-A3B-Instruct-2507-FP8``."""
_PURPOSES = re.compile(r"-(?:reranker|embedding)(?=-)|-(?:math|coder)(?=-\d)", re.IGNORECASE)
"""The same in front of a name's size, as in ``Qwen2.5-Coder-7B``."""
_MAX_ENDS = 6
_VENDORS = re.compile(r"^(?:NVIDIA|Meta|AI21)-", re.IGNORECASE)
_SAME_SHAPE = {
    "DeepSeek-R1-Distill-Qwen-7B": "Qwen2.5-7B",
    "DeepSeek-R1-Distill-Qwen-14B": "Qwen2.5-14B",
    "DeepSeek-R1-Distill-Qwen-32B": "Qwen2.5-32B",
    "DeepCoder-14B-Preview": "Qwen2.5-14B",
    "cogito-v1-preview-llama-3B": "Llama-3.2-3B",
    "cogito-v1-preview-qwen-14B": "Qwen2.5-14B",
    "Plano-Orchestrator-4B": "Qwen3-4B",
    "DeepSeek-R1-Distill-Llama-8B": "Llama-3.1-8B",
    "DeepSeek-R1-Distill-Llama-70B": "Llama-3.3-70B",
    "Llama-3.1-Tulu-3-8B-SFT": "Llama-3.1-8B",
    "Llama-3.1-Tulu-3-8B": "Llama-3.1-8B",
    "Sparse-Llama-3.1-8B-2of4": "Llama-3.1-8B",
    "DeepSeek-R1-0528-Qwen3-8B": "Qwen3-8B",
    "OpenReasoning-Nemotron-7B": "Qwen2.5-7B",
    "OpenReasoning-Nemotron-14B": "Qwen2.5-14B",
    "OpenReasoning-Nemotron-32B": "Qwen2.5-32B",
    "QwenLong-L1-32B": "Qwen2.5-32B",
    "Llama-3.1-Nemotron-70B-Instruct-HF": "Llama-3.1-70B",
    "Hermes-3-Llama-3.1-8B": "Llama-3.1-8B",
    "Hermes-3-Llama-3.1-70B": "Llama-3.1-70B",
    "Hermes-3-Llama-3.1-405B": "Llama-3.1-405B",
    "vicuna-7b-v1.5": "Llama-2-7b",
    "vicuna-13b-v1.5": "Llama-2-13b",
    "tulu-2-7b": "Llama-2-7b",
    "tulu-2-13b": "Llama-2-13b",
    "Llama-3.1-Tulu-3-8B-DPO": "Llama-3.1-8B",
    "Hermes-2-Pro-Llama-3-8B": "Meta-Llama-3-8B",
    "Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B-v0.1",
    "Mixtral-8x22B-Instruct-v0.1": "Mixtral-8x22B-v0.1",
    "Mistral-7B-Instruct-v0.1": "Mistral-7B-v0.1",
    "zephyr-7b-beta": "Mistral-7B-v0.1",
    "OpenHermes-2.5-Mistral-7B": "Mistral-7B-v0.1",
    "DeepSeek-Coder-V2-Lite-Base": "DeepSeek-V2-Lite",
    "DeepSeek-Coder-V2-Lite-Instruct": "DeepSeek-V2-Lite",
}
"""Models of another's shape, which their cards name as what they were trained from.

Sizes in a public file: Lightning-AI/litgpt 26857050 litgpt/config.py:928, 3151-3188 (Llama-3.1-Nemotron-70B,
R1-Distill-Llama). The base alone: deepseek-ai/DeepSeek-R1 README.md, «DeepSeek-R1-Distill Models»; modelscope/ms-swift
3602360a swift/model/models/qwen.py:503, 566 (QwenLong-L1 as qwen2, R1-0528-Qwen3-8B as qwen3); mlc-ai/mlc-llm 79d603f0
python/mlc_llm/model/llava/llava_model.py:104 (vicuna-7b); arXiv:2505.17667 (QwenLong-L1), arXiv:2408.11857 (Hermes 3).
Of the others (of agentica-org, deepcogito, katanemo, neuralmagic, allenai, whose Tulu 3 adds eight rows to the
vocabulary, vicuna-13b and nvidia's OpenReasoning; Hermes 2 and OpenHermes, which add 32 rows and two; Tulu 2, zephyr,
DeepSeek-Coder-V2-Lite) only the cards say it. litgpt's table (26857050 litgpt/config.py) has the Instruct models of
Mistral; Mixtral 8x22B's has 768 rows more.
"""


FLAG = "--model_as"


@dataclass
class _Stated:
    """A model that stands for the one that a file names, and whether a file named one."""

    shape: str
    used: bool = False


_STATED: ContextVar[_Stated | None] = ContextVar("model_as", default=None)


@contextmanager
def model_as(shape: str | None) -> Iterator[None]:
    """Take the model that a file names for another: a fine-tuned checkpoint has the shape of what it was made from.

    Parameters
    ----------
    shape : str or None
        A registered model, or a config.json or its folder; None takes every name for itself.

    Raises
    ------
    InputError
        When no file that was read names a model.
    """
    stated = None if shape is None else _Stated(shape)
    token = _STATED.set(stated)
    try:
        yield
    finally:
        _STATED.reset(token)
    if stated is not None and not stated.used:
        cure = "leave it out: the file states the sizes of its model itself"
        raise InputError("stands for a model that no file names", field=FLAG, value=shape, cure=cure)


def named_model(
    name: str, file: Path, field: str, register_path: Path | None = None
) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of a name, and what was assumed of it.

    Parameters
    ----------
    name : str
        A folder, seen from the file's or from the working folder, or ``owner/model``.
    file : Path
        The file that names it.
    field : str
        Place of the name in the file, for errors.
    register_path : Path, optional
        The user's folder of registrations.

    Raises
    ------
    InputError
        When the folder's config.json is wrong, or there is no folder and no registered model of that name.
    """
    stated = _STATED.get()
    if stated is not None:
        stated.used = True
        model, notes = _shaped_as(stated.shape, register_path)
        return model, (f"{field} {name} has the shape of {stated.shape} by {FLAG}", *notes)
    for folder in (Path(name), file.absolute().parent / name):
        config = folder / "config.json"
        try:
            if config.is_file():
                return read_model_file(config)
        except OSError:  # A name that no path can have.
            break
    registry = Registry.load(register_path)
    last = name.rstrip("/").rpartition("/")[2]
    for shorter in _shorter(_SAME_SHAPE.get(last, last)):
        try:
            model = registry.model(shorter)
        except InputError as error:
            if error.field != "--model":
                raise  # The registration itself is wrong.
            continue
        notes = () if shorter == name else (f"{field} {name} is taken for the registered model {model.name}",)
        return model, notes
    cure = (
        f"say whose shape it has ({FLAG} NAME, one of `taylor models`, or its config.json), put its config.json into a "
        f"folder {name} beside the script, or register it (--register_path)"
    )
    problem = "is no registered model, and no folder with a config.json"
    raise InputError(problem, file=file, field=field, value=name, cure=cure)


def _shaped_as(shape: str, register_path: Path | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model that a user names for another's shape.

    Raises
    ------
    InputError
        When it is neither registered nor a config.json.
    """
    path = Path(shape)
    config = path / "config.json" if path.is_dir() else path
    if config.suffix == ".json":
        return read_model_file(config)
    try:
        return Registry.load(register_path).model(shape), ()
    except InputError as error:
        if error.field != "--model":
            raise  # The registration itself is wrong.
        raise InputError(error.problem, field=FLAG, value=shape, cure=error.cure) from None


def _shorter(name: str) -> Iterator[str]:
    """The name, and the name without the parts that say nothing of its shape."""
    for _ in range(_MAX_ENDS):
        # Some models for code have a shape of their own: the purpose goes last.
        yield from dict.fromkeys(
            without for said in (name, _PURPOSES.sub("", name)) for without in (said, _VENDORS.sub("", said))
        )
        cut = _VARIANTS.sub("", name)
        if cut == name:
            return
        name = cut
