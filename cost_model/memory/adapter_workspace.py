"""Memory of a moment that adapters need in MLP and experts beyond what the layer keeps; scalars and arrays alike.

A frozen GEMM keeps no input, in whose place the gradient of an activation function's result would stand. Where an
adapter's result is scaled and added, the frozen GEMM's result, the adapter's and the new one are alive at once: in the
forward pass, and where the layer runs again. A matrix that is stored in fewer bits is written in 16 for each of its
uses (QLoRA); of experts, one at a time, which is not counted. Each moment is checked against `dryrun.torch_stage`.
"""

from __future__ import annotations

import numpy as np

from taylor.cost_model.job.parameters import expert_outer
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.memory.activations import input_split, micro_batch_tokens, routed_slots, sequence_split
from taylor.register.adapters import DOWN, GATE, JOINED_UP, UP, Adapters
from taylor.register.layers import MlpSpec, MoeSpec
from taylor.register.model import ModelSpec

_UPWARDS = (JOINED_UP, UP, GATE)


def _kept_of_input(adapters: Adapters, rules: TrainingRules, *targets: str) -> int:
    """Bytes an element that an adapter keeps of its input: the input itself, or under dropout a copy and its mask."""
    if not adapters.reaches(*targets):
        return 0
    return rules.compute_bytes + adapters.dropout


def _rows(degrees: Degrees, rules: TrainingRules, adapters: Adapters) -> Quantity:
    """Tokens of a block's input as its adapters take it."""
    tokens = micro_batch_tokens(degrees, rules)
    return tokens / (1 if adapters.gathers else input_split(degrees, rules))


def mlp_adapter_bytes(model: ModelSpec, mlp: MlpSpec, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Most that a dense MLP with frozen matrices, or shared experts, hold beyond what the layer keeps, bytes."""
    adapters = rules.adapters
    if adapters is None:
        return 0.0
    b, gates = rules.compute_bytes, 2 if mlp.gated else 1
    tokens, width = micro_batch_tokens(degrees, rules), mlp.width / degrees.tp
    product = b * tokens * width
    later = _kept_of_input(adapters, rules, DOWN) * tokens * width
    whole, ways = b * tokens * model.hidden, sequence_split(degrees)
    gathers = np.logical_and(adapters.gathers, np.greater(ways, 1))
    # The block's own input, where nothing keeps it.
    kept = adapters.reaches(*_UPWARDS) and not adapters.dropout
    entering = np.where(np.logical_or(gathers, not kept), whole / ways, 0.0)
    most: Quantity = (gates + 1) * product - later
    if adapters.reaches(*_UPWARDS):
        joined = rules.framework.activations.fused_swiglu or not mlp.gated
        dropped = adapters.dropout * b * _rows(degrees, rules, adapters) * model.hidden
        dropped = dropped + np.where(gathers, whole / ways, 0.0)
        most = np.maximum(most, 2 * (gates if joined else 1) * product - later + dropped)
    if adapters.reaches(DOWN):
        # Both results and their sum; or the gathered features beside both results and the tokens' own.
        results = np.where(gathers, whole, 0.0) + 3 * whole / ways
        most = np.maximum(most, results + entering + adapters.dropout * product)
    if adapters.base_bytes is not None:
        matrix, gathered = b * model.hidden * width, np.where(np.greater(ways, 1), whole, 0.0)
        upwards = gates if rules.framework.activations.fused_swiglu else 1
        most = np.maximum(most, np.maximum(gathered + product + matrix, upwards * matrix + whole - later))
    return most


def expert_adapter_bytes(
    model: ModelSpec, moe: MoeSpec, other: Quantity, degrees: Degrees, rules: TrainingRules
) -> Quantity:
    """The same of routed experts; their forward is over before the shared experts' begins.

    Parameters
    ----------
    other : scalar or array [n]
        Rows that the slots become in the exchange.
    """
    adapters = rules.adapters
    if adapters is None:
        return 0.0
    b, gates, outer = rules.compute_bytes, 2 if moe.gated else 1, expert_outer(model, moe)
    slots = routed_slots(moe, degrees, rules) * micro_batch_tokens(degrees, rules)
    width = moe.expert_hidden / rules.experts_over(degrees.tp)
    shared, entering = _of_shared(model, moe, degrees, rules, adapters)
    most: Quantity = b * (slots + other) * outer
    if adapters.beside_experts and adapters.reaches(DOWN):
        most = np.maximum(most, 3 * b * slots * outer)
    if adapters.beside_experts and adapters.reaches(*_UPWARDS):
        dropped = adapters.dropout * b * slots * outer
        later = _kept_of_input(adapters, rules, DOWN) * slots * width
        most = np.maximum(most, 2 * b * gates * slots * width + dropped - later)
    return most + entering - shared


def _of_shared(
    model: ModelSpec, moe: MoeSpec, degrees: Degrees, rules: TrainingRules, adapters: Adapters
) -> tuple[Quantity, Quantity]:
    """Bytes that shared experts keep later, and those of the block's input, which they alone may keep."""
    tokens = micro_batch_tokens(degrees, rules)
    entering = rules.compute_bytes * tokens / input_split(degrees, rules) * model.hidden
    if not moe.shared_width:
        return 0.0, entering
    gates = 2 if moe.gated else 1
    inner = gates * rules.compute_bytes + _kept_of_input(adapters, rules, DOWN)
    kept = inner * tokens * moe.shared_width / degrees.tp
    kept = kept + _kept_of_input(adapters, rules, *_UPWARDS) * _rows(degrees, rules, adapters) * model.hidden
    return kept, entering
