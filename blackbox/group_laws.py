"""The ranks of a network's collectives, and the size of their buffers, found from small runs.

A profile shows what a rank sent. Of each way to group ranks it is tried whether the buffers that follow from it have
one law over all runs, and whether the collective is there where the group has more than one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from taylor.blackbox.blocks import Condition, LawfulOperator
from taylor.blackbox.collective_lines import ALL_REDUCE, TRANSFER, Collective
from taylor.blackbox.laws import Fitter, SizeFit
from taylor.parsers.small_run import RunSetting

Ranks = Callable[[RunSetting], tuple[int, int]]
"""Number of ranks of a group and the distance of their numbers."""
GROUPS: Mapping[str, Ranks] = MappingProxyType(
    {
        "tp": lambda run: (run.tp, 1),
        "cp": lambda run: (run.cp, run.tp),
        "ep": lambda run: (run.ep, run.tp),
        "tp and cp": lambda run: (run.tp * run.cp, 1),
        "tp and ep": lambda run: (run.tp * run.ep, 1),
    }
)
"""Megatron's order of ranks, tp, cp, ep, dp, pp: Megatron-LM main megatron/core/parallel_state.py
(``RankGenerator``, "tp-cp-ep-dp-pp")."""


def data_parallel(run: RunSetting) -> tuple[int, int]:
    """The ranks that share gradients of parameters that are no experts', and their optimizer."""
    return run.shards, run.tp


def expert_data_parallel(run: RunSetting) -> tuple[int, int]:
    """The ranks that share gradients of experts."""
    return run.expert_shards, run.tp * run.ep


def kind_of(name: str) -> str:
    """A profiler's name of a collective as `collective_lines` knows it."""
    plain = name.lower()
    if "allreduce" in plain:
        return ALL_REDUCE
    return TRANSFER if "send" in plain or "receive" in plain else name


def buffer_of(kind: str, ranks: int, sent: int) -> int:
    """Bytes of the whole buffer of which one rank sent `sent` bytes."""
    if kind == TRANSFER:
        return sent
    return round(sent * ranks / (ranks - 1) / (2 if kind == ALL_REDUCE else 1))


@dataclass(frozen=True)
class LawfulCollective:
    """A collective of a block.

    Parameters
    ----------
    group : str
        One of `GROUPS`.
    buffer : SizeFit
        Bytes of the whole buffer.
    """

    kind: str
    group: str
    buffer: SizeFit
    condition: Condition

    def at(self, run: RunSetting) -> Collective | None:
        """The collective in a run where it stands; None where its size is not settled."""
        size = self.buffer.at(run)
        ranks, stride = GROUPS[self.group](run)
        return None if size is None else Collective(self.kind, ranks, stride, size)


def lawful_collective(
    operator: LawfulOperator, sent: Sequence[int], settings: Sequence[RunSetting]
) -> LawfulCollective | None:
    """The group and law of one collective; None where no group gives the buffers a law.

    Parameters
    ----------
    operator : LawfulOperator
        As aligned; its only dimension is the bytes sent.
    sent : sequence of int
        In the runs of `operator.places`.
    settings : sequence of RunSetting
        Of all runs.
    """
    if operator.condition is None:
        return None
    kind = kind_of(operator.like.type)
    runs = list(operator.places)
    best: tuple[float, LawfulCollective] | None = None
    for group, ranks in GROUPS.items():
        if any(ranks(settings[run])[0] < 2 for run in runs):
            continue
        buffers = [buffer_of(kind, ranks(settings[run])[0], size) for run, size in zip(runs, sent, strict=True)]
        fit = Fitter([settings[run] for run in runs]).fit(buffers)
        there = all(ranks(run)[0] > 1 or not operator.condition.is_met(run) for run in settings)
        if fit.laws and there and (best is None or fit.spread < best[0]):
            best = (fit.spread, LawfulCollective(kind, group, fit, operator.condition))
    return best[1] if best else None
