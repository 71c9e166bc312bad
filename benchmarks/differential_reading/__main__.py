"""Read training files with the product and with independent readers, and list where the two differ.

    python -m benchmarks.differential_reading FOLDER... [--files] [--workers N]

Every ``.yaml``, ``.yml``, ``.toml`` and ``.sh`` below the folders is read by the product, as its commands do, and by
a reader that imports nothing of it: `yaml.safe_load`, `tomllib`, or bash itself, which runs the script where every
program is a stand-in that writes down its arguments (`sandbox`). The fields of `reading.FIELDS` must be equal
wherever the file settles them; files that start no training, or leave the model's sizes to the outside, are counted
apart. Exit code 1 where a field differs.

Files of verl, NeMo RL, LLaMA-Factory and axolotl must lie in a checkout of their program, whose own files state the
defaults (`checkout`). Hydra composes those of the first two: ``pip install hydra-core``. Its OmegaConf resolves the
YAML beside MLPerf's fine-tuning configurations, whose scripts no bash runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.differential_reading.checkout import AXOLOTL, LLAMAFACTORY, MARKS, NEMO_RL, VERL, root_of
from benchmarks.differential_reading.megatron import read_script
from benchmarks.differential_reading.mindformers import read_yaml
from benchmarks.differential_reading.mlperf import is_tuning, read_tuning
from benchmarks.differential_reading.nemo_rl import read_experiment
from benchmarks.differential_reading.product import read_product
from benchmarks.differential_reading.reading import FIELDS, FURTHER, PLACES, NothingToRead, Reading, Value
from benchmarks.differential_reading.torchtitan import read_toml
from benchmarks.differential_reading.trainers import read_axolotl, read_llamafactory
from benchmarks.differential_reading.verl import read_command
from taylor.base.errors import TaylorError
from taylor.base.files import SCRIPT, form_of

_YAML = (".yaml", ".yml")
_MLPERF = "MLPerf's fine-tuning (.sh)"
_READERS: dict[str, tuple[tuple[str, ...], Callable[[Path, Path], list[Reading]]]] = {
    "Megatron, MindSpeed (.sh)": ((".sh",), lambda path, _: read_script(_text(path))),
    "MindFormers (.yaml)": (_YAML, lambda path, _: read_yaml(_text(path))),
    "torchtitan (.toml)": ((".toml",), lambda path, _: read_toml(_text(path))),
    VERL: ((".sh",), lambda path, root: read_command(_text(path), root)),
    NEMO_RL: (_YAML, lambda path, _: read_experiment(path)),
    LLAMAFACTORY: (_YAML, read_llamafactory),
    AXOLOTL: (_YAML, read_axolotl),
    _MLPERF: ((".sh",), lambda path, _: read_tuning(path)),
}
"""Suffixes and reader of each launcher; those of `MARKS` read what lies in a checkout of theirs."""
_SUFFIXES = {suffix for suffixes, _ in _READERS.values() for suffix in suffixes}
_WORDS = {
    VERL: r"verl\.trainer\.|actor_rollout_ref\.",
    NEMO_RL: r"(?:megatron_cfg|dtensor_cfg)\s*:",
    LLAMAFACTORY: r"(?:model_name_or_path|model_class|dist_config)\s*:",
    AXOLOTL: r"base_model\s*:",
}
"""Words of files whose defaults stand in a checkout."""


@dataclass(frozen=True)
class Compared:
    """One file.

    Parameters
    ----------
    path : Path
        The file.
    launcher : str
        The launcher whose independent reader took it, as `_READERS` names it.
    apart : str
        Reason why the independent reader finds no training in it; empty where it finds one.
    refusal : str
        The product's message; empty where it reads the file.
    settled : int
        Number of fields that the file settles.
    differences : tuple of (field, product's value, other value)
        Of the fields that the file settles; the product's value is None where it settles none.
    """

    path: Path
    launcher: str = ""
    apart: str = ""
    refusal: str = ""
    settled: int = 0
    differences: tuple[tuple[str, Value | None, Value], ...] = field(default=())


def compare(path: Path) -> Compared:
    """Read one file both ways."""
    kind, root = _launcher(path)
    try:
        others = _others(path, kind, root)
    except NothingToRead as reason:
        return Compared(path, kind, apart=str(reason))
    try:
        mine = read_product(path)
    except TaylorError as error:
        return Compared(path, kind, refusal=str(error), settled=len(others[0]))
    except Exception as error:  # noqa: BLE001 - whatever else comes out is a fault of the product's
        return Compared(path, kind, differences=(("reads at all", f"{type(error).__name__}: {error}", "yes"),))
    # A script may start several trainings; the product reads one of them.
    unlike = [(_differences(mine, other), len(_comparable(mine, other))) for other in others]
    differences, settled = min(unlike, key=lambda pair: len(pair[0]))
    return Compared(path, kind, settled=settled, differences=differences)


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")


def _launcher(path: Path) -> tuple[str, Path | None]:
    """The launcher of a file by the checkout that it lies in, else by its suffix; and the checkout."""
    suffix = form_of(path)
    if suffix == SCRIPT and is_tuning(path):
        return _MLPERF, None
    for name in MARKS:
        root = root_of(path, name) if suffix in _READERS[name][0] else None
        if root is not None:
            return name, root
    return next(name for name, (suffixes, _) in _READERS.items() if suffix in suffixes), None


def _others(path: Path, kind: str, root: Path | None) -> list[Reading]:
    """The readings of the independent reader.

    Raises
    ------
    NothingToRead
        When it finds no training, or the file's defaults stand in a checkout that it does not lie in.
    """
    for program, words in _WORDS.items() if root is None else ():
        if re.search(rf"^[^#\n]*\b(?:{words})", _text(path), re.MULTILINE):
            raise NothingToRead(f"lies in no checkout of {program}, whose own files state its defaults")
    return _READERS[kind][1](path, root or path.parent)


def _comparable(mine: Reading, other: Reading) -> list[str]:
    """The fields that the file settles: no recompute where its layers fit no even split, and it names no other."""
    return [name for name in (*FIELDS, *FURTHER, *PLACES) if name in other and (name in mine or name not in _OF_A_PLAN)]


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
            if form_of(path) in _SUFFIXES and path.is_file():
                seen.setdefault(path.read_bytes(), path)
    if workers == 1:
        return [compare(path) for path in seen.values()]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(compare, seen.values(), chunksize=8))


def _table(compared: Iterable[Compared]) -> list[str]:
    compared = list(compared)
    rows = {kind: [one for one in compared if one.launcher == kind] for kind in _READERS}
    lines = [f"{'':28}{'files':>7}{'apart':>7}{'refused':>9}{'equal':>7}{'different':>11}{'fields':>8}"]
    for kind, files in [*rows.items(), ("all", [one for each in rows.values() for one in each])]:
        training = [one for one in files if not one.apart]
        read = [one for one in training if not one.refusal]
        unlike = sum(bool(one.differences) for one in read)
        fields = sum(one.settled for one in read)
        lines.append(
            f"{kind:28}{len(files):7}{len(files) - len(training):7}{len(training) - len(read):9}"
            f"{len(read) - unlike:7}{unlike:11}{fields:8}"
        )
    return lines


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
