"""The recorded operators of every kind of layer, beside the live storages that are counted while it runs."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from taylor.cost_model.choices.operator_times import with_times  # noqa: E402
from taylor.cost_model.choices.tensor_sets import LayerTimes, tensor_front  # noqa: E402
from taylor.cost_model.memory.statics import MIB  # noqa: E402
from taylor.cost_model.time.step import layer_time  # noqa: E402
from taylor.dryrun.torch_stage.probe import layer_memory  # noqa: E402
from taylor.dryrun.torch_stage.saved_graph import layer_graph  # noqa: E402
from taylor.pipeline.plan import FULL, NONE  # noqa: E402
from taylor.register.registry import Registry  # noqa: E402
from tests.dryrun.test_torch_stage_kinds import KINDS, RULES, STRATEGIES, model_of  # noqa: E402

FEW = ("attention beside mlp", "latent with a gate", "latent experts")
CASES = [
    ("megatron", FEW),
    *(pytest.param(framework, tuple(KINDS), marks=pytest.mark.slow, id=f"{framework} all") for framework in RULES),
]


@pytest.mark.parametrize(("framework", "names"), CASES)
def test_what_operators_save_is_what_lives_between_forward_and_backward(framework: str, names: tuple[str, ...]) -> None:
    rules, strategy = RULES[framework], STRATEGIES["tp4 sp"]
    for name in names:
        spec = KINDS[name]
        model = model_of(spec)
        graph = layer_graph(model, spec.name, strategy, rules)
        kept = layer_memory(model, spec.name, NONE, strategy, rules).kept / MIB
        assert graph.kept_mib == pytest.approx(kept, rel=1e-9), name


def test_all_operators_together_run_again_in_the_time_of_full_recompute() -> None:
    device = Registry.load().device("h100-80g")
    for name in ("attention beside mlp", "mamba-2", "latent experts"):
        model, rules, strategy = model_of(KINDS[name]), RULES["megatron"], STRATEGIES["tp4 sp"]
        time = layer_time(model, "a", strategy, rules, device)
        graph = layer_graph(model, "a", strategy, rules)
        graph = with_times(graph, model, "a", (strategy, rules, device), float(time.recompute[FULL]))
        assert sum(one.ms for one in graph.operators) == pytest.approx(float(time.recompute[FULL])), name
        assert all(one.ms >= 0 for one in graph.operators)
        # The set that makes everything again is on no better terms than full recompute.
        beside = LayerTimes(float(time.forward), float(time.backward), None)
        most = tensor_front(graph, beside)[-1]
        assert most.kept_mib >= graph.entering_mib and most.added_ms <= float(time.recompute[FULL]) * (1 + 1e-9)


def test_recording_leaves_torch_s_functions_as_they_were() -> None:
    before = torch.autograd.Function.__dict__["apply"]
    layer_graph(model_of(KINDS["sliding"]), "a", STRATEGIES["alone"], RULES["megatron"])
    assert torch.autograd.Function.__dict__["apply"] is before
