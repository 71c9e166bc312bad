"""A NeMo RL YAML with the files that it inherits, and its interpolations.

Sources: NVIDIA-NeMo/RL 7ea279ab nemo_rl/utils/config.py:25-110 (``defaults``, ``_override_``), 198-204 (resolvers);
omegaconf 2.3 docs/source/usage.rst, «Variable interpolation».
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError, shortened
from taylor.parsers.policy.interpolated import MISSING, interpolated
from taylor.parsers.policy.options import Options, option
from taylor.parsers.text.flags import Flag
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource

DEFAULTS, OVERRIDE = "defaults", "_override_"
TELLTALE = re.compile(
    r"^policy\s*:[^\n]*\n(?:[^\n]*\n){0,400}?[ \t]+(?:megatron_cfg|dtensor_cfg|train_global_batch_size"
    r"|max_total_sequence_length)\s*:"
    r"|^defaults\s*:[\s\S]{0,400}?\.ya?ml[\s\S]*?^(?:policy|grpo|dpo|sft|rm|ppo|distillation|cluster|checkpointing)\s*:",
    re.MULTILINE,
)
"""Found in a training's YAML, but for one that inherits its policy and states other sections alone."""
INHERITS = re.compile(r"^defaults\s*:(?:[^\n]*|\s*\n\s*-[^\n]*)\.ya?ml\b", re.MULTILINE)
"""Found in every YAML that inherits another."""
_ROLL_OUTS = "policy.generation."
_MOST_FILES = 32
"""Files that one inherits."""
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")


@dataclass(frozen=True)
class RlExperiment:
    """One YAML with everything that it inherits.

    Parameters
    ----------
    source : YamlSource
        The file that was named.
    data : mapping
        Its content over that of its bases.
    """

    source: YamlSource
    data: Mapping[str, Any]
    of_values: bool = False

    @classmethod
    def read(cls, path: Path) -> RlExperiment:
        """Read a file and its bases.

        Raises
        ------
        InputError
            When one is missing or damaged, they inherit each other, or there is no policy.
        """
        return cls.of(YamlSource.read(path))

    @classmethod
    def of(cls, source: YamlSource) -> RlExperiment:
        """The same of a file that was read."""
        data = _inherited(source, [source.file.absolute()], [_MOST_FILES])
        if not isinstance(data.get("policy"), Mapping):
            cure = "give the YAML of a training, as those of examples/configs"
            raise InputError("describes no policy of NeMo RL", file=source.file, field="policy", cure=cure)
        return cls(source, data)

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.source.file

    def options(self) -> Options:
        """Every option with its interpolations resolved; what they leave open is marked as unknown."""
        flags = interpolated(self.data, _computed)
        if self.of_values:
            return Options(self.file, _in_place_of_policy(flags), place=_place_of_values)
        return Options(self.file, flags, place="{}".format)

    def value_model(self) -> RlExperiment:
        """The same with the value model in place of the policy, whose options stand in ``value`` by the same names.

        Raises
        ------
        InputError
            When there is none.
        """
        if not isinstance(self.data.get("value"), Mapping):
            cure = "add the section, as examples/configs/ppo_math_1B.yaml has it"
            raise InputError("describes no value model, which PPO trains", file=self.file, field="value", cure=cure)
        return replace(self, of_values=True)

    def edited(self, wanted: Mapping[str, object]) -> RlExperiment:
        """The same with some options set in the file that was named; None goes back to the base's value as null."""
        placed: dict[YamlPath, Any] = {tuple(name.split(".")): value for name, value in wanted.items()}
        return RlExperiment.of(edit_yaml(self.source, placed))


def _in_place_of_policy(flags: Sequence[Flag]) -> list[Flag]:
    kept = [each for each in flags if not each.name.startswith("policy.") or each.name.startswith(_ROLL_OUTS)]
    return [
        option(f"policy.{each.name.removeprefix('value.')}", each.values[0]) if each.name.startswith("value.") else each
        for each in kept
    ]


def _place_of_values(name: str) -> str:
    own = name.startswith("policy.") and not name.startswith(_ROLL_OUTS)
    return f"value.{name.removeprefix('policy.')}" if own else name


def _inherited(source: YamlSource, above: list[Path], files: list[int]) -> dict[str, Any]:
    """The content of a file over that of its bases.

    Parameters
    ----------
    above : list of Path
        The files that inherit this one, and itself.
    files : list of int
        Number of files that may still be read.
    """
    named = source.data.get(DEFAULTS)
    own = {key: value for key, value in source.data.items() if key != DEFAULTS}
    names = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    merged: dict[str, Any] = {}
    for name in names:
        if not isinstance(name, str) or Path(name).suffix not in (".yaml", ".yml"):
            raise InputError("must name YAML files", file=source.file, field=DEFAULTS, value=shortened(str(name), 80))
        path = (source.file.absolute().parent / name).resolve()
        files[0] -= 1
        if path in above or files[0] < 0:
            raise InputError("inherits itself, or too many files", file=source.file, field=DEFAULTS, value=name)
        if not path.is_file():
            cure = "give the file inside its checkout, where its bases lie"
            raise InputError("names a base that is not found", file=source.file, field=DEFAULTS, value=name, cure=cure)
        above.append(path)
        merged = _merged(merged, _inherited(YamlSource.read(path), above, files))
        above.remove(path)
    return _merged(merged, own)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any], *, top: bool = True) -> dict[str, Any]:
    """One level of content over another; ``_override_`` of a section at the top drops what stands below it.

    Source: NVIDIA-NeMo/RL 7ea279ab nemo_rl/utils/config.py:30-50, which looks at no deeper section.
    """
    merged = dict(base)
    for key, value in own.items():
        under = merged.get(key)
        if isinstance(value, Mapping):
            drops = top and bool(value.get(OVERRIDE))
            kept = under if isinstance(under, Mapping) and not drops else {}
            merged[key] = _merged(kept, {name: each for name, each in value.items() if name != OVERRIDE}, top=False)
        elif value != MISSING or key not in merged:
            merged[key] = value
    return merged


def _computed(function: str, parts: Sequence[str]) -> str | None:
    """The resolvers that NeMo RL registers (nemo_rl/utils/config.py)."""
    if len(parts) != 2 or not all(map(_NUMBER.fullmatch, parts)):
        return None
    one, other = (float(part) for part in parts)
    if function == "div" and other == 0:
        return None
    results = {"add": one + other, "mul": one * other, "div": one / (other or 1), "max": max(one, other)}
    value = results.get(function)
    if value is None:
        return None
    return str(int(value)) if value == int(value) else str(value)


def parts_of(data: Mapping[str, Any], *keys: str) -> Iterator[Mapping[str, Any]]:
    """The sections below some keys, where there are any."""
    for key in keys:
        found = data.get(key)
        if isinstance(found, Mapping):
            yield found
