"""What a plan's tensors take by the analytical model, beside its dry-run on fake tensors."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.cost_model.memory.breakdown import stage_breakdown  # noqa: E402
from taylor.dryrun.torch_stage.requests import recorded_stage  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.register.frameworks import NORMS  # noqa: E402
from taylor.register.model import ModelSpec, MoeSpec  # noqa: E402
from taylor.register.narrow_products import AO_TENSORWISE  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

DENSE = ModelSpec("dense", 8, 1024, 16, 8, 64, 4096, 32000)
EXPERTS = DENSE.replace(moe=MoeSpec(32, 4, 512, n_shared=1, first_dense=1))
MEGATRON = cases.MEGATRON.replace(seq_length=4096, selective=(NORMS,))
TORCHTITAN = cases.TORCHTITAN.replace(seq_length=2048, expert_tensor_parallel=False)
PIPELINE = Strategy(8, 2, 2, op=8, sp=True, micro_batches=8)


def _pair(model: ModelSpec, rules: TrainingRules, mode: str, stage: int) -> tuple[float, float, float]:
    """Peak by the dry-run, by the analytical model for this plan, and for all plans of the strategy, MiB."""
    strategy = PIPELINE if model.moe is None else PIPELINE.replace(ep=2)
    run = cases.job(model, strategy, rules, mode=mode)
    closed = stage_breakdown(model, run.strategy, rules, run.plan)[stage]
    every = closed.total - closed.overhead - closed.cached
    return recorded_stage(run, stage).peak_mib, every - closed.spare, every


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("mode", [NONE, SELECT, FULL])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=lambda model: "experts" if model.moe else "dense")
def test_a_plan_takes_what_its_dry_run_does(model: ModelSpec, mode: str, stage: int) -> None:
    dry, closed, every = _pair(model, MEGATRON, mode, stage)
    assert closed == pytest.approx(dry, rel=0.02)
    assert every >= closed
    if mode != FULL and stage == 0:
        # The workspace of all plans has a layer that is rebuilt whole.
        assert every > 1.01 * closed


@pytest.mark.parametrize("mode", [NONE, FULL])
def test_new_gradients_of_sharded_parameters_count_in_a_pipeline(mode: str) -> None:
    """Half of the experts are a rank's: their gradients in 16 bits are more than all that a layer's backward needs."""
    dry, closed, _ = _pair(EXPERTS, TORCHTITAN, mode, 0)
    assert closed == pytest.approx(dry, rel=0.05)


def test_weights_that_are_gathered_in_a_byte_stay_so_in_a_pipeline() -> None:
    rules = TORCHTITAN.replace(narrow=AO_TENSORWISE, narrow_gather=True)
    found = []
    for each in (TORCHTITAN, rules):
        run = cases.job(DENSE, PIPELINE, each, mode=FULL)
        recorded, closed = recorded_stage(run, 0), stage_breakdown(DENSE, run.strategy, each, run.plan)[0]
        assert recorded.at_peak_mib["weights"] == pytest.approx(closed.weights, rel=0.001)
        found.append(closed.weights)
    assert found[1] < 0.8 * found[0]


@pytest.mark.parametrize("changes", [{}, {"whole_ends": True}, {"stay_gathered": True}], ids=str)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_weights_that_stay_gathered_count_once(changes: dict[str, bool], micro_batches: int) -> None:
    """A large vocabulary and few tokens: the worst moment is behind the head or at the embedding."""
    model, rules = DENSE.replace(vocab=128_000), TORCHTITAN.replace(seq_length=512, **changes)
    run = cases.job(model, Strategy(8, 1, 1, op=8, micro_batches=micro_batches), rules, mode=FULL)
    closed = stage_breakdown(model, run.strategy, rules, run.plan)[0]
    expected = pytest.approx(recorded_stage(run, 0).peak_mib, rel=0.001)
    assert closed.total - closed.overhead - closed.cached - closed.spare == expected
    assert closed.total - closed.overhead - closed.cached == expected
