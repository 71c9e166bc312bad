"""Zero-bubble step times and Megatron-LM's interleaving against the code that their authors published.

    python -m benchmarks.published_schedules FOLDER [--stages 10]

FOLDER is a checkout of sail-sg/zero-bubble-pipeline-parallelism (39f2c18): its
``megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py`` is run with the memory that makes ZB-H1 (as many micro-
batches as stages) and ZB-H2 (2S - 1), under equal and unequal times of forward, backward and weight gradient.

Of a checkout of NVIDIA/Megatron-LM (d98e8a64) the functions that set its interleaved order are run, with and without
the overlap of the experts' exchange, and compared task by task. The other published orders are compared task by task
in tests/pipeline/test_published_orders.py.
"""

from __future__ import annotations

import argparse
import ast
import sys
import types
from pathlib import Path
from typing import Any, Optional

import numpy as np

from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline_solver.event_graph import EventGraph

ZB = Path("megatron/core/pipeline_parallel/zerobubble/scheduler/zb.py")
MEGATRON = Path("megatron/core/pipeline_parallel/schedules.py")
TIMES = ((1, 1, 1), (10, 12, 9), (10, 11, 10))
"""Forward, input gradient and weight gradient."""


def published_generator(folder: Path) -> Any:
    """Their module, without the imports of Megatron and of a solver that its generator does not use."""
    code = [line for line in (folder / ZB).read_text(encoding="utf-8").splitlines() if not line.startswith("import ")]
    code = [line for line in code if not line.startswith("from megatron")]
    module: Any = types.ModuleType("zb")
    module.__dict__.update(
        GraphConfig=object, ScheduledNode=object, FuncType=object, torch=types.SimpleNamespace(Tensor=object)
    )
    sys.modules["zb"] = module  # dataclasses ask for it
    exec(compile("\n".join(code), str(folder / ZB), "exec"), module.__dict__)
    return module


def published_time(module: Any, stages: int, micro_batches: int, times: tuple[int, int, int], most: int) -> float:
    """When their order ends, `most` micro-batches alive on a stage at the most."""
    config = types.SimpleNamespace(
        n_stages=stages, n_micro=micro_batches, cost_comm=0, max_mem=[2 * most] * stages,
        cost_f=[times[0]] * stages, cost_b=[times[1]] * stages, cost_w=[times[2]] * stages,
        mem_f=[2] * stages, mem_b=[-1] * stages, mem_w=[-1] * stages,
    )  # fmt: skip
    graph = module.Graph.build_graph(stages, micro_batches, config)
    return float(max(module.initial_solution(graph, False)[2]))


def own_time(name: str, stages: int, micro_batches: int, times: tuple[int, int, int]) -> float:
    """Step time of the order here."""
    graph = EventGraph.from_schedule(build_schedule(ScheduleSpec(name), stages, 1, micro_batches), 0.0)
    return graph.longest_path(np.repeat([*map(float, times), 0.0], stages))


def unlike_megatron(folder: Path) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """Shapes compared, and those whose order differs on some stage."""
    wanted = ("get_pp_rank_microbatches", "get_schedule_table")
    tree = ast.parse((folder / MEGATRON).read_text(encoding="utf-8"))
    found: list[ast.stmt] = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name in wanted]
    theirs: dict[str, Any] = {"Optional": Optional, "P2PCommunicator": object}
    exec(compile(ast.Module(found, []), str(folder / MEGATRON), "exec"), theirs)
    shapes = [
        (S, V, N, m, ahead)
        for S in range(2, 7) for V in range(2, 5) for N in range(S, S + 4) for m in range(N, 4 * S + 3)
        for ahead in (0, 1) if m % N == 0 or m % N >= S
    ]  # fmt: skip
    unlike = []
    for S, V, N, m, ahead in shapes:
        own = build_schedule(ScheduleSpec("megatron-interleaved", group_size=N, one_ahead=bool(ahead)), S, V, m)
        table = theirs["get_schedule_table"](m, V, N)
        forwards, backwards = [(FORWARD, v, i) for i, v in table], [(BACKWARD, V - 1 - v, i) for i, v in table]
        for s in range(S):
            group = types.SimpleNamespace(size=lambda S=S: S, rank=lambda s=s: s)
            ranks = types.SimpleNamespace(pp_group=group, virtual_pipeline_model_parallel_size=V)
            _, _, warm_up, left = theirs["get_pp_rank_microbatches"](m, V, N, False, bool(ahead), ranks)
            steady = [task for k in range(left) for task in (forwards[warm_up + k], backwards[k])]
            order = forwards[:warm_up] + steady + backwards[left:]
            if [tuple(task[:3]) for task in own.order[s].tolist()] != order:
                unlike.append((S, V, N, m, ahead))
                break
    return len(shapes), unlike


def main() -> int:
    """Compare; 1 where a time differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stages", type=int, default=10, help="stages at the most (default: 10)")
    args = parser.parse_args()
    if (args.folder / MEGATRON).exists() and not (args.folder / ZB).exists():
        count, other = unlike_megatron(args.folder)
        print(f"megatron-interleaved: {count} shapes, {len(other)} differ {other[:5] or ''}")
        return int(bool(other))
    module = published_generator(args.folder)
    unlike = 0
    for name, most, least in (("zb-h1", 1, lambda S: 1), ("zb-h2", 2, lambda S: 2 * S - 1)):
        for times in TIMES:
            shapes = [(S, m) for S in range(2, args.stages + 1) for m in range(least(S), least(S) + 25)]
            differ = [
                (S, m)
                for S, m in shapes
                if published_time(module, S, m, times, most * S - most + 1) != own_time(name, S, m, times)
            ]
            unlike += len(differ)
            print(f"{name}, times {times}: {len(shapes)} shapes, {len(differ)} differ {differ[:5] or ''}")
    return int(unlike > 0)


if __name__ == "__main__":
    sys.exit(main())
