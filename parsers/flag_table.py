"""The tables of flags: what every flag or key that a launcher's file can hold means for a plan.

Each launcher's folder holds its table as YAML (``parsers/megatron/flags.yaml``): groups of rows, one row
a flag. A group may state any field of its rows once; a row states what differs::

    launcher: Megatron-LM and MindSpeed-LLM
    groups:
      - group: Logging
        status: neutral
        why: it only writes logs
        source: "Megatron-LM core_v0.19.0 megatron/training/arguments.py:1500"
        rows:
          log-interval: {default: 100}
          log-throughput: {takes_value: false}

The fields of a row are those of `FlagRow`. A name that ends in ``.*`` stands for every key below it.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

import yaml

from taylor.base.errors import shortened
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.text.spelling import likely_meant

READ, NEUTRAL, COSTS = "read", "neutral", "costs"
STATUSES = (READ, NEUTRAL, COSTS)
MORE, LESS, EITHER = "more", "less", "either"
DIRECTIONS = (MORE, LESS, EITHER)
_ROW_FIELDS = {
    "status",
    "memory",
    "time",
    "placement",
    "most",
    "spares_states",
    "takes_value",
    "default",
    "silent",
    "needs",
    "versions",
    "why",
    "source",
}


HIDDEN, INNER, SCORES, ROUTER = "hidden", "inner", "scores", "router"
ELEMENTS = (HIDDEN, INNER, SCORES, ROUTER)
"""Quantities that a bound may count in a layer: elements of the stream between layers, of the MLP's or experts' inner
width, of the attention's scores, of the router's weight; a micro-batch's on one device."""


@dataclass(frozen=True)
class MemoryBound:
    """Most memory that a flag can add to a device.

    Parameters
    ----------
    parameter_bytes : float
        Bytes a parameter of the device's layers, embedding and head.
    hidden_bytes : float
        Bytes an element of the stream between layers, for every layer and micro-batch alive, recomputed or not.
    mask_bytes : float
        Bytes an element of a mask over a sample's tokens twice, for every micro-batch alive.
    kept : mapping of str to float
        Bytes an element of `ELEMENTS`, for every layer and micro-batch alive that is not recomputed whole, and for
        one layer while it is rebuilt.
    passing : mapping of str to float
        The same, for one layer while it runs.
    layers : float
        Workspaces for the backward of one layer (`cost_model.memory.backward_workspace.workspace_bytes`).
    """

    parameter_bytes: float = 0.0
    hidden_bytes: float = 0.0
    mask_bytes: float = 0.0
    kept: Mapping[str, float] = field(default_factory=dict)
    passing: Mapping[str, float] = field(default_factory=dict)
    layers: float = 0.0


@dataclass(frozen=True)
class FlagRow:
    """Meaning of one flag or key for a plan.

    Parameters
    ----------
    name : str
        A command-line flag without its dashes, words joined by ``-``; a key with its dotted path.
    status : str
        ``read``: the launcher's reader uses it. ``neutral``: it changes neither memory, time nor
        placement. ``costs``: it changes one of them and is not modelled.
    memory, time, placement : str or None
        Direction in which it changes the device memory, the step time or where layers and ranks are
        placed: ``more``, ``less`` or ``either`` (always ``either`` for placement); None: not at all. At
        least one is given for ``costs``; for ``read`` they hold for the values outside `silent`.
    most : MemoryBound or None
        Upper bound of the added memory. None: unknown.
    spares_states : bool
        Weights, gradients and optimizer states take what they are counted with: the flag changes activations, kernels,
        communication or the allocator alone.
    takes_value : bool
        False for a switch, which is in force wherever it is given.
    default : str or None
        The launcher's value where the flag is absent.
    silent : tuple of str
        Values that need no word. For ``costs``: values with the same effect as the default. For ``read``:
        the values that are modelled; when empty, all are.
    needs : tuple of str
        The flag is in force only where one of these is given too; when empty, always. A name that begins
        with ``@`` is a fact of the job that the reader states: ``@experts``.
    versions : str
        Releases that have the flag.
    why : str
        For ``read`` what it is read for, else why it costs nothing or what it changes: a clause.
    source : str
        Repository, release, file and line that the row stands on.
    group : str
        Heading of its group in the table.
    """

    name: str
    status: str
    memory: str | None
    time: str | None
    placement: str | None
    most: MemoryBound | None
    takes_value: bool
    default: str | None
    silent: tuple[str, ...]
    needs: tuple[str, ...]
    versions: str
    why: str
    source: str
    group: str
    spares_states: bool = False

    def is_silent(self, value: str | None) -> bool:
        """Return whether the flag given with this value changes nothing that the figures leave out.

        Parameters
        ----------
        value : str or None
            As the file writes it; None for a switch without a value.
        """
        if self.status == NEUTRAL:
            return True
        if self.status == READ:
            return not self.silent or _plain(value) in map(_plain, self.silent)
        if value is None:
            return False
        if not self.takes_value:
            return _plain(value) == "false"
        same = (*self.silent, *(() if self.default is None else (self.default,)))
        return _plain(value) in map(_plain, same)


def effect_in_words(memory: str | None, time: str | None, placement: str | None) -> str:
    """Directions as in `FlagRow`, for a sentence: ``more memory and less time``."""
    words = {MORE: "more", LESS: "less", EITHER: "more or less"}
    if memory is not None and memory == time:
        effects = [f"{words[memory]} memory and time"]
    else:
        effects = [f"{words[each]} {what}" for each, what in ((memory, "memory"), (time, "time")) if each is not None]
    return " and ".join([*effects, *(["another placement"] if placement else [])])


@dataclass(frozen=True)
class UnmodelledFlag:
    """A flag found in a file whose effect is in none of the figures.

    Parameters
    ----------
    name : str
        As the file writes it: ``--tp-comm-overlap``, ``parallel.enable_alltoall``.
    value : str or None
        As the file writes it; None for a switch.
    memory, time, placement : str or None
        Directions as in `FlagRow`; all None where the flag is unknown.
    why : str
        Its effect, as a clause; empty where the flag is unknown.
    known : bool
        The launcher's table has it.
    most : MemoryBound or None
        Most memory that it adds, as in `FlagRow`.
    meant : str or None
        The known flag or key that an unknown one is one letter from, as `name` is written.
    spares_states : bool
        As in `FlagRow`; False where the flag is unknown.
    """

    name: str
    value: str | None
    memory: str | None
    time: str | None
    placement: str | None
    why: str
    known: bool = True
    most: MemoryBound | None = None
    meant: str | None = None
    spares_states: bool = False

    @property
    def may_lower_memory(self) -> bool:
        """Return whether a device may need less than the figures say."""
        return not self.known or self.memory in (LESS, EITHER)

    @property
    def may_raise_memory(self) -> bool:
        """Return whether a device may need more than the figures say."""
        return not self.known or self.memory in (MORE, EITHER)

    @property
    def sentence(self) -> str:
        """The message about it to the user."""
        name = shortened(self.name)
        written = name if self.value is None else f"{name} {self.value}"
        if self.meant is not None:
            return f"{written} is not known and is ignored. Is {self.meant} meant? It may change the job"
        if not self.known:
            return f"{written} is not known: what it changes is not in the figures"
        effect = effect_in_words(self.memory, self.time, self.placement)
        return f"{written} is not modelled; it means {effect}: {self.why}"


class FlagTable:
    """All rows of one launcher.

    Parameters
    ----------
    launcher : str
        Whose flags these are.
    rows : mapping of str to FlagRow
        By name, in the table's order.
    """

    def __init__(self, launcher: str, rows: Mapping[str, FlagRow]) -> None:
        self.launcher, self.rows = launcher, rows

    def find(self, name: str) -> FlagRow | None:
        """The row of a flag or key: its own, else that of the nearest ``.*`` above it; None when unknown."""
        row = self.rows.get(name)
        above = name
        while row is None and "." in above:
            above = above.rpartition(".")[0]
            row = self.rows.get(f"{above}.*")
        return row

    def unknown(self, name: str, value: str | None, prefix: str = "", sections: Collection[str] = ()) -> UnmodelledFlag:
        """A flag, key or section that the table does not have, with the one that it most likely stands for.

        Parameters
        ----------
        prefix : str
            Written before the names.
        sections : collection of str
            Dotted paths of the table's sections, where the name may be one.
        """
        above, _, last = name.rpartition(".")
        ends = [other.rpartition(".") for other in (*self.rows, *sections)]
        meant = likely_meant(last, (end for section, _, end in ends if section == above))
        if meant is not None:
            meant = prefix + (f"{above}.{meant}" if above else meant)
        return UnmodelledFlag(prefix + name, value, None, None, None, "", known=False, meant=meant)

    def unmodelled(
        self, given: Iterable[tuple[str, str | None]], prefix: str = "", in_force: Collection[str] | None = None
    ) -> tuple[UnmodelledFlag, ...]:
        """The flags of a file that the figures leave out, in the file's order.

        Parameters
        ----------
        given : iterable of (name, value)
            Every flag in force, named as in the table; the value is None for a switch.
        prefix : str
            Written before each name: ``--`` for flags of a command line.
        in_force : collection of str, optional
            Names that a row's `needs` may use: flags that are switched on, and facts of the job. All flags given
            where it is left out.
        """
        found: list[UnmodelledFlag] = []
        pairs = list(given)
        names = {name for name, _ in pairs} if in_force is None else set(in_force)
        for name, value in pairs:
            row = self.find(name)
            if row is None:
                found.append(self.unknown(name, value, prefix))
            elif not row.is_silent(value) and (not row.needs or names.intersection(row.needs)):
                directions = row.memory, row.time, row.placement
                more: Any = {"most": row.most, "spares_states": row.spares_states}
                found.append(UnmodelledFlag(prefix + name, value, *directions, row.why, **more))
        return tuple(found)


@cache
def load_flag_table(package: str, file: str) -> FlagTable:
    """A launcher's table, as it is shipped with the package.

    Parameters
    ----------
    package : str
        The launcher's package: ``taylor.parsers.megatron``.
    file : str
        File name of the table inside it.

    Raises
    ------
    ValueError
        When a row is not as this module describes it; says which and why.
    """
    text = importlib.resources.files(package).joinpath(file).read_text(encoding="utf-8")
    return table_from_mapping(yaml.load(text, Loader=SAFE_LOADER))


def table_from_mapping(data: Mapping[str, Any]) -> FlagTable:
    """A table from its YAML mapping; see the module's text for its form.

    Raises
    ------
    ValueError
        When a row is wrong; says which and why.
    """
    rows: dict[str, FlagRow] = {}
    for group in data["groups"]:
        common = {name: value for name, value in group.items() if name not in ("group", "rows")}
        for name, own in group["rows"].items():
            if name in rows:
                raise ValueError(f"{name}: has two rows")
            rows[name] = _row(name, group["group"], {**common, **(own or {})})
    return FlagTable(data["launcher"], rows)


def _row(name: str, group: str, fields: Mapping[str, Any]) -> FlagRow:
    odd = set(fields) - _ROW_FIELDS
    if odd:
        raise ValueError(f"{name}: {', '.join(sorted(odd))} is no field of a row")
    default = fields.get("default")
    row = FlagRow(
        name=name,
        status=fields.get("status", ""),
        memory=fields.get("memory"),
        time=fields.get("time"),
        placement=fields.get("placement"),
        most=_bound(name, fields),
        takes_value=fields.get("takes_value", True),
        default=None if default is None else str(default),
        silent=tuple(map(str, fields.get("silent", ()))),
        needs=tuple(fields.get("needs", ())),
        versions=str(fields.get("versions", "")),
        why=fields.get("why", ""),
        source=fields.get("source", ""),
        group=group,
        spares_states=fields.get("spares_states", False),
    )
    directions = [each for each in (row.memory, row.time, row.placement) if each is not None]
    if row.status not in STATUSES:
        raise ValueError(f"{name}: status is {row.status!r}; it may be {', '.join(STATUSES)}")
    if any(each not in DIRECTIONS for each in directions):
        raise ValueError(f"{name}: a direction may be {', '.join(DIRECTIONS)}")
    if row.spares_states and row.memory not in (LESS, EITHER):
        raise ValueError(f"{name}: only a flag that may mean less memory spares states")
    if row.status == COSTS and not directions:
        raise ValueError(f"{name}: costs, and states no direction of memory, time or placement")
    if row.status == NEUTRAL and directions:
        raise ValueError(f"{name}: is neutral, and states a direction")
    if row.status == READ and bool(directions) != bool(row.silent):
        raise ValueError(f"{name}: is read; values outside `silent` and their directions come together")
    if not row.why or not row.source:
        raise ValueError(f"{name}: why and source must be given")
    return row


def _bound(name: str, given: Mapping[str, Any]) -> MemoryBound | None:
    most = given.get("most")
    if most is None:
        return None
    known = {each.name for each in fields(MemoryBound)}
    if not isinstance(most, dict) or not most or set(most) - known:
        raise ValueError(f"{name}: most must give {', '.join(sorted(known))}")
    for what, size in most.items():
        elements = size if what in ("kept", "passing") else {HIDDEN: size}
        if not isinstance(elements, dict) or not elements or set(elements) - set(ELEMENTS):
            raise ValueError(f"{name}: most.{what} must give {', '.join(ELEMENTS)}")
        if not all(isinstance(each, (int, float)) and each > 0 for each in elements.values()):
            raise ValueError(f"{name}: most.{what} must be above 0")
    if given.get("memory") != MORE:
        raise ValueError(f"{name}: only a flag that means more memory has a bound on it")
    return MemoryBound(**most)


def _plain(value: str | None) -> str:
    """A value in the one spelling that comparisons use: lower case, numbers without needless digits."""
    text = "" if value is None else value.strip().strip("\"'").lower()
    try:
        return repr(float(text.replace("_", "")))
    except ValueError:
        return text
