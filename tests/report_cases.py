"""Problems, plans and rankings that the report's tests share."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd
from rich.console import Console

from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem


def deepseek(
    stages: int = 16,
    interleaves: int = 1,
    micro_batches: int = 64,
    name: str = "1f1b",
    seq_splits: int = 1,
    **changes: object,
) -> PipelineProblem:
    """DeepSeek-V3 with the memory profile and the ratios of the user contract."""
    problem = PipelineProblem(
        stages,
        interleaves,
        micro_batches,
        (
            LayerKind("dense", 3, 0.397, 866, {"none": 479, "full": 30}),
            LayerKind("moe", 59, 1.0, 10691, {"none": 765, "full": 30}),
        ),
        (3383.0,) + (2382.0,) * (stages - 2) + (8675.0,),
        (55296.0,) * stages,
        ScheduleSpec(name, seq_splits=seq_splits),
        1.839,
        {"full": 1.0},
        head_forward=1.5,
    )
    return problem.replace(**changes)


def even_plan(problem: PipelineProblem, kept: int = 1) -> PipelinePlan:
    """Layers spread evenly in model order; in every chunk all but `kept` layers are recomputed."""
    from taylor.pipeline.generators import build_schedule

    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    base, more = divmod(problem.layers, schedule.chunks)
    left = {kind.name: kind.count for kind in problem.kinds}
    layers = {kind: [[0] * problem.stages for _ in range(problem.interleaves)] for kind in left}
    recompute = [[0] * problem.stages for _ in range(problem.interleaves)]
    for position in range(schedule.chunks):
        v, s = schedule.chunk_at(position)
        size = base + (position < more)
        recompute[v][s] = max(0, size - kept)
        for kind in left:
            taken = min(size, left[kind])
            layers[kind][v][s] += taken
            left[kind] -= taken
            size -= taken
    return PipelinePlan({kind: as_grid(grid) for kind, grid in layers.items()}, {"full": as_grid(recompute)})


def ranking(rows: int, seed: int = 0) -> pd.DataFrame:
    """A ranking as the solver stage writes it; figures are random, their form is real."""
    rng = np.random.default_rng(seed)
    records = []
    for i in range(rows):
        pp = int(rng.choice([4, 8, 16, 32]))
        objective = 1000 + 0.37 * i + float(rng.random())
        records.append(
            {
                "dp": int(rng.choice([8, 16, 32])),
                "tp": int(rng.choice([1, 2, 4, 8])),
                "pp": pp,
                "ep": int(rng.choice([1, 8, 16])),
                "cp": 1,
                "vpp": 1,
                "mbs": 1,
                "micro_batches": 64,
                "dmratio": 0.397,
                "bfratio": 1.839,
                "re_grow_ration": 1.0,
                "hratio": 1.5,
                "moe_fw": 9.1,
                "objective": objective,
                "cost": objective * 9.1,
                "bound": objective * (1 - 1e-3 * (i % 3 == 0)),
                "gap": 1e-3 * (i % 3 == 0),
                "offset": json.dumps([[int(x) for x in rng.integers(-1, 2, pp)]]),
                "recompute": json.dumps({"full": [[int(x) for x in rng.integers(0, 4, pp)]]}),
                "peak_memory": json.dumps([int(x) for x in rng.integers(20000, 55000, pp)]),
                "memory_limit": json.dumps([55296] * pp),
                "solver": "HIGHS",
                "status": "feasible" if i % 3 == 0 else "optimal",
                "time": float(np.round(rng.random(), 3)),
                "reason": np.nan,
                "file": f"output/dryrun_yaml/candidate_{i}.yaml",
            }
        )
    return pd.DataFrame(records)


def printed(renderable: object, width: int) -> str:
    """Lines that a terminal without colours shows, without blanks at their ends."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False, highlight=False).print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def block(text: str) -> str:
    """A text written in lines of their own, without the indentation of the line that closes it."""
    lines = text.split("\n")
    return "\n".join(line[len(lines[-1]) :] for line in lines[1:-1])
