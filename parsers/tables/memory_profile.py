"""Memory profiles as JSON files (the user contract's own format, MiB)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Mapping

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.pipeline.plan import FULL, NONE, RECOMPUTE_MODES

EVERY_FLAG = "every_flag"
_TOP = ("device_limit", "static", "layer", "activation")
_STATIC = ("first", "middle", "last")
_MAX_MIB = 2.0**40


def read_memory_profile(path: str | Path) -> MemoryProfile:
    """Read a memory profile.

    Parameters
    ----------
    path : path
        JSON with ``device_limit``, ``static`` (first, middle, last), ``layer`` by kind and
        ``activation`` by kind and recompute mode (none, full, and select where it is known), all MiB; ``every_flag``
        false where flags of the job may be left out of them (`MemoryProfile.every_flag`).

    Raises
    ------
    InputError
        When the file is missing or not such JSON, a key is missing or unknown, or a number is not
        finite and >= 0.
    """
    file = Path(path)
    try:
        data = json.loads(read_text(file, limit_bytes=2**20), object_pairs_hook=_unique)
    except _Doubled as error:
        raise InputError(f"contains the key {error} twice", file=file) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not valid JSON: {error}", file=file) from None
    top = _mapping(data, file, "", _TOP, (EVERY_FLAG,))
    static = _mapping(top["static"], file, "static", _STATIC)
    layer = _mapping(top["layer"], file, "layer")
    activation = _mapping(top["activation"], file, "activation")
    if set(layer) != set(activation):
        odd = sorted(set(layer) ^ set(activation))[0]
        where = "activation" if odd in layer else "layer"
        raise InputError("is missing", file=file, field=f"{where}.{odd}", cure="give every layer kind in both")
    if not layer:
        raise InputError("must name at least one layer kind", file=file, field="layer")
    modes: dict[str, dict[str, float]] = {}
    for kind in layer:
        entry = _mapping(activation[kind], file, f"activation.{kind}")
        unknown = [mode for mode in entry if mode not in RECOMPUTE_MODES]
        if unknown:
            raise InputError(
                "is an unknown recompute mode",
                file=file,
                field=f"activation.{kind}.{unknown[0]}",
                cure="use none, select, full",
            )
        for mode in (NONE, FULL):
            if mode not in entry:
                raise InputError("is missing", file=file, field=f"activation.{kind}.{mode}")
        modes[kind] = {mode: _number(value, file, f"activation.{kind}.{mode}") for mode, value in entry.items()}
    limit = _number(top["device_limit"], file, "device_limit")
    if limit == 0:
        raise InputError("must be above 0", file=file, field="device_limit", value=top["device_limit"])
    return MemoryProfile(
        device_limit_mib=limit,
        static_first_mib=_number(static["first"], file, "static.first"),
        static_middle_mib=_number(static["middle"], file, "static.middle"),
        static_last_mib=_number(static["last"], file, "static.last"),
        layer_mib={kind: _number(value, file, f"layer.{kind}") for kind, value in layer.items()},
        activation_mib=modes,
        source=MemorySource.FILE,
        every_flag=_every_flag(top, file),
    )


def _every_flag(top: Mapping[str, Any], file: Path) -> bool:
    """Return whether the figures hold as they stand; what a dry-run kept may say that they do not."""
    stated = top.get(EVERY_FLAG, True)
    if not isinstance(stated, bool):
        raise InputError("must be true or false", file=file, field=EVERY_FLAG, value=stated)
    return stated


def memory_profile_text(profile: MemoryProfile) -> str:
    """A memory profile as the text of a file; reading it gives the same figures back."""
    data = {
        "device_limit": _plain(profile.device_limit_mib),
        "static": {
            "first": _plain(profile.static_first_mib),
            "middle": _plain(profile.static_middle_mib),
            "last": _plain(profile.static_last_mib),
        },
        "layer": {kind: _plain(value) for kind, value in profile.layer_mib.items()},
        "activation": {
            kind: {mode: _plain(value) for mode, value in modes.items()}
            for kind, modes in profile.activation_mib.items()
        },
        **({} if profile.every_flag else {EVERY_FLAG: False}),
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


class _Doubled(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for key, value in pairs:
        if key in data:
            raise _Doubled(repr(key))
        data[key] = value
    return data


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(value)


def _mapping(
    value: Any, file: Path, field: str, keys: tuple[str, ...] = (), optional: tuple[str, ...] = ()
) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InputError("must be a JSON object", file=file, field=field or None, value=value)
    for key in keys:
        if key not in value:
            raise InputError("is missing", file=file, field=f"{field}.{key}" if field else key)
    for key in value:
        if keys and key not in (*keys, *optional):
            raise InputError(
                "is an unknown key", file=file, field=f"{field}.{key}" if field else key, cure=f"use {', '.join(keys)}"
            )
    return value


def _number(value: Any, file: Path, field: str) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 <= value <= _MAX_MIB or not math.isfinite(value):
        raise InputError("must be a finite number >= 0 (MiB)", file=file, field=field, value=value)
    return float(value)
