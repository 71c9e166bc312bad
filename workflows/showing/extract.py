"""A saved solution, a `.sol` or a result JSON, as text a person reads."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.pipeline_solver.solving.result import read_result

_VARIABLE = re.compile(r"(x|recompute|select)_(\w+)\[(\d{1,4}),(\d{1,3})\] (\d{1,6})")
PLAIN = (
    "model", "device", "status", "termination", "step_ms", "tokens_per_second_per_device", "mfu", "mfu_precision",
    "objective", "bound", "gap", "unit_ms", "schedule", "offset", "peak_memory", "memory_limit",
)  # fmt: skip
"""Keys of a result that are printed as they are; results of older versions lack those of the job."""

_WORDS = {"x": "layers", "recompute": "recomputed", "select": "selectively recomputed"}


def describe_saved_solution(path: Path) -> str:
    """Status, objective and bound, then layers and recompute of every stage, one row a virtual stage.

    Raises
    ------
    InputError
        When the file cannot be read or contains no solution.
    """
    text = read_text(path)
    lines = _of_json(path) if text.lstrip().startswith("{") else _of_sol(path, text)
    return "\n".join(lines)


def _of_sol(path: Path, text: str) -> list[str]:
    lines = [line[2:].replace(" ", ": ", 1) for line in text.splitlines() if line.startswith("# ")]
    values: dict[tuple[str, str], dict[tuple[int, int], int]] = {}
    for match in filter(None, map(_VARIABLE.fullmatch, text.splitlines())):
        role, kind, stage, interleave, value = match.groups()
        values.setdefault((role, kind), {})[int(interleave), int(stage)] = int(value)
    if not values:
        raise InputError(
            "has no layers (x_KIND[stage,virtual stage] lines)",
            file=path,
            cure="name a .sol of pipeline_output/sol_output or a result JSON",
        )
    for (role, kind), grid in values.items():
        rows = [
            ", ".join(str(grid.get((v, s), 0)) for s in range(max(stage for _, stage in grid) + 1))
            for v in range(max(interleave for interleave, _ in grid) + 1)
        ]
        lines += [f"{_WORDS[role]} {kind}: [{row}]" for row in rows]
    return lines


def _of_json(path: Path) -> list[str]:
    result = read_result(path).to_dict()
    lines = [f"{key}: {result[key]}" for key in PLAIN if result.get(key) is not None]
    for group, word in (("layers", "layers"), ("recompute", "recomputed")):
        lines += [f"{word} {name}: {rows}" for name, rows in result[group].items()]
    return lines
