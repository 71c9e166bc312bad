"""Compare the tree's predictions with the last release's: ``make gate``, or ``python -m benchmarks.gate``.

Both evaluate 20,000 seeded points. What moved is listed by launcher and cause: compute, communication, bubble and host
of the step; weights, states, activations and reserved memory. `accepted.json` has every move that the changelog states,
with its figures. Any other ends the command with 1. After a meant change, say it in CHANGELOG.md and record it::

    python -m benchmarks.gate --moves "megatron * host" --accept "words of the changelog's line"
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import asdict
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gate import evaluate
from benchmarks.gate.compare import Move, moves, table_text, unexplained
from benchmarks.gate.points import POINTS, SEED, Group, draw
from taylor.base.files import write_atomic

ROOT = Path(__file__).resolve().parents[2]
ACCEPTED = Path(__file__).with_name("accepted.json")
CHANGELOG = ROOT / "CHANGELOG.md"


def last_release() -> tuple[str, str]:
    """Version and commit of the newest release: its tag, else the commit that made it.

    Raises
    ------
    SystemExit
        When the history holds none, as in a shallow clone.
    """
    tags = _git("tag", "--list", "v*.*.*", "--sort=-version:refname", "--merged", "HEAD").split()
    if tags:
        return tags[0].removeprefix("v"), _git("rev-list", "-n1", tags[0]).strip()
    for line in _git("log", "--format=%H %s", "--grep=^Release [0-9]", "HEAD").splitlines():
        commit, _, subject = line.partition(" ")
        if found := re.fullmatch(r"Release (\d+\.\d+\.\d+)", subject):
            return found[1], commit
    raise SystemExit("no release is in this clone's history; fetch all of it: git fetch --unshallow --tags")


def checkout(commit: str, folder: Path) -> Path:
    """The files of a commit in a folder, written once."""
    done = folder / ".commit"
    if not (done.exists() and done.read_text() == commit):
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        done.write_text(commit)
    return folder


def figures_by(root: Path, groups: Path, output: Path) -> dict[int, np.ndarray]:
    """Figures of every group by the checkout in `root`, in a process of its own."""
    command = [sys.executable, evaluate.__file__, str(groups), str(output), str(root)]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    subprocess.run(command, env=environment, check=True, cwd=output.parent, stderr=subprocess.DEVNULL)
    with np.load(output) as found:
        return {int(name): found[name] for name in found.files}


def compared(folder: Path, points: int) -> tuple[str, list[Group], list[Move]]:
    """Version of the release, the groups, and what moved from it to the tree."""
    version, commit = last_release()
    groups = draw(folder / "files", points)
    stated = write_atomic(folder / "points.json", json.dumps([asdict(group) for group in groups]))
    before = figures_by(checkout(commit, folder / f"release-{version}"), stated, folder / "before.npz")
    after = figures_by(ROOT, stated, folder / "after.npz")
    return version, groups, moves(groups, before, after)


def main() -> int:
    """Evaluate, compare, print; 1 where a figure moved that the changelog does not explain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gate")
    parser.add_argument("--points", type=int, default=POINTS)
    parser.add_argument("--accept", metavar="LINE", help="record what moved as explained by this changelog line")
    parser.add_argument("--moves", metavar="PATTERN", default="*", help="of --accept: names of moves (default: all)")
    args = parser.parse_args()
    version, groups, found = compared(args.folder.resolve(), args.points)
    count = sum(len(group.table["dp"]) for group in groups)
    print(f"{count:,} points (seed {SEED}) in {len(groups)} groups, beside release {version}:\n{table_text(found)}")
    accepted = json.loads(ACCEPTED.read_text()) if ACCEPTED.exists() else {}
    open_moves = unexplained(found, accepted, version, CHANGELOG.read_text())
    if args.accept:
        record: dict[str, Any] = accepted if accepted.get("release") == version else {"release": version, "moves": {}}
        chosen = [move for move, _ in open_moves if fnmatch(move.name, args.moves)]
        record["moves"] |= {move.name: {**move.figures(), "changelog": args.accept} for move in chosen}
        open_moves = unexplained(found, record, version, CHANGELOG.read_text())
        write_atomic(ACCEPTED, json.dumps(record, indent=1) + "\n")
    for move, reason in open_moves:
        print(f"not explained: {move.name}: {reason}")
    return 1 if open_moves else 0


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
