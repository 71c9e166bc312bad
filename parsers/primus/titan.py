"""A Primus experiment of the torchtitan backend as the TOML file that torchtitan would read, and edits of it.

Primus hands its options over as torchtitan's nested settings, by their names there (AMD-AGI/Primus fd1eeabb
primus/backends/torchtitan/argument_builder.py:71-105, config_utils.py:45-110).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.flag_table import UnmodelledFlag
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.primus.experiment import Experiment
from taylor.parsers.primus.job import own_table
from taylor.parsers.text.toml_edit import TomlSource, toml_text
from taylor.parsers.text.yaml_edit import lookup
from taylor.parsers.text.yaml_source import YamlPath
from taylor.parsers.torchtitan.ranks import SCRIPT
from taylor.parsers.training_config import TrainingConfig
from taylor.register.model import ModelSpec

NAME = "primus-torchtitan"
TURBO = "primus_turbo"
OWN: Mapping[str, tuple[str, ...] | None] = {TURBO: None, "training": ("mock_data",), "primus": None}
"""Sections of Primus' own, or single settings in torchtitan's (fd1eeabb
primus/configs/modules/torchtitan/pre_trainer.yaml:38, 138)."""
OF_MODEL: Mapping[str, Callable[[ModelSpec], int]] = {
    "n_layers": lambda model: model.n_layers,
    "dim": lambda model: model.hidden,
    "n_heads": lambda model: model.n_heads,
    "n_kv_heads": lambda model: model.n_kv_heads,
    "vocab_size": lambda model: model.vocab,
}
"""Sizes of a flavour that ``model`` may override (fd1eeabb primus/backends/torchtitan/patches/
model_override_patches.py:15-42)."""
_NAME = re.compile(r"[A-Za-z0-9_\-]{1,100}")
_WITHOUT = {
    "global_batch_size": -1,
    "pipeline_parallel_microbatch_size": 1,
    "mode": "none",
    "selective_ac_option": "2",
    "pipeline_parallel_schedule": "1F1B",
}
"""Values of settings that mean what their absence does, where that is no null (fd1eeabb
primus/configs/modules/torchtitan/pre_trainer.yaml:51, 83-89; pytorch/torchtitan 73a0e697 torchtitan/config/
job_config.py)."""


def as_toml(experiment: Experiment) -> TomlSource:
    """The settings of an experiment as torchtitan's file; Primus' own are left out.

    Raises
    ------
    InputError
        When a setting has a name or a value that no such file can hold.
    """
    return TomlSource("\n".join(_lines(experiment, _sections(experiment.options), ())), experiment.file)


def started_by_primus(config: TrainingConfig) -> TrainingConfig:
    """The configuration whose notes name the program that starts it: Primus' own, with as many ranks by default."""

    def renamed(note: str) -> str:
        return note.replace(f"torchtitan's {SCRIPT}", "Primus' run_pretrain.sh")

    open_ranks = config.open_ranks
    if open_ranks is not None:
        open_ranks = replace(open_ranks, note=renamed(open_ranks.note))
    return config.replace(open_ranks=open_ranks, notes=tuple(map(renamed, config.notes)))


def refuse_other_sizes(experiment: Experiment, model: ModelSpec) -> None:
    """Refuse an experiment that overrides a size of its flavour.

    Raises
    ------
    InputError
        When a size differs from the flavour's.
    """
    section = experiment.options.get("model")
    for name, of_flavour in OF_MODEL.items():
        value = section.get(name) if isinstance(section, Mapping) else None
        if value is not None and value != of_flavour(model):
            raise InputError(
                f"is another size than the flavour's, {of_flavour(model)}: a cut flavour is not read",
                file=experiment.file,
                field=experiment.place("model", name),
                value=shortened(str(value), 40),
                cure="leave it out",
            )


def own_settings(experiment: Experiment) -> tuple[UnmodelledFlag, ...]:
    """Settings of Primus' own that no figure takes into account."""
    own: dict[str, Any] = {}
    for name, keys in OWN.items():
        section = experiment.options.get(name)
        if isinstance(section, Mapping):
            own[name] = dict(section) if keys is None else {key: section[key] for key in keys if key in section}
    own |= {name: value for name, value in experiment.options.items() if not isinstance(value, Mapping)}
    return unmodelled_keys(own_table(), own, _facts(experiment))


def _facts(experiment: Experiment) -> list[str]:
    """Facts of the job that the table's ``needs`` name."""
    asynchronous = "parallelism.enable_async_tensor_parallel"
    model = experiment.options.get("model")
    converters = model.get("converters") if isinstance(model, Mapping) else None
    facts = [asynchronous] if lookup(experiment.options, tuple(asynchronous.split("."))) is True else []
    if isinstance(converters, list) and any(str(each).startswith("quantize.") for each in converters):
        facts.append("@narrow")
    return facts


def edited(experiment: Experiment, before: TomlSource, after: TomlSource) -> Experiment:
    """The experiment with the settings in which two files of torchtitan differ."""
    old, new = dict(_leaves(before.data, ())), dict(_leaves(after.data, ()))
    wanted: dict[YamlPath, Any] = {}
    beside: dict[str, tuple[str, ...]] = {}
    for path in dict.fromkeys((*old, *new)):
        if path in old and path in new and type(old[path]) is type(new[path]) and old[path] == new[path]:
            continue
        value = new[path] if path in new else _WITHOUT.get(path[-1])
        written = lookup(experiment.source.data, (*experiment.prefix, *path))
        if path not in new and written is None and path not in old:
            continue
        wanted[path] = value
        beside[path[-1]] = ()
    return experiment.edited(_by_section(experiment, wanted), beside) if wanted else experiment


def _by_section(experiment: Experiment, wanted: Mapping[YamlPath, Any]) -> dict[YamlPath, Any]:
    """The same with all settings of a section that the file lacks as one entry."""
    placed: dict[YamlPath, Any] = {}
    for path, value in wanted.items():
        above = path[:-1]
        written = lookup(experiment.source.data, (*experiment.prefix, *above))
        if isinstance(written, Mapping):
            placed[path] = value
        else:
            placed.setdefault(above, {})[path[-1]] = value
    return placed


def _sections(options: Mapping[str, Any]) -> dict[str, Any]:
    """torchtitan's own sections of the options."""
    sections: dict[str, Any] = {}
    for name, section in options.items():
        if not isinstance(section, Mapping):
            continue
        own = OWN.get(name, ())
        if own is not None:
            left_out = (*own, *(OF_MODEL if name == "model" else ()))
            sections[name] = {key: value for key, value in section.items() if key not in left_out}
    return sections


def _lines(experiment: Experiment, table: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[str]:
    tables: list[tuple[str, Mapping[str, Any]]] = []
    for name, value in table.items():
        if not _NAME.fullmatch(name):
            place = experiment.place(*above)
            raise InputError("contains a name that torchtitan cannot have", file=experiment.file, field=place,
                             value=shortened(name, 40))  # fmt: skip
        if isinstance(value, Mapping):
            tables.append((name, value))
        elif value is not None:
            try:
                yield f"{name} = {toml_text(_value(value))}"
            except (TypeError, ValueError):
                place = experiment.place(*above, name)
                raise InputError("contains what torchtitan cannot read", file=experiment.file, field=place) from None
    for name, inner in tables:
        path = (*above, name)
        yield f"[{'.'.join(path)}]"
        yield from _lines(experiment, inner, path)


def _value(value: Any) -> Any:
    """A value without nothings in lists, and without variables that have no default."""
    if isinstance(value, list):
        return [_value(each) for each in value if each is not None]
    return value


def _leaves(data: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value
