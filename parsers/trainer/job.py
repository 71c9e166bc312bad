"""A job of Hugging Face's Trainer, whatever file states it, as a `TrainingConfig` of one stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import MODULE_AN_EXPERT, Strategy, TrainingRules
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.trainer.optimizers import MOMENTS, Moments
from taylor.parsers.trainer.sharding import ZERO, Context, Sharding
from taylor.parsers.training_config import Misfit, TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, zero_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.adapters import EMBEDDING, Adapters
from taylor.register.model import ModelSpec
from taylor.register.trainers import DEEPSPEED, TRANSFORMERS

ASSUMED_RANKS = 8
"""Ranks of a job whose file does not state them: one node of eight devices (assumed)."""
_MIB = 2**20
_WIDE, _HALF = 4, 2


@dataclass(frozen=True)
class TrainerJob:
    """Settings of a job that memory and time depend on.

    Parameters
    ----------
    file : Path
        The file that states it.
    launcher : str
        Name of its launcher.
    model : ModelSpec
    sharding : Sharding
    mbs, accumulation : int
        Samples a micro-batch, and micro-batches a step on one data-parallel rank.
    seq_length : int
        Tokens of a sample.
    recomputes : bool
        Every layer runs again in backward (gradient checkpointing).
    optimizer : str
        Its name, as `optimizers.MOMENTS` has it.
    usual_optimizer : bool
        No file names it: it is the Trainer's default.
    world : int or None
        Ranks where the file states them.
    tp : int
        Tensor parallel degree.
    context : Context
    loaded_bytes : int
        Bytes of a weight as the program loads it.
    compute_bytes : int
        Bytes of a weight as GEMMs take it.
    pairs : bool
        A sample is a pair of answers beside a reference model (DPO).
    fused_loss : bool
        Logits and loss are computed in pieces by one kernel (liger, cut cross entropy).
    eager_attention : bool
        Scores of attention are stored.
    compiled : bool
        ``torch.compile`` fuses element-wise operations.
    fused_elements : bool
        Norms, rotary embedding and activation functions are a kernel each (liger's).
    adapters : Adapters or None
        Adapters that train alone; None: all weights train that `frozen` and the model's layers leave.
    frozen : tuple of str
        Parts outside the layers whose weights are frozen (`TrainingRules.frozen`).
    mlp_tiles : int
        As `TrainingRules.mlp_tiles`.
    length : TrainingLength
    stated_batch : int or None
        Samples a step of all ranks where DeepSpeed's JSON states them.
    misfits : tuple of Misfit
        Start-up checks that its file fails.
    notes : tuple of str
    unmodelled : tuple of UnmodelledFlag
    """

    file: Path
    launcher: str
    model: ModelSpec
    sharding: Sharding
    mbs: int
    accumulation: int
    seq_length: int
    recomputes: bool
    optimizer: str
    usual_optimizer: bool = False
    world: int | None = None
    tp: int = 1
    context: Context = Context()
    loaded_bytes: int = _HALF
    compute_bytes: int = _HALF
    pairs: bool = False
    fused_loss: bool = False
    eager_attention: bool = False
    compiled: bool = False
    fused_elements: bool = False
    adapters: Adapters | None = None
    frozen: tuple[str, ...] = ()
    mlp_tiles: int = 0
    length: TrainingLength = UNSTATED
    stated_batch: int | None = None
    misfits: tuple[Misfit, ...] = ()
    notes: tuple[str, ...] = ()
    unmodelled: tuple[UnmodelledFlag, ...] = field(default=())

    @property
    def cp(self) -> int:
        """Context parallel degree."""
        return self.context.ranks

    @property
    def moments(self) -> Moments:
        """The optimizer's moments.

        Raises
        ------
        InputError
            When they are not known.
        """
        return MOMENTS[self.optimizer]


def config_of(job: TrainerJob) -> TrainingConfig:
    """The configuration of a job.

    Raises
    ------
    InputError
        When its ranks are no multiple of its degrees.
    """
    notes = [
        *job.notes,
        *job.sharding.notes,
        "it has no pipeline stages: a plan states gradient checkpointing, of all layers or none",
    ]
    if job.model.mtp_layers:
        notes.append("transformers trains no MTP module")
    model = job.model.replace(mtp_layers=0)
    strategy, left_open = _strategy(job)
    if left_open is not None:
        notes.append(left_open.note)
    if job.usual_optimizer and job.adapters is None and job.sharding.kind != ZERO:
        notes.append(
            "the optimizer is not stated: transformers with torch before 2.8 takes adamw_torch, whose step copies the "
            "second moments"
        )
    if job.moments.paged:
        notes.append("the optimizer's paged moments are counted on the device")
    return TrainingConfig(
        path=job.file,
        launcher=job.launcher,
        model=model,
        strategy=strategy,
        rules=_rules(job, strategy),
        schedule=ScheduleSpec(),
        plan=_plan(job),
        mtp_counted=False,
        misfits=(*job.misfits, *_other_batch(job, strategy)),
        open_ranks=left_open,
        batch_follows_ranks=True,
        notes=tuple(notes),
        unmodelled=job.unmodelled,
        length=job.length,
    )


def _strategy(job: TrainerJob) -> tuple[Strategy, OpenRanks | None]:
    """Degrees; the ranks that nothing states are one node's, or the least multiple of the degrees beyond."""
    unit = job.tp * job.cp
    why = f"TP x CP = {unit:,}"
    group = job.sharding.group
    if group is not None and job.sharding.shards_weights:
        unit = unit * (group // job.cp if group % job.cp == 0 else group)
        why = f"{why} and shards over {group:,} ranks"
    left_open = None
    world = job.world
    if world is None and job.stated_batch and job.stated_batch % (job.mbs * job.accumulation) == 0:
        world = job.stated_batch // (job.mbs * job.accumulation) * job.tp * job.cp
    if world is None:
        world = unit * max(1, -(-ASSUMED_RANKS // unit))
        note = f"no file states the ranks: a world size of {world:,} is assumed; --world_size names another"
        left_open = OpenRanks(unit, why, note, shards_grow=group is None)
    if world % (job.tp * job.cp):
        cure = "correct the number of processes, or the degrees"
        raise InputError(f"is no multiple of {why}", file=job.file, field="ranks", value=world, cure=cure)
    dp = world // (job.tp * job.cp)
    replicas = dp * job.cp
    op = 1
    if job.sharding.shards_optimizer:
        op = replicas if group is None else min(group, replicas)
    if replicas % op:
        op = replicas
    strategy = Strategy(dp=dp, tp=job.tp, pp=1, cp=job.cp, op=op, sp=False, mbs=job.mbs, micro_batches=job.accumulation)
    return strategy, left_open


def _other_batch(job: TrainerJob, strategy: Strategy) -> tuple[Misfit, ...]:
    """The batch of DeepSpeed's JSON where it is not the ranks' (DeepSpeed edaa7221 deepspeed/runtime/config.py:937)."""
    if job.stated_batch is None or job.stated_batch == strategy.global_batch:
        return ()
    each = f"{strategy.dp} x {job.mbs} x {job.accumulation}"
    misfit = Misfit(
        "deepspeed.train_batch_size",
        job.stated_batch,
        f"is not data-parallel ranks x micro-batch x accumulation = {each}",
        'write "auto", or start other ranks',
        "deepspeed-batch-as-stated",
        "DeepSpeed edaa7221 deepspeed/runtime/config.py:937",
    )
    return (misfit,)


def _rules(job: TrainerJob, strategy: Strategy) -> TrainingRules:
    """Bytes and places of the states.

    DDP keeps a copy of the gradients in its buckets (torch 2.13 torch/nn/parallel/distributed.py,
    ``gradient_as_bucket_view`` off). FSDP's gradients are reduced in the compute type (accelerate 16cb6eb8
    src/accelerate/utils/dataclasses.py, ``set_mixed_precision``), and without a reduction until the last micro-batch
    (transformers v4.57.1 src/transformers/trainer.py, ``no_sync``).
    """
    sharding = job.sharding
    stored, optimizer = _states(job, strategy)
    overhead = None
    framework = DEEPSPEED if sharding.kind == ZERO else TRANSFORMERS
    if sharding.buffer_elements:
        overhead = framework.statics.overhead_mib + sharding.buffer_elements * job.compute_bytes / _MIB
    alone = sharding.kind != ZERO and not sharding.shards_weights
    # Frozen weights are stored in the compute type; peft casts adapters to fp32 (peft 5d602fdb
    # src/peft/tuners/tuners_utils.py, ``cast_adapter_dtype``).
    autocast = alone and stored > job.compute_bytes and job.adapters is None
    return TrainingRules(
        framework=framework,
        seq_length=job.seq_length,
        parallel_optimizer=sharding.shards_optimizer,
        gradient_shard=sharding.shards_gradients,
        parameter_shard=sharding.shards_weights,
        stay_gathered=sharding.shards_weights and sharding.stays_gathered,
        whole_ends=sharding.shards_weights and sharding.whole_ends,
        accumulates_whole=sharding.shards_weights and sharding.kind != ZERO,
        param_bytes=stored,
        compute_bytes=job.compute_bytes,
        autocast=autocast,
        # The rows of a frozen embedding are in the compute type, as the frozen weights are.
        wide_residual=True if autocast and EMBEDDING not in job.frozen else None,
        flash_attention=not job.eager_attention,
        expert_tensor_parallel=False,
        expert_gemms=MODULE_AN_EXPERT,
        overlap_reduction=sharding.overlaps,
        loss_chunks=_loss_chunks(job.model) if job.fused_loss else 1,
        compiled=job.compiled or job.fused_elements,
        compiled_loss=False,
        optimizer=optimizer,
        overhead_mib=overhead,
        pairs=job.pairs,
        ulysses_degree=None if job.context.exchanges_heads else 1,
        ring=job.context.ring,
        adapters=job.adapters,
        frozen=job.frozen,
        mlp_tiles=job.mlp_tiles,
    )


def _states(job: TrainerJob, strategy: Strategy) -> tuple[int, OptimizerStates]:
    """Bytes of a stored weight, and the optimizer's states.

    Under ZeRO weights and gradients are in the compute type, and the shard of each rank has an fp32 copy (DeepSpeed
    edaa7221 deepspeed/runtime/engine.py:1483-1496, deepspeed/runtime/zero/stage_1_and_2.py:490-516). Else the optimizer
    updates the stored weights.
    """
    sharding, compute = job.sharding, job.compute_bytes
    if sharding.kind == ZERO:
        gradient = 0 if sharding.gradients_on_host else sharding.gradient_bytes or compute
        if compute == _WIDE:
            return _WIDE, _of(job, _WIDE, OptimizerStates(gradient), sharding)
        step = _WIDE if sharding.fp32_step else 0
        states = OptimizerStates(gradient, master_bytes=_WIDE, step_bytes=step, reduced_bytes=compute)
        return _HALF, _of(job, _WIDE, states, sharding)
    wide = sharding.wide_weights or job.loaded_bytes == _WIDE or job.adapters is not None
    stored = _WIDE if wide else _HALF
    master = None if stored == _WIDE else 0
    if sharding.shards_weights:
        gradient = 0 if sharding.gradients_on_host else stored
        states = OptimizerStates(gradient, master_bytes=master, reduced_bytes=compute)
        return stored, _of(job, stored, states, sharding)
    copies = 2 if strategy.dp > 1 else 1
    return stored, _of(job, stored, OptimizerStates(copies * stored, master_bytes=master), sharding)


def _of(job: TrainerJob, weight: int, states: OptimizerStates, sharding: Sharding) -> OptimizerStates:
    """States with the optimizer's moments, and the host where it holds them."""
    on_host = sharding.states_on_host and sharding.shards_optimizer
    # DeepSpeed steps one flat shard after another by a kernel of its own, or on the host.
    copied = 0 if sharding.kind == ZERO or on_host else job.moments.copied * weight
    return replace(
        states,
        step_bytes=states.step_bytes + copied,
        moments_bytes=job.moments.bytes(weight),
        other_moments_bytes=job.moments.other_bytes(weight),
        host_share=1.0 if on_host else 0.0,
        host_updates=on_host,
    )


def _loss_chunks(model: ModelSpec) -> int:
    """Pieces of liger's fused loss: as many as make a piece's logits no more than the hidden states.

    linkedin/Liger-Kernel v0.6.2 src/liger_kernel/ops/fused_linear_cross_entropy.py, ``inc_factor``.
    """
    return max(1, -(-model.vocab // model.hidden))


def _plan(job: TrainerJob) -> PipelinePlan:
    layers = {kind: as_grid([[count]]) for kind, count in job.model.replace(mtp_layers=0).layer_counts().items()}
    every = as_grid([[job.model.n_layers]])
    return PipelinePlan(layers, {FULL: every if job.recomputes else zero_grid(1, 1)})
