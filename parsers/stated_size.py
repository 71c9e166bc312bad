"""The size that a training file's name states, against the size of the model that the file describes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.training_config import TrainingConfig

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(?:(\d{1,4})[._])?(\d{1,5})([bBtT])(?![A-Za-z0-9])")
_UNITS = {"b": 1e9, "t": 1e12}
_ALLOWED = 3.0
"""Times by which name and file may differ: embeddings, MTP layers and what «active» means make up to two."""


def size_note(config: TrainingConfig) -> str | None:
    """The sentence that names a size far from the one in the file's name; None where they agree or it has none.

    ``30b_a3b`` states two sizes, of which the larger counts, and ``0_5b`` may be five or a half: what comes nearest to
    the model counts.
    """
    stem = config.path.stem if config.path.stem != "config" else config.path.absolute().parent.name
    total = total_parameters(config.model)
    stated = dict(_stated(stem))
    if not stated:
        return None
    largest = max(stated, key=lambda word: max(stated[word]))
    size = min(stated[largest], key=lambda one: max(one / total, total / one))
    times = max(size / total, total / size)
    if times < _ALLOWED:
        return None
    more = f"{times:,.1f} times as many" if total > size else f"one {times:,.1f}th of that"
    why = "is a size missing or wrong?" if total > size else "is it a cut model, or is a size missing?"
    return f"the file's name says {largest}, and it describes {total / 1e9:,.1f} B parameters, {more}: {why}"


def _stated(stem: str) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The sizes in a name, each with what it may mean, parameters."""
    for match in _SIZE.finditer(stem):
        whole, last, unit = match[1], match[2], _UNITS[match[3].lower()]
        sizes = [float(last) * unit] if float(last) else []
        if whole is not None:
            sizes.append(float(f"{whole}.{last}") * unit)
        if sizes:
            yield match[0], tuple(sizes)
