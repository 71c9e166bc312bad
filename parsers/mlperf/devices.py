"""Devices of submissions, by words of a configuration's name."""

from __future__ import annotations

from pathlib import Path

DEVICES = {
    "mi300x": "mi300x-192g",
    "mi325x": "mi325x-256g",
    "mi350x": "mi350x-288g",
    "mi355x": "mi355x-288g",
    "gb300": "gb300-nvl72",
    "gb200": "gb200-nvl72",
    "b300": "b300-270g",
    "b200": "b200-180g",
    "h200": "h200-141g",
    "h100": "h100-80g",
}
"""Registered devices; the longer words first."""
_BLACKWELL = ("gb300-nvl72", "gb200-nvl72", "b300-270g", "b200-180g")


def named_device(file: Path) -> tuple[str, str] | None:
    """The device that a configuration's name states, else its folder's, and the name; None where neither does."""
    for name in (file.name, *(parent.name for parent in file.absolute().parents[:2])):
        found = next((device for word, device in DEVICES.items() if word in name.lower()), None)
        if found is not None:
            return found, name
    return None


def is_blackwell(file: Path) -> bool:
    """Return whether a configuration's name states a device of the Blackwell family."""
    found = named_device(file)
    return found is not None and found[0] in _BLACKWELL
