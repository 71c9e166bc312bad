"""The vocabulary of a Primus experiment that names a published tokenizer and no size.

Primus takes the size from the tokenizer that it loads by that name (AMD-AGI/Primus fd1eeabb primus/backends/megatron/
patches/tokenizer_builder_patches.py); the published model's is taken for it, which is the tokenizer's or some unused
rows more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taylor.register.registry import Registry

_SIZE, _PADDED, _NAME = "vocab_size", "padded_vocab_size", "tokenizer_model"
_MODELS = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "qwen3-0.6b",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": "qwen2.5-14b",
    "deepseek-ai/DeepSeek-V2": "deepseek-v2",
    "deepseek-ai/DeepSeek-V2-Lite": "deepseek-v2-lite",
    "deepseek-ai/DeepSeek-V3": "deepseek-v3-671b",
    "meta-llama/Llama-2-13b-hf": "llama2-13b",
    "meta-llama/Llama-2-70b-hf": "llama2-70b",
    "meta-llama/Llama-2-7b-hf": "llama2-7b",
    "meta-llama/Llama-3.1-405B": "llama3-405b",
    "meta-llama/Llama-3.1-70B": "llama3-70b",
    "meta-llama/Llama-3.1-8B": "llama3-8b",
    "meta-llama/Llama-3.2-1B": "llama-3.2-1b",
    "meta-llama/Llama-3.3-70B-Instruct": "llama3-70b",
    "meta-llama/Llama-4-Maverick-17B-128E": "llama-4-maverick",
    "meta-llama/Llama-4-Scout-17B-16E": "llama-4-scout",
    "meta-llama/Meta-Llama-3-70B": "llama3-70b",
    "meta-llama/Meta-Llama-3-8B": "llama3-8b",
    "meta-llama/Meta-Llama-3.2-1B": "llama-3.2-1b",
    "meta-llama/Meta-Llama-3.2-3B": "llama-3.2-3b",
    "MiniMaxAI/MiniMax-M2.5": "minimax-m2",
    "mistralai/Mixtral-8x22B-v0.1": "mixtral-8x22b",
    "mistralai/Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "moonshotai/Kimi-K2-Instruct": "kimi-k2",
    "Qwen/Qwen2.5-14B": "qwen2.5-14b",
    "Qwen/Qwen2.5-32B": "qwen2.5-32b",
    "Qwen/Qwen2.5-3B": "qwen3-4b",
    "Qwen/Qwen2.5-72B": "qwen2.5-72b",
    "Qwen/Qwen2.5-7B": "qwen2.5-7b",
    "Qwen/Qwen3-14B": "qwen3-14b",
    "Qwen/Qwen3-235B-A22B": "qwen3-235b-a22b",
    "Qwen/Qwen3-30B-A3B": "qwen3-30b-a3b",
    "Qwen/Qwen3-32B": "qwen3-32b",
    "Qwen/Qwen3-4B": "qwen3-4b",
    "Qwen/Qwen3-8B": "qwen3-8b",
    "Qwen/Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
}
"""Registered models by the tokenizers that Primus' presets name (fd1eeabb primus/configs/models/megatron). The three of
1.5 B and 3 B parameters and qwen3-4b have one vocabulary, 151,936 rows by their config.json."""


def named_vocabulary(options: Mapping[str, Any]) -> tuple[int, str] | None:
    """The vocabulary, and the sentence that says where it is from; None where the options state it or name none."""
    name = options.get(_NAME)
    if options.get(_SIZE) is not None or options.get(_PADDED) is not None or not isinstance(name, str):
        return None
    known = _MODELS.get(name)
    if known is None:
        return None
    size = Registry.load().model(known).vocab
    return size, f"the file does not say the vocabulary: {size} is taken, that of models with the tokenizer {name}"
