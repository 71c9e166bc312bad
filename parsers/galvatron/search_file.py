"""The YAML of Hetu's search: what it says of a job, by the flags of `taylor layerwise`.

Field names and defaults: Hetu-Galvatron cea12ff galvatron/core/search_engine/args_schema.py:12-73,
galvatron/core/runtime/args_schema.py:30-47 and 248-256; where profiles lie by default: search_engine.py:58-90, 377-425.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.yaml_source import YamlSource

MOST = 10**9
MOST_STEPS = 20
"""Maximum depth to which one value may refer to others."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w.]{0,200})\}")

_SWITCHES = (
    "disable_dp", "disable_tp", "disable_cp", "disable_sp", "disable_embedding_lmhead_tp",
    "disable_embedding_lmhead_sp", "disable_pp", "disable_ckpt", "disable_fsdp",
)  # fmt: skip
_DEGREES = ("max_tp_deg", "max_pp_deg", "max_sp_deg", "max_cp_deg")
_PATHS = (
    "memory_profiling_path", "time_profiling_path", "allreduce_bandwidth_config_path", "p2p_bandwidth_config_path",
    "overlap_coe_path", "sp_time_path",
)  # fmt: skip


@dataclass(frozen=True)
class SearchFile:
    """Content of a search file.

    Parameters
    ----------
    file : Path
    options : mapping of str to object
        By flag of `taylor layerwise`, without dashes.
    fields : mapping of str to str
        The name of each in the file.
    profiles : tuple of Path
        Folders of the profiles.
    notes : tuple of str
        Its fields that have no effect here.
    """

    file: Path
    options: Mapping[str, Any]
    fields: Mapping[str, str]
    profiles: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def read_search_file(path: Path) -> SearchFile:
    """Read the YAML of Hetu's search.

    Raises
    ------
    InputError
        When it cannot be read, is none, or a value is wrong.
    """
    data = YamlSource.read(path).data
    if not isinstance(data, dict) or not isinstance(data.get("search_engine"), dict):
        raise InputError(
            "is no search of Hetu's Galvatron", file=path, field="search_engine",
            cure="give the YAML that its search_dist.py takes",
        )  # fmt: skip
    top = Fields(resolved(data, data, path, "", 0), path).section("search_engine")
    reader = _Reader(top, path)
    reader.read()
    return SearchFile(path, reader.options, reader.fields, reader.profiles(), tuple(reader.notes))


def resolved(value: Any, root: Mapping[str, Any], path: Path, field: str = "", depth: int = 0) -> Any:
    """A value with its references ``${NAME}`` put in."""
    if depth > MOST_STEPS:
        raise InputError("refers to itself", file=path, field=field, cure="write the value out")
    if isinstance(value, dict):
        return {
            key: resolved(each, root, path, f"{field}.{key}".strip("."), depth if field else 0)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [resolved(each, root, path, field, depth) for each in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole:
        return resolved(_named(whole[1], root, path, field), root, path, field, depth + 1)

    def put(match: re.Match[str]) -> str:
        named = resolved(_named(match[1], root, path, field), root, path, field, depth + 1)
        if isinstance(named, (dict, list)):
            raise InputError(f"refers to {match[1]}, which is no plain value", file=path, field=field, value=value)
        return str(named)[:4096]

    text = _REFERENCE.sub(put, value)
    if len(text) > 4096:
        raise InputError("is longer than any value", file=path, field=field, cure="write it out")
    return text


def _named(name: str, root: Mapping[str, Any], path: Path, field: str) -> Any:
    at: Any = root
    for part in name.split("."):
        if not isinstance(at, dict) or part not in at:
            raise InputError(f"refers to {name}, which is not there", file=path, field=field, cure="add it")
        at = at[part]
    return at


class _Reader:
    """Takes the sections one by one."""

    def __init__(self, top: Fields, file: Path) -> None:
        self.top, self.file = top, file
        self.options: dict[str, Any] = {}
        self.fields: dict[str, str] = {}
        self.notes: list[str] = []
        self.paths: list[Path] = []

    def read(self) -> None:
        """All sections."""
        self._model()
        self._training()
        self._space()
        self._profiles()
        self._rest()

    def _put(self, flag: str, section: Fields, name: str, value: Any) -> None:
        if value is not None:
            self.options[flag] = value
            self.fields[flag] = section.path(name)

    def _model(self) -> None:
        model = self.top.section("model_info")
        template: dict[str, Any] = {}
        named = model.text("model_config_path", default=None)
        if named:
            at = Path(named)
            places = [at] if at.is_absolute() else [self.file.parent / at, self.file.parent.parent / at]
            found = next((place for place in places if place.is_file()), None)
            if found is None:
                self.notes.append(f"{model.path('model_config_path')}: {named} is not there, and was not read")
            else:
                read = YamlSource.read(found).data
                template = read if isinstance(read, dict) else {}
        filled = model.over(template)
        hidden = filled.integer("hidden_size", default=None, high=MOST)
        self._put("hidden", model, "hidden_size", hidden)
        self._put("layers", model, "num_layers", filled.integer("num_layers", default=None, high=MOST))
        heads = filled.integer("num_attention_heads", default=None, high=MOST)
        groups = filled.integer("num_query_groups", default=None, high=MOST)
        if hidden and heads and groups:
            width = filled.integer("kv_channels", default=hidden // heads, high=MOST)
            self._put("kv_hidden", model, "num_query_groups", groups * width)
        size = filled.text("model_size", default=None)
        self._put("model_size", model, "model_size", None if size is None else size.split("/")[-1])
        if model.raw("is_moe_model") in (True, 1):
            self.notes.append(f"{model.path('is_moe_model')}: expert parallel layers are not in the profiles' tables")

    def _training(self) -> None:
        training = self.top.section("common_train_info")
        self._put("seq", training, "seq_length", training.integer("seq_length", default=None, high=MOST))
        for name in ("sequence_parallel", "global_memory_buffer"):
            self._put(name, training, name, training.boolean(name, default=True))
        parallel = self.top.section("parallelism_info")
        for name, default, known in (
            ("default_dp_type", "ddp", ("ddp", "zero2", "zero3")),
            ("pipeline_type", "gpipe", ("gpipe", "pipedream_flush")),
            ("mixed_precision", "bf16", ("fp32", "fp16", "bf16")),
        ):
            value = parallel.text(name, default=default)
            if value not in known:
                raise parallel.error(name, "is unknown", value, f"take {', '.join(known)}")
            self._put(name, parallel, name, value)
        later = parallel.boolean("async_grad_reduce", default=True)
        self._put("reduce_every_micro_batch", parallel, "async_grad_reduce", not later)
        hardware = self.top.section("hardware_info")
        self._put("num_nodes", hardware, "num_nodes", hardware.integer("num_nodes", default=1))
        cards = hardware.integer("num_gpus_per_node", default=8)
        self._put("num_gpus_per_node", hardware, "num_gpus_per_node", cards)
        limit = hardware.number("memory_constraint", default=24.0, low=1e-3, high=1e6)
        self._put("memory", hardware, "memory_constraint", limit)

    def _space(self) -> None:
        batch = self.top.section("batch_size_info")
        for name in ("min_bsz", "max_bsz", "bsz_scale"):
            self._put(name, batch, name, batch.integer(name, default=8, high=MOST))
        for name in ("settle_bsz", "settle_chunk"):
            settled = batch.integer(name, default=-1, low=-(10**9), high=MOST)
            self._put(name, batch, name, settled if settled > 0 else None)
        if batch.raw("recommend_min_bsz") not in (None, 0):
            self.notes.append(f"{batch.path('recommend_min_bsz')} has no effect: batches are bounded, and cut off so")
        space = self.top.section("search_space_info")
        for name in _SWITCHES:
            given = space.raw(name)
            if given not in (None, 0, 1):
                raise space.error(name, "must be 0 or 1", given)
            self._put(name, space, name, bool(given) if given is not None else name == "disable_cp")
        for name in _DEGREES:
            most = space.integer(name, default=8, low=-1)
            if most == 0:
                raise space.error(name, "must be 1 or more, or -1 for any degree", most)
            self._put(name, space, name, most if most > 0 else None)

    def _profiles(self) -> None:
        profiling = self.top.section("profiling_info")
        for name, known in (
            ("time_profile_mode", ("static", "batch", "sequence", "hybrid")),
            ("memory_profile_mode", ("static", "batch", "sequence", "hybrid")),
        ):
            value = profiling.text(name, default="static")
            if value not in known:
                raise profiling.error(name, "is unknown", value, f"take {', '.join(known)}")
            self._put(name, profiling, name, value)
        for name in _PATHS:
            value = profiling.text(name, default=None)
            if value:
                at = Path(value)
                self.paths.append(at if at.is_absolute() else self.file.parent.parent / at)

    def _rest(self) -> None:
        options = self.top.section("options_info")
        mode = options.raw("fine_grained_mode")
        if mode not in (None, 0, 1):
            raise options.error("fine_grained_mode", "must be 0 or 1", mode)
        self._put("fine_grained_mode", options, "fine_grained_mode", 1 if mode is None else int(mode))
        self._put("parallel_search", options, "parallel_search", options.boolean("parallel_search", default=True))
        self._put("worker", options, "worker", options.integer("worker", default=0, low=0, high=MOST))
        if options.raw("log_dir") is not None:
            self.notes.append(f"{options.path('log_dir')} has no effect: what was tried is in the results")
        self._put("output_config_path", options, "output_config_path", options.text("output_config_path", default=None))
        scale = self.top.section("debug_info").number("debug_costmodel_coe", default=1.0)
        if scale != 1.0:
            self.notes.append("search_engine.debug_info.debug_costmodel_coe has no effect: costs are as measured")

    def profiles(self) -> tuple[Path, ...]:
        """Folders of the profiles: those named, else those of Hetu's tree around the file that are there."""
        if self.paths:
            return tuple(dict.fromkeys(self.paths))
        home = self.file.parent.parent  # models/gpt, of models/gpt/scripts/search_dist.yaml
        places = (home / "configs", home.parent.parent / "profile_hardware" / "hardware_configs")
        return tuple(place for place in places if place.is_dir())
