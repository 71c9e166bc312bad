"""Paddle's auto tuner: jobs, the trainer's arguments that they change, and the history of what was run.

The forms are those of ``python -m paddle.distributed.launch --auto_tuner_json JOB``: JSON of the space, JSON of
arguments (PaddleNLP's trainer takes it in place of flags), CSV of the runs. A run without a figure failed.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import read_text
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.parsers.text.json_source import read_json

SEARCHED = (
    "dp_degree",
    "mp_degree",
    "pp_degree",
    "vpp_degree",
    "sharding_degree",
    "sharding_stage",
    "micro_batch_size",
    "use_recompute",
    "recompute_granularity",
)
"""Entries of a job that the tuner may search: a value, a list of values, or ``auto``."""
MAX_BYTES = 2**22
_STAGE = re.compile(r"stage([123])\b")


@dataclass(frozen=True)
class TunerJob:
    """A space that the tuner searches.

    Parameters
    ----------
    mode : str
        ``Pretrain``, ``SFT`` or ``LoRA``.
    layers, hidden, heads, vocab : int
        The model's sizes.
    global_batch : int
        Samples a step.
    space : mapping of str to tuple
        Values by entry of `SEARCHED`; an empty tuple is the tuner's own choice.
    arguments : str or None
        The file of arguments that a run changes, as the job names it.
    """

    mode: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    global_batch: int
    space: Mapping[str, tuple[object, ...]]
    arguments: str | None


@dataclass(frozen=True)
class TrainerArguments:
    """Strategy in a file of arguments.

    Parameters
    ----------
    model : str
        The model by name or folder.
    strategy : Strategy
        With one data parallel group a shard.
    sharding_stage : int
        0 to 3.
    recompute : str or None
        Granularity of the recompute; None where there is none.
    tokens : int or None
        Tokens a sample.
    """

    model: str
    strategy: Strategy
    sharding_stage: int
    recompute: str | None
    tokens: int | None


@dataclass(frozen=True)
class TunedRun:
    """One run of a tuner.

    Parameters
    ----------
    number : int
    strategy : Strategy
    sharding_stage : int
    recompute : str or None
    samples_a_s : float or None
        Throughput; None where the run failed.
    peak_mib : float or None
        None where memory did not suffice or was not measured.
    error : str
        Reason of its failure; empty where it succeeded.
    """

    number: int
    strategy: Strategy
    sharding_stage: int
    recompute: str | None
    samples_a_s: float | None
    peak_mib: float | None
    error: str

    @property
    def step_ms(self) -> float | None:
        """Time of a step, ms; None where the run failed."""
        return None if not self.samples_a_s else 1e3 * self.strategy.global_batch / self.samples_a_s


def is_job(data: Any) -> bool:
    """Return whether JSON is a tuner's job."""
    return isinstance(data, Mapping) and "run_cmd" in data and "model_cfg" in data


def is_arguments(data: Any) -> bool:
    """Return whether JSON holds the trainer's arguments."""
    return isinstance(data, Mapping) and "per_device_train_batch_size" in data


def read_tuner_file(file: Path) -> TunerJob | TrainerArguments | tuple[TunedRun, ...] | None:
    """Read any file of the tuner; None where it is none.

    Raises
    ------
    InputError
        When the file cannot be read, or an entry is missing or wrong.
    """
    if file.suffix.lower() == ".csv":
        return read_history(file)
    data = read_json(file, "a file of Paddle's auto tuner")
    if is_job(data):
        return read_tuner_job(file)
    return read_arguments(file) if is_arguments(data) else None


def read_tuner_job(file: Path) -> TunerJob:
    """Read a job.

    Raises
    ------
    InputError
        When the file is none, or an entry is missing or wrong.
    """
    data = read_json(file, "a job of Paddle's auto tuner")
    if not is_job(data):
        raise InputError("is no job of Paddle's auto tuner", file=file, cure="it has model_cfg and run_cmd")
    top = Fields(data, file)
    model, command = top.section("model_cfg"), top.section("run_cmd")
    space = {}
    for name in SEARCHED:
        value = data.get(name)
        if value is None or value == "auto":
            space[name] = ()
            continue
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(each, (int, str, bool)) for each in values):
            raise top.error(name, "must be auto, a value or a list of values", value, "write one of these")
        space[name] = tuple(values)
    place = command.raw("micro_batch_size")
    if place is not None and not (isinstance(place, list) and len(place) >= 2 and isinstance(place[0], str)):
        raise command.error("micro_batch_size", "must name a file and an entry in it", place, "write [FILE, NAME]")
    return TunerJob(
        mode=top.text("mode", default="Pretrain"),
        layers=model.integer("num_layers", high=MAX_LAYERS),
        hidden=model.integer("hidden_size", high=MAX_SIZE),
        heads=model.integer("num_attention_heads", high=MAX_SIZE),
        vocab=model.integer("vocab_size", high=MAX_SIZE),
        global_batch=model.integer("global_batch_size"),
        space=space,
        arguments=None if place is None else place[0],
    )


def read_arguments(file: Path) -> TrainerArguments:
    """Read the trainer's arguments.

    Raises
    ------
    InputError
        When the file is none, or an entry is missing or wrong.
    """
    data = read_json(file, "the arguments of PaddleNLP's trainer")
    if not is_arguments(data):
        raise InputError(
            "contains no arguments of PaddleNLP's trainer", file=file, cure="it has per_device_train_batch_size"
        )
    top = Fields(data, file)
    written = top.text("sharding", default="")
    stage = _STAGE.match(written)
    if written and stage is None:
        raise top.error("sharding", "must be stage1, stage2 or stage3", written, "write one of them")
    return TrainerArguments(
        model=top.text("model_name_or_path"),
        strategy=Strategy(
            dp=max(1, top.integer("sharding_parallel_degree", default=1, low=-1)),
            tp=top.integer("tensor_parallel_degree", default=1),
            pp=top.integer("pipeline_parallel_degree", default=1),
            op=max(1, top.integer("sharding_parallel_degree", default=1, low=-1)) if stage else 1,
            sp=bool(top.raw("sequence_parallel")),
            vpp=top.integer("virtual_pp_degree", default=1),
            mbs=top.integer("per_device_train_batch_size"),
            micro_batches=top.integer("gradient_accumulation_steps", default=1),
        ),
        sharding_stage=0 if stage is None else int(stage[1]),
        recompute=top.text("recompute_granularity", default="full") if top.raw("recompute") else None,
        tokens=top.integer("max_seq_length", "max_length", default=None, high=MAX_SIZE),
    )


def read_history(file: Path) -> tuple[TunedRun, ...]:
    """Read the runs of a tuner, in the file's order: the best first.

    Raises
    ------
    InputError
        When the file is no such table, or a degree is missing or wrong.
    """
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(file, limit_bytes=MAX_BYTES).removeprefix("\ufeff"))))
    except csv.Error as error:
        raise InputError(f"is no table: {error}", file=file, cure="give the tuner's history.csv") from None
    if not rows:
        raise InputError("contains no run", file=file, cure="give the tuner's history.csv")
    return tuple(_run(row, file, line) for line, row in enumerate(rows, 2))


def _run(row: Mapping[str | None, Any], file: Path, line: int) -> TunedRun:
    fields = Fields({key: _number(value) for key, value in row.items() if isinstance(key, str)}, file, f"line {line}")
    recomputed = str(row.get("use_recompute")) == "True"
    sharding = fields.integer("sharding_degree", default=1)
    return TunedRun(
        number=fields.integer("job_id", low=0),
        strategy=Strategy(
            dp=fields.integer("dp_degree") * sharding,
            tp=fields.integer("mp_degree"),
            pp=fields.integer("pp_degree"),
            op=sharding,
            vpp=fields.integer("vpp_degree", default=1),
            mbs=fields.integer("micro_batch_size"),
            micro_batches=fields.integer("acc_steps", default=1),
        ),
        sharding_stage=fields.integer("sharding_stage", default=0, low=0, high=3),
        recompute=str(row.get("recompute_granularity") or "full") if recomputed else None,
        samples_a_s=_measured(fields, "interval_samples_per_second"),
        peak_mib=_measured(fields, "max_mem_usage"),
        error=str(row.get("error_info") or ""),
    )


def _number(text: Any) -> Any:
    """A cell as the number that it is; empty cells are absent."""
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text.strip()) else float(text)
    except ValueError:
        return text


def _measured(fields: Fields, name: str) -> float | None:
    """A figure; None where there is no number."""
    if isinstance(fields.raw(name), str):
        return None
    value: float | None = fields.number(name, default=None)
    return value or None
