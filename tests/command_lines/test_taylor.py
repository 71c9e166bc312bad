"""The command `taylor`: one name for the four scripts, and for what joins them."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import taylor
from taylor.base.errors import InputError
from taylor.command_lines import main
from tests.conftest import ROOT


def test_the_help_fits_one_screen_and_names_every_subcommand(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = main.build_parser().format_help()
    assert len(text.splitlines()) <= 30 and max(map(len, text.splitlines())) <= 80
    assert all(f"\n  {name} " in text and command.purpose in text for name, command in main.SUBCOMMANDS.items())


@pytest.mark.parametrize("name", main.SUBCOMMANDS)
def test_a_subcommand_has_the_flags_of_its_script_and_speaks_of_itself_as_typed(name, capsys):
    tool = importlib.import_module(f"taylor.command_lines.{main.SUBCOMMANDS[name].module}")
    with pytest.raises(SystemExit) as ended:
        main.run([name, "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert f"usage: taylor {name} " in text and f"\n  taylor {name} " in text and ".py" not in text.split("example:")[1]
    assert all(flag in text for flag in tool.build_parser()._option_string_actions)


@pytest.mark.parametrize("words", [["--version"], ["solve", "--version"], ["rank", "--version"]])
def test_the_version_is_told_at_every_place(words, capsys):
    with pytest.raises(SystemExit) as ended:
        main.run(words)
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"taylor {taylor.__version__}\n"


@pytest.mark.parametrize(
    "words, told",
    [(["solv"], "did you mean solve"), (["--versoin"], "did you mean --version"), (["xyzzy"], "known are solve, ")],
)
def test_what_is_no_subcommand_is_answered_with_those_like_it_or_those_that_there_are(words, told):
    with pytest.raises(InputError, match=told):
        main.run(words)


def test_without_a_subcommand_the_help_is_shown_and_the_exit_code_is_2(capsys):
    assert main.run([]) == 2
    assert "solve" in capsys.readouterr().err


def test_it_runs_as_a_module_and_its_exit_code_is_the_subcommands(tmp_path):
    command = [sys.executable, "-m", "taylor", "solve", "-yaml", "absent.yaml"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "absent.yaml" in done.stderr


@pytest.mark.parametrize("name", main.SUBCOMMANDS)
def test_the_exit_code_of_every_subcommand_is_that_of_taylor(name, monkeypatch):
    tool = importlib.import_module(f"taylor.command_lines.{main.SUBCOMMANDS[name].module}")
    monkeypatch.setattr(tool, "run", lambda arguments, program: 130)
    assert main.run(name.split()) == 130


def test_the_version_is_said_once():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert taylor.__version__ not in text and 'attr = "taylor.__version__"' in text
