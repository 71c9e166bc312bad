"""PaddleNLP, as launch scripts start its trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.launcher import Launcher, NoDryrun, UsualDevice
from taylor.parsers.paddlenlp import write
from taylor.parsers.paddlenlp.read import config_from_script
from taylor.parsers.paddlenlp.script import NAME, PaddleScript
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan


class PaddleNLP(Launcher):
    """Launch scripts of PaddleNLP's trainer.

    A plan goes into the strategy file that the script names (``--fine_grained_config_path``), else into the script,
    which has one strategy for all layers.
    """

    degree_words = {
        "tp": "--tensor_parallel_degree",
        "pp": "--pipeline_parallel_degree",
        "cp": "--sep_parallel_degree",
        "op": "--sharding_parallel_degree",
        "sp": "--sequence_parallel",
        "vpp": "--virtual_pp_degree",
        "mbs": "--per_device_train_batch_size",
        "seq": "--max_seq_length",
    }
    name = NAME
    title = "PaddleNLP script"
    suffixes = (".sh",)
    telltale = re.compile(r"--(tensor|pipeline|sharding)_parallel_degree\b")
    plan_keys = write.PLAN_KEYS
    usual_device = UsualDevice("h100-80g", "PaddleNLP files")
    no_dryrun = NoDryrun("is started by PaddleNLP, which has no dry-run", cure="take the estimate")

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_script(PaddleScript.read(path), register_path)

    def home_of_plan(self, config: TrainingConfig) -> Path:
        """The strategy file where the script names one."""
        return PaddleScript.read(config.path).layerwise_path or config.path

    def with_plan(
        self, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None = None
    ) -> tuple[str, str]:
        """See `Launcher.with_plan`."""
        return write.with_plan(PaddleScript.read(config.path), config, plan, micro_batches)

    def with_strategy(
        self, config: TrainingConfig, strategy: Strategy, plan: PipelinePlan | None, extra: Mapping[str, object]
    ) -> str:
        """See `Launcher.with_strategy`; the keys of `extra` are flags."""
        return write.with_strategy(PaddleScript.read(config.path), config, strategy, plan, extra)
