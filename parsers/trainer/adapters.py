"""Low-rank adapters of Hugging Face's peft, as trainers' settings state them."""

from __future__ import annotations

import re

from taylor.parsers.text.fields import Fields
from taylor.parsers.text.spelling import likely_meant
from taylor.parsers.trainer.settings import count, refuse, switch
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters, named_targets, saved_ends

_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes a weight of four bits: one scale of eight bits for 64 weights, and one fp32 scale for 256 of these
(Dettmers et al. 2023, arXiv:2305.14314 §3)."""
BASE_BYTES = {4: _NF4_BYTES, 8: 1.0}
"""Bytes a frozen weight by its bits; the scales of eight bits, one a row, are not counted (Dettmers et al. 2022,
arXiv:2208.07339)."""
_MOST_RANK = 2**16
_NARROW = re.compile(r"(?i)[-_](?:(awq|gptq(?![-_]int8)|(?:gptq[-_])?int4|(?:bnb[-_])?4bit)|(?:gptq[-_])?int8|8bit)\b")


def bits_named(model: str) -> int | None:
    """Bits of a frozen weight that a checkpoint's name states: ``-AWQ`` and ``-GPTQ-Int4`` are 4; None where none."""
    found = _NARROW.search(model)
    return None if found is None else 4 if found[1] else 8


def low_rank(
    fields: Fields,
    rank: int,
    targets: str,
    dropout: str,
    *,
    bits: int | None,
    bits_by: str = "quantization_bit",
    usual: tuple[str, ...] = (),
    everywhere: str = "",
    saved: str | None = None,
    decomposed: str | None = None,
) -> Adapters:
    """Adapters of a file.

    Parameters
    ----------
    rank : int
        Where the file states none.
    targets, dropout : str
        Names of the settings that name modules, and the dropout.
    bits : int or None
        Bits of a frozen weight; None: as it is computed.
    bits_by : str
        Name of the setting that states the bits.
    usual : tuple of str
        What the file means without a name of a module.
    everywhere : str
        Name of the switch that gives every linear module an adapter, for the cure of a missing `targets`.
    saved : str, optional
        Name of the setting that names modules which train whole beside the adapters.
    decomposed : str, optional
        Name of the setting that makes them DoRA's.

    Raises
    ------
    InputError
        When a module or a value is not known.
    """
    names = names_of(fields.raw(targets))
    where = {"file": fields.file, "field": targets}
    chosen = named_targets(names, ALL_HUGGING_FACE, **where) if names else usual
    if not chosen:
        near = ((name, likely_meant(name, [str(key) for key in fields.data])) for name in (targets, everywhere) if name)
        cures = [f"{found} is one letter from it: write {name}" for name, found in near if found is not None]
        raise fields.error(targets, "is missing", cure=cures[0] if cures else "name the modules that have adapters")
    dropped = fields.raw(dropout)
    if dropped is not None and not (isinstance(dropped, (int, float)) or re.fullmatch(r"[\d.]{1,12}", str(dropped))):
        raise fields.error(dropout, "must be a number from 0 to 1", str(dropped)[:40])
    if bits is not None and bits not in BASE_BYTES:
        raise fields.error(bits_by, "has another number of bits than 4 or 8", bits, f"write {bits_by} 4 or 8")
    base = None if bits is None else BASE_BYTES[bits]
    whole = () if saved is None else saved_ends(names_of(fields.raw(saved)), file=fields.file, field=saved)
    dora = decomposed is not None and switch(fields, decomposed)
    return Adapters(rank, chosen, dropped is not None and float(dropped) > 0, base, saved=whole, decomposed=dora)


def names_of(written: object) -> list[str]:
    """Names of modules: a list, or a text with blanks or commas."""
    if isinstance(written, str):
        return [name for name in re.split(r"[\s,]+", written) if name]
    return [str(name) for name in written] if isinstance(written, (list, tuple)) else []


def refuse_whole(fields: Fields, *names: str) -> None:
    """Refuse settings that train more than low-rank adapters beside the frozen weights.

    Raises
    ------
    InputError
        With the setting.
    """
    for name in names:
        value = fields.raw(name)
        if value in (None, False, "", [], 0) or str(value).lower() in ("false", "none"):
            continue
        why = "trains more than low-rank adapters, which is not modelled"
        raise refuse(fields, name, why, f"leave {name} out to plan LoRA")


def rank_of(fields: Fields, name: str, default: int | None = None) -> int:
    """The rank that a setting states.

    Raises
    ------
    InputError
        When it is no whole number, or missing and has no default.
    """
    return count(fields, name, default, _MOST_RANK)
