"""Mamba-2's scan as single operations of torch: what autograd keeps of each; scalars and arrays alike.

MindSpeed-LLM c77308a1 replaces the forward of Megatron's mixer (mindspeed_llm/core/ssm/mamba_mixer.py:38, "mixer"
below) by torch code over chunks (mindspeed_llm/tasks/models/ssm/state_space_duality.py, "scan"), and under context
parallelism by functions that hand states from rank to rank (state_space_context_parallel.py beside it, "ranks"). B and
C of a group are repeated for every head, decays make a matrix a chunk and head, and the gated norm is computed in fp32:
several times what the fused kernel of mamba_ssm leaves. Not counted: states that ranks exchange, one a sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.register.layers import MambaSpec

_FP32 = 4


@dataclass(frozen=True)
class _ScanWidths:
    """Elements a token on one rank; each a scalar or an array [n]."""

    inner: Quantity
    conv: Quantity
    heads: Quantity
    by_state: Quantity
    """B or C, repeated for every head."""
    repeated: Quantity
    """B as `repeat` leaves it: a view of one group's, else a copy for every head."""
    by_chunk: Quantity
    """A matrix [chunk, chunk] a chunk and head: a row a token."""
    states: Quantity
    """States at the chunks' ends."""

    @classmethod
    def of(cls, mamba: MambaSpec, tp: Quantity, chunk: int) -> _ScanWidths:
        heads, inner = mamba.n_heads / tp, mamba.inner / tp
        return cls(
            inner=inner,
            conv=mamba.conv_width / tp,
            heads=heads,
            by_state=heads * mamba.state,
            repeated=np.where(np.greater(mamba.n_groups / tp, 1), heads, 1) * mamba.state,
            by_chunk=heads * chunk,
            states=inner * mamba.state / chunk,
        )


def torch_scan_bytes(mamba: MambaSpec, degrees: Degrees, rules: TrainingRules, chunk: int) -> Quantity:
    """Bytes a token that the mixer keeps behind its norm's output, on one rank."""
    b, w = rules.compute_bytes, _ScanWidths.of(mamba, degrees.tp, chunk)
    # The convolution's input and result (mixer:119; ranks:141), the discrete x (scan:229), states before and behind
    # their recurrence (scan:278, 284; 128, 182), context of states (scan:286, 184), the output product's input.
    both = b * (2 * w.conv + w.inner + 2 * w.states + w.inner + w.inner)
    # The gated norm (mixer:214-229): x and z as fp32, silu(z), their product, a statistic a group.
    both = both + _FP32 * (4 * w.inner + mamba.n_groups / degrees.tp) if mamba.gate_norm else both
    return both + np.where(np.greater(degrees.cp, 1), _kept_over_ranks(w, b), _kept_alone(w, b))


def _kept_alone(w: _ScanWidths, b: int) -> Quantity:
    # x by chunks (scan:259); time steps (216, 217, 229), narrow decays (264, 286).
    narrow = w.inner + 5 * w.heads
    # C (255), B (255), decayed B (267), B itself (264); C·B and L (257), their product (259).
    narrow = narrow + 3 * w.by_state + w.repeated + 3 * w.by_chunk
    # exp of the decays' sums, by pairs (247) and by tokens (262, 282).
    return b * narrow + _FP32 * (w.by_chunk + 2 * w.heads)


def _kept_over_ranks(w: _ScanWidths, b: int) -> Quantity:
    # The joined projection, whole behind a view of it (ranks:141); x by chunks twice (scan:116, 147); time steps
    # (ranks:141 twice, scan:107, 229), narrow decays (scan:116, 184).
    narrow = w.inner + w.conv + w.heads + 2 * w.inner + 6 * w.heads
    # B itself and decayed B (scan:116), C and B (147).
    narrow = narrow + 3 * w.by_state + w.repeated
    # Sums of decays and exp of them, by pairs (ranks:392); the same by tokens (scan:115, ranks:392).
    return b * narrow + _FP32 * (2 * w.by_chunk + 3 * w.heads)


def torch_scan_workspace_bytes(mamba: MambaSpec, degrees: Degrees, rules: TrainingRules, chunk: int) -> Quantity:
    """Bytes a token that its backward holds beside what it kept, less what is behind it by then.

    On one rank the gated norm's start is the worst moment, with the gradient of its result in both types: what the
    operations behind it make is less than what they give free. Over ranks one function makes the gradients of all
    matrices of the chunks at once and holds six narrow and five fp32 ones (ranks:476-514), beside those of x, B and C.
    """
    b, w = rules.compute_bytes, _ScanWidths.of(mamba, degrees.tp, chunk)
    alone = (_FP32 + b) * w.inner
    matrices = (6 * b + 5 * _FP32) * w.by_chunk
    gone = (4 * _FP32 * w.inner if mamba.gate_norm else 0) + 2 * b * w.inner
    over_ranks = matrices + b * (3 * w.by_state + 5 * w.inner) - gone
    return np.where(np.greater(degrees.cp, 1), over_ranks, alone)
