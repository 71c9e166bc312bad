"""The pass and block of every operator of a small run, found from the operators that a further layer repeats.

A small run's only micro-batch goes forward through the embedding, the layers and the head, and back. In a run with one
layer more two stretches stand twice in a row: a layer's forward pass, and its second forward pass (every layer runs
again) with its backward pass. A start is ambiguous where the operators before it equal its last part.

Where dense layers precede those with experts, a run with one dense layer more than another shows theirs: the part that
it runs twice just before the layers' forward passes and just after their backward passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from taylor.base.errors import InputError
from taylor.blackbox.blocks import LawfulOperator, RunOperators
from taylor.blackbox.laws import FACTORS

_TOKENS = tuple(FACTORS.index(name) for name in ("mbs", "seq"))
MOST_STARTS = 12
"""Number of starts of a stretch that are considered."""


class PassPart(Enum):
    """A stretch of a step."""

    BEFORE = "embedding, forward"
    DENSE = "dense layer, forward"
    FORWARD = "layer, forward"
    HEAD = "head, both passes"
    BACKWARD = "layer, forward again and backward"
    DENSE_BACKWARD = "dense layer, forward again and backward"
    AFTER = "embedding, backward"
    STEP = "once a step"


Parts = tuple[PassPart | None, ...]
"""Pass and block of every operator of `lawful_operators`; None for those of a further layer."""


@dataclass(frozen=True)
class _Square:
    """A stretch that stands twice in a row: its length, and possible starts of the first of both."""

    length: int
    starts: tuple[int, ...]


def all_parts(
    operators: Sequence[LawfulOperator], runs: Sequence[RunOperators], dense: RunOperators | None = None
) -> list[Parts]:
    """The ways to assign operators to parts, one for each pair of starts.

    Operators before and after the layers that follow neither micro-batch nor sequence come once a step.

    Parameters
    ----------
    dense : RunOperators or None
        A run with one dense layer more than one of `runs`, where there are dense layers in front of others.

    Raises
    ------
    InputError
        When no run has one layer more than the least, or nothing is repeated in it; likewise of dense layers.
    """
    least = min(run.setting.layers for run in runs)
    more = [at for at, run in enumerate(runs) if run.setting.layers == least + 1]
    if not more:
        cure = "start the small run with one layer more"
        raise InputError("do not show which operators are a layer's", field="small runs", cure=cure)
    order = [at for at, one in enumerate(operators) if more[0] in one.places]
    shown = [runs[more[0]].operators[operators[at].places[more[0]]] for at in order]
    front, back = _passes(shown)
    # Which of both copies an operator of the shorter runs was laid beside does not matter: they are alike.
    own = [at for at in order if not operators[at].further]
    found = []
    for first, second in itertools.product(front.starts, back.starts):
        second -= front.length
        forward, backward = own[first : first + front.length], own[second : second + back.length]
        if len(backward) == back.length:
            found.append(_labelled(operators, forward, backward))
    if any(run.setting.dense for run in runs):
        found = [split for way in found if (split := _with_dense(operators, way, runs, dense)) is not None]
        if not found:
            cure = "start the small run with one dense layer more"
            raise InputError("do not show which operators are a dense layer's", field="small runs", cure=cure)
    return found


def _with_dense(
    operators: Sequence[LawfulOperator], parts: Parts, runs: Sequence[RunOperators], dense: RunOperators | None
) -> Parts | None:
    """The same with the dense layer's passes apart from the embedding's; None where the run shows none so."""
    if dense is None:
        return None
    setting = dense.setting
    like = setting.replace(dense=setting.dense - 1, layers=setting.layers - 1)
    number = next((at for at, run in enumerate(runs) if run.setting == like), None)
    if number is None:
        return None
    column = {one.places[number]: at for at, one in enumerate(operators) if number in one.places}
    seen = [parts[column[place]] for place in range(len(column))]
    layers = [place for place, part in enumerate(seen) if part in (PassPart.FORWARD, PassPart.HEAD, PassPart.BACKWARD)]
    begin, end = layers[0], layers[-1] + 1
    tail = max((place + 1 for place, part in enumerate(seen) if part is PassPart.AFTER), default=end)
    shown = _inserted(runs[number].operators, dense.operators, begin, end, tail)
    if shown is None:
        return None
    first, last = column[begin - shown[0]], column[end + shown[1] - 1]
    found = list(parts)
    for at, part in enumerate(parts):
        if part in (PassPart.BEFORE, PassPart.AFTER, PassPart.STEP) and first <= at <= last:
            found[at] = PassPart.DENSE if at < column[begin] else PassPart.DENSE_BACKWARD
    return tuple(found)


def _inserted(
    base: Sequence[Hashable], more: Sequence[Hashable], begin: int, end: int, tail: int
) -> tuple[int, int] | None:
    """Lengths of a dense layer's two passes: the operators that one run has twice and the other once.

    Parameters
    ----------
    begin, end : int
        Begin and end of the layers with experts in the base.
    tail : int
        End of the embedding's backward pass.
    """
    if list(more[:begin]) != list(base[:begin]):
        return None
    for forward in range(1, begin + 1):
        if list(more[begin : begin + forward]) != list(base[begin - forward : begin]):
            continue
        place = end + forward
        for backward in range(forward, tail - end + 1):
            copied = list(base[end : end + backward])
            behind = list(more[place + backward : place + backward + tail - end])
            if list(more[place : place + backward]) == copied and behind == list(base[end:tail]):
                return forward, backward
    return None


def _labelled(operators: Sequence[LawfulOperator], forward: Sequence[int], backward: Sequence[int]) -> Parts:
    found = list[PassPart | None]()
    for at, one in enumerate(operators):
        if one.further:
            found.append(None)
        elif forward[0] <= at <= forward[-1]:
            found.append(PassPart.FORWARD)
        elif backward[0] <= at <= backward[-1]:
            found.append(PassPart.BACKWARD)
        elif forward[-1] < at < backward[0]:
            found.append(PassPart.HEAD)
        elif not follows_tokens(one):
            found.append(PassPart.STEP)
        else:
            found.append(PassPart.BEFORE if at < forward[0] else PassPart.AFTER)
    return tuple(found)


def _passes(shown: Sequence[Hashable]) -> tuple[_Square, _Square]:
    """The two stretches: the longest that stands twice, and the longest before it."""
    squares = _squares(shown)
    if squares:
        back = squares[0]
        before = [each for each in squares if each.starts[-1] + 2 * each.length <= back.starts[0]]
        if before:
            return before[0], back
    cure = "recompute every layer of the run in the same way"
    raise InputError("do not show a layer's two passes", field="small run with one layer more", cure=cure)


def _squares(shown: Sequence[Hashable]) -> list[_Square]:
    """Stretches that stand twice in a row, the longest first."""
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(one, len(numbers)) for one in shown])
    found = []
    for length in range(len(codes) // 2, 0, -1):
        same = np.flatnonzero(np.diff(np.concatenate(([0], codes[:-length] == codes[length:], [0]))))
        for first, end in zip(same[::2], same[1::2], strict=True):
            if end - first >= length:
                starts = range(int(first), int(end) - length + 1)
                found.append(_Square(length, tuple(starts)[:MOST_STARTS]))
    return found


def follows_tokens(operator: LawfulOperator) -> bool:
    """Return whether any of its sizes follows the micro-batch or the sequence; parameters' collectives do not."""
    if not operator.like.is_compute:
        return True
    return any(law.exponents[at] for fit in operator.fits for law in fit.laws[:1] for at in _TOKENS)
