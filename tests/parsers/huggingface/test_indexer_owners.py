"""Which layers of an indexed model choose their tokens themselves, by each of the ways in which a file says it."""

from __future__ import annotations

import itertools

import pytest

from taylor.base.errors import InputError
from taylor.parsers.huggingface.latent import _owners
from taylor.parsers.huggingface.values import Values


def owners(layers: int, **data: object) -> list[bool]:
    return _owners(values_of(data), layers)


def values_of(data: dict[str, object]) -> Values:
    return Values(data, "config.json")


def walked(layers: int, every: int | None, first: int | None) -> list[bool]:
    """The layers up to the last one before the offset all choose; from that one on each `every`-th does."""
    every = every or 1
    last_of_all = (2 if first is None else first) - 1
    chosen, wait = [], 0
    for at in range(layers):
        if at <= last_of_all:
            chosen.append(True)
            wait = every
        elif last_of_all < 0 and at == 0:
            # An offset of 0 counts from a layer ahead of the first one.
            wait = every - 1
            chosen.append(wait == 0)
            wait = wait or every
        else:
            chosen.append(wait == 0)
            wait = wait or every
        wait -= 1
    return chosen


def test_every_nth_layer_from_the_offset_on_chooses() -> None:
    for layers, every, first in itertools.product((1, 2, 9), (None, 0, 1, 2, 3, 4, 7), (None, 0, 1, 2, 3, 5, 9, 12)):
        data = {"index_topk_freq": every, "index_skip_topk_offset": first}
        given = {name: value for name, value in data.items() if value is not None}
        assert owners(layers, **given) == walked(layers, every, first), (layers, every, first)
