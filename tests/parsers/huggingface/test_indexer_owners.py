"""Which layers of an indexed model choose their tokens themselves, by each of the ways in which a file says it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.huggingface.latent import _owners
from taylor.parsers.huggingface.values import Values


def owners(layers: int, **data: object) -> list[bool]:
    return _owners(values_of(data), layers)


def values_of(data: dict[str, object]) -> Values:
    return Values(data, Path("config.json"), "glm_moe_dsa", {})


def chooses(at: int, every: int, first: int) -> bool:
    """Layer `first - 1` chooses, every one ahead of it too, and behind it each that is whole steps away."""
    return at < first or any(first - 1 + step * every == at for step in range(at + 2))


def test_every_nth_layer_from_the_offset_on_chooses() -> None:
    for layers, every, first in itertools.product((1, 2, 9), (None, 0, 1, 2, 3, 4, 7), (None, 0, 1, 2, 3, 5, 9, 12)):
        data = {"index_topk_freq": every, "index_skip_topk_offset": first}
        given = {name: value for name, value in data.items() if value is not None}
        expected = [chooses(at, every or 1, 2 if first is None else first) for at in range(layers)]
        assert owners(layers, **given) == expected, given


def test_letters_or_lists_name_the_layers_and_go_before_the_steps() -> None:
    for kinds in itertools.product("FS", repeat=3):
        wanted = [kind == "F" for kind in kinds]
        names = [{"F": "full", "S": "shared"}[kind] for kind in kinds]
        steps = {"index_topk_freq": 2, "index_skip_topk_offset": 1}
        assert owners(3, index_topk_pattern="".join(kinds), **steps) == wanted
        assert owners(3, index_topk_pattern=names, **steps) == wanted
        assert owners(3, index_topk_pattern="SSS", indexer_types=names) == wanted
        # What stands behind the layers is of MTP modules.
        assert owners(2, index_topk_pattern="".join(kinds)) == wanted[:2]
        assert owners(2, indexer_types=names) == wanted[:2]


@pytest.mark.parametrize("letters", ["FS", "FSX", "fss", ""])
def test_letters_that_are_too_few_or_others_are_refused(letters: str) -> None:
    with pytest.raises(InputError, match="index_topk_pattern.*a letter F or S for each of the 3 layers"):
        owners(3, index_topk_pattern=letters)


@pytest.mark.parametrize("name", ["index_topk_freq", "index_skip_topk_offset"])
def test_steps_below_nothing_are_refused(name: str) -> None:
    assert len(owners(4, **{name: 0})) == 4
    with pytest.raises(InputError, match=f"{name}: must be from 0"):
        owners(4, **{name: -1})
