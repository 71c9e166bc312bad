"""A Primus experiment of the Megatron-Bridge backend: a published recipe with the file's arguments.

Primus calls the recipe's function with all options, drops those that it does not take, and merges sections of a
ConfigContainer alone, so that other options have no effect. Sources: AMD-AGI/Primus fd1eeabb
primus/backends/megatron_bridge/config_utils.py:191-283 (arguments), 420-470 (sections); NVIDIA-NeMo/Megatron-Bridge
9577b128 src/megatron/bridge/recipes (`recipes.yaml`), peft/lora.py:60-70, training/mixed_precision.py (``bf16_mixed``),
models/gpt_provider.py:191 (the fused loss).
"""

from __future__ import annotations

import difflib
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from taylor.base.errors import InputError, shortened
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.named_sizes import flag
from taylor.parsers.megatron.new_file import model_flags
from taylor.parsers.megatron.section_adapters import section_adapters
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.named_model import named_model
from taylor.parsers.new_file import NewJob
from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.primus.job import usual_ranks
from taylor.parsers.start_rules import KeyRule, Keys
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flag, Flags
from taylor.register.adapters import Adapters
from taylor.register.model import ModelSpec

NAME = "primus-bridge"
OPTIONS = "recipe_options.yaml"
_SOURCE = "Megatron-Bridge 9577b128 src/megatron/bridge/recipes"
_DEGREES = {
    "tensor_model_parallel_size": ("tensor", "tensor-model-parallel-size"),
    "pipeline_model_parallel_size": ("pipeline", "pipeline-model-parallel-size"),
    "virtual_pipeline_model_parallel_size": ("virtual", "num-virtual-stages-per-pipeline-rank"),
    "context_parallel_size": ("context", "context-parallel-size"),
    "sequence_parallel": ("sequence", "sequence-parallel"),
    "expert_model_parallel_size": ("expert", "expert-model-parallel-size"),
}
"""Options of the file that are degrees, each with its name in ``takes`` and its flag of Megatron's."""
_BATCH = {
    "micro_batch_size": "micro-batch-size",
    "global_batch_size": "global-batch-size",
    "seq_length": "seq-length",
}
_USUAL: Mapping[str, Any] = {
    "bf16": True,
    "hidden-dropout": 0.0,
    "attention-dropout": 0.0,
    "no-create-attention-mask-in-dataloader": True,
    "cross-entropy-loss-fusion": True,
    "use-distributed-optimizer": True,
    "tensor-model-parallel-size": 1,
    "pipeline-model-parallel-size": 1,
    "context-parallel-size": 1,
    "expert-model-parallel-size": 1,
    "sequence-parallel": False,
}
_NO_EFFECT = ("recompute_granularity", "recompute_method", "recompute_num_layers", "peft_dim", "peft_alpha",
              "use_distributed_optimizer", "cross_entropy_loss_fusion")  # fmt: skip
_NO_SIZES = ("seq-length", "max-position-embeddings", "mtp-num-layers", "use-flash-attn", "moe-token-dispatcher-type",
             "moe-grouped-gemm")  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """What one recipe sets; see `recipes.yaml`."""

    source: str
    model: str
    takes: tuple[str, ...] = ()
    all: Mapping[str, Any] = field(default_factory=dict)
    whole: Mapping[str, Any] = field(default_factory=dict)
    lora: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, Any] = field(default_factory=dict)


@cache
def recipes() -> Mapping[str, Recipe]:
    """The known recipes by the names of their functions."""
    text = importlib.resources.files("taylor.parsers.primus").joinpath("recipes.yaml").read_text(encoding="utf-8")
    rows = yaml.load(text, Loader=SAFE_LOADER)
    return {name: Recipe(**{**row, "takes": tuple(row["takes"])}) for name, row in rows.items()}


def _is_named_twice(keys: Keys) -> bool:
    """Return whether the file names the model of a recipe that takes no name."""
    recipe = recipes().get(str(keys("flavor")))
    return keys("hf_path") is not None and recipe is not None and not recipe.takes


START_RULES = (
    KeyRule(
        "one-model-name",
        "hf_path",
        _is_named_twice,
        "is handed to a recipe that names its model itself, and Python refuses an argument that is given twice",
        "leave hf_path out of the model's preset",
        "Primus fd1eeabb primus/backends/megatron_bridge/config_utils.py:228-275",
    ),
)


class RecipeJob(Launch):
    """An experiment of the Megatron-Bridge backend; see `Launch`.

    Raises
    ------
    InputError
        When its recipe is not known, or it trains adapters of another kind than LoRA.
    """

    launcher = NAME

    def __init__(
        self, experiment: Experiment, register_path: Path | None = None, model: ModelSpec | None = None
    ) -> None:
        self.experiment = experiment
        self.file, self.text = experiment.file, experiment.source.text
        name, recipe = _recipe(experiment)
        notes = [*experiment.unused, f"recipe {name}: {_SOURCE}/{recipe.source}"]
        if model is None:
            model, remarks = named_model(str(experiment.options.get("hf_path") or recipe.model), self.file,
                                         experiment.place("hf_path"), register_path)  # fmt: skip
            notes += remarks
        self.model = model
        self.adapters = _adapters(experiment, recipe)
        settings = {**_USUAL, **recipe.all, **(recipe.whole if self.adapters is None else recipe.lora)}
        settings |= _stated(experiment, recipe, settings, notes)
        if settings["tensor-model-parallel-size"] == 1:
            settings["sequence-parallel"] = False
        notes += _without_effect(experiment)
        starting = usual_ranks()
        sizes = _flags(
            {key: to for key, to in model_flags(NewJob(model, 1, 1, 1, 1)).items() if key not in _NO_SIZES}, None
        )
        if model.moe is not None:
            sizes.append(flag("moe-grouped-gemm"))
        self.flags = Flags(self.file, [*starting, *sizes, *_flags(settings, False)], len(starting), self._place)
        self.notes = tuple(notes)
        cure = "solve with -write n, or give the plan to the recipe's own arguments"
        self.plan_error = InputError("states its plan by a recipe of Megatron-Bridge", file=self.file, cure=cure)

    def table(self) -> FlagTable:
        """See `Launch.table`."""
        return flag_table()

    def unread(self) -> tuple[UnmodelledFlag, ...]:
        """Options of the file that cost something that no figure includes, or that are not known."""
        given = [
            (key, None if value is True else shortened(str(value), 80))
            for key, value in self.experiment.options.items()
            if value not in (None, False, "", []) and not isinstance(value, Mapping)
        ]
        return own_table().unmodelled(given)

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> RecipeJob:
        """See `Launch.with_flags`.

        Raises
        ------
        InputError
            Where something is to change: the recipe states it.
        """
        assert self.plan_error is not None
        raise self.plan_error

    def with_ranks(self, world: int) -> tuple[RecipeJob, dict[str, Setting]]:
        """See `Launch.with_ranks`: variables of the command that starts the job state them."""
        return self, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return bool(value) if isinstance(value, bool) or value is None else str(value)

    def _place(self, name: str) -> str:
        """Place where the file states a flag, or would."""
        known = {flag_name: key for key, (_, flag_name) in _DEGREES.items()} | {to: key for key, to in _BATCH.items()}
        if name in ("nproc-per-node", "nnodes"):
            return "GPUS_PER_NODE" if "nproc" in name else "NNODES"
        return self.experiment.place(known.get(name, name.replace("-", "_")))


def own_table() -> FlagTable:
    """The table of the arguments of the backend."""
    return load_flag_table("taylor.parsers.primus", OPTIONS)


def _recipe(experiment: Experiment) -> tuple[str, Recipe]:
    name = experiment.options.get("flavor")
    recipe = recipes().get(name) if isinstance(name, str) else None
    if recipe is None:
        near = difflib.get_close_matches(str(name)[:80], recipes(), n=1, cutoff=0.9)
        cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(recipes())}"
        problem = "is a recipe in Python whose settings are not known"
        shown = shortened(str(name), 60)
        raise InputError(problem, file=experiment.file, field=experiment.place("flavor"), value=shown, cure=cure)
    return str(name), recipe


def _adapters(experiment: Experiment, recipe: Recipe) -> Adapters | None:
    """LoRA of a recipe for fine-tuning, which it trains unless ``peft`` is none (finetune_utils.py, recipes)."""
    usual = None if "pretrain" in str(experiment.options.get("flavor")) else "lora"
    kind = experiment.options.get("peft", usual)
    if usual is None or kind is None or str(kind).lower() == "none":
        return None
    if str(kind).lower() != "lora":
        problem, cure = "trains adapters of another kind than LoRA, which are not modelled", "write lora or none"
        raise InputError(problem, file=experiment.file, field=experiment.place("peft"), value=str(kind)[:40], cure=cure)
    # One adapter a layer's routed experts: LoRALinear wraps the grouped linear module whole (peft/lora.py:77-140).
    return section_adapters(recipe.adapters, experiment.file, experiment.place("peft"))


def _stated(experiment: Experiment, recipe: Recipe, own: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """Flags that options of the file set; one that the recipe does not take is reported where its `own` differs."""
    options = experiment.options
    found: dict[str, Any] = {}
    for key, name in _BATCH.items():
        value = options.get(key)
        if value is None:
            cure = "write it: the recipe's own depends on packed_sequence"
            raise InputError("is missing", file=experiment.file, field=experiment.place(key), cure=cure)
        found[name] = value
    found["max-position-embeddings"] = options["seq_length"]
    ignored = []
    for key, (short, name) in _DEGREES.items():
        value = options.get(key)
        if value is None:
            continue
        if short in recipe.takes:
            found[name] = value
        elif value != own.get(name, value):
            ignored.append(f"{key} {value}")
    if ignored:
        notes.append(f"{', '.join(ignored)}: the recipe takes no such argument, and its own degrees are in force")
    if options.get("use_megatron_fsdp") is True and recipe.takes:
        found["use-megatron-fsdp"] = True
    if not options.get("packed_sequence") and not options.get("mock"):
        notes.append("samples are as long as they can be: seq_length")
    return found


def _without_effect(experiment: Experiment) -> list[str]:
    """A sentence about options that Primus drops."""
    given = [name for name in _NO_EFFECT if experiment.options.get(name) is not None]
    return [f"{', '.join(given)}: no argument of the recipe and no section, so that Primus drops them"] if given else []


def _flags(settings: Mapping[str, Any], off: object) -> list[Flag]:
    """Flags of settings: none for one that is off, without a value for one that is on."""
    found = []
    for name, value in settings.items():
        if value is False:
            continue
        bare = value is True or value is off
        found.append(flag(name) if bare else flag(name, str(value).strip('"')))
    return found
