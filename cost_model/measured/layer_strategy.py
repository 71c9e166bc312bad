"""Strategy of one layer, and of embedding and head, on the ranks of a stage; and a whole plan of such choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from taylor.base.errors import InputError

ZERO_STAGES = (0, 2, 3)
"""0: whole states on every replica; 2: gradients and optimizer states divided; 3: parameters too."""


@dataclass(frozen=True, order=True)
class EndStrategy:
    """Strategy of embedding and head on the ranks of their stages.

    Parameters
    ----------
    tp : int
        Ways in which the vocabulary is split.
    sp : int
        Ways in which the sequence is split with the vocabulary whole (Ulysses); `tp` or `sp` is 1.
    cp : int
        Ways of context parallelism.
    dp : int
        Ways in which the batch is split.
    zero : int
        One of `ZERO_STAGES`.
    """

    tp: int = 1
    sp: int = 1
    cp: int = 1
    dp: int = 1
    zero: int = 0

    def __post_init__(self) -> None:
        assert self.tp == 1 or self.sp == 1, "tensor parallelism and Ulysses share no layer"
        assert self.zero in ZERO_STAGES

    @property
    def ways(self) -> int:
        """Ways of tensor parallelism or Ulysses."""
        return max(self.tp, self.sp)

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters, unless ZeRO splits them."""
        return self.dp * self.sp * self.cp

    @property
    def ranks(self) -> int:
        """Ranks of a stage."""
        return self.tp * self.sp * self.cp * self.dp

    def replace(self, **changes: Any) -> Any:
        """A copy with some fields changed."""
        return replace(self, **changes)

    @property
    def name(self) -> str:
        """As tables write it: ``tp4 dp2 zero3``."""
        degrees = [f"{name}{getattr(self, name)}" for name in ("tp", "sp", "cp", "dp") if getattr(self, name) > 1]
        zero = [f"zero{self.zero}"] if self.zero else []
        return " ".join([*degrees, *zero]) or "one rank"


@dataclass(frozen=True, order=True)
class LayerStrategy(EndStrategy):
    """Strategy of one layer on the ranks of its stage, and what it keeps.

    Parameters
    ----------
    tp, sp, cp, dp, zero
        As `EndStrategy`: tensor parallelism or Ulysses, context, data parallelism, ZeRO stage.
    recompute : bool
        The forward runs again in the backward.
    offload : bool
        Activations go to the host between forward and backward.
    ep, expert_tp : int
        Expert parallelism, and tensor parallelism inside an expert.
    """

    recompute: bool = False
    offload: bool = False
    ep: int = 1
    expert_tp: int = 1

    @property
    def name(self) -> str:
        """As tables write it: ``tp4 dp2 zero3 recompute``."""
        kept = ["recompute"] * self.recompute + ["offload"] * self.offload
        experts = [f"ep{self.ep}"] * (self.ep > 1) + [f"etp{self.expert_tp}"] * (self.expert_tp > 1)
        return " ".join([super().name, *experts, *kept])

    @property
    def end(self) -> EndStrategy:
        """Embedding and head spread as this layer is."""
        return EndStrategy(self.tp, self.sp, self.cp, self.dp, self.zero)


@dataclass(frozen=True)
class LayerwisePlan:
    """A separate strategy for every layer.

    Parameters
    ----------
    division : tuple of int
        Layers of every chunk, in model order [vpp · pp]; with one virtual stage, of every stage.
    layers : tuple of LayerStrategy
        In model order.
    ends : EndStrategy
        Embedding and head.
    global_batch : int
        Samples a step.
    micro_batches : int
        Micro-batches a step.
    schedule : str
        ``1f1b``, ``gpipe``, or one with several virtual stages, by its name in `taylor.pipeline.schedule`.
    apart : tuple of int
        Layers whose tensor parallel ranks are not consecutive, by number.
    interleaves : int
        Chunks of every stage.
    """

    division: tuple[int, ...]
    layers: tuple[LayerStrategy, ...]
    ends: EndStrategy
    global_batch: int
    micro_batches: int
    schedule: str = "1f1b"
    apart: tuple[int, ...] = ()
    interleaves: int = 1

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return len(self.division) // self.interleaves

    @property
    def world(self) -> int:
        """Ranks."""
        return self.stages * self.layers[0].ranks

    def on_stage(self, stage: int) -> tuple[LayerStrategy, ...]:
        """The layers of one stage, chunk after chunk."""
        chunks = range(stage, len(self.division), self.stages)
        return tuple(layer for chunk in chunks for layer in self.on_chunk(chunk))

    def on_chunk(self, chunk: int) -> tuple[LayerStrategy, ...]:
        """The layers of one chunk, by its place in model order."""
        start = sum(self.division[:chunk])
        return self.layers[start : start + self.division[chunk]]

    @property
    def uniform(self) -> bool:
        """Return whether all layers are alike, recompute included, and stages even with the remainder on the last."""
        even = even_division(len(self.layers), self.stages)
        return self.interleaves == 1 and len(set(self.layers)) == 1 and self.division == even

    def runs(self) -> Iterator[tuple[int, int, LayerStrategy]]:
        """Layers of a stage that follow each other and are alike: stage, how many, and their strategy."""
        for stage in range(self.stages):
            count, before = 0, None
            for layer in self.on_stage(stage):
                if before is not None and layer != before:
                    yield stage, count, before
                    count = 0
                count, before = count + 1, layer
            if before is not None:
                yield stage, count, before

    def refuse_odd_batch(self, file: object, field: str) -> None:
        """Refuse a batch that the ranks cannot divide.

        Raises
        ------
        InputError
            When it is no multiple of a stage's ranks over the least ways and the least context parallelism of all
            (Hetu-Galvatron cea12ff galvatron/core/runtime/hybrid_parallel_config.py, `min_tp` and `min_cp`).
        """
        every = (*self.layers, self.ends)
        ways = self.layers[0].ranks // min(each.ways for each in every) // min(each.cp for each in every)
        if self.global_batch % ways:
            nearest = max(1, round(self.global_batch / ways)) * ways
            raise InputError(
                f"must be a multiple of {ways}, the most ways in which a layer can split it",
                file=str(file),
                field=field,
                value=self.global_batch,
                cure=f"take {nearest}",
            )


def even_division(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of every stage, the remainder on the last one (Hetu-Galvatron cea12ff
    galvatron/core/search_engine/search_engine.py, `pp_division_even`)."""
    each = layers // stages
    return (*[each] * (stages - 1), layers - each * (stages - 1))
