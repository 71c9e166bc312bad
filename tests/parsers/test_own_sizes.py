"""Sizes of models by their hub names as litgpt's own table has them, where a clone lies (`benchmarks/reliability`)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.base.errors import InputError
from taylor.parsers.named_model import named_model

REVISION = "26857050"
OTHER_VOCABULARY = {
    # The rows of image tokens, which text alone does not use, are left out of litgpt's table.
    "google/gemma-3-4b-it": 64,
    "google/gemma-3-12b-it": 64,
    "google/gemma-3-27b-it": 64,
    # Its table has the rows of the later Mixtral-8x22B-Instruct-v0.1.
    "mistralai/Mixtral-8x22B-v0.1": -768,
    "mistralai/Mixtral-8x22B-Instruct-v0.1": -768,
}
"""Rows that a registered model has more."""


def table() -> list[Any]:
    try:
        text = source("litgpt", REVISION, "litgpt/config.py")
    except NotHere as here:
        pytest.skip(str(here))
    module = loaded("litgpt_config", without_imports(text, "torch", "litgpt"), torch=SimpleNamespace())
    return [module.Config(**each) for each in module.configs]


def test_a_hub_name_means_the_sizes_that_litgpt_has_for_it() -> None:
    found = set()
    for own in table():
        name = f"{own.hf_config['org']}/{own.hf_config['name']}"
        try:
            model, _ = named_model(name, Path("train.sh"), "--model")
        except InputError:
            continue
        found.add(name)
        sizes = (own.n_layer, own.n_embd, own.n_head, own.n_query_groups, own.head_size, own.intermediate_size)
        ours = (model.n_layers, model.hidden, model.n_heads, model.n_kv_heads, model.head_dim, model.ffn_hidden)
        assert ours == sizes, name
        assert model.vocab - OTHER_VOCABULARY.get(name, 0) in (own.vocab_size, own.padded_vocab_size), name
    assert len(found) >= 130 and set(OTHER_VOCABULARY) <= found
    assert {"nvidia/Llama-3.1-Nemotron-70B-Instruct-HF", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B"} <= found
