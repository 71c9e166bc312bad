"""What a linear attention's backward holds beside what it kept, against lists of its tensors.

The lists follow the kernels that `cost_model.recurrent` cites, one entry a tensor: elements a token and bytes each,
below 0 for what is given free before the scan.
"""

from __future__ import annotations

import pytest

from taylor.cost_model.recurrent import recurrent_room_bytes
from taylor.cost_model.strategy import Strategy, TrainingRules
from taylor.register.layers import GATED_DELTA, KIMI_DELTA, LIGHTNING, LinearAttentionSpec

HIDDEN, CHUNK = 4096, 64
KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM = 16, 32, 96, 128
QUERIES, REPEATED, VALUES = KEY_HEADS * KEY_DIM, VALUE_HEADS * KEY_DIM, VALUE_HEADS * VALUE_DIM
STATES = VALUE_HEADS * KEY_DIM * VALUE_DIM / CHUNK

GATED_DELTA_TENSORS = {
    "queries and keys repeated, normed": (2 * REPEATED, 2),
    "gradients of both": (2 * REPEATED, 2),
    "keys with their write strengths": (REPEATED, 2),
    "values, their gradients and those of two products": (4 * VALUES, 2),
    "states and their gradients": (2 * STATES, 2),
    "gradients of context and gate": (2 * VALUES, 2),
    "gate, context, normed context, gated one": (-4 * VALUES, 2),
}
KIMI_DELTA_TENSORS = {
    "queries, keys and keys with their strengths": (3 * REPEATED, 2),
    "values and products": (3 * VALUES, 2),
    "states and their gradients": (2 * STATES, 2),
    "gradient of the context": (VALUES, 2),
    "the layer's gradient": (HIDDEN, 2),
    "gate, context, normed context": (-3 * VALUES, 2),
    "gradients and decays in fp32": (7 * REPEATED, 4),
    "two matrices of the chunks": (2 * VALUE_HEADS * CHUNK, 4),
}
LIGHTNING_TENSORS = {
    "gradients of queries and keys": (2 * QUERIES, 2),
    "gradients of values and context": (2 * VALUES, 2),
    "the layer's gradient": (HIDDEN, 2),
    "gate, context, normed and gated context": (-4 * VALUES, 2),
    "states and their gradients in fp32": (2 * STATES, 4),
}


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize(
    ("style", "tensors"),
    [(GATED_DELTA, GATED_DELTA_TENSORS), (KIMI_DELTA, KIMI_DELTA_TENSORS), (LIGHTNING, LIGHTNING_TENSORS)],
)
def test_a_scan_s_backward_holds_its_tensors(style: str, tensors: dict[str, tuple[float, int]], tp: int) -> None:
    mixer = LinearAttentionSpec(style, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM)
    room = recurrent_room_bytes(mixer, HIDDEN, tp, Strategy(1, tp, 1), TrainingRules())
    assert room == pytest.approx(sum(elements * size for elements, size in tensors.values()) / tp)
