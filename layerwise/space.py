"""The strategies that a layer, and embedding and head, may have on the ranks of a stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from taylor.base.errors import InputError
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy


@dataclass(frozen=True)
class SpaceLimits:
    """Limits of a search; by default it considers everything that Galvatron's does.

    Parameters
    ----------
    disable_dp, disable_tp, disable_sp, disable_cp, disable_pp : bool
        No data, tensor, Ulysses, context, pipeline parallelism.
    disable_recompute, disable_sharding : bool
        No recompute (``--disable_ckpt``); no ZeRO-3 (``--disable_fsdp``).
    disable_vocabulary_tp, disable_vocabulary_sp, disable_vocabulary_sharding : bool
        The same of embedding and head alone.
    most_tp, most_sp, most_cp, most_stages : int or None
        Largest degrees; None: as many as there are ranks.
    zeros : tuple of int
        ZeRO stages of replicated layers: 2 or 0, and 3; 0, 2 and 3 together in Paddle's space.
    offload : bool
        Activations may go to the host.
    all_degrees : bool
        Every divisor of the ranks is a degree, not powers of two alone.
    barred : frozenset of (int, int, int)
        (tp, sp, cp) of layers that the framework does not start.
    by_replicas : bool
        ZeRO spreads states over all ranks that hold the same parameters, as runtimes do; Galvatron's search looks at
        it with data parallel ranks alone.
    """

    disable_dp: bool = False
    disable_tp: bool = False
    disable_sp: bool = False
    disable_cp: bool = True
    disable_pp: bool = False
    disable_recompute: bool = False
    disable_sharding: bool = False
    disable_vocabulary_tp: bool = False
    disable_vocabulary_sp: bool = False
    disable_vocabulary_sharding: bool = False
    most_tp: int | None = None
    most_sp: int | None = None
    most_cp: int | None = None
    most_stages: int | None = None
    zeros: tuple[int, ...] = (2, 3)
    offload: bool = False
    all_degrees: bool = False
    barred: frozenset[tuple[int, int, int]] = frozenset()
    by_replicas: bool = False

    def stage_numbers(self, world: int, layers: int) -> tuple[int, ...]:
        """Numbers of stages that share the ranks evenly, each with a layer at least."""
        most = 1 if self.disable_pp else min(layers, self.most_stages or world)
        return tuple(n for n in self._degrees(world) if n <= most)

    def _degrees(self, ranks: int) -> tuple[int, ...]:
        degrees = range(1, ranks + 1)
        return tuple(n for n in degrees if ranks % n == 0 and (self.all_degrees or n & (n - 1) == 0))

    def _shapes(self, ranks: int) -> Iterator[tuple[int, int, int, int]]:
        """(tp, sp, cp, dp) of all ways to share a stage's ranks."""
        for tensor in (True, False):
            disabled, most = (self.disable_tp, self.most_tp) if tensor else (self.disable_sp, self.most_sp)
            for ways in self._degrees(ranks):
                if ways > (1 if disabled else most or ranks):
                    continue
                for cp in self._degrees(ranks // ways):
                    dp = ranks // ways // cp
                    if cp > (1 if self.disable_cp else self.most_cp or ranks) or (self.disable_dp and dp > 1):
                        continue
                    shape = (ways, 1, cp) if tensor else (1, ways, cp)
                    if shape not in self.barred:
                        yield *shape, dp

    def layers(self, ranks: int) -> tuple[LayerStrategy, ...]:
        """The strategies of a layer on a stage of `ranks` ranks, sorted.

        A layer without data parallel ranks has no ZeRO in Galvatron's search (Hetu-Galvatron cea12ff
        galvatron/core/search_engine/search_engine.py:113-174).

        Raises
        ------
        InputError
            When none remains.
        """
        found = set()
        for tp, sp, cp, dp in self._shapes(ranks):
            zeros = [zero for zero in self.zeros if zero != 3 or not self.disable_sharding]
            replicas = dp * sp * cp if self.by_replicas else dp
            for zero in zeros if replicas > 1 else (0,):
                found.add(LayerStrategy(tp, sp, cp, dp, zero))
                if not self.disable_recompute:
                    found.add(LayerStrategy(tp, sp, cp, dp, zero, recompute=True))
                if self.offload:
                    found.add(LayerStrategy(tp, sp, cp, dp, zero, offload=True))
        if not found:
            raise InputError(
                f"leaves no strategy of a layer on a stage of {ranks} ranks",
                field="--disable_…, --max_…",
                cure="allow one more kind of parallelism, or larger degrees",
            )
        return tuple(sorted(found))

    def ends(self, ranks: int) -> tuple[EndStrategy, ...]:
        """The strategies of embedding and head on such a stage, sorted; none where no layer's serves."""
        return tuple(
            sorted(
                {
                    each.end
                    for each in self.layers(ranks)
                    if not (self.disable_vocabulary_tp and each.tp > 1)
                    and not (self.disable_vocabulary_sp and each.sp > 1)
                    and not (self.disable_vocabulary_sharding and each.zero == 3)
                }
            )
        )


def batch_sizes(least: int, most: int, step: int) -> tuple[int, ...]:
    """The global batches of a search (search_engine.py:735-739)."""
    return tuple(range(max(least, step), most + 1, step))


def divisors(number: int) -> tuple[int, ...]:
    """Divisors of a number, from 1 up."""
    return tuple(n for n in range(1, number + 1) if number % n == 0)
