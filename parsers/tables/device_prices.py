"""Tables of what devices draw and cost: a CSV of ``device,watts,price_per_hour``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.tables.csv_rows import csv_rows

MAX_BYTES = 2**18
MAX_VALUE = 1e9
NUMBERS = ("watts", "price_per_hour")
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
    found: dict[str, DevicePrice] = {}
    for place, given in csv_rows(file, ("device",), CURE, further=(*NUMBERS, "currency"), limit_bytes=MAX_BYTES):
        name = given["device"]
        if not name or name in found:
            problem = "comes twice" if name else "must name a device"
            raise InputError(problem, file=file, field=f"{place}, column device", value=name)
        watts, price = (_number(given.get(each, ""), file, f"{place}, column {each}") for each in NUMBERS)
        found[name] = DevicePrice(watts, price, given.get("currency", ""))
    if not found:
        raise InputError("names no device", file=file, cure=CURE)
    return found


def _number(text: str, file: Path, field: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= MAX_VALUE:
        raise InputError(f"must be a number above 0 and at most {MAX_VALUE:g}", file=file, field=field, value=text)
    return value
