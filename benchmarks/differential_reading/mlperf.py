"""The fields of MLPerf's fine-tuning configurations: the exported variables, over their harness' YAML by OmegaConf.

Source: mlcommons/training_results_v5.1 441d65f4, conf/megatron_gpt_peft_tuning_config.yaml beside each script, and
NVIDIA/benchmarks/llama2_70b_lora/implementations/nemo/train.py:315-325 for what NVIDIA's states in Python.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.differential_reading.checkout import quotient, targets
from benchmarks.differential_reading.reading import NothingToRead, Reading, Value, settled, whole

_YAML = "megatron_gpt_peft_tuning_config.yaml"
_EXPORT = re.compile(r'export\s+(\w+)=("[^"\n]*"|[^\s;&#]*)')
_SOURCE = re.compile(r"^\s*source\s+\$\(dirname \$\{BASH_SOURCE\[0\]\}\)/([\w.-]+\.sh)")
_MOST_FILES = 8
_ON = (True, 1, "True", "true", "1")


def is_tuning(path: Path) -> bool:
    """Return whether a script is a configuration of this benchmark."""
    return path.name.startswith("config_") and any("llama2_70b_lora" in part for part in path.parts)


def read_tuning(path: Path) -> list[Reading]:
    """The fields of a configuration.

    Raises
    ------
    NothingToRead
        When it is a part of one, no YAML lies beside it, or OmegaConf is missing.
    """
    if find_spec("omegaconf") is None:
        raise NothingToRead("needs OmegaConf, which resolves the harness' YAML (pip install hydra-core)")
    variables = _exported(path)
    if "DGXNNODES" not in variables:
        raise NothingToRead("is a part of a configuration")
    model, trainer, optimizer = _resolved(path, variables)
    nodes, each = whole(trainer.get("num_nodes")), whole(trainer.get("devices"))
    ranks = None if nodes is None or each is None else nodes * each
    tp, pp, cp = (whole(model.get(f"{name}_parallel_size")) for name in ("tensor_model", "pipeline_model", "context"))
    mbs, batch = whole(model.get("micro_batch_size")), whole(model.get("global_batch_size"))
    replicas = quotient(quotient(quotient(ranks, tp), pp), cp)
    lora = model.get("peft", {}).get("lora_tuning", {})
    values: dict[str, Value | None] = {
        "layers": whole(model.get("num_layers", 80)),
        "ranks": ranks,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": replicas,
        "mbs": mbs,
        "batch": batch,
        "accumulation": quotient(quotient(batch, replicas), mbs),
        "sequence": whole(model.get("encoder_seq_length")),
        "recompute": str(
            model.get("recompute_granularity") or model.get("activations_checkpoint_granularity") or "none"
        ),
        "sharded_optimizer": _sharded(optimizer, nodes),
        "compute_bytes": 2,
        "adapter_rank": whole(lora.get("adapter_dim", 16)),
        "adapter_targets": targets(["linear_qkv", "linear_proj"]),
    }
    return [settled(values)]


def _sharded(optimizer: Mapping[str, Any], nodes: int | None) -> bool | None:
    if "use_distributed_optimizer" in optimizer:
        return optimizer["use_distributed_optimizer"] in _ON
    name = str(optimizer.get("name"))
    return name == "mcore_distributed_optim" if nodes else None


def _exported(path: Path, depth: int = 0) -> dict[str, str]:
    """Variables by the lines that export them, in order, those of files that a line takes in between."""
    found: dict[str, str] = {}
    for line in path.read_text(errors="replace").splitlines():
        taken = _SOURCE.match(line)
        other = path.parent / taken[1] if taken else None
        if other is not None and depth < _MOST_FILES and other.is_file():
            found |= _exported(other, depth + 1)
        if not line.lstrip().startswith("#"):
            found |= {name: value.strip('"') for name, value in _EXPORT.findall(line)}
    return found


def _resolved(path: Path, variables: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Model, trainer and optimizer of the harness' YAML with the variables in the environment.

    Raises
    ------
    NothingToRead
        When there is none, or OmegaConf refuses it.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    functions = {
        "add": lambda a, b: a + b, "multiply": lambda a, b: a * b, "floor_div": lambda a, b: a // b,
        "ceil_div": lambda a, b: math.ceil(a / b), "floor": math.floor, "gt": lambda a, b: float(a) > float(b),
        "if": lambda chosen, a, b: a if chosen else b,
    }  # fmt: skip
    for name, function in functions.items():
        OmegaConf.register_new_resolver(name, function, replace=True)
    above = (path.parent, path.parent.parent)
    files = [each / below / _YAML for each in above for below in ("conf", "src/conf")]
    file = next((each for each in files if each.is_file()), None)
    if file is None:
        raise NothingToRead("has no YAML of its harness beside it")
    with patch.dict(os.environ, variables, clear=True):
        try:
            data = OmegaConf.load(file)
            parts = [{} if part not in data else _plain(data[part]) for part in ("model", "trainer", "optim")]
        except OmegaConfBaseException as error:
            raise NothingToRead(f"OmegaConf refuses its harness' YAML: {type(error).__name__}") from None
    model, trainer, optimizer = parts
    return model, trainer, {**model.get("optim", {}), **optimizer}


def _plain(section: Any) -> dict[str, Any]:
    """A section as plain data; a value that does not resolve is left out."""
    from omegaconf import DictConfig
    from omegaconf.errors import OmegaConfBaseException

    found: dict[str, Any] = {}
    for name in section:
        try:
            value = section[name]
        except OmegaConfBaseException:
            continue
        found[str(name)] = _plain(value) if isinstance(value, DictConfig) else value
    return found
