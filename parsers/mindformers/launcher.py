"""MindFormers, as YAML files configure it and ``run_mindformer.py`` starts it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.choices.module_choices import ModuleWords
from taylor.parsers.ascend import stated_device
from taylor.parsers.edited_file import EditedFile
from taylor.parsers.launcher import ExportForm, Program, Tools, UsualDevice
from taylor.parsers.mindformers import small_run, write
from taylor.parsers.mindformers.export import export_fragment
from taylor.parsers.mindformers.model_section import model_section
from taylor.parsers.mindformers.modules import module_words, modules_of
from taylor.parsers.mindformers.parameters import rank_parameters
from taylor.parsers.mindformers.read import NAME, config_from_source
from taylor.parsers.mindformers.swap import SWAP_PARTS
from taylor.parsers.small_run import JobSizes, PlannedJob, ProfiledRun, RunSetting
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig

PROGRAM = Program("run_mindformer.py", "mindformers", "--mindformers_dir, -mindformers")


class MindFormers(EditedFile):
    """MindFormers' training YAML, legacy and mcore."""

    degree_words = {
        "dp": "parallel_config.data_parallel",
        "tp": "parallel_config.model_parallel",
        "pp": "parallel_config.pipeline_stage",
        "ep": "parallel_config.expert_parallel",
        "cp": "parallel_config.context_parallel",
        "op": "parallel.optimizer_weight_shard_size",
        "sp": "parallel_config.use_seq_parallel",
        "mbs": "runner_config.batch_size",
        "vpp": "model.model_config.pp_interleave_num",
        "seq": "model.model_config.seq_length",
    }
    name = NAME
    title = "MindFormers YAML"
    suffixes = (".yaml", ".yml")
    telltale = re.compile(
        r"^\ufeff?(parallel|parallel_config|pretrained_model_dir)\s*:|^\s*model_config\s*:", re.MULTILINE
    )
    plan_keys = write.PLAN_KEYS
    source = YamlSource
    writer = write
    usual_device = UsualDevice("ascend-910b", "MindFormers files")
    program = PROGRAM
    export_forms = {"mindformers": ExportForm(export_fragment)}
    profile_switches = {
        "profile": True,
        "profile_start_step": 4,
        "profile_stop_step": 6,
        "init_start_profile": False,
        "profile_communication": False,
        "profile_memory": False,
    }
    low_memory_variable = "ENABLE_LESS_MEM_VPP"
    # Two steady steps; the memory is the estimate's or the dry-run's business.
    can_probe = True
    knows_parameters = True

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(YamlSource.read(path))

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The Ascend device that the file states, else the usual one."""
        stated = stated_device(config.path, YamlSource.read(config.path).text, None)
        return self.usual_device if stated is None else replace(self.usual_device, name=stated[0], why=stated[1])

    def module_words(self, config: TrainingConfig) -> ModuleWords:
        """The modules that ``select_recompute`` can name; MindFormers' swap is no choice."""
        section, _, mcore = model_section(Fields(YamlSource.read(config.path).data, config.path), [])
        return module_words(modules_of(section, mcore=mcore))

    @property
    def swap_parts(self) -> Mapping[str, str]:
        """See `Launcher.swap_parts`."""
        return SWAP_PARTS

    def fixed_context(self, config: TrainingConfig) -> str | None:
        """See `Launcher.fixed_context`."""
        return None

    def job_sizes(self, path: Path) -> JobSizes:
        """See `Launcher.job_sizes`."""
        return small_run.job_sizes(YamlSource.read(path))

    def small_run(self, path: Path, run: ProfiledRun) -> str:
        """See `Launcher.small_run`."""
        return small_run.small_run(YamlSource.read(path), run).text

    def planned_job(self, path: Path, setting: RunSetting, job: PlannedJob) -> str:
        """See `Launcher.planned_job`."""
        return small_run.planned_job(YamlSource.read(path), setting, job).text

    def rank_parameters(self, path: Path) -> Mapping[str, Mapping[str, int]]:
        """See `Launcher.rank_parameters`."""
        return rank_parameters(YamlSource.read(path))

    def dataset_keys(self, dataset: str) -> dict[str, object]:
        """The folder of the training data's loader."""
        return {"train_dataset.data_loader.dataset_dir": dataset}

    def dryrun_command(self, file: Path, original: Path, tools: Tools) -> tuple[str, ...]:
        """The user's ``run_mindformer.py``."""
        if tools.program is None:
            raise InputError(f"no {PROGRAM.file} is known", field=PROGRAM.flags, cure="name it or its folder")
        words = [tools.interpreter, str(tools.program), "--config", str(file)]
        if tools.register_path is not None:
            words += ["--register_path", str(tools.register_path)]
        return tuple(words)
