"""The shipped schemas are those of the models, and a changed field raises a version."""

from __future__ import annotations

import argparse
import copy
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import taylor
from benchmarks.schema_files import RELEASED, shape
from taylor.base.errors import InputError
from taylor.command_lines import check as check_command
from taylor.command_lines import compare as compare_command
from taylor.command_lines import (
    devices,
    history,
    layerwise,
    lengths,
    models,
    parallel_tool,
    pipeline_parallel,
    pipeline_tool,
    rules,
    schema,
    why_memory,
)  # fmt: skip
from taylor.command_lines import rl as rl_command
from taylor.command_lines import size as size_command
from taylor.command_lines import support as support_command
from taylor.schemas.reading import read_request
from taylor.schemas.registry import file_of, made_schemas, names
from taylor.schemas.request import BY_COMMAND, FORMS
from tests.schemas.documents import check, validator


def raised(released: dict[str, Any], made: dict[str, Any]) -> list[str]:
    """Schemas whose shape changed, or that went, without a higher version."""
    wrong = []
    for name, was in released.items():
        stem, _, version = name.partition("/")
        later = any(one.startswith(f"{stem}/") and int(one.partition("/")[2]) > int(version) for one in made)
        if (name in made and shape(made[name]) != was) or (name not in made and not later):
            wrong.append(name)
    return wrong


def test_the_shipped_files_are_those_of_the_models():
    made = made_schemas()
    assert names() == sorted(made)
    assert all(json.loads(file_of(name).read_text(encoding="utf-8")) == one for name, one in made.items())


def test_no_schema_of_the_last_release_has_changed_under_its_version():
    released = json.loads(Path(RELEASED).read_text(encoding="utf-8"))
    assert not raised(released, made_schemas()), "raise the version: taylor.NAME/2"


@pytest.mark.parametrize("change", ["field", "type", "word", "gone", "required"])
def test_a_changed_field_is_noticed_and_a_description_is_not(change):
    made = made_schemas()
    released = {name: shape(one) for name, one in made.items()}
    changed = copy.deepcopy(made)
    error = changed["taylor.error/1"]
    if change == "field":
        error["properties"]["hint"] = {"type": "string"}
    elif change == "type":
        error["properties"]["exit_code"]["type"] = "string"
    elif change == "word":
        error["properties"]["code"]["enum"].pop()
    elif change == "gone":
        del changed["taylor.error/1"]
    else:
        error["required"].remove("cure")
    assert raised(released, changed) == ["taylor.error/1"]
    changed["taylor.error/2"] = changed.pop("taylor.error/1", error)
    assert not raised(released, changed)
    made["taylor.error/1"]["description"] = "another"
    assert not raised(released, made)


def test_every_schema_is_one_and_refuses_a_document_of_another():
    for name in names():
        Draft202012Validator.check_schema(json.loads(file_of(name).read_text(encoding="utf-8")))
        assert not validator(name).is_valid({"schema": "taylor.other/1"})


def test_a_schema_is_printed_by_its_name_with_or_without_version(capsys):
    for word in ("result", "result/1", "taylor.result/1"):
        schema.run([word])
        assert json.loads(capsys.readouterr().out)["$id"] == "taylor.result/1"
    schema.run(["--json"])
    assert check(capsys.readouterr().out)["schemas"] == names()
    with pytest.raises(InputError, match="did you mean result"):
        schema.run(["resutl"])


@pytest.mark.parametrize(
    "data, field, cure",
    [
        ({"command": "solv"}, "command", "did you mean solve"),
        ({"command": "solve", "model": "llama3-8b"}, None, "taylor schema request"),
        ({"command": "solve", "file": "a.sh", "model": "b"}, None, "taylor schema request"),
        ({"command": "search", "model": "a", "worldsize": 8}, "worldsize", "did you mean world_size"),
        ({"command": "solve", "file": "a.sh", "risk": 2}, "risk", "taylor schema request"),
        ({"command": "solve", "file": "-o"}, "file", "taylor schema request"),
        ({"command": "solve", "file": "a.sh", "gbs": 1e300}, "gbs", "taylor schema request"),
        ({"command": "solve", "file": "a.sh", "schema": "taylor.request/9"}, "schema", "use taylor.request/1"),
    ],
)
def test_a_wrong_request_is_refused_with_its_field_and_a_cure(data, field, cure):
    with pytest.raises(InputError) as refused:
        read_request(data)
    assert refused.value.field == field and cure in str(refused.value)


def test_a_text_of_another_form_is_refused_with_the_form_in_words():
    with pytest.raises(InputError) as refused:
        read_request({"command": "solve", "file": "a.sh", "env": {"N NODES": "2"}})
    assert str(refused.value).startswith("env.N NODES: is not the name of a variable: letters, digits and _")

    def patterns_in(schema):
        if isinstance(schema, list):
            return set().union(*map(patterns_in, schema))
        if not isinstance(schema, dict):
            return set()
        own = {schema["pattern"]} if isinstance(schema.get("pattern"), str) else set()
        return own.union(schema.get("patternProperties", ()), *map(patterns_in, schema.values()))

    assert patterns_in([command.model_json_schema() for command in BY_COMMAND.values()]) == set(FORMS)


def test_figures_of_a_request_reach_the_command_in_full():
    request = {"command": "evaluate", "file": "a.sh", "measured_peak": {"0": 81559.4375}, "stage_limit": {"1": 1e7}}
    flags = read_request(request).flags()
    assert (flags["measured_peak"], flags["stage_limit"]) == ("0=81559.4375", "1=10000000.0")


def test_the_newest_version_of_a_schema_is_the_one_meant(tmp_path, monkeypatch):
    from taylor.schemas import registry

    for version in (2, 9, 10):
        (tmp_path / f"result.{version}.json").write_text(str(version))
    monkeypatch.setattr(registry, "FILES", tmp_path)
    assert registry.schema_text("result") == "10" and registry.schema_text("result/9") == "9"


PARSERS = {
    "solve": pipeline_parallel, "evaluate": pipeline_parallel, "search": parallel_tool, "why-memory": why_memory,
    "size": size_command, "support": support_command, "compare": compare_command, "rank": pipeline_tool,
    "lengths": lengths, "rl": rl_command, "layerwise": layerwise, "check": check_command, "models": models,
    "devices": devices, "rules": rules, "history": history,
}  # fmt: skip


def flags_of(module: Any) -> set[str]:
    """All names by which a command's parser takes something, without dashes."""
    parser: argparse.ArgumentParser = module.build_parser()
    return {
        name.lstrip("-").replace("-", "_")
        for action in parser._actions
        for name in (action.option_strings or [action.dest])
    }


@pytest.mark.parametrize("command", BY_COMMAND)
def test_a_request_has_the_names_of_the_commands_flags(command):
    fields = set(BY_COMMAND[command].model_fields) - {"schema_", "command"}
    assert fields <= flags_of(PARSERS[command])


OF_PYTHON_ALONE = {
    "what": "the configuration, which FILE names",
    "candidates": "the folder, which --yaml_path names",
    "plan": "a plan object",
    "speed": "of an engine; --generation and --generation_table state it",
    "found": "what evaluate_rl returned",
    "params": "the solver's parameters",
    "earlier": "measurements that an earlier call returned; a command finds them in its folder",
    "on_progress": "a function",
    "options": "fields of SearchOptions, checked below",
    "rules_path": "rules are a part of --register_path",
    "output": "of choose and size: the folder of its files, which a command has by its working folder",
    "seq_length": "the older name of seq",
}
"""Arguments of the functions without a flag, and why."""


@pytest.mark.parametrize(
    "function, module",
    [
        (taylor.solve, pipeline_parallel), (taylor.evaluate, pipeline_parallel), (taylor.choose, pipeline_parallel),
        (taylor.search, parallel_tool), (taylor.rank, pipeline_tool), (taylor.size, size_command),
        (taylor.evaluate_rl, rl_command), (taylor.split_rl, rl_command),
    ],
)  # fmt: skip
def test_an_argument_of_a_function_is_a_flag_of_its_command(function, module):
    flags = flags_of(module)
    named = [name for name in inspect.signature(function).parameters if name not in OF_PYTHON_ALONE]
    assert [name for name in named if name not in flags] == []


SHARED_FLAGS = {
    "device", "memory", "vpp", "schedule", "select", "low_mem", "recompute_modules", "offload", "offload_optimizer",
    "stage_devices", "stage_order", "risk", "margin", "gap", "time_limit", "solver", "workers", "allow_illegal",
    "measured_peaks", "out_of_memory", "peak_of", "stage_limits",
}  # fmt: skip


def test_what_decides_a_plan_has_the_same_name_in_python():
    assert set(inspect.signature(taylor.solve).parameters) >= SHARED_FLAGS
    assert flags_of(pipeline_parallel) >= SHARED_FLAGS
    assert set(inspect.signature(taylor.choose).parameters) >= {
        "seq",
        "gbs",
        "fix",
        "framework",
        "software",
        "override",
    }
