"""A shell script that starts ``megatron pt``, ``sft`` or ``rlhf`` of ms-swift, as a launch by Megatron's flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.flag_table import FlagTable
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.named_sizes import MODEL_FLAGS, size_flags, word
from taylor.parsers.named_model import named_model
from taylor.parsers.swift.frozen import with_frozen
from taylor.parsers.swift.options import (
    FORM,
    MODEL,
    NAME,
    OPTIONS,
    RLHF,
    SWITCHES,
    VALUES,
    is_on,
    megatron_flags,
    table,
    trained_length,
)
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting, edit_flags, plain_value, set_variable
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.script_flags import flags_of, launch_words
from taylor.parsers.text.shell_source import ShellScript
from taylor.register.adapters import ALL_MEGATRON, Adapters, named_targets, saved_ends
from taylor.register.frozen import without_frozen
from taylor.register.model import ModelSpec
from taylor.register.pattern import kinds_in_order

_TRAINS = re.compile(r"(?:\S*/)?megatron (?:pt|sft|rlhf)|\S*swift[/.]cli[/._]+megatron[/.](?:pt|sft|rlhf)(?:\.py)?")
RANKS = {"nproc-per-node": "NPROC_PER_NODE", "nnodes": "NNODES"}
"""Variables of ms-swift's own launcher (swift/cli/main.py:73-83), by torchrun's option."""
CHECKPOINTS = ("mcore-model", "load")
"""Options that name a checkpoint of Megatron's weights; the second is the older name."""
LORA = "lora"
_VISION = "trains the vision part alone, and only language models are planned"


class SwiftScript(Launch):
    """A script that starts a training; see `Launch`.

    Parameters
    ----------
    script : ShellScript
    register_path : Path, optional
        The user's folder of registrations, for the model that it names.
    model : ModelSpec, optional
        The model where it is known already.

    Raises
    ------
    InputError
        When it starts no training of ms-swift's, or names an unknown model.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, register_path: Path | None = None, model: ModelSpec | None = None) -> None:
        self._script, self.file, self.text = script, script.file, script.text
        _refuse_other_start(script)
        self._state(flags_of(script, FORM), script.notes, register_path, model)

    def _state(
        self, options: Flags, remarks_of_file: Sequence[str], register_path: Path | None, model: ModelSpec | None
    ) -> None:
        """State the launch of some options."""
        self._options = options
        _refuse(options)
        notes = list(remarks_of_file)
        length = trained_length(options, notes)
        if model is None:
            model, remarks = _model_of(options, self.file, register_path)
            notes += remarks
            model = _trained(model, options)
        self.model, self.frozen = with_frozen(model, options, notes)
        if options.has("train-type") and not options.has("tuner-type") and self.adapters is not None:
            notes.append(_old_name(passed_over=is_on(options, "ignore-args-error")))
        if is_on(options, "packing"):
            notes.append(
                f"samples are packed to {length} tokens, and attention is counted over all of them: each sample "
                "attends to itself alone, so that short ones take less time; "
                "taylor lengths plans for the lengths of a table"
            )
        self.flags = megatron_flags(options, self._rank_flags(), size_flags(without_frozen(model)), length)
        self.notes = tuple(notes)

    @classmethod
    def read(cls, path: Path, register_path: Path | None = None, model: ModelSpec | None = None) -> SwiftScript:
        """Read a script; see `ShellScript.read`."""
        return cls(ShellScript.read(path), register_path, model)

    def table(self) -> FlagTable:
        """See `Launch.table`: ms-swift's own options too."""
        return table()

    @property
    def pairs(self) -> bool:
        """A sample is a pair of answers: ``--rlhf_type dpo``, the default of ``megatron rlhf``, and ``rm``."""
        trains_pairs = self._options.text(RLHF, default="dpo" if self._is_rlhf() else "")
        return trains_pairs in ("dpo", "rm")

    @property
    def adapters(self) -> Adapters | None:
        """LoRA: peft's layers over TP, an adapter for each expert (modelscope/mcore-bridge f020e47
        src/mcore_bridge/tuners/lora.py:95-231); all linear modules but router and head, unless named. Copies of
        embedding and head train whole where ``--modules_to_save`` names them (swift/megatron/utils/utils.py:129-151).

        Raises
        ------
        InputError
            When an option names a module beside which no adapter is modelled, or names modules by a pattern.
        """
        options = self._options
        kind = "tuner-type" if options.has("tuner-type") else "train-type"
        if options.text(kind, default="full") != LORA:
            return None
        if options.has("target-regex"):
            cure = f"name the modules by {FORM.written('target-modules')}"
            raise options.error("target-regex", "names modules by a pattern, which is not read", cure=cure)
        given = options.by_name.get("target-modules")
        names = ["all-linear"] if given is None else [word.text for word in given.values]
        where = {"file": self.file, "field": FORM.written("target-modules")}
        dropped = float(options.number("lora-dropout", default=0.05)) > 0
        rank: int = options.integer("lora-rank", default=8, high=MAX_SIZE)
        whole = options.by_name.get("modules-to-save")
        kept = {"file": self.file, "field": FORM.written("modules-to-save")}
        saved = saved_ends([] if whole is None else [word.text for word in whole.values], **kept)
        return Adapters(rank, named_targets(names, ALL_MEGATRON, **where), dropped, saved=saved)

    def _is_rlhf(self) -> bool:
        words = [each.text for each in launch_words(self._script, FORM)]
        return "rlhf" in words[: words.index("--model") if "--model" in words else None]

    def _rank_flags(self) -> list[Flag]:
        """The ranks, by the variables that ms-swift's launcher passes on to torchrun."""
        flags = []
        for name, variable in RANKS.items():
            value = self._script.variable(variable)
            if value is not None and value.words and value.words[0].chars:
                flags.append(Flag(name, word(f"--{name}"), (value.words[0],)))
        return flags

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> SwiftScript:
        """See `Launch.with_flags`: every option where it is written, new ones on lines of their own.

        Raises
        ------
        InputError
            When a flag states the model, which stands elsewhere.
        """
        edits: dict[str, Setting] = {}
        for name, setting in wanted.items():
            if _says(self.flags, name, setting):
                continue
            if name in MODEL_FLAGS:
                cure = "plan without changing the model's layers, or with a Megatron script"
                raise self.flags.error(name, "is the model's, which ms-swift reads from its folder", setting, cure)
            edits[OPTIONS.get(name, name)] = self._written(name, setting)
        if not edits:
            return self
        beside = tuple(OPTIONS.get(name, name) for name in near)
        changed = self._edited(edits, beside)
        for name, setting in wanted.items():
            if not _says(changed.flags, name, setting):
                raise changed.flags.error(name, "cannot be set", setting)
        return changed

    def _edited(self, edits: Mapping[str, Setting], beside: tuple[str, ...]) -> SwiftScript:
        """The same with some options set."""
        return SwiftScript(edit_flags(self._script, edits, FORM, near=beside), model=self.model)

    def _written(self, name: str, setting: Setting) -> Setting:
        """A setting of Megatron's as ms-swift writes it: a switch has a value, and the default takes no line."""
        if setting is True:
            return "true"
        if setting is False and name == "recompute-granularity":
            return "none"
        if setting is False and SWITCHES.get(name) == "true":
            return "false"
        if setting is False and name in VALUES and VALUES[name] != "1":
            return VALUES[name]
        return setting

    def with_ranks(self, world: int) -> tuple[SwiftScript, dict[str, Setting]]:
        """See `Launch.with_ranks`: by the variables NNODES and NPROC_PER_NODE."""
        now = self.flags.world_size()
        if now == world or now is None:
            return self, {}
        per_node = self.flags.integer("nproc-per-node")
        nodes = 1 if world % per_node else world // per_node
        script: ShellScript | None = self._script
        for name, count in (("NPROC_PER_NODE", world // nodes), ("NNODES", nodes)):
            if script is not None and (name in script.variables or name == "NPROC_PER_NODE"):
                script = set_variable(script, name, str(count)) or script
        changed = SwiftScript(script or self._script, model=self.model)
        if changed.flags.world_size() != world:
            cure = "write NNODES and NPROC_PER_NODE as numbers before the command"
            raise InputError(f"do not let it start {world} ranks", file=self.file, field="NNODES", cure=cure)
        return changed, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return plain_value(value, self.file, name)


def _model_of(options: Flags, file: Path, register_path: Path | None) -> tuple[ModelSpec, tuple[str, ...]]:
    """The model of ``--model``, else the one that the checkpoint's name names, and what was assumed of it.

    ms-swift takes it from the checkpoint's args.json (swift/megatron/arguments/sft_args.py:29-36), which lies on the
    user's cluster; the folder has the model's name with ``-mcore`` where it was converted as the manual shows.

    Raises
    ------
    InputError
        When nothing names a known model.
    """
    given = [option for option in CHECKPOINTS if options.has(option)]
    if options.has(MODEL) or not given:
        return named_model(options.text(MODEL), file, FORM.written(MODEL), register_path)
    name, field = options.text(given[0]), FORM.written(given[0])
    try:
        return named_model(name, file, field, register_path)
    except InputError as error:
        if error.field != field:
            raise
        cure = "write --model with the model's name at Hugging Face, or with a folder of its config.json"
        raise options.error(MODEL, f"is missing, and the name of {field} {name} says no model", cure=cure) from None


def _refuse_other_start(script: ShellScript) -> None:
    """Refuse a script whose command with the most options starts no training, or takes them from a file.

    Raises
    ------
    InputError
        With the command's file of options, or that there is no such command.
    """
    cure = "give the script that starts megatron pt, sft or rlhf"
    for command in script.commands:
        texts = [word.text for word in command.words]
        files = [text for text in texts if text.endswith((".yaml", ".yml", ".json"))]
        if files and _TRAINS.search(" ".join(texts)) and not any(text == "--model" for text in texts):
            if "--config" in texts or "--use_ray" in texts:
                problem = f"takes its options by groups of Ray from {files[0]}, which is not read"
                raise InputError(problem, file=script.file, cure="state them in the command, as --name value")
            cure = "put the file where the script names it, seen from one of the folders above the script"
            raise InputError(f"takes its options from {files[0]}, which is not found", file=script.file, cure=cure)
    if not _TRAINS.search(" ".join(each.text for each in launch_words(script, FORM))):
        raise InputError("starts no training: no command starts megatron pt, sft or rlhf", file=script.file, cure=cure)


def _old_name(*, passed_over: bool) -> str:
    """Remark on ``--train_type``, which ms-swift 4.1 has no more (5b40cf2b swift/pipelines/base.py:36-41)."""
    then = "passed over, so that all weights train," if passed_over else "refused"
    return (
        f"--train_type lora is read as ms-swift up to 4.0 reads it; from 4.1 on it is {then}"
        f"{' as --ignore_args_error is on' if passed_over else ''}: write --tuner_type lora"
    )


def _refuse(options: Flags) -> None:
    """Refuse what trains something else than a whole language model.

    Raises
    ------
    InputError
        With the option.
    """
    kind = "tuner-type" if options.has("tuner-type") else "train-type"  # The second is the older name.
    tuner = options.text(kind, default="full")
    if tuner not in ("full", LORA):
        cure = f"write {FORM.written(kind)} full or {LORA}"
        raise options.error(kind, "trains a part of the model that is not modelled", tuner, cure)
    if is_on(options, "freeze-llm"):
        raise options.error("freeze-llm", _VISION, "true", "write --freeze_llm false")


def _trained(model: ModelSpec, options: Flags) -> ModelSpec:
    """The model as ms-swift trains it: MTP modules where an option asks for them.

    A model without any gets Megatron's, each with a layer like the last one, from random weights.

    Sources: megatron_args.py:669 (``mtp_num_layers`` None); modelscope/mcore-bridge f020e479
    src/mcore_bridge/bridge/gpt_bridge.py:1755-1761, src/mcore_bridge/model/register.py:118-131.
    """
    depth = options.integer("mtp-num-layers", default=0, low=0, high=16)
    if depth and not model.mtp_layers:
        last = kinds_in_order(model.pattern)[-1:] if model.pattern else ()
        return model.replace(mtp_layers=depth, mtp_kinds=last)
    return model if depth == model.mtp_layers else model.replace(mtp_layers=depth)


def _says(flags: Flags, name: str, setting: Setting) -> bool:
    given = flags.by_name.get(name)
    if isinstance(setting, bool) or given is None:
        return (given is not None) is bool(setting) if isinstance(setting, bool) else False
    if isinstance(setting, tuple):
        return tuple(each.text for each in given.values) == setting
    return bool(given.values) and given.values[0].text == setting
