"""A training command that behaves as MindSpeed does: takes its flags, and leaves logs and profiles as it would.

``standin_training.py SEED FAILING HANGING -- FLAGS``: its network is hidden, the laws of its operators are those of
`benchmarks.standin_network`. A run whose folder is called FAILING ends as one out of memory, one called HANGING never
ends.
"""

from __future__ import annotations

import csv
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.standin_network import hidden_network  # noqa: E402
from taylor.parsers.small_run import Setting  # noqa: E402

COLUMNS = [
    "Step Id",
    "Model ID",
    "Task ID",
    "Stream ID",
    "Name",
    "Type",
    "OP State",
    "Accelerator Core",
    "Start Time(us)",
    "Duration(us)",
    "Wait Time(us)",
    "Block Dim",
    "Mix Block Dim",
    "HF32 Eligible",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
    "Context ID",
]


def flags_of(words: list[str]) -> dict[str, str]:
    """Flags and the last word behind each."""
    found: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            value = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
            found[word[2:].replace("_", "-")] = value
    return found


def setting_of(flags: dict[str, str]) -> Setting:
    """What the run was given."""

    def number(name: str) -> int:
        return int(flags.get(name, 1))

    tp, cp, pp = (number(f"{name}-parallel-size") for name in ("tensor-model", "context", "pipeline-model"))
    ranks = number("nproc-per-node") * number("nnodes")
    return Setting(
        tp, cp, number("expert-model-parallel-size"), number("micro-batch-size"), number("seq-length"),
        number("num-experts"), number("num-layers"), pp, ranks // (tp * cp * pp),
    )  # fmt: skip


def shapes_text(shapes: list[tuple[int, ...]]) -> str:
    """As the profiler writes them: in quotes of their own."""
    return '"' + ";".join(",".join(map(str, shape)) for shape in shapes) + '"'


def profile(run: Setting, flags: dict[str, str], seed: int) -> None:
    """Leave a profile of the steps that the flags name."""
    output = Path(flags["profile-save-path"]) / "node_1_20260101000000_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    (output.parent / "profiler_info_0.json").write_text(json.dumps({"rank_id": 0}))
    draw = random.Random(seed)
    clock = 1_736_408_883_704_643.0
    with open(output / "kernel_details.csv", "w", newline="") as stream:
        table = csv.writer(stream, lineterminator="\r\n")
        table.writerow(COLUMNS)
        for step in range(int(flags["profile-step-start"]), int(flags["profile-step-end"])):
            for number, one in enumerate(hidden_network(seed).order(run)):
                *inputs, shape = one.shapes_of(run)
                duration = 20 * draw.gauss(1, 0.03)
                table.writerow(
                    [step, 4294967295, number, 2, f"aclnn{one.type}_{number}", one.type, "dynamic", "AI_CORE",
                     f"{clock:.3f}\t", f"{duration:.3f}", "0.1", 24, 0, "NO", shapes_text(inputs),
                     ";".join(["DT_BF16"] * len(inputs)), ";".join(["ND"] * len(inputs)), shapes_text([shape]),
                     "DT_BF16", "ND", "N/A"]
                )  # fmt: skip
                clock += duration + 0.1


def main() -> None:
    """Train as told."""
    seed, failing, hanging, _, *words = sys.argv[1:]
    flags = flags_of(words)
    run = setting_of(flags)
    name = Path(flags["profile-save-path"]).parent.name
    with open("started.txt", "a") as stream:
        stream.write(name + "\n")
    if name == failing:
        sys.exit("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")
    if name == hanging:
        time.sleep(600)
    for step in range(int(flags["train-iters"])):
        print(f" iteration {step + 1:8d}/{flags['train-iters']:>8} | elapsed time per iteration (ms): 123.4 |")
    profile(run, flags, int(seed))


if __name__ == "__main__":
    main()
