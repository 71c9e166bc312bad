"""Shards of a ranking on machines without a common scheduler, and the one ranking that they make together.

A shard ranks every n-th candidate and keeps its solves, as any run does. The ranking of all candidates finds the solves
of all shards in one joined folder, so that its table is that of a single run.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.files import read_text
from taylor.base.kept import read_kept, write_kept
from taylor.workflows.ranking.candidates import config_files
from taylor.workflows.ranking.shard import Shard
from taylor.workflows.running.kept_solves import FOLDER, code_hash
from taylor.workflows.statement.dryrun_backend import DRYRUNS

LEFT_OUT = "the default"


def record_shard(shard: Shard, folder: Path, flags: Mapping[str, Any], output: Path) -> Path:
    """Save the record of a finished shard: the candidates of its folder, the flags and the code.

    Raises
    ------
    WriteError
        When it cannot be written.
    """
    data = {"shard": shard.number, "of": shard.of, "code": code_hash(), "candidates": _digests(folder), "flags": flags}
    return write_kept(output / shard.file, data)


def join_shards(folders: Sequence[Path], candidates: Path, flags: Mapping[str, Any], output: Path) -> int:
    """Bring the solves and dry-runs of all shards into one folder of results; returns the number of shards.

    Raises
    ------
    InputError
        When a shard is missing, or has ranked other candidates, under other flags or with other code.
    WriteError
        When a file cannot be copied.
    """
    found: dict[int, Path] = {}
    of = 0
    now = {"code": code_hash(), "candidates": _digests(candidates), "flags": dict(flags)}
    for folder in folders:
        if not folder.is_dir():
            raise InputError("no such folder", file=folder, cure="check the path")
        records = sorted(folder.glob("shard_*_of_*.json"))
        if not records:
            raise InputError(
                "has no shard", file=folder, cure="name folders of results that taylor rank --shard i/n has finished"
            )
        for record in records:
            data = read_kept(record)
            if data is None:
                raise InputError("is not as it was written", file=record, cure="rank the shard again")
            _check(record, data, now)
            of = of or data["of"]
            if data["of"] != of:
                raise InputError(
                    f"is of another number of shards than {next(iter(found.values()))}", file=record, field="of",
                    value=data["of"], cure="join shards of one ranking",
                )  # fmt: skip
            if data["shard"] in found:
                log.warning("shard %d of %d is there twice: %s and %s", data["shard"], of, found[data["shard"]], record)
            found[data["shard"]] = record
    missing = [number for number in range(1, of + 1) if number not in found]
    if missing:
        raise InputError(
            f"have no shard {', '.join(map(str, missing))} of {of}", field="FOLDER", value=" ".join(map(str, folders)),
            cure=f"name its folder too, or run taylor rank with --shard {missing[0]}/{of}",
        )  # fmt: skip
    for folder in folders:
        _copy(folder / FOLDER, output / FOLDER)
        _copy(folder / DRYRUNS, output / DRYRUNS)
    return of


def _check(record: Path, data: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check a shard's record against the ranking's candidates, flags and code."""
    try:
        its, ours = dict(data["candidates"]), now["candidates"]
        if not 1 <= int(data["shard"]) <= int(data["of"]):
            raise ValueError
        if data["code"] != now["code"]:
            raise InputError(
                "was ranked by other code, or with other versions of its libraries", file=record, field="code",
                value=data["code"][:12], cure="install the same Taylor, highspy, numba and numpy on every machine",
            )  # fmt: skip
        other = sorted(name for name in {*its, *ours} if its.get(name) != ours.get(name))
        if other:
            raise InputError(
                f"has ranked other candidates: {other[0]} is not the same"
                + (f", nor are {len(other) - 1} more" if len(other) > 1 else ""),
                file=record, field="candidates", cure="give --yaml_path the folder that was ranked",
            )  # fmt: skip
        for name in sorted({*data["flags"], *now["flags"]}):
            if data["flags"].get(name) != now["flags"].get(name):
                raise InputError(
                    f"was ranked with {data['flags'].get(name, LEFT_OUT)}", file=record, field=f"--{name}",
                    value=now["flags"].get(name, LEFT_OUT), cure="give the flags of the shards",
                )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError("is no record of a shard", file=record, cure="rank the shard again") from None


def _digests(folder: Path) -> dict[str, str]:
    """Content hash of every candidate file, by name."""
    return {path.name: hashlib.sha256(read_text(path).encode()).hexdigest() for path in config_files(folder)}


def _copy(source: Path, target: Path) -> None:
    """Copy files that are not there yet; links are skipped."""
    if source.is_symlink() or not source.is_dir() or source.resolve() == target.resolve():
        return
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_symlink() or not path.is_file() or place.exists():
            continue
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, place)
        except OSError as error:
            raise WriteError("cannot be copied", file=place, value=error.strerror, cure="look at the disk") from error
