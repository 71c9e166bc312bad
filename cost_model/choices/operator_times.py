"""Times in which a layer's operators run again, by the analytical model of the whole layer."""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.choices.layer_graph import CORE, EXCHANGE, GROUPED, LayerGraph, OperatorWork
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_pieces
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


def with_times(
    graph: LayerGraph, model: ModelSpec, kind: str, job: tuple[Strategy, TrainingRules, DeviceSpec], full_ms: float
) -> LayerGraph:
    """The graph of a layer of a kind with the time of every operator; all together take as long as full recompute.

    Cores of mixers, grouped GEMMs, exchanges of tokens and collectives over TP share the layer's time of each, by what
    they read and write, by FLOPs, by rows and alike. Other operators take their GEMM's time or that of their traffic.
    """
    _, rules, device = job
    speed = Speed.of(device, rules.within(model.layers_of(kind)), in_layer=True)
    pieces, works = layer_pieces(model, kind, *job), [one.work for one in graph.operators]
    whole = {CORE: float(pieces.core_ms), GROUPED: float(pieces.grouped_ms), EXCHANGE: float(pieces.expert_ms)}
    amounts = {group: sum(_amount(work) for work in works if work.group == group) for group in whole}
    gathers = sum(work.gathers for work in works)

    def alone(work: OperatorWork) -> float:
        if work.group in whole:
            return whole[work.group] * _amount(work) / (amounts[work.group] or 1.0)
        if work.flops:
            return float(speed.product(work.flops, work.read, work.written))
        return float(speed.bytes(work.read + work.written))

    found = [alone(work) + float(pieces.tensor_ms) * work.gathers / max(1, gathers) for work in works]
    scale = full_ms / (sum(found) or 1.0)
    timed = [replace(one, ms=scale * ms) for one, ms in zip(graph.operators, found, strict=True)]
    return replace(graph, operators=tuple(timed))


def _amount(work: OperatorWork) -> float:
    """What an operator of a group shares the group's time by."""
    return {CORE: work.read + work.written, GROUPED: work.flops}.get(work.group, work.written)
