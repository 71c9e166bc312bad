"""A training command on the second hidden cluster: takes Megatron's flags, leaves its log and torch_npu's profiles.

``training.py SEED FAILING -- FLAGS``: a run whose folder is called FAILING ends as one out of memory. Each start is a
line of ``started.txt`` in the folder of the user's script.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.second_cluster.cluster import second_cluster  # noqa: E402
from benchmarks.second_cluster.files import log_text, write_profile  # noqa: E402
from benchmarks.standin_script import flags_of, setting_of  # noqa: E402


def main() -> None:
    """Train by the flags."""
    seed, failing, _, *words = sys.argv[1:]
    flags = flags_of(words)
    run = setting_of(flags)
    folder = Path(flags["profile-save-path"])
    with open("started.txt", "a") as stream:
        stream.write(folder.parent.name + "\n")
    if folder.parent.name == failing:
        sys.exit("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")
    cluster = second_cluster(int(seed))
    steps = range(int(flags["profile-step-start"]), int(flags["profile-step-end"]))
    again: bool | str = "recompute-granularity" in flags
    if flags.get("recompute-granularity") == "selective":
        again = "+".join(_behind(words, "--recompute-modules"))
    took = write_profile(cluster, run, folder, steps, again=again)
    print(log_text(cluster, run, int(flags["train-iters"]), took, again))


def _behind(words: list[str], flag: str) -> list[str]:
    """All words behind a flag."""
    rest = words[words.index(flag) + 1 :]
    return rest[: next((at for at, word in enumerate(rest) if word.startswith("--")), len(rest))]


if __name__ == "__main__":
    main()
