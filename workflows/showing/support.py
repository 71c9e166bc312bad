"""Support of a combination: model, device, launcher, precision, features; evaluated, solved, written or why not.

No list of its own: launchers come from their registry, options from their tables, schedules and rules from the
frameworks' records, precisions from the devices' registrations. A model is tried: its file is made, read back and
compared.
"""

from __future__ import annotations

import importlib.resources
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.parsers.flag_table import COSTS, NEUTRAL, READ, FlagRow, FlagTable, effect_in_words, load_flag_table
from taylor.parsers.huggingface.file import read_model_file
from taylor.parsers.launcher import Launcher
from taylor.parsers.new_file import NewFile, NewJob, difference
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.read import config_of, read_config
from taylor.parsers.registry import LAUNCHERS
from taylor.parsers.software import FEATURES
from taylor.register.device import PRECISIONS, DeviceSpec
from taylor.register.frameworks import FRAMEWORKS, Framework
from taylor.register.model import ModelSpec
from taylor.register.registry import Registry

TABLE_FILES = ("flags.yaml", "keys.yaml", "options.yaml")
"""Files of a launcher's folder that may hold its table of options."""
USUAL = ("bf16", "fp16")
"""Precisions of training that every reader's bytes stand for: 16-bit weights with fp32 states."""
TRIED_TOKENS, TRIED_BATCH, TRIED_RANKS, TRIED_NODE = 4096, 64, 64, 8
"""Sizes of the job whose file is made to try a model; the model's layers alone decide what cannot be stated."""


@dataclass(frozen=True)
class Question:
    """Combination that is asked about; None and empty leave a part open."""

    model: str | None = None
    device: str | None = None
    launcher: str | None = None
    precision: str | None = None
    features: tuple[str, ...] = ()
    register_path: Path | None = None


@dataclass(frozen=True)
class LauncherSupport:
    """Answer for one launcher.

    Parameters
    ----------
    launcher, title : str
        Its name, and that of its files in messages.
    suffixes : tuple of str
        Suffixes of its files.
    evaluated, solved, written : bool
        The combination is priced; its plan is solved; the plan is written into one of its files.
    new_file : bool
        Its file is made from a model alone.
    degrees : tuple of str
        Degrees and batch sizes that its files state.
    schedules : tuple of str
        Schedules of its framework; empty where its files name the framework.
    options : mapping of str to int
        Rows of its option table by status.
    reasons : tuple of str
        A sentence for each thing that is limited or refused.
    """

    launcher: str
    title: str
    suffixes: tuple[str, ...]
    evaluated: bool
    solved: bool
    written: bool
    new_file: bool
    degrees: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    options: dict[str, int] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data."""
        return asdict(self)


@dataclass
class _Verdict:
    """Answer while it is made: a part refuses one of the three and says why."""

    evaluated: bool = True
    solved: bool = True
    written: bool = True
    reasons: list[str] = field(default_factory=list)

    def refuse(self, reason: str, *, price: bool = False) -> None:
        """Take back what needs the launcher's file, and with `price` the figures too."""
        self.written = False
        if price:
            self.evaluated = self.solved = False
        self.reasons.append(reason)


def support(question: Question) -> list[LauncherSupport]:
    """Answers for the launchers asked about.

    Raises
    ------
    InputError
        When there is no such model, device, launcher, precision or feature; the message has similar names.
    """
    registry = Registry.load(question.register_path)
    model = None if question.model is None else named_model(question.model, registry)
    device = None if question.device is None else registry.device(question.device)
    launchers = _launchers(question.launcher)
    if question.precision is not None and question.precision not in PRECISIONS:
        raise _unknown("--precision", question.precision, PRECISIONS)
    for name in question.features:
        if not any(_feature(each, name) for each in LAUNCHERS):
            raise _unknown("--feature", name, known_features())
    return [_answer(each, question, model, device) for each in launchers]


def named_model(name: str, registry: Registry) -> ModelSpec:
    """A registered model, or that of a ``config.json`` or its folder.

    Raises
    ------
    InputError
        When it cannot be read or there is none of that name.
    """
    path = config_of(Path(name))
    return read_model_file(path)[0] if path.suffix == ".json" else registry.model(name)


def known_features() -> list[str]:
    """Every name that ``--feature`` takes beside the options of the launchers' tables."""
    degrees = {name for launcher in LAUNCHERS for name in launcher.degree_words}
    schedules = {name for framework in FRAMEWORKS.values() for name in framework.schedules}
    return sorted({*degrees, *schedules, *FEATURES})


def _unknown(flag: str, value: str, known: Iterable[str]) -> InputError:
    return InputError("is not known", field=flag, value=value, cure=did_you_mean(value, list(known)))


def _launchers(name: str | None) -> Sequence[Launcher]:
    if name is None:
        return LAUNCHERS
    found = tuple(each for each in LAUNCHERS if each.name == name.lower())
    if not found:
        raise _unknown("--launcher", name, [each.name for each in LAUNCHERS])
    return found


def _answer(
    launcher: Launcher, question: Question, model: ModelSpec | None, device: DeviceSpec | None
) -> LauncherSupport:
    verdict = _Verdict()
    if not launcher.plan_keys:
        verdict.refuse("its files are read; no plan is written into them")
    new = new_file_of(launcher, device)
    made = new is not None and _package(new) == next(_packages(launcher))
    if model is not None and new is not None:
        problem = cannot_state(new, model)
        made = made and problem is None
        if problem is not None:
            cure = "a file of yours is read for the model that it states, and JSON states this one"
            verdict.reasons.append(f"no {new.title} file is made of {model.name} alone: {problem}; {cure}")
    elif model is not None and launcher.starts_training:
        verdict.reasons.append(f"its files state the model: one with the layers of {model.name} decides")
    if question.precision is not None:
        _judge_precision(verdict, launcher, question.precision, device)
    for name in question.features:
        _judge_feature(verdict, launcher, name)
    framework = framework_of(launcher)
    return LauncherSupport(
        launcher.name,
        launcher.title,
        launcher.suffixes,
        verdict.evaluated,
        verdict.solved,
        verdict.written,
        made,
        tuple(launcher.degree_words),
        framework.schedules if framework is not None else (),
        option_counts(launcher),
        tuple(verdict.reasons),
    )


def _judge_precision(verdict: _Verdict, launcher: Launcher, precision: str, device: DeviceSpec | None) -> None:
    if device is not None:
        counted = device.peak_precision(precision)
        if counted is None:
            verdict.refuse(f"{device.name} states no peak in {precision}", price=True)
        elif counted != precision:
            verdict.reasons.append(f"{device.name} states no peak in {precision}: GEMMs count at its peak in {counted}")
    if precision in USUAL or not launcher.starts_training:
        return
    rows = [row for row in _rows(launcher) if precision in re.split(r"[-_.]", row.name)]
    modelled = sorted({row.name for row in rows if row.status == READ})
    new = new_file_of(launcher)
    if new is not None and precision in new.features:
        modelled.append(_switches(new, precision, ""))
    if not modelled:
        verdict.refuse(f"no option of its files that is read names {precision}", price=True)
    else:
        verdict.reasons.append(f"{precision} is read from {', '.join(modelled[:4])}")


def _judge_feature(verdict: _Verdict, launcher: Launcher, name: str) -> None:
    found = _feature(launcher, name)
    if found is None:
        verdict.refuse(f"{name}: none of its options", price=True)
        return
    status, text = found
    verdict.reasons.append(f"{name}: {text}")
    if status == COSTS:
        verdict.evaluated = verdict.solved = False


def _feature(launcher: Launcher, name: str) -> tuple[str, str] | None:
    """Status and meaning of a feature for a launcher; None where it has none of that name."""
    if name in launcher.degree_words:
        return READ, f"read from {launcher.degree_words[name]}"
    framework = framework_of(launcher)
    if framework is not None and name in framework.schedules:
        return READ, f"a schedule of {framework.name}"
    feature, _, value = name.partition("=")
    new = new_file_of(launcher)
    if new is not None and feature in new.features and (not value or value in new.features[feature]):
        return READ, f"switched on by {_switches(new, feature, value)}"
    plain = name.lstrip("-").replace("_", "-")
    for row in _rows(launcher):
        if row.name.replace("_", "-") == plain:
            effect = effect_in_words(row.memory, row.time, row.placement)
            means = f"{effect}, in no figure: {row.why}" if row.status == COSTS else row.why
            return row.status, f"{row.status}: {means}"
    return None


def _switches(new: NewFile, feature: str, value: str) -> str:
    values = new.features[feature]
    settings = values[value] if value else next(iter(values.values()))
    return ", ".join(settings)


def cannot_state(new: NewFile, model: ModelSpec) -> str | None:
    """Reason why a framework's file cannot state a model; None where it can: the file is made and read back."""
    return _tried(new.name, model)


@cache
def _tried(name: str, model: ModelSpec) -> str | None:
    new = NEW_FILES[name]
    trained = model if new.trains_mtp else model.replace(mtp_layers=0)
    job = NewJob(model, TRIED_TOKENS, TRIED_BATCH, TRIED_RANKS, TRIED_NODE)
    level = log.level
    log.setLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / f"job{new.suffix}"
            target.write_text(new.text(job), encoding="utf-8")
            written = read_config(target)
    except InputError as error:
        return error.problem
    finally:
        log.setLevel(level)
    return difference(trained, written.model)


def new_file_of(launcher: Launcher, device: DeviceSpec | None = None) -> NewFile | None:
    """Maker of a file from a model alone, in the launcher's options or those it passes on, for the kind of device."""
    ascend = device is not None and device.name.startswith("ascend")
    packages = list(_packages(launcher))
    makers = [one for one in NEW_FILES.values() if _package(one) in packages]
    return next((one for one in makers if one.on_ascend is ascend), makers[0] if makers else None)


def _package(new: NewFile) -> str:
    return new.text.__module__.rpartition(".")[0]


def framework_of(launcher: Launcher) -> Framework | None:
    """Record of the framework that a launcher's options belong to; None where its files say it."""
    names = (package.rpartition(".")[2] for package in _packages(launcher))
    return next((FRAMEWORKS[name] for name in names if name in FRAMEWORKS), None)


def option_counts(launcher: Launcher) -> dict[str, int]:
    """Rows of a launcher's tables by status."""
    counts = Counter(row.status for row in _rows(launcher))
    return {status: counts[status] for status in (READ, NEUTRAL, COSTS) if counts[status]}


def _rows(launcher: Launcher) -> Iterator[FlagRow]:
    """Rows of the launcher's tables, its own before those of the options that it passes on."""
    seen: set[str] = set()
    for table in _tables(tuple(_packages(launcher))):
        for name, row in table.rows.items():
            if name not in seen:
                seen.add(name)
                yield row


@cache
def _tables(packages: tuple[str, ...]) -> tuple[FlagTable, ...]:
    found = []
    for package in packages:
        for file in TABLE_FILES:
            if importlib.resources.files(package).joinpath(file).is_file():
                found.append(load_flag_table(package, file))
    return tuple(found)


def _packages(launcher: Launcher) -> Iterator[str]:
    """Folders of the launcher's class and of the launchers that it is made from, its own first."""
    root = Launcher.__module__.rpartition(".")[0]
    seen = []
    for each in type(launcher).__mro__:
        package = each.__module__.rpartition(".")[0]
        if each is not Launcher and package.startswith(f"{root}.") and package not in seen:
            seen.append(package)
            yield package
