"""Memory of a roll-out engine against counts that its models' authors publish."""

from __future__ import annotations

import pytest

from taylor.cost_model.memory.rollout_engine import FREE, RolloutEngine
from taylor.register.registry import Registry

MIB = 2**20


@pytest.fixture(scope="module")
def models():
    return Registry.load()


def test_the_weights_of_one_card_are_the_published_parameters_in_16_bits(models):
    model = models.model("qwen3-8b")
    assert RolloutEngine("vllm").weights_mib(model) * MIB / 2 == pytest.approx(8.19e9, rel=0.01)


def test_tensor_parallelism_halves_them_but_for_norms(models):
    model = models.model("qwen3-8b")
    one, two = (RolloutEngine("vllm", tp=tp).weights_mib(model) for tp in (1, 2))
    assert one / 2 <= two < 0.501 * one


def test_dealt_experts_lie_on_all_ranks_of_the_engine(models):
    model = models.model("qwen3-30b-a3b")
    dealt = RolloutEngine("sglang", tp=2, dp=4, experts_split=True).weights_mib(model)
    split = RolloutEngine("sglang", tp=2, dp=4).weights_mib(model)
    assert dealt < 0.35 * split


def test_a_token_of_grouped_attention_keeps_keys_and_values_of_its_groups(models):
    # Qwen3-8B's config.json: 36 layers, 8 key-value heads of 128.
    kept = RolloutEngine("vllm").cache_mib(models.model("qwen3-8b"), 1000) * MIB
    assert kept == 1000 * 36 * 2 * 8 * 128 * 2


def test_a_token_of_latent_attention_keeps_one_vector_on_every_rank(models):
    # DeepSeek-V3's technical report, section 2.1.1: 512 and 64 elements a token and layer; 61 layers.
    kept = RolloutEngine("vllm", tp=8).cache_mib(models.model("deepseek-v3"), 1) * MIB
    assert kept == 61 * (512 + 64) * 2


def test_down_projections_of_latent_attention_are_whole_on_every_rank(models):
    model, hidden, vocabulary = models.model("deepseek-v3"), 7168, 129_280
    # config.json of DeepSeek-V3: ranks 1,536 and 512, 128 heads of 128 + 64 and 128; 3 dense layers of 18,432, 58 with
    # 256 experts and a shared one of 2,048.
    whole = hidden * (1536 + 512 + 64)
    split = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * hidden
    dense, shared, experts = (3 * hidden * width for width in (18_432, 2048, 256 * 2048))
    router = 256 * hidden + 256
    norms = 2 * hidden + 1536 + 512
    for tp in (1, 8):
        layers = 61 * (whole + split / tp + norms) + 3 * dense / tp + 58 * ((shared + experts) / tp + router)
        expected = 2 * (layers + 2 * vocabulary * hidden / tp)
        assert RolloutEngine("vllm", tp=tp).weights_mib(model) * MIB == pytest.approx(expected, rel=1e-5)


def test_a_share_of_what_is_free_is_less_than_one_of_the_whole():
    whole, free = RolloutEngine("vllm", memory_share=0.6), RolloutEngine("sglang", memory_share=0.6, share_of=FREE)
    assert whole.pool_mib(80_000, 10_000) == 48_000
    assert free.pool_mib(80_000, 10_000) == 42_000
