"""Options of ROLL, AReaL and EasyR1 as the tables state them, against the programs' own classes and configurations.

Skipped without a clone of them (`benchmarks/reliability/outside.py`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.reliability.outside import NotHere, folder_of, source
from taylor.parsers.areal.job import own_table as areal_table
from taylor.parsers.flag_table import FlagRow, FlagTable
from taylor.parsers.policy.fields import means_flag
from taylor.parsers.roll.experiment import ACTOR, ROLES
from taylor.parsers.roll.job import own_table as roll_table
from taylor.parsers.verl.job import own_table as verl_table
from taylor.parsers.verl.programs import EASY_R1

CITED = re.compile(r"(?P<repository>ROLL|AReaL|EasyR1) (?P<revision>[0-9a-f]{8}) (?P<path>\S+\.py):(?P<line>\d+)")
NOTHING = (None, "", [], {}, "MISSING")
ROWS = [
    (row.name, row, match)
    for table in (roll_table(), areal_table(), verl_table())
    for row in table.rows.values()
    if (match := CITED.fullmatch(row.source)) is not None
]


@cache
def text_of(repository: str, revision: str, path: str) -> str:
    try:
        return source(repository, revision, path)
    except NotHere as here:
        pytest.skip(str(here))


@cache
def fields_of(text: str) -> dict[int, tuple[str, Any]]:
    """Name and default of every field of a class, and of every option that is asked of a mapping, by its line."""
    found: dict[int, tuple[str, Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.lineno] = (node.target.id, default_of(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            name, *default = node.args
            if isinstance(name, ast.Constant):
                found[name.lineno] = (str(name.value), default_of(default[0]) if default else None)
    return found


def default_of(value: ast.expr | None) -> Any:
    """A default as far as it is plain; the text of an expression otherwise."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "field":
        stated = {each.arg: each.value for each in value.keywords}
        return default_of(stated.get("default"))
    if value is None:
        return None
    try:
        return ast.literal_eval(value)
    except ValueError:
        return ast.unparse(value)


@pytest.mark.parametrize(("row", "cited"), [each[1:] for each in ROWS], ids=[each[0] for each in ROWS])
def test_an_option_has_the_name_and_the_default_of_the_programs_own_class(row: FlagRow, cited: re.Match[str]) -> None:
    fields = fields_of(text_of(cited["repository"], cited["revision"], cited["path"]))
    name, default = fields.get(int(cited["line"]), ("", None))
    assert name == row.name.removesuffix(".*").rpartition(".")[2]
    if row.default is not None:
        assert yaml.safe_load(row.default) == default or row.default == str(default)
    elif row.status == "costs" and default not in NOTHING:
        assert not row.is_silent(str(default))  # What the default costs is in no figure, and is reported.


@pytest.mark.parametrize(("name", "value"), EASY_R1.defaults.items())
def test_easy_r1s_defaults_are_those_of_its_classes(name: str, value: str) -> None:
    row = verl_table().rows[name]
    cited = CITED.fullmatch(row.source)
    path = cited["path"] if cited is not None else "verl/trainer/config.py"
    fields = fields_of(text_of("EasyR1", "b44b311b", path))
    line = int(cited["line"]) if cited is not None else None
    last = name.rpartition(".")[2]
    found = [default for at, (field, default) in fields.items() if field == last and line in (at, None)]
    assert len(found) == 1
    assert found[0] in (yaml.safe_load(value), None)


def leaves(data: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Dotted keys of values other than null."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}"


def of_roll(data: dict[str, Any]) -> dict[str, Any] | None:
    """ROLL's, whose role that trains stands below the actor's name; Hydra takes ``defaults`` and ``hydra``."""
    role = next((name for name in ROLES if isinstance(data.get(name), dict)), None)
    if role is None:
        return None
    return {ACTOR if name == role else name: value for name, value in data.items() if name not in ("defaults", "hydra")}


def of_areal(data: dict[str, Any]) -> dict[str, Any] | None:
    return data if "actor" in data else None


def of_easy_r1(data: dict[str, Any]) -> dict[str, Any] | None:
    return data if "worker" in data else None


MEGATRON = f"{ACTOR}.strategy_args.strategy_config."


@pytest.mark.parametrize(
    ("repository", "revision", "table", "training_of", "least"),
    [
        ("ROLL", "8eb27cc2", roll_table(), of_roll, 100),
        ("AReaL", "4aef98d8", areal_table(), of_areal, 50),
        ("EasyR1", "b44b311b", verl_table(), of_easy_r1, 1),
    ],
)
def test_every_option_of_the_shipped_configurations_has_a_row(
    repository: str,
    revision: str,
    table: FlagTable,
    training_of: Callable[[dict[str, Any]], dict[str, Any] | None],
    least: int,
) -> None:
    try:
        folder = folder_of(repository, revision, "examples")
    except NotHere as here:
        pytest.skip(str(here))
    count, unknown = 0, {}
    for path in sorted(Path(folder).rglob("*.yaml")):
        data = next(yaml.safe_load_all(path.read_text(encoding="utf-8")), None)
        training = training_of(data) if isinstance(data, dict) else None
        for name in leaves(training or {}):
            field = name.removeprefix(MEGATRON).removeprefix("additional_configs.")
            if table.find(name) is None and not (name.startswith(MEGATRON) and means_flag(field)):
                unknown[name] = path.name
        count += training is not None
    assert unknown == {}
    assert count >= least
