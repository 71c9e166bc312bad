"""Rules that a search may apply, in words: the shipped ones and a user's own."""

from __future__ import annotations

from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.nd_search.rules import built_in_rules
from taylor.nd_search.user_rules import load_user_rules
from taylor.register.trainers import ALL_FRAMEWORKS
from taylor.report.rules import DescribedRule, checks_of


def known_rules(register_path: Path | None = None, framework: str | None = None) -> list[DescribedRule]:
    """Every rule, legality first and a user's own last; of one framework or program where it is named.

    Parameters
    ----------
    register_path : Path, optional
        The user's folder, whose Python files are run.

    Raises
    ------
    InputError
        When there is no such framework, or the user's rules cannot be loaded.
    """
    by_name = {rule.name: rule for rule in (*built_in_rules(), *load_user_rules(register_path))}
    programs = {program for rule in by_name.values() for program in rule.programs}
    known = (*ALL_FRAMEWORKS, *sorted(programs))
    if framework is not None and framework not in known:
        cure = did_you_mean(framework, known)
        raise InputError("is no known framework", field="--framework", value=framework, cure=cure)
    # A program's jobs are asked the rules of the framework on which it runs too.
    underneath = {name for rule in by_name.values() if framework in rule.programs for name in rule.frameworks}
    wanted = {framework, *underneath}
    described = (
        DescribedRule(
            name, rule.kind, rule.programs or rule.frameworks, rule.explanation, checks_of(rule.source), rule.relax
        )
        for name, rule in by_name.items()
    )
    return [rule for rule in described if framework is None or not rule.frameworks or wanted & {*rule.frameworks}]


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
