"""Steps told for published performance tables: the order of one system's plans."""

from __future__ import annotations

import pytest

from benchmarks.published_performance import FILE, order_of_plans, published_steps

pytestmark = pytest.mark.skipif(not FILE.exists(), reason="needs the shared data")


@pytest.mark.parametrize("system", ["DGX-GB200", "DGX-GB300"])
def test_plans_of_a_rack_stand_in_the_order_in_which_they_were_measured(system: str) -> None:
    mine = [step for step in published_steps(FILE) if step.system == system]
    assert len({step.plan for step in mine}) > 10
    assert order_of_plans(mine) >= 0.8
