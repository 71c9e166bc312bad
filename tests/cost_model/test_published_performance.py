"""Steps told for published performance tables: the order of one system's plans."""

from __future__ import annotations

import pytest

from benchmarks.published_performance import (
    DEVICES,
    FILE,
    FIT_SYSTEMS,
    fitted_operation_us,
    order_of_plans,
    published_steps,
)
from taylor.register.registry import Registry

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="needs the shared data")


@pytest.mark.parametrize("system", sorted(DEVICES))
def test_plans_of_a_system_stand_in_the_order_in_which_they_were_measured(system: str) -> None:
    mine = [step for step in published_steps(FILE) if step.system == system]
    assert len({step.plan for step in mine}) > 3
    assert order_of_plans(mine) >= 0.8


@pytest.mark.slow
def test_the_start_of_an_operation_is_the_one_that_suits_the_systems_it_is_fitted_on() -> None:
    assert len(FIT_SYSTEMS) < len(DEVICES) / 2, "more systems than not have no part in it"
    device = Registry.load().device("h100-80g")
    assert fitted_operation_us(FILE) == pytest.approx(device.operation_us, rel=0.02)
