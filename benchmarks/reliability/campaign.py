"""Parts of the campaign, cut into portions whose results are kept, so that a killed campaign goes on."""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.reliability.closure import TABLES, closure
from taylor.base.console import log, start_logging
from taylor.base.files import write_atomic

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "base", "register", "pipeline", "cost_model", "parsers", "dryrun", "nd_search", "pipeline_solver", "profiling",
    "report", "workflows", "layerwise", "blackbox", "serve", "schemas", "taylor",
)  # fmt: skip
SCRIPTS = ("parallel_tool", "pipeline_tool", "pipeline_parallel", "timeline_tool")
EVERYTHING = (*PACKAGES, *(f"{name}.py" for name in SCRIPTS), "benchmarks/reliability")
"""Folders and files that a figure rests on, unless its part names fewer."""
TOOLS = (*(f"{name}.py" for name in SCRIPTS), "parsers", "register", "dryrun")
"""Files that the four tools run: their imports, and the packages that are also loaded by composed names."""

Result = dict[str, Any]
"""Figures of a portion, as plain JSON; ``faults`` is a list of sentences."""


@dataclass(frozen=True)
class Portion:
    """A piece of a part that is run as a whole: ``function(**arguments)`` in a process of its own."""

    name: str
    function: Callable[..., Result]
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Parameters
    ----------
    asked, measured : str
        Requirement and finding.
    passed : bool
    how : str
        Method of measurement.
    commit : str
        Commit at which the last of its portions was measured; what it rests on is the same in all of them.
    """

    name: str
    asked: str
    measured: str
    passed: bool
    how: str
    commit: str = ""


@dataclass(frozen=True)
class Sized:
    """A sample of a part for the table of one commit.

    Parameters
    ----------
    share : float
        Fraction of the full size.
    minutes : float
        Expected time on two quiet cores: those of all parts together are at most 90.
    """

    share: float
    minutes: float


@dataclass(frozen=True)
class Part:
    """A part of the campaign.

    Parameters
    ----------
    portions : callable
        The portions at a fraction of the full size, ``portions(1.0)`` being the campaign itself.
    figures : callable
        The table's rows from the portions' results by name.
    at_once : int
        Portions that may run side by side.
    sources : tuple of str
        Folders and files that the figures rest on, a module with all that it imports (`closure`): portions are measured
        again when one changes.
    nightly : float
        Fraction of the full size that is measured in a night; none where a sample says nothing.
    table : Sized
        What is measured of it for the table of one commit.
    """

    name: str
    portions: Callable[[float], Sequence[Portion]]
    figures: Callable[[Mapping[str, Result]], Sequence[Figure]]
    at_once: int = 2
    sources: tuple[str, ...] = EVERYTHING
    nightly: float = 0.0
    table: Sized = Sized(1.0, minutes=0.0)


def code_digest(sources: Sequence[str] = EVERYTHING, root: Path = ROOT) -> str:
    """The state of the code: a result of other code is measured again."""
    digest = hashlib.sha256()
    for path in sorted(files_of(sources, root)):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def files_of(sources: Sequence[str], root: Path = ROOT) -> set[Path]:
    """All files that some sources name: those of a folder, and a module with what it imports."""
    places = [root / name for name in sources]
    files = closure([place for place in places if not place.is_dir()], root)
    for place in places:
        if place.is_dir():
            files |= {file for file in place.rglob("*") if file.suffix in (".py", *TABLES) and file.is_file()}
    return files


@cache
def commit(root: Path = ROOT) -> str:
    """The commit that is measured, with a ``+`` where files differ from it; empty outside of a repository."""
    words = ["git", "-C", str(root)]
    head = subprocess.run([*words, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return ""
    changed = subprocess.run([*words, "status", "--porcelain"], capture_output=True, text=True).stdout.strip()
    return head.stdout.strip() + ("+" if changed else "")


def run_part(part: Part, folder: Path, *, share: float = 1.0, processes: int = 2, fresh: bool = False) -> list[Figure]:
    """Run what is missing of a part and give its figures.

    Parameters
    ----------
    folder : path
        Folder of the portions' results, a JSON each.
    fresh : bool
        Run again what an earlier campaign left.
    """
    code = code_digest(part.sources)
    kept = {portion.name: folder / part.name / f"{portion.name}.json" for portion in part.portions(share)}
    found = {name: None if fresh else _kept(path, code) for name, path in kept.items()}
    missing = [portion for portion in part.portions(share) if found[portion.name] is None]
    if missing:
        with ThreadPoolExecutor(max(1, min(processes, part.at_once, len(missing)))) as starters:
            futures = {starters.submit(_in_own_process, portion): portion for portion in missing}
            for future in as_completed(futures):
                portion, (seconds, result) = futures[future], future.result()
                data = {
                    "code": code,
                    "commit": commit(),
                    "at": time.time(),
                    "seconds": round(seconds, 1),
                    "result": result,
                }
                found[portion.name] = data
                write_atomic(kept[portion.name], json.dumps(data, indent=1) + "\n")
                faults = len(result.get("faults", []))
                log.info("%s: %s: %.0f s, %d faults", part.name, portion.name, seconds, faults)
    return _figures(part, {name: data for name, data in found.items() if data is not None})


def add_run_options(parser: argparse.ArgumentParser, instances: int, folder: Path) -> None:
    """Add the options of a campaign of one part: its size and seed, and those of `run_part`."""
    parser.add_argument("--instances", type=int, default=instances)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=folder, help="where portions are kept")
    parser.add_argument("--fresh", action="store_true", help="solve again what an earlier run left")


def run_alone(part: Part, chosen: argparse.Namespace) -> int:
    """Run a part that has one row as `add_run_options` asks, and print the row and every difference.

    Returns
    -------
    int
        Exit code: 1 when anything differs.
    """
    start_logging()
    (row,) = run_part(part, chosen.folder, processes=chosen.processes, fresh=chosen.fresh)
    if not row.passed:
        print(row.how.replace("; instance", "\ninstance"))
    print(row.measured)
    return 0 if row.passed else 1


def _figures(part: Part, found: Mapping[str, Result]) -> list[Figure]:
    """Rows of a part, each with the commit at which the last of its portions was measured."""
    last = max(found.values(), key=lambda data: float(data.get("at", 0.0)))
    rows = part.figures({name: data["result"] for name, data in found.items()})
    return [replace(row, commit=str(last.get("commit", ""))) for row in rows]


def kept_figures(part: Part, folder: Path) -> list[Figure] | None:
    """The figures of what earlier campaigns measured of a part on this code; None unless that is all of it."""
    code = code_digest(part.sources)
    kept = {each.name: _kept(folder / part.name / f"{each.name}.json", code) for each in part.portions(1.0)}
    found = {name: data for name, data in kept.items() if data is not None}
    return _figures(part, found) if len(found) == len(kept) else None


def _in_own_process(portion: Portion) -> tuple[float, Result]:
    """Run a portion in a process started afresh: what one leaves in its process must not reach another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_timed, portion).result()


def _timed(portion: Portion) -> tuple[float, Result]:
    # A spawned process spawns its own children too; those of a user's command start in the platform's usual way.
    multiprocessing.set_start_method(None, force=True)
    began = time.monotonic()
    result = portion.function(**portion.arguments)
    return time.monotonic() - began, result


def _kept(path: Path, code: str) -> Result | None:
    """Stored result of a portion, with its commit, where it is of this code."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("code") != code or not isinstance(data.get("result"), dict):
        return None
    return data


def chosen(results: Mapping[str, Result], prefix: str) -> list[Result]:
    """The results of the portions of one kind, in order of their names."""
    return [results[name] for name in sorted(results) if name.startswith(prefix)]


def total(results: Sequence[Result], key: str) -> int:
    """Sum of a count over portions."""
    return int(sum(result[key] for result in results))


def faults_of(results: Sequence[Result]) -> list[str]:
    """Everything that went wrong."""
    return [fault for result in results for fault in result["faults"]]


def pieces(full: int, share: float) -> int:
    """Number of portions at a share of the full size: each has work apart from its instances."""
    return max(1, round(full * share))


def split(count: int, pieces: int) -> list[int]:
    """A count cut into at most `pieces` nearly equal positive parts."""
    pieces = max(1, min(pieces, count))
    return [count // pieces + (k < count % pieces) for k in range(pieces)]
