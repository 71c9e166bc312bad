"""Small runs of a script by Megatron's or MindSpeed's flags: the same network with few layers, profiled.

Nothing is asked of the network but what its flags divide by. MindSpeed's own tuning changes the same flags of its
command line (MindSpeed 028de58c mindspeed/auto_settings/profile/argv.py:67-176, config/search_config.py:57-88).
"""

from __future__ import annotations

import math

from taylor.base.errors import InputError
from taylor.parsers.megatron.context import ULYSSES, algorithm_of
from taylor.parsers.megatron.expert_overlap import FB_OVERLAP
from taylor.parsers.megatron.kinds import DENSE_FIRST, LAYER_LIST, PATTERN, has_experts, starts_with
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.layout import layout_text
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.own_plan import LAYOUT, PER_CHUNK
from taylor.parsers.megatron.placing import PLACING, Wanted, interleave_flag, with_noops
from taylor.parsers.megatron.recompute import (
    IN_ADVANCE,
    IN_BUBBLE,
    MODULES,
    RECOMPUTE_FLAGS,
    by_module,
    full_recompute,
    recompute_flags,
)
from taylor.parsers.megatron.switches import planned_flags, small_flags
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledRun, ProfiledSteps, RunSetting
from taylor.parsers.text.flags import Flags
from taylor.pipeline.plan import PipelinePlan, values_in_order

_BESIDE = ("num-layers", "hidden-size", "seq-length")
TUNERS = (
    *("auto-tuning", "auto-tuning-work-dir", "auto-tuning-ranks", "auto-tuning-log-level"),
    *("auto-settings", "auto-settings-type", "auto-settings-work-dir", "auto-settings-ranks"),
    *("auto-settings-log-level", "target-nnodes", "prof-file"),
    *("auto-parallel", "auto-parallel-mm", "auto-parallel-profile", "automated-pipeline", "automated-pipeline-perf"),
)
"""Flags that start one of MindSpeed's own tuners instead of the training: MindSpeed v2.1.0_core_r0.8.0
mindspeed/arguments.py:113-118, 1112-1130; 028de58c
mindspeed/features_manager/auto_settings/auto_settings_feature.py:40-140."""
_DROPPED = (
    *PLACING,
    *TUNERS,
    "load",
    "save",
    "schedules-method",
    FB_OVERLAP,
    "swap-attention",
    IN_ADVANCE,
    IN_BUBBLE,
    "use-nanopipe",
    "ampipe-degree",
    "swap-optimizer",
    "swap-optimizer-times",
)
"""Flags that a small run drops: checkpoints that fit no cut model, and schedules that need many stages. The list
of MindSpeed's tuning (mindspeed/auto_settings/profile/argv.py:26-51), and flags that place layers by number."""
_MINDSPEED_PROFILE = ("profile-with-cpu", "profile-with-memory", "profile-record-shapes")
_BUCKETS: Wanted = {"overlap-grad-reduce": True, "ddp-bucket-size": "1", "logging-level": "20"}
"""Flag that logs every parameter with its elements; see `run_log.read_log`. Megatron-LM main
megatron/training/arguments.py:3121-3125, megatron/training/config/training_config.py:351."""


def job_sizes(launch: Launch) -> JobSizes:
    """See `Launcher.job_sizes`.

    Raises
    ------
    InputError
        When a flag is missing or no number, or a pattern names the kind of each layer by its number.
    """
    flags = launch.flags
    heads = flags.integer("num-attention-heads")
    groups = flags.integer("num-query-groups", default=heads) if flags.has("group-query-attention") else heads
    experts = flags.integer("num-experts", default=1)
    own = RunSetting(
        tp=flags.integer("tensor-model-parallel-size", default=1),
        cp=flags.integer("context-parallel-size", default=1),
        ep=flags.integer("expert-model-parallel-size", default=1),
        mbs=flags.integer("micro-batch-size", default=1),
        seq=flags.integer("seq-length", "encoder-seq-length"),
        experts=experts,
        layers=flags.integer("num-layers", "encoder-num-layers"),
        pp=flags.integer("pipeline-model-parallel-size", default=1),
        dense=_dense_in_front(flags) if experts > 1 else 0,
    )
    world = flags.world_size() if launch.states_ranks else None
    if world is not None:
        own = own.replace(dp=max(1, world // own.ranks))
    per_node = flags.integer("nproc-per-node", "local-worker-num", default=8) if world is not None else None
    batch = flags.integer("global-batch-size", default=0)
    cp_algorithm = algorithm_of(flags)
    return JobSizes(
        own,
        math.gcd(heads, groups),
        flags.integer("moe-router-topk", default=1) if experts > 1 else 1,
        flags.integer("moe-router-num-groups", "n-group", default=1) if experts > 1 else 1,
        None if world is None or per_node is None else max(1, world // per_node),
        per_node,
        flags.has("overlap-grad-reduce"),
        batch or None,
        heads if cp_algorithm == ULYSSES else 0,
        is_mindspeed(flags),
        flags.integer("auto-tuning-ranks", "auto-settings-ranks", default=0) or None,
    )


def _dense_in_front(flags: Flags) -> int:
    """Layers before the first one with experts.

    Raises
    ------
    InputError
        When dense layers stand elsewhere too.
    """
    kinds = has_experts(flags)
    first = kinds.index(True) if any(kinds) else 0
    if not all(kinds[first:]):
        cure = "put the dense layers first (--first-k-dense-replace)"
        raise flags.error(PATTERN, "names kinds of layers that small runs cannot keep", flags.text(PATTERN), cure)
    return first


def small_run(launch: Launch, run: ProfiledRun) -> Launch:
    """See `Launcher.small_run`.

    Every layer runs again in the backward pass, as in MindSpeed's runs: then the operators of a layer stand whole
    between two borders, and the most that a layer takes is seen beside what it keeps. Other runs compare its modules.

    Raises
    ------
    InputError
        When a flag's value cannot be changed alone.
    """
    flags, setting, machines, profile, again = launch.flags, run.setting, run.machines, run.profile, run.again
    wanted: Wanted = {name: False for name in (*_DROPPED, *RECOMPUTE_FLAGS) if flags.has(name)}
    sizes = {
        "tensor-model-parallel-size": setting.tp,
        "pipeline-model-parallel-size": setting.pp,
        "context-parallel-size": setting.cp,
        "expert-model-parallel-size": setting.ep,
        "num-experts": setting.experts,
    }
    wanted |= {name: str(size) for name, size in sizes.items() if size != 1 or flags.has(name)}
    layers = "num-layers" if flags.has("num-layers") else "encoder-num-layers"
    length = "seq-length" if flags.has("seq-length") else "encoder-seq-length"
    wanted |= {
        layers: str(setting.layers),
        length: str(setting.seq),
        "micro-batch-size": str(setting.mbs),
        # As many micro-batches as stages.
        "global-batch-size": str(setting.dp * setting.pp * setting.mbs),
        "train-iters": str(profile.iterations),
    }
    if again is None:
        wanted |= full_recompute(setting.layers // setting.pp)
    elif again:
        wanted |= {"recompute-granularity": "selective", MODULES: tuple(again)}
    elif flags.has(MODULES):
        wanted[MODULES] = False
    if flags.integer("max-position-embeddings", default=setting.seq) < setting.seq:
        wanted["max-position-embeddings"] = str(setting.seq)
    if setting.dense:
        listed = f"([0]*{setting.dense}+[1]*{setting.layers - setting.dense})"
        wanted |= {DENSE_FIRST: str(setting.dense)} if flags.has(DENSE_FIRST) else {PATTERN: listed}
    if setting.tp > 1:
        wanted["sequence-parallel"] = True
    wanted["use-distributed-optimizer"] = True
    wanted |= _BUCKETS | small_flags(flags, setting, run.switched)
    if flags.has("lr-warmup-iters"):
        wanted["lr-warmup-iters"] = "1"
    wanted |= _profiled(launch, setting, profile)
    small, ranks = launch.with_ranks(machines.ranks)
    wanted |= ranks | _started(launch, machines)
    small = small.with_flags(wanted, _BESIDE)
    if launch.states_ranks and small.flags.world_size() not in (None, machines.ranks):
        cure = "let --nnodes and --nproc_per_node count the ranks"
        raise InputError("starts another number of ranks", file=launch.file, value=small.flags.world_size(), cure=cure)
    return small


def _profiled(launch: Launch, setting: RunSetting, profile: ProfiledSteps) -> Wanted:
    """The flags that make a run write profiles of its first rank of each stage, with shapes and, of MindSpeed, memory.

    Sources: MindSpeed-LLM master mindspeed_llm/features_manager/functional/profiling.py:14-40; Megatron-LM main
    megatron/training/config/common_config.py:28-60.
    """
    stage = setting.ranks // setting.pp
    firsts = tuple(str(rank * stage) for rank in range(setting.pp))
    wanted: Wanted = {
        "profile": True,
        "profile-step-start": str(profile.first),
        "profile-step-end": str(profile.first + profile.count),
        "profile-ranks": firsts,
    }
    if not is_mindspeed(launch.flags):
        return wanted | launch.traced(profile.folder)
    wanted |= {name: True for name in _MINDSPEED_PROFILE}
    folder = launch.setting("profile-save-path", str(profile.folder))
    return wanted | {"profile-level": "level1", "profile-save-path": folder}


def _started(launch: Launch, machines: Machines) -> Wanted:
    """Options of the program that starts the ranks, where they are given and renamed."""
    given = {"master-addr": machines.master_addr, "master-port": machines.master_port, "node-rank": machines.node_rank}
    return {
        name: launch.setting(name, str(value))
        for name, value in given.items()
        if value is not None and launch.flags.has(name)
    }


def _chunks(flags: Flags, plan: PipelinePlan, dense: int) -> Wanted:
    """Flags for the number of layers of every chunk, the first `dense` of all dense.

    MindSpeed-LLM takes no list beside dense layers, and none of these behind an empty position (`placing`).
    """
    in_chunks = values_in_order(plan.total_layers(), v_shape=False)
    even = len(set(in_chunks)) == 1
    if not is_mindspeed(flags):
        return interleave_flag(flags, plan.interleaves, in_chunks[0]) if even else {LAYOUT: layout_text(plan)}
    if dense > in_chunks[0] or not starts_with(dense, max(in_chunks) * len(in_chunks), plan.stages):
        cure = "keep all dense layers in the first chunk, and not alone"
        raise flags.error(DENSE_FIRST, "cannot express the plan: dense layers fill the first chunk", dense, cure)
    if plan.interleaves == 1 and (even or not dense):
        return {} if even else {LAYER_LIST: ",".join(map(str, in_chunks))}
    # Behind its layers a chunk has positions that are empty.
    slots = [[at if at < count else None for at in range(max(in_chunks))] for count in in_chunks]
    return with_noops(slots, PER_CHUNK if plan.interleaves > 1 else None)


def planned_job(launch: Launch, setting: RunSetting, job: PlannedJob) -> Launch:
    """See `Launcher.planned_job`.

    Raises
    ------
    InputError
        When a flag's value cannot be changed alone.
    """
    flags = launch.flags
    wanted: Wanted = {name: False for name in (*PLACING, *TUNERS) if flags.has(name)}
    sizes = {
        "tensor-model-parallel-size": setting.tp,
        "pipeline-model-parallel-size": setting.pp,
        "context-parallel-size": setting.cp,
        "expert-model-parallel-size": setting.ep,
        "micro-batch-size": setting.mbs,
    }
    wanted |= {name: str(size) for name, size in sizes.items() if size != 1 or flags.has(name)}
    if setting.tp > 1:
        wanted["sequence-parallel"] = True
    wanted["use-distributed-optimizer"] = True
    if job.batch is not None:
        wanted["global-batch-size"] = str(job.batch)
    wanted |= _chunks(flags, job.plan, setting.dense) | planned_flags(flags, setting, dict(job.switches))
    launch, ranks = launch.with_ranks(setting.ranks)
    plan, modules = by_module(job.plan)
    return launch.with_flags(wanted | recompute_flags(flags, plan) | modules | ranks, _BESIDE)


def whole_run(launch: Launch, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> Launch:
    """See `Launcher.whole_run`.

    Raises
    ------
    InputError
        When a flag's value cannot be changed alone.
    """
    launch = planned_job(launch, setting, job)
    flags = launch.flags
    wanted: Wanted = {name: False for name in ("load", "save", "profile", "lr-warmup-fraction") if flags.has(name)}
    wanted |= {"train-iters": str(iterations), "log-interval": "1", "eval-iters": "0"}
    if flags.has("lr-warmup-iters"):
        wanted["lr-warmup-iters"] = "1"
    return launch.with_flags(wanted | _started(launch, machines), _BESIDE)
