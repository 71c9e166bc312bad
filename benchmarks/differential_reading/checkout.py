"""Checkouts of public programs: where a file lies in one, and the defaults of its classes without running it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.differential_reading.reading import NothingToRead, Value

VERL, NEMO_RL, LLAMAFACTORY, AXOLOTL = "verl", "NeMo RL", "LLaMA-Factory", "axolotl"
MARKS = {
    VERL: "verl/trainer/config",
    NEMO_RL: "nemo_rl/utils/config.py",
    LLAMAFACTORY: "src/llamafactory/hparams",
    AXOLOTL: "src/axolotl/utils/schemas",
}
"""A path that every checkout of a program has, and no other one."""
LINEAR = "all linear"
_MATRICES = {
    # What the last part of a module's name holds: Hugging Face's modules, then Megatron's.
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "output",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "w1": "gate",
    "w2": "down",
    "w3": "up",
    "qkv_proj": "qkv",
    "Wqkv": "qkv",
    "query_key_value": "qkv",
    "gate_up_proj": "gate and up",
    "linear_qkv": "qkv",
    "linear_proj": "output",
    "linear_fc1": "gate and up",
    "linear_fc2": "down",
}


def root_of(path: Path, program: str) -> Path | None:
    """The checkout of a program that a file lies in; None where it lies in none."""
    return next((above for above in path.absolute().parents if (above / MARKS[program]).exists()), None)


def targets(names: Any, default: str | None = None) -> str | None:
    """Matrices beside which adapters lie, in alphabetic order; None where a name is not known here."""
    if names is None or (isinstance(names, (str, list)) and not names):
        return default
    words = names.replace(",", " ").split() if isinstance(names, str) else [str(name) for name in names]
    if any(word in ("all", "all-linear") for word in words):
        return LINEAR
    known = [_MATRICES.get(word.rsplit(".", 1)[-1]) for word in words]
    return None if None in known else ", ".join(sorted({name for name in known if name}))


@cache
def class_defaults(folder: Path, files: tuple[str, ...]) -> dict[str, Any]:
    """Defaults of the fields of every class in some files, by `ast`; what is no literal is left out.

    Raises
    ------
    NothingToRead
        When the checkout lacks one of the files.
    """
    found: dict[str, Any] = {}
    for name in files:
        try:
            tree = ast.parse((folder / name).read_text(encoding="utf-8"))
        except (OSError, SyntaxError, ValueError):
            raise NothingToRead(f"the checkout has no {name} that is read") from None
        for each in ast.walk(tree):
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and each.value is not None:
                value = _default(each.value)
                if value is not None:
                    found[each.target.id] = ast.literal_eval(value)
    return found


def _default(value: ast.expr) -> ast.expr | None:
    """The literal of ``= 3``, ``= field(default=3)`` and ``= Field(3)``."""
    if isinstance(value, ast.Call):
        named: Sequence[ast.expr] = [word.value for word in value.keywords if word.arg == "default"]
        value = (*named, *value.args[:1], value)[0]
    try:
        ast.literal_eval(value)
    except ValueError:
        return None
    return value


def product_of(*counts: Value | None) -> int | None:
    """Product of whole numbers; None where one is not known."""
    total = 1
    for count in counts:
        if not isinstance(count, int):
            return None
        total *= count
    return total


def quotient(count: int | None, *parts: int | None) -> int | None:
    """A whole number by others; None where one is not known, or leaves a remainder."""
    each = product_of(*parts)
    return count // each if count and each and count % each == 0 else None
