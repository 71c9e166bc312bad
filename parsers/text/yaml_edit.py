"""Values set in a YAML text by splicing: nothing but the wanted values changes, and that is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Collection, Mapping

import yaml

from taylor.base.errors import InputError
from taylor.parsers.text.yaml_source import (
    _LEAD,
    _REST_OF_LINE,
    Alias,
    ValuePlace,
    YamlPath,
    YamlSource,
    _key_text,
    flow_text,
    scalar_of,
)

_MAX_ROUNDS = 8


@dataclass
class _Round:
    """Splices (start, end, new text) of one pass over the text, and the paths they may change."""

    splices: list[tuple[int, int, str]] = field(default_factory=list)
    touched: set[YamlPath] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    def add(self, start: int, end: int, text: str, path: YamlPath) -> None:
        self.splices.append((start, end, text))
        self.touched.add(path)

    def apply(self, text: str) -> str:
        for start, end, new in sorted(self.splices, key=lambda splice: splice[:2], reverse=True):
            text = text[:start] + new + text[end:]
        return text


def edit_yaml(
    source: YamlSource,
    wanted: Mapping[YamlPath, Any],
    *,
    followed: Collection[YamlPath] = (),
    beside: Mapping[str, tuple[str, ...]] | None = None,
) -> YamlSource:
    """Set values in a YAML text.

    A value that already means the same stays as written. A list of the same shape keeps its
    layout and inner comments: only the entries that differ are replaced. Anything else becomes one
    flow-style value in the old one's place. A missing key is put on a line of its own.

    Anchors: where the path is in `followed`, the anchor's aliases are to follow it (``&dp`` on the
    data-parallel degree). Elsewhere an alias keeps its old value unless it stands under a key of the
    same name: the anchor moves, with the old value, to the first alias that stays.

    Parameters
    ----------
    source : YamlSource
        The file as it is; not changed.
    wanted : mapping of path to value
        Plain data: None, bool, int, float, str, list, dict.
    followed : paths
        Paths whose aliases take the new value.
    beside : mapping of key to names
        After which of its siblings a missing key goes, best first.

    Returns
    -------
    YamlSource
        The new text, parsed again.

    Raises
    ------
    InputError
        When a value cannot be set without changing others.
    """
    original, touched = source, set[YamlPath]()
    for _ in range(_MAX_ROUNDS):
        step = _one_round(source, wanted, frozenset(followed), beside or {})
        if not step.splices:
            break
        touched |= step.touched
        source = YamlSource(step.apply(source.text), source.file)
    else:
        raise InputError("its values cannot be set: they depend on each other by aliases", file=source.file)
    _verify(original, source, wanted, touched)
    return source


def lookup(data: Any, path: YamlPath) -> Any:
    """The value at a path of plain data; None when absent."""
    for step in path:
        if isinstance(data, Mapping):
            data = data.get(step)
        elif isinstance(data, list) and isinstance(step, int) and 0 <= step < len(data):
            data = data[step]
        else:
            return None
    return data


def _one_round(
    source: YamlSource,
    wanted: Mapping[YamlPath, Any],
    followed: frozenset[YamlPath],
    beside: Mapping[str, tuple[str, ...]],
) -> _Round:
    step = _Round()
    missing: dict[YamlPath, dict[str, Any]] = {}
    for path, value in wanted.items():
        place = source.place(path)
        if place is None:
            _note_missing(source, path, value, missing)
        elif flow_text(_plain(lookup(source.data, path))) != flow_text(value):
            _replace(source, place, value, path in followed, wanted, step)
    for parent, entries in missing.items():
        place = source.place(parent) if parent else ValuePlace((), source.root)
        if place is None or any(parent[: len(path)] == path for path in step.touched):
            continue  # Its own parent changes in this round: the next one sees where it stands.
        for key, value in entries.items():
            _insert(source, place, key, value, beside.get(key, ()), step)
            step.touched.add((*place.path, key))
    return step


def _plain(value: Any) -> Any:
    """Data of a file reduced to what `flow_text` writes (dates and the like become text)."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _note_missing(source: YamlSource, path: YamlPath, value: Any, missing: dict[YamlPath, dict[str, Any]]) -> None:
    """Group values under the deepest mapping that exists."""
    depth = len(path) - 1
    while depth and source.place(path[:depth]) is None:
        depth -= 1
    entries = missing.setdefault(path[:depth], {})
    for key in path[depth:-1]:
        entries = entries.setdefault(key, {})
    entries[path[-1]] = value


def _replace(
    source: YamlSource, place: ValuePlace, value: Any, follow: bool, wanted: Mapping[YamlPath, Any], step: _Round
) -> None:
    if place.alias is not None:
        home = source.anchor_path[place.alias.name]
        if home in step.touched:
            return  # What it refers to changes in this round; the next one sees whether that was right.
        tied = [path for path in wanted if _alias_name(source, path) == place.alias.name or path == home]
        if follow and all(flow_text(wanted[path]) == flow_text(value) for path in tied):
            target = source.place(home)
            assert target is not None
            _replace(source, target, value, True, wanted, step)
        else:
            step.add(place.alias.start, place.alias.end, flow_text(value), place.path)
        return
    if id(place.node) in step.busy:
        return
    step.busy.add(id(place.node))
    anchor, after_anchor = source.properties_end(place.node)
    kept = _kept_anchor(source, place, anchor, wanted, step) if anchor is not None and not follow else anchor
    if isinstance(value, (list, tuple)) and _same_shape(source, place.node, value, place.path):
        if anchor is not None and kept != anchor:
            at = source.text.index(anchor, place.node.start_mark.index)
            step.add(at, at + len(anchor) + (0 if kept else 1), kept or "", place.path)
        _replace_leaves(source, place.node, value, place.path, step)
        return
    text = f"{kept} {flow_text(value)}" if kept else flow_text(value)
    start, end = place.node.start_mark.index, source.end(place.node, place.path)
    if isinstance(place.node, (yaml.SequenceNode, yaml.MappingNode)) and not place.node.flow_style and place.key:
        start, text = _in_place_of_block(source, place.key, after_anchor if anchor else None, text)
    elif start and source.text[start - 1] in ":-":
        text = " " + text
    step.add(start, max(end, start), text, place.path)


def _alias_name(source: YamlSource, path: YamlPath) -> str | None:
    place = source.place(path)
    return place.alias.name if place is not None and place.alias is not None else None


def _in_place_of_block(source: YamlSource, key: yaml.Node, after_anchor: int | None, text: str) -> tuple[int, str]:
    """Place where a flow value replaces a block one: on the key's line, unless a comment stands between."""
    after_colon = source.text.index(":", key.end_mark.index) + 1
    lead = _LEAD.match(source.text, after_colon if after_anchor is None else after_anchor)
    assert lead is not None
    if "#" not in lead.group():
        return after_colon, " " + text
    line_start = source.text.rfind("\n", 0, lead.end()) + 1
    return line_start, " " * (key.start_mark.column + 2) + text


def _kept_anchor(
    source: YamlSource, place: ValuePlace, anchor: str, wanted: Mapping[YamlPath, Any], step: _Round
) -> str | None:
    """The anchor that a value keeps; where aliases must keep the old value, it moves to the first of them."""
    uses = [alias for alias in source.alias_at.values() if alias.name == anchor[1:]]
    staying = [use for use in uses if use.path not in wanted and use.path[-1] != place.path[-1]]
    if not staying:
        return anchor
    first: Alias = min(staying, key=lambda use: use.start)
    old = flow_text(_plain(lookup(source.data, place.path)))
    step.add(first.start, first.end, f"{anchor} {old}", first.path)
    following = [use for use in uses if use not in staying and use.path not in wanted]
    if not following:
        return None
    # Two values now: the aliases that follow the new one get a name of their own.
    fresh = anchor[1:] + "_plan"
    while fresh in source.anchor_path:
        fresh += "_"
    for use in following:
        step.add(use.start, use.end, f"*{fresh}", use.path)
    return f"&{fresh}"


def _same_shape(source: YamlSource, node: yaml.Node, value: Any, path: YamlPath) -> bool:
    if isinstance(value, (list, tuple)):
        if not isinstance(node, yaml.SequenceNode) or len(node.value) != len(value) or path in source.alias_at:
            return False
        pairs = enumerate(zip(node.value, value, strict=True))
        return all(_same_shape(source, part, item, (*path, index)) for index, (part, item) in pairs)
    return path in source.alias_at or (isinstance(node, yaml.ScalarNode) and not isinstance(value, Mapping))


def _replace_leaves(source: YamlSource, node: yaml.Node, value: Any, path: YamlPath, step: _Round) -> None:
    if isinstance(value, (list, tuple)):
        assert isinstance(node, yaml.SequenceNode)
        for index, (part, item) in enumerate(zip(node.value, value, strict=True)):
            _replace_leaves(source, part, item, (*path, index), step)
        return
    if flow_text(_plain(_leaf_value(source, node, path))) == flow_text(value):
        return
    if path in source.alias_at:
        alias = source.alias_at[path]
        step.add(alias.start, alias.end, flow_text(value), path)
        return
    _, start = source.properties_end(node)
    start += len(source.text[start:]) - len(source.text[start:].lstrip(" "))
    end = source.end(node, path)
    step.add(start, end, (" " if end <= start else "") + flow_text(value), path)


def _leaf_value(source: YamlSource, node: yaml.Node, path: YamlPath) -> Any:
    return scalar_of(node)


def _insert(source: YamlSource, place: ValuePlace, key: str, value: Any, names: tuple[str, ...], step: _Round) -> None:
    """Put a missing key into a mapping, or turn an empty value into a mapping that holds it."""
    node = place.node
    entry = f"{_key_text(key)}: {flow_text(value)}"
    if not isinstance(node, yaml.MappingNode):
        if isinstance(node, yaml.ScalarNode) and node.tag in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"):
            if id(node) not in step.busy:
                step.busy.add(id(node))
                start, end = node.start_mark.index, source.end(node, place.path)
                step.add(start, end, (" " if end == start else "") + "{" + entry + "}", place.path)
            return
        raise InputError("must be a mapping of names to values", file=source.file, field=".".join(map(str, place.path)))
    if node.flow_style:
        _, start = source.properties_end(node)
        brace = source.text.index("{", start) + 1
        step.add(brace, brace, entry + (", " if node.value else ""), (*place.path, key))
        return
    indent = " " * node.value[0][0].start_mark.column
    if isinstance(value, Mapping) and value:
        inner = source.newline + indent + "  "
        entry = f"{_key_text(key)}:" + "".join(f"{inner}{_key_text(k)}: {flow_text(v)}" for k, v in value.items())
    pairs = {pair[0].value: pair for pair in node.value if isinstance(pair[0], yaml.ScalarNode)}
    for sibling in [pairs[name] for name in names if name in pairs] + [node.value[-1]]:
        end = source.end(sibling[1], (*place.path, sibling[0].value))
        rest = _REST_OF_LINE.match(source.text, max(end, sibling[0].end_mark.index))
        if rest is not None and not _is_literal(sibling[1]):
            step.add(rest.end(), rest.end(), source.newline + indent + entry, (*place.path, key))
            return
    first = node.value[0][0].start_mark.index
    step.add(first, first, entry + source.newline + indent, (*place.path, key))


def _is_literal(node: yaml.Node) -> bool:
    while isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and node.value:
        node = node.value[-1][1] if isinstance(node, yaml.MappingNode) else node.value[-1]
    return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")


def _verify(before: YamlSource, after: YamlSource, wanted: Mapping[YamlPath, Any], touched: set[YamlPath]) -> None:
    """Check, as data and as text, that the wanted values are there and nothing else changed."""
    for path, value in wanted.items():
        found = _plain(lookup(after.data, path))
        if flow_text(found) != flow_text(value):
            raise InputError(
                "cannot be set, for another value is tied to it",
                file=before.file,
                field=".".join(map(str, path)),
                value=found,
                cure="write the value out instead of an alias",
            )
    old, new = before.leaves(), after.leaves()
    for path in old.keys() | new.keys():
        if old.get(path) != new.get(path) and not any(path[: len(top)] == top for top in touched):
            raise InputError(
                "cannot be set without changing another value",
                file=before.file,
                field=".".join(map(str, path)),
                cure="write the value out instead of an alias",
            )
