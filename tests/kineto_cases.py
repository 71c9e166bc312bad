"""Kineto traces for tests: of what a table of Ascend's profiler shows, in the form of PyTorch's own traces."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from taylor.parsers.profiles.folder import RankSource
from taylor.parsers.profiles.kineto_tables import ProfileTables
from taylor.parsers.profiles.operators import OperatorSample, OperatorTable
from taylor.parsers.profiles.transfers import Transfer

_TYPES = {"DT_BF16": "c10::BFloat16", "FLOAT16": "c10::Half", "FLOAT": "float", "INT64": "long int", "INT32": "int"}
_NAMES = {"allgather": "_allgather_base", "reducescatter": "_reduce_scatter_base", "allreduce": "allreduce",
          "alltoallv": "all_to_allv", "send": "send", "receive": "recv"}  # fmt: skip


def write_trace(source: RankSource, file: Path, memory: bool = True) -> None:
    """Write a rank's tables as a trace: kernels launched by operators with shapes, collectives, memory events."""
    tables = _from_zero(source.tables())
    events: list[dict[str, Any]] = []
    for number, one in enumerate(tables.operators.samples):
        if one.operator.is_compute:
            events += _computing(number, one)
        else:
            events += _collective(number, one, tables.transfers)
    events += _steps(tables.operators.samples)
    for number, each in enumerate(tables.allocations or () if memory else ()):
        sizes = [(each.start_ns, each.bytes), *([(each.end_ns, -each.bytes)] if each.end_ns is not None else [])]
        events += [
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": when / 1000,
             "args": {"Total Allocated": each.total, "Bytes": size, "Device Id": 0, "Device Type": 1, "Addr": number}}
            for when, size in sizes
        ]  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"schemaVersion": 1, "record_shapes": 1, "traceEvents": events}
    file.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def _from_zero(tables: ProfileTables) -> ProfileTables:
    """Tables on a clock that starts with them, as PyTorch's does: µs of an epoch have no ns as floats."""
    zero = min(one.start_ns for one in (*tables.operators.samples, *(tables.allocations or ())))
    samples = [replace(one, start_ns=one.start_ns - zero) for one in tables.operators.samples]
    allocations = [
        replace(one, start_ns=one.start_ns - zero, end_ns=None if one.end_ns is None else one.end_ns - zero)
        for one in tables.allocations or ()
    ]
    return ProfileTables(OperatorTable(tuple(samples)), tables.transfers, tuple(allocations))


def _event(category: str, name: str, thread: int, start: int, took: int, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": thread, "tid": thread, "ts": start / 1000,
            "dur": took / 1000, "args": args}  # fmt: skip


def _computing(number: int, one: OperatorSample) -> Iterable[dict[str, Any]]:
    """An operator on the host, and two kernels that it launches."""
    shown = one.operator
    dims = [list(shape) for shape in shown.inputs]
    types = [_TYPES.get(name, name) for name in shown.dtypes]
    given = [*[""] * len(dims), "0.5"]
    (result,) = shown.outputs or ((),)
    if "Loss" in shown.type:  # nll_loss_backward is given the tensor whose gradient it returns.
        dims, types, given = [*dims, list(result)], [*types, "float"], ["", *given]
    elif shown.type == "EmbeddingGrad":  # embedding_dense_backward is given the number of rows.
        given.append(str(result[0]))
    name = "aten::mm" if shown.type == "MatMulV2" else f"aten::{shown.type}"
    yield _event("cpu_op", name, 7, one.start_ns, 1,
                 **{"External id": number, "Input Dims": [*dims, []], "Input type": [*types, "Scalar"],
                    "Concrete Inputs": given})  # fmt: skip
    half = one.duration_ns // 2
    for start, took in ((one.start_ns, half), (one.start_ns + half, one.duration_ns - half)):
        yield _event("kernel", f"void any_{shown.type}<128>()", 0, start, took, device=0, stream=7,
                     **{"External id": number})  # fmt: skip


def _collective(number: int, one: OperatorSample, transfers: Mapping[str, Transfer]) -> Iterable[dict[str, Any]]:
    word = one.operator.type.removeprefix("hcom_").strip("_").lower()
    sent = transfers[one.name]
    # Of a pair, a rank sends half of the buffer, and all of it to a neighbour and in a sum over the two.
    whole = sent.bytes if word in ("send", "receive", "allreduce") else 2 * sent.bytes
    elements = {"In msg nelems": whole, "Out msg nelems": whole, "Group size": 2, "dtype": "Byte"}
    yield _event("kernel", "ncclDevKernel_Any(ncclDevComm*)", 0, one.start_ns, one.duration_ns, device=0, stream=20,
                 **{"External id": number, "Collective name": _NAMES[word], "Process Group Name": sent.group},
                 **elements)  # fmt: skip


def _steps(samples: Iterable[OperatorSample]) -> Iterable[dict[str, Any]]:
    by_step: dict[int, list[OperatorSample]] = {}
    for one in samples:
        by_step.setdefault(one.step, []).append(one)
    for step, mine in by_step.items():
        begin, end = mine[0].start_ns, max(one.start_ns + one.duration_ns for one in mine)
        yield _event("user_annotation", f"ProfilerStep#{step}", 7, begin, end - begin)
