"""Steps that the host bounds, against Megatron-LM's own tests."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest
import torch
import torch.utils._python_dispatch
from torch import Tensor

from benchmarks.measured_runs import MEASURED
from benchmarks.short_steps import Short, fitted, short_steps
from taylor.cost_model.job.strategy import GRAPHED_MIXER, Strategy, TrainingRules
from taylor.cost_model.time.launches import host_time
from taylor.cost_model.time.step import layer_time
from taylor.parsers.read import read_config
from taylor.register import frameworks
from taylor.register.layers import MlaSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

FILES = pytest.mark.skipif(not MEASURED.is_dir(), reason="the tests' launch files lie outside the repository")
REGISTRY = Registry.load()
DEEPSEEK, H100 = REGISTRY.model("deepseek-v3-671b"), REGISTRY.device("h100-80g")
RULES = TrainingRules(framework=frameworks.MEGATRON)


@pytest.fixture(scope="module")
def runs() -> list[Short]:
    return short_steps(MEASURED)


@FILES
def test_what_the_host_takes_is_what_short_steps_say(runs: list[Short]) -> None:
    operation_us, step_ms = fitted(runs)
    assert operation_us == pytest.approx(REGISTRY.device("a100-80g").operation_us, rel=0.02)
    assert step_ms == pytest.approx(frameworks.MEGATRON.step_ms, rel=0.02)


@FILES
def test_short_steps_are_met_on_a_card_whose_operations_others_settled_too(runs: list[Short]) -> None:
    errors = {run.name: run.predicted_ms() / run.measured_ms - 1 for run in runs}
    assert median(map(abs, errors.values())) < 0.07
    assert all(abs(error) < 0.05 for name, error in errors.items() if "h100" in name)
    without = [run.predicted_ms(operation_us=1e-6, step_ms=0.0) / run.measured_ms - 1 for run in runs]
    assert median(without) < -0.6


def test_the_host_starts_transfers_too_and_long_layers_do_not_wait_for_it() -> None:
    rules = TrainingRules(framework=frameworks.MEGATRON)
    model, card = REGISTRY.model("llama2-7b"), REGISTRY.device("h100-80g")

    def forward(strategy: Strategy) -> float:
        return float(host_time(model, "dense", strategy, rules, card).routed)

    alone, whole, split = (forward(Strategy(1, tp, 1, sp=sp)) for tp, sp in ((1, False), (2, False), (2, True)))
    operation = 1e-3 * card.operation_us
    assert alone == pytest.approx((11 + 6) * operation)
    assert (whole - alone, split - alone) == (pytest.approx(2 * operation), pytest.approx(4 * operation))


@FILES
def test_a_short_step_of_latent_attention_is_met_without_a_part_in_the_fit() -> None:
    """Median ``iteration-time`` of gpt3_mcore_te_tp2_pp2_mla, golden_values_dev_dgx_a100.json, Megatron-LM d98e8a64."""
    config = read_config(MEASURED / "megatron-ci-small" / "gpt__gpt3_mcore_te_tp2_pp2_mla__a100_8.sh")
    card = REGISTRY.device("a100-80g")
    assert planned_step_ms(config, card) == pytest.approx(168, rel=0.1)
    # With learned positions Megatron turns by single operations; by the counts of plain attention it is 30 % too short.
    assert config.model.learned_positions
    plain = planned_step_ms(config.replace(model=config.model.replace(learned_positions=0)), card)
    assert plain < 0.85 * 168


class _Started(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc,name-defined,no-untyped-call]
    """Operations that torch starts; a slice's gradient is zeros and a copy into them."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "detach" not in str(func):
            self.number += 2 if "slice_backward" in str(func) else 1
        return func(*args, **(kwargs or {}))


def _turned(t: Tensor, angles: Tensor, *, entries_apart: bool) -> Tensor:
    """The steps of megatron/core/models/common/embeddings/rope_utils.py."""
    t, rest = t[..., : angles.shape[-1]], t[..., angles.shape[-1] :]
    if entries_apart:
        t = torch.cat((t[..., 0::2], t[..., 1::2]), dim=-1)
    cosines, sines = ((turn(angles) * 1.0).to(t.dtype) for turn in (torch.cos, torch.sin))
    first, second = torch.chunk(t, 2, dim=-1)
    return torch.cat(((t * cosines) + (torch.cat((-second, first), dim=-1) * sines), rest), dim=-1)


def _counted(steps: Any, *inputs: Tensor) -> tuple[int, int]:
    with _Started() as ahead:
        results = steps(*inputs)
    with _Started() as back:
        torch.autograd.grad(results, inputs, [torch.empty_like(result) for result in results])
    return ahead.number, back.number - len(results)  # less the gradients made here


def test_single_operations_of_a_rotation_are_those_that_torch_starts() -> None:
    angles = torch.randn(4, 1, 1, 8)

    def plain(queries: Tensor, keys: Tensor) -> list[Tensor]:
        return [_turned(each, angles, entries_apart=False) for each in (queries, keys)]

    def latent(queries: Tensor, up: Tensor, turned: Tensor) -> list[Tensor]:
        """The steps of megatron/core/transformer/multi_latent_attention.py behind the products."""
        (q, q_turned), (k, v) = (torch.split(each, [16, each.shape[-1] - 16], dim=-1) for each in (queries, up))
        q_turned, turned = (_turned(each, angles, entries_apart=True) for each in (q_turned, turned))
        key = torch.cat((k, turned.expand(-1, -1, 2, -1)), dim=-1)
        return [torch.cat((q, q_turned), dim=-1), key, v.contiguous()]

    def inputs(*shapes: tuple[int, int]) -> list[Tensor]:
        return [torch.randn(4, 2, *shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]

    apart = RULES.replace(rotated_apart=1.0)
    operation = 1e-3 * H100.operation_us
    # Plain attention counts one kernel there and two back, latent attention two and two.
    for model, fused, counted in (
        (REGISTRY.model("llama2-7b"), (1, 2), _counted(plain, *inputs((2, 8), (2, 8)))),
        (DEEPSEEK, (2, 2), _counted(latent, *inputs((2, 24), (2, 32), (1, 8)))),
    ):
        one, single = (host_time(model, "dense", Strategy(1, 1, 1), rules, H100) for rules in (RULES, apart))
        more = (single.routed - one.routed) / operation, (single.backward - one.backward) / operation
        assert (more[0] + fused[0], more[1] + fused[1]) == pytest.approx(counted)


def test_the_host_starts_fewer_products_where_queries_have_no_latent() -> None:
    attention = DEEPSEEK.layer("dense").attention
    assert attention is not None and isinstance(attention.latent, MlaSpec)
    without = DEEPSEEK.replace(mla=replace(attention.latent, q_lora_rank=None))
    with_latent, plain = (host_time(model, "dense", Strategy(1, 1, 1), RULES, H100) for model in (DEEPSEEK, without))
    assert (with_latent.routed - plain.routed) * 1e3 == pytest.approx(2 * H100.operation_us)


def test_a_layer_waits_for_its_attention_to_be_started_behind_its_experts_counts() -> None:
    """From one layer's counts to the next's lie the experts, the mixer up to its core, and the core."""
    rules = RULES.replace(rotated_apart=1.0, flash_attention=False)
    strategy = Strategy(1, 1, 1, ep=16)
    host = host_time(DEEPSEEK, "moe", strategy, rules, H100)
    slow = layer_time(DEEPSEEK, "moe", strategy, rules, H100)
    assert host.before_core > 0 and float(slow.forward) >= host.experts + host.before_core
    graphed = host_time(DEEPSEEK, "moe", strategy, rules.replace(graphed=(GRAPHED_MIXER,)), H100)
    assert graphed.before_core == 0
