"""Small runs of a MindFormers YAML: the same network with few layers, profiled.

Which entries profile: MindFormers fd4deebc mindformers/trainer/trainer.py:1104-1126 and mindformers/core/callback/
callback.py:1649-1766 (ranks write below ``profile_output``). Steps count from 1, and releases differ in what they take:
those that are named (r1.3.0 callback.py:892-904, r1.8.0 callback.py:2294-2297), or the one behind each of them, which
is saved when it ends only if a named step is not the run's last (r1.6.0 and r1.7.0, fd4deebc callback.py:1805-1822).
So the last one named is the last but one of the run. How long a run takes its data say: where the file counts samples
(``train_dataset.data_loader.sizes``) a small run has as many as its steps need.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.mindformers import write
from taylor.parsers.mindformers.model import EXPERTS
from taylor.parsers.mindformers.read import config_from_source
from taylor.parsers.small_run import (
    JobSizes,
    PlannedJob,
    ProfiledRun,
    ProfiledSteps,
    RunSetting,
    cut_model,
    plan_by_kinds,
    refuse_misfits,
    sizes_of,
)
from taylor.parsers.text.yaml_edit import lookup
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL
from taylor.pipeline.schedule import ScheduleSpec

_DATA = ("train_dataset", "data_loader")
_MODEL = ("model", "model_config")
_LENGTHS = ((*_MODEL, "seq_length"), (*_DATA, "config", "seq_length"))
_POSITIONS = (*_MODEL, "max_position_embeddings")
_EXPERT_HOMES = (("moe_config",), _MODEL)


def job_sizes(source: YamlSource) -> JobSizes:
    """See `Launcher.job_sizes`.

    Raises
    ------
    InputError
        When the file is none, or names kinds of layers by their number.
    """
    config = config_from_source(source)
    found = sizes_of(config, "put the dense layers first (first_k_dense_replace)")
    return replace(found, cp_ways=config.model.n_heads if config.rules.ulysses_degree is None else 0)


def small_run(source: YamlSource, run: ProfiledRun) -> YamlSource:
    """See `Launcher.small_run`.

    Every layer runs again in the backward pass and the optimizer is split over all replicas, as in small runs of
    Megatron's scripts; layers run under plain 1F1B.

    Raises
    ------
    InputError
        When an entry cannot be changed alone.
    """
    setting, config = run.setting, config_from_source(source).replace(schedule=ScheduleSpec())
    strategy = _strategy(config, setting, setting.pp)
    small = config.replace(model=cut_model(config.model, setting))
    extra = _sizes(source, config, setting) | _run(source, setting, strategy, run.profile) | _table(config)
    return write.with_strategy(source, config, strategy, small.even_plan(strategy, FULL), extra)


def planned_job(source: YamlSource, setting: RunSetting, job: PlannedJob) -> YamlSource:
    """See `Launcher.planned_job`.

    Raises
    ------
    InputError
        When an entry cannot be changed alone, or MindFormers refuses the file.
    """
    config = config_from_source(source).replace(schedule=ScheduleSpec())
    batch = job.batch or config.strategy.global_batch
    strategy = _strategy(config, setting, batch // (setting.dp * setting.mbs))
    plan = plan_by_kinds(config, job.plan)
    written = write.with_strategy(source, config, strategy, plan, _table(config))
    refuse_misfits(config_from_source(written), source.file)
    return written


def _table(config: TrainingConfig) -> dict[str, object]:
    """The embedding split as MindFormers splits it with several stages, so that runs of one stage show it.

    r1.5.0 mindformers/core/parallel_config.py:65.
    """
    return {} if config.rules.core_models or config.rules.vocab_parallel else {"parallel_config.vocab_emb_dp": False}


def _strategy(config: TrainingConfig, setting: RunSetting, micro_batches: int) -> Strategy:
    return setting.strategy(setting.dp * setting.cp, config.strategy.sp, micro_batches)


def _sizes(source: YamlSource, config: TrainingConfig, setting: RunSetting) -> dict[str, object]:
    """Sequence and experts, wherever the file says them."""
    wanted: dict[str, object] = {}
    lengths = [path for path in _LENGTHS if lookup(source.data, path) is not None]
    if setting.seq != config.rules.seq_length:
        wanted |= {".".join(path): setting.seq for path in lengths or _LENGTHS[:1]}
    positions = lookup(source.data, _POSITIONS)
    if isinstance(positions, int) and positions < setting.seq:
        wanted[".".join(_POSITIONS)] = setting.seq
    if config.model.moe is not None and setting.experts != config.model.moe.n_experts:
        names = [(*home, name) for home in _EXPERT_HOMES for name in EXPERTS]
        found = [path for path in names if lookup(source.data, path) is not None]
        if not found:
            cure = "write the number of experts into the file"
            raise InputError("does not say how many experts there are", file=source.file, cure=cure)
        wanted |= {".".join(path): setting.experts for path in found}
    return wanted


def _run(source: YamlSource, setting: RunSetting, strategy: Strategy, profile: ProfiledSteps) -> dict[str, object]:
    """Number of steps, and those that are profiled."""
    stage = setting.ranks // setting.pp
    wanted: dict[str, object] = {
        "load_checkpoint": "",
        "runner_config.epochs": 1,
        "profile": True,
        "profile_start_step": profile.first,
        "profile_stop_step": profile.first + profile.count - 1,
        "init_start_profile": False,
        "profile_communication": True,
        "profile_memory": True,
        "profiler_level": 1,
        "profile_output": str(Path(profile.folder)),
        "profile_rank_ids": [rank * stage for rank in range(setting.pp)],
    }
    if lookup(source.data, ("runner_config", "sink_size")) is not None:
        wanted["runner_config.sink_size"] = 1  # Profiled steps are rounded to whole sinks.
    if isinstance(lookup(source.data, (*_DATA, "sizes")), list):
        wanted[".".join((*_DATA, "sizes", "0"))] = profile.iterations * strategy.global_batch
    if lookup(source.data, ("swap_config", "swap")) is True:
        wanted["swap_config.swap"] = False
    return wanted
