"""Every training file of given checkouts read: how many are read, and each distinct reason of those that are refused.

Run from the repository's root; a checkout is a folder, with the files that count as patterns behind an ``=``::

    python -m benchmarks.file_sweep "../Primus=examples/*/configs/**/*.yaml" "../ms-swift=examples/**/*.sh"

Without patterns all files with the suffix of a launcher count. The report has a row a file: checkout, file, outcome
(``read``, ``refused``, ``traceback``), launcher, reason.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from taylor.base.errors import TaylorError
from taylor.parsers.read import read_config
from taylor.parsers.registry import LAUNCHERS

READ, REFUSED, TRACEBACK = "read", "refused", "traceback"
OUTCOMES = (READ, REFUSED, TRACEBACK)
MOST_FILES = 100_000
_LONGEST_REASON = 400


@dataclass(frozen=True)
class Reading:
    """Outcome of one file.

    Parameters
    ----------
    checkout : str
        Name of its checkout.
    file : str
        Its path in the checkout.
    outcome : str
        One of `OUTCOMES`.
    launcher : str
        The launcher that read it; empty where none did.
    reason : str
        Message of the error, on one line; empty for a file that is read.
    """

    checkout: str
    file: str
    outcome: str
    launcher: str
    reason: str

    @property
    def distinct(self) -> str:
        """The reason without what differs from file to file: values, numbers, paths."""
        text = re.sub(r"\(found [^)]*\)", "(found …)", self.reason)
        return re.sub(r"\d[\d,.]*", "N", re.sub(r"'[^']*'", "'…'", text))


def files_of(root: Path, patterns: Sequence[str]) -> list[Path]:
    """The files of a checkout, in their order; nothing outside it, and each once.

    Raises
    ------
    ValueError
        When there are more than `MOST_FILES`.
    """
    suffixes = {suffix for launcher in LAUNCHERS for suffix in launcher.suffixes}
    found = set(_matching(root, patterns) if patterns else _with_suffixes(root, suffixes))
    if len(found) > MOST_FILES:
        raise ValueError(f"{root} has more than {MOST_FILES:,} such files: give narrower patterns")
    return sorted(found)


def _matching(root: Path, patterns: Sequence[str]) -> Iterator[Path]:
    for pattern in patterns:
        yield from (path for path in root.glob(pattern) if path.is_file() and not path.is_symlink())


def _with_suffixes(root: Path, suffixes: set[str]) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name != ".git"]
        yield from (Path(folder) / name for name in files if Path(name).suffix.lower() in suffixes)


def reading_of(root: Path, path: Path) -> Reading:
    """Read one file; no error ends the sweep."""
    name, file = root.resolve().name, path.relative_to(root).as_posix()
    try:
        return Reading(name, file, READ, read_config(path).launcher, "")
    except TaylorError as error:
        reason = str(error).replace(str(path), "").replace(str(root), "").lstrip(": ")
        return Reading(name, file, REFUSED, "", " ".join(reason.split())[:_LONGEST_REASON])
    except Exception:
        last = traceback.format_exc(limit=-1).strip().splitlines()
        return Reading(name, file, TRACEBACK, "", " ".join(" ".join(last[1:]).split())[:_LONGEST_REASON])


def table(readings: Sequence[Reading]) -> str:
    """The counts a checkout, and every distinct reason with its count and its first file, as Markdown."""
    lines = ["| checkout | files | read | refused | tracebacks |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(each.checkout for each in readings):
        count = Counter(each.outcome for each in readings if each.checkout == name)
        total = sum(count.values())
        share = f"{count[READ]} ({count[READ] / total:.1%})"
        lines.append(f"| {name} | {total} | {share} | {count[REFUSED]} | {count[TRACEBACK]} |")
    refused = [each for each in readings if each.outcome != READ]
    lines += ["", f"{len({each.distinct for each in refused})} distinct reasons.", ""]
    lines += ["| files | reason of the first | first |", "|---|---|---|"]
    counts = Counter(each.distinct for each in refused)
    for distinct, number in counts.most_common():
        first = next(each for each in refused if each.distinct == distinct)
        lines.append(f"| {number} | {first.reason.replace('|', '&#124;')} | {first.checkout}/{first.file} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, print the table, write the report; 1 where a file ends in a traceback."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkouts", nargs="+", metavar="FOLDER[=PATTERN,PATTERN]")
    parser.add_argument("--report", type=Path, help="CSV with a row a file")
    options = parser.parse_args(arguments)
    readings: list[Reading] = []
    for written in options.checkouts:
        folder, _, patterns = written.partition("=")
        root = Path(folder)
        if not root.is_dir():
            parser.error(f"{folder} is no folder")
        readings += [reading_of(root, path) for path in files_of(root, [each for each in patterns.split(",") if each])]
    if options.report is not None:
        with options.report.open("w", newline="", encoding="utf-8") as report:
            writer = csv.writer(report)
            writer.writerow(field.name for field in fields(Reading))
            writer.writerows(map(astuple, readings))
    print(table(readings))
    return int(any(each.outcome == TRACEBACK for each in readings))


if __name__ == "__main__":
    sys.exit(main())
