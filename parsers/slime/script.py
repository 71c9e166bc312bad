"""A shell script that starts slime's ``train.py``, as a launch by Megatron's flags: the training half.

Source of the defaults: THUDM/slime 624b824a slime/utils/arguments.py:36-50, 660-730 and
slime/backends/megatron_utils/arguments.py:76-188.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.flag_table import FlagRow, FlagTable, load_flag_table
from taylor.parsers.megatron.script import FORM, Script
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.named_model import named_model
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting, edit_flags
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import given
from taylor.register.model import ModelSpec

NAME = "slime"
NODES, PER_NODE = "actor-num-nodes", "actor-num-gpus-per-node"
ENGINE = ("sglang", "rollout", "eval", "router", "prefill")
"""Beginnings of options of the roll-outs' engine; `ENGINE` are their rows' names too."""
SPEC, PLUGINS = "spec", "slime_plugins.models."
PLAIN_SPECS = ("slime_plugins.models.glm4",)
"""Specifications that change a layer's norms alone (slime_plugins/models/glm4.py)."""
CHECKPOINT = "hf-checkpoint"


class SlimeTable(FlagTable):
    """Meaning of Megatron's and of slime's options; those of the engine by the beginning of their name."""

    def find(self, name: str) -> FlagRow | None:
        """See `FlagTable.find`."""
        begun = next((each for each in ENGINE if name.startswith(f"{each}-")), "")
        return super().find(name) or super().find(begun)


class SlimeScript(Script):
    """A script that starts the training half; see `Launch`.

    Parameters
    ----------
    script : ShellScript
    register_path : Path, optional
        The user's folder of registrations, for a model whose layers the flags do not describe.

    Raises
    ------
    InputError
        When it starts no training that Megatron runs.
    """

    launcher = NAME

    def __init__(self, script: ShellScript, register_path: Path | None = None) -> None:
        super().__init__(script)
        options = self.flags.of_other_tool()
        if not any(program.endswith(".py") for program in options.start.programs):
            cure = "end each line of the command but the last by a backslash, or give another script"
            raise InputError(
                "starts no training: no command has train.py and a model's flags", file=self.file, cure=cure
            )
        if options.text("train-backend", default="megatron") != "megatron":
            cure = "give a script that trains by Megatron"
            raise options.error("train-backend", "has no pipeline stages to plan", options.text("train-backend"), cure)
        notes = [
            *self.notes,
            "a step is the training half: taylor rl prices roll-outs and further forwards too",
        ]
        self.model = _specified_model(options, self.file, register_path, notes)
        self.flags = _completed(options, notes)
        self.notes = tuple(notes)

    def table(self) -> FlagTable:
        """See `Launch.table`: slime's own options too."""
        own = load_flag_table("taylor.parsers.slime", "flags.yaml")
        return SlimeTable(own.launcher, {**flag_table().rows, **own.rows})

    def with_ranks(self, world: int) -> tuple[SlimeScript, dict[str, Setting]]:
        """See `Launch.with_ranks`: by the actor's nodes and devices a node."""
        if self.flags.world_size() == world:
            return self, {}
        per_node = self.flags.integer("nproc-per-node")
        per_node = world if world % per_node else per_node
        wanted: Mapping[str, Setting] = {NODES: str(world // per_node), PER_NODE: str(per_node)}
        return SlimeScript(edit_flags(self._script, wanted, FORM, near=(NODES, PER_NODE))), {}


def _completed(options: Flags, notes: list[str]) -> Flags:
    """The flags with slime's own defaults, and the sizes of a step that roll-outs make."""
    length, batch = trained_length(options, notes), step_samples(options)
    stated = {
        "nnodes": str(options.integer(NODES, default=1)),
        "nproc-per-node": str(options.integer(PER_NODE, default=8)),
        "seq-length": str(length),
        "max-position-embeddings": str(max(length, options.integer("max-position-embeddings", default=1))),
    }
    if batch is not None:
        stated["global-batch-size"] = str(batch)
    if options.text("moe-token-dispatcher-type", default="allgather") == "allgather":
        stated["moe-token-dispatcher-type"] = "alltoall"
    switches = ["use-distributed-optimizer", "no-create-attention-mask-in-dataloader"]
    switches += [] if options.has("fp16") else ["bf16"]
    flags = [Flag(name, given(f"--{name}"), (given(value),)) for name, value in stated.items()]
    flags += [Flag(name, given(f"--{name}"), ()) for name in switches if not options.has(name)]
    return options.overlaid(flags)


def trained_length(options: Flags, notes: list[str]) -> int:
    """Tokens of the longest sample: slime trains samples of any length, and ``--seq-length`` only fills a place.

    Without a length of answers (a fine-tuning), a device's tokens of a micro-batch over the ranks of context parallel.
    """
    longest = options.integer("rollout-max-context-len", default=None, high=MAX_SIZE)
    if longest is not None:
        return int(longest)
    answer = options.integer("rollout-max-response-len", default=None, high=MAX_SIZE)
    if answer is not None:
        prompt = options.integer("rollout-max-prompt-len", default=0, low=0, high=MAX_SIZE)
        notes.append(f"a sample is as long as it can be: {answer + prompt} tokens" + ("" if prompt else ", no prompt"))
        return int(answer + prompt)
    packed = options.integer("max-tokens-per-gpu", default=None, high=MAX_SIZE)
    if packed is None:
        return int(options.integer("seq-length", default=4096, high=MAX_SIZE))
    tokens = packed * options.integer("context-parallel-size", default=1)
    notes.append(f"a micro-batch of {tokens} tokens is taken for one sample, by --max-tokens-per-gpu")
    return int(tokens)


def step_samples(options: Flags) -> int | None:
    """Samples of a step: those of a roll-out over its steps, where the script says so; else ``--global-batch-size``."""
    steps = options.integer("num-steps-per-rollout", default=None)
    if steps is None:
        return None
    prompts = options.integer("rollout-batch-size")
    return max(1, int(prompts * options.integer("n-samples-per-prompt", default=1) // steps))


def _specified_model(options: Flags, file: Path, register_path: Path | None, notes: list[str]) -> ModelSpec | None:
    """The model whose layers slime's own specification builds, by the name of its checkpoint; None where flags tell it.

    Raises
    ------
    InputError
        When no registered model has that name, or its layers and width are not the flags'.
    """
    spec = next(iter(options.words(SPEC)), "")
    if not spec.startswith(PLUGINS) or spec in PLAIN_SPECS:
        return None
    flag = options.by_name.get(CHECKPOINT)
    chars = flag.values[0].chars if flag is not None and flag.values else ()
    last = 1 + max((at for at, char in enumerate(chars) if char.unknown), default=-1)
    name = "".join(char.text for char in chars[last:]).rstrip("/").rpartition("/")[2]
    if not name:
        cure = f"write --{CHECKPOINT} with the model's name"
        raise options.error(SPEC, "builds layers that the flags do not describe", spec, cure)
    model, remarks = named_model(name, file, f"--{CHECKPOINT}", register_path)
    for option, there in (("num-layers", model.n_layers), ("hidden-size", model.hidden)):
        if options.integer(option, high=MAX_SIZE) != there:
            cure = f"name the checkpoint of the same model, or write --{option} {there}"
            raise options.error(
                option, f"is {there} in {model.name}, which --{SPEC} builds", options.text(option), cure
            )
    notes += [*remarks, f"--{SPEC} {spec} builds the layers: those of the registered model {model.name} are taken"]
    depth = options.integer("mtp-num-layers", default=0, low=0, high=16)
    return model.replace(mtp_layers=min(depth, model.mtp_layers), extra_parameters=0)
