"""Launchers that are imported when needed: what is stated of them beforehand is what they say themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taylor.parsers import registry
from taylor.parsers.export import export_forms, export_names
from taylor.parsers.late import Late, Launchers
from taylor.parsers.read import read_config

CONFIGS = Path(__file__).resolve().parents[2] / "config"
ENTRIES = [entry for entry in registry.LAUNCHERS.entries if isinstance(entry, Late)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_launchers_line_states_its_name_suffixes_and_export_forms(entry):
    launcher = entry.launcher
    assert (entry.name, entry.suffixes, entry.forms) == (
        launcher.name, launcher.suffixes, tuple(launcher.export_forms),
    )  # fmt: skip


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.*")), ids=lambda path: path.name)
def test_a_mark_excludes_no_launcher_that_recognises_a_file(path):
    text = path.read_text(encoding="utf-8")
    for entry in ENTRIES:
        if entry.launcher.recognises(path, text):
            assert entry.may_recognise(text)


def test_export_names_are_those_of_all_forms():
    assert export_names() == tuple(export_forms())


def test_an_imported_launcher_may_stand_in_the_table():
    megatron = ENTRIES[1].launcher
    known = Launchers(ENTRIES[0], megatron)
    assert known.named("megatron") is megatron and list(known)[1] is megatron and known[:1] == (ENTRIES[0].launcher,)
    assert known.for_suffix(".sh", "no flag") == [megatron] and known.count_of(".toml") == 0


def test_reading_a_file_of_one_launcher_imports_no_other():
    code = (
        "import sys; from taylor.parsers.read import read_config; "
        f"print(read_config({str(CONFIGS / 'pretrain_llama2_7b.yaml')!r}).launcher, "
        "*sorted(name for name in sys.modules if name.startswith('taylor.parsers.') and name.endswith('.launcher')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["mindformers", "taylor.parsers.launcher", "taylor.parsers.mindformers.launcher"]
    assert read_config(CONFIGS / "pretrain_llama2_7b.yaml").launcher == "mindformers"
