"""A TOML file made for a model alone: one of torchtitan's own flavours."""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.parsers.new_file import TRAIN_STEPS, NewFile, NewJob, difference
from taylor.parsers.torchtitan.flavours import OWN_FLAVOURS
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

FLAVOURS = {
    "llama3": ("8B", "70B", "405B"),
    "llama4": ("17bx16e", "17bx128e"),
    "deepseek_v3": ("16B", "236B", "671B"),
    "qwen3": ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B"),
}
"""Flavours as torchtitan spells them (v0.2.2 torchtitan/models/llama3/__init__.py:51-91, llama4/__init__.py:38-51,
deepseek_v3/__init__.py:78-130, qwen3/__init__.py:46-168), by model."""


CONVERTERS, FP8 = "model.converters", "quantize.linear.float8"
"""Key of the layers' converters, and the one that makes GEMMs run in 8 bits."""


def flavour_of(model: ModelSpec) -> tuple[str, str] | None:
    """The model and the flavour of torchtitan that have the layers and sizes of a model; None where none has."""
    registry = Registry.load()
    known = {name.lower().replace("_", "-"): name for name in registry.model_names()}
    wanted = model.replace(mtp_layers=0)
    for name, flavours in FLAVOURS.items():
        for flavour in flavours:
            key = f"{name.replace('_', '-')}-{flavour.lower()}"
            found = registry.model(known[key]) if key in known else OWN_FLAVOURS.get((name, flavour.lower()))
            if found is not None and difference(wanted, found.replace(mtp_layers=0)) is None:
                return name, flavour
    return None


def torchtitan_toml(job: NewJob) -> str:
    """The file, for torchtitan v0.2.2; its test data set comes with torchtitan's sources.

    Raises
    ------
    InputError
        When none of torchtitan's flavours has the model's layers and sizes.
    """
    found = flavour_of(job.model)
    if found is None:
        known = "; ".join(f"{name} {', '.join(flavours)}" for name, flavours in FLAVOURS.items())
        problem, cure = f"none of torchtitan's flavours is {job.model.name}", f"it has {known}"
        raise InputError(problem, field="--framework", value="torchtitan", cure=cure)
    name, flavour = found
    return f"""\
# {job.model.name} on {job.ranks} ranks, for torchtitan; planned by Taylor.
# Start it on every node: torchrun --nnodes N --nproc_per_node {job.per_node} -m torchtitan.train --job.config_file FILE
# The test data of torchtitan's sources stand in for yours: change training.dataset.

[job]
dump_folder = "./outputs"

[model]
name = "{name}"
flavor = "{flavour}"
hf_assets_path = "./tests/assets/tokenizer"
{_converters(job)}
[optimizer]
name = "AdamW"
lr = 1.0e-5

[lr_scheduler]
warmup_steps = 100

[training]
local_batch_size = {job.global_batch // job.dp}
seq_len = {job.seq_length}
steps = {TRAIN_STEPS}
dataset = "c4_test"

[parallelism]
data_parallel_replicate_degree = 1
data_parallel_shard_degree = {job.dp}
tensor_parallel_degree = 1
pipeline_parallel_degree = 1
context_parallel_degree = {job.rest}

[checkpoint]
enable = false

[activation_checkpoint]
mode = "full"
{_software(job)}"""


def _converters(job: NewJob) -> str:
    """The model's line of converters; empty without any."""
    return f"converters = {job.software[CONVERTERS]}\n" if CONVERTERS in job.software else ""


def _software(job: NewJob) -> str:
    """Sections of the features that the job's software has, one key each line."""
    sections: dict[str, list[str]] = {}
    for key, value in job.software.items():
        if key == CONVERTERS:
            continue
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {value}\n")
    return "".join(f"\n[{section}]\n{''.join(lines)}" for section, lines in sections.items())


_FEATURES: dict[str, dict[str, dict[str, object]]] = {
    "compile": {"": {"compile.enable": "true"}},
    "fp8": {
        name: {CONVERTERS: f'["{FP8}"]', f"{FP8}.recipe_name": f'"{name}"', f"{FP8}.filter_fqns": '["output"]'}
        for name in ("tensorwise", "rowwise")
    },
}
"""Keys of each feature: torchtitan v0.2.2 torchtitan/config/job_config.py (``compile``, ``model.converters``) and
torchtitan/components/quantization/float8.py:30-125."""

NEW_FILES = (NewFile("torchtitan", "torchtitan", ".toml", torchtitan_toml, trains_mtp=False, features=_FEATURES),)
