"""Values of a config.json: the file goes before the default, null before nothing, and each is in its range."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.huggingface.values import MAX_LISTED, Values


def values_of(data: dict[str, Any], **defaults: Any) -> Values:
    return Values(data, Path("config.json"), "some", defaults, "text")


NOTHING = object()


def told(read: Callable[[], Any]) -> Any:
    """What is read, or the text of the refusal."""
    try:
        return read()
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("default", [NOTHING, None, 3, 9])
def test_a_size_under_one_of_two_names_is_taken_from_the_file_then_from_the_class(default: Any) -> None:
    for one, other in itertools.product((NOTHING, None, 0, 1, 5, 6, 5.0), repeat=2):
        data = {name: value for name, value in (("a", one), ("b", other)) if value is not NOTHING}
        values = values_of(data, **({} if default is NOTHING else {"b": default}))
        given = [value for value in data.values() if value is not None]
        found = given[0] if given else None if data else default
        size = told(lambda values=values: values.size("a", "b", high=5))
        least = told(lambda values=values: values.size_or_none("a", "b", low=0, high=5))
        if len(given) == 2 and given[0] != given[1]:
            assert "differs from a, which is" in size and "differs from a" in least
        elif found is NOTHING:
            assert "is missing (or b), and model type some has no default" in size and least is None
        elif found is None:
            assert "must be a whole number" in size and least is None
        else:
            assert size == (found if 1 <= found <= 5 else size) and least == (found if found <= 5 else least)
            assert isinstance(size, str) == (not 1 <= found <= 5) and isinstance(least, str) == (found > 5)
        assert values.asked == {"a", "b"}
        assert values.has("a", "b") == bool(given)


def test_bounds_belong_to_what_they_bound() -> None:
    for value, low, high in itertools.product(range(-1, 5), range(-1, 4), range(-1, 4)):
        whole = told(lambda value=value, low=low, high=high: values_of({}).whole("a", value, low, high))
        assert whole == value if low <= value <= high else "text.a: must be from" in whole
        number = told(lambda value=value, low=low, high=high: values_of({"a": value}).number("a", low, high))
        assert number == value if low < value <= high else "must be a number above" in number
    assert values_of({}).whole("a", 1) == 1 and "from 1 to" in told(lambda: values_of({}).whole("a", 0))
    assert values_of({"a": 10**6}).number("a") == 10**6
    for wrong in (0, 10**6 + 1, math.nan, math.inf, True, "1"):
        assert "a number above 0 and at most 1e+06" in told(lambda wrong=wrong: values_of({"a": wrong}).number("a"))


@pytest.mark.parametrize("wrong", [True, False, "3", 2.5, [3], {}])
def test_what_is_no_whole_number_is_refused(wrong: Any) -> None:
    assert "text.a: must be a whole number" in told(lambda: values_of({"a": wrong}).size("a"))


def test_a_flag_is_off_unless_the_file_or_else_the_class_has_it_on() -> None:
    for given, default in itertools.product((NOTHING, None, True, False), repeat=2):
        values = values_of({} if given is NOTHING else {"a": given}, **({} if default is NOTHING else {"a": default}))
        assert values.flag("a", "other") is (default is True if given is NOTHING else given is True)
        assert values.asked == {"a", "other"}
    assert "must be true or false" in told(lambda: values_of({"a": 1}).flag("a"))


def test_texts_and_lists_are_none_where_null_or_missing() -> None:
    for given, default in itertools.product((NOTHING, None, "x"), (NOTHING, None, "y")):
        values = values_of({} if given is NOTHING else {"a": given}, **({} if default is NOTHING else {"a": default}))
        found = default if given is NOTHING else given
        assert values.text_or_none("a") == (None if found is NOTHING else found) and values.asked == {"a"}
    for given, default in itertools.product((NOTHING, None, [1, 0]), (NOTHING, None, [0, 1, 1])):
        values = values_of({} if given is NOTHING else {"a": given}, **({} if default is NOTHING else {"a": default}))
        found = default if given is NOTHING else given
        wanted = None if found in (NOTHING, None) else [entry == 1 for entry in found]
        assert values.list_or_none("a", values.zero_or_one) == wanted and values.asked == {"a"}
        for layers in range(4):
            listed = told(lambda values=values, layers=layers: values.by_layer("a", values.zero_or_one, layers))
            if wanted is None:
                assert listed is None
            elif len(wanted) < layers:
                assert f"has {len(wanted)} entries, the model has {layers} layers" in listed
            else:
                assert listed == wanted[:layers]
    assert "must be text" in told(lambda: values_of({"a": 1}).text_or_none("a"))
    assert "must be a list" in told(lambda: values_of({"a": "x"}).list_or_none("a", lambda name, value: value))


def test_a_list_has_four_entries_for_every_layer_at_most() -> None:
    assert len(values_of({"a": [0] * MAX_LISTED}).list_or_none("a", lambda name, value: value) or []) == MAX_LISTED
    long = values_of({"a": [0] * (MAX_LISTED + 1)})
    assert f"has {MAX_LISTED + 1} entries" in told(lambda: long.list_or_none("a", lambda name, value: value))


def test_entries_of_lists_are_checked_and_named() -> None:
    values = values_of({"a": [1, True, 0, False, 2]})
    assert "a[4]: must be from 0 to 1" in told(lambda: values.list_or_none("a", values.zero_or_one))
    assert values_of({"a": [1, True, 0, False]}).list_or_none("a", values.zero_or_one) == [True, True, False, False]
    kinds = values.one_of({"full": 7, "none": 8})
    assert values_of({"a": ["none", "full"]}).list_or_none("a", kinds) == [8, 7]
    for wrong in ("half", 1, None):
        assert "known are full, none" in told(lambda wrong=wrong: kinds("a[0]", wrong))


def test_a_section_is_a_view_of_its_own_with_its_path() -> None:
    values = values_of({"a": {"b": 0}, "wrong": [1]})
    section = values.section("a", {"c": 4})
    assert section.size("c") == 4 and "text.a.b: must be from 1" in told(lambda: section.size("b"))
    assert values.section("none", {"c": 4}).size("c") == 4 and values.asked == {"a", "none"}
    assert "must have names and values" in told(lambda: values.section("wrong", {}))
    assert Values({}, Path("x"), "some", {}).path("a") == "a"


def test_what_is_read_for_one_value_alone_is_refused_with_another() -> None:
    for given, default in itertools.product((NOTHING, None, "silu", "relu"), repeat=2):
        values = values_of({} if given is NOTHING else {"a": given}, **({} if default is NOTHING else {"a": default}))
        found = default if given is NOTHING else given
        refusal = told(lambda values=values: values.must_be("a", "silu", "no other is modelled"))
        assert (refusal is None) == (found != "relu") and values.asked == {"a"}
