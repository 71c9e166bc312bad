"""The points: models x devices x launchers x precisions, each as a file, and legal strategies drawn by a seed."""

from __future__ import annotations

import logging
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.prune import apply_rules
from taylor.nd_search.rules import select_rules
from taylor.nd_search.space import build_space
from taylor.parsers.new_file import NewFile, NewJob
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import read_config
from taylor.register.registry import Registry

SEED = 31
POINTS = 20_000

MODELS = (
    "llama2-7b", "llama3-8b", "llama3-70b", "llama3-405b", "qwen3-8b", "qwen3-30b-a3b", "qwen3-235b-a22b",
    "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3-671b", "gpt3-175b", "qwen2.5-32b",
)  # fmt: skip
ON_ASCEND = ("ascend-910b", "ascend-a3")
ELSEWHERE = ("a100-80g", "h100-80g", "h200-141g", "b200-180g", "gb200-nvl72", "mi300x-192g")
RANKS = (64, 256, 1024)
BATCH, SEQUENCE = 1024, 4096
NARROW = ("fp8", "fp4")
"""Features of a launcher by which GEMMs run in fewer than 16 bits."""


@dataclass(frozen=True)
class Group:
    """Strategies of one file on one device.

    Parameters
    ----------
    table : mapping of degree to list of int
        A column each, as in `StrategyTable`.
    """

    file: str
    model: str
    device: str
    launcher: str
    precision: str
    table: dict[str, list[int]]


def draw(folder: Path, points: int = POINTS, seed: int = SEED) -> list[Group]:
    """Files in a folder, and groups of strategies that obey the framework's rules, `points` of them in all."""
    logging.getLogger("taylor").setLevel(logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    register, dice = Registry.load(), random.Random(seed)
    known = [name for name in MODELS if name in register.models]
    jobs = [
        (model, one, precision, device)
        for model in known
        for one in NEW_FILES.values()
        for precision in ("bf16", *(name for name in NARROW if one.features.get(name)))
        for device in (ON_ASCEND if one.on_ascend else ELSEWHERE)
    ]
    tables = []
    for model, one, precision, device in jobs:
        ranks = dice.choice(RANKS)
        spec = register.device(device)
        if precision != "bf16" and precision not in spec.peak_tflops:
            continue
        file = folder / f"{model}-{one.name}-{precision}-{ranks}{one.suffix}"
        try:
            if not file.exists():
                file.write_text(_text(one, register.model(model), precision, ranks))
            legal = _legal(read_config(file), spec, ranks)
        except TaylorError:
            continue  # a model that the framework's files do not describe, or no strategy
        if len(legal):
            tables.append((Group(str(file), model, device, one.name, precision, {}), legal))
    shares = np.full(len(tables), points // max(1, len(tables)))
    shares[: points - shares.sum()] += 1
    drawn = np.random.default_rng(seed)
    return [
        replace(group, table=_columns(legal.select(np.sort(drawn.integers(len(legal), size=share)))))
        for (group, legal), share in zip(tables, shares, strict=True)
    ]


def _text(one: NewFile, model: Any, precision: str, ranks: int) -> str:
    asked = {} if precision == "bf16" else {precision: next(iter(one.features[precision]))}
    return one.text(NewJob(model, SEQUENCE, BATCH, ranks, 8, one.settings(asked)))


def _legal(config: Any, device: Any, ranks: int) -> StrategyTable:
    bounds = {"mbs": (1, 4), "tp": (1, 16), "cp": (1, 4), "vpp": (1, 4)}
    search = ("dp", "tp", "pp", "ep", "cp", "vpp", "mbs", "micro_batches")
    options = SearchOptions(world_size=ranks, gbs=BATCH, search=search, bounds=bounds)
    context = SearchContext.settle(config, device, options)
    return apply_rules(build_space(context, options), select_rules(context), context, "none").table


def _columns(table: StrategyTable) -> dict[str, list[int]]:
    return {name: np.asarray(column).astype(int).tolist() for name, column in asdict(table).items()}
