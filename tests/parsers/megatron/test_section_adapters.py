"""Defaults of a section's adapters, against those of the programs' own classes where a clone is available."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reliability.outside import NotHere, source
from taylor.parsers.megatron.section_adapters import section_adapters

FILE = Path("job.yaml")


def own_defaults(repository: str, revision: str, path: str) -> dict[str, Any]:
    """Fields of the class ``LoRA`` that have a plain value or a list of names by default."""
    try:
        tree = ast.parse(source(repository, revision, path))
    except NotHere as here:
        pytest.skip(str(here))
    (own,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LoRA"]
    found = {}
    for field in own.body:
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            value = field.value
            if isinstance(value, ast.Call) and isinstance(value.keywords[0].value, ast.Lambda):
                value = value.keywords[0].value.body
            found[field.target.id] = ast.literal_eval(value) if value is not None else None
    return found


@pytest.mark.parametrize(
    ("repository", "revision", "path"),
    [
        ("Megatron-Bridge", "067f987d", "src/megatron/bridge/peft/lora.py"),
        ("Primus", "fd1eeabb", "primus/backends/megatron/peft/lora.py"),
    ],
)
def test_a_section_without_fields_states_the_program_s_defaults(repository: str, revision: str, path: str) -> None:
    own = own_defaults(repository, revision, path)
    assert {"dim", "dropout", "target_modules"} <= set(own)
    assert section_adapters({}, FILE, "peft") == section_adapters(own, FILE, "peft")
    assert section_adapters({**own, "dim": own["dim"] + 1}, FILE, "peft") != section_adapters({}, FILE, "peft")
