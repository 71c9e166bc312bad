"""Choices of a stage's chunks that fit its memory where they have no order: recompute with offload and others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taylor.base.compiled import compiled, kernel_part, overwrite
from taylor.pipeline_solver.columns.stage_tuples import StageTuples
from taylor.pipeline_solver.model.problem import PipelineProblem


def resource_needs(
    problem: PipelineProblem,
    tuples: StageTuples,
    alive: NDArray[np.float64],
    s: int,
    shape: tuple[int, int],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Needs of each choice of each chunk type, float64 [V, types, choices, R], and free resources by tuple, [n, R].

    The resources are, at every alive vector, the device's memory and, where they are bounded, the host's and the
    lender's.
    """
    limits = np.repeat(problem.limits_elsewhere(s), len(alive))
    need = np.zeros((problem.interleaves, *shape, len(alive) + len(limits)))
    for v, row in enumerate(tuples.types):
        for t, kind in enumerate(row):
            need[v, t, : len(kind.choices), : len(alive)] = kind.choices.need(alive[:, v]).T
            elsewhere = kind.choices.needs_elsewhere(problem, alive[:, v]).reshape(len(limits), len(kind.choices))
            need[v, t, : len(kind.choices), len(alive) :] = elsewhere.T
    free = np.hstack([tuples.free_mib, np.tile(limits, (len(tuples.members), 1))])
    return need, np.ascontiguousarray(free)


@compiled
def undominated_choices(members, free, need, extra, sizes, tolerance, most):  # type: ignore[no-untyped-def]
    """Choices of every tuple that fit its memory and where no chunk can take a quicker one: `minimal_choices` for
    choices without order.

    Once a chunk could, whatever the chunks behind it take, these are not enumerated.

    Parameters
    ----------
    free : float64 [n, R]
    need : float64 [V, types, choices, R]
    extra : float64 [3, V, types, choices]

    Returns
    -------
    owner int64 [n], option int64 [n, V], whether all were listed (no more than `most`)
    """
    tuples, V = members.shape
    R = free.shape[1]
    owner = np.zeros(0, dtype=np.int64)
    option = np.zeros((0, V), dtype=np.int64)
    at = np.zeros(V, dtype=np.int64)
    used = np.zeros((V + 1, R))
    # Least and greatest needs of chunks v...
    least, greatest = np.zeros((V + 1, R)), np.zeros((V + 1, R))
    for fill in range(2):
        found = 0
        for t in range(tuples):
            kinds = members[t]
            need_ranges(kinds, need, sizes, least, greatest)
            v = 0
            at[0] = 0
            while v >= 0:
                kind = kinds[v]
                if at[v] >= sizes[v, kind]:
                    v -= 1
                    if v >= 0:
                        at[v] += 1
                    continue
                if not fits_resources(v, need[v, kind, at[v]], used, least, free[t], tolerance) or takes_quicker(
                    kinds, at, v, need, extra, sizes, used, greatest, free[t], tolerance
                ):
                    at[v] += 1
                    continue
                if v < V - 1:
                    v += 1
                    at[v] = 0
                    continue
                if fill == 1:
                    owner[found] = t
                    overwrite(option[found], at, V)
                found += 1
                if found > most:
                    return owner, option, False
                at[v] += 1
        if fill == 0:
            owner = np.zeros(found, dtype=np.int64)
            option = np.zeros((found, V), dtype=np.int64)
    return owner, option, True


@kernel_part
def need_ranges(kinds, need, sizes, least, greatest):  # type: ignore[no-untyped-def]
    """Fill `least` and `greatest` float64 [V + 1, R]."""
    for r in range(need.shape[3]):
        for v in range(len(kinds) - 1, -1, -1):
            kind = kinds[v]
            frugal, lavish = np.inf, -np.inf
            for i in range(sizes[v, kind]):
                frugal = min(frugal, need[v, kind, i, r])
                lavish = max(lavish, need[v, kind, i, r])
            least[v, r] = least[v + 1, r] + frugal
            greatest[v, r] = greatest[v + 1, r] + lavish


@kernel_part
def fits_resources(v, need, used, least, free, tolerance):  # type: ignore[no-untyped-def]
    """Add the needs of chunk v to `used`; return whether the chunks behind it can fit."""
    fits = True
    for r in range(len(need)):
        used[v + 1, r] = used[v, r] + need[r]
        if used[v + 1, r] + least[v + 1, r] > free[r] + tolerance:
            fits = False
    return fits


@kernel_part
def takes_quicker(kinds, at, v, need, extra, sizes, used, greatest, free, tolerance):  # type: ignore[no-untyped-def]
    """Return whether one of the chunks 0..v could take a quicker choice, whatever those behind v take."""
    for w in range(v + 1):
        kind, i = kinds[w], at[w]
        for j in range(sizes[w, kind]):
            if j == i or not no_slower(extra, w, kind, j, i):
                continue
            over = False
            for r in range(len(free)):
                more = need[w, kind, j, r] - need[w, kind, i, r]
                if used[v + 1, r] + greatest[v + 1, r] + more > free[r] + tolerance:
                    over = True
                    break
            # Of two that fit and take the same time, keep the first.
            if not over and (j < i or not no_slower(extra, w, kind, i, j)):
                return True
    return False


@kernel_part
def no_slower(extra, v, kind, one, other):  # type: ignore[no-untyped-def]
    """Return whether a choice takes no longer than another one in any direction."""
    return (
        extra[0, v, kind, one] <= extra[0, v, kind, other]
        and extra[1, v, kind, one] <= extra[1, v, kind, other]
        and extra[2, v, kind, one] <= extra[2, v, kind, other]
    )
