"""Values in a JSON text, set in place."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from taylor.parsers.text.json_edit import edit_json

TEXT = """\
{
    "a": {"n": [1,
        2], "s": "}, \\"b\\": 1", "e": {} },
\t"b" : 1.50
}
"""


def test_the_rest_stays_byte_for_byte() -> None:
    assert edit_json(TEXT, {("a", "n"): [1, 2], ("b",): 1.5}) == TEXT
    assert edit_json(TEXT, {("a", "n"): [3]}) == TEXT.replace("[1,\n        2]", "[3]")
    assert edit_json(TEXT, {("b",): None}) == TEXT.replace("1.50", "null")
    assert edit_json(TEXT, {("a", "new"): True}) == TEXT.replace('{"n"', '{"new": true, "n"')
    assert edit_json(TEXT, {("new",): 1}) == TEXT.replace('{\n    "a"', '{\n    "new": 1,\n    "a"')
    assert edit_json(TEXT, {("a", "e", "new"): 1}) == TEXT.replace("{}", '{"new": 1}')
    assert edit_json(TEXT.replace("1.50", "1"), {("b",): True}) == TEXT.replace("1.50", "true")


@pytest.mark.parametrize("names", [("c", "n"), ("a", "n", "m"), ("b", "n")])
def test_only_objects_have_values_to_set(names: tuple[str, ...]) -> None:
    with pytest.raises(KeyError):
        edit_json(TEXT, {names: 1})


def any_object(random: Random, depth: int) -> dict[str, Any]:
    """An object with names and values of any kind."""
    made: dict[str, Any] = {}
    for _ in range(random.randint(0, 4)):
        leaf = random.choice((None, True, 0, -1.5e-3, 'a "quoted", {brace} \\', "ünï\n", [], [1, [2, {"x": 3}]]))
        made[random.choice('ab"\\:,{}ü')] = any_object(random, depth - 1) if depth and random.random() < 0.5 else leaf
    return made


def test_random_texts_mean_what_was_set() -> None:
    random = Random(5)
    for _ in range(500):
        data = any_object(random, 3)
        text = json.dumps(data, indent=random.choice((None, 0, 3)), ensure_ascii=random.random() < 0.5)
        names: list[str] = []
        inner = data
        while (objects := [name for name, value in inner.items() if isinstance(value, dict)]) and random.random() < 0.7:
            names.append(random.choice(objects))
            inner = inner[names[-1]]
        names.append(random.choice([*inner, "new"]))
        value = random.choice((None, False, 7, [[1, 2], [3, 4]], {"y": "z"}))
        inner[names[-1]] = value
        assert json.loads(edit_json(text, {tuple(names): value})) == data
