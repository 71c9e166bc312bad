"""Parameters that axolotl's ``unfrozen_parameters`` train; everything else is frozen.

Each entry is a regular expression, whose dots are dots, for the beginning of a parameter's name in transformers, with a
range of rows behind it that changes no figure: the others' gradients are set to zero. An entry that names the embedding
or the head makes a gradient for the embedding's result, which passes through every layer.

Source: axolotl-ai-cloud/axolotl 067b021c src/axolotl/utils/freeze.py:52-108, 212-290, src/axolotl/train.py:109-116.
"""

from __future__ import annotations

import re

from taylor.base.errors import InputError, shortened
from taylor.parsers.frozen import frozen_outside
from taylor.parsers.text.fields import Fields
from taylor.register.adapters import EMBEDDING, HEAD
from taylor.register.frozen import with_frozen_layers
from taylor.register.model import ModelSpec

UNFROZEN = "unfrozen_parameters"
_MOST_PATTERNS, _LONGEST, _REPEATS = 64, 80, 2
_ROWS = re.compile(r"(.+)\[[0-9]*(?::[0-9]*)?\]\Z")
_READ = re.compile(r"(?:[\w.^$*+-]|\[[0-9-]+\])+\Z")
"""Expressions of which the longest name takes little time: no groups, classes of digits."""
_ENDS = {EMBEDDING: "model.embed_tokens.weight", HEAD: "lm_head.weight"}
_IN_LAYER = (
    *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
_OF_MLP = tuple(f"{name}.weight" for name in ("gate_proj", "up_proj", "down_proj"))


def with_unfrozen(fields: Fields, model: ModelSpec, notes: list[str]) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model as the entries train it, and the parts outside its layers that are frozen (`TrainingRules.frozen`).

    Raises
    ------
    InputError
        When an entry trains a part of a layer, is no list of such expressions, or none trains anything.
    """
    texts = fields.raw(UNFROZEN)
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or len(texts) > _MOST_PATTERNS or not all(isinstance(each, str) for each in texts):
        raise fields.error(
            UNFROZEN, f"must be a list of at most {_MOST_PATTERNS} expressions", cure="write - model.layers.3[01]."
        )
    patterns = [_pattern(fields, text) for text in texts]
    trains = [_layer_trains(fields, model, at, patterns) for at in range(model.n_layers)]
    ends = [end for end, name in _ENDS.items() if any(pattern.match(name) for pattern in patterns)]
    if model.tied_embedding and EMBEDDING in ends:
        ends = list(_ENDS)
    if not any(trains) and not ends:
        problem = "trains no layer, embedding or head by the names of transformers' LLaMA"
        raise fields.error(
            UNFROZEN, problem, shortened(", ".join(texts), 80), "write model.layers.3[01]. for two layers"
        )
    reached = EMBEDDING in ends or any(word in text for text in texts for word in ("lm_head", "embed_tokens"))
    result = with_frozen_layers(model, trains, below=reached)
    return result, frozen_outside(result, ends, notes)


def _pattern(fields: Fields, text: str) -> re.Pattern[str]:
    ranged = _ROWS.match(text[:_LONGEST])
    name = ranged[1] if ranged else text
    cure = "name whole layers, as model.layers.2[4-9]."
    if len(text) > _LONGEST or not _READ.match(name) or sum(map(name.count, "*+")) > _REPEATS:
        raise fields.error(UNFROZEN, "is an expression that is not read", shortened(text, 60), cure)
    try:
        return re.compile(re.sub(r"\.(?!\+)", r"\\.", name))
    except re.error as error:
        raise fields.error(UNFROZEN, f"is no regular expression ({error})", shortened(text, 60), cure) from None


def _layer_trains(fields: Fields, model: ModelSpec, at: int, patterns: list[re.Pattern[str]]) -> bool:
    """Whether all matrices of a layer train.

    Raises
    ------
    InputError
        When a part of them does.
    """
    names = [f"model.layers.{at}.{name}" for name in (*_IN_LAYER, *_block(model))]
    found = [any(pattern.match(name) for pattern in patterns) for name in names]
    if any(found) and not all(found):
        name = names[found.index(False)]
        problem = f"trains a part of layer {at} ({name} is frozen), which is not modelled"
        raise InputError(problem, file=fields.file, field=UNFROZEN, cure="name whole layers, as model.layers.2[4-9].")
    return all(found)


def _block(model: ModelSpec) -> list[str]:
    if model.moe is None:
        return [f"mlp.{name}" for name in _OF_MLP]
    block = ("mlp", "block_sparse_moe")
    return [f"{each}.{name}" for each in block for name in ("gate.weight", *(f"experts.0.{one}" for one in _OF_MLP))]
