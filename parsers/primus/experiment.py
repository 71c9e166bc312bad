"""A Primus experiment: one trainer, the presets that it names, and the entries that override them.

Source: AMD-AGI/Primus fd1eeabb primus/core/launcher/parser.py:164-330, primus/core/utils/yaml_utils.py:86-149.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.primus.presets import CONFIGS, Checkout, load, merge
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource

MEGATRON, TORCHTITAN, BRIDGE = "megatron", "torchtitan", "megatron_bridge"
OVERRIDES = "overrides"
TELLTALE = re.compile(
    r"^\ufeff?modules\s*:[^\n]*\n(?:[^\n]*\n){0,40}?\s+framework\s*:\s*[\"']?(\w+)"
    r"|^\ufeff?extends\s*:[\s\S]*?^modules\s*:[^\n]*\n(?:\s*(?:#[^\n]*)?\n)*\s+\w*trainer\s*:",
    re.MULTILINE,
)
"""Found in every Primus experiment; its group is the backend, but for one that extends another experiment."""
_OWN_KEYS = frozenset({"name", "framework", "config", "model", OVERRIDES, "params"})
"""Keys of a trainer that are no options of its backend (parser.py:235-239)."""
_ELSEWHERE = {
    "maxtext": "MaxText, a JAX program whose layout of ranks has other axes",
    "diffusion": "a diffusion model",
    "maxdiffusion": "a diffusion model",
    "hummingbirdxt": "a diffusion model",
    "nemo_automodel": "NeMo Automodel, which has no pipeline stages to plan",
}
"""Other backends of Primus (primus/backends), and what they train."""


@dataclass(frozen=True)
class Experiment:
    """One trainer of an experiment with all its options.

    Parameters
    ----------
    source : YamlSource
        The file that was named.
    root : Path or None
        Its checkout; None where it stands alone.
    framework : str
        ``megatron``, ``torchtitan`` or ``megatron_bridge``.
    prefix : tuple of str
        Place of the overrides in the file, or of all options where the file states them itself.
    options : mapping
        Every option of the backend after presets and overrides.
    unused : tuple of str
        Sentences about entries that Primus ignores.
    defaults : mapping of str to str
        Variables of the trainer whose defaults count.
    """

    source: YamlSource
    root: Path | None
    framework: str
    prefix: tuple[str, ...]
    options: Mapping[str, Any]
    unused: tuple[str, ...]
    defaults: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Experiment:
        """Read an experiment with its presets.

        Raises
        ------
        InputError
            When a file is missing or damaged, the experiment trains with a backend that is not read, or it names
            presets and lies in no checkout of Primus.
        """
        return cls.of(YamlSource.read(path))

    @classmethod
    def of(cls, source: YamlSource) -> Experiment:
        """The same of a file that was read."""
        file = source.file
        checkout = Checkout.around(file)
        root = None if checkout is None else checkout.root
        whole = load(source, root)
        name, trainer = _trainer(whole.data, file)
        framework = trainer.get("framework")
        if framework not in (MEGATRON, TORCHTITAN, BRIDGE):
            raise _other_backend(file, name, framework)
        above = ("modules", name)
        if "config" not in trainer:  # Exported with all its options (parser.py:224-227).
            options = {key: value for key, value in trainer.items() if key not in _OWN_KEYS - {"model"}}
            if isinstance(options.get("model"), str):
                del options["model"]
            return cls(source, root, framework, above, _plain(options), (), whole.defaults)
        if checkout is None:
            raise _no_checkout(file, trainer)
        overrides = trainer.get(OVERRIDES) or {}
        if not isinstance(overrides, Mapping):
            raise InputError("must be a mapping of names to values", file=file, field=".".join((*above, OVERRIDES)))
        presets = [
            checkout.preset(kind, framework, _named(trainer, key, file, above), file, ".".join((*above, key)))
            for kind, key in (("modules", "config"), ("models", "model"))
        ]
        module, model = (preset.data for preset in presets)
        options = {**model, **module}  # A module's option goes before the model's of the same name.
        options |= {key: value for key, value in trainer.items() if key not in (*_OWN_KEYS, *options)}
        options = merge(options, overrides)
        unused = [
            f"bases of {preset.files[0].name} is ignored by Primus, which knows extends"
            for preset in presets
            if "bases" in preset.data
        ]
        for gone in ("bases", "name", "framework"):
            options.pop(gone, None)
        return cls(source, root, framework, (*above, OVERRIDES), _plain(options), tuple(unused), whole.defaults)

    @classmethod
    def backend(cls, path: Path, text: str) -> str | None:
        """The backend of a file with this text; empty where that cannot be said, None where it is no experiment."""
        match = TELLTALE.search(text)
        if match is None or match[1] is not None:
            return None if match is None else match[1]
        try:
            return cls.read(path).framework
        except InputError:
            return ""

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.source.file

    def place(self, *steps: str) -> str:
        """Place of an option in the file, for errors."""
        return ".".join((*self.prefix, *steps))

    def edited(self, wanted: Mapping[YamlPath, Any], beside: Mapping[str, tuple[str, ...]]) -> Experiment:
        """The same with options set in the file; see `edit_yaml`.

        Parameters
        ----------
        wanted : mapping of path to value
            Paths below `prefix`.
        """
        placed = {(*self.prefix, *path): value for path, value in wanted.items()}
        return Experiment.of(edit_yaml(self.source, placed, beside=beside))


def _trainer(data: Mapping[str, Any], file: Path) -> tuple[str, Mapping[str, Any]]:
    """The trainer of an experiment: ``pre_trainer``, else the first (primus_config.py:162-183)."""
    modules = data.get("modules")
    if not isinstance(modules, Mapping):
        raise InputError("is no Primus experiment: it has no modules", file=file, field="modules")
    names = [name for name in modules if "trainer" in name and isinstance(modules[name], Mapping)]
    if not names:
        raise InputError(
            "names no trainer", file=file, field="modules", cure="a Primus experiment has modules.pre_trainer"
        )
    name = "pre_trainer" if "pre_trainer" in names else names[0]
    return name, modules[name]


def _named(trainer: Mapping[str, Any], key: str, file: Path, above: tuple[str, ...]) -> str:
    name = trainer.get(key)
    if not isinstance(name, str) or not name or "${" in name:
        shown = shortened(str(name), 80)
        raise InputError("must name a preset", file=file, field=".".join((*above, key)), value=shown)
    return name


def _other_backend(file: Path, name: str, framework: Any) -> InputError:
    what = _ELSEWHERE.get(framework, "") if isinstance(framework, str) else ""
    return InputError(
        f"is a Primus experiment whose backend is not read{f': {what}' if what else ''}",
        file=file,
        field=f"modules.{name}.framework",
        value=shortened(str(framework), 40),
        cure=f"give an experiment of the backend {MEGATRON}, {TORCHTITAN} or {BRIDGE}",
    )


def _no_checkout(file: Path, trainer: Mapping[str, Any]) -> InputError:
    names = " and ".join(shortened(str(trainer.get(key)), 60) for key in ("config", "model"))
    return InputError(
        f"is a Primus experiment whose presets are missing: {names} lie in {CONFIGS} of a Primus checkout, "
        "and no folder above the file is one",
        file=file,
        cure="give the file inside its checkout, or the merged file that primus-cli writes with --export_config",
    )


def _plain(value: Any) -> Any:
    """Options as the backend gets them: the text ``null`` is nothing (yaml_utils.py:75-80)."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, str) and value == "null" else value
