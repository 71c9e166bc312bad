"""torchtitan, as TOML files configure it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute
from taylor.parsers.edited_file import EditedFile
from taylor.parsers.launcher import ExportForm, Tools, UsualDevice
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, ProfiledRun, RunLog, RunSetting
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.torchtitan import small_run, write
from taylor.parsers.torchtitan.actions import actions_table
from taylor.parsers.torchtitan.ranks import SCRIPT
from taylor.parsers.torchtitan.read import NAME, PARTS, config_from_source
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.registry import Registry


def export_parts(plan: PipelinePlan, mtp_counted: bool, v_shape: bool) -> str:
    """An override for its Python configurations: the modules of every model part."""
    parts = json.dumps(write.part_names(plan, v_shape), separators=(",", ":"))
    return f"--parallelism.{PARTS}={parts}"


class Torchtitan(EditedFile, AlikeRecompute):
    """torchtitan's TOML files."""

    recomputing = "torchtitan"
    recompute_modes = BOTH_MODES
    degree_words = {
        "dp": "parallelism.data_parallel_shard_degree",
        "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree",
        "ep": "parallelism.expert_parallel_degree",
        "cp": "parallelism.context_parallel_degree",
        "op": "parallelism.data_parallel_shard_degree",
        "vpp": "parallelism.pipeline_parallel_schedule",
        "mbs": "parallelism.pipeline_parallel_microbatch_size",
        "gbs": "training.global_batch_size",
        "seq": "training.seq_len",
    }
    name = NAME
    title = "torchtitan TOML"
    suffixes: tuple[str, ...] = (".toml",)
    telltale = re.compile(r"^\s*\[model\][\s\S]*^\s*\[training\]|^\s*\[training\][\s\S]*^\s*\[model\]", re.MULTILINE)
    plan_keys = write.PLAN_KEYS
    source = TomlSource
    writer = write
    usual_device = UsualDevice("h100-80g", "torchtitan files")
    knows_parameters = True
    hook_reason = "it makes the cut flavours, lists parameters, and lets traces record memory"
    export_forms = {
        "torchtitan": ExportForm(export_parts, places_only=True),
        "torch-actions": ExportForm(None, order=actions_table),
    }

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(TomlSource.read(path), Registry.load(register_path))

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`; of the network its layers, heads and experts are read, which its flavour names."""
        return small_run.job_sizes(TomlSource.read(path))

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """See `Launcher.small_run`."""
        return small_run.small_run(TomlSource.read(path), run).text

    def traces_by_torch(self, path: Path) -> bool:
        """See `Launcher.traces_by_torch`."""
        return True

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """See `Launcher.planned_job`."""
        return small_run.planned_job(TomlSource.read(path), setting, job).text

    def whole_run(self, path: Path, setting: RunSetting, job: PlannedJob, machines: Machines, iterations: int) -> str:
        """See `Launcher.whole_run`."""
        return small_run.whole_run(TomlSource.read(path), setting, job, iterations).text

    def run_log(self, text: str, dense: int = 0) -> RunLog:
        """See `Launcher.run_log`."""
        return small_run.run_log(text, dense)

    def run_command(self, file: Path, original: Path, tools: Tools, machines: Machines) -> tuple[str, ...]:
        """See `Launcher.run_command`; as torchtitan's own script starts it (v0.2.2 run_train.sh:43-47)."""
        return small_run.command(file, machines)

    def working_folder(self, original: Path) -> Path | None:
        """The checkout that holds a file, from which files name their data and assets; else the folder of the file."""
        return next((above for above in original.resolve().parents if (above / SCRIPT).is_file()), original.parent)

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The package's own entry point."""
        return (tools.interpreter, "-m", "torchtitan.train", "--job.config_file", str(file))
