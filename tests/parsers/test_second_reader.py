"""Scripts of ms-swift and slime are read alike by the product and by a reader that shares no code with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.pattern import kinds_in_order
from tests.parsers.second_reader import slime_facts, swift_facts

CHECKOUTS = Path(os.environ.get("TAYLOR_CHECKOUTS", "checkouts"))
"""A folder with checkouts of public repositories, as ``owner+name``."""


def facts_of(config: TrainingConfig) -> dict[str, Any]:
    strategy, model = config.strategy, config.model
    plan = config.plan
    if model.pattern:
        layers = [model.layer(kind) for kind in kinds_in_order(model.pattern)]
    else:
        layers = [model.layer(kind) for kind, count in model.body_counts.items() for _ in range(count)]
    full = plan is not None and plan.uses(FULL)
    selective = plan is not None and plan.uses(SELECT)
    return {
        "world": None if config.open_ranks is not None else strategy.world_size,
        "degrees": (strategy.tp, strategy.pp, strategy.cp, strategy.ep),
        "batch": (strategy.global_batch, strategy.mbs),
        "length": config.rules.seq_length,
        "layers": [(layer.moe is not None, layer.linear is not None) for layer in layers],
        "mtp": model.mtp_layers,
        "recompute": "full" if full else "selective" if selective else "none",
        "precision": None if config.rules.narrow is None else config.rules.narrow.name,
        "sp": strategy.sp and strategy.tp > 1,
    }


def differences(path: Path, second: dict[str, Any]) -> list[str]:
    config = read_config(path)
    first = facts_of(config)
    second["recompute"] = second["recompute"] or "none"
    if not second["layers"]:
        second["layers"] = first["layers"] if second["layers"] is None else second["layers"]
    if not any(experts for experts, _ in first["layers"]):
        second["degrees"] = (*second["degrees"][:3], first["degrees"][3])  # Nothing to split.
    return [f"{path}: {name} {first[name]} and {second[name]}" for name in first if first[name] != second[name]]


def launches(repository: str, mark: str) -> list[Path]:
    folder = CHECKOUTS / repository
    return [path for path in sorted(folder.rglob("*.sh")) if mark in path.read_text(encoding="utf-8", errors="ignore")]


@pytest.mark.parametrize(
    ("repository", "mark", "second"),
    [("modelscope+ms-swift", "megatron ", swift_facts), ("THUDM+slime", "--actor-num-nodes", slime_facts)],
    ids=["ms-swift", "slime"],
)
def test_every_script_of_a_checkout_that_is_read_is_read_alike_twice(repository, mark, second) -> None:
    if not (CHECKOUTS / repository).is_dir():
        pytest.skip("no checkout of the repository (TAYLOR_CHECKOUTS)")
    found, compared = [], 0
    for path in launches(repository, mark):
        try:
            read_config(path)
        except InputError:
            continue
        found += differences(path, second(path))
        compared += 1
    print(f"{repository}: {compared} files compared, {len(found)} differences")
    assert compared > 20
    assert found == []
