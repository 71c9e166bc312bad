"""Kernels of one rank from Ascend profiler output: kernel_details.csv, or trace_view.json where that is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.profiles.json_stream import stream_events
from taylor.parsers.profiles.kernels import TRANSFER, KernelBuilder, RankProfile, parse_us
from taylor.parsers.profiles.tables import stream_rows

OUTPUT = "ASCEND_PROFILER_OUTPUT"
KERNELS, TRACE = "kernel_details.csv", "trace_view.json"
MAX_RAGGED = 0.001
"""Fraction of damaged rows that may be skipped, with a note; a single one always may."""
HARDWARE = "Ascend Hardware"
COMMUNICATION = ("HCCL", "Communication")
"""Processes of a trace: kernels, and the collectives with the steps each consists of."""


def read_ascend_rank(output: str | Path) -> RankProfile:
    """Kernels of the rank whose ``ASCEND_PROFILER_OUTPUT`` folder is given.

    Raises
    ------
    InputError
        When the folder holds neither file, or the one it holds is damaged.
    """
    folder = Path(output)
    rank = ascend_rank(folder)
    if (folder / KERNELS).is_file():
        return read_kernel_details(folder / KERNELS, rank=rank)
    if (folder / TRACE).is_file():
        return read_trace_view(folder / TRACE, rank=rank)
    raise InputError(f"contains neither {KERNELS} nor {TRACE}", file=folder, cure="let the profiler's analysis finish")


def ascend_rank(output: Path) -> int | None:
    """Rank from ``profiler_info_N.json`` beside the output folder; None where no file says it.

    Raises
    ------
    InputError
        When the file is not JSON or two files disagree.
    """
    ranks: dict[int, Path] = {}
    for path in sorted(output.parent.glob("profiler_info*.json")):
        match = re.fullmatch(r"profiler_info(?:_(\d+))?\.json", path.name)
        if match is None:
            continue
        try:
            content = json.loads(read_text(path, limit_bytes=2**22))
        except (ValueError, RecursionError) as error:
            raise InputError(f"is not JSON: {error}", file=path, cure="is the file cut short?") from None
        stated = content.get("rank_id") if isinstance(content, dict) else None
        number = int(match[1]) if match[1] else None
        if isinstance(stated, int) and not isinstance(stated, bool) and stated >= 0:
            if number is not None and number != stated:
                raise InputError("contradicts the file's name", file=path, field="rank_id", value=stated)
            number = stated
        if number is not None:
            ranks[number] = path
    if len(ranks) > 1:
        raise InputError("contains the information of several ranks", file=output.parent, value=sorted(ranks))
    return next(iter(ranks), None)


def read_kernel_details(path: str | Path, *, rank: int | None = None) -> RankProfile:
    """Read ``kernel_details.csv``; columns are found by header, as they differ by version and level.

    Raises
    ------
    InputError
        When a needed column is missing, or a row is damaged, with its number.
    """
    file = Path(path)
    builder = KernelBuilder(file)
    ragged: list[int] = []
    rows = stream_rows(
        file,
        ("Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)"),
        ("Step Id", "Stream ID"),
        ragged=ragged,
    )
    count = 0
    for line, (name, kind, _, start, duration, step, stream) in rows:
        count += 1
        assert name is not None and kind is not None and start is not None and duration is not None
        try:
            start_ns, duration_ns = parse_us(start), parse_us(duration)
        except ValueError:
            raise InputError(
                "must be a time in us",
                file=file,
                field=f"row {line}, Start Time(us) and Duration(us)",
                value=f"{start.strip()}, {duration.strip()}",
                cure="are two columns swapped?",
            ) from None
        builder.add(
            name.strip(),
            kind.strip(),
            start_ns,
            duration_ns,
            step=_number(step),
            stream=_number(stream),
            where=f"row {line}",
        )
    if len(ragged) > max(1, MAX_RAGGED * count):
        raise InputError(
            f"has {len(ragged)} rows with another number of cells than the header",
            file=file,
            field=f"row {ragged[0]}",
            cure="write the profile again",
        )
    notes = tuple(
        f"{file}: row {line} is ignored: it has more or fewer cells than the header, or no end" for line in ragged
    )
    return builder.build(rank, notes=notes)


def read_trace_view(path: str | Path, *, rank: int | None = None) -> RankProfile:
    """Read the device kernels of ``trace_view.json``: processes Ascend Hardware and HCCL.

    Raises
    ------
    InputError
        When the trace is damaged or has no device process.
    """
    file = Path(path)
    builder = KernelBuilder(file)
    # The rows that name a process may come after its events, so every process is kept until the end.
    names: dict[object, str] = {}
    groups: dict[object, int] = {}
    for event in stream_events(file):
        phase, pid = event.get("ph"), event.get("pid")
        if isinstance(pid, (dict, list)):
            continue
        if phase == "M" and event.get("name") == "process_name":
            arguments = event.get("args")
            if isinstance(arguments, dict):
                names[pid] = str(arguments.get("name", ""))
        elif phase == "X" and "cat" not in event and names.get(pid, HARDWARE).startswith((HARDWARE, *COMMUNICATION)):
            _add_event(builder, event, file, groups.setdefault(pid, len(groups)))
    hardware = [groups[pid] for pid, name in names.items() if name.startswith(HARDWARE) and pid in groups]
    talking = [groups[pid] for pid, name in names.items() if name.startswith(COMMUNICATION) and pid in groups]
    if not hardware:
        raise InputError(
            "has no kernel of the device",
            file=file,
            field=f"process {HARDWARE}",
            value=", ".join(sorted(names.values())),
            cure="profile with NPU activities",
        )
    return builder.build(rank, groups=hardware, communication_groups=talking)


def _add_event(builder: KernelBuilder, event: dict[str, object], file: Path, group: int) -> None:
    name = str(event.get("name", ""))
    try:
        start, duration = parse_us(str(event["ts"])), parse_us(str(event.get("dur", 0)))
    except (KeyError, ValueError):
        raise InputError("has no readable time", file=file, field=f"event {name}", value=event.get("ts")) from None
    arguments = event.get("args")
    task = str(arguments.get("Task Type", "")) if isinstance(arguments, dict) else ""
    waits = "WAIT" in name.upper() or "WAIT" in task.upper()
    builder.add(
        name,
        "",
        start,
        duration,
        stream=_number(event.get("tid")),
        group=group,
        where=f"event {name}",
        role=TRANSFER if waits else None,
    )


def _number(value: object) -> int:
    if isinstance(value, str):
        value = value.strip()
        return int(value) if value.isdigit() and len(value) <= 9 else -1
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else -1
