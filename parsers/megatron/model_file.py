"""The JSON of MindSpeed-MM's ``--mm-model``: sizes and layers of its language model, read as flags of the launch.

The JSON takes precedence over the script's flags: MindSpeed-MM builds the language model of ``text_decoder``
(Ascend/MindSpeed-MM 57069cd5 pretrain_vlm.py:99-104, ``get_model_config``). ``pipeline_num_layers`` has the layers of
each stage; with ``--virtual-pipeline-model-parallel-size``, which is MindSpeed-MM's alone, a row of them for each
virtual stage (mindspeed_mm/models/vlm_model.py:312-326).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.base.files import read_text
from taylor.cost_model.job.tower import TowerRun
from taylor.parsers.megatron.kinds import LAYER_LIST, NOOPS
from taylor.parsers.megatron.own_plan import LAYOUT, PER_CHUNK, PER_RANK
from taylor.parsers.megatron.tower_file import (
    DECODER,
    DUMMY_OPTIMIZER,
    PLACES,
    VIRTUAL,
    Launch,
    read_language,
    read_spread,
    read_towers,
    spread_note,
    unable_to_spread,
)
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.shell_words import Char, Word
from taylor.register.tower import VISION

MODEL_FILE, DATA_FILE = "mm-model", "mm-data"
DISAGGREGATED = "layerwise_disaggregated_training"
"""A key of ``patch`` (Ascend/MindSpeed-MM 57069cd5 docs/zh/features/layerwise_disaggregated_training.md:171-203)."""
MAX_BYTES = 2**20
_FOLDERS = 8
"""Folders above a script from which its path to the JSON may count: it is written from the repository's root."""
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
_VALUES = {
    "num_layers": "num-layers",
    "hidden_size": "hidden-size",
    "ffn_hidden_size": "ffn-hidden-size",
    "num_attention_heads": "num-attention-heads",
    "num_query_groups": "num-query-groups",
    "kv_channels": "kv-channels",
    "vocab_size": "vocab-size",
    "max_position_embeddings": "max-position-embeddings",
    "position_embedding_type": "position-embedding-type",
    "normalization": "normalization",
    "num_moe_experts": "num-experts",
    "moe_router_topk": "moe-router-topk",
    "moe_intermediate_size": "moe-ffn-hidden-size",
    "moe_ffn_hidden_size": "moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "moe-shared-expert-intermediate-size",
    "recompute_granularity": "recompute-granularity",
    "recompute_method": "recompute-method",
    "recompute_num_layers": "recompute-num-layers",
}
_SWITCHES = {
    "group_query_attention": "group-query-attention",
    "untie_embeddings_and_output_weights": "untie-embeddings-and-output-weights",
    "add_qkv_bias": "add-qkv-bias",
    "disable_bias_linear": "disable-bias-linear",
    "gated_linear_unit": "swiglu",
    "qk_layernorm": "qk-layernorm",
    "use_qk_norm": "qk-layernorm",
    "sequence_parallel": "sequence-parallel",
    "moe_grouped_gemm": "moe-grouped-gemm",
    "bf16": "bf16",
}
_SHARED = ("sequence-parallel", "bf16")
"""Of these flags, those that a script states for the language model too. The others it takes from the JSON alone: a
script's values reach it where they are fields of `ModelParallelConfig` (Ascend/MindSpeed-MM 57069cd5
mindspeed_mm/utils/transformer_model_config.py:36-40), and what is around the layers has the JSON's
(mindspeed_mm/models/vlm_model.py:90-111)."""
_OF_JSON = tuple(name for name in (*_VALUES.values(), *_SWITCHES.values()) if name not in _SHARED)
LAYER_FLAGS = (LAYER_LIST, LAYOUT, NOOPS)
"""Flags that place layers in a script, and not where a JSON does."""


class ModelFile:
    """The JSON that a launch names.

    Parameters
    ----------
    path : Path
    flags : list of Flag
        Its content, as flags.
    tower : TowerRun or None
        The encoders beside the language model.
    notes : tuple of str
        Remarks on it.
    """

    def __init__(
        self, path: Path, flags: list[Flag], tower: TowerRun | None = None, notes: tuple[str, ...] = ()
    ) -> None:
        self.path, self.flags, self.tower, self.notes = path, flags, tower, notes

    def error(self, what: str, cure: str, key: str = PLACES) -> InputError:
        """The error for what would have to be written into it."""
        problem = f"is not written: in a MindSpeed-MM job this file has {what}"
        return InputError(problem, file=self.path, field=f"{DECODER}.{key}", cure=cure)

    def refuse_change(self, flags: Flags, wanted: Mapping[str, object]) -> None:
        """Refuse to set what a script has no say in to another value.

        Raises
        ------
        InputError
            With what to write into the JSON.
        """
        own = {flag.name for flag in self.flags} | set(LAYER_FLAGS)
        for name, value in wanted.items():
            now = flags.text(name) if flags.has(name) and flags.by_name[name].values else flags.has(name)
            if name in own and now != value:
                key = PLACES if name in LAYER_FLAGS else name.replace("-", "_")
                raise self.error(key, f"write {value} there" if isinstance(value, str) else "change it there", key)


def with_model_file(flags: Flags, text: str | None = None) -> tuple[Flags, ModelFile | None]:
    """The flags of a launch with those that its JSON states; `text` stands for the content of the JSON.

    Raises
    ------
    InputError
        When the JSON is missing or damaged, or describes no language model with its sizes.
    """
    if not flags.has(MODEL_FILE):
        return flags, None
    path = _path(flags)
    data = _mapping(path, text)
    decoder = data.get(DECODER)
    if not isinstance(decoder, dict):
        trained = data.get("predictor")
        kind = trained.get("model_id") if isinstance(trained, dict) else None
        problem = f"is a diffusion model, {shortened(str(kind))}" if kind else "is missing"
        cure = "give a script whose model file has a language model"
        field = "predictor" if kind else DECODER
        raise InputError(f"{problem}: only language models are planned", file=path, field=field, cure=cure)
    missing = next((name for name in _NEEDED if not isinstance(decoder.get(name), int)), None)
    if missing is not None:
        cure = f"write {', '.join(_NEEDED)}, as the configuration there has them"
        where = " lie in the folder of init_from_hf_path" if "init_from_hf_path" in data else " are not in the file"
        raise InputError(f"is missing: the sizes{where}", file=path, field=f"{DECODER}.{missing}", cure=cure)
    patches = data.get("patch")
    if isinstance(patches, dict) and patches.get(DISAGGREGATED):
        problem = "puts the first and the last layers on one stage, with an order of its own, which is not planned"
        raise InputError(problem, file=path, field=f"patch.{DISAGGREGATED}", cure="leave it out")
    launch = _launch(flags)
    language = read_language(decoder, launch, path) if launch.stages > 1 else []
    stated = [*_flags(decoder), *_placing(language, launch)]
    tower, spread, note = read_towers(data, _images(flags), path), None, None
    seen = tower is not None and tower.spec.kind == VISION
    if language and (seen or not data.get("image_encoder")):
        spread = read_spread(data, language, launch, path)
    if tower is not None and seen:
        tower = replace(tower, spread=spread, spreadable=unable_to_spread(data, launch))
        note = spread_note(data, spread, launch)
    without = {VIRTUAL, *_OF_JSON}
    idle = [f"--{name}" for name in flags.by_name if name in without - {VIRTUAL, *(flag.name for flag in stated)}]
    notes = [] if note is None else [note]
    if idle:
        notes.append(f"{', '.join(idle)}: no effect on the language model, which {DECODER} in {path.name} describes")
    return flags.overlaid(stated, without), ModelFile(path, stated, tower, tuple(notes))


def _launch(flags: Flags) -> Launch:
    stages, tp, cp = (
        flags.integer(f"{name}-size", default=1, high=4096)
        for name in ("pipeline-model-parallel", "tensor-model-parallel", "context-parallel")
    )
    interleaves = _interleaves(flags, stages)
    return Launch(stages, interleaves, tp, cp, flags.has("sequence-parallel"), flags.has(DUMMY_OPTIMIZER))


def _interleaves(flags: Flags, stages: int) -> int:
    """Virtual stages of each stage; 1 and less are none.

    Source: Ascend/MindSpeed-MM 57069cd5 mindspeed_mm/patchs/validate_args_patch.py:264-292.

    Raises
    ------
    InputError
        When the launcher refuses them.
    """
    for name in (PER_CHUNK, PER_RANK):
        if flags.has(name):
            raise flags.error(name, "is refused by MindSpeed-MM", cure=f"use --{VIRTUAL}")
    interleaves: int = flags.integer(VIRTUAL, default=1, low=0, high=1024)
    least = 3 if flags.has("no-overlap-p2p-communication") else 2
    if interleaves > 1 and stages < least:
        raise flags.error(VIRTUAL, f"needs {least} stages or more, and there are {stages}", interleaves, "leave it out")
    return max(1, interleaves)


def _images(flags: Flags) -> Mapping[str, Any]:
    """Content of the file that describes the data; empty where it is not there."""
    if not flags.has(DATA_FILE):
        return {}
    path = _found(flags, DATA_FILE)[1]
    return {} if path is None else _mapping(path)


def _path(flags: Flags) -> Path:
    """The file of the model.

    Raises
    ------
    InputError
        When it is not there.
    """
    written, path = _found(flags, MODEL_FILE)
    if path is not None:
        return path
    cure = "put the JSON beside the script, or the script into its repository"
    raise flags.error(MODEL_FILE, "names a JSON that is not there; the model's sizes lie in it", written, cure)


def _found(flags: Flags, name: str) -> tuple[str, Path | None]:
    """The file, from the folder of the script or one above it; a script is started at its repository's root.

    Where a part of the path is known only when the job starts (``$(pwd)/model.json``), what stands behind it counts.
    """
    words = flags.by_name[name].values
    chars = words[0].chars if words else ()
    start = 1 + max((at for at, char in enumerate(chars) if char.unknown), default=-1)
    written = "".join(char.text for char in chars[start:])
    written = written.lstrip("/") if start else written
    folder = flags.file.absolute().parent
    for above in (folder, *list(folder.parents)[:_FOLDERS]):
        path = above / written
        if path.suffix == ".json" and path.is_file():
            return written, path
    beside = folder / Path(written).name
    return written, beside if beside.suffix == ".json" and beside.is_file() else None


def _mapping(path: Path, text: str | None = None) -> Mapping[str, Any]:
    try:
        data = json.loads(read_text(path, limit_bytes=MAX_BYTES) if text is None else text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON: {error}", file=path) from None
    if not isinstance(data, dict):
        raise InputError("is not a JSON object", file=path)
    return data


def _flags(decoder: Mapping[str, Any]) -> Iterator[Flag]:
    for key, name in _VALUES.items():
        value = decoder.get(key)
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            yield _flag(name, str(value))
    for key, name in _SWITCHES.items():
        if decoder.get(key) is True:
            yield _flag(name)
    if decoder.get("add_bias_linear") is False:
        yield _flag("disable-bias-linear")


def _placing(language: Sequence[int], launch: Launch) -> Iterator[Flag]:
    """The flag that puts the same layers on every stage: a list, with virtual stages a layout."""
    if language and launch.interleaves == 1:
        yield _flag(LAYER_LIST, ",".join(map(str, language)))
    elif language:
        yield _flag(LAYOUT, "E" + "|".join("t" * count for count in language) + "L")


def _flag(name: str, value: str | None = None) -> Flag:
    return Flag(name, _word(f"--{name}"), () if value is None else (_word(value),))


def _word(text: str) -> Word:
    return Word(tuple(Char(char, None) for char in text))
