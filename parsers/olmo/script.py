"""Shell scripts that start a published training script of OLMo-core, with the overrides of their command.

``torchrun --nproc-per-node=8 src/scripts/train/OLMo2/OLMo2-7B.py train NAME CLUSTER --train_module.optim.lr=6e-3``:
options with a dot override the configuration that the script's functions build (allenai/OLMo-core fa6c5014
src/olmo_core/internal/experiment.py:363-366, script_utils.py:95-130, config.py:197-226). The functions are in
`scripts.yaml`; none is ever run.
"""

from __future__ import annotations

import copy
import importlib.resources
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from taylor.base.errors import InputError, shortened
from taylor.base.shipped import SAFE_LOADER
from taylor.parsers.olmo.read import PER_NODE, Ranks
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import given
from taylor.parsers.text.shell_words import Word
from taylor.parsers.text.spelling import likely_meant

PROGRAM = re.compile(r"(?:^|/)src/scripts/((?:train|official)/[\w./-]+\.py)$")
NOT_TRAINING = ("dry_run", "prep", "launch_prep")
"""Commands that train nothing (internal/experiment.py:96-102)."""
_OPTION = re.compile(r"--([A-Za-z][\w\-]*(?:\.[\w\-]+)*)(=?)")
_LONGEST = 10_000
_DEEPEST = 8
_TRUE = given("true")


@cache
def scripts() -> Mapping[str, Any]:
    """The shipped table of training scripts, by their path below src/scripts."""
    text = importlib.resources.files("taylor.parsers.olmo").joinpath("scripts.yaml").read_text(encoding="utf-8")
    data: Mapping[str, Any] = yaml.load(text, Loader=SAFE_LOADER)
    return data


@dataclass(frozen=True)
class Override:
    """An option that overrides the configuration: its dotted name, and its value."""

    name: str
    value: Word


@dataclass(frozen=True)
class OlmoJob:
    """A job that a script starts.

    Parameters
    ----------
    script : ShellScript
    name : str
        The training script, below src/scripts.
    words : tuple of Word
        The command.
    overrides : tuple of Override
    ranks : Ranks
    notes : tuple of str
    """

    script: ShellScript
    name: str
    words: tuple[Word, ...]
    overrides: tuple[Override, ...]
    ranks: Ranks
    notes: tuple[str, ...]

    @classmethod
    def of(cls, script: ShellScript) -> OlmoJob:
        """Read a script.

        Raises
        ------
        InputError
            When it starts none of OLMo-core's training scripts.
        """
        found = [(each.words, at) for each in script.commands if (at := _program_at(each.words)) is not None]
        if not found:
            cure = "give the script that starts src/scripts/train/….py or src/scripts/official/….py"
            raise InputError("starts no training of OLMo-core", file=script.file, cure=cure)
        words, at = found[-1]
        name = PROGRAM.search(words[at].text)
        assert name is not None
        command = words[at + 1].text if len(words) > at + 1 else ""
        if command in NOT_TRAINING:
            cure = "give the command with train or launch"
            raise InputError("trains nothing", file=script.file, field=name[1], value=command, cure=cure)
        overrides = _overrides(words[at + 1 :])
        notes = list(script.notes)
        if len(found) > 1:
            notes.append(f"the script starts {len(found)} trainings: the last one is read")
        ranks = _ranks(words[:at], overrides)
        row = scripts()["scripts"].get(name[1], {})
        if not ranks.stated and command == "launch" and "num_nodes" in row:
            ranks = Ranks(row["num_nodes"], PER_NODE, True)
        return cls(script, name[1], tuple(words), overrides, ranks, tuple(notes))

    @property
    def file(self) -> Path:
        """The shell script."""
        return self.script.file

    def row(self) -> Mapping[str, Any]:
        """The training script's row.

        Raises
        ------
        InputError
            When it is none of the published ones, or its model is put together in it.
        """
        known = scripts()["scripts"]
        commit = scripts()["commit"]
        if self.name not in known:
            near = likely_meant(self.name, list(known)) or shortened(", ".join(known), 500)
            raise InputError(
                f"is no training script of OLMo-core {commit} whose configuration is known",
                file=self.file, field="src/scripts", value=shortened(self.name, 120),
                cure=f"name {near}; or give the config.json that a run of it saves with its checkpoints",
            )  # fmt: skip
        row: Mapping[str, Any] = known[self.name]
        if "reason" in row:
            raise InputError(
                f"is a training script that is not read: {row['reason']}",
                file=self.file, field="src/scripts", value=self.name,
                cure="give the config.json that a run of it saves with its checkpoints",
            )  # fmt: skip
        return row

    def data(self) -> dict[str, Any]:
        """The configuration with the overrides, as config.json would have it.

        Raises
        ------
        InputError
            When an override's value is left to the start, or its place is below a value that is no section.
        """
        row = self.row()
        data: dict[str, Any] = copy.deepcopy({key: row[key] for key in ("model", "train_module")})
        length = row.get("max_sequence_length")
        data["data_loader"] = {"global_batch_size": row.get("global_batch_size")}
        if length is not None:
            data["train_module"].setdefault("max_sequence_length", length)
        for each in self.overrides:
            if "." in each.name:
                self._set(data, each)
            elif each.name == "sequence_length":
                data["train_module"]["max_sequence_length"] = self.value(each)
        return data

    def value(self, override: Override) -> Any:
        """The value of an override, as YAML has it (config.py: ``_clean_opts``).

        Raises
        ------
        InputError
            When the script leaves it to its start, or it is no such value.
        """
        text = override.value.text
        problem = "has a value that is known only when the job starts" if override.value.unknown else ""
        try:
            if not problem and len(text) <= _LONGEST and not re.search(r"[&*]", text):
                return yaml.load(text, Loader=SAFE_LOADER)
        except (yaml.YAMLError, ValueError, RecursionError):
            pass
        raise InputError(
            problem or "has a value that cannot be read", file=self.file, field=f"--{override.name}",
            value=shortened(text, 80), cure=self.script.cure_of(override.value),
        )  # fmt: skip

    def _set(self, data: dict[str, Any], override: Override) -> None:
        *above, last = override.name.split(".")
        if len(above) > _DEEPEST:
            return
        place = data
        for name in above:
            if name == "attention" and isinstance(place.get("sequence_mixer"), dict):
                name = "sequence_mixer"  # Its former name (nn/transformer/config.py:163-200).
            inner = place.get(name)
            if inner is None:
                inner = place[name] = {}
            if not isinstance(inner, dict):
                problem = f"is below {name}, which is no section"
                raise InputError(problem, file=self.file, field=f"--{override.name}")
            place = inner
        place[last] = self.value(override)


def _program_at(words: Sequence[Word]) -> int | None:
    if words and words[0].text in ("echo", "printf"):
        return None
    return next((at for at, word in enumerate(words) if PROGRAM.search(word.text)), None)


def _overrides(words: Sequence[Word]) -> tuple[Override, ...]:
    """Options of the command; one without a value is a switch."""
    found: list[Override] = []
    waiting = False
    for word in words:
        match = _OPTION.match(word.text)
        if match and (match[2] or match.end() == len(word.text)):
            name = match[1].replace("-", "_")
            found.append(Override(name, word.part(match.end()) if match[2] else _TRUE))
            waiting = not match[2] and "." not in name  # An override has a sign (config.py:352-362).
        elif waiting:
            found[-1] = Override(found[-1].name, word)
            waiting = False
    return tuple(found)


def _ranks(before: Sequence[Word], overrides: Sequence[Override]) -> Ranks:
    """Ranks of ``torchrun``, or of the launch on a cluster (``--launch.num_nodes``)."""
    options = {each.name: each.value for each in (*_overrides(before), *overrides)}

    def number(*names: str) -> int | None:
        for name in names:
            word = options.get(name)
            if word is not None and not word.unknown and re.fullmatch(r"[1-9]\d{0,5}", word.text):
                return int(word.text)
        return None

    per_node, nodes = number("nproc_per_node", "launch.num_gpus"), number("nnodes", "launch.num_nodes")
    if per_node is None and nodes is None:
        return Ranks()
    return Ranks(nodes or 1, per_node or PER_NODE, True)
