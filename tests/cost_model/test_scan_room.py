"""What a linear attention's backward holds beside what it kept, against lists of its tensors.

The lists follow the backward functions of fla-org/flash-linear-attention bc3b101d, at the moment at which most of their
tensors live; names are those of the source, numbers its lines. One entry a group of tensors: elements a token and bytes
each, below 0 for what was kept and is given free before the scan. Not counted: what was kept for the scan, and what has
a few numbers a head alone (write strengths, and the decays of the gated delta rule).
"""

from __future__ import annotations

import pytest

from taylor.cost_model.job.recurrent import recurrent_workspace_bytes
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.register.layers import GATED_DELTA, KIMI_DELTA, LIGHTNING, LinearAttentionSpec

HIDDEN, CHUNK = 4096, 64
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 16, 32, 96, 128
QUERIES, REPEATED, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
STATES = VALUE_HEADS * KEY_DIM * VALUE_DIM / CHUNK

# fla/ops/gated_delta_rule/chunk.py:126-250 `chunk_gated_delta_rule_bwd`, within `prepare_wy_repr_bwd` (233). Sizes:
# fla/ops/gated_delta_rule/wy_fast.py:273-274 and 318-319, fla/ops/common/chunk_delta_h.py:715-721 and 776-780,
# fla/ops/common/chunk_o.py:739-742.
GATED_DELTA_TENSORS = {
    "of the keys' size, heads repeated: w (147), dq, dk, dw (217), dk2 (233)": (5 * REPEATED, 2),
    "of the values' size: u (147), v_new (160), dv (202), dv of the WY form (233)": (4 * VALUES, 2),
    "states h (160) and their gradients dh (202)": (2 * STATES, 2),
    "do (135), the context's gradient, and beside this function the gate's": (2 * VALUES, 2),
    "behind the scan, gone: gate, context, normed context, gated one": (-4 * VALUES, 2),
}
# fla/ops/kda/chunk_bwd.py:435-616 `chunk_kda_bwd`, within `chunk_kda_bwd_intra` (577). Types: fla/ops/kda/wy_fast.py:
# 284-287 (w, u, qg, kg), chunk_bwd.py:341 and 394-399, chunk_intra.py:924-927, gate.py:477 (g, made again).
KIMI_DELTA_TENSORS = {
    "of the keys' size, heads repeated: w, qg, kg (476)": (3 * REPEATED, 2),
    "of the values' size: u (476), v_new (490), dv (558)": (3 * VALUES, 2),
    "states h (490) and their gradients dh (542)": (2 * STATES, 2),
    "do (444), the context's gradient": (VALUES, 2),
    "beside this function: the gradient of the layer's output, kept for the residual stream": (HIDDEN, 2),
    "behind the scan, gone: gate, context, normed context": (-3 * VALUES, 2),
    "fp32, of the keys' size, heads repeated: g (466), dq, dk, dg (558) and again (577)": (7 * REPEATED, 4),
    "fp32, a row of a chunk's matrix a head: dAqk (511), dAkk (558)": (2 * VALUE_HEADS * CHUNK, 4),
}
# fla/ops/simple_gla/chunk.py:61-136 `chunk_simple_gla_bwd`, within `chunk_bwd_dv` (123). States in fp32:
# `states_in_fp32` (88, 105; fla/ops/common/chunk_h.py:336, 401). The layer has as many heads of keys as of values; they
# differ here so that a width taken for the other shows.
LIGHTNING_TENSORS = {
    "of the keys' size: dq, dk (108)": (2 * QUERIES, 2),
    "of the values' size: dv (123) and do (68), the context's gradient": (2 * VALUES, 2),
    "beside this function: the gradient of the layer's output, kept for the residual stream": (HIDDEN, 2),
    "behind the scan, gone: gate, context, normed and gated context": (-4 * VALUES, 2),
    "fp32: states h (77) and their gradients dh (91)": (2 * STATES, 4),
}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize(
    ("style", "tensors"),
    [(GATED_DELTA, GATED_DELTA_TENSORS), (KIMI_DELTA, KIMI_DELTA_TENSORS), (LIGHTNING, LIGHTNING_TENSORS)],
)
def test_a_scan_s_backward_holds_its_tensors(style: str, tensors: dict[str, tuple[float, int]], tp: int) -> None:
    mixer = LinearAttentionSpec(style, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    room = recurrent_workspace_bytes(mixer, HIDDEN, tp, Strategy(1, tp, 1), TrainingRules())
    assert room == pytest.approx(sum(elements * size for elements, size in tensors.values()) / tp)
