"""Galvatron's own known cases: its profiles as costs, and the jobs that it searched."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from taylor.cost_model.measured.cost_table import CostRow, EndCost, EndCosts, Layout, MemorySettings
from taylor.cost_model.measured.galvatron.hetu import HetuCosts
from taylor.cost_model.measured.galvatron.inputs import galvatron_inputs
from taylor.cost_model.measured.galvatron.paddle import PaddleCosts
from taylor.cost_model.measured.layer_strategy import LayerStrategy
from taylor.layerwise.galvatron.search import GalvatronSearch, layout_prices
from taylor.layerwise.job import LayerwiseJob
from taylor.layerwise.space import SpaceLimits
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.folder import read_folders
from taylor.parsers.galvatron.hardware import read_hardware
from taylor.parsers.galvatron.memory import read_memory
from tests.conftest import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
HETU_SPACE = SpaceLimits(most_tp=8, most_sp=8, most_stages=8)
PADDLE_SPACE = SpaceLimits(most_tp=8, most_stages=8, disable_sp=True, zeros=(0, 2, 3))


def known_cases() -> dict:
    return json.loads((DATA / "galvatron_tests/hetu_cases.json").read_text())


def hetu_search(folder: Path, *, layers=28, limit_gb=36, **changes) -> GalvatronSearch:
    """Its search of the 8-card job of its tests, whose profiles are written into a folder."""
    profiles = known_cases()["profiles"]

    def written(name, data):
        path = folder / f"{name}.json"
        path.write_text(json.dumps(data))
        return path

    hardware = read_hardware([written(name, data) for name, data in profiles["hardware"].items()])
    inputs = galvatron_inputs(
        read_computation(written("time_sequence", profiles["time_sequence"])),
        read_memory([written("memory_sequence_sp", profiles["memory_sequence_sp"])])[0],
        8192,
        time_mode="sequence",
        memory_mode="sequence",
    )
    job = LayerwiseJob(
        8, layers, 8192, 4096, limit_gb * 1024, reduce_every_micro_batch=True, global_buffer=True, whole_mib=True
    )
    prices = layout_prices([(ranks, hardware.bandwidth(ranks, True)) for ranks in (2, 4, 8)])
    return GalvatronSearch(job, HetuCosts(inputs, hardware, {"body": layers}), prices, **changes)


def paddle_search() -> GalvatronSearch:
    """Its search of the published 64-card job."""
    folder = read_folders([DATA / "paddle_galvatron/configs"])
    _, hardware = folder.cluster(64)
    model = folder.model(None)
    inputs = galvatron_inputs(model.computation, model.memory, 32768, time_mode="sequence", memory_mode="static")
    job = LayerwiseJob(64, 72, 32768, 5120, 95 * 1024, whole_mib=True)
    prices = layout_prices([(ranks, hardware.bandwidth(ranks, True)) for ranks in (2, 4, 8)])
    return GalvatronSearch(job, PaddleCosts(inputs, hardware, by_bandwidth=True), prices, paddle=True)


@dataclass(frozen=True)
class ToyCosts:
    """A `CostProvider` of given figures.

    Parameters
    ----------
    rows : dict of LayerStrategy to CostRow
    end_costs : EndCosts
        With the costs of both ends.
    changes : dict of (Layout, Layout) to float
        Seconds of a change of layout; 0 where there is none.
    handovers : dict of Layout to float
        Seconds of a transfer; 0 where there is none.
    """

    rows: dict
    end_costs: EndCosts
    changes: dict = field(default_factory=dict)
    handovers: dict = field(default_factory=dict)
    name: str = "toy"
    memory: MemorySettings = MemorySettings()

    @property
    def kinds(self):
        return ("body",)

    def layer(self, kind, strategy, setting):
        return self.rows[strategy]

    def ends(self, strategy, setting):
        first, last = self.end_costs.first, self.end_costs.last
        if setting.stages > 1:
            return self.end_costs
        names = ("forward_s", "backward_s", "tail_s", "states_mib", "activation_mib")
        return EndCosts(EndCost(*(getattr(first, name) + getattr(last, name) for name in names)))

    def layout_change_s(self, before, after, setting):
        return self.changes.get((before, after), 0.0)

    def handover_s(self, layout, setting):
        return self.handovers.get(layout, 0.0)


def toy_costs(seed: int, choices: int, *, layouts: bool = True, free: bool = False, working: bool = False) -> ToyCosts:
    """Figures drawn at random: four ranks a stage, up to two layouts."""
    rng = np.random.default_rng(seed)
    shapes = [
        (dp, zero, again) for dp in ((4, 2) if layouts else (4,)) for zero in (0, 2, 3) for again in (False, True)
    ]
    picked = [shapes[i] for i in rng.permutation(len(shapes))[:choices]]
    rows = {}
    for dp, zero, again in picked:
        strategy = LayerStrategy(tp=4 // dp, dp=dp, zero=zero, recompute=again)
        f, b, tail = rng.uniform(1, 2), rng.uniform(1, 4), rng.uniform(0, 3)
        rows[strategy] = CostRow(
            f, b, tail, rng.uniform(1, 10), rng.uniform(0.5, 5), "body", strategy, Layout.of(strategy, False),
            working_mib=rng.uniform(0, 8) if working else 0.0,
        )  # fmt: skip
    ends = [EndCost(*rng.uniform(0, 2, size=5)) for _ in range(2)]
    every = sorted({row.layout for row in rows.values()} | {Layout.of(LayerStrategy(dp=4), False)})
    changes, handovers = {}, {}
    if not free:
        changes = {(a, b): rng.uniform(0, 1) for a in every for b in every if a != b}
        handovers = {layout: rng.uniform(0, 1) for layout in every}
    return ToyCosts(rows, EndCosts(*ends), changes, handovers)
