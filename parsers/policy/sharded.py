"""A policy's training on parameters that torch shards (FSDP, DTensor): no pipeline, one choice of recompute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import GATHERED_RING, Strategy, TrainingRules
from taylor.parsers.flag_table import EITHER, UnmodelledFlag
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, deal_kinds
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.adapters import Adapters
from taylor.register.frameworks import Framework
from taylor.register.model import ModelSpec

MODEL_CODE = UnmodelledFlag(
    "the layers' own code",
    None,
    EITHER,
    EITHER,
    None,
    "layers, loss and kernels are counted as torchtitan's (assumed), whose FSDP it uses; Hugging Face's layers keep "
    "more where nothing is recomputed, and start more kernels",
    spares_states=True,
)
"""What sets such a job apart from torchtitan's, whose figures it gets."""


@dataclass(frozen=True)
class ShardedJob:
    """What a job states of its policy's training.

    Parameters
    ----------
    file : Path
        Its file.
    launcher : str
        Name of its launcher.
    model : ModelSpec
    framework : Framework
        The record whose rules of states and activations it gets.
    ranks : int
        World size of the policy.
    length, samples, micro_batch : int
        Tokens of the longest sample, samples a step, samples a micro-batch of one data-parallel rank.
    tp, cp, ep : int
        Degrees; ``cp`` splits a sample's tokens.
    shards : int
        Ranks that parameters are divided over; the others hold replicas.
    ulysses : bool
        Heads are exchanged among the ranks of ``cp``; off: keys and values go round a ring.
    sequence : bool
        Sequence parallelism beside ``tp``.
    recomputed : bool
        Every layer is run again in its backward.
    inputs_on_host : bool
        The inputs of recomputed layers wait on the host.
    stored_bytes, compute_bytes : int
        Bytes of a stored parameter and of the type of the GEMMs.
    reduced_bytes : int
        Bytes of a gradient as it is reduced.
    stay_gathered : bool
        Parameters stay gathered between forward and backward.
    compiled : bool
        The layers are compiled.
    loss_kernel : str or None
        As `TrainingRules.loss_kernel`.
    adapters : Adapters or None
        Adapters that train alone; None: all weights train.
    frozen : tuple of str
        As `TrainingRules.frozen`.
    mlp_tiles : int
        As `TrainingRules.mlp_tiles`.
    moments_bytes : int or None
        As `OptimizerStates.moments_bytes`; None: those of torch's AdamW, two of the stored type.
    open_note : str
        The sentence that says where an assumed world size comes from; empty where the file states it.
    """

    file: Path
    launcher: str
    model: ModelSpec
    framework: Framework
    ranks: int
    length: int
    samples: int
    micro_batch: int
    tp: int = 1
    cp: int = 1
    ep: int = 1
    shards: int = 1
    ulysses: bool = True
    sequence: bool = False
    recomputed: bool = False
    inputs_on_host: bool = False
    stored_bytes: int = 4
    compute_bytes: int = 2
    reduced_bytes: int = 4
    stay_gathered: bool = False
    compiled: bool = False
    loss_kernel: str | None = None
    adapters: Adapters | None = None
    frozen: tuple[str, ...] = ()
    mlp_tiles: int = 0
    moments_bytes: int | None = None
    open_note: str = ""

    @property
    def replicas(self) -> int:
        """Data-parallel ranks."""
        return self.ranks // (self.tp * self.cp)


def sharded_config(
    job: ShardedJob, notes: Sequence[str], unmodelled: Sequence[UnmodelledFlag], names: dict[str, str]
) -> TrainingConfig:
    """The training of a job.

    Parameters
    ----------
    names : dict of str to str
        Key of each degree in the file, by `Strategy`'s name, for errors.

    Raises
    ------
    InputError
        When the degrees do not divide the ranks, or the micro-batch not the batch.
    """
    _check(job, names)
    dp = job.replicas
    strategy = Strategy(
        dp=dp,
        tp=job.tp,
        pp=1,
        ep=job.ep,
        cp=job.cp,
        op=job.shards,
        sp=job.sequence and job.tp > 1,
        mbs=job.micro_batch,
        micro_batches=job.samples // (dp * job.micro_batch),
    )
    model = job.model.replace(mtp_layers=0) if job.model.mtp_layers else job.model
    layers = deal_kinds(model.layer_counts(), [model.n_layers], 1, False)
    recomputed = as_grid([[model.n_layers if job.recomputed else 0]])
    unit = job.tp * job.cp
    left_open = OpenRanks(unit, f"TP x CP = {unit:,}", job.open_note) if job.open_note else None
    return TrainingConfig(
        path=job.file,
        launcher=job.launcher,
        model=model,
        strategy=strategy,
        rules=_rules(job),
        schedule=ScheduleSpec(),
        plan=PipelinePlan(layers, {FULL: recomputed}),
        mtp_counted=False,
        open_ranks=left_open,
        notes=tuple(notes),
        unmodelled=(*unmodelled, MODEL_CODE),
    )


def _rules(job: ShardedJob) -> TrainingRules:
    half = job.stored_bytes < 4
    sharded = job.shards > 1
    # Parameters in 16 bits are updated as they are, with moments and gradients of their type (torch.optim.AdamW).
    moments = job.moments_bytes
    states = OptimizerStates(2, 0, moments or 4, reduced_bytes=job.reduced_bytes) if half else OptimizerStates(
        moments_bytes=moments, reduced_bytes=None if job.reduced_bytes == 4 else job.reduced_bytes
    )  # fmt: skip
    return TrainingRules(
        framework=job.framework,
        seq_length=job.length,
        parallel_optimizer=sharded,
        gradient_shard=sharded,
        parameter_shard=sharded,
        param_bytes=job.stored_bytes,
        compute_bytes=job.compute_bytes,
        optimizer=states,
        stay_gathered=sharded and job.stay_gathered,
        separate_pools=sharded,
        ulysses_degree=None if job.ulysses else 1,
        ring=GATHERED_RING,
        repeats_kv_heads=job.ulysses,
        compiled=job.compiled,
        adapters=job.adapters,
        frozen=job.frozen,
        mlp_tiles=job.mlp_tiles,
        loss_kernel=job.loss_kernel,
        inputs_on_host=job.inputs_on_host and job.recomputed,
    )


def _check(job: ShardedJob, names: dict[str, str]) -> None:
    unit = job.tp * job.cp
    if job.ranks % unit:
        problem = f"makes {job.ranks:,} ranks, which TP x CP = {job.tp} x {job.cp} does not divide"
        raise InputError(problem, file=job.file, field=names["dp"], value=job.ranks, cure="start other ranks")
    once = job.replicas * job.micro_batch
    if job.samples % once:
        product = f"micro-batch x DP = {job.micro_batch} x {job.replicas}"
        problem = f"makes {job.samples:,} samples a step, no multiple of {product}"
        raise InputError(problem, file=job.file, field=names["gbs"], value=job.samples, cure="change one of them")


def refuse_other_degrees(config: TrainingConfig, strategy: Strategy, fixed: Sequence[str]) -> None:
    """Refuse a strategy that differs in a degree that no option of the file states.

    Raises
    ------
    InputError
        With the degree.
    """
    for name in fixed:
        if getattr(strategy, name) != getattr(config.strategy, name):
            raise InputError(
                "is stated by no option of the file",
                file=config.path,
                field=name,
                value=getattr(strategy, name),
                cure=f"plan with {name} {getattr(config.strategy, name)}",
            )
    if strategy.world_size != config.strategy.world_size:
        cure = f"plan with {config.strategy.world_size:,} ranks"
        raise InputError(
            "has other ranks", file=config.path, field="--world_size", value=strategy.world_size, cure=cure
        )
