"""Tasks of Galvatron's search: every batch, micro-batches, stages and limits of its inner program.

Hetu: Hetu-Galvatron cea12ff galvatron/core/search_engine/search_engine.py:513-700. Paddle: paddle-galvatron b0bdd07
paddlenlp/experimental/galvatron/search_engine/search_engine.py (`layerwise_parallelism_optimization`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy
from taylor.layerwise.space import SpaceLimits, divisors

BOTH, TENSOR, ULYSSES = "both", "tensor", "ulysses"
"""Ways of splitting a layer that a task considers."""


@dataclass(frozen=True)
class Task:
    """One run of its inner program.

    Parameters
    ----------
    global_batch, micro_batches, stages : int
    strategies : tuple of LayerStrategy
        In the order in which ties are settled.
    ends : tuple of EndStrategy
    buffer_tp : int or None
        TP degree that the buffer of gathered hidden states is kept for.
    """

    global_batch: int
    micro_batches: int
    stages: int
    strategies: tuple[LayerStrategy, ...]
    ends: tuple[EndStrategy, ...]
    buffer_tp: int | None = None


def hetu_tasks(
    world: int,
    layers: int,
    limits: SpaceLimits,
    batches: tuple[int, ...],
    micro_batches: int | None,
    stages: int | None = None,
) -> Iterator[Task]:
    """The tasks of Hetu's search, in its order; `micro_batches` and `stages` None: all that it looks at."""
    for batch in batches:
        for m in divisors(batch) if micro_batches is None else (micro_batches,):
            for pp in limits.stage_numbers(world, layers) if stages is None else (stages,):
                if batch % m or pp > m:
                    continue
                ranks = world // pp
                most_tp = min(ranks, limits.most_tp or ranks)
                most_dp = max(min(batch // m, ranks), 1)
                least_tp = max(ranks // most_dp, 1)
                every, ends = limits.layers(ranks), limits.ends(ranks)
                for mode in (TENSOR, ULYSSES, BOTH):
                    sizes = [most_tp] if mode == ULYSSES else range(least_tp, most_tp + 1)
                    for tp in sizes:
                        if mode != ULYSSES and tp & (tp - 1):
                            continue
                        yield Task(
                            batch, m, pp,
                            tuple(each for each in every if _within(each, mode, tp, most_dp)),
                            tuple(each for each in ends if _within(each, mode, tp, most_dp)),
                            None if mode == ULYSSES else tp,
                        )  # fmt: skip


def _within(strategy: EndStrategy, mode: str, most_ways: int, most_dp: int) -> bool:
    if mode == TENSOR and strategy.sp > 1 or mode == ULYSSES and strategy.tp > 1:
        return False
    return strategy.ways <= most_ways and strategy.dp <= most_dp


def paddle_tasks(
    world: int,
    layers: int,
    limits: SpaceLimits,
    batches: tuple[int, ...],
    micro_batches: int | None = None,
    stages: int | None = None,
) -> Iterator[Task]:
    """The tasks of the port to Paddle, in its order, one for every ZeRO of the ends and every degree of theirs."""
    most = limits.most_tp or world
    sizes = [1]
    while not limits.disable_vocabulary_tp and sizes[-1] * 2 <= min(world, most):
        sizes.append(sizes[-1] * 2)
    modes = (TENSOR,) if limits.disable_sp else (TENSOR, ULYSSES, BOTH)
    for batch in batches:
        for m in divisors(batch) if micro_batches is None else (micro_batches,):
            for least in sizes:
                for largest in (size for size in sizes if size >= least):
                    for ulysses in (False,) if limits.disable_sp else (False, True):
                        for sharded in (False,) if limits.disable_vocabulary_sharding else (False, True):
                            for mode in modes:
                                if (mode, ulysses) in ((TENSOR, True), (ULYSSES, False)):
                                    continue
                                for pp in limits.stage_numbers(world, layers) if stages is None else (stages,):
                                    yield from _paddle_task(
                                        world, limits, batch, m, pp, least, largest, mode, ulysses, sharded
                                    )


def _paddle_task(
    world: int, limits: SpaceLimits, batch: int, m: int, pp: int, least: int, largest: int, mode: str,
    ulysses: bool, sharded: bool,
) -> Iterator[Task]:  # fmt: skip
    ranks = world // pp
    if batch % m or least > ranks or batch // m < ranks // least or batch % (ranks // least):
        return
    strategies = [
        each for each in limits.layers(ranks) if least <= each.ways <= largest and _within(each, mode, largest, ranks)
    ]
    strategies.sort(key=lambda each: (each.sp > 1, each.ways, each.zero, each.recompute))
    ends = []
    ways = least
    while ways <= largest and ways <= ranks:
        tp, sp = (1, ways) if ulysses else (ways, 1)
        ends.append(EndStrategy(tp, sp, 1, ranks // ways, 3 if sharded else 2))
        ways *= 2
    if strategies and ends:
        yield Task(batch, m, pp, tuple(strategies), tuple(ends))
