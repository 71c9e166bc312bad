"""Placement of layers by Megatron's and MindSpeed's flags, and layouts as text.

A placement is the content of every chunk in model order, as a list of lengths with the positions of the
layers that do nothing (``--noop-layers``). Megatron's layout string names every stage's content:
``E`` embedding, ``t`` transformer layer, ``m`` MTP layer, ``L`` loss, with ``|`` between stages, and
``x*n`` and ``(…)*n`` for repetition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from taylor.parsers.training_config import body_layers
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import MTP

_MAX_LAYOUT = 100_000


class LayoutProblem(Exception):
    """The flags place layers in no consistent way; says why."""


@dataclass(frozen=True)
class Placement:
    """Layers of every chunk in model order.

    Parameters
    ----------
    slots : tuple of int [chunks]
        Layer positions of each chunk, those that do nothing included.
    noops : frozenset of int
        Positions (from 0) that hold no layer.
    """

    slots: tuple[int, ...]
    noops: frozenset[int] = frozenset()

    def sizes(self) -> list[int]:
        """Real layers of each chunk."""
        counts, first = [], 0
        for slots in self.slots:
            counts.append(slots - sum(first <= noop < first + slots for noop in self.noops))
            first += slots
        return counts

    def real_among_first(self, chunk: int, count: int) -> int:
        """Real layers among the first `count` positions of a chunk."""
        first = sum(self.slots[:chunk])
        count = min(count, self.slots[chunk])
        return count - sum(first <= noop < first + count for noop in self.noops)


def expand_layout(text: str) -> list[str]:
    """The stages of a layout string, each as its letters: ``Et*3|(tt|)*2,m|L`` -> Ettt, tt, tt, m, L.

    Raises
    ------
    LayoutProblem
        When it is no such string.
    """
    flat = re.sub(r"[,\s]", "", text)
    group = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
    for _ in range(50):
        match = group.search(flat)
        if match is None:
            break
        if len(match[1]) * int(match[2]) > _MAX_LAYOUT:
            raise LayoutProblem("the layout is too long")
        flat = flat[: match.start()] + match[1] * int(match[2]) + flat[match.end() :]
    flat = re.sub(r"([A-Za-z|])\*(\d{1,4})", lambda match: match[1] * int(match[2]), flat)
    if not re.fullmatch(r"[EtmL|]+", flat):
        odd = re.sub(r"[EtmL|]", "", flat)
        raise LayoutProblem(f"the layout contains {odd[:20]!r}; it may contain E, t, m, L and |")
    if len(flat) > _MAX_LAYOUT:
        raise LayoutProblem("the layout is too long")
    stages = flat.split("|")
    if not stages[0].startswith("E") or flat.count("E") != 1:
        raise LayoutProblem("the layout must start with E, once")
    if flat.count("L") > 1:
        # Megatron-LM d98e8a64 megatron/core/transformer/pipeline_parallel_layer_layout.py:106, as in all releases.
        raise LayoutProblem(
            f"the layout has L {flat.count('L')} times: releases of Megatron-LM and its main take it once "
            "(pull request 5318, which is open, splits the losses)"
        )
    if not stages[-1].endswith("L"):
        raise LayoutProblem("the layout must end with L, once")
    order = flat.replace("|", "")
    if not re.fullmatch(r"Et*m*L", order):
        raise LayoutProblem("the layout must run E, t …, m …, L in this order")
    return stages


def layout_text(plan: PipelinePlan) -> str:
    """A plan as a layout string, stage after stage in model order (interleave by interleave).

    Repeats are folded: ``Ettt|(tttt|)*14,ttmL``.
    """
    stages = []
    body = body_layers(plan)
    mtp = plan.layers.get(MTP)
    for v in range(plan.interleaves):
        for s in range(plan.stages):
            count = mtp[v][s] if mtp else 0
            stages.append(_run("t", body[v][s]) + _run("m", count))
    stages[0] = "E" + stages[0]
    stages[-1] += "L"
    text, index = "", 0
    while index < len(stages):
        same = index
        while same < len(stages) and stages[same] == stages[index]:
            same += 1
        repeats, last = same - index, same == len(stages)
        if repeats > 2 and not last:
            text += f"({stages[index]}|)*{repeats},"
        else:
            text += "|".join(stages[index:same]) + ("" if last else "|")
        index = same
    return text


def _run(letter: str, count: int) -> str:
    return letter * count if count < 5 else f"{letter}*{count}"


def even_placement(layers: int, chunks: int, noops: frozenset[int]) -> Placement:
    """The default: every chunk the same number of positions."""
    if layers % chunks:
        raise LayoutProblem(f"{layers} layers do not divide over {chunks} chunks")
    return Placement((layers // chunks,) * chunks, noops)


def ends_placement(layers: int, stages: int, interleaves: int, first: int | None, last: int | None) -> Placement:
    """``--decoder-first/last-pipeline-num-layers``: those of the first and last stage, the rest even.

    With virtual stages each stage's layers are spread evenly over its chunks.
    """
    middle = stages - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if middle < 0:
        raise LayoutProblem("the layers of a first and of a last stage are given and there is one stage")
    if middle == 0 and rest > 0:
        # core main (d98e8a64) megatron/core/transformer/transformer_block.py:108-147 builds what the flags name.
        built = layers - rest
        raise LayoutProblem(
            f"Megatron builds {built} of the {layers} layers: the layers of the first or last stage are given, and no "
            f"other of the {stages} stage{'s' * (stages > 1)} takes the rest"
        )
    if rest < 0 or (middle and rest % middle):
        raise LayoutProblem(f"{rest} layers do not divide over the {middle} stages between")
    each = rest // middle if middle else 0
    per_stage = [each] * stages
    if first is not None:
        per_stage[0] = first
    if last is not None:
        per_stage[-1] = last
    if any(count % interleaves for count in per_stage):
        raise LayoutProblem(f"a stage's layers do not divide over {interleaves} virtual stages")
    return Placement(tuple(count // interleaves for count in per_stage) * interleaves)
