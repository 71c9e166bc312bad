"""Command line: the devices that plans can be made for, and one of them with the source of every figure."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from taylor.base.console import run_command, start_logging
from taylor.command_lines.arguments import CommandParser, path_or_none
from taylor.schemas.writing import print_document


def build_parser(program: str = "taylor devices") -> CommandParser:
    """Every flag of the command; `program` is the name it was called by."""
    parser = CommandParser(
        program,
        "List the registered devices, or show one with the source of every figure.",
        "h100-80g",
    )
    group = parser.add_argument_group("devices")
    group.add_argument("name", nargs="?", metavar="NAME", help="a device, by name or alias (default: all)")
    group.add_argument(
        "--register_path", metavar="DIR", help="folder of your own registrations, in addition to the built-in"
    )
    return parser


def run(arguments: Sequence[str], program: str = "taylor devices") -> None:
    """Parse, look up, print."""
    args = build_parser(program).parse(arguments)
    start_logging(verbose=args.verbose, quiet=args.quiet)
    from taylor.register.registry import Registry
    from taylor.report.devices import device_page, device_record, devices_table
    from taylor.report.terminal import print_table

    registry = Registry.load(path_or_none(args.register_path))
    if args.name is not None:
        device = registry.device(args.name)
        if args.json:
            print_document("taylor.device/1", device_record(device))
        else:
            print_table(device_page(device))
        return
    devices = [registry.device(name) for name in registry.device_names()]
    if args.json:
        print_document("taylor.devices/1", {"devices": [device_record(device) for device in devices]})
    else:
        print_table(devices_table(devices))


def main() -> int:
    """Console entry point."""
    start_logging()
    return run_command(lambda: run(sys.argv[1:]), sys.argv[1:])
