"""`taylor tune` killed at random moments and started again: nothing that has ended runs twice, and the plans stay.

    python -m benchmarks.tune_kills FOLDER [--kills 20] [--seed 3] [--second]

A hidden network's small runs are started on the stand-in's training command, once undisturbed, then with the planning
process killed (SIGKILL) again and again. Looked at are which runs were started after they had ended, whether the best
plans are those of the undisturbed start to the last digit, and whether a training command outlives its planner. With
``--second`` the network is one of `benchmarks.second_cluster`, and one of its runs crashes: another takes its place.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.reliability.sandbox import ORPHAN_SECONDS
from benchmarks.second_campaign import second_script
from benchmarks.second_cluster.cluster import second_cluster
from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_script import script_text
from benchmarks.tune_campaign import campaign_parser
from taylor.blackbox import degree_search
from taylor.blackbox.small_runs import SEARCHABLE
from taylor.workflows.tuning.tune import TuneOptions, tune
from taylor.workflows.tuning.tune_search import BEST

COMMAND = Path(__file__).resolve().parents[1] / "tests" / "blackbox" / "standin_training.py"
SECOND, CRASHING = Path(__file__).resolve().parent / "second_cluster" / "training.py", "tp4"
MEMORY = 8 * 2.0**30
LONGEST_S = 1200.0
MARK = "TAYLOR_KILLED"
"""Variable of the environment by which all processes of a start are found."""
UNLIMITED_S = 100.0
"""Limit of a solve here, so that how busy the machine is decides no plan."""


@dataclass(frozen=True)
class Killed:
    """Kills of a planner.

    Parameters
    ----------
    kills, flows : int
        Times that it was killed, and that it came to its end.
    found_again : int
        Ended runs that a later start did not start again.
    faults : tuple of str
    """

    kills: int
    flows: int
    found_again: int
    faults: tuple[str, ...]


def start(folder: Path, seed: int, second: bool) -> BaseProcess:
    """The planner in a process of its own."""
    searched: tuple[str, ...] = ("tp", "mbs")
    limit, ranks = MEMORY, 256
    if second:
        cluster = second_cluster(seed)
        searched, limit, ranks = SEARCHABLE, cluster.machine.limit, cluster.job.ranks
    options = TuneOptions(
        folder / "pretrain.sh", folder / "small", nodes=2, per_node=8, searched=searched,
        base=folder / "base.sqlite", limit=limit, ranks=ranks,
    )  # fmt: skip
    process = multiprocessing.get_context("fork").Process(target=_planned, args=(folder, options))
    process.start()
    return process


def _planned(folder: Path, options: TuneOptions) -> None:
    os.environ[MARK] = str(folder)
    degree_search.SOLVE_SECONDS = degree_search.AGAIN_SECONDS = UNLIMITED_S
    with open(folder / "planner.log", "a") as stream:
        sys.stdout = sys.stderr = stream
        tune(options)


def started(folder: Path) -> Counter[str]:
    """Number of starts of each run."""
    file = folder / "started.txt"
    return Counter(file.read_text().split() if file.is_file() else [])


def ended(folder: Path) -> set[str]:
    """The runs whose end is on the disk."""
    return {file.parent.name for file in folder.glob("small/*/ended_0.json")}


def fresh(folder: Path, seed: int, second: bool = False) -> Path:
    """An empty folder with the script."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = script_text(hidden_cluster(seed), f"{sys.executable} {COMMAND} {seed} none none --")
    if second:
        text = second_script(second_cluster(seed), f"{sys.executable} {SECOND} {seed} {CRASHING} --")
    (folder / "pretrain.sh").write_text(text)
    return folder


def plans(folder: Path) -> str:
    """The best plans as they were written, without the folder's name."""
    return (folder / "small" / BEST).read_text().replace(str(folder), "FOLDER")


def marked(mark: str, seconds: float) -> bool:
    """Return whether a process of a start is still there after some seconds."""
    end = time.monotonic() + seconds
    word = f"{MARK}={mark}".encode()
    while any(word in _environment(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        if time.monotonic() > end:
            return True
        time.sleep(0.1)
    return False


def _environment(process: Path) -> bytes:
    """Environment of a process; empty where it has ended or is another user's."""
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def kill_often(place: Path, kills: int, seed: int, second: bool) -> Killed:
    """Plan undisturbed, then with kills until there were as many; the last start comes to its end."""
    draw = random.Random(seed)
    quiet = fresh(place / "undisturbed", seed, second)
    began = time.monotonic()
    process = start(quiet, seed, second)
    process.join(LONGEST_S)
    whole = time.monotonic() - began
    wanted = plans(quiet)
    print(f"undisturbed: {whole:.1f} s, {started(quiet).total()} starts of {len(started(quiet))} runs", flush=True)
    folder = fresh(place / "killed", seed, second)
    done = flows = found_again = 0
    faults: list[str] = []
    while True:
        before, there = started(folder), ended(folder)
        process = start(folder, seed, second)
        process.join(LONGEST_S if done == kills else draw.uniform(0, whole / 3))
        killed = process.is_alive() and done < kills
        where = f"kill {done}"
        if process.is_alive():
            process.kill()
            process.join()
            faults += [f"{where}: a training command outlived its planner"] * marked(str(folder), ORPHAN_SECONDS)
        elif process.exitcode == 0:
            flows += 1
            faults += [f"{where}: other plans than undisturbed"] * (plans(folder) != wanted)
        done += killed
        if not killed and process.exitcode:
            faults.append(f"{where}: a start ended with {process.exitcode}")
        now = started(folder)
        again = sorted(name for name in there if now[name] > before[name])
        found_again += len(there) - len(again)
        faults += [f"{where}: {name} ran again after its end" for name in again]
        if killed:
            continue
        print(f"{done} kills: starts {dict(now)}", flush=True)
        if done == kills:
            return Killed(done, flows, found_again, tuple(faults))
        folder = fresh(folder, seed, second)


def main() -> int:
    """Undisturbed, then with kills."""
    parser = campaign_parser(__doc__, kills=20, seed=3)
    parser.add_argument("--second", action="store_true", help="a network of the second cluster, where a run crashes")
    args = parser.parse_args()
    done = kill_often(args.folder.resolve(), args.kills, args.seed, args.second)
    print(f"{done.kills} kills, {done.flows} times to the end, {done.found_again} ended runs found again: "
          f"{len(done.faults)} faults")  # fmt: skip
    print("\n".join(done.faults))
    return int(bool(done.faults))


if __name__ == "__main__":
    sys.exit(main())
