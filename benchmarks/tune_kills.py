"""`taylor tune` killed at random moments and started again: nothing that has ended runs twice, and the plans stay.

    python -m benchmarks.tune_kills FOLDER [--kills 20] [--seed 3] [--second]

A hidden network's small runs are started on the stand-in's training command, once undisturbed, then with the planning
process killed (SIGKILL) again and again. Looked at are which runs were started after they had ended, whether the best
plans are those of the undisturbed start to the last digit, and whether a training command outlives its planner. With
``--second`` the network is one of `benchmarks.second_cluster`, and one of its runs crashes: another takes its place.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shutil
import signal
import sys
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.second_campaign import second_script
from benchmarks.second_cluster.cluster import second_cluster
from benchmarks.standin_build import hidden_cluster
from benchmarks.standin_script import script_text
from taylor.blackbox.small_runs import SEARCHABLE
from taylor.workflows.tuning.tune import TuneOptions, tune
from taylor.workflows.tuning.tune_search import BEST

COMMAND = Path(__file__).resolve().parents[1] / "tests" / "blackbox" / "standin_training.py"
SECOND, CRASHING = Path(__file__).resolve().parent / "second_cluster" / "training.py", "tp4"
MEMORY = 8 * 2.0**30
LONGEST_S = 600.0


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


def main() -> int:
    """Undisturbed, then with kills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--second", action="store_true", help="a network of the second cluster, where a run crashes")
    args = parser.parse_args()
    draw = random.Random(args.seed)
    quiet = fresh(args.folder.resolve() / "undisturbed", args.seed, args.second)
    began = time.monotonic()
    process = start(quiet, args.seed, args.second)
    process.join(LONGEST_S)
    whole = time.monotonic() - began
    wanted = plans(quiet)
    print(
        f"undisturbed: {whole:.1f} s, {sum(started(quiet).values())} starts of {len(started(quiet))} runs", flush=True
    )
    folder = fresh(args.folder.resolve() / "killed", args.seed, args.second)
    kills = again = flows = differing = torn = 0
    while kills < args.kills:
        before, done = started(folder), ended(folder)
        process = start(folder, args.seed, args.second)
        process.join(draw.uniform(0, whole / 3))
        if process.is_alive():
            process.kill()
            process.join()
            kills += 1
        elif process.exitcode == 0:
            flows += 1
            differing += plans(folder) != wanted
        else:
            torn += 1
        now = started(folder)
        again += sum(now[name] - before[name] for name in done)
        if process.exitcode != -signal.SIGKILL:
            print(f"{kills} kills: starts {dict(now)}", flush=True)
            folder = fresh(folder, args.seed, args.second)
    process = start(folder, args.seed, args.second)
    process.join(LONGEST_S)
    flows, differing = flows + 1, differing + (process.exitcode != 0 or plans(folder) != wanted)
    print(f"{kills} kills, {flows} times to the end: {again} runs started after their end, {torn} starts refused, "
          f"{differing} times other plans")  # fmt: skip
    return int(bool(again or torn or differing))


if __name__ == "__main__":
    sys.exit(main())
