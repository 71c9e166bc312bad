"""Galvatron's own known cases: its profiles as costs, and the jobs that it searched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.cost_model.measured.galvatron.hetu import HetuCosts
from taylor.cost_model.measured.galvatron.inputs import galvatron_inputs
from taylor.cost_model.measured.galvatron.paddle import PaddleCosts
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
