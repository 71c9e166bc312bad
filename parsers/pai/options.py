"""The options that Pai-Megatron-Patch adds to Megatron's, as Megatron's own where they say the same.

Sources: alibaba/Pai-Megatron-Patch a098ca5 megatron_patch/arguments.py and megatron_patch/tokenizer/__init__.py.
"""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.megatron.hybrid import EXPERTS, GATED_DELTA_NET, HYBRID_BEFORE, MAMBA, MLP
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.shell_start import given

_HUGGING_FACE, _QWEN3_NEXT = "huggingface", "pretrain_qwen3_next.py"
_FROZEN = ("freeze-LM", "freeze-llm")
_FIXED = {
    "BloomTokenizerFromHF": 250880,
    "ChatGLMTokenizerFromHF": 130528,
    "GLM10BZHTokenizerFromHF": 50048,
    "IcetkGLM130BTokenizer": 150528,
}
"""Rows of the vocabulary that the patch states by tokenizer (tokenizer/__init__.py:61-73)."""
_PUBLISHED = {
    "LLamaTokenizer": 32000,
    "LLama2Tokenizer": 32000,
    "MixtralTokenizer": 32000,
    "LLama3Tokenizer": 128000,
    "Qwen2Tokenizer": 151643,
    "Qwen3Tokenizer": 151643,
    "FalconTokenizer": 65024,
    "StarcoderTokenizerFromHF": 49152,
    "YiTokenizer": 64000,
}
"""Tokens of the published tokenizer.json of these tokenizers, without added ones: the patch adds --extra-vocab-size
(tokenizer/__init__.py:96, 111, 217, 283)."""


def refuse_other_models(options: Flags) -> None:
    """Refuse a job whose layers are not Megatron's, or that trains none of them.

    Raises
    ------
    InputError
        With the option or the program.
    """
    for program in options.start.programs:
        if "evaluate" in program:
            cure = "give the script that launches the training"
            raise InputError(f"is no training job: {program} evaluates a model", file=options.file, cure=cure)
        if program.startswith("ds_train_"):
            raise InputError(
                f"starts {program}, a Hugging Face model under DeepSpeed, which has no pipeline stages to plan",
                file=options.file,
                cure="give the script of the same model that starts Megatron: run_pretrain_megatron_*.sh",
            )
    if options.text("transformer-type", default="megatron") == _HUGGING_FACE:
        problem = "builds the layers of Hugging Face, which has no pipeline stages to plan"
        cure = "give the script of the same model that starts Megatron: run_pretrain_megatron_*.sh"
        raise options.error("transformer-type", problem, _HUGGING_FACE, cure)
    for name in _FROZEN:
        if options.has(name):
            problem = "freezes the language model and trains the parts beside it, which are not planned"
            raise options.error(name, problem, cure="leave it out to plan the training of all weights")


def own_stack(options: Flags) -> str | None:
    """The pattern of layers of a program whose letters stand for layers of the patch's own, in Megatron's letters.

    Qwen3-Next builds gated delta nets for Mamba's letter and experts for the MLP's
    (examples/qwen3_next/pretrain_qwen3_next.py:36-62, megatron_patch/model/qwen3_next/layer_specs.py:92-142).
    """
    if _QWEN3_NEXT not in options.start.programs or not options.has(HYBRID_BEFORE):
        return None
    return str(options.text(HYBRID_BEFORE)).translate(str.maketrans(MAMBA + MLP, GATED_DELTA_NET + EXPERTS))


def completed(options: Flags, notes: list[str]) -> Flags:
    """The flags with the patch's options as Megatron's.

    ``--intermediate-size`` is the MLP's width in the patch's own layers (model/llama/transformer.py:112-143,
    model/baichuan/transformer.py:109-140); ``--n-head-kv`` are key and value heads; ``--shared-moe-ffn-hidden-size``
    is the shared expert's width.
    """
    stated: dict[str, str | None] = {}
    width = options.integer("intermediate-size", default=None, high=MAX_SIZE)
    if width is not None:
        stated["ffn-hidden-size"] = str(width)
    heads = options.integer("n-head-kv", default=None)
    if heads is not None and not options.has("num-query-groups"):
        stated |= {"group-query-attention": None, "num-query-groups": str(heads)}
    shared = options.integer("shared-moe-ffn-hidden-size", default=None, high=MAX_SIZE)
    if shared is not None and options.has("enable-shared-expert"):
        stated["moe-shared-expert-intermediate-size"] = str(shared)
    pattern = own_stack(options)
    if pattern is not None:
        stated |= {HYBRID_BEFORE: pattern, "attention-output-gate": None, "moe-shared-expert-gate": None}
    rows = None if options.has("padded-vocab-size", "vocab-size") else _vocabulary(options, notes)
    if rows is not None:
        stated["padded-vocab-size"] = str(rows)
    if not stated:
        return options
    flags = [Flag(name, given(f"--{name}"), () if value is None else (given(value),)) for name, value in stated.items()]
    return options.overlaid(flags)


def _vocabulary(options: Flags, notes: list[str]) -> int | None:
    """Rows of the embedding by the patch's tokenizer; None where its size is not known."""
    flag = options.by_name.get("patch-tokenizer-type")
    kind = flag.values[0].text if flag is not None and flag.values else ""
    if kind in _FIXED:
        return _FIXED[kind]
    tokens = _PUBLISHED.get(kind)
    if tokens is None:
        return None
    extra = int(options.integer("extra-vocab-size", default=0, low=0, high=MAX_SIZE))
    notes.append(f"a vocabulary of {tokens + extra:,} is taken: the published tokenizer's {tokens:,} and {extra} more")
    return tokens + extra
