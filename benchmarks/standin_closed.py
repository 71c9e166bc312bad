"""Predictions of the analytical model, `taylor.cost_model`, for a hidden network, from a script with all its sizes.

It knows the model that the flags describe, and nothing of its own modules or of the hidden machine: its layer times
are scaled by one factor, so that the unchanged network's are right at the degrees of its own job.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.standin_cluster import Cluster, Stage
from benchmarks.standin_script import script_text
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.time.step import layer_time
from taylor.parsers.small_run import RunSetting
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.tuning.tune import launcher_for

DEVICE = "ascend-910b"


class ClosedForms:
    """The analytical model of one cluster's network.

    Parameters
    ----------
    folder : Path
        For scripts.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self._configs: dict[int, TrainingConfig] = {}

    def config(self, run: RunSetting) -> TrainingConfig:
        """As read from a script with the run's sequence."""
        if run.seq not in self._configs:
            file = self.folder / f"closed_{run.seq}.sh"
            text = script_text(self.cluster, "torchrun", stated=True)
            file.write_text(text.replace(f"-length {self.cluster.job.seq} ", f"-length {run.seq} "))
            self._configs[run.seq] = launcher_for(file).read(file)
        return self._configs[run.seq]

    def peak(self, run: RunSetting, stage: Stage, at: int) -> float:
        """Bytes of the stage at a place."""
        config = self.config(run)
        layers = [again for name, again in stage if name == "layer"]
        row, again = (len(layers),) * run.pp, (sum(layers),) * run.pp
        plan = PipelinePlan({config.model.body_kind: (row,)}, {FULL: (again,)})
        return stage_breakdown(config.model, _strategy(run), config.rules, plan)[at].total * 2**20

    def layer_ns(self, run: RunSetting) -> float:
        """Both passes of a layer that runs again."""
        config = self.config(run)
        times = layer_time(config.model, config.model.body_kind, _strategy(run), config.rules, _device())
        return float(times.forward + times.backward + times.recompute[FULL]) * 1e6


def _strategy(run: RunSetting) -> Strategy:
    sharing = run.dp * run.cp
    return Strategy(run.dp, run.tp, run.pp, run.ep, run.cp, sharing, run.tp > 1, 1, run.mbs, 4 * run.pp)


@lru_cache(maxsize=1)
def _device() -> DeviceSpec:
    return Registry.load().device(DEVICE)
