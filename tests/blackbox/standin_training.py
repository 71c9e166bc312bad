"""A training command that behaves as MindSpeed does: takes its flags, and leaves logs and profiles as it would.

``standin_training.py SEED FAILING HANGING -- FLAGS``: its network and the machine are hidden, their laws are those of
`benchmarks.standin_cluster`. A run whose folder is called FAILING ends as one out of memory, one called HANGING never
ends.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.standin_build import hidden_cluster  # noqa: E402
from benchmarks.standin_files import log_lines, write_run  # noqa: E402
from benchmarks.standin_script import flags_of, setting_of  # noqa: E402


def stages_of(flags: dict[str, str]) -> list[list[tuple[tuple[str, bool], ...]]]:
    """The blocks of every stage of one chunk, by MindSpeed's flags."""
    stages = int(flags.get("pipeline-model-parallel-size", 1))
    even = [int(flags["num-layers"]) // stages] * stages
    held = [int(each) for each in flags["num-layer-list"].split(",")] if "num-layer-list" in flags else even
    again = int(flags.get("recompute-num-layers", 0))
    return [
        [(*[("embedding", False)] * (at == 0), *[("layer", place < again) for place in range(layers)],
          *[("head", False)] * (at == stages - 1))]
        for at, layers in enumerate(held)
    ]  # fmt: skip


def main() -> None:
    """Train as told."""
    seed, failing, hanging, _, *words = sys.argv[1:]
    flags = flags_of(words)
    run = setting_of(flags)
    folder = Path(flags.get("profile-save-path", "whole/profile"))
    with open("started.txt", "a") as stream:
        stream.write(folder.parent.name + "\n")
    if flags.get("node-rank", "0") != "0":
        return  # The first node's ranks are those that are profiled.
    if folder.parent.name == failing:
        sys.exit("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")
    if folder.parent.name == hanging:
        time.sleep(600)
    cluster = hidden_cluster(int(seed)).with_links(2 if "use-ascend-mc2" in flags else 1)
    if "profile" not in flags:
        cluster = replace(cluster, batch=int(flags["global-batch-size"]))
        print(log_lines(cluster, run, int(flags["train-iters"]), cluster.step_ns(run, stages_of(flags)) / 1e6))
        return
    steps = range(int(flags["profile-step-start"]), int(flags["profile-step-end"]))
    print(log_lines(cluster, run, int(flags["train-iters"]), write_run(cluster, run, folder, steps)))


if __name__ == "__main__":
    main()
