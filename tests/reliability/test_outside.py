"""A short form of what the campaign asks the frameworks themselves; skipped where their code is not on the machine."""

from __future__ import annotations

import pytest

from benchmarks.reliability import legality


@pytest.mark.parametrize("framework", ["mindformers", "megatron"])
def test_a_framework_starts_what_the_rules_let_through_and_nothing_else(framework: str) -> None:
    found = legality.compared(framework, 12, seed=1)
    if "absent" in found:
        pytest.skip(found["absent"])
    assert found["faults"] == []
    assert 0 < found["legal"] < found["strategies"] == 12
