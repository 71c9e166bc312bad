"""What is written about the code holds: documented functions, commands of the READMEs, the campaign's table."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.reliability import commands
from benchmarks.reliability.__main__ import BEGIN, END, PAGE, PARTS, with_table
from benchmarks.reliability.campaign import PACKAGES, SCRIPTS
from tests.conftest import ROOT

SOURCES = sorted(path for name in (*PACKAGES, "benchmarks") for path in (ROOT / name).rglob("*.py")) + [
    ROOT / f"{name}.py" for name in SCRIPTS
]


OF_TORCH = {"forward", "backward", "setup_context"}
"""Methods that torch gives their meaning; the class says what it computes."""


def undocumented(tree: ast.Module) -> list[str]:
    """Public modules, classes, functions and methods without a docstring, by name."""
    found = [] if ast.get_docstring(tree) else ["the module"]
    todo: list[tuple[str, ast.AST]] = [("", tree)]
    while todo:
        prefix, node = todo.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = child.name
                if name.startswith("_") or name in OF_TORCH or _is_stub(child):
                    continue
                if not ast.get_docstring(child):
                    found.append(prefix + name)
                if isinstance(child, ast.ClassDef):
                    todo.append((f"{prefix}{name}.", child))
    return found


def _is_stub(node: ast.AST) -> bool:
    """Whether a function is a mere declaration, of a protocol's attribute or an overload."""
    body = getattr(node, "body", [])
    return len(body) == 1 and isinstance(body[0], ast.Expr) and getattr(body[0].value, "value", None) is ...


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_public_says_what_it_is(path: Path):
    assert undocumented(ast.parse(path.read_text(encoding="utf-8"))) == []


def test_a_missing_docstring_is_found():
    text = '"""A."""\nclass A:\n    """B."""\n    def f(self): return 1\ndef _g(): pass'
    assert undocumented(ast.parse(text)) == ["A.f"]


@pytest.mark.parametrize("page", commands.PAGES)
def test_a_page_prints_the_same_commands_in_both_languages(page: str):
    twins = (ROOT / page, ROOT / commands.PAGES[page])
    english, chinese = (commands.commands_of(twin.read_text(encoding="utf-8")) for twin in twins)
    assert english == chinese and english
    assert all(words[0] in ("python", "taylor", *commands.ELSEWHERE) for words in english)


OTHER_TWINS = sorted(
    page.name for page in (ROOT / "docs" / "zh").glob("*.md") if f"docs/zh/{page.name}" not in commands.PAGES.values()
)
"""Chinese pages whose English twin lies in docs/ and whose commands need a cluster, so that no test types them."""


def fenced(text: str) -> list[str]:
    """Fenced blocks of a page, comments of shell lines left out."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+# .*$", "", block, flags=re.MULTILINE) for block in blocks]


@pytest.mark.parametrize("name", OTHER_TWINS)
def test_a_page_that_is_not_typed_has_the_same_blocks_in_both_languages(name: str):
    english, chinese = ((folder / name).read_text(encoding="utf-8") for folder in (ROOT / "docs", ROOT / "docs" / "zh"))
    assert fenced(english) == fenced(chinese) != []


@pytest.mark.parametrize("page", commands.PAGES)
def test_a_page_has_the_same_blocks_in_both_languages(page: str):
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in (page, commands.PAGES[page]))
    assert fenced(english) == fenced(chinese)


@pytest.mark.slow
def test_the_quick_commands_of_the_pages_run_in_a_fresh_clone_as_they_are_printed():
    result = commands.typed(quick=True)
    assert result["faults"] == [] and result["commands"] >= 12


def test_every_page_that_another_one_names_is_there():
    pages = [ROOT / name for name in (*commands.PAGES, *commands.PAGES.values())] + sorted((ROOT / "docs").glob("*.md"))
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} names {target}"


def test_every_test_that_a_page_names_is_there():
    tests = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    named = [
        (page.name, name)
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"[\w/]*\btest_\w+\.py", page.read_text(encoding="utf-8"))
    ]
    assert len(named) > 20
    assert [(page, name) for page, name in named if name not in tests] == []


def test_the_page_has_room_for_the_table_and_a_part_for_each_of_its_commands():
    page = PAGE.read_text(encoding="utf-8")
    assert "NEW" in with_table(page, "NEW") and page.index(BEGIN) < page.index(END)
    assert all((ROOT / "benchmarks" / "reliability" / f"{name}.py").is_file() for name in PARTS)
    with pytest.raises(ValueError, match="marks"):
        with_table("no marks", "NEW")
