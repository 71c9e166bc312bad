"""Rows of every provider of layer costs, of measured and of published profiles, for strategies drawn at random.

    python -m tests.cost_model.measured.figures

writes them anew; as for `tests.cost_model.figures`, other tests say whether they are right.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.measured.cost_table import CostProvider, CostSetting, Layout
from taylor.cost_model.measured.costs import MeasuredCosts
from taylor.cost_model.measured.estimate import EstimatedCosts
from taylor.cost_model.measured.galvatron.inputs import galvatron_inputs
from taylor.cost_model.measured.galvatron.paddle import PaddleCosts
from taylor.cost_model.measured.galvatron.step import galvatron_step_s, gather_buffer_mib
from taylor.cost_model.measured.laws import ModelLaws
from taylor.cost_model.measured.layer_strategy import LayerStrategy
from taylor.parsers.galvatron.folder import read_folders
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry
from tests import galvatron_cases as cases
from tests import layerwise_cases
from tests.cost_model.figures import told
from tests.layerwise_cases import DATA

KEPT = Path(__file__).with_suffix(".json")


def providers(folder: Path) -> Iterator[tuple[str, CostProvider, int, int]]:
    """Each provider with its number of ranks and its hidden size."""
    for paddle in (False, True):
        found = read_folders([cases.write_folder(folder / f"paddle {paddle}", paddle=paddle)])
        model = found.model(None)
        laws = ModelLaws.of(model.computation, model.memory, model.rules, sequence_parallel=True)
        yield f"measured {paddle}", MeasuredCosts(laws, found.cluster(8)[1]), 8, 1024
    yield "hetu", layerwise_cases.hetu_search(folder).provider, 8, 4096
    yield "paddle", layerwise_cases.paddle_search().provider, 64, 5120
    configs = read_folders([DATA / "paddle_galvatron/configs"])
    model = configs.model(None)
    inputs = galvatron_inputs(model.computation, model.memory, 32768, time_mode="sequence", memory_mode="static")
    yield "paddle by messages", PaddleCosts(inputs, configs.cluster(64)[1], by_bandwidth=False), 64, 5120
    laws = ModelLaws.of(model.computation, model.memory, model.rules, sequence_parallel=True)
    yield "measured paddle", MeasuredCosts(laws, configs.cluster(64)[1]), 64, 5120
    registry = Registry.load(None)
    for name, device in (
        ("llama2-7b", "h100-80g"),
        ("mixtral-8x7b", "ascend-910b"),
        ("deepseek-v3-671b", "gb200-nvl72"),
    ):
        model_spec = registry.model(name)
        rules = TrainingRules(framework=MEGATRON)
        yield name, EstimatedCosts(model_spec, rules, registry.device(device)), 64, model_spec.hidden


def drawn(draw: random.Random, ranks: int) -> LayerStrategy:
    """A strategy of so many ranks."""
    tp, sp, cp = draw.choice(((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (2, 1, 2), (8, 1, 1)))
    return LayerStrategy(
        tp=tp, sp=sp, cp=cp, dp=max(1, ranks // (tp * sp * cp)), zero=draw.choice((0, 2, 3)),
        recompute=draw.random() < 0.4, offload=draw.random() < 0.1, ep=draw.choice((1, 1, 2)),
        expert_tp=draw.choice((1, 1, 2)),
    )  # fmt: skip


def figures(name: str, provider: CostProvider, world: int, hidden: int) -> list[Any]:
    """A provider's rows for strategies of every size of stage."""
    draw, found = random.Random(f"layers of {name}"), []
    for _ in range(36):
        stages = draw.choice((1, 2, 4))
        strategy = drawn(draw, world // stages)
        setting = CostSetting(
            stages, draw.choice((64, 128)), draw.choice((1, 4, 8)), draw.choice((2048, 4096, 8192, 32768)), hidden,
            reduce_every_micro_batch=draw.random() < 0.3, schedule=draw.choice(("1f1b", "gpipe")),
            sequence_parallel=draw.random() < 0.8, kv_hidden=draw.choice((None, hidden // 4)),
        )  # fmt: skip
        found.append([strategy.name, stages, *answers(provider, strategy, drawn(draw, world // stages), setting)])
    return found


def answers(
    provider: CostProvider, strategy: LayerStrategy, other: LayerStrategy, setting: CostSetting
) -> Iterator[Any]:
    """What a provider tells of a strategy, and of the change to another one."""
    layouts = [Layout.of(each.end, setting.sequence_parallel) for each in (strategy, other)]
    last = setting.stages - 1
    asked: list[Callable[[], Any]] = [
        *(partial(provider.layer, kind, strategy, setting) for kind in provider.kinds),
        lambda: provider.ends(strategy.end, setting),
        lambda: provider.layout_change_s(*layouts, setting),
        lambda: provider.handover_s(layouts[0], setting),
        lambda: [setting.kv_share, setting.micro_batch, setting.bytes, setting.alive(0), setting.alive(last)],
    ]
    for ask in asked:
        try:
            yield told(ask())
        except (TaylorError, ValueError, KeyError) as error:
            yield f"{type(error).__name__}: {str(error).rpartition('/')[2][:80]}"


def steps(name: str, provider: CostProvider, world: int, hidden: int) -> list[Any]:
    """Galvatron's own step, s, and memory, MiB, of plans with a strategy a stage."""
    draw, found = random.Random(f"steps of {name}"), []
    for _ in range(6):
        stages, micro_batches = draw.choice((1, 2, 4)), draw.choice((1, 3, 8))
        setting = CostSetting(stages, 64 * micro_batches, micro_batches, 8192, hidden)
        rows = []
        for tp in draw.choices((1, 2, 4) if stages < 4 else (1, 2), k=stages):
            each = LayerStrategy(
                tp=tp, dp=max(1, world // stages // tp), zero=draw.choice((0, 2, 3)), recompute=tp == 4
            )
            rows.append([provider.layer("body", each, setting)] * draw.choice((2, 3, 4)))
        ends = provider.ends(LayerStrategy(tp=2, dp=max(1, world // stages // 2)).end, setting)
        found.append(
            told(
                [
                    galvatron_step_s(rows, ends, micro_batches),
                    gather_buffer_mib(setting, world // stages, 2),
                ]
            )
        )
    return found


def all_figures() -> dict[str, Any]:
    """Every provider's rows."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for name, *rest in providers(Path(folder)):
            found[name] = figures(name, *rest)
            if name in ("hetu", "paddle"):
                found[f"steps of {name}"] = steps(name, *rest)
    return found


def main() -> None:
    """Write the figures."""
    lines = (
        f"{json.dumps(name)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]" for name, rows in all_figures().items()
    )
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
