"""The log that torchtitan's own code prints of a run, where a clone is available (`benchmarks/reliability`)."""

from __future__ import annotations

import ast
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from benchmarks.reliability.outside import NotHere, loaded, source, without_imports
from taylor.parsers.torchtitan.small_run import run_log

VERSIONS = ("v0.2.0", "v0.2.1", "v0.2.2")
LOCAL, ROUNDS, SEQ, STEP_MS, STEPS, GIB = 2, 4, 8192, 1234.5, 6, 40.25
DEGREES = {"dp_replicate": 2, "dp_shard": 4, "cp": 2, "tp": 4, "pp": 2, "ep": 1, "etp": 1}


class Reached(Exception):
    """Carries what was to be logged."""


def expressions(text: str, words: str) -> list[ast.expr]:
    """What a file logs with some words in it."""
    calls = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Call)]
    logged = [one.args[0] for one in calls if ast.unparse(one.func) == "logger.info" and one.args]
    return [one for one in logged if words in ast.unparse(one)]


def value(expression: ast.expr, **around: Any) -> Any:
    return eval(compile(ast.Expression(expression), "torchtitan", "eval"), around)


def file_of(version: str, path: str) -> str:
    try:
        return source("torchtitan", version, f"torchtitan/{path}")
    except NotHere as error:
        pytest.skip(str(error))


def dimensions(version: str, degrees: dict[str, int]) -> tuple[Any, str]:
    """Its own dimensions, and the line that it logs of them."""

    def info(line: str) -> None:
        raise Reached(line)

    around = {"DeviceMesh": object, "init_device_mesh": MagicMock(), "device_type": "cpu"}
    text = without_imports(file_of(version, "distributed/parallel_dims.py"), "torch")
    module = loaded(f"dims_{version}", text, logger=SimpleNamespace(info=info), **around)
    ranks = degrees["dp_replicate"] * degrees["dp_shard"] * degrees["cp"] * degrees["tp"] * degrees["pp"]
    dims = module.ParallelDims(**degrees, world_size=ranks)
    with pytest.raises(Reached) as reached:
        dims.build_mesh()
    return dims, str(reached.value)


def log_of(version: str, degrees: dict[str, int]) -> str:
    """Lines of a run."""
    dims, mesh = dimensions(version, degrees)
    settings = SimpleNamespace(
        training=SimpleNamespace(local_batch_size=LOCAL, seq_len=SEQ, steps=STEPS),
        lr_scheduler=SimpleNamespace(warmup_steps=1),
    )
    batch = LOCAL * ROUNDS * degrees["dp_replicate"] * degrees["dp_shard"]
    (start,) = expressions(file_of(version, "train.py"), "gradient accumulation steps")
    trainer = SimpleNamespace(gradient_accumulation_steps=ROUNDS)
    lines = [mesh, value(start, job_config=settings, global_batch_size=batch, self=trainer)]

    text = file_of(version, "tools/utils.py")
    (colours,) = (one for one in ast.parse(text).body if isinstance(one, ast.ClassDef) and one.name == "Color")
    colours.decorator_list = []
    color = loaded(f"colours_{version}", ast.unparse(colours)).Color

    text = file_of(version, "components/metrics.py")
    trained, validated = sorted(expressions(text, "step: "), key=lambda one: one.lineno)
    assigned = [one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.Assign)]
    rates = [one.value for one in assigned if ast.unparse(one.targets[0]) == "tps"]
    rate = min(rates, key=lambda one: one.lineno)
    processor = SimpleNamespace(ntokens_since_last_log=LOCAL * ROUNDS * SEQ, parallel_dims=dims)
    tps = value(rate, self=processor, time_delta=STEP_MS / 1000)
    memory = SimpleNamespace(max_reserved_gib=GIB, max_reserved_pct=50.0)
    around = {"color": color, "device_mem_stats": memory, "global_avg_loss": 2.5, "grad_norm": 1.0, "tflops": 1.0,
              "mfu": 40.0, "loss": 2.5}  # fmt: skip
    for step in range(1, STEPS + 1):
        lines.append(value(trained, step=step, tps=tps, **around))
        lines.append(value(validated, step=step, tps=3 * tps, **around))
    return "\n".join(f"[rank0]:[titan] 2026-01-15 10:20:30,123 - root - INFO - {line}" for line in lines)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("changes", [{}, {"pp": 1, "cp": 1}, {"ep": 8, "etp": 4}, {"tp": 1, "cp": 1, "pp": 1}])
def test_the_time_and_the_memory_of_a_step_are_read_in_the_lines_of_each_release(version: str, changes: dict[str, int]):
    log = run_log(log_of(version, DEGREES | changes))
    assert log.step_ms == pytest.approx(STEP_MS, rel=1e-3)
    assert log.reserved == GIB * 2**30
