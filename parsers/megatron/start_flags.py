"""Input of MindSpeed's start rules: a launch's flags, its program, and the effect of some flags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taylor.parsers.megatron.kinds import NOOPS, layer_positions
from taylor.parsers.megatron.layout import LayoutProblem, expand_layout
from taylor.parsers.megatron.own_plan import LAYOUT, PER_CHUNK, PER_RANK
from taylor.parsers.stated_flags import StatedFlags
from taylor.parsers.text.fields import MAX_LAYERS
from taylor.parsers.text.flags import Flags

MINDSPEED, MINDSPEED_LLM = "MindSpeed", "MindSpeed-LLM"
RUNS_ON = ("megatron",)
"""Framework on top of which both run."""
EMPTY_CHUNK, EMPTY_SHARE = "a chunk without layers", "a stage of noop layers"
NOOP_EARLY, ONE_CHUNK = "a noop layer before the last chunks", "a chunk that is a stage"
BAD_UNALIGNED = "an unaligned list that does not fit"
LLM_ALONE = (
    "enable-hf2mg-convert",
    "first-k-dense-replace",
    "hf-cfg-dir",
    "is-instruction-dataset",
    "is-pairwise-dataset",
    "kv-head-repeat-before-uly-alltoall",
    "lora-r",
    "lora-target-modules",
    "mla-mm-split",
    "neat-pack",
    "no-pad-to-seq-lengths",
    "no-shared-storage",
    "num-layer-list",
    "padded-vocab-size",
    "prompt-type",
    "rope-scaling-type",
    "sliding-window",
    "stage",
    "use-deter-comp",
    "use-mc2",
)
"""Flags of MindSpeed-LLM's parser that MindSpeed's lacks (c77308a1 and 028de58c, parsers built and compared)."""
EARLIER = "written for a MindSpeed before core_r0.12.1"
"""Fact of a launch whose comments name an earlier branch of MindSpeed: checks that came later refuse nothing of it."""
_BRANCH = re.compile(r"#.*\bcore_r(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")
_CHECKED_SINCE = (0, 12, 1)
"""Branch of MindSpeed from which on its features check their arguments (2.1.0_core_r0.12.1)."""


def earlier_branch(text: str) -> str | None:
    """Return the branch of MindSpeed that a script's comments name, where its features check nothing yet."""
    named = {tuple(int(part or 0) for part in found) for found in _BRANCH.findall(text)}
    if not named or max(named) >= _CHECKED_SINCE:
        return None
    return "core_r" + ".".join(map(str, max(named)))


def read_stated_flags(flags: Flags, *, mindspeed: bool, earlier: bool = False) -> StatedFlags:
    """The flags of a launch under MindSpeed; nothing of any other, whose rules read no flags.

    Parameters
    ----------
    earlier : bool
        The script names an `earlier_branch`.
    """
    if not mindspeed:
        return StatedFlags()
    values = {
        name: None if not flag.values or flag.values[0].unknown else flag.values[0].text
        for name, flag in flags.by_name.items()
    }
    llm = not values.keys().isdisjoint(LLM_ALONE) or "mindspeed_llm" in (values.get("spec") or "")
    stated = StatedFlags(frozenset({MINDSPEED_LLM if llm else MINDSPEED}), values)
    layers, noops = layer_positions(flags), _noop_positions(stated.text(NOOPS))
    stages = max(1, stated.number("pipeline-model-parallel-size"))
    each, of_rank = max(0, stated.number(PER_CHUNK)), stated.number(PER_RANK)
    unaligned = values.get("pipeline-num-transformer-layers")
    chunks = layers // stages // each if each else of_rank or None
    facts = {
        EARLIER: earlier,
        EMPTY_CHUNK: _has_empty_chunk(values.get(LAYOUT)),
        EMPTY_SHARE: _has_empty_share(noops, layers, stages, each),
        # MindSpeed makes a set of them and takes its first entry (features_manager/moe/fb_overlap.py:133).
        NOOP_EARLY: bool(noops) and (each == 0 or list(set(noops))[0] < layers - each),
        ONE_CHUNK: each > 0 and each * stages == layers,
        BAD_UNALIGNED: unaligned is not None and not _fits(unaligned, layers, stages, chunks),
    }
    return replace(stated, facts=frozenset(fact for fact, present in facts.items() if present))


def _has_empty_chunk(layout: str | None) -> bool:
    try:
        return layout is not None and any("t" not in chunk for chunk in expand_layout(layout))
    except LayoutProblem:
        return False


def _noop_positions(text: str) -> list[int]:
    """Positions that a list names, in its order; none where it is no list of whole numbers."""
    words = text.split(",")
    return [int(word) for word in words] if all(word.isdecimal() and len(word) < 10 for word in words) else []


def _has_empty_share(noops: Sequence[int], layers: int, stages: int, each: int) -> bool:
    """Return whether noop layers alone fill an even share of a stage, or of a chunk.

    MindSpeed-LLM c77308a1 mindspeed_llm/training/utils.py:1168 `check_pipeline_config`.
    """
    share, empty = layers // stages, set(noops)
    if not noops or not share:
        return False
    cuts = [(stage * share, share) for stage in range(stages)]
    if each:
        cuts += [(start + v * each, each) for start, _ in cuts for v in range(share // each)]
    return any(empty.issuperset(range(start, start + size)) for start, size in cuts)


def _fits(text: str, layers: int, stages: int, chunks: int | None) -> bool:
    """Return whether a nested list has a number of layers for every chunk of every stage, and no more than the model.

    MindSpeed 028de58c mindspeed/features_manager/pipeline_parallel/unaligned_pineline_feature.py:7-66.
    """
    outer: list[list[int]] = []
    open_list: list[int] | None = None
    tokens = re.findall(r"\d{1,9}|[*\[\]]", text)
    for k, token in enumerate(tokens[1:], 1):
        if token == "[":
            open_list = []
        elif token == "]" and open_list is not None:
            outer.append(open_list)
            open_list = None
        elif token.isdecimal():
            if tokens[k - 1] == "*":
                repeated: list[Any] = outer if open_list is None else open_list
                times = int(token)
                if not repeated or times > MAX_LAYERS or len(repeated) > MAX_LAYERS:
                    return False
                repeated[-1:] = [repeated[-1]] * times
            elif open_list is None:
                return False
            else:
                open_list.append(int(token))
    return (
        len(outer) == stages
        and all(len(inner) == (1 if chunks is None else chunks) for inner in outer)
        and sum(map(sum, outer)) <= layers
    )
