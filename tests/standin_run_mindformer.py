"""A stand-in for MindFormers' run_mindformer.py under MindSpore's simulation, for tests.

It takes the real one's arguments and environment, reads the stage's layers and recompute out of the
training file, and prints the memory lines of a dry-run. What it answers is settled by the JSON file that
``STANDIN_TRUTH`` names (it arrives by the environment's JSON, as a user's variables do):

coefficients : memory by kind and mode, as in a memory profile (MiB)
noise : largest relative error of a peak; drawn from the file's text, so that a run repeats itself
seed : what else the noise is drawn from
seconds : how long a run takes
drift : {"once": FILE, "layer": 1.1, ...}: factors that hold as soon as FILE's glob matches something
fail : {"STRATEGY": KIND} or {"*": KIND}; kinds below in `misbehave`
journal : folder in which every start leaves a line

It shares no code with the product: it walks the task order itself.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import yaml


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--register_path", default="")
    args = parser.parse_args()
    for name in ("MS_SIMULATION_LEVEL", "MS_MEMORY_STATISTIC", "RANK_SIZE", "RANK_ID", "GLOG_v"):
        if name not in os.environ:
            print(f"RuntimeError: {name} is not set")
            return 1
    truth = json.loads(Path(os.environ["STANDIN_TRUTH"]).read_text())
    text = Path(args.config).read_text(encoding="utf-8")
    config = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    parallel = config["parallel_config"]
    stages = parallel["pipeline_stage"]
    rank, world = int(os.environ["RANK_ID"]), int(os.environ["RANK_SIZE"])
    expected = parallel["data_parallel"] * parallel["model_parallel"] * stages * parallel.get("context_parallel", 1)
    if world != expected:
        print(f"ValueError: the parallel degrees need {expected} ranks, RANK_SIZE is {world}")
        return 1
    stage = rank // (world // stages)
    name = "DP{data_parallel}_TP{model_parallel}_PP{pipeline_stage}_EP{expert_parallel}".format(
        **{"expert_parallel": 1, **parallel}
    )
    if "journal" in truth:
        folder = Path(truth["journal"])
        folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        with open(folder / "starts.txt", "a") as journal:
            journal.write(f"{name} {digest} {stage} {os.getpid()}\n")
    print("[INFO] Device MOC memory size: 65536M\n[INFO] MindSpore Used memory size: 59392M", flush=True)
    kind = truth.get("fail", {}).get(name, truth.get("fail", {}).get("*"))
    if kind:
        code = misbehave(kind, name, stage, truth)
        if code is not None:
            return code
    time.sleep(truth.get("seconds", 0.0))
    peak = peak_of(config, stage, stages, truth)
    draw = random.Random(f"{truth.get('seed', '')}{text}{stage}").uniform(-1, 1)
    peak *= 1 + truth.get("noise", 0.0) * draw
    if peak > truth.get("device_memory", 10**9):
        print("RuntimeError: Out of memory: the device has no room for the graph")
        return 1
    print("Total Static Memory size: 56M\nTotal Dynamic memory size: 0M")
    print(f"Used peak memory usage (without fragments): {round(peak)}M")
    print(f"Actual peak memory usage (with fragments): {round(peak * 1.01)}M")
    return 0


def misbehave(kind: str, name: str, stage: int, truth: dict) -> int | None:
    if kind == "crash":
        print("Traceback (most recent call last):\nValueError: layer parallel strategy is invalid")
        return 1
    if kind == "hang":
        time.sleep(3600)
    if kind == "children":
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
        time.sleep(3600)
    if kind == "memory":
        print("RuntimeError: Out of memory: the device has no room for the graph")
        return 1
    if kind == "silent":
        print("training done")
        return 0
    if kind == "killed":
        os.kill(os.getpid(), 9)
    if kind == "once":
        marker = Path(truth["journal"]) / f"once_{name}_{stage}"
        if not marker.exists():
            marker.touch()
            print("RuntimeError: Address already in use")
            return 1
    if kind == "utf16":
        sys.stdout.flush()
        sys.stdout.buffer.write("日志\nUsed peak memory usage (without fragments): 4321M\n".encode("utf-16-le"))
        sys.stdout.buffer.flush()
        raise SystemExit(0)
    return None


def peak_of(config: dict, stage: int, stages: int, truth: dict) -> float:
    """Static + layers + what the micro-batches alive keep, by the documented meaning of the file's lists."""
    model, moe = config["model"]["model_config"], config.get("moe_config") or {}
    total = model.get("num_layers", model.get("num_hidden_layers")) + model.get("mtp_depth", 0)
    pipeline = (config.get("parallel") or {}).get("pipeline_config") or {}
    turns = model.get("pp_interleave_num", 1) if pipeline.get("pipeline_interleave") else 1
    has_experts = (moe.get("expert_num") or model.get("n_routed_experts") or model.get("num_experts") or 1) > 1
    prefix = moe.get("first_k_dense_replace") or model.get("first_k_dense_replace") or 0
    dense = min(total, prefix) if has_experts else total
    offset = model.get("offset", 0)
    rows = offset if isinstance(offset, list) and isinstance(offset[0], list) else [offset] * turns
    rows = [[row] * stages if isinstance(row, int) else row for row in rows]
    base = total // (stages * turns)
    wrong = offset_error(offset, total, stages, turns)
    if wrong:
        raise ValueError(wrong)
    again = config["recompute_config"]["recompute"]
    body = "moe" if has_experts else "dense"
    truth_of = truth["coefficients"]
    factor = {"layer": 1.0, "none": 1.0, "full": 1.0, "static": 1.0}
    drift = truth.get("drift")
    if drift and glob.glob(drift["once"], recursive=True):
        factor.update({key: value for key, value in drift.items() if key != "once"})
    place = "first" if stage == 0 else "last" if stage == stages - 1 else "middle"
    static = truth_of["static"]
    peak = (static["first"] + static["last"] - static["middle"] if stages == 1 else static[place]) * factor["static"]
    keeps, first = [], 0
    for turn in range(turns):
        for each in range(stages):
            held = base + rows[turn][each]
            if each == stage:
                if isinstance(again, bool):
                    count = held if again else 0
                elif isinstance(again[0], list):
                    count = min(held, again[turn][each])
                else:
                    count = again[each]
                kept = 0.0
                for index in range(held):
                    kind = "dense" if first + index < dense else body
                    peak += truth_of["layer"][kind] * factor["layer"]
                    mode = "full" if index < count else "none"
                    kept += truth_of["activation"][kind][mode] * factor[mode]
                keeps.append(kept)
            first += held
    micro_batches = config["parallel_config"].get("micro_batch_num", 1)
    if turns == 1:
        return peak + keeps[0] * min(stages - stage, micro_batches)
    return peak + walk(keeps, stage, stages, micro_batches)


def offset_error(offset: object, total: int, stages: int, turns: int) -> str:
    """What MindFormers finds wrong with an offset; empty where nothing is.

    `total` is num_layers + mtp_depth, over which `LayerSetting` spreads the offset: MindFormers v1.5.0
    research/deepseek3/deepseek2_model.py:1261, mindformers/models/utils.py:558-570 (``_check_inputs``).
    """
    if isinstance(offset, list):
        nested = isinstance(offset[0], list)
        flat = [value for row in offset for value in row] if nested else offset
        width = len(offset[0]) if nested else len(offset)
        if width != stages or (nested and len(offset) != turns):
            return f"offset.shape should equal to ({turns}, {stages}). `offset`: {offset}"
    else:
        flat = [offset]
    left = total % (stages * turns)
    if sum(flat) != left:
        return (
            f"The sum of `offset` ({sum(flat)}) should equal to remainder of `num_layers` "
            f"({total}) % (pp ({stages}) * pp_interleave_num ({turns})) = {left}"
        )
    return ""


def walk(keeps: list[float], stage: int, stages: int, micro_batches: int) -> float:
    """Largest sum kept along the interleaved order: rounds of stages, the first with the rest too.

    The warm-up grows by two forwards a stage, with ``ENABLE_LESS_MEM_VPP=1`` by one.
    """
    turns = len(keeps)
    first_round = stages + micro_batches % stages
    rounds = [first_round] + [stages] * ((micro_batches - first_round) // stages)
    forwards = [turn for size in rounds for turn in range(turns) for _ in range(size)]
    backwards = [turn for size in rounds for turn in reversed(range(turns)) for _ in range(size)]
    step = 1 if os.environ.get("ENABLE_LESS_MEM_VPP") == "1" else 2
    warm = min((turns - 1) * first_round + step * (stages - 1 - stage), len(forwards))
    held = sum(keeps[turn] for turn in forwards[:warm])
    top = held
    for done, turn in enumerate(forwards[warm:]):
        held += keeps[turn]
        top = max(top, held)
        held -= keeps[backwards[done]]
    return top


if __name__ == "__main__":
    sys.exit(main())
