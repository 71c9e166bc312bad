"""Peaks that the stage model counts, for layers of every kind of the register and for small stages.

    python -m tests.dryrun.figures

writes them anew; as for `tests.cost_model.figures`, other tests say whether they are right.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_stage.probe import layer_memory
from taylor.dryrun.torch_stage.run import run_stage
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.layers import LayerSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry
from tests import torch_stage_cases as cases
from tests.cost_model.figures import drawn_rules, told

KEPT = Path(__file__).with_suffix(".json")
GROUPS = 8


def layers() -> dict[str, tuple[ModelSpec, str]]:
    """A model for every form of layer: which of its parts there are, not how large they are."""
    registry, found = Registry.load(), {}
    for name in sorted(registry.model_names()):
        model = registry.model(name)
        for kind in model.body_counts:
            found.setdefault(_form(model, model.layer(kind)), (model, kind))
    return {f"{model.name}, {kind}": (model, kind) for model, kind in found.values()}


def _form(model: ModelSpec, layer: LayerSpec) -> str:
    def switched(part: Any) -> Any:
        if part is None or isinstance(part, (bool, str)):
            return part
        if isinstance(part, (int, float)):
            return part > 1
        return [type(part).__name__, *(switched(getattr(part, name)) for name in part.__dataclass_fields__)]

    return str([switched(replace(layer, name="")), model.gated_mlp, model.norm_bias])


def of_layers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """What a layer keeps, in one mode each."""
    for name, (model, kind) in list(layers().items())[::2]:
        draw = random.Random(f"layer {name}")
        mode = draw.choice((NONE, SELECT, FULL))
        tp, cp = draw.choice((1, 2)), draw.choice((1, 1, 2))
        strategy = Strategy(4, tp, 1, 2 if model.moe else 1, cp, op=draw.choice((1, 4 * cp)), sp=draw.random() < 0.7)
        rules = drawn_rules(draw).replace(seq_length=2048, expert_ways=None)
        yield f"{name}, {mode}", partial(layer_memory, model, kind, mode, strategy, rules)


def _stage(job: DryRun, stage: int) -> Any:
    return replace(run_stage(job, stage), seconds=0.0, max_rss_mib=0.0)


def of_stages() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Whole stages of small jobs."""
    for name, model in (("llama", cases.LLAMA), ("gpt", cases.GPT), ("moe", cases.MOE), ("latent", cases.LATENT)):
        for number in range(2):
            draw = random.Random(f"stage {name} {number}")
            pp, vpp = draw.choice(((1, 1), (2, 1), (2, 2), (2, 2)))
            spec = ScheduleSpec(draw.choice(("interleaved", "zbv"))) if vpp > 1 else ScheduleSpec()
            strategy = Strategy(2, draw.choice((1, 2)), pp, op=2, vpp=vpp, micro_batches=4)
            rules = drawn_rules(draw).replace(seq_length=256, expert_ways=None, capacity_factor=None)
            job = cases.job(model, strategy, rules, spec, mode=draw.choice((NONE, FULL)))
            yield f"{name} {number}", partial(_stage, job, draw.randrange(pp))


def figures(group: int) -> dict[str, Any]:
    """The figures of one group."""
    found = {}
    for name, ask in [*of_layers(), *of_stages()][group::GROUPS]:
        try:
            found[name] = told(ask())
        except (TaylorError, ValueError, AssertionError, RuntimeError, NotImplementedError) as error:
            found[name] = f"{type(error).__name__}: {str(error)[:60]}"
    return found


def main() -> None:
    """Write the figures."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(each)}" for group in range(GROUPS) for name, each in figures(group).items()
    )
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
