"""The form of the tables of flags, and what a table says about a file's flags."""

from typing import Any

import pytest

from taylor.parsers.flag_table import FlagTable, load_flag_table, table_from_mapping


def _table(**rows: dict[str, Any]) -> FlagTable:
    named = {name.replace("_", "-"): row for name, row in rows.items()}
    group = {"group": "Any", "why": "it does so", "source": "launcher 1.0 arguments.py:1", "rows": named}
    return table_from_mapping({"launcher": "any", "groups": [group]})


COSTLY = {"status": "costs", "time": "less", "memory": "more"}


def test_a_neutral_or_read_flag_is_silent() -> None:
    table = _table(log_interval={"status": "neutral"}, num_layers={"status": "read"})
    assert table.unmodelled([("log-interval", "7"), ("num-layers", "32")]) == ()


def test_a_flag_that_costs_is_named_with_its_directions() -> None:
    (found,) = _table(overlap={**COSTLY, "takes_value": False}).unmodelled([("overlap", None)], prefix="--")
    assert found.sentence == "--overlap is not modelled; it means more memory and less time: it does so"


def test_a_flag_at_its_default_or_a_like_value_is_silent() -> None:
    table = _table(buckets={**COSTLY, "default": 1.0, "silent": ["auto"]})
    assert table.unmodelled([("buckets", "1")]) == ()
    assert table.unmodelled([("buckets", "Auto")]) == ()
    assert [flag.value for flag in table.unmodelled([("buckets", "2")])] == ["2"]


def test_a_switch_set_to_false_is_silent() -> None:
    table = _table(overlap={**COSTLY, "takes_value": False})
    assert table.unmodelled([("overlap", "False")]) == ()
    assert len(table.unmodelled([("overlap", "True")])) == 1


def test_a_flag_that_needs_another_is_silent_without_it() -> None:
    table = _table(drop={**COSTLY, "needs": ["num-experts"]}, num_experts={"status": "read"})
    assert table.unmodelled([("drop", "1")]) == ()
    assert len(table.unmodelled([("drop", "1"), ("num-experts", "8")])) == 1


def test_a_read_flag_is_named_for_the_values_that_are_not_modelled() -> None:
    table = _table(kind={"status": "read", "silent": ["rope", "none"], "time": "either"})
    assert table.unmodelled([("kind", "rope")]) == ()
    assert [flag.value for flag in table.unmodelled([("kind", "relative")])] == ["relative"]


def test_an_unknown_flag_is_named_as_unknown() -> None:
    (found,) = _table(kind={"status": "read"}).unmodelled([("knid", "1")], prefix="--")
    assert not found.known and "--knid 1 is not known" in found.sentence


def test_a_starred_row_stands_for_every_key_below_it() -> None:
    rows = {"data.*": {"status": "neutral"}, "data.cache.size": COSTLY}
    group = {"group": "Any", "why": "it does so", "source": "any:1", "rows": rows}
    table = table_from_mapping({"launcher": "any", "groups": [group]})
    assert table.unmodelled([("data.path.first", "x")]) == ()
    assert [flag.name for flag in table.unmodelled([("data.cache.size", "9"), ("model.x", "1")])] == [
        "data.cache.size",
        "model.x",
    ]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"status": "free"}, "status"),
        ({"status": "costs"}, "no direction"),
        ({"status": "costs", "time": "slower"}, "direction"),
        ({"status": "neutral", "time": "less"}, "neutral"),
        ({"status": "read", "silent": ["a"]}, "silent"),
        ({"status": "neutral", "cost": 1}, "no field"),
        ({"status": "costs", "memory": "less", "most": {"hidden_bytes": 2}}, "more memory"),
        ({"status": "costs", "memory": "more", "most": {"bytes": 2}}, "most must give"),
        ({"status": "costs", "memory": "more", "most": {"kept": {"width": 2}}}, "most.kept must give"),
        ({"status": "costs", "memory": "more", "most": {"layers": 0}}, "above 0"),
        ({"status": "neutral", "why": ""}, "why and source"),
    ],
)
def test_a_row_that_is_not_in_the_form_is_refused(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _table(flag=row)


def test_true_alone_leaves_no_operator_out_of_mindformers_recompute() -> None:
    table, key = load_flag_table("taylor.parsers.mindformers", "keys.yaml"), "recompute_config.select_recompute_exclude"
    assert table.unmodelled([(key, "True")]) == ()
    assert [flag.memory for flag in table.unmodelled([(rf"{key}.feed_forward\.mul", "True")])] == ["more"]
