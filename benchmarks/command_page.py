"""Writes docs/commands.md from the parsers of the command lines.

Run from the repository's root: ``python -m benchmarks.command_page``.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.command_lines.arguments import CommandParser
from taylor.command_lines.main import SUBCOMMANDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"

SCRIPTS = {"solve": "pipeline_parallel.py", "search": "parallel_tool.py", "rank": "pipeline_tool.py",
           "timeline": "timeline_tool.py"}  # fmt: skip
"""The script of the checkout that takes the same flags as a subcommand."""

GENERAL = "general"
"""The group of flags that every command has, printed once."""

_INTRO = """# Every flag of every command

Written by `python -m benchmarks.command_page` from the parsers; `COMMAND --help` prints the same. Flags are accepted
with `_` and with `-` (`--yaml_path`, `--yaml-path`), those of one dash with two as well, and a mistyped one is answered
with those like it. Flags of *training files* are in [flags.md](flags.md).

"""


def page() -> str:
    """The whole page as Markdown."""
    parsers = {
        name: importlib.import_module(f"taylor.command_lines.{command.module}").build_parser(f"taylor {name}")
        for name, command in SUBCOMMANDS.items()
    }
    contents = "\n".join(
        f"- [`taylor {name}`](#taylor-{name.replace(' ', '-')}): {SUBCOMMANDS[name].purpose}" for name in parsers
    )
    first = next(iter(parsers.values()))
    everywhere = [
        "## Of every command", "", *_table([each for group in _groups(first, general=True) for each in group[1]])
    ]  # fmt: skip
    parts = [_INTRO + contents, "\n".join(everywhere)]
    parts += [_section(name, parser) for name, parser in parsers.items()]
    return "\n\n".join(parts) + "\n"


def _section(name: str, parser: CommandParser) -> str:
    also = f", `python {SCRIPTS[name]}`, `{Path(SCRIPTS[name]).stem.replace('_', '-')}`" if name in SCRIPTS else ""
    example = (parser.epilog or "").partition("example:")[2].strip()
    lines = [f"## taylor {name}", "", f"`taylor {name}`{also}: {' '.join((parser.description or '').split())}", ""]
    lines += ["```", example, "```"]
    for title, actions in _groups(parser, general=False):
        lines += ["", f"**{title[0].upper()}{title[1:]}**", "", *_table(actions)]
    return "\n".join(lines)


def _groups(parser: CommandParser, *, general: bool) -> list[tuple[str, list[argparse.Action]]]:
    """Title and flags of each group that has any; the general one, or all others."""
    # argparse has no public way to ask a parser for its groups.
    groups = [(group.title or "", list(group._group_actions)) for group in parser._action_groups]
    shown = [group for group in groups if group[1] and group[0] not in ("options", "positional arguments")]
    return [group for group in shown if (group[0] == GENERAL) == general]


def _table(actions: list[argparse.Action]) -> list[str]:
    rows = ["| flag | meaning |", "|---|---|"]
    for action in actions:
        text = (action.help or "") % {**vars(action), "prog": ""}
        rows.append(f"| `{_spelled(action)}` | {text.replace('|', chr(92) + '|')} |")
    return rows


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    value = (value if isinstance(value, str) else " ".join(value)).replace("|", "\\|")
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else value
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


def main() -> None:
    """Write the page."""
    write_atomic(PAGE, page())


if __name__ == "__main__":
    main()
