"""A ROLL YAML with the files of its ``defaults``, and the role that it trains.

Sources: alibaba/ROLL 8eb27cc2 examples/start_rlvr_pipeline.py (Hydra composes the file and OmegaConf resolves it),
roll/configs/base_config.py:630 (``student_train`` takes the place of ``actor_train``), roll/pipeline/sft/sft_config.py,
roll/pipeline/distill/distill_config.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.parsers.policy.interpolated import interpolated
from taylor.parsers.policy.options import Options
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource

ACTOR, SFT, STUDENT, DISTILLED = "actor_train", "sft_train", "student_train", "student"
ROLES = (ACTOR, SFT, STUDENT, DISTILLED)
"""Sections of the role that trains, one a kind of pipeline."""
TELLTALE = re.compile(
    rf"^(?:{'|'.join(ROLES)})\s*:[^\n]*\n(?:(?:[ \t#][^\n]*)?\n){{0,400}}?[ \t]+strategy_args\s*:", re.MULTILINE
)
_MOST_DEFAULTS = 32
_CONTENT = re.compile(r"^[ \t]*[^\s#]", re.MULTILINE)
_NAMED = re.compile(r"(?:/?[\w.-]+/)*[\w.-]+")


@dataclass(frozen=True)
class RollExperiment:
    """One YAML over those of its ``defaults``.

    Parameters
    ----------
    source : YamlSource
        The file that was named.
    data : mapping
        Its content over theirs.
    role : str
        The section that trains, of `ROLES`.
    notes : tuple of str
    """

    source: YamlSource
    data: Mapping[str, Any]
    role: str
    notes: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: Path) -> RollExperiment:
        """Read a file.

        Raises
        ------
        InputError
            When it is damaged, or trains nothing.
        """
        return cls.of(YamlSource.read(path))

    @classmethod
    def of(cls, source: YamlSource) -> RollExperiment:
        """The same of a file that was read."""
        base, notes = _defaults(source)
        own = {key: value for key, value in source.data.items() if key not in ("defaults", "hydra")}
        data = _merged(base, own)
        role = next((name for name in ROLES if isinstance(data.get(name), Mapping)), None)
        if role is None:
            cure = f"give the YAML of a training, with one of {', '.join(ROLES)}"
            raise InputError("describes no role of ROLL that trains", file=source.file, field=ACTOR, cure=cure)
        return cls(source, data, role, tuple(notes))

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.source.file

    @property
    def pairs(self) -> bool:
        """Return whether it is a DPO, whose samples are pairs: the other pipelines of an actor roll out."""
        return self.role == ACTOR and "actor_infer" not in self.data

    @property
    def rolls_out(self) -> bool:
        """Return whether the role is trained on what a policy wrote."""
        return self.role == STUDENT or (self.role == ACTOR and not self.pairs)

    def options(self) -> Options:
        """Every option with its interpolations resolved."""
        return Options(self.file, interpolated(self.data), place="{}".format)

    def edited(self, wanted: Mapping[str, object]) -> RollExperiment:
        """The same with some options set in the file that was named."""
        placed: dict[YamlPath, Any] = {tuple(name.split(".")): value for name, value in wanted.items()}
        return RollExperiment.of(edit_yaml(self.source, placed))


def _defaults(source: YamlSource) -> tuple[dict[str, Any], list[str]]:
    """Content of the files that Hydra lays under this one, and what is not found of them."""
    named = source.data.get("defaults")
    names = [each for each in named if isinstance(each, str)] if isinstance(named, list) else []
    if len(names) > _MOST_DEFAULTS:
        raise InputError("names too many files", file=source.file, field="defaults", value=len(names))
    content: dict[str, Any] = {}
    notes = []
    for name in names:
        path, _, package = name.partition("@")
        if path == "_self_" or package not in ("", "_here_", "_global_") or not _NAMED.fullmatch(path):
            continue
        file = (source.file.absolute().parent / path.lstrip("/")).with_suffix(".yaml")
        if file.is_file() and not _CONTENT.search(read_text(file)):
            continue
        if file.is_file():
            content = _merged(content, YamlSource.read(file).data)
        else:
            notes.append(f"defaults: {path}.yaml is not found, and what it states is not read")
    return content, notes


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in own.items():
        under = merged.get(key)
        nested = isinstance(value, Mapping) and isinstance(under, Mapping)
        merged[key] = _merged(under, value) if nested else value  # type: ignore[arg-type]
    return merged
