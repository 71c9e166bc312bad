"""Registrations as they are written: bounded, safe YAML, and dataclasses built from it with every field checked."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import yaml

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.base.near import did_you_mean
from taylor.base.shipped import SAFE_LOADER

MAX_DEPTH = 20
MAX_REGISTRATION_BYTES = 2**20
_MAY_BE_NEGATIVE = {"memory_extra_mib"}
"""Numbers of either sign."""

_MAY_BE_ZERO = {
    "learned_positions", "mtp_layers", "n_shared", "shared_hidden", "first_dense", "latency_us", "link_latency_us",
    "extra", "extra_parameters", "norms", "softmax_flops", "gate", "conv_kernel", "compression", "parameters",
}  # fmt: skip
_IGNORED = {"source", "kind"}
_HEADS_OF_INDEXER = ".indexer.n_heads"
"""0 where a layer takes the tokens that an earlier one has chosen; other heads are never 0."""
Spec = TypeVar("Spec")


def load_registration(path: Path) -> dict[str, Any]:
    """Content of a registration's file.

    Raises
    ------
    InputError
        When the file cannot be read, is too large or nested too deep, is no YAML, or holds no ``field: value`` lines.
    """
    text = read_text(path, limit_bytes=MAX_REGISTRATION_BYTES, anywhere=True)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=SAFE_LOADER):
            if isinstance(event, yaml.AliasEvent):
                # Nested aliases grow without bound when they are printed.
                cure = "write the values"
                raise InputError("anchors and aliases have no place in a registration", file=path, cure=cure)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise InputError(f"is nested more than {MAX_DEPTH} deep", file=path, cure="see register/models")
        data = yaml.load(text, Loader=SAFE_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise InputError(f"is not valid YAML{where}", file=path, cure="correct the syntax there") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"is not valid YAML: {error}", file=path) from None
    if not isinstance(data, dict):
        raise InputError("must contain `field: value` lines", file=path, value=data, cure="see register/models")
    return data


def dataclass_from(spec: type[Spec], data: Any, path: Path, prefix: str) -> Spec:
    """Build a dataclass from plain data; every field is checked by name and type.

    Parameters
    ----------
    prefix : str
        Dotted path of `data` in the file, with a dot at its end.

    Raises
    ------
    InputError
        When a field is unknown, missing or wrong, or the values do not fit together.
    """
    if not isinstance(data, dict):
        raise InputError("must contain `field: value` lines", file=path, field=prefix.rstrip("."), value=data)
    hints = _field_types(typing.cast(Any, spec))
    known = {each.name: each for each in fields(spec)}  # type: ignore[arg-type]
    values = {}
    for key, value in data.items():
        if key not in known:
            if key in _IGNORED:
                continue
            cure = did_you_mean(str(key), known, alike=0.5)
            raise InputError("is no known field", file=path, field=f"{prefix}{key}", value=value, cure=cure)
        values[key] = value_from(hints[key], key, value, path, prefix)
    for name, each in known.items():
        if name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise InputError("is missing", file=path, field=f"{prefix}{name}", cure=f"add `{name}: …`")
    try:
        return spec(**values)
    except ValueError as problem:
        raise InputError(
            str(problem), file=path, field=prefix.rstrip(".") or None, cure="see register/models"
        ) from None


@cache
def _field_types(spec: type) -> dict[str, Any]:
    return typing.get_type_hints(spec)


def value_from(hint: Any, key: str, value: Any, path: Path, prefix: str) -> Any:
    """One field's value, checked against its type.

    Parameters
    ----------
    hint : type
        The field's declared type.
    prefix : str
        Dotted path of the mapping that holds it, with a dot at its end.

    Raises
    ------
    InputError
        When it is of another type, or a number out of range.
    """
    field = f"{prefix}{key}"
    options = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [each for each in typing.get_args(hint) if each is not type(None)]
        if value is None:
            return None
    wanted = options[0]
    if is_dataclass(wanted):
        return dataclass_from(typing.cast(Any, wanted), value, path, f"{field}.")
    if wanted is bool:
        if not isinstance(value, bool):
            raise InputError("must be true or false", file=path, field=field, value=value)
        return value
    if wanted in (int, float):
        return _number(wanted, key, value, path, field)
    if wanted is str:
        if not isinstance(value, str):
            raise InputError("must be text", file=path, field=field, value=value, cure="put it in quotes")
        return value
    if typing.get_origin(wanted) is tuple:
        if not isinstance(value, list):
            raise InputError("must be a list", file=path, field=field, value=value)
        element = typing.get_args(wanted)[0]
        return tuple(value_from(element, str(at), item, path, f"{field}.") for at, item in enumerate(value))
    if not isinstance(value, dict):
        raise InputError("must contain `name: value` lines", file=path, field=field, value=value)
    element = typing.get_args(wanted)[1]
    return {str(name): value_from(element, str(name), item, path, f"{field}.") for name, item in value.items()}


def _number(wanted: type, key: str, value: Any, path: Path, field: str) -> int | float:
    if key in _MAY_BE_NEGATIVE and type(value) in (int, float) and abs(value) < 1e15:
        return float(value)
    least_zero = key in _MAY_BE_ZERO or field.endswith(_HEADS_OF_INDEXER)
    kind = "an integer" if wanted is int else "a number"
    problem = f"must be {kind} {'>= 0' if least_zero else '> 0'}"
    if isinstance(value, bool) or not isinstance(value, int if wanted is int else (int, float)):
        raise InputError(problem, file=path, field=field, value=value)
    if not (value >= 0 if least_zero else value > 0) or not value < 1e15:
        raise InputError(problem, file=path, field=field, value=value)
    return int(value) if wanted is int else float(value)
