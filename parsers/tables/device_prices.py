"""Tables of what devices draw and cost: a CSV of ``device,watts,price_per_hour``."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text

MAX_BYTES = 2**18
MAX_VALUE = 1e9
NUMBERS = ("watts", "price_per_hour")
COLUMNS = ("device", *NUMBERS, "currency")
CURE = "begin the file with the line device,watts,price_per_hour (and currency, where you like)"


@dataclass(frozen=True)
class DevicePrice:
    """Power and price of one device, as its user states them.

    Parameters
    ----------
    watts : float or None
        Power that a device draws, its part of host and network included, W; None where it is not stated.
    price_per_hour : float or None
        Price of a device for an hour; None where it is not stated.
    currency : str
        Currency of the price; empty where it is not stated.
    """

    watts: float | None = None
    price_per_hour: float | None = None
    currency: str = ""


def read_device_prices(file: Path) -> Mapping[str, DevicePrice]:
    """Read a CSV with the columns ``device`` and any of ``watts``, ``price_per_hour`` and ``currency``.

    An empty cell states nothing.

    Returns
    -------
    mapping of str to DevicePrice
        By the device's name as the file has it.

    Raises
    ------
    InputError
        With the row and column, and the value found there.
    """
    rows = csv.reader(io.StringIO(read_text(file, limit_bytes=MAX_BYTES).removeprefix("\ufeff"), newline=""))
    header: list[str] | None = None
    found: dict[str, DevicePrice] = {}
    try:
        for cells in rows:
            if not any(map(str.strip, cells)):
                continue
            if header is None:
                header = _header(cells, file)
                continue
            if len(cells) != len(header):
                problem = f"has {len(cells)} cells and the header {len(header)}"
                raise InputError(problem, file=file, field=f"row {rows.line_num}")
            given = dict(zip(header, map(str.strip, cells), strict=True))
            name = given["device"]
            if not name or name in found:
                problem = "comes twice" if name else "must name a device"
                raise InputError(problem, file=file, field=f"row {rows.line_num}, column device", value=name)
            watts, price = (_number(given.get(each, ""), file, rows.line_num, each) for each in NUMBERS)
            found[name] = DevicePrice(watts, price, given.get("currency", ""))
    except csv.Error as error:
        raise InputError(f"is not a CSV file: {error}", file=file, field=f"row {rows.line_num}") from None
    if not found:
        raise InputError("names no device", file=file, cure=CURE)
    return found


def _header(cells: list[str], file: Path) -> list[str]:
    """Names of the columns.

    Raises
    ------
    InputError
        When they are others than `COLUMNS`, or ``device`` is not among them.
    """
    header = [name.strip() for name in cells]
    if "device" not in header or len(set(header)) != len(header) or not set(header) <= set(COLUMNS):
        raise InputError("has other columns", file=file, field="row 1", value=",".join(header), cure=CURE)
    return header


def _number(text: str, file: Path, line: int, name: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_VALUE:
        field = f"row {line}, column {name}"
        raise InputError(f"must be a number above 0 and at most {MAX_VALUE:g}", file=file, field=field, value=text)
    return value
