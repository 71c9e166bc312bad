"""Stands in for the torch stage model: closed forms with hidden factors, and every way to fail on demand."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

from taylor.base.errors import InputError
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.dryrun.interface import DryRun
from taylor.dryrun.stage_memory import Moment, StageMemory
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import FORWARD


def run_stage(run: DryRun, stage: int) -> StageMemory:
    told = json.loads(Path(os.environ["STANDIN_STAGE"]).read_text())
    with open(told["journal"], "a") as journal:
        journal.write(f"{run.strategy.name} {stage} {os.getpid()}\n")
    fail = told.get("fail", {})
    kind = fail.get(run.strategy.name) or fail.get(f"stage {stage}")
    if kind == "crash":
        os._exit(7)
    elif kind == "hang":
        time.sleep(600)
    elif kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "error":
        raise RuntimeError("no fake kernel for aten::magic")
    elif kind == "refused":
        raise InputError("is not modelled", field="attention", value="linear")
    elif kind == "memory":
        held = []
        while True:
            held.append(np.empty(1 << 30, dtype=np.uint8))
    elif kind == "once" and Path(told["journal"]).read_text().count(run.strategy.name) == 1:
        sys.exit(3)
    time.sleep(told.get("seconds", 0.0))
    config, strategy = run.config, run.strategy
    parts = stage_breakdown(config.model, strategy, config.rules, run.plan, config.schedule)[stage].categories()
    factors = told.get("factors", {})
    parts = {
        name: value * next((f for part, f in factors.items() if name.startswith(part)), 1.0)
        for name, value in parts.items()
    }
    total = sum(parts.values())
    kept = sum(value for name, value in parts.items() if name.startswith("activations"))
    order = build_schedule(config.schedule, strategy.pp, strategy.vpp, strategy.micro_batches).order[stage].tolist()
    alive, moments = 0, []
    most = max(strategy.pp - stage, 1)
    for direction, interleave, micro_batch, _ in order:
        alive += 1 if direction == FORWARD else -1
        level = total - kept + kept * min(alive, most) / most
        moments.append(Moment(direction, interleave, micro_batch, level, min(total, level + 100.0)))
    return StageMemory(stage, total, parts, tuple(moments), 0.01, 50.0)
