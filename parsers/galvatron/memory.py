"""Memory profiles: raw runs by how they were spread, tables of a layer and of embedding, head and loss."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.measured.profiles import (
    HETU,
    PADDLE,
    RECOMPUTED,
    LayerMemory,
    MeasuredMemory,
    MemoryLayout,
    MemoryRun,
    MemoryTables,
    OtherMemory,
    ProfileRules,
    RankMemory,
    Shape,
)
from taylor.cost_model.measured.raw import kind_names, memory_key, with_memory_tables
from taylor.parsers.galvatron.agreement import refuse_stale
from taylor.parsers.galvatron.values import (
    LAYERS,
    SHAPE,
    WHOLE,
    layer_numbers,
    number,
    read_table,
    refuse_contradiction,
    table,
    whole,
    wholes,
)
from taylor.parsers.text.fields import MAX_DEGREE, MAX_SIZE

_GROUP = re.compile(rf"{WHOLE}_{WHOLE}_{WHOLE}(_c)?(_vtp)?(_sp)?(?:_(True|False))?")
_RUN = re.compile(rf"{LAYERS}_{SHAPE}_(?:rank(\d{{1,7}})|(first|last))_(ms|act|act_peak)")
_LAYER = re.compile(r"layertype_(\d)(_sp)?")
_OTHER = re.compile(r"other_memory_(pp_off|pp_on_first|pp_on_last)(_sp)?")
_LENGTH = re.compile(r"(\d{1,9})(?:[,_]\d{1,9}){0,7}")
_ENDS = {"pp_off": "alone", "pp_on_first": "first", "pp_on_last": "last"}
_FORM = "1_2_4, 1_2_4_vtp_sp, 1_1_8_c, 1_2_4_False, layertype_0, layertype_0_sp, other_memory_pp_off, …"
_NEEDED = "the memory of a layer"

_Figures = dict[str, float]


@dataclass
class _Tables:
    """Tables with or without sequence parallelism, as far as they were read; sequence lengths in tokens."""

    layer: dict[int, dict[int, LayerMemory]] = field(default_factory=dict)
    ends: dict[str, dict[int, OtherMemory]] = field(default_factory=lambda: {name: {} for name in _ENDS.values()})


def read_memory(files: Iterable[Path]) -> tuple[MeasuredMemory, ProfileRules]:
    """Read the memory profile of one model; Paddle's lies in up to three files.

    Parameters
    ----------
    files : iterable of Path
        The last one names the profile in messages.

    Returns
    -------
    MeasuredMemory, ProfileRules
        With the tables that its raw runs make where it has none, and whose profiler wrote it.

    Raises
    ------
    InputError
        When a file cannot be read, a key is unknown or missing, a figure is no positive number, or two contradict
        each other.
    """
    runs: dict[MemoryRun, _Figures] = {}
    tables: dict[bool, _Tables] = {}
    paddle = False
    file = Path()
    for file in files:
        data = read_table(file)
        if not data:
            raise InputError("contains no measurement", file=file, cure="run the profiler of memory again")
        for key, value in data.items():
            inner = table(value, file, key)
            if found := _GROUP.fullmatch(key):
                paddle = paddle or found[7] is not None
                _take_runs(runs, _layout(found, file, key), inner, file, key)
            elif found := _LAYER.fullmatch(key):
                _take_layer(tables.setdefault(found[2] is not None, _Tables()), int(found[1]), inner, file, key)
            elif found := _OTHER.fullmatch(key):
                _take_end(tables.setdefault(found[2] is not None, _Tables()), _ENDS[found[1]], inner, file, key)
            else:
                raise InputError("is no key of a memory profile", file=file, field=key, cure=f"its keys are {_FORM}")
    rules = PADDLE if paddle else HETU
    if paddle:  # Its keys do not tell, and its runs all split activations: see `PADDLE`.
        if len(tables) > 1:
            raise InputError(
                "stands beside layertype_0, and Paddle's runs all split activations",
                file=file,
                field="layertype_0_sp",
                cure="keep the table that its own profiler made: layertype_0",
            )
        if tables:
            tables = {True: tables.popitem()[1]}
        runs = {_split(run): figures for run, figures in runs.items()}
    stated = MeasuredMemory(
        {run: _rank_memory(run, figures, file) for run, figures in runs.items()},
        {split: _memory_tables(each, file, split and not paddle) for split, each in tables.items()},
        str(file),
    )
    made = with_memory_tables(stated, rules)
    _refuse_stale_tables(stated, made, file)
    return made, rules


def _layout(found: re.Match[str], file: Path, key: str) -> MemoryLayout:
    pp, tp, dp = (whole(found[part], file, key, "ranks") for part in (1, 2, 3))
    return MemoryLayout(
        pp, tp, dp, recompute=found[4] is not None or found[7] == "True", vocabulary_split=found[5] is not None,
        sequence_parallel=found[6] is not None,
    )  # fmt: skip


def _split(run: MemoryRun) -> MemoryRun:
    at = run.layout
    return MemoryRun(MemoryLayout(at.pp, at.tp, at.dp, at.recompute, False, True), run.layers, run.shape, run.last)


def _take_runs(
    runs: dict[MemoryRun, _Figures], layout: MemoryLayout, data: Mapping[str, Any], file: Path, group: str
) -> None:
    for key, value in data.items():
        name = f"{group}.{key}"
        found = _RUN.fullmatch(key)
        if found is None:
            raise InputError(
                "is no key of a run", file=file, field=name, cure="its keys are layernum[1]_bsz8_seq2048_rank0_act, …"
            )
        rank = found[4]
        if rank is not None and int(rank) not in (0, layout.world - 1):
            raise InputError(
                f"is neither the first nor the last of {layout.world} ranks",
                file=file,
                field=name,
                cure=f"keep rank0 and rank{layout.world - 1}",
            )
        shape = Shape(
            whole(found[2], file, name, "samples", MAX_DEGREE), wholes(found[3], file, name, "tokens", MAX_SIZE)
        )
        last = found[5] == "last" if rank is None else int(rank) == layout.world - 1 and layout.world > 1
        run = MemoryRun(layout, layer_numbers(found[1], file, name), shape, last)
        figure = number(value, file, name, "MB", zero=True)
        figures = runs.setdefault(run, {})
        refuse_contradiction(figures.get(found[6]), figure, file, name, _NEEDED)
        figures[found[6]] = figure
        if layout.world == 1:
            runs[MemoryRun(layout, run.layers, shape, True)] = figures


def _rank_memory(run: MemoryRun, figures: _Figures, file: Path) -> RankMemory:
    for part in ("ms", "act", "act_peak"):
        if part not in figures:
            raise InputError(
                f"is missing, and {_NEEDED} needs it",
                file=file,
                field=f"{memory_key(run)}_{part}",
                cure="run that case of the profiler again",
            )
    return RankMemory(figures["ms"], figures["act"], figures["act_peak"])


def _by_length(data: Mapping[str, Any], file: Path, key: str) -> dict[int, tuple[str, Mapping[str, Any]]]:
    """The entries by sequence length, each with its field."""
    found: dict[int, tuple[str, Mapping[str, Any]]] = {}
    for length, value in data.items():
        match = _LENGTH.fullmatch(length)
        if match is None:
            raise InputError("is no sequence length", file=file, field=f"{key}.{length}", cure="write its tokens")
        tokens = whole(match[1], file, f"{key}.{length}", "tokens", MAX_SIZE)
        found[tokens] = (f"{key}.{length}", table(value, file, f"{key}.{length}"))
    return found


def _entry(data: Mapping[str, Any], name: str, file: Path, field: str, needed: str) -> Any:
    if name not in data:
        raise InputError(
            f"is missing, and {needed} needs it",
            file=file,
            field=f"{field}.{name}",
            cure="process the raw profile again",
        )
    return data[name]


def _take_layer(tables: _Tables, kind: int, data: Mapping[str, Any], file: Path, key: str) -> None:
    for tokens, (name, entry) in _by_length(data, file, key).items():
        parameter = _entry(entry, "parameter_size", file, name, "the memory of states")
        activation = dict(
            table(
                _entry(entry, "tp_activation_per_bsz_dict", file, name, "the memory of activations"),
                file,
                f"{name}.tp_activation_per_bsz_dict",
            )
        )
        inside = f"{name}.tp_activation_per_bsz_dict"
        recomputed = activation.pop(RECOMPUTED, None)
        memory = LayerMemory(
            number(parameter, file, f"{name}.parameter_size", "MB"),
            _by_ways(activation, file, inside, "activations of a layer"),
            None if recomputed is None else number(recomputed, file, f"{inside}.{RECOMPUTED}", "MB a sample"),
        )
        tables.layer.setdefault(kind, {})[tokens] = memory


def _take_end(tables: _Tables, end: str, data: Mapping[str, Any], file: Path, key: str) -> None:
    for tokens, (name, entry) in _by_length(data, file, key).items():
        parts = []
        for part, needed in (("model_states", "states of embedding and head"), ("activation", "the peak of the ends")):
            inside = f"{name}.{part}"
            parts.append(_by_ways(table(_entry(entry, part, file, name, needed), file, inside), file, inside, needed))
        tables.ends[end][tokens] = OtherMemory(*parts)


def _by_ways(data: Mapping[str, Any], file: Path, field: str, needed: str) -> dict[int, float]:
    found = {}
    for key, value in data.items():
        if not re.fullmatch(r"\d{1,7}", key):
            raise InputError("is no tensor parallel degree", file=file, field=f"{field}.{key}", cure="write 1, 2, 4, …")
        ways = whole(key, file, f"{field}.{key}", "ranks")
        found[ways] = number(value, file, f"{field}.{key}", "MB", zero=True)
    if 1 not in found:
        raise InputError(
            f"is missing, and {needed} needs it", file=file, field=f"{field}.1", cure="process the raw profile again"
        )
    return found


def _memory_tables(tables: _Tables, file: Path, named_sp: bool) -> MemoryTables:
    names = kind_names(max(tables.layer, default=0) + 1)
    suffix = "_sp" if named_sp else ""
    for kind in range(len(names)):
        if kind not in tables.layer:
            raise InputError(
                f"is missing, and {_NEEDED} needs it",
                file=file,
                field=f"layertype_{kind}{suffix}",
                cure="process the raw profile again",
            )
    for key, end in _ENDS.items():
        lacking = sorted(set(tables.layer[0]) - set(tables.ends[end]))
        if lacking:
            stages = "the stages' memory" if end == "alone" else f"the {end} stage's memory"
            raise InputError(
                f"is missing, and {stages} needs it",
                file=file,
                field=f"other_memory_{key}{suffix}.{lacking[0]}",
                cure="process the raw profile again",
            )
    layer = {names[kind]: memory for kind, memory in sorted(tables.layer.items())}
    return MemoryTables(layer, tables.ends["alone"], tables.ends["first"], tables.ends["last"])


def _refuse_stale_tables(stated: MeasuredMemory, made: MeasuredMemory, file: Path) -> None:
    for split, old in stated.tables.items():
        new = made.tables[split]
        for index, (kind, lengths) in enumerate(old.layer.items()):
            for tokens, memory in lengths.items():
                now = new.layer[kind][tokens]
                field = f"layertype_{index}{'_sp' * split}.{tokens}"
                refuse_stale(memory.parameter_mib, now.parameter_mib, file, f"{field}.parameter_size")
                for ways, mib in memory.activation_mib.items():
                    refuse_stale(mib, now.activation_mib.get(ways), file, f"{field}.tp_activation_per_bsz_dict.{ways}")
