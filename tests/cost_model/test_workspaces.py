"""Memory of libraries that torch's allocator counts."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from benchmarks.measured_runs import MEASURED, measured_runs
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.memory import workspaces
from taylor.cost_model.memory.workspaces import workspaces_mib
from taylor.register import frameworks
from taylor.register.registry import Registry

REGISTRY = Registry.load()
DENSE, EXPERTS = REGISTRY.model("llama2-7b"), REGISTRY.model("mixtral-8x7b")
RULES = TrainingRules(framework=frameworks.MEGATRON, engine_layers=True)


def told(device: str, rules: TrainingRules = RULES) -> float:
    return workspaces_mib(DENSE, rules, REGISTRY.device(device))


def test_workspaces_are_wider_from_hopper_on_and_in_deterministic_jobs() -> None:
    assert told("a100-80g") < told("a100-80g", replace(RULES, deterministic=True)) < told("h100-80g")
    assert told("h100-80g") == told("h100-80g", replace(RULES, deterministic=True))


def test_grouped_products_have_a_workspace_a_stream() -> None:
    h100 = REGISTRY.device("h100-80g")
    assert workspaces_mib(EXPERTS, RULES, h100) - told("h100-80g") == 4 * 32
    plain = replace(RULES, engine_layers=False)
    assert workspaces_mib(EXPERTS, plain, h100) == workspaces_mib(DENSE, plain, h100) < told("h100-80g")


def test_a_card_without_these_libraries_has_no_such_workspace() -> None:
    assert told("ascend-910b") == 0.0


@pytest.mark.parametrize("device", ["a100-80g", "h100-80g"])
def test_workspaces_are_within_what_is_kept_for_the_runtime(device: str) -> None:
    assert workspaces_mib(EXPERTS, RULES, REGISTRY.device(device)) < RULES.framework.statics.overhead_mib


@pytest.mark.slow
@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measured runs lie outside the repository")
def test_measured_peaks_are_nearer_with_workspaces_than_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def off() -> float:
        return median(abs(run.error) for run in measured_runs(MEASURED)[0] if run.error is not None)

    counted = off()
    monkeypatch.setattr(workspaces, "workspaces_mib", lambda *_: 0.0)
    assert counted < 0.05 and counted < 0.6 * off()
