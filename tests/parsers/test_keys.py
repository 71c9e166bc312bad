"""Every key of a YAML or TOML file is accounted for: read, neutral, or named with what it changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.flag_table import COSTS, NEUTRAL, READ, FlagRow, load_flag_table
from taylor.parsers.nested_keys import leaves, unmodelled_keys
from taylor.parsers.text.toml_edit import TomlSource
from tests.parsers.key_sweep import (
    BASES,
    FACTS,
    KEYS,
    READ_SWEEP,
    attempt,
    base_for,
    config_of,
    figures,
    switched_on,
    with_keys,
)

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
TABLES = {name: load_flag_table(f"taylor.parsers.{name}", "keys.yaml") for name in ("mindformers", "torchtitan")}
MODEL = "model.model_config."
LEGACY, MCORE = BASES["legacy"][1], BASES["mcore"][1]

YAML_SAMPLES = sorted(DATA.glob("mindformers_yaml/*.yaml")) + sorted(DATA.glob("configs_more/mf*.yaml"))
TOML_SAMPLES = [
    path
    for folder in ("torchtitan_toml", "configs_more", "measured_runs/torchtitan")
    for path in sorted((DATA / folder).glob("*.toml"))
]
needs_samples = pytest.mark.skipif(not DATA.is_dir(), reason="the sample files lie outside the repository")


def _rows(status: str) -> list[Any]:
    return [
        pytest.param(launcher, row, id=row.name)
        for launcher, table in TABLES.items()
        for row in table.rows.values()
        if row.status == status
    ]


def _written(row: FlagRow) -> str:
    return f"{row.name[:-1]}any" if row.name.endswith(".*") else row.name


# ---- the tables hold every key -------------------------------------------------------------------


def _names_by_release(launcher: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for release, stated in yaml.safe_load((KEYS / f"{launcher}.yaml").read_text(encoding="utf-8")).items():
        for section, names in (stated if isinstance(stated, dict) else {"top": stated}).items():
            found += [(release, name if section == "top" else f"{section}.{name}") for name in names.split()]
    return found


@pytest.mark.parametrize("launcher", TABLES)
def test_every_key_of_every_release_is_in_the_table(launcher: str) -> None:
    names, table = _names_by_release(launcher), TABLES[launcher]
    assert len(names) > 500
    sections = {row.rpartition(".")[0] for row in table.rows}
    assert [(release, name) for release, name in names if not table.find(name) and name not in sections] == []


@needs_samples
@pytest.mark.parametrize("path", YAML_SAMPLES, ids=lambda path: path.name[:60])
def test_every_key_of_a_mindformers_sample_is_in_the_table(path: Path) -> None:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert [name for name, _ in leaves(data) if TABLES["mindformers"].find(name) is None] == []


@needs_samples
@pytest.mark.parametrize("path", TOML_SAMPLES, ids=lambda path: path.name[:60])
def test_every_key_of_a_torchtitan_sample_is_in_the_table(path: Path) -> None:
    data = TomlSource.read(path).data
    assert [name for name, _ in leaves(data) if TABLES["torchtitan"].find(name) is None] == []


@pytest.mark.parametrize("launcher", TABLES)
def test_what_a_row_needs_is_a_row_or_a_fact_that_a_reader_states(launcher: str) -> None:
    rows = TABLES[launcher].rows
    facts = {"@experts", "@scores", *(("@tensor-parallel", *FACTS) if launcher == "mindformers" else ())}
    assert {name for row in rows.values() for name in row.needs} - set(rows) <= facts


# ---- what costs is named, and nothing else -------------------------------------------------------


@pytest.mark.parametrize(("launcher", "row"), _rows(COSTS))
def test_a_key_that_costs_is_named_when_it_is_switched_on(launcher: str, row: FlagRow) -> None:
    written = _written(row)
    data = with_keys(base_for(launcher, row.name, row.needs), switched_on(row, written, TABLES[launcher].rows))
    named = {flag.name: flag for flag in config_of(launcher, data).unmodelled}
    assert written in named
    flag = named[written]
    assert flag.known and (flag.memory, flag.time, flag.placement) == (row.memory, row.time, row.placement)
    assert "is not modelled; it means" in flag.sentence and row.why in flag.sentence


@pytest.mark.parametrize(("launcher", "row"), _rows(NEUTRAL))
def test_a_neutral_key_is_silent_and_changes_no_figure(launcher: str, row: FlagRow) -> None:
    before = base_for(launcher, row.name)
    config = config_of(launcher, with_keys(before, {_written(row): 7}))
    assert config.unmodelled == ()
    assert figures(config) == figures(config_of(launcher, before))


def test_an_unknown_key_is_named_and_an_unknown_section_once() -> None:
    odd = {f"{MODEL}num_hiden_layers": 9, "own_tool.a": 1, "own_tool.b.c": 2, "own_number": 3}
    found = config_of("mindformers", with_keys(MCORE, odd)).unmodelled
    assert {(flag.name, flag.value) for flag in found} == {
        (f"{MODEL}num_hiden_layers", "9"),
        ("own_tool", None),
        ("own_number", "3"),
    }
    assert not any(flag.known for flag in found)


def test_keys_of_experts_are_silent_in_a_dense_model() -> None:
    key = "moe_config.use_fused_ops_topkrouter"
    assert config_of("mindformers", with_keys(LEGACY, {key: True, "moe_config.expert_num": 1})).unmodelled == ()
    (found,) = config_of("mindformers", with_keys(LEGACY, {key: True})).unmodelled
    assert found.name == key


def test_a_section_that_a_generation_does_not_use_is_silent() -> None:
    data = with_keys(MCORE, {"moe_config.use_fused_ops_topkrouter": True})
    assert config_of("mindformers", data).unmodelled == ()


def test_a_list_of_zeros_is_off_and_a_long_value_is_cut() -> None:
    data = {"a": [0, [False, 0]], "b": None, "c": "", "d": [1, 0], "e": "None"}
    assert dict(leaves(data)) == {"a": "false", "d": "[1, 0]"}
    ((_, text),) = leaves({"long": ["layers"] * 100})
    assert len(text) == 80 and text.endswith("…")


def test_a_key_that_needs_another_is_silent_while_that_one_is_off() -> None:
    keys = {"compile": {"enable": False, "components": ["loss"]}}
    assert unmodelled_keys(TABLES["torchtitan"], keys) == ()
    assert len(unmodelled_keys(TABLES["torchtitan"], with_keys(keys, {"compile.enable": True}))) == 2


# ---- what is read changes the figures ------------------------------------------------------------


@pytest.mark.parametrize(("launcher", "row"), _rows(READ))
def test_a_key_that_is_read_changes_the_figures_or_is_named_or_refused(launcher: str, row: FlagRow) -> None:
    change = READ_SWEEP[row.name]
    before, (after, _) = config_of(launcher, change.before), attempt(launcher, change.after)
    if isinstance(after, InputError):
        assert row.name.rpartition(".")[2] in str(after)
        return
    told = {flag.name for flag in after.unmodelled} | set(after.notes)
    assert figures(after) != figures(before) or told - {flag.name for flag in before.unmodelled} - set(before.notes)


@pytest.mark.parametrize("launcher", TABLES)
def test_a_row_says_read_where_a_reader_asks_for_the_key(launcher: str) -> None:
    rows = TABLES[launcher].rows
    asked: set[str] = set()
    for name, change in READ_SWEEP.items():
        if change.launcher == launcher:
            for data in (change.before, change.after):
                found = attempt(launcher, data)[1]
                asked |= found
                for given, _ in leaves(data):
                    row = TABLES[launcher].find(given)
                    assert given not in found or (row is not None and row.status == READ), f"{name}: {given}"
    said = {name for name, row in rows.items() if row.status == READ and not name.endswith(".*")}
    assert said - asked == set()
