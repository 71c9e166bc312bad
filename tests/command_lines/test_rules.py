"""`taylor rules`: what a search forbids, on whose word, and a user's own among them."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import rules
from taylor.nd_search.rules import built_in_rules
from taylor.register.frameworks import FRAMEWORKS, TORCHTITAN
from taylor.report.rules import checks_of
from taylor.workflows.statement.known_rules import known_rules

OWN = """\
from taylor.nd_search.rules import Rule
RULES = [Rule("even-pp", "pp is even", lambda t, c: t.pp % 2 == 0, relax="search pp = 2")]
"""


def listed(capsys, *words):
    rules.run([*words, "--json"])
    return json.loads(capsys.readouterr().out)["rules"]


def test_all_rules_are_listed_each_once(capsys):
    assert [rule["name"] for rule in listed(capsys)] == [rule.name for rule in built_in_rules()]


def test_in_a_pipe_each_rule_keeps_its_line(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    rules.run([])
    lines = capsys.readouterr().out.splitlines()
    for rule in built_in_rules():
        assert sum(rule.name in line.split() and " ".join(rule.explanation.split()) in line for line in lines) == 1


def test_a_framework_lists_its_own_rules_and_those_that_all_have(capsys):
    names = {rule["name"] for rule in listed(capsys, "--framework", "torchtitan")}
    assert set(TORCHTITAN.legality) <= names
    others = set().union(*(framework.legality for framework in FRAMEWORKS.values())) - set(TORCHTITAN.legality)
    assert others and not names & others


@pytest.mark.parametrize("rule", built_in_rules(), ids=lambda rule: rule.name)
def test_a_rules_page_says_what_must_hold_on_whose_word_and_how_to_leave_it_out(rule, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    rules.run([rule.name.upper().replace("-", "_")])
    told = capsys.readouterr().out
    assert rule.explanation in told and rule.relax in told and f"--disable_rule {rule.name}" in told
    assert all(check in told for check in checks_of(rule.source))


def test_a_source_is_parted_into_its_checks_and_brackets_stay_whole():
    assert checks_of("a:1 (0.4 to 0.9; before, b:2); c:3 (1 to 2)") == ("a:1 (0.4 to 0.9; before, b:2)", "c:3 (1 to 2)")
    assert checks_of("") == ()


def test_a_users_own_rules_stand_with_the_others(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(OWN)
    assert listed(capsys, "--register_path", str(tmp_path))[-1]["name"] == "even-pp"
    rules.run(["even-pp", "--register_path", str(tmp_path)])
    told = capsys.readouterr().out
    assert "pp is even" in told and "a user's own" in told


@pytest.mark.parametrize(
    "words, told",
    [
        (["expert-by-ep"], "did you mean experts-by-ep"),
        (["--framework", "torchtitn"], "did you mean torchtitan"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(words, told):
    with pytest.raises(InputError, match=told):
        rules.run(words)


@pytest.mark.parametrize("program", ["mindspeed", "mindspeed-llm"])
def test_a_program_on_top_of_megatron_has_its_own_rules_and_megatron_s(program):
    of_program = {rule.name for rule in known_rules(framework=program)}
    of_megatron = {rule.name for rule in known_rules(framework="megatron")}
    assert of_program > of_megatron and "dualpipev-untied" in of_program - of_megatron
    alone = {"mindspeed": "alibi-ring", "mindspeed-llm": "alibi-without-context-parallel"}
    assert {name for name in alone.values() if name in of_program} == {alone[program]}
