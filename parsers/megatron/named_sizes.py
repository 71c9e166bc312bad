"""Megatron's flags for the sizes of a model that a file only names, for what counts layers and experts by them."""

from __future__ import annotations

from taylor.parsers.megatron.new_file import model_flags
from taylor.parsers.new_file import NewJob
from taylor.parsers.text.flags import Flag
from taylor.parsers.text.shell_words import Char, Word
from taylor.register.model import ModelSpec

MODEL_FLAGS = frozenset(
    {"num-layers", "moe-layer-freq", "linear-attention-freq", "window-attn-skip-freq", "num-experts", "noop-layers"}
)
"""Flags of a model's layers, which no plan can change where the model is only named."""
_NO_SIZES = (
    "seq-length",
    "max-position-embeddings",
    "mtp-num-layers",
    "use-flash-attn",
    "moe-token-dispatcher-type",
    "moe-grouped-gemm",
)


def size_flags(model: ModelSpec) -> list[Flag]:
    """The model's sizes as flags."""
    return [
        flag(name, None if value is None else str(value).strip('"'))
        for name, value in model_flags(NewJob(model, 1, 1, 1, 1)).items()
        if name not in _NO_SIZES
    ]


def flag(name: str, value: str | None = None) -> Flag:
    """A flag that no text of the file states."""
    return Flag(name, word(f"--{name}"), () if value is None else (word(value),))


def word(text: str) -> Word:
    """A word that no text of the file states."""
    return Word(tuple(Char(char, None) for char in text))
