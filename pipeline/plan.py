"""A pipeline plan: layers and recompute of every chunk, how it is made, and the forms it translates to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Collection, Mapping, Sequence

from taylor.pipeline.chunks import Placement, chunk_order, position_of

FULL, SELECT, NONE = "full", "select", "none"
RECOMPUTE_MODES = (FULL, SELECT, NONE)
"""Recompute modes in the order in which a chunk's layers take them: the first layers are fully
recomputed, the next ones selectively, the rest keep everything (MindFormers and Megatron `block`).
Further choices of a problem (recompute of some modules, offload) lie before the rest, in its own order."""


def mode_title(mode: str) -> str:
    """A mode as tables and logs name it: one with more than recompute by its own name (``offload:core_attn``)."""
    if mode == FULL:
        return "recompute"
    return mode if ":" in mode else f"{mode} recompute"


RUN_MARK = "#"
"""Between a kind and the number of its run, where a kind has several separate runs: ``gdn+moe#2``."""

Grid = tuple[tuple[int, ...], ...]
"""int [vpp, pp]: one row a virtual stage, one column a stage."""


def kind_of(run: str) -> str:
    """The kind of a run's layers, from the run's name."""
    return run.partition(RUN_MARK)[0]


def run_names(kind: str, runs: int) -> list[str]:
    """Names of a kind's runs in model order: that of the kind, then with numbers from 2 on."""
    return [kind, *(f"{kind}{RUN_MARK}{number}" for number in range(2, runs + 1))]


def counts_by_kind(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by kind from counts by run (`kind_of`), in the order in which the kinds begin."""
    total: dict[str, int] = {}
    for run, count in counts.items():
        total[kind_of(run)] = total.get(kind_of(run), 0) + count
    return total


def as_grid(rows: Sequence[Sequence[int]]) -> Grid:
    """Freeze nested sequences of integers as a `Grid`."""
    return tuple(tuple(int(value) for value in row) for row in rows)


def zero_grid(stages: int, interleaves: int) -> Grid:
    """Zeros, int [vpp, pp]."""
    return ((0,) * stages,) * interleaves


def grid_in_order(values: Sequence[int], stages: int, v_shape: bool) -> Grid:
    """Values of the chunks in model order, laid out as int [vpp, pp]; there must be a multiple of `stages`."""
    interleaves = len(values) // stages
    return tuple(
        tuple(int(values[position_of(v, s, stages, v_shape)]) for s in range(stages)) for v in range(interleaves)
    )


def values_in_order(grid: Grid, v_shape: bool) -> list[int]:
    """The entries of a grid by chunk in model order; the inverse of `grid_in_order`."""
    return [grid[v][s] for v, s in chunk_order(len(grid[0]), len(grid), v_shape)]


def deal_kinds(
    counts: Mapping[str, int],
    sizes: Sequence[int],
    stages: int,
    v_shape: bool,
    pinned: Mapping[str, int] | None = None,
) -> dict[str, Grid]:
    """Layers by kind of every chunk, int [vpp, pp] each: kinds are dealt in layer order over the chunks.

    Parameters
    ----------
    counts : mapping of kind to int
        Layers by kind in model order.
    sizes : int [vpp · pp]
        Layers of every chunk in model order, pinned ones not counted.
    pinned : mapping of kind to int, optional
        Kinds that are not dealt: all of their layers lie on the chunk at this position in model order.

    Raises
    ------
    ValueError
        When the sizes do not add up to the layers that are dealt.
    """
    return deal_on(Placement.shaped(stages, len(sizes) // stages, v_shape=v_shape), counts, sizes, pinned)


def deal_on(
    placement: Placement, counts: Mapping[str, int], sizes: Sequence[int], pinned: Mapping[str, int] | None = None
) -> dict[str, Grid]:
    """`deal_kinds` on any placement of the chunks.

    Raises
    ------
    ValueError
        When the chunks have more or fewer layers than the model.
    """
    pinned = pinned or {}
    queue = [kind for kind, count in counts.items() if kind not in pinned for _ in range(count)]
    if sum(sizes) != len(queue):
        raise ValueError(f"the chunks have {sum(sizes)} layers; the model has {len(queue)}")
    placed = {kind: [0] * len(sizes) for kind in counts}
    start = 0
    for position, size in enumerate(sizes):
        for kind in queue[start : start + size]:
            placed[kind][position] += 1
        start += size
    for kind, position in pinned.items():
        placed[kind][position] = counts[kind]
    return {kind: placement.grid(values) for kind, values in placed.items()}


def even_sizes(layers: int, chunks: int) -> list[int]:
    """Layers of every chunk in model order, spread evenly; the rest go to chunks before the last."""
    base, left = divmod(layers, chunks)
    return [base + (chunks - 1 - left <= position < chunks - 1) for position in range(chunks)]


def _at_borders(sizes: Sequence[int], borders: Sequence[int]) -> list[int]:
    """Sizes of chunks that begin at the borders nearest to where those of `sizes` do; these where borders are too few.

    `borders` are rising positions of layers, the first one 0.
    """
    chunks, at, starts = len(sizes), 0, [0]
    if len(borders) < chunks:
        return list(sizes)
    for chunk, wanted in enumerate(accumulate(sizes[:-1]), start=1):
        possible = range(at + 1, len(borders) - (chunks - 1 - chunk))
        at = min(possible, key=lambda one: abs(borders[one] - wanted))
        starts.append(borders[at])
    return [end - start for start, end in pairwise([*starts, sum(sizes)])]


@dataclass(frozen=True)
class PipelinePlan:
    """Layers and recomputed layers of every chunk.

    Parameters
    ----------
    layers : mapping of str to int [vpp, pp]
        Layers by kind, kinds in model order; entry ``[v][s]`` is virtual stage v of stage s. Each separate run of
        layers of a kind has an entry, named after its kind (`kind_of`).
    recompute : mapping of str to int [vpp, pp]
        Layers of each chunk under a recompute mode (`FULL`, `SELECT`) or another choice of the problem, such as
        recompute of some modules or offload; a layer counts once, an absent mode is 0.

    Raises
    ------
    ValueError
        When shapes differ, a count is negative, or a chunk recomputes more layers than it holds.
    """

    layers: Mapping[str, Grid]
    recompute: Mapping[str, Grid]

    def __post_init__(self) -> None:
        grids = [*self.layers.values(), *self.recompute.values()]
        if not self.layers:
            raise ValueError("a plan needs at least one layer kind")
        shape = (len(grids[0]), len(grids[0][0]))
        if any(len(grid) != shape[0] or any(len(row) != shape[1] for row in grid) for grid in grids):
            raise ValueError(f"every grid of a plan must have the shape [vpp, pp] = {list(shape)}")
        if any(value < 0 for grid in grids for row in grid for value in row):
            raise ValueError("layer and recompute counts must be >= 0")
        for v, row in enumerate(self.total_layers()):
            for s, layers in enumerate(row):
                recomputed = sum(grid[v][s] for grid in self.recompute.values())
                if recomputed > layers:
                    raise ValueError(f"chunk [{v}][{s}] has {layers} layers but recomputes {recomputed}")

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes in the order in which a chunk's layers take them: full, select, other choices as they are named."""
        return (FULL, SELECT, *(mode for mode in self.recompute if mode not in RECOMPUTE_MODES))

    @property
    def interleaves(self) -> int:
        """Number of virtual stages (vpp)."""
        return len(next(iter(self.layers.values())))

    @property
    def stages(self) -> int:
        """Number of stages (pp)."""
        return len(next(iter(self.layers.values()))[0])

    def total_layers(self, kinds: Sequence[str] | None = None) -> Grid:
        """Layers of each chunk, int [vpp, pp], over all kinds or the given ones."""
        chosen = [self.layers[kind] for kind in (self.layers if kinds is None else kinds)]
        return tuple(
            tuple(sum(grid[v][s] for grid in chosen) for s in range(self.stages)) for v in range(self.interleaves)
        )

    def by_kind(self) -> dict[str, Grid]:
        """Layers by kind, the runs of a kind together, in the order in which the kinds begin."""
        runs: dict[str, list[str]] = {}
        for run in self.layers:
            runs.setdefault(kind_of(run), []).append(run)
        return {kind: self.total_layers(of) for kind, of in runs.items()}

    def without(self, *kinds: str) -> PipelinePlan:
        """The plan without all runs of kinds that are never recomputed; the same where it has none."""
        rest = {name: grid for name, grid in self.layers.items() if kind_of(name) not in kinds}
        return self if len(rest) == len(self.layers) else PipelinePlan(rest, self.recompute)

    def with_runs_joined(self, kind: str) -> PipelinePlan:
        """The plan in which all runs of a kind have one entry, in the place of the first."""
        runs = [run for run in self.layers if kind_of(run) == kind]
        if runs in ([], [kind]):
            return self
        joined = self.total_layers(runs)
        layers = {
            kind_of(run) if run in runs else run: grid for run, grid in self.layers.items() if run not in runs[1:]
        }
        return PipelinePlan({**layers, kind: joined}, self.recompute)

    def recomputed(self, mode: str) -> Grid:
        """Layers of each chunk under a recompute mode, int [vpp, pp]; zeros where the plan does not name it."""
        return self.recompute.get(mode, zero_grid(self.stages, self.interleaves))

    def uses(self, mode: str) -> bool:
        """Return whether any layer is under a recompute mode."""
        return any(map(any, self.recomputed(mode)))

    def offset(self, uncounted: Sequence[str] = ()) -> Grid:
        """Layers of each chunk above the even share L // (pp·vpp), int [vpp, pp].

        `uncounted` names kinds that do not count as layers (MTP in mcore-style files). The raw
        offset sums to L mod (pp·vpp), as MindFormers checks.
        """
        counts = self.total_layers([kind for kind in self.layers if kind not in uncounted])
        base = sum(map(sum, counts)) // (self.stages * self.interleaves)
        return tuple(tuple(value - base for value in row) for row in counts)

    def recompute_by_kind(self) -> dict[str, dict[str, Grid]]:
        """Layers by kind and mode (`NONE` included), each int [vpp, pp].

        The first layers of a chunk are fully recomputed, the next selectively, the next by other choices, in layer
        order, so the chunk's counts by mode say which kinds are meant.
        """
        named = self.modes
        result = {
            kind: {mode: [[0] * self.stages for _ in range(self.interleaves)] for mode in (*named, NONE)}
            for kind in self.layers
        }
        for v in range(self.interleaves):
            for s in range(self.stages):
                left = {mode: grid[v][s] for mode, grid in self.recompute.items()}
                for kind, grid in self.layers.items():
                    unassigned = grid[v][s]
                    for mode in named:
                        taken = min(unassigned, left.get(mode, 0))
                        result[kind][mode][v][s] = taken
                        left[mode] = left.get(mode, 0) - taken
                        unassigned -= taken
                    result[kind][NONE][v][s] = unassigned
        return {kind: {mode: as_grid(rows) for mode, rows in modes.items()} for kind, modes in result.items()}


def even_plan(
    counts: Mapping[str, int],
    stages: int,
    interleaves: int,
    *,
    v_shape: bool = False,
    pinned_last: Collection[str] = (),
    joined: Collection[str] = (),
    recompute: str = NONE,
) -> PipelinePlan:
    """The plan that spreads the layers evenly (`even_sizes`), all of them in one recompute mode.

    Parameters
    ----------
    counts : mapping of kind to int
        Layers by kind in model order.
    pinned_last : collection of str
        Kinds that always lie on the last chunk and are never recomputed (MTP where
        files do not count it among the layers).
    joined : collection of str
        Kinds that lie on the chunk of the layer before them. Chunks then begin at the nearest layers of other kinds,
        where these are enough.
    recompute : str
        The mode of every other layer.
    """
    pinned = {kind: stages * interleaves - 1 for kind in counts if kind in pinned_last}
    dealt = sum(count for kind, count in counts.items() if kind not in pinned)
    sizes = even_sizes(dealt, stages * interleaves)
    if joined:
        line = [kind for kind, count in counts.items() if kind not in pinned for _ in range(count)]
        sizes = _at_borders(sizes, [place for place, kind in enumerate(line) if kind not in joined])
    layers = deal_kinds(counts, sizes, stages, v_shape, pinned)
    return PipelinePlan(layers, {} if recompute == NONE else {recompute: grid_in_order(sizes, stages, v_shape)})
