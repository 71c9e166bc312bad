"""YAML text with the place of every value, so that a value can be changed and no other byte.

Reading is bounded (size, lines, depth, nodes, what aliases expand to) and safe: plain data only. Writing
splices new text over the old value's place; comments, anchors, order, line ends and layout of
everything else stay because they are never touched.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Iterator, Mapping, Sequence

import yaml

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.shipped import refuse_bad_scalars

MAX_BYTES, MAX_LINES = 2**19, 5_000
"""Most that a file may hold: ten times what training configurations do, for a command may read a file ten times."""
MAX_DEPTH = 60
MAX_NODES = 20_000
"""Most values a file may hold, and most that its aliases may expand to."""

YamlPath = tuple[Any, ...]
"""Keys (str) and list positions (int) from the root to a value."""

_PROPERTIES = re.compile(r"(?:[&!][^\s,\[\]{}]*\s*)+")
_ANCHOR = re.compile(r"&[^\s,\[\]{}]+")
_LEAD = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*[ \t]*")
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?(?=\r?\n|\Z)")


@dataclass(frozen=True)
class Alias:
    """One use ``*name`` of an anchor: where it stands in the data and in the text."""

    path: YamlPath
    name: str
    start: int
    end: int


@dataclass(frozen=True)
class ValuePlace:
    """Place of a value: its node, and the alias it stands behind, if any."""

    path: YamlPath
    node: yaml.Node
    key: yaml.Node | None = None
    alias: Alias | None = None


class _TooMuch(Exception):
    pass


class _Loader(yaml.SafeLoader):
    """A safe loader that notes every alias and anchor and refuses what is too big."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.alias_at: dict[YamlPath, Alias] = {}
        self.anchor_path: dict[str, YamlPath] = {}
        self._path: YamlPath = ()
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> Any:
        step = index.value if isinstance(index, yaml.ScalarNode) else index
        path: YamlPath = () if parent is None else (*self._path, step)
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        self._nodes += 1  # an alias is one value at least
        if self.check_event(yaml.AliasEvent) and self._nodes <= MAX_NODES:
            if index is not None:
                self.alias_at[path] = Alias(path, event.anchor, event.start_mark.index, event.end_mark.index)
            return super().compose_node(parent, index)
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise _TooMuch(
                f"contains more than {MAX_NODES} values" if self._nodes > MAX_NODES else "is nested too deep"
            )
        if event.anchor is not None:
            self.anchor_path[event.anchor] = path
        outer, self._path = self._path, path
        node = super().compose_node(parent, index)
        self._path = outer
        return node


refuse_bad_scalars(_Loader)


def scalar_of(node: yaml.Node) -> Any:
    """Plain data of one node."""
    return _Loader("").construct_object(node, deep=True)


def _expanded_size(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """Number of values in `node` with every alias expanded; raises when an alias contains itself."""
    if id(node) in above:
        raise _TooMuch("refers to itself by an alias")
    if id(node) not in known:
        above.add(id(node))
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        else:
            parts = list(node.value) if isinstance(node, yaml.SequenceNode) else []
        size = 1 + sum(_expanded_size(part, known, above) for part in parts)
        if size > MAX_NODES:
            raise _TooMuch(f"expands by its aliases to more than {MAX_NODES} values")
        above.discard(id(node))
        known[id(node)] = size
    return known[id(node)]


def _construct(loader: _Loader, root: yaml.Node) -> Any:
    """The data of a node; the nodes stay as written, though the constructor folds merge keys into them."""
    mappings: dict[int, tuple[yaml.MappingNode, list[Any]]] = {}
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode) and id(node) not in mappings:
            mappings[id(node)] = node, list(node.value)
            waiting += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    data = loader.construct_document(root)
    for node, written in mappings.values():
        node.value = written
    return data


@dataclass(frozen=True)
class _Composed:
    """A text's nodes, its data, and its aliases and anchors by path."""

    root: yaml.Node | None
    data: Any
    alias_at: Mapping[YamlPath, Alias]
    anchor_path: Mapping[str, YamlPath]


@lru_cache(maxsize=4)
def _composed(text: str) -> _Composed:
    """A text's nodes and data, which no one may change: a search reads the same text for every strategy that it writes.

    Raises
    ------
    _TooMuch, yaml.YAMLError, ValueError, OverflowError, RecursionError
        When it cannot be read.
    """
    loader = _Loader(text)
    root = loader.get_single_node()
    if root is not None:
        _expanded_size(root, {}, set())
    data = _construct(loader, root) if root is not None else None
    return _Composed(root, data, loader.alias_at, loader.anchor_path)


class YamlSource:
    """A YAML file: its text, its data, and where each value stands.

    Raises
    ------
    InputError
        When the text is empty, not YAML, not a mapping at the top, holds several documents, asks
        for anything but plain data, or is too big.
    """

    def __init__(self, text: str, file: Path) -> None:
        self.text, self.file = text, file
        self.asked: set[str] = set()  # Dotted paths of the entries that readers ask for.
        self.newline = "\r\n" if "\r\n" in text else "\n"
        if len(text.splitlines()) > MAX_LINES:
            raise InputError(f"has more than {MAX_LINES:,} lines", file=file, cure="is this a training configuration?")
        try:
            composed = _composed(text)
        except _TooMuch as error:
            raise InputError(str(error), file=file, cure="is this a training configuration?") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f" at line {mark.line + 1}" if mark is not None else ""
            reason = str(getattr(error, "problem", None) or "").strip() or str(error).splitlines()[0]
            raise InputError(f"is not valid YAML{where}: {reason}", file=file) from None
        except (ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"contains a value that YAML cannot read: {error}", file=file) from None
        root, data = composed.root, composed.data
        if data is None:
            raise InputError("is empty", file=file, cure="give a training configuration")
        if not isinstance(data, dict) or not isinstance(root, yaml.MappingNode):
            raise InputError(
                "must be a mapping of names to values",
                file=file,
                value=type(data).__name__,
                cure="give a training configuration",
            )
        self.root, self.data = root, copy.deepcopy(data)
        self.alias_at, self.anchor_path = composed.alias_at, composed.anchor_path

    @classmethod
    def read(cls, path: Path) -> YamlSource:
        """Read a file of at most `MAX_BYTES` bytes."""
        return cls(read_text(path, limit_bytes=MAX_BYTES), path)

    # ---- finding -------------------------------------------------------------------------------

    def place(self, path: Sequence[Any]) -> ValuePlace | None:
        """Place of a value; None when it is absent.

        A path that runs through an alias leads to the anchored original, and the place's `path` is
        the original's; an alias at the very end is kept as the place's `alias`.
        """
        node: yaml.Node = self.root
        at: YamlPath = ()
        key: yaml.Node | None = None
        alias: Alias | None = None
        for step in path:
            if alias is not None:
                at = self.anchor_path[alias.name]
            found = self._child(node, step)
            if found is None:
                return None
            node, key = found
            at = (*at, step)
            alias = self.alias_at.get(at)
        return ValuePlace(at, node, key, alias)

    @staticmethod
    def _child(node: yaml.Node, step: Any) -> tuple[yaml.Node, yaml.Node | None] | None:
        if isinstance(node, yaml.MappingNode):
            # The last of two equal keys counts, as in the loader.
            for key, value in reversed(node.value):
                if isinstance(key, yaml.ScalarNode) and key.value == step:
                    return value, key
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and 0 <= step < len(node.value):
            return node.value[step], None
        return None

    def leaves(self) -> dict[YamlPath, tuple[str, str]]:
        """Every value as written: path -> (type, text); an alias is itself, not what it stands for."""
        return dict(self._leaves(self.root, ()))

    def _leaves(self, node: yaml.Node, path: YamlPath) -> Iterator[tuple[YamlPath, tuple[str, str]]]:
        if path in self.alias_at:
            yield path, ("*", self.alias_at[path].name)
        elif isinstance(node, yaml.MappingNode):
            if not node.value:
                yield path, ("{}", "")
            for key, value in node.value:
                step = key.value if isinstance(key, yaml.ScalarNode) else str(key.start_mark.index)
                yield from self._leaves(value, (*path, step))
        elif isinstance(node, yaml.SequenceNode):
            if not node.value:
                yield path, ("[]", "")
            for index, value in enumerate(node.value):
                yield from self._leaves(value, (*path, index))
        else:
            yield path, (node.tag, node.value)

    # ---- spans ---------------------------------------------------------------------------------

    def properties_end(self, node: yaml.Node) -> tuple[str | None, int]:
        """The anchor (``&name``) in front of a value, and where anchor and tag end in the text."""
        start, end = node.start_mark.index, node.end_mark.index
        if self.text[start : start + 1] not in ("&", "!"):
            return None, start
        match = _PROPERTIES.match(self.text, start, end)
        assert match is not None
        anchor = _ANCHOR.search(match.group())
        return (anchor.group() if anchor else None), start + len(match.group().rstrip())

    def end(self, node: yaml.Node, path: YamlPath) -> int:
        """End of a value's text (without trailing comments and blank lines)."""
        if path in self.alias_at:
            return self.alias_at[path].end
        if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and not node.flow_style and node.value:
            if isinstance(node, yaml.MappingNode):
                key, last = node.value[-1]
                step: Any = key.value if isinstance(key, yaml.ScalarNode) else None
            else:
                step, last = len(node.value) - 1, node.value[-1]
            return self.end(last, (*path, step))
        start = node.start_mark.index
        return start + len(self.text[start : node.end_mark.index].rstrip())


def flow_text(value: Any) -> str:
    """A value in YAML's flow style, on one line: ``[1, 0]``, ``True``, ``"text"``."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, (int, float)):
        # YAML 1.1 takes 1e-05 for text: a float needs its point.
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key_text(str(key))}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_text(item) for item in value) + "]"
    raise TypeError(f"no YAML form for {type(value).__name__}")


def _key_text(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][\w\-]*", key) else "'" + key.replace("'", "''") + "'"
