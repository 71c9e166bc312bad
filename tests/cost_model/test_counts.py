"""Counts of single parts of a model, against published sizes, papers and what kernels are known to write."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.parameters import _mamba
from taylor.cost_model.job.recurrent import recurrent_bytes
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.measured.cost_table import MemorySettings
from taylor.cost_model.measured.galvatron.inputs import SEQUENCE, _time
from taylor.cost_model.measured.layer_strategy import LayerStrategy
from taylor.cost_model.measured.profiles import ComputationProfile, Shape
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.memory.saved_operators import mlp_products
from taylor.cost_model.time.work import _single_norm_bytes
from taylor.register.layers import GATED_DELTA, LinearAttentionSpec, MambaSpec
from taylor.register.model import MOE, ModelSpec, MoeSpec
from taylor.register.registry import Registry

LLAMA7 = Registry.load().model("llama2-7b")


def test_mamba_130m_has_its_published_parameters() -> None:
    """state-spaces/mamba-130m-hf: 129,135,360 parameters, 24 layers of 768 with a norm each, a tied table of 50,280."""
    model = ModelSpec("mamba", 24, 768, 12, 12, 64, 3072, 50280)
    layer = _mamba(model, MambaSpec(1536, 1536, 16, dt_rank=48))
    assert 24 * (layer.total + 768) + 50280 * 768 + 768 == 129_135_360
    # `use_bias` of its configuration gives the projections at both ends one, `use_conv_bias` the convolution.
    biased = _mamba(model, MambaSpec(1536, 1536, 16, dt_rank=48, projection_bias=True))
    assert biased.total == layer.total + 2 * 1536 + 768
    assert _mamba(model, MambaSpec(1536, 1536, 16, dt_rank=48, conv_bias=False)).total == layer.total - 1536


@pytest.mark.parametrize("tp", [1, 4])
def test_a_gated_delta_net_keeps_four_fp32_figures_of_its_heads(tp: int) -> None:
    """Of flash-linear-attention's kernels: the inverse norms of every query and key head (fla/modules/l2norm.py), the
    summed decay of every value head (fla/ops/gated_delta_rule/chunk.py) and the gated norm's (fused_norm_gate.py).
    All else is in the type of compute, so that it doubles with the type's bytes."""
    spec = LinearAttentionSpec(GATED_DELTA, 16, 32, 128, 128)
    two, four = (
        recurrent_bytes(spec, Strategy(1, tp, 1), TrainingRules(compute_bytes=width, param_bytes=4), 1)
        for width in (2, 4)
    )
    assert 2 * two - four == pytest.approx(4 * (2 * 16 + 2 * 32) / tp)


def test_shared_experts_are_cut_over_tp_as_an_mlp_is() -> None:
    model = ModelSpec("m", 4, 256, 8, 8, 32, 640, 2048, moe=MoeSpec(8, 2, 128, n_shared=3))
    up, gate, down = mlp_products(model, model.layer(MOE), Strategy(1, 4, 1))
    assert up == gate
    assert tuple(up[:2]) == (256, 3 * 128 / 4) == tuple(down[1::-1])


def test_a_norm_of_single_operations_reads_and_writes_each_operation_s_tensors() -> None:
    """In bf16, bytes an element read and written: cast 2 + 4, square 4 + 4, mean 4, scaling 4 + 4, weight 4 + 4, cast
    back 4 + 2."""
    assert _single_norm_bytes(2) == (2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 4) + (4 + 2)


def test_a_stage_of_1f1b_keeps_as_many_micro_batches_as_stages_follow() -> None:
    """Narayanan et al. 2021 §2.2.1: at most as many in flight as the pipeline is deep."""
    found = stage_breakdown(LLAMA7, Strategy(1, 1, 4, micro_batches=8), TrainingRules())
    assert [stage.alive for stage in found] == [4.0, 3.0, 2.0, 1.0]


@pytest.mark.filterwarnings("ignore:Covariance")
def test_a_curve_takes_as_many_lengths_as_it_has_coefficients() -> None:
    """A layer's time over its tokens is a parabola, that of embedding and head a line."""
    profile = ComputationProfile()
    lengths = {Shape(1, (tokens,)): 3.0 * tokens for tokens in (1024, 2048)}
    _time(lengths, profile, 1024, SEQUENCE, None)
    with pytest.raises(InputError, match="2 lengths at batch 1, and the curve takes 3"):
        _time(lengths, profile, 1024, SEQUENCE, "dense")
    with pytest.raises(InputError, match="1 lengths at batch 1, and the curve takes 2"):
        _time({Shape(1, (1024,)): 1.0}, profile, 1024, SEQUENCE, None)


def test_nothing_is_kept_of_the_memory_that_nobody_asks_to_keep() -> None:
    settings = MemorySettings()
    assert (settings.context_mib, settings.usable_mib(1000.0)) == (0.0, 1000.0)


def test_a_layer_s_strategy_is_named_by_all_that_it_does() -> None:
    assert LayerStrategy(tp=4, dp=2, zero=3, recompute=True).name == "tp4 dp2 zero3 recompute"
    assert LayerStrategy(tp=4, dp=2, zero=3, recompute=True, offload=True).name == "tp4 dp2 zero3 recompute offload"
