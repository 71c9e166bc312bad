"""A YAML of ms-swift's options, which ``megatron sft FILE`` takes for its command line.

Source: modelscope/ms-swift 3602360a swift/cli/main.py:38-70: every key becomes an option with its value before those of
the command, and ``ENV`` states variables that the command does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.megatron.named_sizes import flag, word
from taylor.parsers.swift.options import FORM, RLHF
from taylor.parsers.swift.script import RANKS, SwiftScript
from taylor.parsers.text.flag_edit import Setting, plain_value, yaml_value
from taylor.parsers.text.flags import Flag, Flags, Start
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.register.model import ModelSpec

ENVIRONMENT = "ENV"
YAML_TELLTALE = re.compile(
    r"\A(?=[\s\S]*^model\s*:[ \t]*[\"']?[\w./-])(?=[\s\S]*^(?:micro_batch_size|tensor_model_parallel_size)\s*:)"
    r"(?=[\s\S]*^(?:dataset|max_length|tuner_type|padding_free|rlhf_type)\s*:)",
    re.MULTILINE,
)
"""Found in a YAML of options at its top level."""
_STARTS = re.compile(r"(?:\S*/)?megatron$|\S*swift[/.]cli[/._]+megatron[/.](?:pt|sft|rlhf)(?:\.py)?$")
_MOST_FOLDERS = 8


class SwiftYaml(SwiftScript):
    """A YAML of options, named by itself or by the script that starts it; see `Launch`.

    Parameters
    ----------
    source : YamlSource
    script : ShellScript, optional
        The script that starts it.

    Raises
    ------
    InputError
        As `SwiftScript`.
    """

    def __init__(
        self,
        source: YamlSource,
        script: ShellScript | None = None,
        register_path: Path | None = None,
        model: ModelSpec | None = None,
    ) -> None:
        self._source, self._start = source, script
        self.file = source.file if script is None else script.file
        self.home, self.text = source.file, source.text
        _refuse_groups(source)
        behind = [] if script is None else _options_behind(script)
        self._fixed = {each.name for each in behind}
        flags = [*_flags(source.data, source.file), *behind]
        options = Flags(self.file, flags, place=FORM.written, start=Start(other_tool=True))
        notes = [] if script is None else [*script.notes, f"options of {source.file.name} stand before the command's"]
        self._state(options, notes, register_path, model)

    @property
    def environment(self) -> str:
        """See `Launch.environment`: the script's variables, then the file's."""
        return self.text if self._start is None else f"{self._start.text}\n{self.text}"

    def _is_rlhf(self) -> bool:
        if self._start is None:
            return self._options.has(RLHF)
        return any(each.text == "rlhf" for command in self._start.commands for each in command.words)

    def _rank_flags(self) -> list[Flag]:
        """The ranks, by variables of the script, or those of the file."""
        stated = self._source.data.get(ENVIRONMENT)
        found = []
        for name, variable in RANKS.items():
            value = None if self._start is None else self._start.variable(variable)
            own = stated.get(variable) if isinstance(stated, Mapping) else None
            if value is not None and value.words and value.words[0].chars:
                found.append(Flag(name, word(f"--{name}"), (value.words[0],)))
            elif own is not None:
                found.append(flag(name, str(own)))
        return found

    def _edited(self, edits: Mapping[str, Setting], beside: tuple[str, ...]) -> SwiftYaml:
        """See `SwiftScript._edited`: in the YAML.

        Raises
        ------
        InputError
            When the script's command states an option itself.
        """
        wanted: dict[YamlPath, Any] = {}
        near: dict[str, tuple[str, ...]] = {}
        keys = {_name(key): key for key in self._source.data}
        for name, setting in edits.items():
            if name in self._fixed:
                cure = "take it out of the command, so that the YAML states it"
                raise self._options.error(name, "stands in the script's command, over the YAML", str(setting), cure)
            key = keys.get(name, name.replace("-", "_"))
            if setting is False and key not in self._source.data:
                continue
            wanted[key,] = None if setting is False else _value(setting)
            near[key] = tuple(keys.get(other, other.replace("-", "_")) for other in beside)
        source = edit_yaml(self._source, wanted, beside=near)
        return SwiftYaml(source, self._start, model=self.model)

    def with_ranks(self, world: int) -> tuple[SwiftYaml, dict[str, Setting]]:
        """See `Launch.with_ranks`: by ``ENV`` of the file."""
        now = self.flags.world_size()
        stated = self._source.data.get(ENVIRONMENT)
        if now is None or now == world:
            return self, {}
        if not isinstance(stated, Mapping) or RANKS["nproc-per-node"] not in stated:
            cure = f"write {ENVIRONMENT}: {{NPROC_PER_NODE: …, NNODES: …}} into the YAML"
            raise InputError(
                f"states no ranks in its YAML, so that {world} cannot be written", file=self.file, cure=cure
            )
        per_node = self.flags.integer("nproc-per-node")
        per_node = world if world % per_node else per_node
        wanted: dict[YamlPath, Any] = {
            (ENVIRONMENT, "NPROC_PER_NODE"): per_node,
            (ENVIRONMENT, "NNODES"): world // per_node,
        }
        return SwiftYaml(edit_yaml(self._source, wanted), self._start, model=self.model), {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return plain_value(value, self.home, name)


def _refuse_groups(source: YamlSource) -> None:
    """Refuse a file that states options by groups of workers (3602360a examples/ray): more than one job."""
    groups = [key for key, value in source.data.items() if isinstance(value, Mapping) and key != ENVIRONMENT]
    if "colocate_groups" in source.data or "train" in groups:
        cure = "give a script of megatron pt, sft or rlhf, or its YAML without groups"
        raise InputError(
            "states options by groups of Ray, which are not read", file=source.file, field="train", cure=cure
        )


def options_file(script: ShellScript) -> Path | None:
    """The YAML that a script's training command takes its options from; None where there is none."""
    words = _command(script)
    name = words[2].text if len(words) > 2 else ""
    if not name.endswith((".yaml", ".yml")) or len(name) > 300:
        return None
    known = re.sub(r"^.*[$`)}][^/]*/?", "", name)
    if not known or ".." in known.split("/"):
        return None
    for folder in (script.file.absolute().parent, *list(script.file.absolute().parents)[1:_MOST_FOLDERS]):
        if (folder / known).is_file():
            return folder / known
    return None


def _command(script: ShellScript) -> list[Word]:
    """The words of the command that starts ms-swift's trainer: its program, the kind, what stands behind."""
    for command in script.commands:
        for at, each in enumerate(command.words[:-2]):
            if _STARTS.match(each.text) and command.words[at + 1].text in ("pt", "sft", "rlhf"):
                return list(command.words[at:])
    return []


def _options_behind(script: ShellScript) -> list[Flag]:
    """Options that the command states behind the file."""
    flags: list[Flag] = []
    for each in _command(script)[3:]:
        if each.text.startswith("--"):
            flags.append(Flag(_name(each.text[2:]), each, ()))
        elif flags:
            flags[-1] = Flag(flags[-1].name, flags[-1].word, (*flags[-1].values, each))
    return flags


def _flags(data: Mapping[Any, Any], file: Path) -> list[Flag]:
    found = []
    for key, value in data.items():
        if key == ENVIRONMENT or value is None:
            continue
        if not isinstance(key, str) or isinstance(value, Mapping):
            continue  # A mapping is handed over as JSON, which no option that is read takes.
        items = value if isinstance(value, list) else [value]
        texts = [str(each).lower() if isinstance(each, bool) else str(each) for each in items]
        found.append(Flag(_name(key), word(f"--{key}"), tuple(map(word, texts))))
    return found


def _name(key: Any) -> str:
    return str(key).replace("_", "-")


def _value(setting: Setting) -> Any:
    """A setting as the YAML states it."""
    if setting in ("true", "false"):
        return setting == "true"
    return yaml_value(setting)
