"""Zero-bubble orders on a V as sail-sg's own generators make them: ZB-V, V-Half and V-Min, run here."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

from benchmarks.reliability.outside import loaded, source, without_imports
from benchmarks.reliability.published_orders import ZERO_BUBBLE, Order

_FOLDER = "megatron/core/pipeline_parallel/zerobubble/scheduler"


@cache
def _module(name: str) -> Any:
    text = without_imports(source("zero-bubble", ZERO_BUBBLE, f"{_FOLDER}/{name}.py"), "megatron")
    return loaded(name, text, ScheduledNode=SimpleNamespace, FuncType=object, F=0, B=1, W=2)


def v_orders(name: str, S: int, m: int, times: tuple[int, int, int]) -> Iterator[tuple[list[Order], int]]:
    """Orders of every stage under some task lengths, each with the time at which its author's last task ends.

    A backward of theirs is numbered by its way through the V, whose first half is that of the second virtual stage.
    """
    if name == "ZB-V":
        # Four attempts, of which ``create_schedule`` takes the one with the least bubble.
        graph = _module("zbv").PipelineGraph(S, m, *times, 0, 2, -1, -1)
        for fill_b in (True, False):
            for fill_f in (True, False):
                tasks, ends, _ = graph.try_v_schedule(fill_b=fill_b, fill_f=fill_f)
                yield [[_task(2 * kind + half, i) for kind, half, i in stage] for stage in tasks], max(ends)
        return
    graph = _module("zbv_greedy").PipelineGraph(S, m, name[2:].lower(), *times, 0)
    lengths = [times[kind // 2] for kind in range(6)]
    pattern = getattr(graph, f"stable_pattern_v_{graph.mem_config}")(S)
    with contextlib.redirect_stdout(io.StringIO()):
        _, starts, tasks = graph.schedule_from_pattern(pattern, m, lengths)
    last = max(begun[-1] + lengths[kind] for stage in starts for kind, begun in enumerate(stage))
    yield [[_task(kind, i) for kind, i in stage] for stage in tasks], last


def _task(kind: int, micro_batch: int) -> tuple[int, int, int, int]:
    direction, half = divmod(kind, 2)
    return direction, 1 - half if direction else half, micro_batch, 0
