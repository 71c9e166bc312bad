"""Read training files with the product and with independent readers, and list where the two differ.

    python -m benchmarks.differential_reading FOLDER... [--files] [--workers N]

Every ``.yaml``, ``.yml``, ``.toml`` and ``.sh`` below the folders is read by the product, as its commands do, and by
a reader that imports nothing of it: `yaml.safe_load`, `tomllib`, or bash itself, which runs the script where every
program is a stand-in that writes down its arguments (`sandbox`). The fields of `reading.FIELDS` must be equal
wherever the file settles them; files that start no training, or leave the model's sizes to the outside, are counted
apart. Exit code 1 where a field differs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.differential_reading.megatron import read_script
from benchmarks.differential_reading.mindformers import read_yaml
from benchmarks.differential_reading.product import read_product
from benchmarks.differential_reading.reading import FIELDS, PLACES, NothingToRead, Reading, Value
from benchmarks.differential_reading.torchtitan import read_toml
from taylor.base.errors import TaylorError

_READERS = {".sh": read_script, ".yaml": read_yaml, ".yml": read_yaml, ".toml": read_toml}


@dataclass(frozen=True)
class Compared:
    """One file.

    Parameters
    ----------
    path : Path
        The file.
    apart : str
        Reason why the independent reader finds no training in it; empty where it finds one.
    refusal : str
        The product's message; empty where it reads the file.
    told : int
        Fields that the file settles.
    differences : tuple of (field, product's value, other value)
        Of the fields that the file settles; the product's value is None where it settles none.
    """

    path: Path
    apart: str = ""
    refusal: str = ""
    told: int = 0
    differences: tuple[tuple[str, Value | None, Value], ...] = field(default=())


def compare(path: Path) -> Compared:
    """Read one file both ways."""
    text = path.read_bytes().decode(errors="replace")
    try:
        others = _READERS[path.suffix.lower()](text)
    except NothingToRead as reason:
        return Compared(path, apart=str(reason))
    try:
        mine = read_product(path)
    except TaylorError as error:
        return Compared(path, refusal=str(error), told=len(others[0]))
    except Exception as error:  # noqa: BLE001 - whatever else comes out is a fault of the product's
        return Compared(path, differences=(("reads at all", f"{type(error).__name__}: {error}", "yes"),))
    # A script may start several trainings; the product reads one of them.
    unlike = [(_differences(mine, other), len(_comparable(mine, other))) for other in others]
    differences, told = min(unlike, key=lambda pair: len(pair[0]))
    return Compared(path, told=told, differences=differences)


def _comparable(mine: Reading, other: Reading) -> list[str]:
    """The fields that the file settles: no recompute where its layers fit no even split, and it names no other."""
    return [name for name in (*FIELDS, *PLACES) if name in other and (name in mine or name not in _OF_A_PLAN)]


_OF_A_PLAN = ("recompute", *PLACES)
"""The product's reading where the file settles a plan, and a note where it does not."""


def _differences(mine: Reading, other: Reading) -> tuple[tuple[str, Value | None, Value], ...]:
    names = _comparable(mine, other)
    return tuple((name, mine.get(name), other[name]) for name in names if mine.get(name) != other[name])


def compare_folders(folders: Sequence[Path], workers: int = 1) -> list[Compared]:
    """Read every file below the folders both ways; of files with the same bytes, one."""
    seen: dict[bytes, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
            if path.suffix.lower() in _READERS and path.is_file():
                seen.setdefault(path.read_bytes(), path)
    if workers == 1:
        return [compare(path) for path in seen.values()]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(compare, seen.values(), chunksize=8))


def _table(compared: Iterable[Compared]) -> list[str]:
    rows = {kind: [one for one in compared if one.path.suffix.lower() in suffixes] for kind, suffixes in _KINDS.items()}
    lines = [f"{'':28}{'files':>7}{'apart':>7}{'refused':>9}{'equal':>7}{'different':>11}{'fields':>8}"]
    for kind, files in [*rows.items(), ("all", [one for each in rows.values() for one in each])]:
        training = [one for one in files if not one.apart]
        read = [one for one in training if not one.refusal]
        unlike = sum(bool(one.differences) for one in read)
        fields = sum(one.told for one in read)
        lines.append(
            f"{kind:28}{len(files):7}{len(files) - len(training):7}{len(training) - len(read):9}"
            f"{len(read) - unlike:7}{unlike:11}{fields:8}"
        )
    return lines


_KINDS = {
    "Megatron, MindSpeed (.sh)": (".sh",),
    "MindFormers (.yaml)": (".yaml", ".yml"),
    "torchtitan (.toml)": (".toml",),
}


def _reason(message: str, path: Path) -> str:
    """A refusal without this file's particulars, so that like ones are counted together."""
    return re.sub(r"\d+", "N", message.replace(str(path), "FILE"))[:160]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, the reasons, and every difference; 1 where there is one."""
    parser = argparse.ArgumentParser(description="read training files in two independent ways and compare")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--files", action="store_true", help="name every file that is refused or stands apart")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    compared = compare_folders(options.folders, options.workers)
    print("\n".join(_table(compared)))
    for title, reason in (("stand apart", "apart"), ("refused by the product", "refusal")):
        counts: dict[str, list[Path]] = {}
        for one in compared:
            if getattr(one, reason):
                counts.setdefault(_reason(getattr(one, reason), one.path), []).append(one.path)
        print(f"\n{title}:")
        for text, paths in sorted(counts.items(), key=lambda pair: -len(pair[1])):
            print(f"{len(paths):5}  {text}")
            if options.files:
                print("".join(f"         {path}\n" for path in paths), end="")
    unlike = [one for one in compared if one.differences]
    tally = Counter(name for one in unlike for name, _, _ in one.differences)
    print(f"\ndifferent: {', '.join(f'{name} {count}' for name, count in tally.most_common()) or 'none'}")
    for one in unlike:
        for name, mine, other in one.differences:
            print(f"  {one.path}: {name}: {mine} here, {other} by the independent reader")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
