"""Colours and hatches of the kinds of job: distinct to colour-blind readers (Okabe-Ito) and in grey print."""

from __future__ import annotations

from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.report.timeline import COMMUNICATION, OPTIMIZER, OTHER

RECOMPUTE = -1
"""Key of the recompute part of a backward."""

COLOURS = {
    FORWARD: "#8ecdf2",
    BACKWARD: "#e08214",
    RECOMPUTE: "#fdd49e",
    WEIGHT_GRADIENT: "#007a5a",
    OPTIMIZER: "#9e4a87",
    COMMUNICATION: "#f0e442",
    OTHER: "#bbbbbb",
}
"""Fill by kind; their lightness differs too, so that grey print distinguishes them."""

HATCHES = {RECOMPUTE: "////", WEIGHT_GRADIENT: "....", COMMUNICATION: "\\\\\\\\"}
"""Hatch by kind, where lightness alone might not do."""

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9")
"""Line colours of curves, dark enough on white."""


DEEP = {FORWARD: "#08306b", BACKWARD: "#4a1a00", WEIGHT_GRADIENT: "#00281c"}
"""Fill of the last virtual stage by kind, where there are several; lightness falls evenly from the first to it."""

PARTS = ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#bbbbbb", "#ee8866", "#777777", "#99ddff")
"""Fills of the parts of a whole, one beside the other (Tol's bright scheme and two more)."""


def shade(kind: int, interleave: int, interleaves: int) -> str:
    """Fill of a kind's jobs of one virtual stage, ``#rrggbb``: later virtual stages are deeper.

    Parameters
    ----------
    interleave : int
        −1 where a job has none.
    """
    base = COLOURS[kind]
    if interleaves < 2 or interleave < 1 or kind not in DEEP:
        return base
    way = 0.8 * interleave / (interleaves - 1)
    channels = ((int(base[i : i + 2], 16), int(DEEP[kind][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(light + way * (deep - light)):02x}" for light, deep in channels)


def ink(colour: str) -> str:
    """Black or white, whichever reads better on the colour (relative luminance as in WCAG 2)."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return "#000000" if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.4 else "#ffffff"
