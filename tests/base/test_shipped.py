"""Shipped files, and numbers of YAML that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from taylor.base.shipped import CONFIG, MOST_COUNT, MOST_DIGITS, SAFE_LOADER, own_or_shipped, shipped_table

NAME = "pretrain_deepseek3_671b_1024p.yaml"


def test_a_default_file_is_the_folder_s_own_or_the_one_that_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    default = f"./config/{NAME}"
    assert own_or_shipped(default) == CONFIG / NAME and (CONFIG / NAME).is_file()
    assert own_or_shipped("./config/none.yaml") == Path("config/none.yaml")
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / NAME).write_text("a: 1")
    assert own_or_shipped(default) == Path(default)
    assert shipped_table(default) == {"a": 1}


def loaded(text: str) -> object:
    return yaml.load(text, Loader=SAFE_LOADER)


def test_numbers_are_read_up_to_their_bounds() -> None:
    assert loaded(str(MOST_COUNT - 1)) == 2**63 - 1
    assert loaded(f"-{MOST_COUNT - 1}") == 1 - 2**63
    assert loaded("1:30") == 90
    assert loaded("0." + "1" * (MOST_DIGITS - 2)) == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (str(MOST_COUNT), "is no int: it is too large"),
        (f"-{MOST_COUNT}", "is no int: it is too large"),
        ("0." + "1" * (MOST_DIGITS - 1), "is no float: it is too long"),
        ("!!int x", "'x' is no int"),
        ("!!bool maybe", "'maybe' is no bool"),
        ("!!timestamp 2026-13-41", "is no timestamp"),
        ("!!int {a: 1}", "expected a scalar node"),
    ],
)
def test_what_yaml_cannot_hold_is_refused_by_its_text_and_place(text: str, problem: str) -> None:
    with pytest.raises(yaml.constructor.ConstructorError, match="line 1") as refusal:
        loaded(text)
    assert problem in str(refusal.value)
    with pytest.raises(yaml.constructor.ConstructorError) as refusal:
        loaded("9" * 200)
    assert str(refusal.value).startswith("'" + "9" * 40 + "' is no int")
