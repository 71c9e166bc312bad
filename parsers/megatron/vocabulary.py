"""Vocabulary size of a Megatron or MindSpeed launch: its flags, its tokenizer, else a stated assumption."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.named_model import named_model
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

_ASSUMED = 32000
ALIKE = 1.001
"""Vocabularies that differ by less are one: Code Llama has 16 more entries than LLaMA 2."""
_CURE = "give --padded-vocab-size, --vocab-size, or a tokenizer folder that is there"
_TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokenizers with one published vocabulary, by Megatron's ``--tokenizer-type``."""
_MAX_TOKENIZER_BYTES = 2**27


def read_vocabulary(flags: Flags, shape: tuple[int, ...], notes: list[str]) -> int:
    """The vocabulary as it is trained: padded to ``--make-vocab-size-divisible-by`` times TP.

    Parameters
    ----------
    shape : tuple of int
        Layers, hidden size, attention heads, key-value heads, MLP width and experts (1 where there are none):
        a published model of the register with the same ones, or with the same widths, gives its vocabulary where the
        script names none.
    notes : list of str
        Takes what had to be assumed.
    """
    if flags.has("padded-vocab-size"):
        return flags.integer("padded-vocab-size", high=MAX_SIZE)
    multiple = flags.integer("make-vocab-size-divisible-by", default=128, high=MAX_SIZE)
    multiple *= flags.integer("tensor-model-parallel-size", default=1)
    vocab = flags.integer("vocab-size", default=None, high=MAX_SIZE)
    if vocab is not None:
        return -(-vocab // multiple) * multiple
    vocab, why = _from_tokenizer(flags) or _from_shape(shape, flags) or (_ASSUMED, "an assumption")
    padded = -(-vocab // multiple) * multiple
    notes.append(f"the file does not say the vocabulary: {padded} is taken ({why}); {_CURE}")
    return padded


def _from_tokenizer(flags: Flags) -> tuple[int, str] | None:
    for name in ("tokenizer-name-or-path", "tokenizer-model"):
        flag = flags.by_name.get(name)
        if flag is None or not flag.values or flag.values[0].unknown:
            continue
        folder = flags.file.parent / Path(flag.values[0].text).expanduser()
        for file, count in (("tokenizer.json", _tokens), ("vocab.json", len), ("config.json", _configured)):
            try:
                found = count(json.loads(read_text(folder / file, limit_bytes=_MAX_TOKENIZER_BYTES)))
            except (InputError, OSError, ValueError, TypeError, KeyError, AttributeError):
                continue
            if isinstance(found, int) and 1 <= found <= MAX_SIZE:
                return found, f"counted in {folder / file}"
    flag = flags.by_name.get("tokenizer-type")
    kind = flag.values[0].text if flag is not None and flag.values else ""
    if not kind and "merge-file" in flags.by_name:
        kind = "GPT2BPETokenizer"  # The one tokenizer of Megatron's that reads merges.
    return (_TOKENIZERS[kind], f"that of {kind}") if kind in _TOKENIZERS else _from_name(flags)


def _from_name(flags: Flags) -> tuple[int, str] | None:
    """The vocabulary of the registered model whose tokenizer is named, as in ``meta-llama/Meta-Llama-3-8B``."""
    for name in ("tokenizer-name-or-path", "tokenizer-model"):
        flag = flags.by_name.get(name)
        if flag is None or not flag.values or flag.values[0].unknown:
            continue
        try:
            model, _ = named_model(flag.values[0].text, flags.file, f"--{name}")
        except InputError:
            continue
        return model.vocab, f"that of {model.name}, whose tokenizer --{name} names"
    return None


def _tokens(tokenizer: Any) -> int:
    """Tokens of a Hugging Face ``tokenizer.json``: the highest number and one."""
    added = [each["id"] for each in tokenizer.get("added_tokens", [])]
    vocab = tokenizer["model"]["vocab"]
    return max([len(vocab) - 1, *(vocab.values() if isinstance(vocab, dict) else ()), *added]) + 1


def _configured(config: Any) -> Any:
    return config["vocab_size"]


def _from_shape(shape: tuple[int, ...], flags: Flags) -> tuple[int, str] | None:
    """The vocabulary of the published models with these sizes; of a cut model, of those with its widths.

    A cut model has fewer layers, and may have fewer experts: its widths count, where all models that have them agree.
    Of several that do not, the file's name may begin with one's family (``llama3_tp2_pp2.sh`` for ``llama3-8b``).
    """
    registry = Registry.load()
    models = [registry.model(name) for name in registry.model_names()]
    models = [model for model in models if model.qk_norm is flags.has("qk-layernorm")]
    layers, *widths, experts = shape
    for same, alike in (
        (
            "layers and sizes",
            lambda model: _widths(model) == widths and (model.n_layers, _experts(model)) == (layers, experts),
        ),
        ("widths and experts", lambda model: _widths(model) == widths and _experts(model) == experts),
        ("widths", lambda model: _widths(model) == widths and model.n_layers >= layers),
    ):
        found = [model for model in models if alike(model)]
        if found and max(model.vocab for model in found) <= ALIKE * min(model.vocab for model in found):
            least = min(found, key=lambda model: model.vocab)
            return least.vocab, f"that of {least.name}, which has the same {same}"
        if found:
            named = [model for model in found if _plain(flags.file.stem).startswith(_plain(model.name.split("-")[0]))]
            if len({model.vocab for model in named}) == 1:
                return named[0].vocab, f"that of {named[0].name}, which has the same {same} and the file's name"
            return None
    return None


def _plain(name: str) -> str:
    """Letters and digits of a name; that of a script begins with what it starts."""
    return re.sub(r"^(?:pretrain|tune|train|finetune|sft)", "", re.sub(r"[^a-z0-9]", "", name.lower()))


def _widths(model: ModelSpec) -> list[int]:
    return [model.hidden, model.n_heads, model.n_kv_heads, model.ffn_hidden]


def _experts(model: ModelSpec) -> int:
    return 1 if model.moe is None else model.moe.n_experts
