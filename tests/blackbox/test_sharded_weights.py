"""Weights that FSDP shards: the bytes that torch's own FSDP holds beside a network's, and the order of its streams."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from taylor.blackbox.sharded_weights import BlockBytes, GroupTimes, WeightMemory, both_ns
from taylor.parsers.profiles.kineto_tables import _OF_WEIGHTS
from taylor.parsers.small_run import RunSetting, ShardedWeights

TRAINING = """\
import sys, torch, torch.nn as nn, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
mesh = init_device_mesh("cpu", (4,))
model = nn.Sequential(nn.Embedding(128, 64), nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False))
precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for at, layer in enumerate(model):
    fully_shard(layer, mesh=mesh, mp_policy=precision, reshard_after_forward=at < 2)
fully_shard(model, mesh=mesh, mp_policy=precision)
tokens = torch.randint(0, 128, (8, 16))
def step():
    model(tokens).float().sum().backward()
step()
model.zero_grad()
with torch.profiler.profile(record_shapes=True, profile_memory=True) as taken:
    step()
taken.export_chrome_trace(sys.argv[1])
"""
ELEMENTS = [(128.0 * 64, 0.0), (64.0 * 256, 0.0), (64.0 * 256, 0.0)]
RUN = RunSetting(dp=4)
MEMORY = WeightMemory(ShardedWeights(2, 4, 4))
BIG = 1e12


def beside(at: int, backward: bool) -> float:
    """Bytes of weights and gradients beside one block's pass, whose own bytes are more than all others."""
    blocks = [BlockBytes(0.0, 0.0 if backward or one != at else BIG, BIG if backward and one == at else 0.0, 0.0)
              for one in range(3)]  # fmt: skip
    return MEMORY.peak(RUN, blocks, ELEMENTS, 1, accumulates=False) - BIG


@pytest.mark.slow
def test_bytes_of_weights_are_those_that_torchs_fsdp_holds_beside_each_pass(tmp_path):
    pytest.importorskip("torch.distributed.fsdp")
    file = tmp_path / "trace.json"
    command = [sys.executable, "-c", TRAINING, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    events = json.loads(file.read_text())["traceEvents"]
    spans = [(one["ts"], one["ts"] + one["dur"], one["tid"], one["name"]) for one in events
             if _OF_WEIGHTS.match(str(one.get("name")))]  # fmt: skip
    memory = sorted((one["ts"], one["args"]["Bytes"], one["args"]["Addr"], one["tid"]) for one in events
                    if one.get("name") == "[memory]")  # fmt: skip
    alive, held, shown = dict[int, int](), 0, dict[tuple[int, bool], int]()
    now: tuple[int, bool] | None = None
    marks = sorted((begin, name) for begin, _, _, name in spans if name.startswith(("FSDP::pre_f", "FSDP::pre_b")))
    for moment, size, address, thread in memory:
        for begin, name in marks:
            if begin <= moment:
                now = int(name.split("(")[1].rstrip(")")), "backward" in name
        of_weights = any(begin <= moment <= end and thread == one for begin, end, one, _ in spans)
        if size > 0 and of_weights:
            alive[address] = size
            held += size
        elif size < 0 and address in alive:
            held -= alive.pop(address)
        elif size > 0 and now is not None:  # An operator of the network: what FSDP holds beside it.
            shown[now] = max(shown.get(now, 0), held)
    assert shown[1, False] == beside(1, backward=False)
    # The last layer's weights are asked for in the head's backward pass.
    assert shown[2, True] == beside(2, backward=True)
    assert shown[1, True] == beside(1, backward=True)
    assert shown[0, True] == pytest.approx(beside(0, backward=True), rel=0.001)


def test_a_layers_passes_take_as_long_as_the_longer_of_operators_and_weights():
    layers = 100
    for forward, backward, gather, reduce in ((10, 20, 3, 4), (2, 5, 4, 7), (10, 3, 4, 7)):
        groups = [GroupTimes(forward, backward, gather, reduce)] * layers
        expected = layers * (max(forward, gather) + max(backward, gather + reduce))
        assert both_ns(groups).all == pytest.approx(expected, rel=0.02)


def test_stages_keep_weights_and_sums_of_gradients_that_a_model_without_stages_does_not():
    blocks = [BlockBytes(0.0, 0.0, 0.0, 0.0)] * 3
    staged = MEMORY.peak(RUN.replace(pp=2, dp=2), blocks, ELEMENTS, 2, accumulates=True)
    whole = sum(size for size, _ in ELEMENTS)
    assert staged >= 6 * whole and MEMORY.peak(RUN, blocks, ELEMENTS, 1, accumulates=True) < 6 * whole
    assert MEMORY.resident(ELEMENTS[0], RUN, accumulates=True) == 4 * ELEMENTS[0][0] / 4
