"""Time and memory of an encoder on the ranks of a stage, by the costs of its layers as of any other's."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.tower import TowerRun, tower_body, tower_degrees, tower_rules
from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.memory.statics import MIB, layer_state_bytes
from taylor.cost_model.time.step import layer_time
from taylor.pipeline.plan import FULL, NONE
from taylor.register.adapters import FROZEN
from taylor.register.device import DeviceSpec


@dataclass(frozen=True)
class TowerCosts:
    """Costs of all of an encoder on one rank.

    Parameters
    ----------
    forward_ms, backward_ms : float
        Of one micro-batch; no backward where it is frozen, and one with the recompute in it where layers run again.
    states_mib : float
        Weights, and where it trains gradients and optimizer states.
    kept_mib : float
        What one micro-batch keeps for its backward.
    """

    forward_ms: float
    backward_ms: float
    states_mib: float
    kept_mib: float

    def part(self, share: float) -> TowerCosts:
        """Costs of a share of its layers."""
        return TowerCosts(*(share * each for each in astuple(self)))

    def __add__(self, other: TowerCosts) -> TowerCosts:
        return TowerCosts(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


def tower_costs(run: TowerRun, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> TowerCosts:
    """The costs of all encoders of a job: those of each, added up."""
    first, *others = (_costs(one, strategy, rules, device) for one in run.parts)
    return sum(others, start=first)


def costs_behind(run: TowerRun, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> TowerCosts:
    """The costs of an encoder, its `further` ones left out, as its layers behind the first chunk have them.

    What they take in was received, and torch makes its gradient: frozen ones have a backward of the inputs' gradients
    (Ascend/MindSpeed-MM 57069cd5 mindspeed_mm/patchs/dummy_optimizer_patch.py:78-93 leaves out a stage's backward only
    where its output depends on nothing that needs one).
    """
    return _costs(run, strategy, rules, device, behind=True)


def _costs(
    run: TowerRun, strategy: Strategy, rules: TrainingRules, device: DeviceSpec, behind: bool = False
) -> TowerCosts:
    """The costs of one encoder; without an input, of its states alone.

    Patch embedding and projector, 1 to 3 % of an encoder's work, take the time of as many multiply-adds in the layers'
    GEMMs, and their states the memory of as many parameters of the layers. What they keep for a backward is left out.
    """
    spec, body = run.spec, tower_body(run.spec)
    seen = run if run.images else replace(run, images=1.0)
    degrees, own = tower_degrees(seen, strategy), tower_rules(seen, rules)
    own = own if run.trained else own.replace(adapters=FROZEN)
    forward = backward = kept = states = 0.0
    for kind, count in body.body_counts.items():
        time = layer_time(body, kind, degrees, own, device)
        forward += count * float(time.forward)
        backward += count * (float(time.backward) + (float(time.recompute[FULL]) if run.recomputed else 0.0))
        kept += count * float(activation_bytes(body, kind, FULL if run.recomputed else NONE, degrees, own)) / MIB
        state = layer_state_bytes(body, kind, degrees, own)
        states += count * float(state.total if run.trained else state.weights) / MIB
    more = 1.0 + spec.ends_products / (spec.n_layers * spec.layer_products)
    states *= 1.0 + spec.ends_parameters / (spec.n_layers * spec.layer_parameters)
    if not run.images:
        return TowerCosts(0.0, 0.0, states, 0.0)
    if not (run.trained or behind):
        return TowerCosts(forward * more, 0.0, states, 0.0)
    return TowerCosts(forward * more, backward * more, states, kept)
