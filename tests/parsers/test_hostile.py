"""Damaged files of every kind: read, or refused with a reason, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant, write_plan
from tests.conftest import ROOT
from tests.parsers.flagscale.files import ONE_FILE as FLAGSCALE
from tests.parsers.megatron.test_scripts import BASE as SHELL_FLAGS
from tests.parsers.megatron.test_scripts import SYNTAX, script_of
from tests.parsers.torchtitan.test_files import BASE as TOML

ODD = [
    "",
    "0",
    "-1",
    "1.5",
    "[]",
    "{}",
    "[[1]]",
    "null",
    "~",
    "*dp",
    "&x",
    "'",
    '"',
    "#",
    ":",
    "\n",
    "\t",
    "$",
    "$(",
    "${",
    "(",
    ")",
    "|",
    "\\",
    "True",
    "[1, 2",
    "x" * 300,
    "9" * 40,
    "😀",
    "\r\n",
    "=",
    "`",
    "<<EOF",
    "!!int a",
    "---",
    "--",
]


def sources(folder: Path) -> dict[str, str]:
    """A sound text of each kind."""
    return {
        "legacy.yaml": (ROOT / "config" / "pretrain_deepseek3_128p.yaml").read_text(encoding="utf-8"),
        "mcore.yaml": (ROOT / "config" / "pretrain_qwen3_30b_a3b.yaml").read_text(encoding="utf-8"),
        "string.sh": script_of(folder, SHELL_FLAGS).read_text(encoding="utf-8"),
        "array.sh": script_of(folder, SHELL_FLAGS, "array").read_text(encoding="utf-8"),
        "syntax.sh": SYNTAX + SHELL_FLAGS.replace("\n", " "),
        "t.toml": TOML,
        "flagscale.yaml": FLAGSCALE,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["legacy.yaml", "mcore.yaml", "string.sh", "array.sh", "syntax.sh", "flagscale.yaml"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_what_is_read_can_be_written(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    damage_and_write(name, data, tmp_path)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_toml_is_read_or_refused_and_what_is_read_can_be_written(data: st.DataObject, tmp_path: Path) -> None:
    damage_and_write("t.toml", data, tmp_path)


def damage_and_write(name: str, data: st.DataObject, tmp_path: Path) -> None:
    """Cut pieces out of a sound text and put odd ones in; what still reads is written, and reads again."""
    text = sources(tmp_path)[name]
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        length = data.draw(st.sampled_from([0, 1, 2, 5, 20, 200]))
        text = text[:start] + data.draw(st.sampled_from(ODD)) + text[start + length :]
    file = tmp_path / name
    file.write_bytes(text.encode("utf-8"))
    try:
        config = read_config(file)
    except InputError as error:
        assert str(error)
        return
    if config.plan is None or config.strategy.pp * config.strategy.vpp > 64:
        return
    try:
        written = write_plan(config, config.plan, output=tmp_path / f"out{file.suffix}")
        emit_variant(config, config.strategy.replace(micro_batches=8), tmp_path / f"v{file.suffix}", plan=None)
    except InputError as error:
        assert str(error)
        return
    assert read_config(written).plan is not None


@pytest.mark.parametrize("name", ["legacy.yaml", "string.sh", "t.toml", "flagscale.yaml"])
def test_a_file_cut_off_anywhere_is_read_or_refused(name: str, tmp_path: Path) -> None:
    text = sources(tmp_path)[name]
    file = tmp_path / name
    refused = 0
    for end in range(0, len(text), max(1, len(text) // 60)):
        file.write_text(text[:end], encoding="utf-8")
        try:
            read_config(file)
        except InputError:
            refused += 1
    assert refused > 10
