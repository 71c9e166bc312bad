"""Steps that the host bounds, against Megatron-LM's own tests."""

from __future__ import annotations

from statistics import median

import pytest

from benchmarks.measured_runs import MEASURED
from benchmarks.short_steps import Short, fitted, short_steps
from taylor.cost_model.launches import host_time
from taylor.cost_model.strategy import Strategy, TrainingRules
from taylor.register import frameworks
from taylor.register.registry import Registry

pytestmark = pytest.mark.skipif(not MEASURED.is_dir(), reason="the tests' launch files lie outside the repository")
REGISTRY = Registry.load()


@pytest.fixture(scope="module")
def runs() -> list[Short]:
    return short_steps(MEASURED)


def test_what_the_host_takes_is_what_short_steps_say(runs: list[Short]) -> None:
    operation_us, step_ms = fitted(runs)
    assert operation_us == pytest.approx(REGISTRY.device("a100-80g").operation_us, rel=0.02)
    assert step_ms == pytest.approx(frameworks.MEGATRON.step_ms, rel=0.02)


def test_short_steps_are_met_on_a_card_whose_operations_others_settled_too(runs: list[Short]) -> None:
    errors = {run.name: run.told_ms() / run.measured_ms - 1 for run in runs}
    assert median(map(abs, errors.values())) < 0.07
    assert all(abs(error) < 0.05 for name, error in errors.items() if "h100" in name)
    without = [run.told_ms(operation_us=1e-6, step_ms=0.0) / run.measured_ms - 1 for run in runs]
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
