"""Figures of the closed forms for one job a model of the register, under rules drawn at random.

    python -m tests.cost_model.figures

writes them anew. Whether they are right is for the tests that state formulas again, count kernels or hold measured
runs; these figures show that nothing moved which a change was not meant to move.
"""

from __future__ import annotations

import json
import random
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np

from taylor.base.errors import TaylorError
from taylor.cost_model.job import parameters, recurrent
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import GRAPHED_EXPERTS, GRAPHED_MIXER, GRAPHED_ROUTER, Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory import activations, backward_workspace, offload, saved_operators, statics
from taylor.cost_model.memory import breakdown as memory
from taylor.cost_model.memory.alive import alive_lower_bound
from taylor.cost_model.memory.workspaces import allocated_mib, workspaces_mib
from taylor.cost_model.time import step as time
from taylor.cost_model.time import work
from taylor.cost_model.time.expert_exchange import shared_experts_ms
from taylor.cost_model.time.launches import host_time
from taylor.cost_model.time.mtp_entry import MtpEntry
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.tail import host_ms
from taylor.cost_model.time.throughput import throughput
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register import frameworks, narrow_products
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

KEPT = Path(__file__).with_suffix(".json")
PARTS = (
    frameworks.ATTENTION_CORE, frameworks.NORMS, frameworks.LATENT_UP, frameworks.DENSE_MLP, frameworks.EXPERT_BLOCK,
    frameworks.DENSE_ACTIVATION, frameworks.EXPERT_ACTIVATION, frameworks.SHARED_EXPERTS,
    frameworks.SHARED_ACTIVATION, frameworks.EXPERT_ROWS, frameworks.UNSAVED_OPERATORS,
)  # fmt: skip
RECIPES = tuple(
    value for _, value in sorted(vars(narrow_products).items()) if isinstance(value, narrow_products.NarrowProducts)
)


def drawn_rules(draw: random.Random) -> TrainingRules:
    """Rules with every switch thrown now and then."""

    def rarely(*values: Any, default: Any) -> Any:
        return draw.choice(values) if draw.random() < 0.3 else default

    # Drawn by name, so that a new rule moves no other one.
    seed = draw.random()
    switches = {
        field.name: not field.default if random.Random(f"{seed} {field.name}").random() < 0.25 else field.default
        for field in fields(TrainingRules)
        if isinstance(field.default, bool)
    }
    optimizer = OptimizerStates(
        gradient_bytes=rarely(2, default=None),
        moments_bytes=rarely(2, 4, default=None),
        step_bytes=rarely(4, default=0),
        host_share=rarely(0.5, 1.0, default=0.0),
        host_updates=draw.random() < 0.5,
        host_overlaps=draw.random() < 0.5,
        reduced_bytes=rarely(2, default=None),
    )
    return TrainingRules(
        framework=draw.choice(list(frameworks.FRAMEWORKS.values())),
        seq_length=draw.choice((2048, 4096, 8192, 32768)),
        param_bytes=draw.choice((2, 4)),
        capacity_factor=rarely(1.0, 1.5, default=None),
        imbalance=rarely(1.25, default=1.0),
        loss_chunks=rarely(4, default=1),
        loss_kernel=rarely(frameworks.COMPILED_LOSS, frameworks.ENGINE_LOSS, default=None),
        expert_tensor_parallel=draw.choice((None, False, True)),
        expert_ways=rarely(2, default=None),
        overhead_mib=rarely(1000.0, default=None),
        ulysses_degree=rarely(None, 2, default=1),
        selective=draw.choice((None, tuple(draw.sample(PARTS, 2)), tuple(draw.sample(PARTS, 4)))),
        fused_accumulation=draw.choice((None, False, True)),
        wide_residual=draw.choice((None, False, True)),
        optimizer=optimizer,
        narrow=rarely(*RECIPES, default=None),
        rotated_apart=rarely(0.5, 1.0, default=0.0),
        logged_bytes=rarely(8, default=0),
        graphed=rarely((GRAPHED_MIXER,), (GRAPHED_ROUTER, GRAPHED_EXPERTS), default=()),
        **switches,
    )


def drawn_strategy(draw: random.Random) -> Strategy:
    """Degrees that need not divide what they split."""
    dp, cp = draw.choice((1, 2, 8, 16)), draw.choice((1, 1, 2, 4))
    return Strategy(
        dp, draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8)), draw.choice((1, 1, 2, 4, 8)), cp,
        draw.choice((1, dp * cp)), draw.random() < 0.7, draw.choice((1, 1, 2)), draw.choice((1, 2)),
        draw.choice((1, 8, 20)),
    )  # fmt: skip


def told(value: Any) -> Any:
    """A result as plain numbers of ten digits."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Path):
        return value.name
    if isinstance(value, (int, float, np.number)):
        return float(f"{float(value):.10g}")
    if isinstance(value, np.ndarray):
        return told(value.tolist())
    if is_dataclass(value):
        return [told(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, Mapping):
        return {str(key): told(each) for key, each in value.items()}
    return [told(each) for each in value]


def figures_of(model: ModelSpec, strategy: Strategy, rules: TrainingRules, device: DeviceSpec) -> dict[str, Any]:
    """Every closed form's results of a job; of a job that one refuses, why."""
    layers = {kind: model.layer(kind) for kind in model.body_counts}
    schedule = ScheduleSpec("interleaved" if strategy.vpp > 1 else "1f1b")
    table = StrategyTable.from_strategies([strategy])
    speed = Speed.of(device, rules, in_layer=True)
    found: dict[str, Any] = {}

    def put(name: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        try:
            with np.errstate(all="ignore"):
                found[name] = told(function(*arguments, **named))
        except (TaylorError, ValueError) as error:
            found[name] = f"{type(error).__name__}"

    for kind, layer in layers.items():
        job = (model, kind, strategy, rules)
        for mode in (NONE, SELECT, FULL):
            put(f"{kind}: {mode} activations", activations.activation_bytes, model, kind, mode, strategy, rules)
        put(f"{kind}: parameters", parameters.layer_groups, model, kind)
        put(f"{kind}: states", statics.layer_state_bytes, *job)
        put(f"{kind}: gradient room", backward_workspace.gradient_workspace_bytes, *job)
        put(f"{kind}: work", work.layer_work, *job)
        put(f"{kind}: time", time.layer_time, *job, device)
        put(f"{kind}: host", host_time, *job, device)
        put(f"{kind}: block", activations.block_bytes, model, layer, strategy, rules)
        put(f"{kind}: shared experts", lambda kind=kind: shared_experts_ms(
            model, kind, strategy, rules, speed, work.layer_work(model, kind, strategy, rules)))  # fmt: skip
        put(f"{kind}: repeated", saved_operators.repeated_products, model, layer, strategy)
        for part in PARTS:
            alone = rules.replace(selective=(part,))
            put(f"{kind}: {part} again", lambda kind=kind, alone=alone: [
                activations.activation_bytes(model, kind, SELECT, strategy, alone),
                time.layer_time(model, kind, strategy, alone, device).recompute[SELECT],
            ])  # fmt: skip
            put(f"{kind}: {part} moved", offload.offloaded_bytes, model, kind, (part,), strategy, rules)
        mixer = layer.mamba or layer.linear
        if mixer is not None:
            put(f"{kind}: mixer", recurrent.recurrent_traffic, mixer, strategy, rules)
            put(f"{kind}: scan", recurrent.scan_flops, mixer, strategy)
            put(f"{kind}: entering", recurrent.entering_bytes, mixer, rules)
    put("parameters", parameters.total_parameters, model, with_mtp=True)
    put("active", parameters.active_parameters, model)
    put("static", statics.static_mib, model, strategy, rules, schedule)
    put("end of step", statics.end_of_step_bytes, model, strategy, rules)
    put("logits", statics.logits_bytes, model, strategy, rules)
    put("buffers", statics.buffer_bytes, model, strategy, rules)
    put("workspace", backward_workspace.workspace_bytes, model, strategy, rules)
    put("embedding", statics.embedding_state_bytes, model, strategy, rules)
    put("head", statics.head_state_bytes, model, strategy, rules)
    put("workspaces", workspaces_mib, model, rules, device)
    for mode in (NONE, FULL):
        put(f"stages {mode}", lambda mode=mode: [
            [[*told(replace(stage, at_peak=None))[:-2], stage.spare], allocated_mib(stage, model, rules, device)]
            for stage in memory.stage_breakdown(model, strategy, rules, schedule=schedule, recompute=mode)
        ])  # fmt: skip
        put(f"best case {mode}", memory.best_case_peak_mib, model, rules, table, mode, 60000.0, schedule)
    put("best case", memory.best_case_peak_mib, model, rules, table, "best", None, schedule)
    put("ratios", time.estimate_ratios, model, strategy, rules, device)
    put("step", time.step_ms, model, strategy, rules, device, {SELECT: 0.25, FULL: 0.5})
    put("balanced step", time.step_ms, model, strategy, rules, device, balanced=True)
    put("quick step", time.quick_step_ms, model, rules, table, device)
    put("host", host_ms, rules, device)
    put("head time", time.head_time, model, strategy, rules, device)
    put("model flops", lambda: [work.model_flops(model, rules.seq_length, causal=causal) for causal in (False, True)])
    put("throughput", throughput, model, strategy, rules, device, 1000.0, TrainingLength(1e12))
    put("entry", MtpEntry.of, model, strategy, rules, device)
    put("alive", lambda: [
        alive_lower_bound(schedule, strategy.pp, strategy.vpp, stage, strategy.micro_batches)
        for stage in range(strategy.pp)
    ])  # fmt: skip
    return found


def jobs() -> dict[str, tuple[ModelSpec, Strategy, TrainingRules, DeviceSpec]]:
    """A job for every model of the register."""
    registry = Registry.load()
    devices = [device for device in map(registry.device, sorted(registry.device_names())) if device.fabric is not None]
    found = {}
    for name in sorted(registry.model_names()):
        draw = random.Random(f"figures of {name}")
        # The highest of a draw for each: a further device moves the few jobs that it wins.
        device = max(devices, key=lambda each: random.Random(f"{name} on {each.name}").random())
        found[name] = registry.model(name), drawn_strategy(draw), drawn_rules(draw), device
    return found


def main() -> None:
    """Write the figures."""
    figures = {name: figures_of(*job) for name, job in jobs().items()}
    lines = (f"{json.dumps(name)}: {json.dumps(each, separators=(',', ':'))}" for name, each in figures.items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
