"""A sizing in text, as HTML and as a picture: a table a device, the answers beside each other, the curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from taylor.report.compress import strategy_text
from taylor.report.palette import LINES
from taylor.report.picture import drawing_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data = Mapping[str, Any]

HEADINGS = (
    "devices", "strategy", "step s", "90 % interval", "tokens/s a device", "kept", "efficiency", "days",
    "device-hours", "MWh", "price",
)  # fmt: skip
COLUMNS = (
    "devices", "strategy", "step_ms", "step_interval_ms", "tokens_per_second_per_device", "kept", "efficiency",
    "days", "device_hours", "energy_mwh", "price",
)  # fmt: skip

LACKS = {
    "memory": "none fits the memory",
    "rules": "none is legal",
    "time": "no plan in time",
}
"""Words for what a number of devices lacks (`SizePoint.lacks`)."""

CAPTION = (
    "step: of the first plan found for the fastest strategy; kept: of a device's speed, by the doubling to this row; "
    "efficiency: a device's speed over the highest of the curve"
)


def size_lines(data: Data) -> list[str]:
    """The question, and the answers a device."""
    lines = [question_text(data)]
    for device in data["devices"]:
        lines += [f"{device['device']}: {line}" for line in answer_lines(device, data)]
    return lines


def question_text(data: Data) -> str:
    """The training in a line."""
    samples = f"{data['global_batch']:,} samples a step of {data['sequence']:,} tokens"
    tokens = "" if data["tokens"] is None else f", {short(data['tokens'])} tokens in all"
    return f"{data['model']}; {samples}{tokens}"


def answer_lines(device: Data, data: Data) -> list[str]:
    """The least number of devices, that for the deadline, and the knee, a sentence each."""
    least = device["least"]
    if least is None:
        return [f"no strategy fits: {device['curve'][-1]['reason']}"]
    lines = [f"at least {_devices(least)}{_with(least, data)}"]
    if (days := data["deadline_days"]) is not None:
        lines += _deadline_lines(device, days, data)
    if device["knee"] is not None:
        lines.append(device["knee"]["sentence"])
    return [*lines, *device["assumed"]]


def _deadline_lines(device: Data, days: float, data: Data) -> Iterator[str]:
    soon, sure = device["in_time"], device["surely_in_time"]
    if soon is None:
        yield f"no number of devices of the curve trains within {days:g} days"
        return
    yield f"within {days:g} days: {_devices(soon)}{_with(soon, data)}"
    if sure is None:
        yield f"at the upper end of the step's interval none of the curve trains within {days:g} days"
    elif sure["devices"] != soon["devices"]:
        yield f"within {days:g} days at the upper end of the step's interval: {_devices(sure)}"


def _devices(point: Data) -> str:
    return f"{point['devices']:,} device{'s' * (point['devices'] > 1)}"


def _with(point: Data, data: Data) -> str:
    """Strategy, speed, days and costs of a point, in brackets."""
    parts = [strategy_text(point["strategy"])]
    if point["tokens_per_second"] is not None:
        parts.append(f"{short(point['tokens_per_second'] / data['sequence'])} samples/s")
    if point["days"] is not None:
        low, high = point["days_interval"]
        parts.append(f"{days_text(point['days'])} days, {days_text(low)} to {days_text(high)}")
        parts.append(f"{short(point['device_hours'])} device-hours")
    if point["energy_mwh"] is not None:
        parts.append(f"{short(point['energy_mwh'])} MWh")
    if point["price"] is not None:
        parts.append(f"price {short(point['price'])}")
    return f" ({'; '.join(parts)})"


def size_table(device: Data) -> Table:
    """Curve of one device, a row a number of devices; columns of which nothing is known are left out."""
    title = f"{device['device']} ({device['memory_mib'] / 1024:.0f} GiB), {device['framework']}"
    table = Table(title=Text(title), title_justify="left", header_style="bold", pad_edge=False, box=None)
    table.caption = CAPTION
    rows, shown = device["curve"], shown_columns(device)
    for at in shown:
        left = COLUMNS[at] == "strategy"
        table.add_column(HEADINGS[at], justify="left" if left else "right", no_wrap=not left)
    for row in rows:
        cells = point_cells(row)
        table.add_row(*(Text(cells[at]) for at in shown))
    if device["currency"] and any(row["price"] is not None for row in rows):
        table.caption = f"{CAPTION}; price in {device['currency']}"
    return table


def shown_columns(device: Data) -> list[int]:
    """Columns of which some row of a device's curve knows something."""
    return [at for at, name in enumerate(COLUMNS) if any(row[name] is not None for row in device["curve"])]


def point_cells(row: Data) -> list[str]:
    """Cells of a point, one a heading; what is missing in place of a strategy."""
    if row["strategy"] is None:
        return [f"{row['devices']:,}", LACKS[row["lacks"]], *[""] * (len(HEADINGS) - 2)]
    low, high = row["step_interval_ms"]
    cells = [
        f"{row['devices']:,}",
        strategy_text(row["strategy"]),
        seconds_text(row["step_ms"]),
        f"{seconds_text(low)} to {seconds_text(high)}",
        short(row["tokens_per_second_per_device"]),
    ]
    cells += ["" if row[name] is None else f"{row[name]:.0%}" for name in ("kept", "efficiency")]
    cells.append("" if row["days"] is None else days_text(row["days"]))
    return cells + ["" if row[name] is None else short(row[name]) for name in ("device_hours", "energy_mwh", "price")]


def beside(data: Data) -> Table:
    """Answers of several devices beside each other."""
    table = Table(header_style="bold", pad_edge=False, box=None)
    table.add_column("device", no_wrap=True)
    rows = [(device, device["in_time"] or device["least"]) for device in data["devices"]]
    names = ("least", "in time", "days", "device-hours", "MWh", "price", "knee")
    for name in names:
        table.add_column(name, justify="right")
    for device, point in rows:
        if point is None:
            table.add_row(device["device"], "none", *[""] * (len(names) - 1))
            continue
        soon, knee = device["in_time"], device["knee"]
        table.add_row(
            device["device"],
            f"{device['least']['devices']:,}",
            "" if soon is None else f"{soon['devices']:,}",
            *("" if point[name] is None else short(point[name]) for name in COLUMNS[7:]),
            "" if knee is None or knee["kept_beyond"] is None else f"{knee['devices']:,}",
        )
    return table


def size_html(data: Data) -> str:
    """A sizing in a notebook's cell."""
    lines = "<br>".join(map(escape, size_lines(data)))
    tables = ""
    for device in data["devices"]:
        shown = shown_columns(device)
        head = "".join(f"<th>{escape(HEADINGS[at])}</th>" for at in shown)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(point_cells(row)[at])}</td>" for at in shown) + "</tr>"
            for row in device["curve"]
        )
        tables += f"<h4>{escape(device['device'])}</h4><table><tr>{head}</tr>{body}</table>"
    return f"<p>{lines}</p>{tables}"


def size_figure(data: Data) -> Figure:
    """Tokens a second of a device, with the interval, over the number of devices: a line a device."""
    from matplotlib.figure import Figure

    with drawing_style():
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for number, device in enumerate(data["devices"]):
            rows = [row for row in device["curve"] if row["strategy"] is not None]
            sizes = [row["devices"] for row in rows]
            colour = LINES[number % len(LINES)]
            speeds = [row["tokens_per_second_per_device"] for row in rows]
            low, high = (
                [speed * row["step_ms"] / row["step_interval_ms"][end] for speed, row in zip(speeds, rows, strict=True)]
                for end in (1, 0)
            )
            axes.plot(sizes, speeds, marker="o", color=colour, label=device["device"])
            axes.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("devices")
        axes.set_ylabel("tokens/s a device")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(frameon=False)
    return figure


def seconds_text(milliseconds: float) -> str:
    """A step in seconds, to four digits."""
    return f"{milliseconds / 1e3:,.{_decimals(milliseconds / 1e3, 4)}f}"


def days_text(days: float) -> str:
    """Days, to two digits at least."""
    return f"{days:,.{_decimals(days, 2)}f}"


def short(value: float) -> str:
    """A figure to three digits, in thousands, millions, billions or trillions where it is that large."""
    for unit, name in ((1e12, " T"), (1e9, " B"), (1e6, " M")):
        if abs(value) >= unit * 0.9995:
            return f"{value / unit:,.{_decimals(value / unit, 3)}f}{name}"
    return f"{value:,.{_decimals(value, 3)}f}"


def _decimals(value: float, digits: int) -> int:
    """Decimals that leave a number of digits once the value is rounded to them, at least none."""
    rounded = float(f"{abs(value):.{digits - 1}e}")
    whole = len(str(int(rounded))) if rounded >= 1 else 0
    return max(0, digits - whole)
