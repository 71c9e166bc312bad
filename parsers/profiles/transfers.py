"""Data sent by each collective of one rank and its time, from torch_npu's ``communication.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text

TRANSFERS = "communication.json"
MOST_BYTES = 1 << 28
_TIMES, _LINKS = "Communication Time Info", "Communication Bandwidth Info"
_NEAR, _FAR = "SDMA", "RDMA"
"""Links of one node together (HCCS, PCIE and SIO are parts of SDMA), and those between nodes."""


@dataclass(frozen=True)
class Transfer:
    """One collective, or one transfer to or from a neighbour.

    Parameters
    ----------
    group : str
        The profiler's number of its group of ranks.
    bytes : int
        Data that this rank sent, in a node and between nodes.
    ns : float
        Its time once all ranks had arrived, without waiting for others.
    ranks : int
        Of its group; 0 where the profiler does not say.
    """

    group: str
    bytes: int
    ns: float
    ranks: int = 0


def read_transfers(path: str | Path) -> Mapping[str, Transfer]:
    """The collectives of a profile by the names that ``kernel_details.csv`` has for them.

    Raises
    ------
    InputError
        When the file is missing or damaged.
    """
    file = Path(path)
    try:
        steps = json.loads(read_text(file, limit_bytes=MOST_BYTES))
        found: dict[str, Transfer] = {}
        for step in steps.values():
            for kind in ("collective", "p2p"):
                for title, figures in step.get(kind, {}).items():
                    name, _, group = title.partition("@")
                    if group:
                        found[name] = _transfer(group, figures)
        return found
    except (ValueError, AttributeError, KeyError, TypeError, OverflowError, RecursionError) as error:
        cure = "is it the whole file that torch_npu wrote?"
        raise InputError(f"contains no collectives: {error!r}", file=file, cure=cure) from None


def _transfer(group: str, figures: Mapping[str, Any]) -> Transfer:
    times, links = figures[_TIMES], figures[_LINKS]
    took = float(times["Elapse Time(ms)"]) - float(times["Wait Time(ms)"])
    sent = sum(float(links.get(link, {}).get("Transit Size(MB)", 0.0)) for link in (_NEAR, _FAR))
    if not (math.isfinite(took) and math.isfinite(sent)):
        raise ValueError("a figure is not a number")
    return Transfer(group, round(sent * 1e6), max(0.0, took) * 1e6)
