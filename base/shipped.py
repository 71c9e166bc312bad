"""Files that come with the tool: the `config/` folder of a checkout, or of the installed package."""

from __future__ import annotations

from pathlib import Path

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
