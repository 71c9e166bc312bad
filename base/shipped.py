"""Files that come with the tool: the `config/` folder of a checkout or package, and tables beside the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
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
