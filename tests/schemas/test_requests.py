"""Every field of every request has the default and the limits of the recorded table; its command's flag takes it."""

from __future__ import annotations

import argparse
import json
from functools import cache
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.schemas.document import Part, Record, Share
from taylor.schemas.reading import read_request
from taylor.schemas.registry import file_of
from taylor.schemas.request import BY_COMMAND, REQUEST
from tests.conftest import ROOT
from tests.schemas.test_schemas import PARSERS

TABLE = ROOT / "tests" / "schemas" / "request_fields.yaml"
FIELDS: dict[str, dict[str, str]] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
"""Default and values of each field, by command: ``null; int 1..9 or null``."""

NAMES_OF_MODELS = {
    "solve": "Solve", "evaluate": "Evaluate", "search": "Search", "size": "Size", "why-memory": "Explain",
    "support": "Support", "compare": "Compare", "rank": "Rank", "lengths": "Lengths", "rl": "Reinforcement",
    "layerwise": "Layerwise", "check": "Check", "models": "Models", "devices": "Devices", "rules": "Rules",
    "history": "History",
}  # fmt: skip

JOB = {"file": "a.sh"}
LEAST: dict[str, dict[str, Any]] = {
    "solve": JOB, "evaluate": JOB, "search": JOB, "size": {"model": "m"}, "why-memory": JOB, "support": {},
    "compare": {"first": "a", "second": "b"}, "rank": {"yaml_path": "d"}, "lengths": {**JOB, "lengths": "l.csv"},
    "rl": {**JOB, "generation": "g"}, "layerwise": {},
    "check": {**JOB, "profiles": ["p"], "hidden": 8, "seq": 8, "memory": 8.0},
    "models": {}, "devices": {}, "rules": {}, "history": {},
}  # fmt: skip
"""The fewest fields that a request of each command has."""

OTHERS = {
    ("solve", "model"): ("file", {"world_size": 8}), ("evaluate", "model"): ("file", {"world_size": 8}),
    ("search", "model"): ("file", {"world_size": 8}), ("rank", "model"): ("yaml_path", {}),
    ("rl", "generation_table"): ("generation", {}),
}  # fmt: skip
"""Fields in whose presence another one is left out, and what is needed then."""

LONG = "a" * 300
LIMITS: dict[str, tuple[list[Any], list[Any]]] = {
    "bool": ([True, False], ["maybe", 2]),
    "int 0..1023": ([0, 1023], [-1, 1024, 0.5]),
    "int 0..2147483648": ([0, 2**31], [-1, 2**31 + 1]),
    "int 1..10000": ([1, 10_000], [0, 10_001]),
    "int 1..1000000": ([1, 1_000_000], [0, 1_000_001, 1.5]),
    "int 1..10000000": ([1, 10_000_000], [0, 10_000_001]),
    "int 1..200": ([1, 200], [0, 201]),
    "int 1..600": ([1, 600], [0, 601]),
    "int 1..64": ([1, 64], [0, 65]),
    "number 0..0.5": ([0.0, 0.5], [-1e-9, 0.5000001]),
    "number 0..<1": ([0.0, 0.9999999], [-1e-9, 1.0]),
    "number 0<..100000": ([1e-3, 100_000.0], [0.0, 100_000.001]),
    "number 0<..600": ([1e-3, 600.0], [0.0, 600.001]),
    "text 1..300 ^[^-\\x00][^\\x00]*$": (["a", LONG, "a-b c"], ["", LONG + "a", "-a", "a\0b", 1]),
    "text 0.. ^[0-9.]{1,12}%?$": (["5%", "2048"], ["", "5%%", "1" * 13, "5GB", "-1"]),
    "text 0.. ^[0-9.e+]{1,20}[MBT]?$": (["300B", "2e12", "1.5T", "3e+8", "9M"], ["", "300G", "1" * 21, "300BB"]),
    "text 0..40 ^[0-9.]*(x[0-9]+)?$": (["2.5", "x1024", "1.5x1024", "1" * 40], ["x", "1x1.5", "a", "1" * 41]),
    "text 0..40 ^([0-9.]+x)?[0-9.]*$": (["30", "2x12.5", "1" * 40], ["x5", "2x3x4", "a", "1" * 41]),
    "list 0..32 of text 1..300 ^[^-\\x00][^\\x00]*$": ([["a"] * 32, ["a", LONG]], [["a"] * 33, [""], ["-a"], "a"]),
    "list 1..32 of text 1..300 ^[^-\\x00][^\\x00]*$": ([["a"], ["a"] * 32], [["a"] * 33, [], ["-a"]]),
    "list 0..8 of text 1..300 ^[^-\\x00][^\\x00]*$": ([["a"] * 8], [["a"] * 9, [""]]),
    "list 0..1024 of int 0..1023": ([[0, 1023], [5] * 1024], [[-1], [1024], [5] * 1025]),
    "list 0..64 of int 0..10000000": ([[0, 10_000_000], [7] * 64], [[-1], [10_000_001], [7] * 65]),
    "list 0..9 of dp, tp, pp, ep, cp, op, sp, vpp, mbs": (
        [["dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs"]], [["dp"] * 10, ["etp"]],
    ),
    "map 0..9 of dp, tp, pp, ep, cp, op, sp, vpp, mbs to int 0..1000000": (
        [{"tp": 0, "dp": 1_000_000}], [{"tp": -1}, {"tp": 1_000_001}, {"etp": 1}],
    ),
    "map 0..32 of text 1..300 ^[^-\\x00][^\\x00]*$ to int 0..1000000000": (
        [{"a": 0, "b": 1_000_000_000}, {f"n{i}": i for i in range(1, 33)}, {LONG: 1}],
        [{"a": -1}, {"a": 1_000_000_001}, {f"n{i}": i for i in range(33)}, {"": 1}, {LONG + "a": 1}, {"-a": 1}],
    ),
    "map 0..1024 of text 0.. ^[0-9]{1,4}$ to number 0<..100000000": (
        [{"0": 1e-3, "9": 100_000_000.0}, {str(i): 1.0 for i in range(1024)}],
        [{"0": 0.0}, {"0": 100_000_001.0}, {"12345": 1.0}, {"a": 1.0}, {"": 1.0}, {str(i): 1.0 for i in range(1025)}],
    ),
    "map 0..64 of text 0..100 ^[A-Za-z_][A-Za-z0-9_]*$ to text 0..4096 ^[^\\x00]*$": (
        [{"_A9": "", "b" * 100: "v" * 4096}, {f"N{i}": "1" for i in range(64)}],
        [{"9A": ""}, {"b" * 101: ""}, {"A": "v" * 4097}, {"A": "\0"}, {f"N{i}": "1" for i in range(65)}],
    ),
}  # fmt: skip
"""Values just allowed and just refused, by the words of the table."""


def words_of(field: dict[str, Any]) -> str:
    """Values that a field of a JSON Schema takes, in the words of the table."""
    if "anyOf" in field:
        return " or ".join(words_of(one) for one in field["anyOf"])
    if "enum" in field:
        return ", ".join(field["enum"])
    kind = field.get("type", "const")
    if kind in ("integer", "number"):
        name = {"integer": "int"}.get(kind, kind)
        least = f"{field['exclusiveMinimum']:g}<" if "exclusiveMinimum" in field else f"{field['minimum']:.10g}"
        most = f"<{field['exclusiveMaximum']:g}" if "exclusiveMaximum" in field else f"{field['maximum']:.10g}"
        return f"{name} {least}..{most}"
    if "const" in field:
        return str(field["const"])
    if kind == "string":
        return f"text {field.get('minLength', 0)}..{field.get('maxLength', '')} {field.get('pattern', '')}"
    if kind == "array":
        return f"list {field.get('minItems', 0)}..{field['maxItems']} of {words_of(field['items'])}"
    if kind == "object":
        keys = {"type": "string", **field.get("propertyNames", {})}
        [(pattern, values)] = field.get("patternProperties", {"": field.get("additionalProperties")}).items()
        keys |= {"pattern": pattern} if pattern else {}
        return f"map 0..{field['maxProperties']} of {words_of(keys)} to {words_of(values)}"
    return {"boolean": "bool", "null": "null"}[str(kind)]


def rows_of(schema: dict[str, Any]) -> dict[str, str]:
    """Rows of the table that a JSON Schema of a request gives."""
    return {
        name: f"{json.dumps(field['default']) if 'default' in field else 'needed'}; {words_of(field)}"
        for name, field in schema["properties"].items()
        if name not in ("schema", "command")
    }


def split(row: str) -> tuple[Any, list[str]]:
    """Default (needed: an ellipsis) and alternatives of a row."""
    default, _, words = row.partition("; ")
    return ... if default == "needed" else json.loads(default), words.split(" or ")


def asked(command: str, **fields: Any) -> dict[str, Any]:
    """A request with the fields that it needs and some more."""
    data = {"command": command, **LEAST[command], **fields}
    for name in fields:
        gone, needed = OTHERS.get((command, name), ("", {}))
        data = {key: value for key, value in {**needed, **data}.items() if key != gone}
    return data


def values_of(words: str) -> tuple[list[Any], list[Any]]:
    """Values just allowed and just refused of one alternative of a row."""
    if words in LIMITS:
        return LIMITS[words]
    return ([None], []) if words == "null" else (words.split(", "), [words.split(", ")[0] + "s"])


def test_each_field_has_the_default_and_the_limits_of_the_table():
    shipped = json.loads(file_of(REQUEST).read_text(encoding="utf-8"))["$defs"]
    assert list(FIELDS) == list(BY_COMMAND) == list(NAMES_OF_MODELS)
    for command, rows in FIELDS.items():
        model = BY_COMMAND[command]
        assert model.__name__ == NAMES_OF_MODELS[command]
        assert rows_of(model.model_json_schema()) == rows == rows_of(shipped[model.__name__])
        least = read_request(asked(command))
        assert least.flags() == LEAST[command] | ({"evaluate": True} if command == "evaluate" else {})
        for name, row in rows.items():
            default, _ = split(row)
            assert default is ... or name in LEAST[command] or getattr(least, name) == default, (command, name)


@pytest.mark.parametrize("command", FIELDS)
def test_a_value_at_a_limit_is_taken_as_it_is_and_one_beyond_is_refused_with_its_field(command):
    for name, row in FIELDS[command].items():
        default, alternatives = split(row)
        for allowed, _ in map(values_of, alternatives):
            for value in allowed:
                if value is None and (name in LEAST[command] or (command, name) in OTHERS):
                    continue
                request = read_request(asked(command, **{name: value}))
                assert getattr(request, name) == value and type(getattr(request, name)) is type(value), (name, value)
                if name == "env":
                    value = [f"{key}={each}" for key, each in value.items()]
                elif isinstance(value, dict):
                    value = ",".join(f"{key}={each}" for key, each in value.items())
                assert request.flags().get(name, default) == value, (name, value)
        for value in [value for words in alternatives for value in values_of(words)[1]]:
            with pytest.raises(InputError) as refused:
                read_request(asked(command, **{name: value}))
            assert str(refused.value.field).startswith(name), (name, value)
        if default is ...:
            data = asked(command)
            del data[name]
            with pytest.raises(InputError, match=f"{name}.*[Rr]equired"):
                read_request(data)


SOURCES: list[tuple[str, dict[str, Any], str]] = [
    *((command, data, problem) for command in ("solve", "evaluate", "search") for data, problem in (
        ({"file": "a"}, ""), ({"file": "a", "world_size": 8}, ""), ({"model": "m", "world_size": 8}, ""),
        ({"file": "a", "env": {"A": "1"}, "model_as": "m"}, ""), ({"file": "a", "model_as": "m"}, ""),
        ({}, "exactly one of file and model"), ({"file": "a", "model": "m", "world_size": 8}, "exactly one of file"),
        ({"model": "m"}, "world_size is needed with a model"),
        ({"model": "m", "world_size": 8, "env": {"A": "1"}}, "env and model_as belong to a file"),
        ({"model": "m", "world_size": 8, "model_as": "n"}, "env and model_as belong to a file"),
    )),
    ("rank", {"yaml_path": "d"}, ""), ("rank", {"model": "m"}, ""),
    ("rank", {"yaml_path": "d", "env": {"A": "1"}}, ""), ("rank", {"yaml_path": "d", "model_as": "m"}, ""),
    ("rank", {}, "exactly one of yaml_path and model"),
    ("rank", {"yaml_path": "d", "model": "m"}, "exactly one of yaml_path and model"),
    ("rank", {"model": "m", "env": {"A": "1"}}, "belong to files"),
    ("rank", {"model": "m", "model_as": "n"}, "belong to files"),
    ("rl", {"file": "a", "generation": "g"}, ""), ("rl", {"file": "a", "generation_table": "t"}, ""),
    ("rl", {"file": "a"}, "exactly one of generation and generation_table"),
    ("rl", {"file": "a", "generation": "g", "generation_table": "t"}, "exactly one of generation"),
]  # fmt: skip


def test_a_request_has_one_source_and_what_that_source_needs():
    for command, data, problem in SOURCES:
        if problem:
            with pytest.raises(InputError, match=problem):
                read_request({"command": command, **data})
        else:
            read_request({"command": command, **data})


@cache
def parser_of(command: str) -> argparse.ArgumentParser:
    """Parser of a command, of which no words are parsed."""
    return PARSERS[command].build_parser()


def test_a_default_that_a_request_states_is_that_of_the_flag():
    for command, rows in FIELDS.items():
        actions = {
            name.lstrip("-"): action
            for action in parser_of(command)._actions
            for name in (action.option_strings or [action.dest])
        }
        for name, row in rows.items():
            default, alternatives = split(row)
            action = actions[name]
            words = [word for one in alternatives if one not in LIMITS and one != "null" for word in one.split(", ")]
            if action.choices is not None and words:
                assert set(words) == set(action.choices), (command, name)
            if default is not ... and default not in (None, [], {}, ""):
                assert default == action.default, (command, name)


@pytest.mark.parametrize("command", FIELDS)
def test_the_command_takes_every_value_that_a_request_may_have(command, tmp_path):
    path = tmp_path / "q.json"
    for name, row in FIELDS[command].items():
        values = [value for words in split(row)[1] for value in values_of(words)[0] if value is not None]
        for value in ["auto"] if name == "schedule" else values:
            if isinstance(value, list) and 0 in value and name != "out_of_memory":
                continue  # the released schema allows a count of 0, which the flag refuses
            path.write_text(json.dumps(asked(command, **{name: value})))
            assert PARSERS[command].build_parser().parse(["--config", str(path)])


def test_parts_of_documents_refuse_further_keys_and_records_keep_them_and_neither_is_changed():
    class Own(Part):
        global_: int = 0
        share: Share = 0.0

    class Registered(Record):
        name: str = ""

    with pytest.raises(ValueError, match="Extra inputs"):
        Own.model_validate({"more": 1})
    assert Registered.model_validate({"more": 1}).model_dump() == {"name": "", "more": 1}
    for one, name in ((Own(), "share"), (Registered(), "name")):
        with pytest.raises(ValueError, match="frozen"):
            setattr(one, name, 1)
    assert [Own(share=each).share for each in (0.0, 1.0)] == [0.0, 1.0]
    for each in (-0.001, 1.001):
        with pytest.raises(ValueError, match="share"):
            Own(share=each)
