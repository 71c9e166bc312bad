"""Programs that take Megatron's flags and train nothing, known by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from taylor.base.errors import InputError
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word

PROGRAMS = (
    # Ascend/MindSpeed-LLM c77308a1 convert_ckpt_v2.py, examples/mcore/deepseek3/convert_ckpt_deepseek3.py;
    # NVIDIA/Megatron-LM d98e8a64 tools/checkpoint/convert.py, examples/post_training/modelopt/convert_model.py.
    ("converts a checkpoint", r"(\w+_)?convert(er)?(_\w+)?|\w*(ckpt|checkpoint)\w*"),
    # MindSpeed-LLM c77308a1 preprocess_data.py; Megatron-LM d98e8a64 tools/preprocess_data.py, tools/merge_datasets.py.
    ("prepares data", r"(preprocess|merge_datasets|create_\w+_dataset)\w*"),
    # MindSpeed-LLM c77308a1 inference.py; Megatron-LM d98e8a64 tools/run_text_generation_server.py,
    # examples/inference/advanced/gpt_dynamic_inference.py, examples/post_training/modelopt/generate.py.
    ("generates text", r"\w*(inference|text_generation|generate)\w*"),
    # MindSpeed-LLM c77308a1 evaluation.py; Megatron-LM d98e8a64 examples/post_training/modelopt/mmlu.py.
    ("evaluates a model", r"evaluat\w*|mmlu|validate"),
    # Megatron-LM d98e8a64 examples/post_training/modelopt/quantize.py, prune.py, export.py.
    ("compresses or exports a model", r"quantize|prune|export"),
)
"""Purpose of a program, and the names of its file."""

OTHER_MODELS = (
    # NVIDIA/Megatron-LM d98e8a64 pretrain_t5.py, examples/t5/train_t5_220m_distributed.sh; pretrain_vision_*.py.
    (r"pretrain_t5\.py", "an encoder with a decoder (T5)"),
    (r"pretrain_vision_\w+\.py", "a model of images"),
    # examples/mimo/train.py, whose sizes stand in examples/mimo/model_providers.
    (r"(?:.*/)?mimo/train\.py", "a model of several kinds of input (MIMO), whose sizes stand in Python"),
)
"""Programs that train a model of another kind, and what it is."""
_TRAINS = re.compile(r"\w*train\w*|\w*(finetune|sft)\w*")


def refuse_other_program(script: ShellScript, launch: Iterable[Word]) -> None:
    """Refuse a launch whose program trains nothing, or a model of another kind.

    Parameters
    ----------
    launch : iterable of Word
        The words of the launch command.

    Raises
    ------
    InputError
        With the program and what it does.
    """
    before = ""
    for word in launch:
        name, as_module = word.text.rpartition("/")[2], before == "-m"
        before = word.text
        kind = next((what for names, what in OTHER_MODELS if re.fullmatch(names, word.text)), None)
        if kind is not None:
            cure = "give the script of a language model; the language model's flags alone can be planned"
            raise InputError(f"trains {kind}, which is not read", file=script.file, value=word.text[-60:], cure=cure)
        if as_module and "." in name and not name.startswith("torch."):
            name = f"{name.rpartition('.')[2]}.py"
        if not name.endswith(".py") or _TRAINS.fullmatch(name[:-3]):
            continue
        what = next((does for does, names in PROGRAMS if re.fullmatch(names, name[:-3])), None)
        if what is not None:
            raise InputError(
                f"is no training job: {name} {what}",
                file=script.file,
                cure="give the script that launches the training",
            )
        return  # The first program is what runs; the others are its arguments.
