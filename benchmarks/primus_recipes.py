"""Jobs that Megatron-Bridge's recipes make of Primus' files of that backend, beside how they are read.

Run from the repository's root with a checkout of AMD-AGI/Primus (fd1eeabb) and the folder ``recipes`` of
Megatron-Bridge at the commit that Primus names (9577b128 src/megatron/bridge/recipes)::

    python -m benchmarks.primus_recipes ../Primus ../recipes

The functions and Primus' ``auto_filter_and_call`` run as they stand; torch and Megatron-Core are stand-ins that keep
what a recipe sets. It prints each file's differences, and the rows of tests/parsers/primus/recipe_record.yaml.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL

FILTER = "primus/backends/megatron_bridge/config_utils.py"
STOOD_IN = ("megatron", "torch", "transformer_engine")
SECTIONS = ("ConfigContainer", "TrainingConfig", "DistributedDataParallelConfig", "GPTDatasetConfig", "LoggerConfig",
            "TokenizerConfig", "CheckpointConfig", "RNGConfig")  # fmt: skip
NAMES = ("recipe", "flavor", "model")
RECORDED = (
    "flavor",
    "hf_path",
    "peft",
    "packed_sequence",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "sequence_parallel",
    "micro_batch_size",
    "global_batch_size",
    "seq_length",
    "peft_dim",
    "recompute_granularity",
)


class StandIns:
    """A finder and loader of modules that take every name."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        """A module of a program that is not installed."""
        return importlib.machinery.ModuleSpec(name, cls) if name.split(".")[0] in STOOD_IN else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A module whose every attribute is another stand-in."""
        module: Any = MagicMock()
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        """Nothing: the module is there."""


def provider() -> SimpleNamespace:
    """A model's provider with Megatron-Bridge's defaults of the fields that a recipe may set."""
    ones = dict.fromkeys(("tensor", "pipeline", "expert"), 1)
    return SimpleNamespace(
        **{f"{name}_model_parallel_size": one for name, one in ones.items()},
        context_parallel_size=1,
        sequence_parallel=False,
        recompute_granularity=None,
        seq_length=None,
    )


def functions(path: Path) -> dict[str, Any]:
    """The functions of a module of recipes, with stand-ins for what they build."""
    found: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), found)
    found |= dict.fromkeys(SECTIONS, SimpleNamespace)
    bridge = SimpleNamespace(to_megatron_provider=lambda **_: provider())
    found["AutoBridge"] = SimpleNamespace(from_hf_pretrained=lambda _: bridge)
    found["distributed_fused_adam_with_cosine_annealing"] = lambda **_: (
        SimpleNamespace(use_distributed_optimizer=True),
        None,
    )
    found["default_peft_config"] = lambda kind: None if str(kind).lower() == "none" else SimpleNamespace(dim=32)
    found["get_blend_fields_from_data_paths"] = lambda *_: (None, None, None)
    return found


def filter_of(primus: Path) -> Callable[[Any, Mapping[str, Any]], Any]:
    """Primus' own call of a recipe, which drops arguments that it does not take."""
    text = (primus / FILTER).read_text(encoding="utf-8")
    start, end = text.index("def auto_filter_and_call"), text.index("def _merge_dict_to_dataclass")
    found: dict[str, Any] = {"log_rank_0": lambda *_: None}
    exec("from __future__ import annotations\n" + text[start:end], found)
    return found["auto_filter_and_call"]


def made(config: Any) -> dict[str, Any]:
    """What a recipe made of its arguments."""
    model, peft = config.model, getattr(config, "peft", None)
    tp = model.tensor_model_parallel_size
    return {
        "tp": tp,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "ep": model.expert_model_parallel_size,
        "sp": bool(model.sequence_parallel) and tp > 1,
        "mbs": config.train.micro_batch_size,
        "gbs": config.train.global_batch_size,
        "seq": model.seq_length,
        "full": model.recompute_granularity == "full",
        "dist": config.optimizer.use_distributed_optimizer,
        "lora": None if peft is None else peft.dim,
    }


def read(config: TrainingConfig) -> dict[str, Any]:
    """The same as the product reads it."""
    strategy, rules = config.strategy, config.rules
    assert strategy is not None and config.plan is not None
    return {
        "tp": strategy.tp,
        "pp": strategy.pp,
        "cp": strategy.cp,
        "ep": strategy.ep,
        "sp": strategy.sp,
        "mbs": strategy.mbs,
        "gbs": strategy.global_batch,
        "seq": rules.seq_length,
        "full": config.plan.uses(FULL),
        "dist": rules.parallel_optimizer,
        "lora": None if rules.adapters is None else rules.adapters.rank,
    }


def compared(path: Path, recipes: Path, call: Callable[[Any, Mapping[str, Any]], Any]) -> list[dict[str, Any]]:
    """Rows of a file, each with what differs: with its model's name and, where that ends the call, without."""
    options = dict(Experiment.read(path).options)
    module = recipes / f"{str(options['recipe']).replace('.', '/')}.py"
    if not module.is_file():
        return []
    config = read_config(path)
    rows: list[dict[str, Any]] = []
    for dropped in ((), ("hf_path",)):
        given = {key: value for key, value in options.items() if key not in (*NAMES, *dropped)}
        kept = {"flavor": options["flavor"], **given}
        row: dict[str, Any] = {"given": {key: kept[key] for key in RECORDED if key in kept}}
        rows.append(row)
        try:
            row["made"] = made(call(functions(module)[options["flavor"]], given))
        except TypeError:
            row["made"] = None
            row["differs"] = [misfit.rule for misfit in config.misfits] != ["one-model-name"]
            continue
        ours = read(config)
        row["differs"] = {key: (value, ours[key]) for key, value in row["made"].items() if value != ours[key]}
        break
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare all files of the backend; 1 where one differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("primus", type=Path)
    parser.add_argument("recipes", type=Path)
    options = parser.parse_args(arguments)
    sys.meta_path.insert(0, StandIns)
    call, rows, files = filter_of(options.primus), [], 0
    for path in sorted((options.primus / "examples/megatron_bridge/configs").glob("*/*.yaml")):
        found = compared(path, options.recipes, call)
        files += bool(found)
        for row in found:
            print(path.name, "same" if not row["differs"] else row["differs"])
        rows += found
    for row in rows:
        print("- given: " + json.dumps(row["given"]).replace('"', ""))
        print("  made: " + json.dumps(row["made"]).replace('"', ""))
    differing = sum(bool(row["differs"]) for row in rows)
    print(f"# {files} files, {differing} differences")
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
