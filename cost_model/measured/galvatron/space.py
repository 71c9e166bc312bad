"""The strategies and batch sizes that Galvatron's search looks at."""

from __future__ import annotations

from collections.abc import Iterator

from taylor.cost_model.measured.layer_strategy import LayerStrategy


def batch_sizes(least: int, most: int, step: int) -> tuple[int, ...]:
    """The global batches of a search (Hetu-Galvatron cea12ff galvatron/core/search_engine/search_engine.py:735-739)."""
    return tuple(range(max(least, step), most + 1, step))


def layer_strategies(
    world: int,
    layers: int,
    *,
    most_stages: int | None = None,
    most_tp: int | None = None,
    most_sp: int | None = None,
    most_cp: int = 1,
    default_zero: int = 2,
    recompute: bool = True,
) -> Iterator[tuple[int, LayerStrategy]]:
    """Every number of stages with every strategy of a layer on them (search_engine.py:113-174).

    Degrees are powers of two; a layer without data parallel ranks has no ZeRO.

    Parameters
    ----------
    default_zero : int
        ZeRO stage of layers whose parameters are whole: 0 or 2.
    """
    degrees = [1]
    while degrees[-1] * 2 <= world:
        degrees.append(degrees[-1] * 2)
    for stages in degrees:
        if stages > min(layers, most_stages or stages):
            continue
        seen = set()
        for tensor, most in ((True, most_tp), (False, most_sp)):
            for ways in degrees:
                for cp in degrees:
                    if ways > (most or ways) or cp > most_cp or stages * ways * cp > world:
                        continue
                    dp = world // stages // ways // cp
                    for zero in (0,) if dp == 1 else (default_zero, 3):
                        for again in (False, True) if recompute else (False,):
                            tp, sp = (ways, 1) if tensor else (1, ways)
                            seen.add(LayerStrategy(tp, sp, cp, dp, zero, again))
        for strategy in sorted(seen):
            yield stages, strategy
