"""Recipe classes of Automodel: which a file names, and why some are not planned.

Source: NVIDIA-NeMo/Automodel 36044ad3 nemo_automodel/recipes, and nemo_automodel/cli/app.py:107-123 (a recipe is named
by its class, or by ``_target_``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from taylor.base.errors import shortened
from taylor.parsers.text.fields import Fields

TELLTALE = re.compile(
    r"\A(?![\s\S]*^policy\s*:)(?:"
    r"(?=[\s\S]*^recipe\s*:\s*(?:nemo_automodel[\w.]*\.)?\w*Recipe\w*[ \t]*(?:#[^\n]*)?$)"
    r"|(?=[\s\S]*^(?:step_scheduler|recipe|mining)\s*:)(?=[\s\S]*\b(?:nemo_automodel|NeMoAuto\w+|flow_matching:))"
    r"|(?=[\s\S]*^inference\s*:)(?=[\s\S]*^vae\s*:))",
    re.MULTILINE,
)
"""Found in its files: a recipe by its class, or a section of its own beside a class of the package. NeMo RL's policies
name such classes too."""
NEXT_TOKEN, BENCHMARK, VISION = (
    "TrainFinetuneRecipeForNextTokenPrediction",
    "BenchmarkingRecipeForNextTokenPrediction",
    "FinetuneRecipeForVLM",
)
PLANNED = (NEXT_TOKEN, BENCHMARK, VISION)
_TWO_MODELS = "runs a teacher forward beside the model that trains, which is not modelled"
_DRAFT = "trains a draft model on the hidden states of a frozen target, which is not modelled"
_PAIRS = "trains an encoder of queries and passages by a contrastive loss, and no language model"
_NOISE = "trains a denoiser of text, whose masked and clean passes are not modelled"
_IMAGES = "trains a diffusion model of images or video, and no language model"
_REASONS = (
    (r"KnowledgeDistillation|EmbeddingDistill", _TWO_MODELS),
    (r"Eagle|DFlash|DSpark|Domino|JetSpec|Vispec|PEagle", _DRAFT),
    (r"BiEncoder|CrossEncoder", _PAIRS),
    (r"SequenceClassification", "trains a classifier of sequences, whose head is not modelled"),
    (r"DiffusionLM|DiffusionGemma", _NOISE),
    (r"Diffusion", _IMAGES),
    (r"Multimodal", "trains a model that makes images too, whose parts are not described"),
)
"""By a part of the class's name."""
_CURE = f"give a recipe of {NEXT_TOKEN}, {BENCHMARK} or {VISION}"


def recipe_of(top: Fields, notes: list[str]) -> str:
    """The recipe class of a file, without its module.

    Raises
    ------
    InputError
        When it trains something else than one language model.
    """
    written = top.raw("recipe")
    if isinstance(written, Mapping):
        written = written.get("_target_")
    if written is None:
        _refuse_without_recipe(top)
        notes.append(f"the file names no recipe, as files of examples/llm_finetune/finetune.py: {NEXT_TOKEN} is taken")
        return NEXT_TOKEN
    name = str(written).strip().rpartition(".")[2]
    if name in PLANNED:
        return name
    for part, why in _REASONS:
        if re.search(part, name):
            raise top.error("recipe", why, shortened(name, 80), _CURE)
    raise top.error("recipe", "is no recipe class that is known here", shortened(name, 80), _CURE)


def _refuse_without_recipe(top: Fields) -> None:
    if top.has("flow_matching"):
        raise top.error("flow_matching", _IMAGES, cure=_CURE)
    if top.has("inference"):
        raise top.error("inference", "makes images or video with a trained model, and trains nothing", cure=_CURE)
    if top.has("mining"):
        raise top.error("mining", "mines negatives for retrieval, and trains nothing", cure=_CURE)
    for name in ("dflash", "precompute", "recipe_args"):
        if top.has(name):
            raise top.error(name, _DRAFT, cure=_CURE)


def plain(value: Any) -> Any:
    """A file's values as the program takes them: words for nothing, truth and numbers are no text.

    Source: nemo_automodel/components/config/loader.py:125-180, ``translate_value``.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, str):
        word = value.strip()
        if word in _WORDS:
            return _WORDS[word]
        if re.fullmatch(r"-?\d{1,15}", word):
            return int(word)
    return value


_WORDS = {"none": None, "None": None, "true": True, "True": True, "false": False, "False": False}
