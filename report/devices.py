"""Registered devices for the terminal and for programs: a table of all, a page of one with its sources."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from taylor.register.device import PRECISIONS, DeviceSpec, LinkTier

EFFICIENCY_SOURCE = "share of the peak that a step reaches (docs/cost_model.md)"


def devices_table(devices: Sequence[DeviceSpec]) -> Table:
    """One row a device: memory, peaks, and the speeds to its domain, the network and its host."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.caption = "TFLOP/s dense (16-bit: bf16, else fp16); GB/s one way; domain: cards x GB/s"
    table.add_column("device", no_wrap=True)
    for heading in ("GiB", "TB/s", "16-bit", "fp8", "fp4", "domain", "fabric", "host"):
        table.add_column(heading, justify="right", no_wrap=True)
    for device in devices:
        peaks = device.peak_tflops
        table.add_row(
            Text(device.name),
            f"{device.memory_mib / 1024:.0f}",
            f"{device.memory_gb_s / 1000:.2f}",
            *(
                "-" if peak is None else f"{peak:,.0f}"
                for peak in (device.peak("bf16"), peaks.get("fp8"), peaks.get("fp4"))
            ),
            f"{device.domain.cards} x {_number(device.domain.gb_s)}",
            _number(device.fabric.gb_s if device.fabric else None),
            _number(device.host_link_gb_s),
        )
    return table


def device_page(device: DeviceSpec) -> Table:
    """Every figure of one device beside its source."""
    names = f" ({', '.join(device.aliases)})" if device.aliases else ""
    title = Text(f"{device.name}{names}")
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, box=None)
    table.add_column("figure", no_wrap=True)
    table.add_column("value", no_wrap=True)
    table.add_column("source", overflow="fold")
    for figure, value, source in device_figures(device):
        table.add_row(Text(figure), Text(value), Text(source))
    return table


def device_figures(device: DeviceSpec) -> Iterator[tuple[str, str, str]]:
    """(meaning, value with the unit, source) of every figure that a device states."""

    def source(figure: str) -> str:
        return device.sources.get(figure, device.sources.get("all", ""))

    yield "memory", f"{device.memory_mib:,} MiB", source("memory_mib")
    yield "usable memory", f"{device.usable_memory_mib:,} MiB", source("usable_memory_mib")
    basis = source("peak_tflops")
    for precision in sorted(device.peak_tflops, key=PRECISIONS.index):
        yield f"peak {precision}", f"{_number(device.peak_tflops[precision])} TFLOP/s", basis
        basis = "as above"
    yield "memory bandwidth", f"{_number(device.memory_gb_s)} GB/s", source("memory_gb_s")
    for tier in device.links:
        yield f"{tier.name} link", _tier_text(tier), source(tier.name)
    if device.fabric is None:
        yield "fabric link", "not published", ""
    if device.host_link_gb_s is not None:
        yield "host link", f"{_number(device.host_link_gb_s)} GB/s", source("host_link_gb_s")
    if device.host_memory_mib is not None:
        yield "host memory a card", f"{device.host_memory_mib:,} MiB", source("host_memory_mib")
    yield "link latency", f"{_number(device.link_latency_us)} us", source("latency_us")
    basis = f"fitted on {device.stack}" if device.stack else EFFICIENCY_SOURCE
    for group, share in device.efficiency.items():
        yield f"efficiency {group}", f"{share:g}", basis
        basis = "as above"
    for stack in device.stacks:
        yield f"stack {stack.name}", stack.date, stack.software


def device_record(device: DeviceSpec) -> dict[str, Any]:
    """All of a device as plain data for JSON; `links` from near to far."""
    return asdict(device)


def _tier_text(tier: LinkTier) -> str:
    joined = f"{tier.cards:,} cards, " if tier.cards is not None else ""
    return f"{joined}{_number(tier.gb_s)} GB/s{', in pairs' if tier.full_mesh else ''}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")
