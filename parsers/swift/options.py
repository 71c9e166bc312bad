"""ms-swift's options as Megatron's flags: names, defaults, and what has no such flag.

Source of every default: modelscope/ms-swift 3602360a swift/megatron/arguments/megatron_args.py:480-730, unless a line
says another.
"""

from __future__ import annotations

from collections.abc import Sequence

from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.megatron.named_sizes import flag, word
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.script_flags import FlagForm

NAME = "swift"
FORM = FlagForm(
    telltale=(
        "model",
        "micro-batch-size",
        "global-batch-size",
        "max-length",
        "tensor-model-parallel-size",
        "pipeline-model-parallel-size",
        "expert-model-parallel-size",
        "recompute-granularity",
        "dataset",
    ),
    beside=("tensor-model-parallel-size", "micro-batch-size", "model"),
    joint="_",
)
MODEL, LENGTH, PACKED, COMPLETION, RLHF = (
    "model",
    "max-length",
    "packing-length",
    "max-completion-length",
    "rlhf-type",
)
RENAMED = {
    "virtual-pipeline-model-parallel-size": "num-virtual-stages-per-pipeline-rank",
    "microbatch-group-size-per-vp-stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
"""Megatron's name by ms-swift's, where the two differ."""
OPTIONS = {megatron: swift for swift, megatron in RENAMED.items()}
SWITCHES = {
    "use-distributed-optimizer": "true",
    "gradient-accumulation-fusion": "true",
    "cross-entropy-loss-fusion": "true",
    "moe-grouped-gemm": "true",
    "padding-free": "true",
    "apply-rope-fusion": "false",
    "overlap-p2p-comm": "true",
    "sequence-parallel": "false",
    "overlap-grad-reduce": "false",
    "overlap-param-gather": "false",
    "account-for-embedding-in-pipeline-split": "false",
    "account-for-loss-in-pipeline-split": "false",
}
"""Defaults of the switches that a plan or a figure depends on."""
VALUES = {
    "micro-batch-size": "1",
    "global-batch-size": "16",
    "recompute-granularity": "selective",
    "attention-backend": "flash",
    "expert-tensor-parallel-size": "1",
    "moe-token-dispatcher-type": "alltoall",
    "moe-router-dtype": "fp32",
}
"""Defaults that differ from Megatron's, which has them where ms-swift says nothing."""
NEGATED = {
    "gradient-accumulation-fusion": "no-gradient-accumulation-fusion",
    "overlap-p2p-comm": "no-overlap-p2p-communication",
    "apply-rope-fusion": "no-rope-fusion",
}
"""Megatron's flag for a switch that is off."""
_NOT_PASSED = frozenset({"padding-free", "bf16", "fp16", "seq-length"})
_USUAL_COMPLETION = 512
_ROLLED_OUT = ("grpo", "gkd")


def table() -> FlagTable:
    """Meaning of Megatron's flags and of ms-swift's options for a plan."""
    own = load_flag_table("taylor.parsers.swift", "flags.yaml")
    return FlagTable(own.launcher, {**flag_table().rows, **own.rows})


def is_on(options: Flags, name: str) -> bool:
    """Return whether a switch is on: as it is written, else by its default.

    Raises
    ------
    InputError
        When its value is neither true nor false.
    """
    given = options.by_name.get(name)
    if given is not None and not given.values:
        return True
    written = str(options.text(name, default=SWITCHES.get(name, "false"))).lower()
    if written not in ("true", "false", "1", "0", "yes", "no"):
        raise options.error(name, "must be true or false", written, "write one of the two")
    return written in ("true", "1", "yes")


def trained_length(options: Flags, notes: list[str]) -> int:
    """Tokens of a sample at most: ``max_length`` or ``packing_length``, and an answer where answers are rolled out.

    Source: megatron_base_args.py:44 (``seq_length``); swift/megatron/trainers/rollout_mixin.py:136-141: a prompt of
    ``max_length`` gets up to ``max_completion_length`` tokens.

    Raises
    ------
    InputError
        When neither is stated: samples are then as long as the model takes (base_args/base_args.py:197).
    """
    if not options.has(PACKED) and not options.has(LENGTH):
        cure = f"write {FORM.written(LENGTH)} to plan its step"
        raise options.error(
            LENGTH, "is not stated, and ms-swift then takes samples as long as the model can", cure=cure
        )
    length: int = options.integer(PACKED if options.has(PACKED) else LENGTH, high=MAX_SIZE)
    if options.text(RLHF, default="") not in _ROLLED_OUT:
        return length
    answer = options.integer(COMPLETION, default=_USUAL_COMPLETION, high=MAX_SIZE)
    notes.append(f"samples are as long as they can be: {length} tokens of prompt and {answer} of answer")
    return int(length + answer)


def megatron_flags(options: Flags, starting: Sequence[Flag], model: Sequence[Flag], length: int) -> Flags:
    """The launch by Megatron's flags; options that Megatron-LM lacks keep their names, for the table.

    Parameters
    ----------
    starting : sequence of Flag
        Ranks.
    model : sequence of Flag
        The model's sizes.
    length : int
        Tokens of a sample.
    """
    flags = [*starting, *model, flag("seq-length", str(length))]
    own, known = load_flag_table("taylor.parsers.swift", "flags.yaml"), flag_table()
    for name in dict.fromkeys([*(each.name for each in options.flags), *SWITCHES, *VALUES]):
        if name in _NOT_PASSED:
            continue
        row = known.find(name)
        given = options.by_name.get(name)
        if name in SWITCHES or (row is not None and not row.takes_value and own.rows.get(name) is None):
            flags += _switch(options, name)
        elif name in RENAMED:
            if options.text(name) != "1":
                flags.append(Flag(RENAMED[name], word(f"--{RENAMED[name]}"), given.values if given else ()))
        elif name == "recompute-granularity":
            if options.text(name, default=VALUES[name]) != "none":
                flags.append(given or flag(name, VALUES[name]))
        elif given is not None:
            flags.append(given)
        elif row is not None:
            flags.append(flag(name, VALUES[name]))
    flags += [flag("bf16") if not _is_fp16(options) else flag("fp16"), flag("hidden-dropout", "0.0")]
    flags.append(flag("attention-dropout", "0.0"))
    if is_on(options, "padding-free"):
        flags.append(flag("no-create-attention-mask-in-dataloader"))
    if options.text(RLHF, default="") == "rm":
        # A reward model is a classifier of one label (ms-swift 3602360a swift/megatron/arguments/rlhf_args.py:17-19).
        flags.append(flag("task-type", "seq_cls"))
    return Flags(options.file, flags, len(starting), place=_place, start=options.start)


def _switch(options: Flags, name: str) -> list[Flag]:
    """Megatron's flag for a switch; none where it means Megatron's default."""
    on = is_on(options, name)
    if name in NEGATED:
        off = not on and not (name == "overlap-p2p-comm" and not options.has("virtual-pipeline-model-parallel-size"))
        return [flag(NEGATED[name])] if off else []
    if name == "sequence-parallel" and options.text("tensor-model-parallel-size", default="1") == "1":
        return []  # megatron_args.py:877: off without tensor parallelism.
    given = options.by_name.get(name)
    return ([Flag(name, given.word, ()) if given is not None else flag(name)]) if on else []


def _is_fp16(options: Flags) -> bool:
    """Return whether weights are fp16, and not bf16 (swift/arguments/base_args/model_args.py:130-142)."""
    if options.has("fp16"):
        return is_on(options, "fp16")
    return str(options.text("torch-dtype", default="bfloat16")) in ("float16", "fp16")


def _place(name: str) -> str:
    """The option that a flag of Megatron's stands for."""
    if name == "seq-length":
        name = LENGTH
    return FORM.written(OPTIONS.get(name, name))
