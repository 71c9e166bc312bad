"""A device as the text of a registration, which reads back to the same device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields
from typing import Any

import yaml

from taylor.register.device import DeviceSpec, LinkTier, SoftwareStack

_WIDTH = 110


def device_text(device: DeviceSpec, comments: Sequence[str] = ()) -> str:
    """The YAML of a registration.

    Parameters
    ----------
    comments : sequence of str
        Lines above it, without their ``#``.
    """
    data: dict[str, Any] = {}
    for each in fields(DeviceSpec):
        value = getattr(device, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if value == default:
            continue
        data[each.name] = _plain(value)
    if "efficiency" in data:
        # Fitted figures have no more digits than this.
        data["efficiency"] = {name: float(f"{share:.5g}") for name, share in data["efficiency"].items()}
    lines = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    return lines + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=_WIDTH, default_flow_style=None)


def _plain(value: Any) -> Any:
    if isinstance(value, LinkTier):
        return {name: part for name, part in asdict(value).items() if part is not None and part is not False}
    if isinstance(value, SoftwareStack):
        return {name: part if isinstance(part, str) else dict(part) for name, part in vars(value).items() if part}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, str | int | float):
        return value
    # A zero is the default of every entry that may be none, and no registration states it.
    return {str(name): one for name, one in dict(value).items() if one != 0}
