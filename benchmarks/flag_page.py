"""Writes docs/flags.md from the tables of flags and keys.

Run from the repository's root: ``python -m benchmarks.flag_page``.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.parsers.flag_table import COSTS, NEUTRAL, READ, FlagRow, FlagTable, effect_in_words, load_flag_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
TABLES = (
    ("taylor.parsers.megatron", "flags.yaml", "--"),
    ("taylor.parsers.flagscale", "flags.yaml", "--"),
    ("taylor.parsers.paddlenlp", "flags.yaml", "--"),
    ("taylor.parsers.primus", "options.yaml", ""),
    ("taylor.parsers.primus", "recipe_options.yaml", ""),
    ("taylor.parsers.swift", "flags.yaml", "--"),
    ("taylor.parsers.slime", "flags.yaml", "--"),
    ("taylor.parsers.verl", "options.yaml", ""),
    ("taylor.parsers.nemo_rl", "options.yaml", ""),
    ("taylor.parsers.roll", "options.yaml", ""),
    ("taylor.parsers.areal", "options.yaml", ""),
    ("taylor.parsers.pai", "flags.yaml", "--"),
    ("taylor.parsers.bridge", "options.yaml", ""),
    ("taylor.parsers.mlperf", "variables.yaml", ""),
    ("taylor.parsers.mindformers", "keys.yaml", ""),
    ("taylor.parsers.torchtitan", "keys.yaml", ""),
    ("taylor.parsers.llamafactory", "options.yaml", ""),
    ("taylor.parsers.llamafactory", "newer.yaml", ""),
    ("taylor.parsers.axolotl", "options.yaml", ""),
    ("taylor.parsers.trainer_script", "options.yaml", "--"),
    ("taylor.parsers.gptneox", "options.yaml", ""),
    ("taylor.parsers.torchtitan", "options.yaml", "--"),
    ("taylor.parsers.nanotron", "keys.yaml", ""),
    ("taylor.parsers.olmo", "keys.yaml", "--"),
    ("taylor.parsers.automodel", "options.yaml", ""),
)
"""Package and file of each launcher's table, and what stands before a name in the launcher's files."""
_INTRO = """# What every flag of a training file means for a plan

Written by `python -m benchmarks.flag_page` from the tables that the readers use (`parsers/*/flags.yaml`,
`parsers/*/keys.yaml`), which also give each row's releases and the file and line it stands on.

- **read**: the launcher's reader uses it. Where values are listed, the others are not modelled.
- **neutral**: it changes neither the memory of a device, the time of a step nor the place of a layer or rank.
- **costs**: it changes one of them, and no figure takes it into account. A file that gives it with another
  value than its default is reported, with the direction. Where it changes memory, the result's
  `peak_memory_interval` is open in that direction, or ends at the bound of the row.

A flag that is in no table is reported as unknown. `needs` names what must be in force for the flag to have an effect; a
name with an @ is a fact of the job: `@experts` (it has experts), `@scores` (attention keeps its scores),
`@plain-norms` (norms run in several steps), `@router-casts` (the router keeps what it casts). A name that ends in
`.*` stands for all keys below it.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [_INTRO]
    for package, file, prefix in TABLES:
        parts.append(_section(load_flag_table(package, file), prefix))
    return "\n".join(parts)


def _section(table: FlagTable, prefix: str) -> str:
    rows = list(table.rows.values())
    count = Counter(row.status for row in rows)
    lines = [
        f"## {table.launcher}",
        "",
        f"{len(rows)} rows: {count[READ]} read, {count[NEUTRAL]} neutral, {count[COSTS]} that cost.",
        "",
    ]
    for group in dict.fromkeys(row.group for row in rows):
        lines += [f"### {group}", "", "| flags | status | what it means |", "|---|---|---|"]
        same = groupby((row for row in rows if row.group == group), key=_meaning)
        for (status, means), alike in same:
            names = ", ".join(f"`{prefix}{row.name}`" for row in alike)
            lines.append(f"| {names} | {status} | {means} |")
        lines.append("")
    return "\n".join(lines)


def _meaning(row: FlagRow) -> tuple[str, str]:
    """Status, and the sentence that rows alike share."""
    text = row.why
    if row.status == COSTS:
        text = f"{effect_in_words(row.memory, row.time, row.placement)}: {text}"
    if row.silent:
        values = ", ".join(f"`{value}`" for value in row.silent)
        text += f" ({'modelled' if row.status == READ else 'without effect'}: {values})"
    if row.needs:
        text += f"; needs {' or '.join(f'`{need}`' for need in row.needs)}"
    return row.status, text.replace("|", "\\|")


def main() -> None:
    """Write the page."""
    write_atomic(PAGE, page())


if __name__ == "__main__":
    main()
