"""Data that a launcher gets and gives on small runs of a training file: sizes, degrees, machines, the profile."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import ModelSpec


@dataclass(frozen=True, order=True)
class RunSetting:
    """Settings of a run on which sizes may depend.

    Parameters
    ----------
    tp, cp, ep, dp, pp : int
        Parallel degrees.
    mbs, seq : int
        Samples a micro-batch, tokens a sample.
    experts : int
        Routed experts of a layer; 1 where there are none.
    layers : int
        Layers of the whole model.
    vpp : int
        Chunks of a stage.
    dense : int
        Layers without experts in front of those with experts; 0 where all are alike.
    replicas : int
        Copies of the weights among the data parallel ranks; the ranks of each copy share its optimizer.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    mbs: int = 1
    seq: int = 1
    experts: int = 1
    layers: int = 1
    pp: int = 1
    dp: int = 1
    vpp: int = 1
    dense: int = 0
    replicas: int = 1

    def replace(self, **changes: Any) -> RunSetting:
        """A copy with some of it changed."""
        return RunSetting(**{**vars(self), **changes})

    @property
    def ranks(self) -> int:
        """Ranks that run it."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def shards(self) -> int:
        """Ranks that share the optimizer of weights that are no experts'."""
        return self.dp * self.cp // self.replicas

    @property
    def expert_shards(self) -> int:
        """Ranks that share the optimizer of experts."""
        return max(1, self.shards // self.ep)

    @property
    def local_experts(self) -> int:
        """Experts of a rank."""
        return self.experts // self.ep

    def strategy(self, op: int, sp: bool, micro_batches: int) -> Strategy:
        """These degrees with an optimizer over `op` ranks, sequence parallel or not, and a number of micro-batches."""
        return Strategy(
            dp=self.dp,
            tp=self.tp,
            pp=self.pp,
            ep=self.ep,
            cp=self.cp,
            op=op,
            sp=sp,
            mbs=self.mbs,
            micro_batches=micro_batches,
        )

    def differences(self, other: RunSetting) -> str:
        """Changes of another setting, as ``cp 1 -> 2``."""
        names = ("tp", "cp", "ep", "pp", "dp", "mbs", "seq", "experts", "layers", "dense", "replicas")
        compared = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return ", ".join(f"{name} {mine} -> {its}" for name, mine, its in compared if mine != its)


@dataclass(frozen=True)
class ShardedWeights:
    """Weights that data parallel ranks share, and gather for each layer (FSDP).

    Parameters
    ----------
    weight_bytes, gradient_bytes : int
        Bytes of an element as it is gathered, and as its gradient is reduced.
    stored_bytes : int
        Bytes of an element as a rank keeps its share, and of that share's gradient.
    """

    weight_bytes: int
    gradient_bytes: int
    stored_bytes: int = 4


@dataclass(frozen=True)
class JobSizes:
    """Constraints on small runs of a file.

    Parameters
    ----------
    own : RunSetting
        As the file states it; `dp` is 1 where the file does not say how many ranks it starts.
    tp_ways : int
        Numbers that TP has to divide: heads, and groups of heads.
    top_k : int
        Experts that a token goes to; a small run has no fewer.
    expert_groups : int
        Divisor of the number of experts.
    nodes, per_node : int or None
        Machines that the file starts.
    hidden_reduction : bool
        Gradients are reduced beside the backward pass.
    batch : int or None
        Samples of a step, where the file says them.
    cp_ways : int
        Number that TP times CP has to divide, where CP splits heads; 0 where it does not.
    dense_together : bool
        The files can say only plans whose first chunk holds all dense layers.
    ranks_to_plan : int or None
        Ranks of the job where the file states them apart from those that it starts, as MindSpeed's tuners have them.
    interleaves : bool
        Stages of several chunks run in Megatron's order.
    weights : ShardedWeights or None
        Sharded weights; None where every data parallel rank has them whole.
    misspelled : tuple of str
        Entries of the file that are one letter from a known one, a sentence each.
    """

    own: RunSetting
    tp_ways: int
    top_k: int = 1
    expert_groups: int = 1
    nodes: int | None = None
    per_node: int | None = None
    hidden_reduction: bool = False
    batch: int | None = None
    cp_ways: int = 0
    dense_together: bool = False
    ranks_to_plan: int | None = None
    interleaves: bool = True
    weights: ShardedWeights | None = None
    misspelled: tuple[str, ...] = ()

    @property
    def job_ranks(self) -> int:
        """Ranks of the job to plan."""
        return self.ranks_to_plan or self.own.ranks

    @property
    def least_layers(self) -> int:
        """Layers of the smallest model that has each kind."""
        return 1 + self.least_dense

    @property
    def least_dense(self) -> int:
        """Of them, those without experts in front of one with experts."""
        return min(1, self.own.dense)


def sizes_of(config: TrainingConfig, cure: str) -> JobSizes:
    """Constraints on small runs of a file that states its model and strategy whole, and runs no chunks interleaved.

    Parameters
    ----------
    cure : str
        What to do about layers of several kinds.

    Raises
    ------
    InputError
        When it names kinds of layers by their number.
    """
    model, strategy, moe = config.model, config.strategy, config.model.moe
    if model.pattern:
        raise InputError("names kinds of layers that small runs cannot keep", file=config.path, cure=cure)
    own = RunSetting(
        tp=strategy.tp,
        cp=strategy.cp,
        ep=strategy.ep,
        mbs=strategy.mbs,
        seq=config.rules.seq_length,
        experts=1 if moe is None else moe.n_experts,
        layers=model.n_layers,
        pp=strategy.pp,
        dp=strategy.dp,
        dense=0 if moe is None else model.n_dense,
    )
    return JobSizes(
        own,
        math.gcd(model.n_heads, model.n_kv_heads),
        1 if moe is None else moe.top_k,
        1 if moe is None else moe.n_groups,
        batch=strategy.global_batch,
        interleaves=False,
        misspelled=tuple(flag.sentence for flag in config.unmodelled if flag.meant),
    )


def cut_model(model: ModelSpec, setting: RunSetting) -> ModelSpec:
    """The model with the layers and experts of a small run."""
    moe = model.moe
    return model.replace(
        n_layers=setting.layers,
        moe=None if moe is None else replace(moe, n_experts=setting.experts, first_dense=setting.dense),
    )


def plan_by_kinds(config: TrainingConfig, plan: PipelinePlan) -> PipelinePlan:
    """A plan of small runs, which name dense layers in front and all others, with the kinds of a configuration."""
    kinds = zip(config.model.body_counts, plan.layers.values(), strict=True)
    return PipelinePlan(dict(kinds), plan.recompute)


def refuse_misfits(written: TrainingConfig, file: Path) -> None:
    """Refuse what the launcher's program would not start.

    Parameters
    ----------
    written : TrainingConfig
        The configuration as it would be written.
    file : Path
        The user's file.

    Raises
    ------
    InputError
        With the field of the first check that fails.
    """
    for misfit in written.misfits:
        raise InputError(misfit.problem, file=file, field=misfit.field, value=misfit.value, cure=misfit.cure)


@dataclass(frozen=True)
class Switch:
    """Switch of a file that leaves the network as it is: two small runs show whether it saves time.

    Parameters
    ----------
    name : str
        As users name it.
    flag : str
        Its spelling in the file.
    on : bool
        Small runs have it where nothing is switched.
    above : tuple of str
        Degrees that have to be above one.
    apart : tuple of str
        Names of others that cannot be on beside it.
    stays : bool
        The file has it on though small runs do not: plans keep it where it is not compared.
    overlaps : tuple of str
        Groups of ranks (`blackbox.group_laws.GROUPS`) whose collectives it overlaps where it is on: no layer gains more
        than their time. Empty where it is not known what it saves.
    heads : int
        Number that TP times CP has to divide where it is on; 0 where there is none.
    alike : tuple of str
        Degrees on which its saving depends beyond a layer's shapes: small runs that compare it have those of the plan.
    """

    name: str
    flag: str
    on: bool = False
    above: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    stays: bool = False
    overlaps: tuple[str, ...] = ()
    heads: int = 0
    alike: tuple[str, ...] = ()

    def may_be_on(self, run: RunSetting, others: Collection[str] = ()) -> bool:
        """Return whether a run starts with it, beside others that are on."""
        splits = not self.heads or self.heads % (run.tp * run.cp) == 0
        return splits and all(getattr(run, name) > 1 for name in self.above) and not set(self.apart) & set(others)

    def is_shown_by(self, small: RunSetting, plan: RunSetting) -> bool:
        """Return whether a small run compares it as it would be in a plan."""
        return all(getattr(small, name) == getattr(plan, name) for name in self.alike)


@dataclass(frozen=True)
class PlannedJob:
    """Settings to write into a file beside its degrees.

    Parameters
    ----------
    switches : tuple of (str, bool)
        Names of `Launcher.switches`, and whether they are on; the others stay as the file has them where they can.
    batch : int or None
        Samples of a step; as the file states where it is None.
    """

    plan: PipelinePlan
    switches: tuple[tuple[str, bool], ...] = ()
    batch: int | None = None


@dataclass(frozen=True)
class Machines:
    """The machines of small runs.

    Parameters
    ----------
    master_addr, master_port, node_rank : optional
        As torchrun takes them; what is None stays as the file has it.
    """

    nodes: int
    per_node: int
    master_addr: str | None = None
    master_port: int | None = None
    node_rank: int | None = None

    @property
    def ranks(self) -> int:
        """Available cards."""
        return self.nodes * self.per_node


@dataclass(frozen=True)
class ProfiledSteps:
    """Profiled part of a small run.

    Parameters
    ----------
    folder : Path
        Folder to which the profiler writes.
    count, first : int
        Number of profiled steps, and the first one, counted from 0; the last one is the run's.
    """

    folder: Path
    count: int = 2
    first: int = 8

    @property
    def iterations(self) -> int:
        """Steps that run."""
        return self.first + self.count


@dataclass(frozen=True)
class ProfiledRun:
    """A small run to write: its settings, where it runs, and what of it is profiled.

    Parameters
    ----------
    switched : tuple of str
        Names of `Launcher.switches` that are turned the other way.
    again : tuple of str or None
        Those of `Launcher.recompute_modules` that run again in every layer; None: the layers run again whole.

    Raises
    ------
    ValueError
        When it takes another number of cards than its machines have.
    """

    setting: RunSetting
    machines: Machines
    profile: ProfiledSteps
    switched: tuple[str, ...] = ()
    again: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.setting.ranks != self.machines.ranks:
            raise ValueError("a small run takes all the cards that its machines have")


@dataclass(frozen=True)
class RunLog:
    """Figures in a small run's log.

    Parameters
    ----------
    parameters : mapping of str to mapping of str to int
        Elements on a rank by block (embedding, dense, layer, head) and name; of layers the first one's of each kind.
    peak : int or None
        The most bytes that tensors took at once on any rank that logs it.
    step_ms : float or None
        The time of a step, once it is steady.
    reserved : int or None
        The most bytes that the allocator reserved.
    """

    parameters: Mapping[str, Mapping[str, int]]
    peak: int | None
    step_ms: float | None
    reserved: int | None = None
