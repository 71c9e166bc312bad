"""What the skill and AGENTS.md tell agents is there: commands, flags, fields of requests, keys of the verdict."""

from __future__ import annotations

import importlib
import re
import shlex

import pytest

from taylor.command_lines import main
from taylor.schemas.request import BY_COMMAND
from taylor.schemas.verdict import Verdict
from taylor.serve.mcp_server import TOOLS
from tests.conftest import ROOT

SKILL = (ROOT / "skills" / "taylor-plan" / "SKILL.md").read_text(encoding="utf-8")
TYPED = re.findall(r"`(taylor [^`]+)`", SKILL)


@pytest.mark.parametrize("line", TYPED)
def test_a_command_of_the_skill_has_the_flags_that_it_shows(line):
    words = shlex.split(line)
    parser = importlib.import_module(f"taylor.command_lines.{main.SUBCOMMANDS[words[1]].module}").build_parser()
    for word in words[2:]:
        if word.startswith("-"):
            assert parser._normal_spelling(word) in parser._option_string_actions, word


def test_the_skill_names_every_tool_and_its_fields_and_keys_are_those_of_the_schemas():
    assert len(TYPED) > 10 and all(f"`{tool}`" in SKILL for tool in TOOLS)
    named = set(re.findall(r"`([a-z_]+)`", SKILL))
    fields = {field for model in BY_COMMAND.values() for field in model.model_fields}
    of_errors = {"code", "field", "value", "cure", "source", "illegal", "infeasible", "too_much"}
    known = {*fields, *TOOLS, *Verdict.model_fields, *of_errors, "verdict", "assumed", "step_interval_ms", "gap", "tie"}
    assert {"fit", "probability", "tight_stages", "smallest_change", "baseline", "runner_up", "unmodelled"} <= named
    assert named - known <= {"fits", "unknown", "feasible", "measured_peak"}


def test_the_head_of_the_skill_says_its_name_and_when_to_use_it():
    head = re.match(r"---\nname: ([a-z-]+)\ndescription: (.+)\n---\n", SKILL)
    assert head and head[1] == "taylor-plan" and 100 < len(head[2]) < 1024 and len(SKILL.splitlines()) < 120


def test_the_folders_and_modules_that_agents_md_names_are_there():
    text = (ROOT / "AGENTS.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    for name in re.findall(r"`([\w/]+/[\w./-]*|[A-Z]+\.md)`", text):
        if "<" not in name:
            assert (ROOT / name).exists(), name
    for module in re.findall(r"python -m ((?:benchmarks|tests)[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file() or (ROOT / module.replace(".", "/")).is_dir(), module
