"""docs/register.md: the examples of a user's own model, device and rules, and the commands that it prints."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from taylor.nd_search.user_rules import load_user_rules
from taylor.register.device import LinkTier
from taylor.register.registry import Registry
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "register.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder that the page describes."""
    model, layers, device = blocks("yaml")
    [rules] = blocks("python")
    folder = tmp_path / "my_register"
    folder.mkdir()
    (folder / "my-model.yaml").write_text(model)
    (folder / "my-hybrid.yaml").write_text(yaml.safe_dump({**yaml.safe_load(model), **yaml.safe_load(layers)}))
    (folder / "my-card.yaml").write_text(device)
    (folder / "my_rules.py").write_text(rules)
    return folder


def test_the_examples_are_read_as_the_page_tells_them(own: Path) -> None:
    registry = Registry.load(own)
    assert registry.model("my-model").body_counts == {"dense": 1, "moe": 23}
    assert registry.model("my-hybrid").body_counts == {"attn+dense": 1, "gdn+moe": 18, "attn+moe": 5}
    assert registry.device("My Cards").domain == LinkTier("domain", 450, 64)
    assert registry.device("my-card").host_memory_mib == 262144
    assert [rule.name for rule in load_user_rules(own)] == ["whole-nodes", "tp-within-node"]


@pytest.mark.slow
def test_the_commands_of_the_page_run_as_they_are_printed(own: Path) -> None:
    [commands] = blocks("sh")
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        assert program == "taylor"
        done = subprocess.run(
            [sys.executable, "-m", "taylor", *words],
            cwd=own.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (line, done.stderr)
    output = own.parent / "output" / "nd_output"
    found = pd.read_csv(output / "nd_candidate_config.csv")
    assert len(found) and (found["dp"] * found["tp"] * found["cp"] % 64 == 0).all() and (found["tp"] <= 4).all()
    assert "whole-nodes" in set(pd.read_csv(output / "pruned.csv")["rule"])
