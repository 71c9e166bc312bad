"""A FlagScale experiment and the train file that it names, put together as Hydra does it.

Source: FlagOpen/FlagScale da4935ec (November 2025) run.py (`main`), examples/*/conf; Hydra 1.3 docs/advanced/
defaults_list.md and overriding_packages.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.text.yaml_edit import edit_yaml, lookup
from taylor.parsers.text.yaml_source import YamlPath, YamlSource

SECTIONS = ("system", "model", "data")
"""Sections of a train file (flagscale/runner/runner_train.py:31-51)."""
_GROUP = "train"
_NAME = re.compile(r"[\w\-][\w.\-]*(?:/[\w\-][\w.\-]*)*")
_PACKAGE = re.compile(r"^[ \t]*#[ \t]*@package[ \t]+(\S+)", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*(?:\.\w+)*)\}")
_MOST_REFERENCES = 10


@dataclass(frozen=True)
class Experiment:
    """Files and sections that start one job.

    Parameters
    ----------
    file : Path
        The file that was named.
    source : YamlSource
        The file that holds the train sections: the same, or the train file that it names.
    prefix : tuple of str
        Their place in it.
    whole : mapping or None
        The experiment with its train sections as ``train``; None where a train file was given alone.
    outer : YamlSource or None
        The experiment's own file, where another one holds the train sections.
    """

    file: Path
    source: YamlSource
    prefix: tuple[str, ...]
    whole: Mapping[str, Any] | None
    outer: YamlSource | None = field(default=None, repr=False)

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """Read an experiment with the train file that it names, or a train file alone.

        Raises
        ------
        InputError
            When one of them is missing or damaged, or the experiment trains nothing, names no train file that can be
            determined, or states parts of it elsewhere.
        """
        return cls.of(YamlSource.read(path))

    @classmethod
    def of(cls, source: YamlSource) -> Experiment:
        """The same of a file that was read."""
        data, path = source.data, source.file
        if "experiment" not in data:
            _refuse_package(source)
            return cls(path, source, (), None)
        _refuse_other_tasks(data, path)
        name = _named(data, path)
        if name is None:
            return cls(path, source, (_GROUP,), data)
        inner = YamlSource.read(path.parent / _GROUP / f"{name.removesuffix('.yaml')}.yaml")
        _refuse_package(inner)
        if _GROUP in data:
            raise InputError(
                f"overrides parts of {inner.file}",
                file=path,
                field=_GROUP,
                cure="write them in that file, or all of it here and no train among the defaults",
            )
        return cls(path, inner, (), {**data, _GROUP: inner.data}, source)

    def value(self, name: str) -> Any:
        """An entry of the experiment by its dotted name, references followed; None where there is none."""
        return None if self.whole is None else self.resolved(lookup(self.whole, tuple(name.split("."))))

    def resolved(self, value: Any) -> Any:
        """A value with a reference such as ``${experiment.seed}`` followed; as written where that leads nowhere."""
        for _ in range(_MOST_REFERENCES):
            match = _REFERENCE.fullmatch(value.strip()) if isinstance(value, str) else None
            if match is None or self.whole is None:
                return value
            *above, name = match[1].split(".")
            home = lookup(self.whole, tuple(above))
            if not isinstance(home, Mapping) or name not in home:
                return value
            value = home[name]
        return value

    def edited(self, wanted: Mapping[YamlPath, Any], beside: Mapping[str, tuple[str, ...]]) -> Experiment:
        """The same with entries of the file that holds the train sections set; see `edit_yaml`."""
        source = edit_yaml(self.source, wanted, beside=beside)
        if self.outer is None:
            return Experiment.of(source)
        return Experiment(self.file, source, (), {**self.outer.data, _GROUP: source.data}, self.outer)

    def in_one_file(self) -> Experiment:
        """The same with its train sections in the experiment's own file, as a copy elsewhere needs them.

        Raises
        ------
        InputError
            When the two files cannot be joined as text.
        """
        if self.outer is None:
            return self
        others = [entry for entry in self.outer.data["defaults"] if not _names_group(entry)]
        text = edit_yaml(self.outer, {("defaults",): others}).text
        newline = self.outer.newline
        lines = self.source.text.lstrip("\ufeff").splitlines()
        inner = ["  " + line if line.strip() else "" for line in lines if line.rstrip() not in ("---", "...")]
        joined = newline.join([text.rstrip(), "", f"{_GROUP}:", *inner, ""])
        one = Experiment.of(YamlSource(joined, self.file))
        if one.whole is None or one.whole[_GROUP] != self.source.data:
            raise InputError("cannot be put into one file with its train file", file=self.file)
        return one


def _refuse_other_tasks(data: Mapping[str, Any], path: Path) -> None:
    """Refuse what trains no language model by Megatron's flags."""
    task = lookup(data, ("experiment", "task")) or {}
    if not isinstance(task, Mapping):
        raise InputError("must be a mapping of names to values", file=path, field="experiment.task", value=task)
    kind, backend = task.get("type", "train"), task.get("backend", "megatron")
    if kind != "train":
        raise InputError(
            "is a FlagScale experiment that trains nothing",
            file=path,
            field="experiment.task.type",
            value=kind,
            cure="give an experiment whose task is train",
        )
    if backend != "megatron":
        raise InputError(
            "is a FlagScale experiment that no Megatron runs",
            file=path,
            field="experiment.task.backend",
            value=backend,
            cure="give one whose backend is megatron",
        )


def _named(data: Mapping[str, Any], path: Path) -> str | None:
    """The train file among the defaults, without its suffix; None where the file holds the sections itself."""
    defaults = data.get("defaults")
    entries = [entry for entry in defaults if _names_group(entry)] if isinstance(defaults, list) else []
    if not entries and isinstance(data.get(_GROUP), Mapping):
        return None
    names = [entry[_GROUP] for entry in entries]
    if len(names) != 1 or not isinstance(names[0], str) or _NAME.fullmatch(names[0]) is None:
        raise InputError(
            "must name one train file, as in «- train: 7b»",
            file=path,
            field="defaults",
            value=defaults,
            cure="name it there, or give the train file",
        )
    return names[0]


def _names_group(entry: Any) -> bool:
    return isinstance(entry, Mapping) and _GROUP in entry


def _refuse_package(source: YamlSource) -> None:
    match = _PACKAGE.search(source.text)
    if match is not None and match[1] not in (_GROUP, "_group_"):
        raise InputError(
            "is placed elsewhere than under train",
            file=source.file,
            field="@package",
            value=match[1],
            cure="take that line out",
        )
