"""Devices: every card that published tables name, its figures against what was measured on it, and its tiers."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.network.collectives import all_to_all_ms, gather_ms, send_ms
from taylor.register.device import DeviceSpec, LinkTier
from taylor.register.registry import Registry
from tests.conftest import SHARED
from tests.register.test_registry import A_DEVICE, TIERS

REGISTRY = Registry.load()
TABLES = {
    "recipes/performance.csv": "system", "recipes/recipes.csv": "system", "measured_runs/measured.csv": "device",
    "published/mindformers_ascend_performance.csv": "device",
}  # fmt: skip
PRECISION = {"BF16": "bf16", "FP8": "fp8", "FP8-CS": "fp8", "FP8-MX": "fp8", "MXFP8": "fp8", "NVFP4": "fp4"}
needs_published = pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="published tables are not here")


def rows(table: str) -> list[dict[str, str]]:
    with (SHARED / "data" / table).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def card(row: dict[str, str], column: str) -> str:
    return re.sub(r"[^ -~].*", "", row[column])  # the Ascend table goes on in Chinese: «measured in its environment»


def device(tmp_path: Path, text: str) -> DeviceSpec:
    (tmp_path / "mine.yaml").write_text(text)
    return Registry.load(tmp_path).device("mine")


LARGEST_GEMM = {
    "a100-40g": 246.3, "a100-80g": 264.5, "a800-80g": 266.5, "h20-96g": 141.9, "h100-80g": 783.7, "h200-141g": 790.3,
    "b200-180g": 1696.0, "rtx-3090-24g": 76.3, "rtx-4090-24g": 162.4, "rtx-5090-32g": 236.0, "rtx-a6000-48g": 123.3,
    "rtx-pro-6000-96g": 409.4, "l40s-48g": 269.2,
}  # fmt: skip
"""The largest rate of PyTorch's bf16 GEMMs of 1,024 to 10,240 squares, TFLOP/s, of several runs the least:
zzc0721/torch-performance-test-data 07858687 database.md."""


@pytest.mark.parametrize("name", LARGEST_GEMM)
def test_gemms_are_as_fast_as_the_public_measured_them(name: str) -> None:
    """Thirty calls in a row are shorter than training, in which the largest cards reach their limit of power."""
    spec = REGISTRY.device(name)
    share = spec.peak_tflops["bf16"] * spec.efficiency["matmul"] / LARGEST_GEMM[name]
    assert 0.84 < share < 1.05


def test_a_card_is_found_by_the_name_that_torch_gives_it() -> None:
    names = {"NVIDIA GeForce RTX 4090": "rtx-4090-24g", "NVIDIA H20": "h20-96g", "NVIDIA A800-SXM4-80GB": "a800-80g"}
    names |= {"NVIDIA L40S": "l40s-48g", "NVIDIA A10G": "a10-24g", "NVIDIA RTX A6000": "rtx-a6000-48g"}
    assert {name: REGISTRY.device(name).name for name in names} == names


@needs_published
@pytest.mark.parametrize("table", TABLES)
def test_every_card_of_a_published_table_is_registered(table: str) -> None:
    lacking = set()
    for name in {card(row, TABLES[table]) for row in rows(table)}:
        try:
            REGISTRY.device(name)
        except InputError:
            lacking.add(name)
    assert not lacking


@needs_published
def test_no_published_speed_is_near_the_peak_of_its_card_in_its_precision() -> None:
    published = [row for row in rows("recipes/performance.csv") if row["tflops_gpu"]]
    peaks = {name: REGISTRY.device(name).peak_tflops for name in {row["system"] for row in published}}
    shares = [float(row["tflops_gpu"]) / peaks[row["system"]][PRECISION[row["precision"]]] for row in published]
    assert len(published) > 100
    assert max(shares) < 0.6, "nobody publishes model FLOPs at 60 % of an fp8 or fp4 peak: some peak is too low"


def test_an_alias_names_one_device() -> None:
    specs = [REGISTRY.device(name) for name in REGISTRY.device_names()]
    known = [name for spec in specs for name in (spec.name, *spec.aliases)]
    assert len(known) == len(set(known))
    assert REGISTRY.device("H100 SXM5-80GB") == REGISTRY.device("h100-80g")
    with pytest.raises(InputError, match=r"--device: no device of that name.*'DGX-GB400'.*did you mean dgx-gb"):
        REGISTRY.device("DGX-GB400")


def test_a_registration_of_a_node_and_a_network_says_what_its_tiers_would(tmp_path: Path) -> None:
    old = device(tmp_path, A_DEVICE + "source: made up\n")
    assert old.peak_tflops == {"bf16": 10} and old.sources == {"all": "made up"}
    assert old.links == (LinkTier("domain", 10, 4), LinkTier("fabric", 1))
    assert device(tmp_path, A_DEVICE.replace("peak_bf16_tflops", "peak_tflops")).peak_tflops == old.peak_tflops


def test_the_widest_fast_tier_is_the_domain_and_the_last_one_the_network(tmp_path: Path) -> None:
    tiers = device(tmp_path, TIERS)
    assert (tiers.devices_per_node, tiers.intra_node_gb_s, tiers.inter_node_gb_s) == (8, 10, 5)
    assert tiers.link_latency_us == 2
    assert (tiers.peak("fp8"), tiers.peak("fp32"), replace(tiers, peak_tflops={"fp16": 3}).peak("bf16")) == (20, 10, 3)
    assert Registry.load(tmp_path).device("other_name") == tiers


def test_a_device_without_a_published_network_says_what_to_add() -> None:
    with pytest.raises(InputError, match=r"'ascend-950dt'.*register the device with your cluster's own"):
        _ = REGISTRY.device("ascend-950dt").inter_node_gb_s


def test_jobs_inside_one_domain_need_no_published_network() -> None:
    device = REGISTRY.device("ascend-950dt")
    inside = device.devices_per_node
    for taken in (
        gather_ms(1e9, inside, 1, device, 0.6), all_to_all_ms(1e9, inside, 1, device, 0.6), send_ms(1e9, 8, device, 1.0)
    ):  # fmt: skip
        assert 0 < float(taken) < math.inf
    for leaves in (
        lambda: gather_ms(1e9, 2 * inside, 1, device, 0.6), lambda: all_to_all_ms(1e9, 2 * inside, 1, device, 0.6),
        lambda: send_ms(1e9, inside, device, 1.0),
    ):  # fmt: skip
        with pytest.raises(InputError, match="no bandwidth is published"):
            leaves()
