"""Command line: the rules that prune a search, and one of them with the checks that it represents."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor rules") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "List the rules that a strategy must obey, or show one with the frameworks' own checks that it stands for.",
        "experts-by-ep",
    )
    group = parser.add_argument_group("rules")
    group.add_argument("name", nargs="?", metavar="NAME", help="a rule by name (default: all)")
    group.add_argument("--framework", metavar="NAME", help="only the rules of a framework: mindformers, megatron, …")
    group.add_argument("--register_path", metavar="DIR", help="folder of your own rules, whose Python files are run")
    return parser


def run(arguments: Sequence[str], program: str = "taylor rules") -> None:
    """Parse, look up, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.report.rules import rule_page, rule_record, rules_table
    from taylor.report.terminal import print_table
    from taylor.workflows.statement.known_rules import known_rule, known_rules

    register_path = path_or_none(args.register_path)
    of_framework = args.framework
    if args.name is None:
        rules = known_rules(register_path, of_framework)
        if args.json:
            print_document("taylor.rules/1", {"rules": [rule_record(rule) for rule in rules]})
        else:
            print_table(rules_table(rules), whole=True)
        return
    if of_framework is not None:
        log.warning("--framework: has no effect beside a rule's name")
    rule = known_rule(args.name, register_path)
    if args.json:
        print_document("taylor.rule/1", rule_record(rule))
    else:
        print_table(rule_page(rule), whole=True)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
