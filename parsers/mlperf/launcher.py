"""MLPerf Training: configurations of the language-model benchmarks, ``config_*.sh``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from taylor.parsers.launcher import Launcher, NoDryrun, UsualDevice
from taylor.parsers.megatron.flag_launcher import FlagLauncher
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.mlperf.configuration import NAME, MlperfConfiguration
from taylor.parsers.mlperf.devices import named_device
from taylor.parsers.small_run import JobSizes
from taylor.parsers.training_config import TrainingConfig

_USUAL = UsualDevice("h100-80g", "MLPerf files")


class Mlperf(FlagLauncher):
    """Configurations of submissions."""

    degree_words = {
        "tp": "TENSOR_MODEL_PARALLEL",
        "pp": "PIPELINE_MODEL_PARALLEL",
        "ep": "EXPERT_PARALLEL",
        "cp": "CONTEXT_PARALLEL",
        "op": "USE_DIST_OPTIMIZER",
        "sp": "SEQ_PARALLEL",
        "vpp": "INTERLEAVED_PIPELINE",
        "mbs": "MICRO_BATCH_SIZE",
        "gbs": "MINIBS",
        "seq": "encoder_seq_length",
    }
    name = NAME
    title = "MLPerf configuration (config_*.sh)"
    suffixes = (".sh",)
    telltale = re.compile(
        r"^[ \t]*(?:export[ \t]+)?(?:DGX\w+|MLPERF_\w+|NVTE_\w+|FP[48]\w*|\w*CUDA_GRAPH\w*|\w+_MODEL_PARALLEL|MINIBS|"
        r"MODEL_SIZE|_cont_mounts)=",
        re.M,
    )
    plan_keys = frozenset[str]()
    usual_device = _USUAL
    no_dryrun = NoDryrun("is started by MLPerf's harness, which runs no training without its devices")
    has_own_marks = True

    def recognises(self, path: Path, text: str) -> bool:
        """See `Launcher.recognises`: a file of variables, which starts nothing itself."""
        return path.name.startswith("config") and super().recognises(path, text)

    def launch(self, path: Path) -> MlperfConfiguration:
        """See `FlagLauncher.launch`."""
        return MlperfConfiguration.read(path)

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        launch = MlperfConfiguration.read(path, register_path)
        config = config_from_launch(launch)
        return config.replace(
            rules=config.rules.replace(adapters=launch.adapters),
            unmodelled=(*map(launch.named, config.unmodelled), *launch.unread()),
        )

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """The device in the file's name."""
        found = named_device(config.path)
        return _USUAL if found is None else replace(_USUAL, name=found[0], why=f"by its name, {found[1]}")

    def job_sizes(self, path: Path) -> JobSizes:
        """None: a small run would need variables of other files."""
        return Launcher.job_sizes(self, path)
