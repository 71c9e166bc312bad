"""The YAML files of a Primus checkout, merged as Primus does it: variables, ``extends``, presets by name.

Source: AMD-AGI/Primus fd1eeabb primus/core/config/yaml_loader.py:20-154, merge_utils.py:12-38, preset_loader.py:28-70.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.base.files import read_text
from taylor.parsers.text.yaml_source import MAX_BYTES, MAX_DEPTH, YamlSource

CONFIGS = Path("primus") / "configs"
"""Folder of the presets in a checkout."""
_VARIABLE = re.compile(r"\$\{([^:{}]+)(?::([^}]*))?\}")
_FLOAT = re.compile(r"-?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)")
_LONGEST_NUMBER = 30
_MOST_FOLDERS = 16
_MOST_FILES = 60
"""Files that one experiment may draw in: three times what those of Primus do."""


@dataclass
class Merged:
    """Merged content of several files.

    Parameters
    ----------
    data : dict
        The entries; a variable without a default stays as written.
    defaults : dict
        Variables of which the default counts, with it.
    files : list of Path
        The files, in the order in which they were read.
    """

    data: dict[str, Any]
    defaults: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Checkout:
    """A checkout of Primus.

    Parameters
    ----------
    root : Path
        The folder that contains ``primus/configs``.
    """

    root: Path

    @classmethod
    def around(cls, file: Path) -> Checkout | None:
        """The checkout that a file lies in; None where no folder above it, up to its repository's root, is one."""
        for folder in list(file.absolute().parents)[:_MOST_FOLDERS]:
            if (folder / CONFIGS / "models").is_dir():
                return cls(folder)
            if (folder / ".git").exists():
                return None
        return None

    def preset(self, kind: str, framework: str, name: str, asker: Path, field_name: str) -> Merged:
        """A preset by name.

        Parameters
        ----------
        kind : str
            ``modules`` or ``models``.
        asker : Path
            The file that names it.
        field_name : str
            Its entry there, for errors.

        Raises
        ------
        InputError
            When there is no such preset, or it leaves the checkout.
        """
        file_name = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
        folder = self.root / CONFIGS / kind / framework
        path = folder / PurePosixPath(file_name)
        if not _inside(path, self.root) or not path.is_file():
            raise InputError(
                f"names no preset of {CONFIGS / kind / framework}",
                file=asker,
                field=field_name,
                value=shortened(name, 80),
                cure=f"write the name of a file in {folder}",
            )
        return load(_parsed(read_text(path, limit_bytes=MAX_BYTES), path), self.root)


def load(source: YamlSource, root: Path | None) -> Merged:
    """A file with its variables replaced and the files that it extends merged in.

    Parameters
    ----------
    root : Path or None
        The checkout, which the files may not leave; None where there is none, and nothing may be extended.

    Raises
    ------
    InputError
        When an extended file is missing, damaged or outside the checkout, or there are too many of them.
    """
    merged = Merged({})
    merged.data = _loaded(source, root, merged, ())
    return merged


def _loaded(source: YamlSource, root: Path | None, merged: Merged, above: tuple[Path, ...]) -> dict[str, Any]:
    file = source.file
    merged.files.append(file)
    if len(merged.files) > _MOST_FILES:
        raise InputError(f"extends more than {_MOST_FILES} files", file=file, field="extends")
    data: dict[str, Any] = resolved(source.data, merged.defaults)
    named = data.pop("extends", None)
    if named is None:
        return data
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError("must name files", file=file, field="extends", value=shortened(str(named), 80))
    base: dict[str, Any] = {}
    for name in names:
        path = file.parent / PurePosixPath(name)
        if root is None or not _inside(path, root):
            raise InputError(
                "names a file outside a checkout of Primus",
                file=file,
                field="extends",
                value=shortened(name, 80),
                cure="give the file inside its checkout",
            )
        if path in (*above, file):
            raise InputError("extends itself", file=file, field="extends", value=shortened(name, 80))
        base = merge(base, _loaded(_parsed(read_text(path, limit_bytes=MAX_BYTES), path), root, merged, (*above, file)))
    return merge(base, data)


@lru_cache(maxsize=128)
def _parsed(text: str, file: Path) -> YamlSource:
    """A preset by its text: a solve reads the same ones many times, and the largest take a tenth of a second."""
    return YamlSource(text, file)


def _inside(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, RuntimeError):
        return False


def merge(base: Mapping[str, Any], over: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Two mappings, the second over the first; mappings in both are merged in turn."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping) and depth < MAX_DEPTH
        result[key] = merge(below, value, depth + 1) if both and isinstance(below, Mapping) else value
    return result


def resolved(value: Any, defaults: dict[str, str]) -> Any:
    """Plain data with the variables in its texts replaced by their defaults, which are added to `defaults`.

    A text that changes becomes a truth value or a number where it is one (yaml_loader.py:104-129). A variable without a
    default stays.
    """
    if isinstance(value, Mapping):
        return {str(key): resolved(item, defaults) for key, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, defaults) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    for name, default in variables(value):
        if default is not None:
            defaults[name] = default
    replaced = _VARIABLE.sub(lambda match: match[0] if match[2] is None else match[2], value)
    return replaced if replaced == value else _scalar(replaced)


def variables(text: str) -> Iterator[tuple[str, str | None]]:
    """The variables in a text, each with its default."""
    for match in _VARIABLE.finditer(text):
        yield match[1], match[2]


def _scalar(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) > _LONGEST_NUMBER:
        return text
    if re.fullmatch(r"-?\d+", text, re.ASCII):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
