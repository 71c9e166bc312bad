"""Requests that cannot be read are refused with field, value and cure, and schemas are found by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.schemas import registry
from taylor.schemas.reading import read_request

FILE = Path("q.json")
DESCRIBED = "taylor schema request describes it"


@pytest.mark.parametrize(
    "data, said",
    [
        ({"command": "solve", "file": "a", "schema": "taylor.result/1"},
         "schema: is no schema of requests that this version reads (found 'taylor.result/1'); use taylor.request/1"),
        ({}, "command: is no command of a request (found None)"),
        ({"command": ["solve"]}, "command: is no command of a request (found ['solve'])"),
        ({"command": "ranke"}, "command: is no command of a request (found 'ranke'); did you mean rank"),
        ({"command": "solve"}, "exactly one of file and model is needed; " + DESCRIBED),
        ({"command": "compare", "first": "a"}, "second: Field required (found {'command': 'compare', 'first': 'a'}); "
         + DESCRIBED),
        ({"command": "models", "nam": "a"}, "nam: is no field of the command models (found 'a'); did you mean name? "
         + DESCRIBED),
        ({"command": "models", "name": "-a"},
         "name: is not a name or path that begins with no dash (found '-a'); " + DESCRIBED),
        ({"command": "check", "file": "f", "profiles": ["-p"], "hidden": 1, "seq": 1, "memory": 1},
         "profiles.0: is not a name or path that begins with no dash (found '-p'); " + DESCRIBED),
        ({"command": "models", "schema_": "taylor.request/1"},
         "schema_: is no field of the command models (found 'taylor.request/1');"),
        ({"command": "support", "precision": "int8"},
         "precision: Input should be 'bf16', 'fp16', 'fp8', 'fp4', 'tf32' or 'fp32' (found 'int8'); " + DESCRIBED),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_request_is_said_with_its_file_field_value_and_cure(data, said):
    with pytest.raises(InputError) as refused:
        read_request(data, FILE)
    assert str(refused.value).startswith(f"q.json: {said}"), str(refused.value)


def test_a_request_may_name_its_schema_or_leave_it_out():
    whole = read_request({"schema": "taylor.request/1", "command": "devices"})
    assert whole == read_request({"command": "devices"}) and whole.schema_ == "taylor.request/1"


def test_schemas_are_found_by_name_and_their_files_are_named_for_them(tmp_path, monkeypatch):
    assert registry.names() == sorted(registry.names()) and "taylor.result/1" in registry.names()
    assert registry.file_of("taylor.result/1") == registry.file_of("result/1") == registry.FILES / "result.1.json"
    assert json.loads(registry.schema_text("error"))["$id"] == "taylor.error/1" == registry.shipped("error")["$id"]
    assert registry.model_of("taylor.result/1").__name__ == "Result"
    assert registry.model_of("taylor.memory/1").__name__ == "MemoryFile"
    assert "taylor.memory/1" not in registry.models("result")
    with pytest.raises(InputError) as refused:
        registry.schema_text("eror")
    assert "did you mean error" in str(refused.value)
    with pytest.raises(InputError, match="is no schema"):
        registry.schema_text("result/9")
    made = registry.made_schemas()
    assert list(made) == sorted(made)
    assert all(one["$id"] == name and one["$schema"] == registry.DRAFT for name, one in made.items())
