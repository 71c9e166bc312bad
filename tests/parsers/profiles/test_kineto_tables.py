"""Operators, collectives and tensors of Kineto traces, against what PyTorch itself says of the same run."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.blackbox.operator_speed import work_of
from taylor.parsers.profiles.folder import KINETO, RankSource
from taylor.parsers.profiles.kineto_tables import read_kineto_tables
from tests.conftest import SHARED

REAL = SHARED / "data" / "kineto" / "hta_nccl_parser_config_nccl_data.json.gz"
KERNELS = ("aten::mm", "aten::addmm", "aten::gelu", "aten::embedding_dense_backward")
real = pytest.mark.skipif(not REAL.is_file(), reason="the real traces are not here")


def shaped(tmp_path: Path) -> Path:
    """The real trace with the shapes of one operator, as if it had been taken with them."""
    data = json.loads(gzip.decompress(REAL.read_bytes()))
    first = next(event for event in data["traceEvents"] if event.get("name") == "aten::mm")
    first["args"] |= {"Input Dims": [[8, 64], [64, 32]], "Input type": ["float", "float"]}
    file = tmp_path / "rank-0.json.gz"
    file.write_bytes(gzip.compress(json.dumps(data).encode(), 1))
    return file


@real
def test_a_trace_without_shapes_is_refused_with_the_flag_that_records_them():
    with pytest.raises(InputError, match="without shapes.*--pytorch-profiler-collect-shapes"):
        read_kineto_tables(REAL)


@real
def test_kernels_of_a_real_trace_belong_to_the_operators_that_launched_them(tmp_path):
    found = read_kineto_tables(shaped(tmp_path))
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    device = [one for one in events if one.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    assert sum(one.duration_ns for one in found.operators.samples) == sum(round(1000 * one["dur"]) for one in device)
    types = Counter(one.operator.type for one in found.operators.samples)
    # ResNet-50 has 53 convolutions; cuDNN runs 342 kernels for those of three steps.
    assert types["aten::cudnn_convolution"] == 3 * 53
    assert {one.step for one in found.operators.samples} <= {-1, 4, 5, 6}
    assert found.allocations is None


@real
def test_collectives_of_a_real_trace_have_the_bytes_that_nccl_states(tmp_path):
    found = read_kineto_tables(shaped(tmp_path))
    events = json.loads(gzip.decompress(REAL.read_bytes()))["traceEvents"]
    said = [one["args"] for one in events if "Collective name" in one.get("args", {}) and one["cat"] == "kernel"]
    assert len(said) == 21 and all(one["Group size"] == 2 for one in said)
    # An all-reduce over two ranks: each sends half in the reduction and half in the gathering.
    sent = [4 * one["In msg nelems"] for one in said if one["Collective name"] == "allreduce"]
    assert len(sent) == 15
    mine = [found.transfers[one.name] for one in found.operators.samples if one.operator.type == "nccl:allreduce"]
    assert sorted(one.bytes for one in mine) == sorted(sent) and {one.group for one in mine} == {"0"}
    assert not any(one.operator.is_compute for one in found.operators.samples if one.name in found.transfers)


@pytest.fixture(scope="module")
def own_trace(tmp_path_factory) -> tuple[Path, list[dict[str, Any]]]:
    """A trace by PyTorch itself of a small network on this processor, as a device would have run it."""
    torch = pytest.importorskip("torch")
    profiler = torch.profiler
    network = torch.nn.Sequential(
        torch.nn.Embedding(50, 64), torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 32, bias=False)
    )
    schedule = profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
    kinds = [profiler.ProfilerActivity.CPU]
    with profiler.profile(activities=kinds, record_shapes=True, profile_memory=True, schedule=schedule) as taken:
        for _ in range(4):
            network(torch.arange(8)).square().mean().backward()
            network.zero_grad()
            taken.step()
    file = tmp_path_factory.mktemp("trace") / "rank-0.json"
    taken.export_chrome_trace(str(file))
    data = json.loads(file.read_text())
    events = data["traceEvents"]
    kernels = []
    for event in events:
        if event.get("name") == "[memory]":
            event["args"]["Device Type"] = 1
        elif event.get("cat") == "cpu_op" and event["name"] in KERNELS:
            args = {"External id": event["args"]["External id"], "stream": 7, "device": 0}
            kernels.append({**event, "cat": "kernel", "name": "void k()", "args": args})
    data["traceEvents"] = [*kernels, *events]
    file.write_text(json.dumps(data))
    return file, events


def test_operators_have_the_shapes_that_pytorch_ran_them_with(own_trace):
    samples = read_kineto_tables(own_trace[0]).operators.samples
    forward = [one.operator for one in samples if one.operator.type in ("aten::addmm", "aten::gelu")]
    first = forward[0]
    assert (first.inputs, first.outputs) == (((8, 64), (64, 128), (128,)), ((8, 128),))
    assert first.dtypes == ("FLOAT",) * 3 and work_of(first)[2] == 8 * 64 * 128
    assert forward[1].inputs == ((8, 128),) and forward[1].outputs == ()
    products = Counter(round(work_of(one.operator)[2]) for one in samples if one.operator.type == "aten::mm")
    # Of each step: the second layer and its two gradients, and the first layer's two gradients.
    assert products == {8 * 128 * 32: 6, 8 * 64 * 128: 4}
    (backward, _) = (one.operator for one in samples if one.operator.type == "aten::embedding_dense_backward")
    # The gradient has a row for each of 50 words: PyTorch passes their number, not a tensor.
    assert backward.inputs == ((8, 64), (8,), (50,))
    assert {one.step for one in samples} == {2, 3}


def test_tensors_add_up_to_what_pytorch_says_is_allocated(own_trace):
    file, events = own_trace
    found = read_kineto_tables(file).allocations
    assert found is not None and len(found) > 20
    memory = sorted((one for one in events if one.get("name") == "[memory]"), key=lambda one: one["ts"])
    for event in memory:
        now = round(1000 * event["ts"])
        alive = sum(one.bytes for one in found if one.start_ns <= now and (one.end_ns is None or one.end_ns > now))
        assert alive == event["args"]["Total Allocated"]
    # The operator around an allocation names it, not the one that only allocates.
    assert "aten::addmm" in {one.name for one in found} and "aten::empty" not in {one.name for one in found}


def test_a_trace_without_memory_is_refused_where_tensors_are_needed(own_trace, tmp_path):
    data = json.loads(own_trace[0].read_text())
    data["traceEvents"] = [one for one in data["traceEvents"] if one.get("name") != "[memory]"]
    file = tmp_path / "rank-0.json"
    file.write_text(json.dumps(data))
    source = RankSource(file, KINETO)
    assert source.tables(memory=False).allocations is None
    with pytest.raises(InputError, match="without memory.*profile_memory=True"):
        source.tables()


@pytest.mark.parametrize(
    "args",
    [
        {"Input Dims": [[2, "x"], 7, [[1, None]], [-1]], "Input type": [None] * 9, "External id": [1]},
        {"Input Dims": "many", "Input type": {}, "External id": None},
        {
            "Input Dims": [[10**30, 2]],
            "Input type": ["float"],
            "External id": True,
            "Concrete Inputs": [7, "-5", "[2, x]", "1"],
        },
    ],
)
def test_what_are_no_shapes_is_left_out(tmp_path, args):
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "tid": 1, "args": args}
    kernel = {**op, "cat": "kernel", "args": {"External id": args["External id"], "stream": {}}}
    file = tmp_path / "rank-0.json"
    file.write_text(json.dumps([op, kernel]))
    (found,) = read_kineto_tables(file).operators.samples
    assert found.operator.inputs == () and found.operator.outputs == ()


@pytest.mark.parametrize(("field", "value"), [("ts", "soon"), ("dur", -1), ("dur", 10**16), ("ts", None)])
def test_times_that_are_none_are_refused(tmp_path, field, value):
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": {}, field: value}
    file = tmp_path / "rank-0.json"
    file.write_text(json.dumps([kernel]))
    with pytest.raises(InputError, match="time"):
        read_kineto_tables(file)
