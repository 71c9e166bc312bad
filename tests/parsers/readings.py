"""What is read of files in which one value after the other is another: nothing, far too much, no number.

    python -m tests.parsers.readings

writes it anew. Whether it is right is for the tests that state a launcher's rules again and for
`python -m benchmarks.differential_reading`; this shows that nothing moved which a change was not meant to move, bounds
of values and what a message tells of them included.
"""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.errors import TaylorError
from taylor.parsers.flag_table import READ
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from tests.conftest import ROOT
from tests.parsers.flagscale import files as flagscale
from tests.parsers.huggingface.test_launcher import LLAMA, SECTION
from tests.parsers.key_sweep import BASES, READ_SWEEP, attempt, with_keys
from tests.parsers.megatron import test_flags as megatron
from tests.parsers.paddlenlp.test_scripts import SCRIPT

KEPT = Path(__file__).with_suffix(".json")
VALUES = (0, 10**8, "another")
"""The message of the second tells the bounds."""

Read = Callable[[], TrainingConfig]
Found = dict[str, Any] | str
Changed = Iterator[tuple[str, Callable[[], Found], dict[str, Read]]]
"""Names of a changed value, what is read without the change, and the readers of the changed files."""


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in a configuration that is not empty, by its place."""
    if is_dataclass(value) and not isinstance(value, type):
        if name.endswith("framework"):
            yield name, value.name  # type: ignore[attr-defined]
            return
        for field in fields(value):
            if field.name == "unmodelled":
                yield from flat({flag.name: flag for flag in value.unmodelled}, "unmodelled")  # type: ignore[attr-defined]
            elif field.name not in ("path", "source", "published_parameters", "aliases", "why"):
                yield from flat(getattr(value, field.name), f"{name}.{field.name}".lstrip("."))
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from flat(each, f"{name}.{key}")
    elif isinstance(value, (tuple, list)) and any(map(is_dataclass, value)):
        for place, each in enumerate(value):
            yield from flat(each, f"{name}[{place}]")
    elif value not in (None, False, 0, "", ()):
        yield name, json.loads(json.dumps(value, default=str))


def outcome(read: Read) -> Found:
    """What is read, or the sentence of the refusal."""
    try:
        config = read()
    except TaylorError as error:
        return re.sub(r"/\S*/", "", str(error))
    return {name: _short(value) for name, value in flat(config)}


def _short(value: Any) -> Any:
    """Of a list of notes their beginnings."""
    texts = isinstance(value, list) and all(isinstance(each, str) for each in value)
    return [each[:60] for each in value] if texts else value


def beside(base: Found, other: Found) -> Any:
    """What another reading has otherwise than one before it."""
    if isinstance(base, str) or isinstance(other, str):
        return other
    return {name: other.get(name) for name in sorted({*base, *other}) if base.get(name) != other.get(name)}


def nothing() -> Found:
    """Beside which everything is told."""
    return {}


def of_megatron() -> Changed:
    for name, base in megatron.BASES.items():
        yield name, nothing, {"as it is": lambda base=base: megatron._config(base)}
    for row in megatron.ROWS:
        if row.status != READ or not row.takes_value:
            continue
        base = megatron._base_for(row)
        yield f"--{row.name}", lambda base=base: outcome(lambda: megatron._config(base)), {
            str(value): lambda base=base, row=row, value=value: megatron._config({**base, row.name: str(value)})
            for value in (*VALUES, megatron._on(row))
        }  # fmt: skip


def of_keys() -> Changed:
    def read(launcher: str, data: Mapping[str, Any]) -> TrainingConfig:
        found, _ = attempt(launcher, data)
        if isinstance(found, TaylorError):
            raise found
        return found

    for name, (launcher, data) in BASES.items():
        yield name, nothing, {"as it is": lambda launcher=launcher, data=data: read(launcher, data)}
    for name, change in READ_SWEEP.items():
        reads: dict[str, Read] = {"set": lambda change=change: read(change.launcher, change.after)}
        if not name.endswith(".*"):
            for value in VALUES:
                data = with_keys(change.after, {name: value})
                reads[str(value)] = lambda change=change, data=data: read(change.launcher, data)
        before: Read = lambda change=change: read(change.launcher, change.before)  # noqa: E731
        yield f"{change.launcher} {name}", lambda before=before: outcome(before), reads


def of_texts(folder: Path) -> Changed:
    """Scripts, trees of keys and model files with one value after the other changed."""
    script = folder / "train.sh"

    def paddle(text: str) -> TrainingConfig:
        script.write_text(text, encoding="utf-8")
        return read_config(script)

    base = cache(lambda: outcome(lambda: paddle(SCRIPT)))
    for flag, written in re.findall(r"--(\w+) (\S+)", SCRIPT):
        texts = {str(value): SCRIPT.replace(f"--{flag} {written}", f"--{flag} {value}") for value in VALUES}
        yield f"paddlenlp {flag}", base, {value: lambda text=text: paddle(text) for value, text in texts.items()}

    def scale(train: str) -> TrainingConfig:
        return read_config(flagscale.job(folder / "scale", train))

    base = cache(lambda: outcome(lambda: scale(flagscale.TRAIN)))
    for key, written in re.findall(r"^ +(\w+): (\S+)", flagscale.TRAIN, re.MULTILINE):
        texts = {str(value): flagscale.TRAIN.replace(f"{key}: {written}", f"{key}: {value}") for value in VALUES}
        yield f"flagscale {key}", base, {value: lambda text=text: scale(text) for value, text in texts.items()}

    path = folder / "model" / "config.json"
    path.parent.mkdir()

    def hub(data: Mapping[str, Any]) -> TrainingConfig:
        path.write_text(json.dumps(data), encoding="utf-8")
        return read_config(path)

    whole = {**LLAMA, "taylor": SECTION}
    base = cache(lambda: outcome(lambda: hub(whole)))
    for name in (*LLAMA, *(f"taylor.{part}.{key}" for part, keys in SECTION.items() for key in keys)):
        changed = {str(value): with_keys(whole, {name: value}) for value in VALUES}
        yield f"hub {name}", base, {value: lambda data=data: hub(data) for value, data in changed.items()}
    seen: set[tuple[str, str]] = set()
    models = ROOT.parent / "shared" / "data" / "model_configs"
    for file in sorted(models.rglob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or "model_type" not in data:
            continue
        reads: dict[str, Read] = {"as it is": lambda data=data: hub(data)}
        for name, value in _leaves(data):
            if (data["model_type"], name) in seen:
                continue
            seen.add((data["model_type"], name))
            if isinstance(value, bool):
                value = not value
            elif isinstance(value, int):
                value = value + 1
            else:
                continue
            changed_data = with_keys(data, {name: value})
            reads[f"{name} {value}"] = lambda changed_data=changed_data: hub(changed_data)
        yield f"model {file.stem}", nothing, {"as it is": reads.pop("as it is")}
        yield f"model {file.stem} changed", lambda data=data: outcome(lambda: hub(data)), reads


def _leaves(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        elif "." not in key:
            yield above + key, value


FAMILIES: dict[str, Callable[[Path], Changed]] = {
    "megatron": lambda folder: of_megatron(),
    "keys": lambda folder: of_keys(),
    "texts": of_texts,
}


def readings(family: str, groups: int = 1, group: int = 0) -> dict[str, dict[str, Any]]:
    """What is read of every changed file of a family, or of every `groups`-th."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, base, reads in itertools.islice(FAMILIES[family](Path(folder)), group, None, groups):
            before = base()
            found[name] = {change: beside(before, outcome(read)) for change, read in reads.items()}
    return found


def main() -> None:
    """Write the readings."""
    lines = []
    for family in FAMILIES:
        found = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in readings(family).items())
        lines.append(f"{json.dumps(family)}: {{\n" + ",\n".join(found) + "\n}")
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
