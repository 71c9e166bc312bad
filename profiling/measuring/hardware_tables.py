"""The tables of a measured cluster, as Galvatron reads them, and the device that it makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.profiling.measuring.plan import (
    ALL_REDUCE,
    ALL_TO_ALL,
    ATTENTION,
    COPY,
    HOST_LINK,
    MIB,
    OVERLAP,
    PRODUCTS,
    TIMED_REDUCE,
    TRANSFER,
    HardwarePlan,
    hardware_jobs,
)
from taylor.profiling.measuring.samples import TimedSample
from taylor.register.device import DeviceSpec


def hardware_tables(plan: HardwarePlan, measured: Mapping[str, TimedSample]) -> dict[str, dict[str, float]]:
    """Entries by file name: bus bandwidths in GB/s, times in ms, the slow-down of overlap."""
    tables: dict[str, dict[str, float]] = {
        f"allreduce_bandwidth_{plan.name}.json": {},
        f"p2p_bandwidth_{plan.name}.json": {},
        f"sp_time_{plan.name}.json": {},
        "overlap_coefficient.json": {},
    }
    reduced, sent, timed, overlap = tables.values()
    for job in hardware_jobs(plan):
        if job.key not in measured:
            continue
        value = measured[job.key].value
        if job.kind == ALL_REDUCE:
            bus = 2 * (job.ranks - 1) / job.ranks * job.mib * MIB / value / 1e9
            reduced[f"allreduce_size_{job.ranks}_consec_{int(job.consecutive)}"] = round(bus, 6)
        elif job.kind == TRANSFER:
            sent[f"pp_size_{job.ranks}"] = round(job.mib * MIB / value / 1e9, 6)
        elif job.kind in (TIMED_REDUCE, ALL_TO_ALL):
            name = "allreduce" if job.kind == TIMED_REDUCE else "all2all"
            timed[f"{name}_size_{job.ranks}_{job.mib}MB_time"] = round(1e3 * value, 6)
        elif job.kind == OVERLAP:
            overlap["overlap_coe"] = round(value, 6)
    return {name: table for name, table in tables.items() if table}


def write_tables(tables: Mapping[str, Mapping[str, float]], folder: Path) -> list[Path]:
    """Write every table into a folder."""
    return [write_atomic(folder / name, json.dumps(table, indent=4) + "\n") for name, table in tables.items()]


def measured_device(
    device: DeviceSpec, plan: HardwarePlan, measured: Mapping[str, TimedSample], stack: str
) -> DeviceSpec:
    """A device with the speeds that were measured in the place of the registered ones.

    Links state what collectives reach, so that all of it counts; efficiencies are the fractions of the peaks that
    single kernels reach.
    """
    shares = dict(device.efficiency)
    peak = 1e12 * device.peak("bf16")
    for name, key, most in (("matmul", PRODUCTS, peak), ("attention", ATTENTION, peak),
                            ("memory", COPY, 1e9 * device.memory_gb_s)):  # fmt: skip
        if key in measured:
            shares[name] = min(1.0, measured[key].value / most)
    sources = dict(device.sources)
    links = device.links
    reduced = hardware_tables(plan, measured).get(f"allreduce_bandwidth_{plan.name}.json", {})
    near, far = reduced.get(f"allreduce_size_{plan.per_node}_consec_1"), None
    if plan.nodes > 1:
        far = reduced.get(f"allreduce_size_{plan.nodes}_consec_0")
    source = f"all-reduce of {plan.bandwidth_mib} MiB, measured by `taylor profile hardware`"
    for tier, bandwidth in ((device.domain, near), (device.fabric, far)):
        if tier is not None and bandwidth:
            cards = tier.cards if tier.cards is None else max(plan.per_node, 2)
            links = tuple(
                replace(one, gb_s=bandwidth, cards=cards, full_mesh=False) if one is tier else one for one in links
            )
            sources[tier.name] = source
            shares["network"] = 1.0
    # A tier between that the measured domain is as wide as, or wider than, says nothing any more.
    domain = next((one for one in links if one.name == device.domain.name), device.domain)
    links = tuple(one for one in links if one is domain or one.cards is None or one.cards < (domain.cards or 0))
    tiers = {one.name for one in device.links} - {one.name for one in links}
    sources = {name: source for name, source in sources.items() if name not in tiers}
    host = device.host_link_gb_s
    if HOST_LINK in measured:
        host = measured[HOST_LINK].value / 1e9
        sources["host_link_gb_s"] = "measured by `taylor profile hardware`"
    return replace(
        device, name=f"{device.name}-measured", aliases=(), efficiency=shares, links=links, host_link_gb_s=host,
        sources=sources, stack=stack,
    )  # fmt: skip
