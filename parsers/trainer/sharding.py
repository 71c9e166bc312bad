"""Ways in which a data-parallel job divides its states: torch's DDP, torch's FSDP, DeepSpeed's ZeRO."""

from __future__ import annotations

from dataclasses import dataclass

from taylor.cost_model.job.strategy import ENGINE_RING

DDP, FSDP, ZERO = "DDP", "FSDP", "ZeRO"


@dataclass(frozen=True)
class Context:
    """Ranks that share a sample.

    Parameters
    ----------
    ranks : int
    exchanges_heads : bool
        They exchange heads (Ulysses). Off: keys and values go round a ring.
    ring : str
        As `TrainingRules.ring` has it.
    """

    ranks: int = 1
    exchanges_heads: bool = False
    ring: str = ENGINE_RING


@dataclass(frozen=True)
class Sharding:
    """Division of weights, gradients and optimizer states over the data-parallel ranks.

    Parameters
    ----------
    kind : str
        `DDP`, `FSDP` or `ZERO`.
    stage : int
        Of `ZERO`: 0 to 3. Of `FSDP`: 3.
    stays_gathered : bool
        Of `FSDP`: weights stay gathered from forward to backward (``SHARD_GRAD_OP``, ``reshard_after_forward`` off).
    whole_ends : bool
        Of `FSDP`: embedding and head stay gathered once they were.
    group : int or None
        Ranks of one shard where shards are replicated; None: all.
    states_on_host : bool
        Optimizer states lie in the host's memory, where the step updates them.
    gradients_on_host : bool
        Gradients go there as they are reduced.
    overlaps : bool
        Reductions run beside the backward.
    gradient_bytes : int or None
        Bytes of an accumulated gradient; None: the weights'.
    buffer_elements : float
        Elements of buffers beside the states, in the compute type: buckets of reductions, weights that stay gathered.
    fp32_step : bool
        The step makes an fp32 copy of the gradients.
    checkpoints : bool
        It recomputes every layer by a setting of its own.
    wide_weights : bool
        Weights are stored in fp32 however they were loaded.
    notes : tuple of str
        Settings that no figure includes, one sentence each.
    """

    kind: str = DDP
    stage: int = 0
    stays_gathered: bool = False
    whole_ends: bool = False
    group: int | None = None
    states_on_host: bool = False
    gradients_on_host: bool = False
    overlaps: bool = True
    gradient_bytes: int | None = None
    buffer_elements: float = 0.0
    fp32_step: bool = False
    checkpoints: bool = False
    wide_weights: bool = False
    notes: tuple[str, ...] = ()

    @property
    def shards_optimizer(self) -> bool:
        """Return whether optimizer states are divided."""
        return self.stage >= 1

    @property
    def shards_gradients(self) -> bool:
        """Return whether gradients are divided too."""
        return self.stage >= 2

    @property
    def shards_weights(self) -> bool:
        """Return whether weights are divided too."""
        return self.stage >= 3
