"""Files that come with the tool: the `config/` folder of a checkout or package, and tables beside the code."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import yaml

MOST_DIGITS = 100
"""Longest number in a YAML file, characters: arithmetic with longer ones takes time that grows with their square."""

MOST_COUNT = 2**63
"""Bound of whole numbers in a YAML file: larger ones overflow where they are printed or divided."""


def refuse_bad_scalars(loader: Any) -> Any:
    """Let a loader refuse what YAML cannot read as its type, and numbers beyond all bounds, by place.

    PyYAML's own constructors raise KeyError, AttributeError or ValueError for such text, and compute numbers of any
    length, those in base 60 (``1:30:00``) with a multiplication for each part.
    """
    for kind in ("int", "float", "bool", "timestamp"):
        tag = f"tag:yaml.org,2002:{kind}"
        loader.add_constructor(tag, partial(_scalar, loader.yaml_constructors[tag], kind))
    return loader


def _scalar(construct: Callable[[Any, Any], Any], kind: str, loader: Any, node: Any) -> Any:
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    problem = f"{text[:40]!r} is no {kind}"
    if len(text) > MOST_DIGITS:
        raise yaml.constructor.ConstructorError(None, None, f"{problem}: it is too long", node.start_mark)
    try:
        value = construct(loader, node)
    except (ValueError, ArithmeticError, LookupError, AttributeError, TypeError):
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None
    if isinstance(value, int) and abs(value) >= MOST_COUNT:
        raise yaml.constructor.ConstructorError(None, None, f"{problem}: it is too large", node.start_mark)
    return value


class _SafeLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


SAFE_LOADER: Any = refuse_bad_scalars(_SafeLoader)
"""The safe loader of YAML; in C, ten times as fast, where libyaml is there."""

CONFIG = Path(__file__).resolve().parent.parent / "config"
"""Example configurations and tables, and the default configuration."""


def own_or_shipped(default: str | Path) -> Path:
    """A default file below ``./config/``: the working folder's own where there is one, else the one that is shipped.

    Parameters
    ----------
    default : path
        The default as a command's help prints it, ``./config/NAME``.
    """
    own = Path(default)
    shipped = CONFIG / own.name
    return own if own.is_file() or not shipped.is_file() else shipped


def shipped_table(file: str | Path) -> Any:
    """The content of a YAML table that lies beside a module of the package."""
    return yaml.load(Path(file).read_text(encoding="utf-8"), Loader=SAFE_LOADER)
