"""Layers in order as text, and how much of a sequence a query sees."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.register.layers import SLIDING, AttentionSpec, IndexerSpec
from taylor.register.pattern import kinds_in_order, pattern_of, whole_period

KINDS = st.sampled_from(["attn+dense", "gdn+moe", "attn(g8)+dense(x5.25)", "no-op+dense(x1.0)", "mamba"])


@given(st.lists(KINDS, min_size=1, max_size=40))
def test_a_pattern_gives_its_layers_back(kinds: list[str]) -> None:
    assert kinds_in_order(pattern_of(kinds)) == tuple(kinds)


@pytest.mark.parametrize(
    "text", ["", "2 x (1 a", "1 a)", "1 a(b", "3 x ()", "1 a(b c)", "20000 a, 1 b", "99999 x (1 a)"]
)
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="pattern|run of layers"):
        kinds_in_order(text)


@pytest.mark.parametrize("top_k", [None, 3])
def test_compressed_attention_sees_its_window_and_the_compressed_keys(top_k: int | None) -> None:
    """Against a count query by query: the last 4 tokens, and at most top_k of the t / 2 compressed keys before it."""
    length, window, rate = 4000, 4, 2
    indexer = None if top_k is None else IndexerSpec(1, 8, top_k, 0)
    attention = AttentionSpec(2, 1, 8, reach=SLIDING, window=window, indexer=indexer, compression=rate)
    seen = [min(t, window) + min(t / rate, top_k if top_k is not None else length) for t in range(length)]
    assert attention.seen(length, causal=True) == pytest.approx(sum(seen) / length, rel=1e-3)


@pytest.mark.parametrize(
    ("kinds", "period"), [("ab" * 6, 2), ("aaab" * 3, 4), ("a" * 5, 1), ("abab" + "a", 5), ("abc", 3), ("aab", 3)]
)
def test_a_whole_period_repeats_all_through(kinds: str, period: int) -> None:
    assert whole_period(kinds) == period
