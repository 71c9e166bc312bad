"""The built-in model and the tables of its runs, beside a Llama and sums that are written by hand."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from taylor.profiling.measuring import model_worker
from taylor.profiling.measuring.model_plan import BATCH, MEMORY, ModelPlan, ModelRun, model_runs, model_tables
from taylor.profiling.measuring.plan import (
    MIB,
)
from taylor.profiling.measuring.samples import TimedSample
from taylor.profiling.measuring.torch_device import TorchDevice
from taylor.register.registry import Registry

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
REGISTRY = Registry.load()


def test_a_layer_takes_what_more_layers_take_longer() -> None:
    """One of each of two kinds takes 10 ms, two more of the first 16, of the second 20: 3 and 5, and 2 beside them."""
    plan = ModelPlan(mode=BATCH, batches=(1, 2, 4, 8), lengths=(64,), layers_max=3, layer_types=2)
    times = {
        1: (10.0, 16.0, 20.0),
        2: (10.0, 10.0, 20.0),  # No longer with more layers: noise, and no figure.
        4: (7.0, 13.0, 17.0),  # A rest of -1 is none.
    }
    measured = {
        ModelRun(layers, batch, 64).key: TimedSample(time, 0.0, 1)
        for batch, row in times.items()
        for layers, time in zip([(1, 1), (3, 1), (1, 3)], row, strict=True)
    }
    measured[ModelRun((1, 1), 8, 64).key] = TimedSample(5.0, 0.0, 1)
    (table,) = model_tables(plan, measured).values()
    assert {name: value for name, value in table.items() if "type" in name} == {
        "layertype_0_bsz1_seq64": 3.0, "layertype_1_bsz1_seq64": 5.0, "layertype_other_bsz1_seq64": 2.0,
        "layertype_0_bsz4_seq64": 0.75, "layertype_1_bsz4_seq64": 1.25, "layertype_other_bsz4_seq64": 0.0,
    }  # fmt: skip
    assert table["layernum[1,3]_bsz2_seq64"] == 20.0 and len(table) == 10 + 6


def test_a_rest_is_what_all_the_least_layers_leave() -> None:
    plan = ModelPlan(lengths=(8,), layers_min=2, layers_max=6)
    measured = {ModelRun((layers,), 1, 8).key: TimedSample(time, 0.0, 1) for layers, time in ((2, 11.0), (6, 21.0))}
    (table,) = model_tables(plan, measured).values()
    assert (table["layertype_0_bsz1_seq8"], table["layertype_other_bsz1_seq8"]) == (2.5, 6.0)
    assert model_tables(plan, {}) == {} == model_tables(replace(plan, kind=MEMORY), {})


def test_a_shorter_run_that_took_a_run_s_place_is_told() -> None:
    plan = ModelPlan(lengths=(12,))
    measured = {ModelRun((layers,), 1, 3).key: TimedSample(float(layers), 0.0, 1) for layers in (1, 2)}
    (table,) = model_tables(plan, measured).values()
    assert set(table) == {f"layernum[{layers}]_bsz1_seq3" for layers in (1, 2)} | {
        "layertype_0_bsz1_seq3", "layertype_other_bsz1_seq3",
    }  # fmt: skip


def test_a_memory_profile_fills_the_ranks_that_tp_leaves_with_samples() -> None:
    plan = ModelPlan(kind=MEMORY, max_tp=4, batches=(3,), lengths=(8,), layers_max=2)
    runs = list(model_runs(plan))
    assert [(run.tp, run.layers, run.recomputed) for run in runs] == [
        (tp, layers, again) for tp in (1, 2, 4) for layers in ((1,), (2,)) for again in (False, True)
    ]
    measured = {
        f"{run.key} {what}": TimedSample(float(number), 0.0, 1)
        for run in runs
        for number, what in enumerate(("ms", "act", "act_peak"))
    }
    (table,) = model_tables(plan, measured).values()
    assert set(table) == {f"1_{tp}_{4 // tp}{mark}" for tp in (1, 2, 4) for mark in ("", "_c")}
    for tp in (1, 2, 4):
        runs_of = table[f"1_{tp}_{4 // tp}"]
        name = f"layernum[2]_bsz{3 * 4 // tp}_seq8_rank0"
        assert [runs_of[f"{name}_{what}"] for what in ("ms", "act", "act_peak")] == [0.0, 1.0, 2.0]


SMALL = ModelPlan(hidden=8, heads=2, ffn=12, vocab=11, precision="fp32", repeats=1, attempts=1)


@needs_torch
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_model_computes_what_a_llama_written_by_hand_does(recomputed: bool) -> None:
    """Position by position and head by head, without a fused kernel and, as there, without rotary positions."""
    import torch

    run = ModelRun((1, 1), 2, 3, recomputed=recomputed)
    on = replace(TorchDevice.here(0), module=None)
    model = model_worker.build(SMALL, run, on)
    weights = dict(model.named_parameters())
    h, f, v = 8, 12, 11
    assert sum(each.numel() for each in weights.values()) == 2 * (4 * h * h + 3 * h * f + 2 * h) + 2 * v * h + h
    tokens = torch.tensor([[1, 5, 2], [7, 10, 0]])

    def norm(x: Any, name: str) -> Any:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + torch.finfo(x.dtype).eps) * weights[f"{name}.weight"]

    total = torch.zeros(())
    for sample in tokens:
        x = weights["embedding.weight"][sample]
        for layer in ("layers.0", "layers.1"):
            mixed = norm(x, f"{layer}.first") @ weights[f"{layer}.qkv.weight"].T
            seen = []
            for at in range(3):
                heads = []
                for head in range(2):
                    q, k, values = (mixed[:, 8 * which + 4 * head : 8 * which + 4 * head + 4] for which in range(3))
                    scores = torch.softmax((q[at] * k[: at + 1]).sum(-1) / 2.0, 0)
                    heads.append((scores[:, None] * values[: at + 1]).sum(0))
                seen.append(torch.cat(heads))
            x = x + torch.stack(seen) @ weights[f"{layer}.out.weight"].T
            both = norm(x, f"{layer}.second") @ weights[f"{layer}.up.weight"].T
            gate, up = both[:, :f], both[:, f:]
            x = x + (gate / (1 + torch.exp(-gate)) * up) @ weights[f"{layer}.down.weight"].T
        logits = norm(x, "norm") @ weights["head.weight"].T
        total = total + sum(torch.logsumexp(logits[at], 0) - logits[at, token] for at, token in enumerate(sample)) / 6
    found = model(tokens)
    assert found.item() == pytest.approx(total.item(), rel=1e-5)
    mine = torch.autograd.grad(total, list(weights.values()))
    found.backward()
    for one, other in zip(weights.values(), mine, strict=True):
        torch.testing.assert_close(one.grad, other, rtol=1e-3, atol=1e-5)


@needs_torch
def test_memory_is_measured_once_and_adam_holds_four_numbers_a_parameter() -> None:
    """Weight, gradient and two moments in fp32; and one counter a tensor: 3 + 6 + 6 of them here."""
    run = ModelRun((1, 1), 2, 3)
    found = model_worker.measure(replace(SMALL, kind=MEMORY), run, replace(TorchDevice.here(0), module=None))
    assert set(found) == {f"{run.key} {what}" for what in ("ms", "act", "act_peak")}
    assert all((sample.spread, sample.attempts, sample.disturbed) == (0.0, 1, "") for sample in found.values())
    parameters, tensors = 2 * (4 * 64 + 3 * 96 + 16) + 2 * 88 + 8, 2 * 6 + 3
    assert found[f"{run.key} ms"].value == pytest.approx((16 * parameters + 4 * tensors) / 2**20, rel=1e-9)
    assert found[f"{run.key} act"].value == found[f"{run.key} act_peak"].value > 0


@needs_torch
def test_a_card_s_memory_is_told_by_its_own_counts() -> None:
    """It holds 100 MiB before the forward, 130 behind it, and 150 at the most."""
    import torch

    held = iter([100 * MIB, 130 * MIB])
    told: list[str] = []
    module = SimpleNamespace(
        synchronize=lambda: None, memory_allocated=lambda: next(held), max_memory_allocated=lambda: 150 * MIB,
        reset_peak_memory_stats=lambda: told.append("reset"),
    )  # fmt: skip
    model = torch.nn.Linear(4, 3, bias=False)
    on = TorchDevice(torch, torch.device("cpu"), "nccl", module, torch.bfloat16)
    found = model_worker._memory(model, lambda: model(torch.ones(4)).sum(), on)
    assert found == {"ms": pytest.approx((16 * 12 + 4) / MIB), "act": 30.0, "act_peak": 50.0}
    assert told == ["reset"]


@needs_torch
def test_a_forward_is_timed_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count(0, 0.25)
    monkeypatch.setattr(model_worker, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    run = ModelRun((1,), 1, 2)
    found = model_worker.measure(SMALL, run, replace(TorchDevice.here(0), module=None))
    assert found == {run.key: TimedSample(250.0, 0.0, 1)}


@needs_torch
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_rank_of_tp_holds_its_share_of_the_products_and_whole_norms(tp: int) -> None:
    plan = replace(SMALL, heads=4)
    model = model_worker.build(plan, ModelRun((1,), 1, 2, tp=tp), replace(TorchDevice.here(0), module=None))
    held = sum(each.numel() for each in model.parameters())
    assert held == (4 * 64 + 3 * 96) // tp + 2 * 8 + 2 * 88 + 8
