"""Primus' own examples, field by field against a second reader, where their checkout is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig, body_layers
from taylor.pipeline.plan import FULL, SELECT, values_in_order
from taylor.register.model import MTP
from tests.parsers.primus.files import EXPERIMENT, TITAN_EXPERIMENT, checkout
from tests.parsers.primus.second_reader import megatron_facts, options_of, titan_facts

CHECKOUT = os.environ.get("PRIMUS_CHECKOUT", "")
"""A checkout of AMD-AGI/Primus, which is no part of the repository."""


def read_facts(config: TrainingConfig) -> dict[str, Any]:
    """The facts of the product's reading, in the second reader's words."""
    s, model = config.strategy, config.model
    counts = {kind: number for kind, number in model.layer_counts().items() if kind != MTP}
    kinds = "".join(("e" if model.layer(kind).moe is not None else "d") * number for kind, number in counts.items())
    return {
        "tp": s.tp,
        "pp": s.pp,
        "cp": s.cp,
        "ep": s.ep,
        "dp": s.dp,
        "sp": s.sp,
        "mbs": s.mbs,
        "global batch": s.global_batch,
        "sequence": config.rules.seq_length,
        "hidden": model.hidden,
        "heads": model.n_heads,
        "layers": model.n_layers,
        "mtp": model.mtp_layers,
        "half": config.rules.compute_bytes == 2,
        "narrow": config.rules.narrow is not None,
        "layer kinds": kinds,
        "chunks": None if config.plan is None else values_in_order(body_layers(config.plan), config.schedule.v_shape),
        "recompute": recompute_of(config),
    }


def recompute_of(config: TrainingConfig) -> str:
    if config.plan is None:
        return "unknown"
    if config.plan.uses(FULL):
        return "full"
    return "selective" if config.plan.uses(SELECT) or config.rules.selective else "none"


def differences(path: Path, root: Path) -> list[str]:
    """Facts of one file in which the two readers differ."""
    config = read_config(path)
    backend, options = options_of(path, root)
    world = config.strategy.world_size
    wanted = (titan_facts if backend == "torchtitan" else megatron_facts)(options, world)
    found = read_facts(config)
    if backend == "megatron":
        kind, extent = wanted["recompute"]
        if kind == "block" and config.plan is not None and wanted["chunks"] is not None:
            sizes = wanted["chunks"]
            grid = values_in_order(config.plan.recomputed(FULL), config.schedule.v_shape)
            found["recompute"], wanted["recompute"] = grid, [min(extent, size) for size in sizes]
        elif kind == "full" and config.plan is not None:
            found["recompute"], wanted["recompute"] = sum(map(sum, config.plan.recomputed(FULL))), extent
        else:
            wanted["recompute"] = "full" if kind in ("uniform", "block", "full") else kind
            if found["recompute"] == "unknown":
                del wanted["recompute"]
        if wanted.get("chunks", 0) is None:
            wanted.pop("chunks")
    elif found["recompute"] == "full" and wanted["recompute"] == "selective":
        wanted.pop("recompute")  # Every nth layer whole: selective by torchtitan's name.
    return [f"{name}: {found[name]} read, {value} expected" for name, value in wanted.items() if found[name] != value]


def test_the_second_reader_agrees_on_the_small_files(tmp_path: Path) -> None:
    for name, text in (
        ("a", EXPERIMENT),
        ("b", EXPERIMENT.replace("small.yaml", "experts.yaml")),
        ("c", TITAN_EXPERIMENT),
    ):
        folder = tmp_path / name
        assert differences(checkout(folder, text), folder) == []


def test_the_second_reader_sees_a_difference(tmp_path: Path) -> None:
    path = checkout(tmp_path / "one")
    other = checkout(tmp_path / "other", EXPERIMENT.replace("micro_batch_size: 2", "micro_batch_size: 4"))
    wanted = megatron_facts(options_of(other, tmp_path / "other")[1], 8)
    assert read_facts(read_config(path))["mbs"] != wanted["mbs"]


@pytest.mark.skipif(not CHECKOUT, reason="PRIMUS_CHECKOUT names no checkout of AMD-AGI/Primus")
def test_every_example_that_is_read_means_what_the_second_reader_says() -> None:
    root, read, found = Path(CHECKOUT), 0, {}
    for backend in ("megatron", "torchtitan"):
        for path in sorted((root / "examples" / backend / "configs").rglob("*.yaml")):
            try:
                differing = differences(path, root)
            except InputError:
                continue
            read += 1
            if differing:
                found[path.name] = differing
    assert found == {} and read > 250
