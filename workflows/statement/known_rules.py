"""Rules that a search may apply, in words: the shipped ones and a user's own."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.nd_search.mindspeed.table import START_RULES
from taylor.nd_search.rules import built_in_rules
from taylor.nd_search.user_rules import load_user_rules
from taylor.register.frameworks import FRAMEWORKS
from taylor.report.rules import DescribedRule, checks_of

MINDSPEED = "mindspeed"
"""Megatron-LM with MindSpeed on top: its rules are those of Megatron-LM and of MindSpeed's start-up checks."""


def known_rules(register_path: Path | None = None, framework: str | None = None) -> list[DescribedRule]:
    """Every rule, legality first and a user's own last; of one framework where it is named.

    Parameters
    ----------
    register_path : Path, optional
        The user's folder, whose Python files are run.

    Raises
    ------
    InputError
        When there is no such framework, or the user's rules cannot be loaded.
    """
    known = (*FRAMEWORKS, MINDSPEED)
    if framework is not None and framework not in known:
        cure = did_you_mean(framework, known)
        raise InputError("is no known framework", field="--framework", value=framework, cure=cure)
    by_name = {rule.name: rule for rule in (*built_in_rules(), *load_user_rules(register_path))}
    start = {rule.name for rule in START_RULES}
    of_rule = {name: (MINDSPEED,) if name in start else rule.frameworks for name, rule in by_name.items()}
    wanted = {framework, "megatron"} if framework == MINDSPEED else {framework}
    return [
        DescribedRule(name, rule.kind, of_rule[name], rule.explanation, checks_of(rule.source), rule.relax)
        for name, rule in by_name.items()
        if framework is None or not of_rule[name] or not wanted.isdisjoint(of_rule[name])
    ]


def known_rule(name: str, register_path: Path | None = None) -> DescribedRule:
    """One rule by its name; capitals, ``_`` and ``-`` make no difference.

    Raises
    ------
    InputError
        When there is none of that name (the message lists similar names).
    """
    rules = {rule.name: rule for rule in known_rules(register_path)}
    wanted = name.strip().lower().replace("_", "-")
    if name not in rules and wanted not in rules:
        raise InputError("is no rule", field="rule", value=name, cure=did_you_mean(name, rules))
    return rules.get(name) or rules[wanted]
