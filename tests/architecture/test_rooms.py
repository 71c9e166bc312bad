"""The picture in `docs/architecture.md` is the house as it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PICTURE = ROOT / "docs" / "architecture.md"
ROOMS_OF_THE_PACKAGE = ROOT / "taylor"
"""The folder whose sub-folders are rooms too (`command_lines`)."""


def arrows() -> set[tuple[str, str]]:
    """(room, room that it imports), as the page draws them."""
    drawing = re.search(r"```mermaid\n(.*?)```", PICTURE.read_text(encoding="utf-8"), re.S)
    assert drawing is not None
    return {(left, right) for left, right in re.findall(r"^\s*(\w+) --> (\w+)$", drawing[1], re.M)}


def rooms() -> dict[str, Path]:
    """Folder of each room."""
    beside = {path.parent.name: path.parent for path in ROOT.glob("*/__init__.py")}
    for other in ("taylor", "tests", "benchmarks"):
        beside.pop(other, None)
    inside = {path.parent.name: path.parent for path in ROOMS_OF_THE_PACKAGE.glob("*/__init__.py")}
    return beside | inside


def imports(room: Path) -> Iterator[tuple[Path, str]]:
    """(file, imported room) of every import of the package in a room, deferred ones included."""
    for path in sorted(room.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: imports are absolute"
                names = [node.module or ""]
                if node.module == "taylor":
                    names = [f"taylor.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            yield from ((path, name.split(".")[1]) for name in names if name.startswith("taylor."))


def reachable(drawn: set[tuple[str, str]], start: str) -> set[str]:
    """Rooms to which the arrows lead from one."""
    found: set[str] = set()
    open_rooms = [start]
    while open_rooms:
        room = open_rooms.pop()
        new = {right for left, right in drawn if left == room} - found
        found |= new
        open_rooms += new
    return found


def test_every_folder_with_code_is_a_room_of_the_picture_and_the_other_way_round() -> None:
    drawn = {room for arrow in arrows() for room in arrow}
    assert drawn == set(rooms())


def test_arrows_lead_down_never_back() -> None:
    drawn = arrows()
    for room in rooms():
        assert room not in reachable(drawn, room), f"the arrows lead from {room} back to it"


@pytest.mark.slow
def test_every_import_between_rooms_follows_the_arrows() -> None:
    drawn = arrows()
    strays = [
        f"{path.relative_to(ROOT)} imports {target}"
        for name, room in rooms().items()
        for path, target in imports(room)
        if target != name and target in rooms() and target not in reachable(drawn, name)
    ]
    assert strays == []


@pytest.mark.slow
def test_every_arrow_is_walked_by_an_import() -> None:
    walked = {(name, target) for name, room in rooms().items() for _, target in imports(room)}
    assert arrows() - walked == set()
