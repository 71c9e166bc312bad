"""Small runs of a torchtitan TOML: the same network with few layers, profiled.

A flavour's layers and experts are no options of a job: a small run names them behind its flavour, ``8B@layers=1``, and
is started beside a module that makes such a flavour of the named one (`workflows.tuning.trace_memory`).

Which entries profile: pytorch/torchtitan v0.2.2 torchtitan/tools/profiling.py:23-82 and config/job_config.py:43-63. The
steps of a cycle are counted from the first one, and its last ones are recorded: with as many steps in a cycle as the
run has, those are the run's. Traces lie at ``DUMP_FOLDER/TRACES_FOLDER/iteration_N/rankR_trace.json``.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from statistics import median

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.small_run import (
    JobSizes,
    Machines,
    PlannedJob,
    ProfiledRun,
    ProfiledSteps,
    RunLog,
    RunSetting,
    ShardedWeights,
    cut_model,
    plan_by_kinds,
    refuse_misfits,
    sizes_of,
)
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan import write
from taylor.parsers.torchtitan.read import config_from_source, release_in, type_bytes
from taylor.parsers.torchtitan.releases import VERSIONS
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

FIRST = "v0.2.0"
"""The release since which files state how many steps are recorded (torchtitan/config/job_config.py:43-50)."""
_PARAMETER = re.compile(r"taylor: parameter ([\w.]{1,300}) (\d{1,18})\b")
"""A parameter's elements on a rank of its weights' whole, as `workflows.tuning.trace_memory` prints them."""
_LAYER = re.compile(r"\blayers\.(\d{1,9})\.")
_COLOUR = re.compile(r"\x1b\[[\d;]{1,20}m")
_STEP = re.compile(
    r"(?<!validate )step:\s{1,9}(\d{1,12})\s.*?memory:\s{1,9}(\d{1,6}\.\d{1,4})GiB.*?tps:\s{1,9}(\d[\d,]{0,15})(?:\s|$)"
)
"""v0.2.2 torchtitan/components/metrics.py:460-470. The memory is what the allocator reserves at most. Validation
has lines of the same form (:504-510)."""
_BATCH = re.compile(r"local batch size (\d{1,9}), .*?accumulation steps (\d{1,9}), sequence length (\d{1,9}),")
"""v0.2.2 torchtitan/train.py:354-362."""
_DEGREES = re.compile(r"pp=(\d{1,6}), .*?cp=(\d{1,6}), tp=(\d{1,6}),")
"""v0.2.1 torchtitan/distributed/parallel_dims.py:128-132, v0.2.2 :130-134."""
_MESH = re.compile(r"-D device mesh with \[([\w', ]{0,200})\], \[([\d, ]{0,100})\]")
"""Names and sizes of the dimensions above one: v0.2.0 torchtitan/distributed/parallel_dims.py:107, 158."""


def job_sizes(source: TomlSource) -> JobSizes:
    """See `Launcher.job_sizes`.

    Raises
    ------
    InputError
        When the file is none, or names kinds of layers by their number, or no release that runs it profiles so.
    """
    config = _config(source)
    found = sizes_of(config, "plan it with `taylor search`, which knows its layers")
    own = config.strategy
    return replace(
        found,
        own=found.own.replace(replicas=max(1, own.dp * own.cp // own.op)),
        batch=None if config.batch_follows_ranks else own.global_batch,
        weights=_weights(source),
    )


def _config(source: TomlSource, model: ModelSpec | None = None) -> TrainingConfig:
    release = release_in(source)
    if release.stated and release.day < VERSIONS[FIRST]:
        cure = f"run it with {FIRST} or later, and say so in its comment"
        reason = f"is of {release.day.isoformat()}, whose profiler records no given number of steps"
        raise InputError(reason, file=source.file, field="# taylor: torchtitan_release", cure=cure)
    return config_from_source(source, model or Registry.load())


def _weights(source: TomlSource) -> ShardedWeights:
    """Precision of weights and gradients: v0.2.2 torchtitan/config/job_config.py:268-297."""
    training = Fields(source.data, source.file).section("training")
    names = ("mixed_precision_param", "mixed_precision_reduce", "dtype")
    return ShardedWeights(*(type_bytes(training, name) for name in names))


def _strategy(setting: RunSetting, micro_batches: int) -> Strategy:
    return setting.strategy(setting.shards, setting.tp > 1, micro_batches)


def _alike(setting: RunSetting) -> dict[str, object]:
    """Experts are split over TP as they are without EP, so that the same laws hold of both.

    Where weights stay gathered is the default, which is entered in `blackbox.sharded_weights`. v0.2.2
    torchtitan/distributed/parallel_dims.py:58-59, models/llama3/infra/parallelize.py:319-327.
    """
    experts = setting.tp if setting.ep > 1 and setting.tp > 1 else None
    return {"parallelism.expert_tensor_parallel_degree": experts, "parallelism.fsdp_reshard_after_forward": None}


def small_run(source: TomlSource, run: ProfiledRun) -> TomlSource:
    """See `Launcher.small_run`.

    Every layer runs again in the backward pass, as in small runs of Megatron's scripts; stages run under plain 1F1B.

    Raises
    ------
    InputError
        When an entry cannot be changed alone.
    """
    setting, config = run.setting, _config(source).replace(schedule=ScheduleSpec())
    moe = config.model.moe
    strategy = _strategy(setting, setting.pp)
    small = config.replace(model=cut_model(config.model, setting))
    flavour = f"{source.data['model']['flavor']}@layers={setting.layers}"
    if moe is not None:
        flavour += f"@experts={setting.experts}" + f"@dense={setting.dense}" * bool(config.model.n_dense)
    extra = _alike(setting) | _run(run.profile.iterations) | _profiled(run.profile)
    extra |= {"model.flavor": flavour, "training.seq_len": setting.seq}
    return write.with_strategy(source, small, strategy, small.even_plan(strategy, FULL), extra)


def _run(iterations: int) -> dict[str, object]:
    """A run of a few steps that neither loads nor saves a checkpoint, and logs each."""
    return {
        "training.steps": iterations,
        "lr_scheduler.warmup_steps": 1,
        "checkpoint.enable": False,
        "validation.enable": False,
        "metrics.log_freq": 1,
        "metrics.disable_color_printing": True,
        "metrics.enable_wandb": False,
    }


def _profiled(profile: ProfiledSteps) -> dict[str, object]:
    return {
        "job.dump_folder": str(Path(profile.folder)),
        "profiling.enable_profiling": True,
        "profiling.save_traces_folder": "profile_traces",
        "profiling.profile_freq": profile.iterations,
        "profiling.profiler_active": profile.count,
        "profiling.profiler_warmup": 3,
        "profiling.enable_memory_snapshot": False,
    }


def planned_job(source: TomlSource, setting: RunSetting, job: PlannedJob) -> TomlSource:
    """See `Launcher.planned_job`.

    Raises
    ------
    InputError
        When an entry cannot be changed alone, or torchtitan refuses the file.
    """
    config = _config(source).replace(schedule=ScheduleSpec())
    batch = job.batch or config.strategy.global_batch
    strategy = _strategy(setting, batch // (setting.dp * setting.mbs))
    plan = plan_by_kinds(config, job.plan)
    written = write.with_strategy(source, config, strategy, plan, _alike(setting))
    refuse_misfits(config_from_source(written), source.file)
    return written


def whole_run(source: TomlSource, setting: RunSetting, job: PlannedJob, iterations: int) -> TomlSource:
    """See `Launcher.whole_run`.

    Raises
    ------
    InputError
        As of `planned_job`.
    """
    config = _config(source).replace(schedule=ScheduleSpec())
    batch = job.batch or config.strategy.global_batch
    planned = planned_job(source, setting, job)
    plan = config_from_source(planned).plan
    extra = _run(iterations) | {"profiling.enable_profiling": False}
    return write.with_strategy(planned, config, _strategy(setting, batch // (setting.dp * setting.mbs)), plan, extra)


def command(file: Path, machines: Machines) -> tuple[str, ...]:
    """The command that starts a file on a node of these machines: v0.2.2 run_train.sh:43-47.

    Raises
    ------
    InputError
        When there are several nodes and nothing says where the first one is.
    """
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    if machines.nodes > 1:
        if machines.master_addr is None:
            cure = "name the first node, and start the same command on each with its --node_rank; or say --dry"
            raise InputError("is missing for several nodes", field="--master_addr", cure=cure)
        place = ["--node-rank", str(machines.node_rank or 0), "--master-addr", machines.master_addr]
        place += ["--master-port", str(machines.master_port)] if machines.master_port is not None else []
    return (
        *("env", "PYTORCH_ALLOC_CONF=expandable_segments:True", "torchrun"),
        *("--nnodes", str(machines.nodes), "--nproc-per-node", str(machines.per_node), *place),
        *("--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
        *("-m", "torchtitan.train", "--job.config_file", str(file)),
    )


def run_log(text: str, dense: int = 0) -> RunLog:
    """See `Launcher.run_log`: parameters that the started module prints, and the time of a step by its tokens.

    A step's line states the tokens a second of a rank of all its kinds of parallelism but data parallel. Its memory is
    what the allocator reserves; the tensors' own peak is in the trace.
    """
    plain = _COLOUR.sub("", text)
    parameters: dict[str, dict[str, int]] = {}
    for name, elements in _PARAMETER.findall(plain):
        layer = _LAYER.search(name)
        if layer is None:
            block = "embedding" if "embed" in name else "head"
        elif int(layer[1]) in (0, dense):
            block = "layer" if int(layer[1]) == dense else "dense"
        else:
            continue
        parameters.setdefault(block, {})[name] = int(elements)
    lines = _STEP.findall(plain)
    reserved = max((round(float(memory) * 2**30) for _, memory, _ in lines), default=None)
    later = [rate for _, _, tps in lines[len(lines) // 2 :] if (rate := int(tps.replace(",", "")))]
    batch, ranks = _BATCH.search(plain), _ranks_of_a_sample(plain)
    step = None
    if later and batch and ranks:
        tokens = math.prod(map(int, batch.groups()))
        step = 1000 * tokens / (float(median(later)) * ranks)
    return RunLog(parameters, None, step, reserved)


def _ranks_of_a_sample(plain: str) -> int | None:
    """TP times CP times PP as a log states them."""
    if degrees := _DEGREES.search(plain):
        return math.prod(map(int, degrees.groups()))
    if mesh := _MESH.search(plain):
        names, sizes = re.findall(r"\w+", mesh[1]), re.findall(r"\d+", mesh[2])
        return math.prod(int(size) for name, size in zip(names, sizes, strict=False) if name in ("pp", "cp", "tp"))
    return None
