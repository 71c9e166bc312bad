"""A client written from the schemas alone, without an import of Taylor, searches, solves and compares."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

CLIENT = Path(__file__).with_name("outside_client.py")


def test_the_client_imports_nothing_of_taylor():
    imported = [
        name.name for node in ast.walk(ast.parse(CLIENT.read_text(encoding="utf-8"))) if isinstance(node, ast.Import)
        for name in node.names
    ]  # fmt: skip
    assert imported == ["json", "subprocess", "sys", "jsonschema"]


@pytest.mark.slow
def test_a_client_of_the_schemas_alone_searches_solves_and_compares(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    done = subprocess.run(
        [sys.executable, str(CLIENT), sys.executable, config, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [
        "taylor.search/1", "taylor.result/1", "taylor.result/1", "taylor.comparison/1", "taylor.error/1"
    ]  # fmt: skip
