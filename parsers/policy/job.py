"""The training half of a job whose options build Megatron's classes, as a launch by Megatron's flags."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from taylor.base.errors import InputError
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag
from taylor.parsers.megatron.launch import Launch
from taylor.parsers.megatron.named_sizes import MODEL_FLAGS, flag, size_flags
from taylor.parsers.megatron.read import config_from_launch
from taylor.parsers.megatron.unmodelled import flag_table
from taylor.parsers.policy.fields import field_of, field_value, flag_of, flags_of, means_flag
from taylor.parsers.policy.options import Options
from taylor.parsers.text.flag_edit import Setting, has_setting, plain_value
from taylor.parsers.text.flags import WORLD_FLAGS, Flag, Flags
from taylor.parsers.training_config import TrainingConfig
from taylor.register.adapters import Adapters
from taylor.register.model import ModelSpec

PER_NODE, NODES, SAMPLES, MICRO_BATCH, LENGTH = (
    "nproc-per-node",
    "nnodes",
    "global-batch-size",
    "micro-batch-size",
    "seq-length",
)
TRAINING_HALF = (
    "the training step is the policy's alone: taylor rl prices roll-outs, log-probabilities and a critic too; nothing "
    "prices rewards"
)


def packed_samples(tokens: int, length: int, each: int) -> int:
    """Longest samples that go into a packed micro-batch, as many as divide a rank's samples.

    Parameters
    ----------
    tokens, length : int
        Tokens of a micro-batch and of the longest sample.
    each : int
        Samples a rank and step.
    """
    most = min(max(1, tokens // length), each)
    return next(count for count in range(most, 0, -1) if each % count == 0)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a training step.

    Parameters
    ----------
    length : int
        Tokens of the longest sample.
    samples : int
        Samples a step.
    micro_batch : int
        Samples a micro-batch of one data-parallel rank.
    ranks : tuple of Flag
        ``nproc-per-node`` and ``nnodes`` of the policy.
    """

    length: int
    samples: int
    micro_batch: int
    ranks: tuple[Flag, ...]


@dataclass(frozen=True)
class Places:
    """Keys of the options that state what flags mean.

    Parameters
    ----------
    keys : mapping of str to str
        Key of a flag that no field means: the batch, the micro-batch, the ranks.
    fields : mapping of str to str
        Key of a field that stands elsewhere than in `overrides`.
    overrides : str
        Prefix of all other fields of Megatron's classes.
    samples_each : int
        Samples that the key of the batch counts as one.
    micro_batch_each : int
        Samples that the key of the micro-batch counts as one.
    """

    keys: Mapping[str, str]
    fields: Mapping[str, str]
    overrides: str
    samples_each: int = 1
    micro_batch_each: int = 1
    computed: frozenset[str] = field(default_factory=frozenset)
    """Flags that no option states, because others settle them."""

    def of(self, name: str) -> str:
        """The key of a flag."""
        called = field_of(name)
        return self.keys.get(name) or self.fields.get(called) or f"{self.overrides}{called}"


def unread_options(
    table: FlagTable, given: Sequence[tuple[str, str]], model: ModelSpec | None
) -> tuple[UnmodelledFlag, ...]:
    """Options that cost and are in no figure, or that nobody knows."""
    facts = ["@experts"] if model is not None and model.moe is not None else []
    return table.unmodelled(given, in_force=[*facts, *(name for name, _ in given)])


def usual_flags(half: str, model: ModelSpec) -> list[Flag]:
    """Flags that no field means: ``bf16``, ``fp16`` or no narrow type, no dropout, the MTP layers that train."""
    return [
        *([flag(half)] if half else []),
        flag("hidden-dropout", "0.0"),
        flag("attention-dropout", "0.0"),
        flag("no-create-attention-mask-in-dataloader"),
        *([flag("mtp-num-layers", str(model.mtp_layers))] if model.mtp_layers else []),
    ]


class PolicyJob(Launch):
    """A policy's training by Megatron; see `Launch`.

    A subclass defines `launcher`, `edited` and `own_table`, and calls `state`.
    """

    options: Options
    places: Places
    homes: Mapping[str, str]
    """Key of the option that states a flag, where one does."""
    adapters: Adapters | None
    """Adapters that train alone; None: all weights train."""

    def key_of(self, name: str) -> str:
        """The key of the option that states a flag, or would."""
        return self.homes.get(name) or self.places.of(name)

    def state(self, model: ModelSpec, fields: Mapping[str, Flag], sizes: Sizes, further: Sequence[Flag]) -> None:
        """State the launch's flags.

        Parameters
        ----------
        fields : mapping of str to Flag
            Fields of Megatron's classes, those of the classes' defaults included where they differ from the flags'.
        further : sequence of Flag
            Flags that no field means.
        """
        self.model = model
        self.homes = {flag_of(name): each.name for name, each in fields.items() if "." in each.name}
        stated = [
            *sizes.ranks,
            *size_flags(model),
            flag(LENGTH, str(sizes.length)),
            flag(SAMPLES, str(sizes.samples)),
            flag(MICRO_BATCH, str(sizes.micro_batch)),
            *flags_of(fields),
            *further,
        ]
        self.flags = Flags(
            self.file, stated, len(sizes.ranks), self.key_of, replace(self.options.start, other_tool=True)
        )

    @abstractmethod
    def edited(self, wanted: Mapping[str, object]) -> PolicyJob:
        """The same with some options set, by their key; None leaves the default to hold.

        Raises
        ------
        InputError
            When a value cannot be set without changing another.
        """

    @abstractmethod
    def own_table(self) -> FlagTable:
        """Meaning of the tool's options."""

    def table(self) -> FlagTable:
        """See `Launch.table`: the options are judged by `unread`, the flags that they mean by Megatron's table."""
        return flag_table()

    def named(self, found: UnmodelledFlag) -> UnmodelledFlag:
        """A flag that no figure includes, under the key of its option."""
        name = found.name.removeprefix("--")
        value = found.value
        if value is None:
            value = "false" if field_value(name, True) is False else "true"
        return replace(found, name=self.key_of(name), value=value)

    def unread(self) -> tuple[UnmodelledFlag, ...]:
        """Options of the tool that cost and are in no figure, or that nobody knows."""
        stated = [each for each in self.options.by_name.values() if each.name not in self.options.usual]
        given = [(each.name, each.values[0].text) for each in stated if not self._is_flag(each)]
        return unread_options(self.own_table(), given, self.model)

    def config(self) -> TrainingConfig:
        """The configuration of these flags, which are named by their options' keys, and of the adapters.

        Raises
        ------
        InputError
            When a flag has a value that is wrong.
        """

        def key(name: str) -> str:
            return self.key_of(name.removeprefix("--"))

        config = config_from_launch(self)
        moved = config.moved
        return config.replace(
            rules=config.rules.replace(adapters=self.adapters),
            unmodelled=(*map(self.named, config.unmodelled), *self.unread()),
            linked=tuple(map(key, config.linked)),
            moved=None if moved is None else replace(moved, flags=tuple(map(key, moved.flags))),
        )

    def _is_flag(self, each: Flag) -> bool:
        return each.name.startswith(self.places.overrides) and means_flag(each.name[len(self.places.overrides) :])

    def with_flags(self, wanted: Mapping[str, Setting], near: tuple[str, ...]) -> PolicyJob:
        """See `Launch.with_flags`.

        Raises
        ------
        InputError
            When a flag states the model, which the options only name, or no option says it.
        """
        missing = {name: to for name, to in wanted.items() if not has_setting(self.flags, name, to)}
        for name, setting in missing.items():
            if name in MODEL_FLAGS:
                cure = "plan without changing the model's layers, or with a Megatron script"
                raise self.flags.error(name, "is the model's, which the job only names", str(setting), cure)
        changed = self.edited(self.edits(missing, wanted)) if missing else self
        for name, setting in missing.items():
            if not has_setting(changed.flags, name, setting):
                raise changed.flags.error(name, "cannot be set", str(setting))
        return changed

    def edits(self, missing: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> dict[str, object]:
        """The options to set, for flags that are not set so yet.

        Parameters
        ----------
        wanted : mapping of str to Setting
            All flags that are wanted together.
        """
        return {self.key_of(name): self._value(name, setting) for name, setting in missing.items()}

    def _value(self, name: str, setting: Setting) -> object:
        each = {SAMPLES: self.places.samples_each, MICRO_BATCH: self.places.micro_batch_each}.get(name, 1)
        if name in (SAMPLES, MICRO_BATCH) and isinstance(setting, str):
            if int(setting) % each:
                problem = f"counts {each} samples as one"
                raise self.flags.error(name, problem, setting, f"plan with a multiple of {each}")
            return int(setting) // each
        return field_value(name, setting)

    def with_ranks(self, world: int) -> tuple[PolicyJob, dict[str, Setting]]:
        """See `Launch.with_ranks`."""
        if not self.flags.has(*WORLD_FLAGS) or self.flags.world_size() == world:
            return self, {}
        per_node = self.flags.integer(PER_NODE)
        per_node = world if world % per_node else per_node
        wanted: dict[str, object] = {self.places.of(PER_NODE): per_node, self.places.of(NODES): world // per_node}
        changed = self.edited(wanted)
        if changed.flags.world_size() != world:
            cure = "write the ranks of the policy as numbers"
            raise InputError(
                f"do not let it start {world} ranks", file=self.file, field=self.places.of(NODES), cure=cure
            )
        return changed, {}

    def setting(self, name: str, value: object) -> Setting:
        """See `Launch.setting`."""
        return plain_value(value, self.file, name)
