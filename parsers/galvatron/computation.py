"""Computation profiles: forward times of whole models (``layernum2_bsz1_seq4096``) and of one layer."""

from __future__ import annotations

import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.measured.profiles import ComputationProfile, Shape, TimedRun
from taylor.cost_model.measured.raw import kind_names, with_layer_times
from taylor.parsers.galvatron.agreement import refuse_stale
from taylor.parsers.galvatron.values import (
    LAYERS,
    SHAPE,
    layer_numbers,
    matches,
    number,
    read_table,
    refuse_contradiction,
    whole,
    wholes,
)
from taylor.parsers.text.fields import MAX_DEGREE, MAX_SIZE

_KEY = re.compile(rf"(?:{LAYERS}|layertype_(\d|other))_{SHAPE}")
_FORM = "layernum[2]_bsz1_seq4096, layertype_0_bsz1_seq4096 or layertype_other_bsz1_seq4096"


def read_computation(file: Path) -> ComputationProfile:
    """Read a computation profile; where it holds raw runs alone, the tables are made of them.

    Raises
    ------
    InputError
        When the file cannot be read, a key is unknown, a time is no positive number, or two figures contradict
        each other.
    """
    data = read_table(file)
    runs: dict[TimedRun, float] = {}
    by_type: dict[int, dict[Shape, float]] = {}
    other: dict[Shape, float] = {}
    for key, match, value in matches(data, _KEY, file, _FORM):
        shape = Shape(
            whole(match[3], file, key, "samples", MAX_DEGREE), wholes(match[4], file, key, "tokens", MAX_SIZE)
        )
        if match[1] is not None:
            run = TimedRun(layer_numbers(match[1], file, key), shape)
            time_ms = number(value, file, key, "ms")
            refuse_contradiction(runs.get(run), time_ms, file, key, "the time of a layer")
            runs[run] = time_ms
            continue
        rest = match[2] == "other"
        table = other if rest else by_type.setdefault(int(match[2]), {})
        time_ms = number(value, file, key, "ms a sample", zero=rest)
        refuse_contradiction(table.get(shape), time_ms, file, key, "the time of a layer")
        table[shape] = time_ms
    if not data:
        raise InputError("contains no measurement", file=file, cure="run the profiler of computation again")
    names = kind_names(max(by_type, default=0) + 1)
    stated = ComputationProfile(runs, {names[kind]: table for kind, table in sorted(by_type.items())}, other, str(file))
    for index, name in enumerate(names if by_type else ()):
        if name not in stated.layer_ms:
            raise InputError(
                "is missing, and the forward of its layers needs it",
                file=file,
                field=f"layertype_{index}_bsz…_seq…",
                cure=f"process the raw profile again: layertype_{max(by_type)} is there",
            )
    made = with_layer_times(stated)
    for kind, times in stated.layer_ms.items():
        for shape, time_ms in times.items():
            refuse_stale(time_ms, made.layer_ms[kind].get(shape), file, _key(names.index(kind), shape))
    for shape, time_ms in stated.other_ms.items():
        refuse_stale(time_ms, made.other_ms.get(shape), file, _key("other", shape))
    return made


def _key(kind: int | str, shape: Shape) -> str:
    return f"layertype_{kind}_bsz{shape.batch}_seq{','.join(map(str, shape.sequence))}"
