"""The result table of a profile run: profiling_result.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from taylor.base.files import write_atomic
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.tables.ratios import EMBEDDING, TRANSFER
from taylor.pipeline.plan import FULL
from taylor.profiling.extract import MEASURES, ExtractedRatios

RESULT_NAME = "profiling_result.csv"
COLUMNS = (
    "dp",
    "tp",
    "pp",
    "ep",
    *MEASURES,
    *(f"{name}_spread" for name in MEASURES),
    *(f"{name}_samples" for name in MEASURES),
    TRANSFER,
    EMBEDDING,
    "peak_mib",
    "static_mib",
    "steps",
    "stages_seen",
    "not_measured",
)
"""The nine of the user contract first; `not_measured` names the figures that are defaults."""


def write_profiling_result(rows: Iterable[tuple[Strategy, ExtractedRatios]], path: str | Path) -> Path:
    """Write the ratios of the profiled configurations as a table that ``--parser_result`` reads.

    A configuration whose profiles do not fit has no row, so that no doubtful figure gets into the table.

    Parameters
    ----------
    rows : iterable of (Strategy, ExtractedRatios)
        The strategy that the ratios stand for (the profile may be of a reduced stand-in), one row each.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    written: set[tuple[int, int, int, int]] = set()
    for strategy, found in rows:
        key = (strategy.dp, strategy.tp, strategy.pp, strategy.ep)
        if found.ratios is None or found.ratios.unit_ms is None or key in written:
            continue
        written.add(key)
        ratios = found.ratios
        values = (ratios.dense_forward, ratios.backward, ratios.recompute[FULL], ratios.head, ratios.unit_ms)
        peaks = ";".join(f"{stage}:{memory.peak_mib:.1f}" for stage, memory in sorted(found.memory.items()))
        statics = ";".join(
            f"{stage}:{memory.static_mib:.1f}"
            for stage, memory in sorted(found.memory.items())
            if memory.static_mib is not None
        )
        writer.writerow(
            [
                *key,
                *(f"{value:.6g}" for value in values),
                *(f"{found.spread[name]:.4g}" if name in found.spread else "" for name in MEASURES),
                *(found.samples.get(name, 0) for name in MEASURES),
                f"{found.transfer_ms:.6g}" if found.transfer_ms is not None else "",
                f"{ratios.embedding:.6g}",
                peaks,
                statics,
                found.steps,
                len(found.stages),
                ";".join(found.missing),
            ]
        )
    return write_atomic(path, text.getvalue())
