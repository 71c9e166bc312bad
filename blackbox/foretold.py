"""The operators of a large job from the laws of small runs, and the small run that shows the same ones.

A rank of the job works on shapes that a small run can have too where what splits and what is split shrink together:
CP with the sequence, EP with the experts, the stages with the layers. TP stays, and so does the micro-batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from taylor.blackbox.blocks import LawfulOperator
from taylor.blackbox.small_runs import fitted, legal
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import JobSizes, RunSetting


@dataclass(frozen=True)
class Foretold:
    """The operators of a run by their laws.

    Parameters
    ----------
    operators : tuple of Operator
        In their order; of layers that are alike, one. One that runs in every turn of a loop is there as often.
    unsure : int
        Number of further ones whose dimensions or number the laws do not settle, or that no condition places.
    """

    operators: tuple[Operator, ...]
    unsure: int


@dataclass(frozen=True)
class ShowingRun:
    """A small run that shows operators of a job, and the number of wanted ones among them."""

    setting: RunSetting
    shown: int


def foretell(operators: Sequence[LawfulOperator], setting: RunSetting) -> Foretold:
    """The operators of a run, compute and collectives.

    Parameters
    ----------
    setting : RunSetting
        Its layers do not matter.
    """
    found, unsure = list[Operator](), 0
    for one in operators:
        if one.repeats:
            continue
        if one.condition is None:
            unsure += 1
            continue
        if not one.condition.is_met(setting.replace(layers=one.condition.least_layers)):
            continue
        operator = one.at(setting)
        if operator is None or one.count is None or not one.is_counted:
            unsure += 1
        else:
            found += [operator] * one.count.at(setting)
    return Foretold(tuple(found), unsure)


def showing_run(
    operators: Sequence[LawfulOperator],
    missing: Collection[Operator],
    job: RunSetting,
    sizes: JobSizes,
    cards: int,
) -> ShowingRun | None:
    """The small run that shows most of the job's missing operators, of those the one with the fewest tokens.

    Returns
    -------
    ShowingRun or None
        None where no run on these cards shows any.
    """
    wanted = set(missing)
    best: ShowingRun | None = None
    for cp in _shrunk(job.cp):
        for ep in _shrunk(job.ep):
            small = job.replace(
                cp=cp,
                ep=ep,
                pp=1,
                vpp=1,
                seq=job.seq * cp // job.cp,
                experts=max(1, job.experts * ep // job.ep),
                layers=sizes.least_layers,
                dense=sizes.least_dense,
            )
            setting = fitted(small, cards)
            if setting is None or legal(setting, sizes) is not None:
                continue
            shown = len(wanted & set(foretell(operators, setting).operators))
            better = best is None or (shown, -setting.seq) > (best.shown, -best.setting.seq)
            if shown and better:
                best = ShowingRun(setting, shown)
    return best


def _shrunk(degree: int) -> list[int]:
    """Degrees that divide a degree; 1 only where it is 1, as what a degree adds would be gone."""
    return [each for each in range(1, degree + 1) if degree % each == 0 and (each > 1 or degree == 1)]
