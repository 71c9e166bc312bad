"""Names near an unknown one, shortened texts, and an error's parts as data."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError, InterruptedSolve, WriteError, shortened
from taylor.base.near import MOST_NAMED, did_you_mean, near_names


def test_a_text_is_cut_beyond_its_limit_alone() -> None:
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("abcdefg", 6) == "abc..."
    assert shortened("x" * 120) == "x" * 120
    assert shortened("x" * 121) == "x" * 117 + "..."


def test_names_near_a_name_are_few_and_the_nearest_comes_first() -> None:
    known = ["llama3-8b", "llama3_8B", "llama3-70b", "llama2-7b", "qwen3-8b", "mixtral"]
    assert near_names("Llama3 8b", known) == ["llama3-8b", "llama3_8B", "llama3-70b"]
    assert near_names("llama3-8b", known, at_most=1) == ["llama3-8b"]
    assert near_names("abcd", ["abxy"]) == []
    assert near_names("abcde", ["abcxy"]) == ["abcxy"], "three of five letters are alike enough"
    assert near_names("abcde", ["abcxy"], alike=0.61) == []


def test_the_cure_of_an_unknown_name_names_those_near_it_or_all() -> None:
    assert did_you_mean("abcd", ["abce"]) == "did you mean abce?"
    assert did_you_mean("abcd", ["abce", "abcf"]) in ("did you mean abcf or abce?", "did you mean abce or abcf?")
    assert did_you_mean("abcd", ["abce", "abcf", "abcg"]).count(",") == 1
    assert did_you_mean("zzzz", ["one", "two"]) == "known are one, two"
    names = [f"name{number:02d}" for number in range(26)]
    assert did_you_mean("?", names) == f"known are {', '.join(names[:MOST_NAMED])} and 2 more"
    assert did_you_mean("?", names[:MOST_NAMED]).endswith(names[23])
    assert MOST_NAMED == 24


def test_an_error_states_each_part_as_data() -> None:
    error = InputError("is odd", file=Path("a/b"), field="x.y", value=[1], cure="mend it", source="f.py:3")
    assert str(error) == "a/b: x.y: is odd (found [1]); mend it"
    assert error.to_dict() == {
        "code": "bad_input", "exit_code": 2, "message": str(error), "problem": "is odd", "file": "a/b", "field": "x.y",
        "value": "[1]", "cure": "mend it", "source": "f.py:3",
    }  # fmt: skip
    values = [True, 3, 1.5, "text", None]
    assert [InputError("p", value=value).to_dict()["value"] for value in values] == values
    assert InputError("p", value=float("inf")).to_dict()["value"] == "inf"
    assert InputError("p").to_dict()["value"] is None
    assert str(InputError("p", value=None)) == "p (found None)"
    assert InputError("p", code="too_much").code == "too_much"
    assert WriteError("p").code == "cannot_write"
    assert InterruptedSolve("p").to_dict()["value"] is None
    long = InputError("p", file="f" * 400, value="v" * 200)
    assert str(long) == "f" * 297 + "...: p (found " + repr("v" * 200)[:117] + "...)"
    assert len(InputError("p", value="v" * 2000).to_dict()["value"]) == 1000
