"""A resolved ``ConfigContainer.yaml`` of Megatron-Bridge as a launch by Megatron's flags.

Bridge writes every field with its class (``_target_``) into each checkpoint and, by ``logger.save_config_filepath``,
into a file of its own (NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/training/config.py:1013-1060,
training/checkpointing.py). No class is looked up here: a name is compared, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.bridge.adapters import adapters_of
from taylor.parsers.bridge.fields import (
    RENAMED,
    SWITCHED_OFF,
    flags_of,
    flattened,
    layout_text,
    refuse_frozen,
    stated_flags,
)
from taylor.parsers.bridge.recipes import precision
from taylor.parsers.flag_table import FlagTable
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.text.flag_edit import Setting, has_setting, yaml_value
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource

NAME = "bridge"
_OTHER_MODELS = re.compile(r"VL|Vision|Audio|Omni|Wan|Flux|T5|ASR|Mimo|Diffusion|DiT|Bert")
_UNION = "model.pipeline_model_parallel_layout"


class BridgeContainer(Launch):
    """A resolved configuration; see `Launch`.

    Raises
    ------
    InputError
        When it trains adapters of another kind than LoRA, or a model of another kind than a language model.
    """

    launcher = NAME

    def __init__(self, source: YamlSource) -> None:
        self.source, self.file, self.text = source, source.file, source.text
        data = source.data
        if not isinstance(data.get("model"), Mapping) or not isinstance(data.get("train"), Mapping):
            cure = "give the ConfigContainer.yaml that Bridge writes, or a script that starts a recipe"
            raise InputError(
                "is no resolved configuration of Megatron-Bridge", file=self.file, field="model", cure=cure
            )
        _refuse(data, self.file)
        self.fields = flattened(data)
        _named_precision(data, self.fields)
        self.adapters = adapters_of(_peft(data, self.file), self.file)
        refuse_frozen(self.fields, self.file)
        self.stated = stated_flags(self.fields)
        self.flags = Flags(self.file, flags_of(self.stated), 0, self._place)
        self.notes = ()

    @classmethod
    def read(cls, path: Path) -> BridgeContainer:
        """Read a file; see `YamlSource.read`."""
        return cls(YamlSource.read(path))

    def table(self) -> FlagTable:
        """See `Launch.table`: its fields are Megatron's."""
        return flag_table()

    def _field(self, name: str) -> str:
        """The field behind a flag, given or not."""
        if name in self.stated:
            return self.stated[name][0]
        if name == "pipeline-model-parallel-layout":
            return _UNION
        for names in (SWITCHED_OFF, RENAMED):
            for field, flag_name in names.items():
                if flag_name == name and field.partition(".")[2] in self.source.data.get(field.partition(".")[0], {}):
                    return field
        key = name.replace("-", "_")
        for section in ("model", "train", "optimizer", "ddp"):
            if isinstance(inside := self.source.data.get(section), Mapping) and key in inside:
                return f"{section}.{key}"
        return f"model.{key}"

    def _place(self, name: str) -> str:
        return self._field(name) if hasattr(self, "stated") else name

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> BridgeContainer:
        """See `Launch.with_flags`; a flag is removed by a null, a switch by false."""
        edits: dict[YamlPath, Any] = {}
        for name, setting in wanted.items():
            if not has_setting(self.flags, name, setting):
                edits |= self._edit(name, setting)
        changed = BridgeContainer(edit_yaml(self.source, edits)) if edits else self
        for name, setting in wanted.items():
            if not has_setting(changed.flags, name, setting):
                raise changed.flags.error(name, "cannot be set", setting)
        return changed

    def _edit(self, name: str, setting: Setting) -> dict[YamlPath, Any]:
        section, _, key = self._field(name).partition(".")
        field, value = f"{section}.{key}", _yaml(name, setting)
        if field in SWITCHED_OFF and isinstance(setting, bool):
            value = not setting
        row = flag_table().find(name)
        if setting is False and (row is None or row.takes_value):
            value = None
        edits: dict[YamlPath, Any] = {(section, key): value}
        if name == "pipeline-model-parallel-layout" and isinstance(setting, str):
            interleaves = layout_chunks(setting) // max(
                1, int(self.flags.integer("pipeline-model-parallel-size", default=1))
            )
            edits["model", "virtual_pipeline_model_parallel_size"] = interleaves if interleaves > 1 else None
        return edits

    def with_ranks(self, world: int) -> tuple[BridgeContainer, dict[str, Setting]]:
        """See `Launch.with_ranks`: the command that starts the job states them."""
        return self, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return bool(value) if isinstance(value, bool) or value is None else str(value)


def layout_chunks(text: str) -> int:
    """Chunks of a layout's text, repetitions such as ``(tt|)*30`` written out."""
    for _ in range(8):
        text, count = re.subn(r"\(([^()]*)\)\*(\d{1,5})", lambda match: match[1] * int(match[2]), text[:100_000])
        if not count:
            break
    return text.count("|") + 1


def _yaml(name: str, setting: Setting) -> Any:
    """A setting as the file has it: words of a list as one."""
    if isinstance(setting, tuple):
        return list(setting)
    return setting if isinstance(setting, bool) else yaml_value(setting)


def _refuse(data: Mapping[str, Any], file: Path) -> None:
    target = data["model"].get("_target_")
    kind = str(target).rpartition(".")[2]
    if isinstance(target, str) and _OTHER_MODELS.search(kind):
        shown = shortened(kind, 80)
        raise InputError(
            "is no language model, and only those are planned", file=file, field="model._target_", value=shown
        )
    layout = data["model"].get("pipeline_model_parallel_layout")
    if isinstance(layout, Mapping) or "?" in (layout_text(layout) or ""):
        raise InputError(
            "does not state the layout: Bridge writes an object without its content",
            file=file,
            field=_UNION,
            cure="write the text that was given to it, such as Et*4|(t*4|)*14tmL",
        )


def _peft(data: Mapping[str, Any], file: Path) -> dict[str, Any] | None:
    """The section of adapters, with the name of its class; None where all weights train."""
    peft = data.get("peft")
    if peft is None or peft == {}:
        return None
    if not isinstance(peft, Mapping):
        raise InputError("must be a section", file=file, field="peft", value=shortened(str(peft), 60))
    return {**peft, "kind": str(peft.get("_target_")).rpartition(".")[2]}


def _named_precision(data: Mapping[str, Any], fields: dict[str, Any]) -> None:
    name = data.get("mixed_precision")
    for key, value in (precision(name) or {} if isinstance(name, str) else {}).items():
        fields.setdefault(f"mixed_precision.{key}", value)
