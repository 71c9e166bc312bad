"""Rules of the search for the terminal and for programs: a table of all, a page of one with its sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class DescribedRule:
    """A rule in words.

    Parameters
    ----------
    name : str
        Name by which a user disables it.
    kind : str
        ``legality`` (the framework refuses otherwise), ``experience`` (it would run, badly) or ``user``.
    frameworks : tuple of str
        Those that have it; empty where all do.
    condition : str
        Condition on a strategy; the rule forbids those that do not satisfy it.
    sources : tuple of str
        Checks that it represents: repository, release, file and line, and in brackets the releases that have it.
    cure : str
        Change to make when it leaves no strategy.
    """

    name: str
    kind: str
    frameworks: tuple[str, ...]
    condition: str
    sources: tuple[str, ...]
    cure: str


KINDS = {
    "legality": "legality: the framework does not start otherwise",
    "experience": "experience: it would run, but badly",
    "user": "a user's own",
}


def checks_of(source: str) -> tuple[str, ...]:
    """Single checks of a rule's source, a row separated by semicolons outside brackets."""
    checks, depth, begin = [], 0, 0
    for at, letter in enumerate(source):
        depth += (letter == "(") - (letter == ")")
        if letter == ";" and depth == 0:
            checks.append(source[begin:at].strip())
            begin = at + 1
    return tuple(check for check in (*checks, source[begin:].strip()) if check)


def rules_table(rules: Sequence[DescribedRule]) -> Table:
    """One row a rule: its condition, and the frameworks that have it."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.caption = "a search leaves out every strategy that breaks a rule; taylor rules NAME has its source"
    table.caption_justify = "left"
    table.add_column("rule", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("framework", overflow="fold")
    table.add_column("what is required", overflow="fold")
    for rule in rules:
        table.add_row(Text(rule.name), rule.kind, Text(", ".join(rule.frameworks) or "all"), Text(rule.condition))
    return table


def rule_page(rule: DescribedRule) -> Table:
    """One rule: its condition, frameworks, the checks that it represents, and the cure."""
    table = Table(title=Text(rule.name), title_justify="left", show_header=False, pad_edge=False, box=None)
    table.add_column("what", no_wrap=True, style="bold")
    table.add_column("text", overflow="fold")
    table.add_row("required", Text(rule.condition))
    table.add_row("kind", KINDS.get(rule.kind, rule.kind))
    table.add_row("frameworks", Text(", ".join(rule.frameworks) or "all"))
    for number, check in enumerate(rule.sources):
        table.add_row("" if number else "stands for", Text(check))
    table.add_row("leaves nothing?", Text(rule.cure))
    table.add_row("leave it out", Text(f"--disable_rule {rule.name}"))
    return table


def rule_record(rule: DescribedRule) -> dict[str, Any]:
    """All of a rule as plain data for JSON."""
    return asdict(rule)
