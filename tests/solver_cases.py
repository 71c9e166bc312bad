"""Problems that several of the solver's tests use."""

from __future__ import annotations

from typing import Any

from taylor.pipeline.plan import FULL, NONE, PipelinePlan
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem

REFERENCE_OBJECTIVE = 1132.662249
"""Step time of the reference case, published with the contract."""


def reference_problem(
    *, interleaves: int = 1, low_memory: bool = True, limit_mib: float = 55296.0, **changes: Any
) -> PipelineProblem:
    """DeepSeek-V3 on 16 stages with 64 micro-batches and the memory profile of the contract."""
    problem = PipelineProblem(
        stages=16,
        interleaves=interleaves,
        micro_batches=64,
        kinds=(
            LayerKind("dense", 3, 0.397, 866.0, {NONE: 479.0, FULL: 30.0}),
            LayerKind("moe", 59, 1.0, 10691.0, {NONE: 765.0, FULL: 30.0}),
        ),
        static_mib=(3383.0, *[2382.0] * 14, 8675.0),
        limit_mib=(limit_mib,) * 16,
        schedule=ScheduleSpec("1f1b" if interleaves == 1 else "interleaved", low_memory),
        backward_ratio=1.839,
        head_forward=1.5,
    )
    return problem.replace(**changes)


def small_problem(**changes: Any) -> PipelineProblem:
    """Two stages, four micro-batches, four equal layers of 10 MiB that keep 4 MiB, or 1 MiB when recomputed."""
    problem = PipelineProblem(
        stages=2,
        interleaves=1,
        micro_batches=4,
        kinds=(LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),),
        static_mib=(5.0, 7.0),
        limit_mib=(100.0, 100.0),
        backward_ratio=2.0,
    )
    return problem.replace(**changes)


def plan_of(layers: dict[str, list[list[int]]], recompute: dict[str, list[list[int]]] | None = None) -> PipelinePlan:
    """A plan from nested lists [vpp][pp]."""

    def freeze(grids: dict[str, list[list[int]]]) -> dict[str, tuple[tuple[int, ...], ...]]:
        return {name: tuple(map(tuple, rows)) for name, rows in grids.items()}

    return PipelinePlan(freeze(layers), freeze(recompute or {}))


def python_of(kernel: Any) -> Any:
    """The Python function of a kernel, or of a part of one."""
    return getattr(kernel, "py_func", kernel)
