"""An AReaL YAML whose actor FSDP2 trains.

Sources: inclusionAI/AReaL 4aef98d8 areal/api/cli_args.py (names and defaults), areal/api/alloc_mode.py:592-634 (the
grammar of ``backend``), areal/engine/fsdp_engine.py, areal/engine/fsdp_utils/parallel.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.parsers.flag_table import READ, FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.named_model import named_model
from taylor.parsers.policy.adapters import adapters_of
from taylor.parsers.policy.interpolated import interpolated
from taylor.parsers.policy.job import packed_samples, unread_options
from taylor.parsers.policy.options import Options
from taylor.parsers.policy.sharded import ShardedJob
from taylor.parsers.rl_iteration import with_value_head
from taylor.parsers.text.fields import MAX_DEGREE, MAX_SIZE
from taylor.parsers.text.yaml_edit import edit_yaml
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.register.adapters import ALL_HUGGING_FACE, Adapters
from taylor.register.model import ModelSpec
from taylor.register.trainers import AREAL_FSDP

NAME = "areal-fsdp"
TELLTALE = re.compile(
    r"^actor\s*:[^\n]*\n(?:(?:[ \t#][^\n]*)?\n){0,400}?[ \t]+"
    r"(?:mb_spec\s*:|backend\s*:\s*[\"']?(?:fsdp|megatron|archon)\b|trial_name\s*:)",
    re.MULTILINE,
)
FSDP = "fsdp"
_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}
_ALLOCATION = re.compile(r"(?P<backend>[a-z]+)(?:\[\w{1,60}\])?:(?P<degrees>(?:[pdtce][1-9]\d{0,6})+)")
_PAIRS = ("dpo", "rw")
_ROLLS_OUT = "rl"


@dataclass(frozen=True)
class ArealStart:
    """What a file says of its actor.

    Parameters
    ----------
    source : YamlSource
    options : Options
    model : ModelSpec
    degrees : mapping of str to int
        Of `backend`: ``d``, ``t``, ``c`` and ``e``, where it states them.
    length : int
        Tokens of the longest sample.
    notes : tuple of str
    """

    source: YamlSource
    options: Options
    model: ModelSpec
    degrees: Mapping[str, int]
    length: int
    notes: tuple[str, ...]

    @classmethod
    def read(cls, path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> ArealStart:
        """Read a file.

        Raises
        ------
        InputError
            When it is damaged, names no model, trains by another engine, or a size is missing or wrong.
        """
        return cls.of(YamlSource.read(path), register_path, model)

    @classmethod
    def of(cls, source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> ArealStart:
        """The same of a file that was read."""
        if not isinstance(source.data.get("actor"), Mapping):
            cure = "give the YAML of a training"
            raise InputError("describes no actor of AReaL", file=source.file, field="actor", cure=cure)
        options = Options(source.file, interpolated(source.data), place="{}".format).under(_defaults())
        notes = ["the training step alone is predicted, without roll-outs, log-probabilities and other models"]
        degrees = _degrees(options)
        if model is None:
            model, remarks = named_model(str(options.text("actor.path")), source.file, "actor.path", register_path)
            notes += remarks
            model = with_value_head(model) if options.is_on("actor.is_critic") else model
        length = _length(options)
        notes.append(f"samples are as long as they can be: {length} tokens")
        return cls(source, options, model, degrees, length, tuple(notes))

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.source.file

    @property
    def kind(self) -> str:
        """Kind of the training: ``rl``, ``sft``, ``dpo`` or ``rw``."""
        return _kind(self.options)

    @property
    def samples_each(self) -> int:
        """Samples that the batch's key counts as one, before minibatches: the answers to a prompt, or a pair."""
        if self.kind == _ROLLS_OUT:
            return int(self.options.integer("gconfig.n_samples"))
        return 2 if self.kind in _PAIRS else 1

    @property
    def minibatches(self) -> int:
        """Steps of the optimizer a batch (areal/trainer/ppo/actor.py:338)."""
        return int(self.options.integer("actor.ppo_n_minibatches")) if self.kind == _ROLLS_OUT else 1

    def samples(self) -> int:
        """Samples of one step of the optimizer."""
        count = int(self.options.integer("train_dataset.batch_size", high=2**31)) * self.samples_each
        return max(1, count // self.minibatches)

    def micro_batch(self, replicas: int) -> tuple[int, str]:
        """Samples of a rank's micro-batch, and a note: as many of the longest as its tokens hold.

        Without tokens a rank's samples are split into ``n_mbs`` micro-batches, one by default (cli_args.py:99-118).
        """
        options, each = self.options, max(1, self.samples() // replicas)
        if not options.has("actor.mb_spec.max_tokens_per_mb"):
            return max(1, each // int(options.integer("actor.mb_spec.n_mbs", default=1))), ""
        tokens = int(options.integer("actor.mb_spec.max_tokens_per_mb", high=MAX_SIZE))
        count = packed_samples(tokens, self.length, each)
        note = f"micro-batches are packed up to {tokens} tokens: {count} sample(s) of {self.length} tokens are taken"
        return count, note

    def adapters(self) -> Adapters | None:
        """peft's adapters (fsdp_engine.py:1075-1099), in the type of the weights."""
        if not self.options.is_on("actor.use_lora"):
            return None
        return adapters_of(
            self.options,
            rank="actor.lora_rank",
            targets="actor.target_modules",
            usual=ALL_HUGGING_FACE,
            everything=ALL_HUGGING_FACE,
            base_bytes=float(self.type_bytes("actor.dtype")),
        )

    def type_bytes(self, key: str) -> int:
        """Bytes of a type.

        Raises
        ------
        InputError
            When it is not known.
        """
        written = str(self.options.text(key))
        if written not in _TYPES:
            raise self.options.error(key, "is no type that is read", written, f"use one of {', '.join(_TYPES)}")
        return _TYPES[written]

    def edited(self, wanted: Mapping[str, object]) -> ArealStart:
        """The same with some options set in the file."""
        placed: dict[YamlPath, Any] = {tuple(name.split(".")): value for name, value in wanted.items()}
        return ArealStart.of(edit_yaml(self.source, placed), model=self.model)


def _kind(options: Options) -> str:
    return str(options.text("train_dataset.type", default=_ROLLS_OUT))


def _length(options: Options) -> int:
    """Tokens of the longest sample: none is longer than a micro-batch (areal/utils/seqpack.py:239)."""
    most = options.integer("actor.mb_spec.max_tokens_per_mb", default=None, high=MAX_SIZE)
    prompt = options.integer("train_dataset.max_length", default=None, high=MAX_SIZE)
    if _kind(options) != _ROLLS_OUT:
        stated = prompt
    else:
        stated = options.integer("gconfig.max_tokens", high=MAX_SIZE)
        if prompt is not None:
            stated = min(stated, prompt + options.integer("gconfig.max_new_tokens", high=MAX_SIZE))
    if stated is None and most is None:
        cure = "write the tokens of the longest sample"
        raise options.error("train_dataset.max_length", "is missing", cure=cure)
    return int(min(each for each in (stated, most) if each is not None))


def backend_of(options: Options) -> tuple[str, str, str]:
    """Key, engine and degrees of the actor: its own backend, or the part of ``allocation_mode`` that trains.

    Raises
    ------
    InputError
        When none names an engine.
    """
    own = options.has("actor.backend")
    key = "actor.backend" if own else "allocation_mode"
    written = str(options.text(key))
    parts = [written] if own else written.split("+")[1:]
    for part in parts:
        match = _ALLOCATION.fullmatch(part.strip())
        if match is not None:
            return key, match["backend"], match["degrees"]
        if ":" in part:
            return key, part.strip().partition(":")[0], ""
    cure = "write actor.backend, as in fsdp:d4t2"
    raise options.error(key, "names no engine that trains", written, cure)


def _degrees(options: Options) -> dict[str, int]:
    key, engine, written = backend_of(options)
    if engine != FSDP:
        problem = f"trains by {engine}, which is not read of AReaL's files"
        raise options.error(key, problem, cure="write fsdp, or state the job as Megatron's flags in a .sh script")
    degrees = {letter: int(size) for letter, size in re.findall(r"([a-z])(\d+)", written)}
    if not degrees or degrees.get("p", 1) > 1 or degrees.get("e", 1) > 1 or max(degrees.values()) > MAX_DEGREE:
        problem = "states degrees that are not read: stages, experts over ranks, or parts of a layer by themselves"
        raise options.error(key, problem, cure="write d, t and c alone, as in fsdp:d4t2")
    return degrees


def own_table() -> FlagTable:
    """The table of AReaL's options."""
    return load_flag_table("taylor.parsers.areal", "options.yaml")


def _defaults() -> dict[str, str]:
    """Values of the options that are read, where the file leaves them out."""
    rows = own_table().rows.values()
    return {row.name: row.default for row in rows if row.status == READ and row.default is not None}


def sharded_job(start: ArealStart) -> tuple[ShardedJob, str]:
    """The training of a file's actor, and a note on its micro-batches.

    Source: areal/engine/fsdp_utils/parallel.py:120-140 (meshes), 258-301 (sequence parallelism beside TP), 384-394;
    areal/engine/fsdp_engine.py:976-986 (weights in ``dtype``), 1065 (recompute), 1124-1142;
    areal/engine/fsdp_utils/optimizer.py:52-55 (two moments and a compensation in bf16).
    """
    options = start.options
    tp, cp, dp = (start.degrees.get(letter, 1) for letter in "tcd")
    optimizer = str(options.text("actor.optimizer.type", default="adam"))
    if optimizer not in ("adam", "adam_bf16"):
        raise options.error("actor.optimizer.type", "is not modelled", optimizer, "write adam or adam_bf16")
    micro_batch, note = start.micro_batch(dp)
    stored = start.type_bytes("actor.dtype")
    job = ShardedJob(
        start.file,
        NAME,
        start.model,
        AREAL_FSDP,
        tp * cp * dp,
        start.length,
        start.samples(),
        micro_batch,
        tp=tp,
        cp=cp,
        shards=dp * cp,
        sequence=True,
        recomputed=options.is_on("actor.gradient_checkpointing"),
        stored_bytes=stored,
        compute_bytes=stored,
        reduced_bytes=start.type_bytes("actor.grad_reduce_dtype"),
        adapters=start.adapters(),
        moments_bytes=6 if optimizer == "adam_bf16" else None,
    )
    return job, note


def unmodelled(start: ArealStart) -> tuple[UnmodelledFlag, ...]:
    """Options that cost and are in no figure, or that nobody knows."""
    stated = [each for each in start.options.by_name.values() if each.name not in start.options.usual]
    return unread_options(own_table(), [(each.name, each.values[0].text) for each in stated], start.model)
