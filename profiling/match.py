"""Matches the attention kernels found with those that the configuration leads to expect, and explains misfits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.parsers.profiles.kernels import COLLECTIVE, COMPUTE, FORWARD_MARKER, NO_MARKER, RankProfile
from taylor.profiling.pattern import StagePattern

MOST_BETWEEN = 6
"""Kernels (copies, casts) that may lie between repeated attention and its backward; the rest of a layer has a dozen."""


class ProfileMisfit(Exception):
    """A profile that does not fit its configuration; the text states the difference and the likeliest cause."""


def match(profile: RankProfile, pattern: StagePattern, micro_batches: int, ring: int = 1) -> NDArray[np.int64]:
    """Kernel numbers of the markers of every step, int64 [steps, n].

    Parameters
    ----------
    ring : int
        Attention kernels of one pass where attention goes round a context-parallel ring; the first is the marker.

    Raises
    ------
    ProfileMisfit
        When count or order differ.
    """
    place = np.flatnonzero(profile.marker != NO_MARKER)
    found = profile.marker[place]
    wanted = pattern.markers
    if not len(wanted):
        raise ProfileMisfit("the configuration puts no layer on this stage")
    for group in sorted({1, ring}):
        whole, rest = divmod(len(found), len(wanted) * group)
        if whole and not rest and (found == np.tile(np.repeat(wanted, group), whole)).all():
            steps = place[::group].reshape(whole, len(wanted))
            _check_steps(profile, steps)
            return steps
    raise ProfileMisfit(_explain(profile, found, pattern, micro_batches))


def reruns_attention_alone(profile: RankProfile, pattern: StagePattern, steps: NDArray[np.int64]) -> bool:
    """Return whether little runs between an attention kernel of selective recompute and its backward.

    Where a layer is recomputed in full, its attention kernels come in the same order, but the rest of its
    forward lies between them: a profile of another recompute list must not pass for a selective one.
    """
    again = np.flatnonzero([[what for (what, _), _ in window.pieces] == ["select"] for window in pattern.windows])
    columns = np.flatnonzero(np.isin(pattern.window, again))
    worked: NDArray[np.int64] = np.cumsum(np.isin(profile.role, (COMPUTE, COLLECTIVE)))
    between: NDArray[np.int64] = worked[steps[:, columns + 1]] - worked[steps[:, columns]] - 1
    return bool((between <= MOST_BETWEEN).all())


def _check_steps(profile: RankProfile, steps: NDArray[np.int64]) -> None:
    numbers = profile.step[steps]
    if (numbers.min(axis=1) != numbers.max(axis=1)).any():
        bad = int(np.argmax(numbers.min(axis=1) != numbers.max(axis=1)))
        raise ProfileMisfit(
            f"kernels of one step have different step numbers ({', '.join(map(str, np.unique(numbers[bad])))}): "
            "the rows of two steps are mixed, or the profile begins inside a step"
        )


def _explain(profile: RankProfile, found: NDArray[np.int8], pattern: StagePattern, micro_batches: int) -> str:
    forward, backward = int((found == FORWARD_MARKER).sum()), int((found != FORWARD_MARKER).sum())
    wanted = pattern.markers
    need_forward = int((wanted == FORWARD_MARKER).sum())
    need_backward = len(wanted) - need_forward
    counts = (
        f"{forward} forward and {backward} backward attention kernels, "
        f"expected {need_forward} and {need_backward} a step"
    )
    names = ", ".join(f"{name[:40]} ({count})" for name, count in profile.commonest(4))
    if not len(found):
        return (
            f"no attention kernel of a known name (expected {need_forward} forward and {need_backward} backward "
            f"a step): the attention kernel has another name; the commonest kernels are {names}"
        )
    if not forward or not backward:
        lost = "backward" if forward else "forward"
        return f"{counts}: the {lost} attention kernel has another name; the commonest kernels are {names}"
    steps, rest = divmod(backward, need_backward)
    tiled = np.tile(wanted, len(found) // len(wanted) + 2)
    if (found == tiled[: len(found)]).all():
        return (
            f"{counts}: the order fits for {len(found) // len(wanted)} whole steps and then ends inside a step: "
            "the profile was cut short"
        )
    if (found == tiled[len(tiled) - len(found) :]).all():
        return f"{counts}: the first step is not whole: the profiler was started inside a step"
    if not rest and steps and forward == steps * need_forward:
        at = int(np.argmax(found != tiled[: len(found)]))
        return (
            f"{counts}, over {steps} steps, but kernel {at + 1} is of the other direction: another schedule, "
            "another recompute list or offset of the same total, or the rows of two steps are mixed"
        )
    if not rest and steps:
        again = (forward - backward) / (steps * micro_batches)
        return (
            f"{counts}, over {steps} steps: {again:g} layers of this stage run attention again and the "
            f"configuration recomputes {pattern.recomputed}: wrong recompute list"
        )
    numbers = profile.step[profile.marker != NO_MARKER]
    step_count = max(1, len(np.unique(numbers[numbers >= 0])))
    layers, rest = divmod(backward, micro_batches * step_count)
    if not rest:
        return (
            f"{counts}, over {step_count} steps: {layers} layers a micro-batch and the configuration puts "
            f"{pattern.layers} on this stage: wrong offset, or a profile of another stage"
        )
    return f"{counts}: the profile was cut short, or is of another configuration"
