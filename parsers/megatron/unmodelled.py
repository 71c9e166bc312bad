"""The flags of a launch that no figure takes into account, by the table of flags."""

from __future__ import annotations

from collections.abc import Collection

from taylor.base.errors import shortened
from taylor.parsers.flag_table import FlagRow, FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.deepseek4 import SETTLED, is_deepseek4
from taylor.parsers.text.flags import Flag, Flags

EXPERTS, SCORES, PLAIN_NORMS, ROUTER_CASTS = "@experts", "@scores", "@plain-norms", "@router-casts"
MINDSPEED = "@mindspeed"
"""Facts of a job that the table's `needs` name: it has experts; its attention keeps the scores; its norms run in
several steps; its router keeps what it casts; MindSpeed runs it."""


def flag_table() -> FlagTable:
    """The table of Megatron's and MindSpeed's flags."""
    return load_flag_table("taylor.parsers.megatron", "flags.yaml")


def read_unmodelled(flags: Flags, facts: Collection[str], table: FlagTable) -> tuple[UnmodelledFlag, ...]:
    """The flags that cost memory, time or placement and are in no figure, and those that no release knows.

    Options of the program that starts the ranks are named only where the table knows that they cost.

    Parameters
    ----------
    facts : collection of str
        Facts of the job: `EXPERTS`, `SCORES`, `PLAIN_NORMS`, `ROUTER_CASTS`, `MINDSPEED`.
    table : FlagTable
        Meaning of each of the flags.
    """
    starting = {flag.name for flag in flags.flags[: flags.starting]}
    given: list[tuple[str, str | None]] = []
    switched_on = set(facts)
    settled = SETTLED if is_deepseek4(flags) else ()
    for name, flag in flags.by_name.items():
        row = table.find(name)
        if name in settled:
            continue
        if row is None and name in starting:
            continue
        given.append((name, _value(flag, row)))
        if _switched_on(flag, row):
            switched_on.add(name)
    return table.unmodelled(given, prefix="--", in_force=switched_on)


def _value(flag: Flag, row: FlagRow | None) -> str | None:
    if not flag.values or (row is not None and not row.takes_value):
        return None  # What stands behind a switch does not belong to it.
    return shortened(" ".join(word.text for word in flag.values), 80)


def _switched_on(flag: Flag, row: FlagRow | None) -> bool:
    """Return whether a flag that others need has an effect: ``--tensor-model-parallel-size 1`` has none."""
    value = _value(flag, row)
    if value is None:
        return row is None or not row.takes_value
    return value.lower() not in ("0", "false", "none", "disable") and (row is None or value != row.default)
