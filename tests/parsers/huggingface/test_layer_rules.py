"""Which layers see how far and which have experts, rule by rule, counted off layer by layer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.huggingface import reaches as rules
from taylor.parsers.huggingface.convolutions import _adjusted, lfm2, lfm2_moe
from taylor.parsers.huggingface.linear import _kimi_experts, _kimi_kinds
from taylor.parsers.huggingface.values import Values
from taylor.register.layers import CHUNKED, FULL_REACH, SLIDING

LAYERS = 13
SMALL = (0, 1, 2, 3, 6, 12, 13, 14)
NOTHING = object()


def values(data: dict[str, Any], **defaults: Any) -> Values:
    return Values({name: value for name, value in data.items() if value is not NOTHING}, Path("c.json"), "x", defaults)


def counted(period: int, start: int = 1) -> Iterator[int]:
    """1, 2, …, `period`, 1, 2, … from `start` on."""
    at = start
    while True:
        yield at
        at = at + 1 if at < period else 1


def lasts_of(period: int) -> list[bool]:
    """Whether each layer is the last of a run of so many."""
    return [number == period for number, _ in zip(counted(period), range(LAYERS), strict=False)]


def windows(told: list[str], reach: str = SLIDING) -> list[bool]:
    assert set(told) <= {FULL_REACH, reach}
    return [each == reach for each in told]


def test_plain_rules_hold_for_every_layer() -> None:
    assert rules.all_full(values({}), LAYERS) == [FULL_REACH] * LAYERS
    assert rules.all_sliding(values({}), LAYERS) == [SLIDING] * LAYERS
    assert rules.everywhere(values({}), LAYERS) == [True] * LAYERS
    for on in (True, False, NOTHING):
        told = rules.switched_sliding(values({"use_sliding_window": on}), LAYERS)
        assert windows(told) == [on is True] * LAYERS


def test_windows_begin_or_end_at_a_layer() -> None:
    for border, on in itertools.product(SMALL, (True, False)):
        data = values({"max_window_layers": border, "use_sliding_window": on})
        behind = [False] * min(border, LAYERS) + [True] * max(0, LAYERS - border)
        assert windows(rules.later_sliding(data, LAYERS)) == behind
        assert windows(rules.late_sliding(data, LAYERS)) == [each and on for each in behind]
        odd = [not last for last in lasts_of(2)]
        expected = [on and ahead and not after for ahead, after in zip(odd, behind, strict=True)]
        assert windows(rules.early_alternating(data, LAYERS)) == expected


def test_periods_leave_the_last_or_the_first_layer_of_each_run_whole() -> None:
    for period in (1, 2, 3, 5, 20):
        assert windows(rules.full_every(period)(values({}), LAYERS)) == [not each for each in lasts_of(period)]
        firsts = [number == 1 for number, _ in zip(counted(period), range(LAYERS), strict=False)]
        assert windows(rules.full_first_of(period)(values({}), LAYERS)) == [not each for each in firsts]
        for given in (NOTHING, None, 0, 1, 4):
            told = windows(rules.full_every(period, "pattern")(values({"pattern": given}), LAYERS))
            step = period if given in (NOTHING, None) else given
            assert told == ([not each for each in lasts_of(step)] if step else [False] * LAYERS)


def test_mimo_lists_its_windows_or_has_the_first_layer_and_each_sixth_whole() -> None:
    whole = [at == 0 or last for at, last in enumerate(lasts_of(6))]
    assert windows(rules.mimo(values({}), LAYERS)) == [not each for each in whole]
    for listed in itertools.product((0, 1), repeat=3):
        assert windows(rules.mimo(values({"hybrid_layer_pattern": list(listed)}), 3)) == [each == 1 for each in listed]


def test_layers_without_positions_are_each_fourth_unless_told_otherwise() -> None:
    for reach, switch, on, step in itertools.product((CHUNKED, SLIDING), (None, "on"), (True, False), (NOTHING, 1, 3)):
        for listed in (NOTHING, [], [1, 0, 1] + [0] * 10):
            data = values({"on": on, "no_rope_layer_interval": step, "no_rope_layers": listed})
            if listed == []:
                with pytest.raises(InputError, match="0 entries"):
                    rules.without_positions(reach, switch)(data, LAYERS)
                continue
            lasts = lasts_of(4 if step is NOTHING else step)
            rotary = [not each for each in lasts] if listed is NOTHING else [each == 1 for each in listed]
            expected = rotary if switch is None else [on and not each for each in rotary]
            assert windows(rules.without_positions(reach, switch)(data, LAYERS), reach) == expected


def test_a_listed_reach_goes_before_the_rule_and_a_window_that_is_none_is_none() -> None:
    kinds = {"full_attention": FULL_REACH, "sliding_attention": SLIDING, "chunked_attention": CHUNKED}
    for listed in itertools.product(kinds, repeat=2):
        for window, chunk, on in itertools.product((NOTHING, None, 7), (NOTHING, None, 9), (True, False, NOTHING)):
            data = {"layer_types": list(listed), "sliding_window": window, "attention_chunk_size": chunk,
                    "use_sliding_window": on}  # fmt: skip
            there = {FULL_REACH: True, SLIDING: window == 7, CHUNKED: chunk == 9}
            plain = [kinds[each] if there[kinds[each]] else FULL_REACH for each in listed]
            assert rules.reaches_of(values(data), 2, rules.all_full) == plain
            if on is True:
                assert rules.reaches_of(values(data), 2, rules.late_sliding) == plain
            else:
                off = [FULL_REACH if kinds[each] == SLIDING else kinds[each] for each in listed]
                assert rules.reaches_of(values(data), 2, rules.late_sliding) == off
            assert rules.window_of(values(data), FULL_REACH) is None
            assert rules.window_of(values(data), SLIDING) == (7 if window == 7 else None)
            assert rules.window_of(values(data), CHUNKED) == (9 if chunk == 9 else None)
    assert rules.reaches_of(values({"sliding_window": 5}), 3, rules.all_sliding) == [SLIDING] * 3
    assert rules.window_of(values({"attention_window_size": 5}), SLIDING) == 5


def test_experts_begin_behind_the_dense_layers() -> None:
    for first in SMALL:
        expected = [False] * min(first, LAYERS) + [True] * max(0, LAYERS - first)
        assert rules.after_first(values({"first_k_dense_replace": first}), LAYERS) == expected
        assert rules.after_dense("dense")(values({"dense": first}), LAYERS) == expected
        assert rules.after_layer(first)(values({}), LAYERS) == expected
        assert _kimi_experts(values({"first_k_dense_replace": first}), LAYERS) == expected
    assert rules.after_first(values({}), LAYERS) == rules.after_first(values({"first_k_dense_replace": None}), LAYERS)
    assert rules.after_first(values({}), LAYERS) == [True] * LAYERS
    assert _kimi_experts(values({}), LAYERS) == rules.frequency_list(values({}), LAYERS) == [False] + [True] * 12
    with pytest.raises(InputError, match="moe_layer_freq"):
        rules.after_first(values({"moe_layer_freq": 2}), LAYERS)


def test_experts_are_in_the_last_layer_of_every_run_of_so_many() -> None:
    for step, dense in itertools.product((1, 2, 3, 13, 14), (NOTHING, None, [], [0, 5, 11])):
        named = dense if isinstance(dense, list) else []
        expected = [last and at not in named for at, last in enumerate(lasts_of(step))]
        data = values({"decoder_sparse_step": step, "mlp_only_layers": dense})
        assert rules.every_step(data, LAYERS) == expected
    for step, listed in itertools.product((0, 1, 2, 5), (NOTHING, None, [], [1, 12])):
        data = values({"interleave_moe_layer_step": step, "moe_layers": listed})
        steps = lasts_of(step) if step else [False] * LAYERS
        expected = [at in listed for at in range(LAYERS)] if isinstance(listed, list) else steps
        assert rules.llama4_steps(data, LAYERS) == expected
    for first, last, step in itertools.product((0, 1, 12), (-1, 0, 5, 12, 13), (1, 2, 3)):
        data = values({"moe_layer_start_index": first, "moe_layer_end_index": last, "moe_layer_interval": step})
        span = range(first, (12 if last == -1 else last) + 1)
        assert rules.ernie_span(data, LAYERS) == [every and at in span for at, every in enumerate(lasts_of(step))]


def test_listed_experts_go_before_every_rule() -> None:
    for listed in itertools.product(("dense", "mlp", "sparse", "moe"), repeat=2):
        data = values({"mlp_layer_types": list(listed), "moe_layer_freq": [0, 1]})
        assert rules.experts_of(data, 2, rules.everywhere) == [each in ("sparse", "moe") for each in listed]
    assert rules.experts_of(values({"moe_layer_freq": [0, 1, 1]}), 2, rules.frequency_list) == [False, True]
    assert rules.experts_of(values({}), 2, rules.everywhere) == [True, True]


def test_kimi_s_linear_layers_are_numbered_from_one_or_all_but_each_fourth_after_the_first() -> None:
    every = [at in (0, 1, 2, 3, 5, 6, 7, 9, 10, 11) for at in range(LAYERS)]
    for full, delta in itertools.product((NOTHING, None, [2, 3]), (NOTHING, None, [1, 4])):
        nested = values({"full_attn_layers": full, "kda_layers": delta})
        if isinstance(full, list) and isinstance(delta, list):
            assert _kimi_kinds(values({}), nested, 4) == [True, False, False, True]
            for layers in (3, 5):
                with pytest.raises(InputError):
                    _kimi_kinds(values({}), nested, layers)
        else:
            wide = values({"full_attn_layers": full, "kda_layers": delta})
            assert _kimi_kinds(values({}), wide, LAYERS) == every
    with pytest.raises(InputError, match="each of the layers 1 to 3 once"):
        _kimi_kinds(values({}), values({"full_attn_layers": [1, 2], "kda_layers": [2]}), 3)
    listed = values({"layer_types": ["linear_attention", "full_attention"]})
    assert _kimi_kinds(listed, values({"full_attn_layers": [1], "kda_layers": [2]}), 2) == [True, False]


LFM = {"num_hidden_layers": 4, "hidden_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1,
       "intermediate_size": 30, "conv_L_cache": 3}  # fmt: skip


def described(read: Any, **more: Any) -> list[str]:
    return [layer.name for layer in read(values({**LFM, **more})).layers]


def test_lfm2_has_attention_in_the_layers_that_are_named_and_convolutions_elsewhere() -> None:
    attention, convolution = "attn+dense", "conv+dense"
    for named in ([], [0], [1, 3], [0, 1, 2, 3]):
        wanted = [attention if at in named else convolution for at in range(4)]
        types = ["full_attention" if at in named else "conv" for at in range(4)]
        assert described(lfm2, full_attn_idxs=named) == described(lfm2, layer_types=types) == wanted
        experts = {"num_dense_layers": 1, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
        routed = [name if at < 1 else name.replace("dense", "moe") for at, name in enumerate(wanted)]
        assert described(lfm2_moe, layer_types=types, **experts) == routed
    assert described(lfm2) == [attention] * 4
    with pytest.raises(InputError, match="full_attn_idxs"):
        described(lfm2, full_attn_idxs=[4])
    with pytest.raises(InputError, match="name conv or full_attention for every layer"):
        described(lfm2_moe, num_dense_layers=0)


def test_a_short_convolution_has_two_gates_a_stream_its_taps_and_a_way_out() -> None:
    for taps, bias in itertools.product((1, 3), (True, False, NOTHING)):
        data = values({**LFM, "conv_L_cache": taps, "conv_bias": bias, "full_attn_idxs": []})
        tensors = [6 * 3 * 6, 6 * taps, 6 * 6] + ([3 * 6, 6, 6] if bias is True else [])
        found = lfm2(data)
        assert {layer.extra for layer in found.layers} == {sum(tensors)} and data.notes
    whole = values({**LFM, "full_attn_idxs": [0, 1, 2, 3]})
    lfm2(whole)
    assert not whole.notes


def test_the_mlp_of_lfm2_is_two_thirds_wide_times_a_factor_up_to_a_multiple() -> None:
    for width, factor, multiple, on in itertools.product((30, 31, 100), (1.0, 1.3, 0.5), (1, 8, 32), (True, False)):
        data = {"block_auto_adjust_ff_dim": on, "block_ffn_dim_multiplier": factor, "block_multiple_of": multiple}
        least = int(factor * (2 * width // 3))
        expected = next(each for each in itertools.count(least) if each % multiple == 0) if on else width
        assert _adjusted(values(data), width) == expected
        data["block_ffn_dim_multiplier"] = None
        assert _adjusted(values(data), width) == (2 * width // 3 if on else width)
