"""Automodel's YAML recipes."""

from __future__ import annotations

from pathlib import Path

from taylor.parsers.alike_recompute import BOTH_MODES, AlikeRecompute
from taylor.parsers.automodel import write
from taylor.parsers.automodel.read import NAME, config_from_source
from taylor.parsers.automodel.recipe import TELLTALE
from taylor.parsers.edited_file import EditedFile
from taylor.parsers.launcher import NoDryrun, UsualDevice
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig

_USUAL = UsualDevice("h100-80g", "Automodel files")
_DEVICES = {"gb200": "gb200-nvl72", "gb300": "gb300-nvl72"}


class Automodel(EditedFile, AlikeRecompute):
    """Recipes that train a language model."""

    recomputing = "Automodel"
    recompute_modes = BOTH_MODES
    degree_words = {
        "dp": "distributed.dp_size",
        "tp": "distributed.tp_size",
        "pp": "distributed.pp_size",
        "ep": "distributed.ep_size",
        "cp": "distributed.cp_size",
        "op": "distributed.dp_replicate_size",
        "sp": "distributed.sequence_parallel",
        "vpp": "distributed.pipeline.layers_per_stage",
        "mbs": "step_scheduler.local_batch_size",
        "gbs": "step_scheduler.global_batch_size",
        "seq": "dataset.seq_length",
    }
    name = NAME
    title = "Automodel YAML"
    suffixes = (".yaml", ".yml")
    telltale = TELLTALE
    plan_keys = write.PLAN_KEYS
    source = YamlSource
    writer = write
    usual_device = _USUAL
    no_dryrun = NoDryrun("is started by torchrun, and Automodel runs no training without its devices")
    has_own_marks = True

    def usual_device_of(self, config: TrainingConfig) -> UsualDevice:
        """See `Launcher.usual_device_of`: the machine that the repository's tests reserve."""
        ci = Fields(YamlSource.read(config.path).data, config.path).section("ci")
        device = _DEVICES.get(str(ci.raw("cluster_tag")))
        return _USUAL if device is None else UsualDevice(device, _USUAL.jobs, "by its ci.cluster_tag")

    def read(self, path: Path, register_path: Path | None = None) -> TrainingConfig:
        """See `Launcher.read`."""
        return config_from_source(YamlSource.read(path), register_path)
