"""The sources are those of every Python that is declared, and the tools check the oldest."""

from __future__ import annotations

import ast
import re

import pytest

from benchmarks.pythons import SUPPORTED
from tests.conftest import ROOT
from tests.packaging import hostile

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
NEW_IN_3_11 = {
    "asyncio.timeout",
    "asyncio.TaskGroup",
    "datetime.UTC",
    "enum.StrEnum",
    "typing.Self",
    "typing.assert_never",
}


def sources():
    folders = sorted(hostile.own_names(ROOT) | {"benchmarks"})
    return [*ROOT.glob("*.py"), *(file for name in folders for file in sorted((ROOT / name).rglob("*.py")))]


def test_the_declared_versions_are_those_that_are_tried():
    assert tuple(re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)) == SUPPORTED
    newest = int(SUPPORTED[-1].partition(".")[2])
    assert f'requires-python = ">={SUPPORTED[0]},<3.{newest + 1}"' in PROJECT
    assert f'python_version = "{SUPPORTED[0]}"' in PROJECT
    assert f'target-version = "py{SUPPORTED[0].replace(".", "")}"' in PROJECT


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_readme_names_the_oldest_and_the_newest(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert SUPPORTED[0] in text and SUPPORTED[-1] in text


@pytest.mark.slow
def test_every_source_is_of_the_oldest_syntax():
    oldest = tuple(map(int, SUPPORTED[0].split(".")))
    for file in sources():
        ast.parse(file.read_text(encoding="utf-8"), filename=str(file), feature_version=oldest)


@pytest.mark.slow
def test_no_class_of_logging_is_subscripted_where_the_oldest_has_it_plain():
    """`logging.StreamHandler[Any]` exists from 3.11 on; a module with it cannot be imported before."""
    for file in sources():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            bases = node.bases if isinstance(node, ast.ClassDef) else []
            for base in bases:
                assert not (isinstance(base, ast.Subscript) and ast.unparse(base).startswith("logging.")), file


@pytest.mark.slow
def test_no_source_names_what_only_newer_pythons_have():
    for file in sources():
        text = file.read_text(encoding="utf-8")
        assert not {name for name in NEW_IN_3_11 if re.search(rf"^[^\"']*\b{re.escape(name)}\b", text, re.M)}, file
