"""Tokens of the busiest rank of an expert group where a router spreads them unevenly; scalars and arrays alike.

A learnt router sends more tokens to some experts than to others, and the ranks of an expert group wait for the one with
the most. Benchmarks route evenly on purpose (``--moe-router-force-load-balancing``), and a capacity cuts the rest off.
Memory is stated for even routing.
"""

from __future__ import annotations

import math

import numpy as np

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.job.strategy_table import Degrees, Quantity
from taylor.cost_model.time.rank_spread import slowest_of
from taylor.register.layers import MoeSpec
from taylor.register.model import ModelSpec

USUAL_GINI = 0.184
"""Gini coefficient of the experts' tokens on real text: mean of 0.105, 0.150 and twice 0.24, the figures that
arXiv:2605.20982 (abstract) states for released models with multi-head attention, Mamba-2, latent attention and gated
delta nets."""
USUAL_SPREAD = USUAL_GINI * math.sqrt(math.pi)
"""Standard deviation of the experts' tokens over their mean that belongs to it, were they spread normally: assumed."""

MOST = 1.23
"""Busiest rank over the mean at most: the ranks of GLM-5's experts wait for 18.6 % of a layer's time without any loss
that balances them (arXiv:2604.19654 §1, 128 experts over 8 H100), and released models were trained with one."""


def busiest_rank(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> Quantity:
    """Tokens of the busiest rank of an expert group over the even number; 1 without experts of this kind.

    A rank's experts are taken as independent, so that many of them on a rank even out.
    """
    if not rules.expert_spread or rules.capacity_factor is not None:
        return 1.0
    layers = [layer.moe for layer in model.layers_of(kind) if layer.moe is not None]
    return _busiest(layers[0], degrees, rules.expert_spread) if layers else 1.0


def timed_rules(model: ModelSpec, kind: str, degrees: Degrees, rules: TrainingRules) -> TrainingRules:
    """Rules by which a layer's time counts its experts' rows: those of the busiest rank."""
    busiest = busiest_rank(model, kind, degrees, rules)
    return rules if np.all(np.equal(busiest, 1.0)) else rules.replace(imbalance=rules.imbalance * busiest)


def _busiest(moe: MoeSpec, degrees: Degrees, spread: float) -> Quantity:
    local = np.maximum(moe.n_experts / degrees.ep, 1.0)
    return np.minimum(1.0 + spread / np.sqrt(local) * slowest_of(degrees.ep), MOST)
