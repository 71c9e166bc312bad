"""Choice of the stages and plans to dry-run, so that their peaks determine every coefficient well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from taylor.cost_model.profile import MemoryProfile
from taylor.dryrun.fitting.linear_memory import Floats, LinearMemory
from taylor.pipeline.plan import FULL, NONE, SELECT, PipelinePlan, as_grid
from taylor.register.model import MTP

POOL = 240
"""Plans to choose from: more hardly improve the choice."""
RUNS_PER_UNKNOWN = 2
_RIDGE = 1e-6


@dataclass(frozen=True)
class Cell:
    """One stage of one plan, to be dry-run."""

    plan: PipelinePlan
    stage: int


def random_plans(memory: LinearMemory, number: int, seed: int) -> Iterator[PipelinePlan]:
    """Plans of all sorts: even and uneven splits, every recompute mode, alone and mixed; at least one layer a chunk."""
    rng = np.random.default_rng(seed)
    config = memory.config
    counts = config.model.layer_counts()
    pinned = {} if config.mtp_counted else {kind: n for kind, n in counts.items() if kind == MTP}
    kinds = [kind for kind, count in counts.items() if kind not in pinned for _ in range(count)]
    chunks = memory.stages * memory.interleaves
    if len(kinds) < chunks:
        return
    modes = [mode for mode in (FULL, SELECT) if mode in memory.modes]
    for _ in range(number):
        evenness = float(rng.choice(np.array([0.7, 2.0, 8.0, 50.0])))
        share = rng.dirichlet(np.full(chunks, evenness))
        sizes = 1 + rng.multinomial(len(kinds) - chunks, share)
        layers = {kind: np.zeros((memory.interleaves, memory.stages), dtype=int) for kind in counts}
        recompute = {mode: np.zeros((memory.interleaves, memory.stages), dtype=int) for mode in modes}
        begin = 0
        for position, size in enumerate(sizes):
            chunk = memory.schedule.chunk_at(position)
            for kind in kinds[begin : begin + size]:
                layers[kind][chunk] += 1
            begin += size
            left = int(size)
            for mode in modes:
                taken = int(rng.choice(np.array([0, left, int(rng.integers(0, left + 1))]), p=[0.4, 0.3, 0.3]))
                recompute[mode][chunk] = taken
                left -= taken
        for kind, count in pinned.items():
            layers[kind][memory.schedule.chunk_at(chunks - 1)] = count
        yield PipelinePlan(
            {kind: as_grid(grid.tolist()) for kind, grid in layers.items()},
            {mode: as_grid(grid.tolist()) for mode, grid in recompute.items() if mode == FULL or grid.any()},
        )


def design_runs(
    memory: LinearMemory,
    prior: MemoryProfile,
    limit_mib: float,
    number: int | None = None,
    *,
    known: Sequence[Cell] = (),
    avoid: Sequence[Cell] = (),
    seed: int = 0,
    pool: Iterable[Cell] | None = None,
    goal: float = 0.0,
) -> list[Cell]:
    """Choose stages of plans whose peaks determine all coefficients best.

    Greedy A-optimal design (Fedorov 1972): each next row is the one that lowers most the summed
    variance of the coefficients, each relative to its size, when a peak's error is proportional to it.

    Parameters
    ----------
    prior : MemoryProfile
        Sizes of the coefficients, as far as they are known.
    limit_mib : float
        Stages with a larger estimate are not run: they would run out of memory.
    number : int, optional
        Rows to choose; `RUNS_PER_UNKNOWN` for each unknown when not given.
    known : sequence of Cell
        Measured already: they count, and are not chosen again.
    avoid : sequence of Cell
        Failed already: not chosen again.
    pool : iterable of Cell, optional
        Cells to choose from; `POOL` random plans of the job when not given.
    goal : float
        A coefficient is done when its relative standard error is at most this many times a peak's;
        when none remains, the choice ends before `number`.

    Returns
    -------
    list of Cell
        Fewer than `number` where no others fit the limit.
    """
    values = memory.coefficients(prior)
    scale = column_scale(values)
    rows: list[Floats] = []
    cells: list[Cell] = []
    seen = {_key(memory.rows(cell.plan, values, [cell.stage])[0]) for cell in (*known, *avoid)}
    for cell in stages_of(random_plans(memory, POOL, seed)) if pool is None else pool:
        row = memory.rows(cell.plan, values, [cell.stage])[0]
        if float(row @ values) <= limit_mib and _key(row) not in seen:
            seen.add(_key(row))
            rows.append(row)
            cells.append(cell)
    if not cells:
        return []
    candidates = np.array(rows)
    candidates = candidates * scale / np.maximum(candidates @ values, 1.0)[:, None]
    spread = np.eye(len(values)) / _RIDGE
    for cell in known:
        row = memory.rows(cell.plan, values, [cell.stage])[0]
        spread = _with_row(spread, row * scale / max(float(row @ values), 1.0))
    wanted = RUNS_PER_UNKNOWN * len(values) if number is None else number
    chosen: list[Cell] = []
    free = np.ones(len(candidates), dtype=bool)
    for _ in range(min(wanted, len(candidates))):
        unsure = np.sqrt(np.diag(spread)) > goal
        if not unsure.any():
            break
        projected = candidates @ spread
        gain = (projected[:, unsure] ** 2).sum(axis=1) / (1.0 + (projected * candidates).sum(axis=1))
        best = int(np.argmax(np.where(free, gain, -1.0)))
        free[best] = False
        spread = _with_row(spread, candidates[best])
        chosen.append(cells[best])
    return chosen


def stages_of(plans: Iterable[PipelinePlan]) -> Iterator[Cell]:
    """Every stage of every plan."""
    return (Cell(plan, stage) for plan in plans for stage in range(plan.stages))


def column_scale(values: Floats) -> Floats:
    """Units in which small and large coefficients count alike, MiB [unknowns]."""
    scale: Floats = np.maximum(values, max(1e-3 * float(values.max(initial=1.0)), 1e-6))
    return scale


def _with_row(spread: Floats, row: Floats) -> Floats:
    """(M + row·rowᵀ)⁻¹ from M⁻¹ (Sherman and Morrison 1950)."""
    projected = spread @ row
    result: Floats = spread - np.outer(projected, projected) / (1.0 + float(row @ projected))
    return result


def _key(row: Floats) -> bytes:
    return np.round(row, 6).tobytes()


def modes_at_hand(search_select: bool) -> tuple[str, ...]:
    """The recompute modes whose activations a solve needs."""
    return (NONE, SELECT, FULL) if search_select else (NONE, FULL)
