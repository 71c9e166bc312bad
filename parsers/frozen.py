"""Parts of a model that a launcher's file freezes, beside low-rank adapters."""

from __future__ import annotations

from collections.abc import Collection

from taylor.register.adapters import BESIDE, EMBEDDING, HEAD
from taylor.register.frozen import trained_counts
from taylor.register.model import ModelSpec

UNPRICED = "; its time is not, without --images"


def frozen_vision(model: ModelSpec, notes: list[str], *, freezes: bool) -> tuple[str, ...]:
    """The vision part among `TrainingRules.frozen`, where the model has one that is frozen, with a note."""
    if not (model.extra_parameters and freezes):
        return ()
    millions = model.extra_parameters / 1e6
    notes.append(
        f"{millions:,.0f} million parameters of the vision part are frozen: their weights are counted, and neither "
        f"gradients nor states{UNPRICED if model.tower is not None else ''}"
    )
    return (BESIDE,)


def frozen_outside(model: ModelSpec, trained: Collection[str], notes: list[str]) -> tuple[str, ...]:
    """`TrainingRules.frozen` where layers are frozen, with a note.

    Parameters
    ----------
    model : ModelSpec
        With the kinds of its frozen layers.
    trained : collection of str
        ``EMBEDDING`` and ``HEAD``, where they train.
    """
    own, others = trained_counts(model)
    ends = "".join(f", and the {end}" for end in (EMBEDDING, HEAD) if end in trained)
    notes.append(f"{own} of {own + others} layers train{ends}; the rest is frozen")
    return (*(end for end in (EMBEDDING, HEAD) if end not in trained), *((BESIDE,) if model.extra_parameters else ()))
