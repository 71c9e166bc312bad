"""Command line: the models that plans can be made for, and one of them with its layers and parameters by part."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from taylor.base.console import log, run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor models") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "List the registered models, or show one, registered or a Hugging Face config.json, part by part.",
        "qwen3.5-397b-a17b",
    )
    group = parser.add_argument_group("models")
    group.add_argument("name", nargs="?", metavar="NAME|FILE", help="a model by name, or a config.json (default: all)")
    group.add_argument(
        "--register_path", metavar="DIR", help="folder of your own registrations, in addition to the built-in"
    )
    return parser


def run(arguments: Sequence[str], program: str = "taylor models") -> None:
    """Parse, look up or read, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.parsers.huggingface.file import read_model_file
    from taylor.register.registry import Registry
    from taylor.report.models import model_page, model_record, models_table
    from taylor.report.terminal import print_table

    registry = Registry.load(path_or_none(args.register_path))
    if args.name is None:
        models = [registry.model(name) for name in registry.model_names()]
        if args.json:
            print_document("taylor.models/1", {"models": [model_record(model) for model in models]})
        else:
            print_table(models_table(models))
        return
    notes: tuple[str, ...] = ()
    if args.name.endswith(".json"):
        model, notes = read_model_file(Path(args.name))
    else:
        model = registry.model(args.name)
    if args.json:
        print_document("taylor.model/1", {**model_record(model), "notes": list(notes)})
        return
    print_table(model_page(model))
    for note in notes:
        log.info("%s", note)


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
