"""A ROLL YAML as a launch by Megatron's flags, or as a training on sharded parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from taylor.parsers.flag_table import LESS, MORE, FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.megatron.named_sizes import flag
from taylor.parsers.named_model import named_model
from taylor.parsers.policy.adapters import adapters_of
from taylor.parsers.policy.fields import CLASS_DEFAULTS, flag_of, means_flag
from taylor.parsers.policy.job import (
    LENGTH,
    MICRO_BATCH,
    NODES,
    PER_NODE,
    SAMPLES,
    Places,
    PolicyJob,
    Sizes,
    packed_samples,
    unread_options,
    usual_flags,
)
from taylor.parsers.policy.options import option
from taylor.parsers.policy.sharded import ShardedJob
from taylor.parsers.roll.experiment import ACTOR, DISTILLED, SFT, RollExperiment
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flag
from taylor.register.adapters import ALL_HUGGING_FACE, ALL_MEGATRON, Adapters
from taylor.register.model import ModelSpec
from taylor.register.trainers import ROLL_FSDP

NAME, SHARDED_NAME = "roll", "roll-fsdp2"
MEGATRON, FSDP2 = "megatron_train", "fsdp2_train"
STEP_ALONE = "the training step alone is predicted, without roll-outs, log-probabilities, rewards and other roles"
_CLASS_DEFAULTS = {
    **CLASS_DEFAULTS,
    "bias_activation_fusion": "false",
    "bias_dropout_fusion": "false",
    "moe_token_dispatcher_type": "allgather",
}
"""Fields where nothing is stated: ROLL 8eb27cc2 mcore_adapter/src/mcore_adapter/training_args.py:132-160,
NVIDIA/Megatron-LM core_v0.16.0 megatron/core/transformer/transformer_config.py (``bias_dropout_fusion``)."""
_NO_FIELDS = frozenset({"cross_entropy_loss_fusion", "optimizer", "bf16", "fp16", "bias_activation_fusion"})
"""Options of the strategy under the name of a flag that means something else, or that stands elsewhere."""
_REPLICA = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_LARGE_ROUTER = 32
"""Experts from which the router computes in fp32 (mcore_adapter/src/mcore_adapter/models/model_config.py:369)."""
_TYPES = {"fp32": 4, "float32": 4, "float": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2}
_RANGE = re.compile(r"range\(\s*(\d{1,7})\s*(?:,\s*(\d{1,7})\s*)?\)")
_PART = re.compile(r"list\(\s*(range\([^()]*\)|\[[\d,\s]*\])\s*\)|(\[[\d,\s]*\])|(range\([^()]*\))")
_VISION = re.compile(r"(?:model\.)?(?:visual|vision_model|vision_tower)$")
_SENSES = re.compile(r"(?:model\.)?(?:visual|vision_model|vision_tower|audio_model|audio_tower|talker|code2wav)\b")


class RollStart:
    """What a file says of the role that trains, whatever trains it.

    Raises
    ------
    InputError
        When it names no model, or a size is missing or wrong.
    """

    def __init__(
        self, experiment: RollExperiment, register_path: Path | None = None, model: ModelSpec | None = None
    ) -> None:
        self.experiment = experiment
        # roll/pipeline/distill/distill_config.py:44: the teacher's logits are compared where nothing is stated too.
        self.options = experiment.options().under({"logits_topk": "64"} if experiment.role == DISTILLED else {})
        self.role = f"{experiment.role}."
        self.arguments, self.training = f"{self.role}model_args.", f"{self.role}training_args."
        self.strategy = f"{self.role}strategy_args.strategy_config."
        self.kind = str(self.options.text(f"{self.role}strategy_args.strategy_name", default=FSDP2))
        self.notes = [*experiment.notes, STEP_ALONE]
        if self.kind not in (MEGATRON, FSDP2):
            problem, cure = "trains by what ROLL 8eb27cc2 does not have", f"write {MEGATRON} or {FSDP2}"
            raise self.options.error(f"{self.role}strategy_args.strategy_name", problem, self.kind, cure)
        self.model = model if model is not None else self._named(register_path)
        self.each = 2 if experiment.pairs else 1
        if self.each > 1:
            self.notes.append("a sample is a pair of answers, each of which is counted")
        self.length = self._length()

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.experiment.file

    def _named(self, register_path: Path | None) -> ModelSpec:
        """The model: MTP layers train where ``mtp_num_layers`` states them (training_args.py:192, 0 by default)."""
        options = self.options
        shared = "student_pretrain" if self.experiment.role == DISTILLED else "pretrain"
        own = f"{self.arguments}model_name_or_path"
        key = own if options.has(own) and self.experiment.role != SFT else shared
        model, remarks = named_model(str(options.text(key)), self.file, key, register_path)
        self.notes += remarks
        depth = int(options.integer(f"{self.strategy}mtp_num_layers", default=0, low=0, high=16))
        return model if depth == model.mtp_layers else model.replace(mtp_layers=depth)

    def _length(self) -> int:
        """Tokens of the longest sample (roll/configs/base_config.py:271-277; a prompt's default is 1,024)."""
        options = self.options
        if options.has("sequence_length"):
            length = int(options.integer("sequence_length", high=MAX_SIZE))
        else:
            prompt = int(options.integer("prompt_length", default=1024, low=0, high=MAX_SIZE))
            length = prompt + int(options.integer("response_length", high=MAX_SIZE))
        self.notes.append(f"samples are as long as they can be: {length} tokens")
        return length

    @property
    def length_key(self) -> str:
        """The option that a sample's length can be changed by."""
        return "sequence_length" if self.options.has("sequence_length") else "response_length"

    def ranks(self) -> int:
        """Ranks of the role: one a device (roll/configs/worker_config.py:299-305).

        Raises
        ------
        InputError
            When the list of devices is no sum of ranges and lists.
        """
        key = f"{self.role}device_mapping"
        written = str(self.options.text(key))
        count = devices_in(written)
        if not count:
            problem, cure = "is no list of devices that is read", "write list(range(0,8)), or a list of numbers"
            raise self.options.error(key, problem, written, cure)
        return count

    def accumulation(self) -> int:
        """Micro-batches a step of a rank."""
        return int(self.options.integer(f"{self.training}gradient_accumulation_steps", default=1, high=2**20))

    def samples(self, replicas: int) -> int:
        """Samples of one step of the optimizer (roll/pipeline/base_worker.py:83-102, of a rank;
        roll/pipeline/sft/sft_pipeline.py:147)."""
        return self.stated_micro_batch() * self.accumulation() * replicas

    def stated_micro_batch(self) -> int:
        """Samples that a micro-batch is stated to have; DPO doubles them (roll/pipeline/dpo/dpo_config.py:75)."""
        each = self.options.integer(f"{self.training}per_device_train_batch_size", default=8, high=2**20)
        return int(each) * self.each

    def micro_batch(self, replicas: int) -> int:
        """Samples of a rank's micro-batch; packed by tokens, as many of the longest as go into it."""
        options, count = self.options, self.stated_micro_batch()
        packed = f"{self.role}sequence_packing_args."
        balanced = options.text(f"{packed}algorithm", default="none") == "load_balance"
        if self.is_on("use_dynamic_batching_in_train"):
            key = f"{self.role}max_tokens_per_microbatch_in_train"
        elif self.is_on("use_sequence_packing") and balanced:
            key = f"{packed}max_packed_sequence_length_train"
        else:
            return count
        tokens = int(options.integer(key, high=MAX_SIZE))
        count = packed_samples(tokens, self.length, max(1, self.samples(replicas) // replicas))
        self.notes.append(
            f"micro-batches are packed up to {tokens} tokens: {count} sample(s) of {self.length} tokens are taken"
        )
        return count

    def is_on(self, name: str) -> bool:
        """Return whether a switch of the role is on."""
        return self.options.is_on(f"{self.role}{name}")

    def adapters(self) -> Adapters | None:
        """peft's adapters, beside Megatron's layers too (mcore_adapter/src/mcore_adapter/adapters/lora_layer.py).

        Source: roll/models/model_providers.py:148-180, 465-470; roll/configs/model_args.py:37-55 (a rank of 8).
        """
        options = self.options
        targets = f"{self.arguments}lora_target"
        if not options.has(targets):
            return None
        if options.has(f"{self.arguments}additional_target"):
            problem = "trains modules whole beside adapters, which is not modelled"
            raise options.error(f"{self.arguments}additional_target", problem, cure="leave it out")
        everything = ALL_MEGATRON if self.kind == MEGATRON else ALL_HUGGING_FACE
        options = options.under({f"{self.arguments}lora_rank": "8"})
        return adapters_of(
            options,
            rank=f"{self.arguments}lora_rank",
            targets=targets,
            usual=everything,
            everything=everything,
            dropout=f"{self.arguments}lora_dropout",
            base_bytes=float(self.stored_bytes()) if self.kind == FSDP2 else None,
        )

    def frozen(self) -> tuple[str, ...]:
        """A vision part whose prefix is frozen (roll/models/model_providers.py:136-145; not beside adapters).

        Raises
        ------
        InputError
            When other parts are frozen than those of the senses.
        """
        key = f"{self.arguments}freeze_module_prefix"
        if not self.options.has(key) or self.options.has(f"{self.arguments}lora_target"):
            return ()
        prefixes = [part.strip() for part in str(self.options.text(key)).split(",")]
        if not all(map(_SENSES.match, prefixes)):
            cure = "freeze the vision part alone, or leave it out"
            raise self.options.error(key, "freezes layers of the language model, which is not modelled", cure=cure)
        return frozen_vision(self.model, self.notes, freezes=any(map(_VISION.match, prefixes)))

    def stored_bytes(self) -> int:
        """Bytes of a stored parameter on FSDP2: fp32 where no type is stated (fsdp2_strategy.py:828, 1366)."""
        return self.type_bytes("param_dtype", "fp32")

    def type_bytes(self, name: str, default: str) -> int:
        """Bytes of a type of the strategy.

        Raises
        ------
        InputError
            When the type is not known.
        """
        written = str(self.options.text(f"{self.strategy}{name}", default=default)).lower()
        if written not in _TYPES:
            cure = f"use one of {', '.join(_TYPES)}"
            raise self.options.error(f"{self.strategy}{name}", "is no type that is read", written, cure)
        return _TYPES[written]

    def unread(self, given: Mapping[str, str]) -> tuple[UnmodelledFlag, ...]:
        """Options that cost and are in no figure, or that nobody knows; the table names every role as the actor."""
        actor = {_renamed(name, self.role, f"{ACTOR}."): text for name, text in given.items()}
        found = unread_options(own_table(), list(actor.items()), self.model)
        named = [replace(each, name=_renamed(each.name, f"{ACTOR}.", self.role)) for each in found]
        # base_worker.py:68-77 brings parameters alone; megatron_strategy.py:1313-1319 brings states for the update.
        if self.experiment.rolls_out:
            key, why = "is_offload_optimizer_states_in_train_step", "the optimizer's states come for the update alone"
            named.append(UnmodelledFlag(key, "True", LESS, MORE, None, why))
        return tuple(named)


def devices_in(written: str) -> int:
    """Devices in a list as ROLL's files state one: ``list(range(0,8))``, ``[0, 1]``, or a sum of them; 0 where it is
    none of these, or holds one twice."""
    found: set[int] = set()
    count = 0
    for part in written.split("+") if len(written) < 4000 else ():
        match = _PART.fullmatch(part.strip())
        if match is None:
            return 0
        inside = next(group for group in match.groups() if group)
        ends = _RANGE.fullmatch(inside)
        if ends is not None:
            low, high = (0, int(ends[1])) if ends[2] is None else (int(ends[1]), int(ends[2]))
            if high - low > 2**20:
                return 0
            devices = list(range(low, high))
        else:
            devices = [int(each) for each in re.findall(r"\d{1,7}", inside)]
        found.update(devices)
        count += len(devices)
    return count if len(found) == count else 0


def _renamed(name: str, old: str, new: str) -> str:
    return f"{new}{name.removeprefix(old)}" if name.startswith(old) else name


class RollMegatronJob(PolicyJob):
    """A file whose role Megatron Core trains; see `PolicyJob`."""

    launcher = NAME

    def __init__(self, start: RollStart) -> None:
        self._start, self.options, self.adapters = start, start.options, start.adapters()
        self.file, self.text = start.file, start.experiment.source.text
        self.places = Places(
            keys={
                SAMPLES: f"{start.training}gradient_accumulation_steps",
                MICRO_BATCH: f"{start.training}per_device_train_batch_size",
                LENGTH: start.length_key,
                PER_NODE: f"{start.role}device_mapping",
                NODES: f"{start.role}device_mapping",
                "no-bias-swiglu-fusion": f"{start.strategy}bias_activation_fusion",
            },
            fields={},
            overrides=start.strategy,
            micro_batch_each=start.each,
        )
        self._replica = 1
        for name in _REPLICA:
            self._replica *= int(start.options.integer(f"{start.strategy}{name}", default=1))
        world = start.ranks()
        if world % self._replica:
            problem = f"lists {world:,} devices, which TP x PP x CP = {self._replica:,} does not divide"
            raise start.options.error(f"{start.role}device_mapping", problem, cure="list other devices")
        node = min(world, int(start.options.integer("num_gpus_per_node", default=8)))
        node = world if world % node else node
        replicas = max(1, world // self._replica)
        micro_batch = start.micro_batch(replicas)
        ranks = (flag(PER_NODE, str(node)), flag(NODES, str(world // node)))
        sizes = Sizes(start.length, start.samples(replicas), micro_batch, ranks)
        half = str(start.options.text(f"{start.arguments}dtype", default="bf16"))
        further = usual_flags(half if half in ("bf16", "fp16") else "", start.model)
        self.state(start.model, self._fields(), sizes, further)
        self.frozen = start.frozen()
        self.notes = tuple(start.notes)

    def _fields(self) -> dict[str, Flag]:
        """Fields of Megatron's classes (mcore_adapter/src/mcore_adapter/models/model_config.py:341-384)."""
        options, strategy, model = self.options, self._start.strategy, self._start.model
        fields = {name: option(name, value) for name, value in _CLASS_DEFAULTS.items()}
        stated = {name: each for name, each in options.below(strategy).items() if "." not in name}
        stated |= options.below(f"{strategy}additional_configs.")
        fields |= {name: each for name, each in stated.items() if name not in _NO_FIELDS}
        fused = stated.get("bias_activation_fusion", fields.pop("bias_activation_fusion", None))
        if fused is not None:
            fields["bias_swiglu_fusion"] = fused
        tp, ep = (options.integer(f"{strategy}{name}_model_parallel_size", default=1) for name in ("tensor", "expert"))
        if tp == 1:
            fields.pop("sequence_parallel", None)
        elif ep > 1:
            fields["sequence_parallel"] = option("sequence_parallel", "true")
        full = options.text(f"{strategy}recompute_granularity", default="") == "full"
        if full and not options.has(f"{strategy}recompute_method", f"{strategy}recompute_num_layers"):
            fields["recompute_method"] = option("recompute_method", "uniform")
            fields["recompute_num_layers"] = option("recompute_num_layers", "1")
        if full:
            fields.pop("moe_layer_recompute", None)  # Whole layers run again, the experts among them.
        if model.moe is not None and model.moe.n_experts >= _LARGE_ROUTER and "moe_router_dtype" not in stated:
            fields["moe_router_dtype"] = option("moe_router_dtype", "fp32")
        return fields

    def edited(self, wanted: Mapping[str, object]) -> RollMegatronJob:
        """See `PolicyJob.edited`."""
        key = f"{self._start.role}device_mapping"
        if key in wanted:
            cure = "plan on the ranks that the file gives the role"
            raise self.options.error(key, "lists devices that other roles share", cure=cure)
        return RollMegatronJob(RollStart(self._start.experiment.edited(wanted), model=self.model))

    def edits(self, missing: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> dict[str, object]:
        """See `PolicyJob.edits`; the batch is stated as micro-batches of a rank."""
        batch = (SAMPLES, MICRO_BATCH, *map(flag_of, _REPLICA))
        edits = super().edits({name: to for name, to in missing.items() if name != SAMPLES}, wanted)
        if not any(name in missing for name in batch):
            return edits
        sizes = {name: int(str(wanted.get(name) or self.flags.integer(name, default=1))) for name in batch}
        replica = 1
        for name in map(flag_of, _REPLICA):
            replica *= sizes[name]
        once = max(1, self._start.ranks() // replica) * sizes[MICRO_BATCH]
        if sizes[SAMPLES] % once:
            problem = "is no multiple of the samples that all ranks take at once"
            raise self.flags.error(SAMPLES, problem, sizes[SAMPLES], f"plan with a multiple of {once}")
        if sizes[SAMPLES] // once != self._start.accumulation():
            edits[self.key_of(SAMPLES)] = sizes[SAMPLES] // once
        return edits

    def own_table(self) -> FlagTable:
        """See `PolicyJob.own_table`."""
        return own_table()

    def unread(self) -> tuple[UnmodelledFlag, ...]:
        """See `PolicyJob.unread`."""
        stated = {each.name: each.values[0].text for each in self.options.by_name.values() if not self._is_flag(each)}
        return self._start.unread(stated)

    def _is_flag(self, each: Flag) -> bool:
        name = each.name.removeprefix(self._start.strategy).removeprefix("additional_configs.")
        own = each.name.startswith(self._start.strategy) and name not in _NO_FIELDS - {"bias_activation_fusion"}
        return own and (means_flag(name) or name == "bias_activation_fusion")


def own_table() -> FlagTable:
    """The table of ROLL's options, of which those of the role that trains stand below ``actor_train``."""
    return load_flag_table("taylor.parsers.roll", "options.yaml")


def sharded_job(start: RollStart) -> ShardedJob:
    """The training of a file's role on FSDP2.

    Source: ROLL 8eb27cc2 roll/distributed/strategy/fsdp2_strategy.py:103-140 (meshes), 795-840 (Ulysses, types),
    1003-1066; roll/models/model_providers.py:257 (recompute); roll/utils/functionals.py:214 (the loss takes an fp32
    copy of the logits).

    Raises
    ------
    InputError
        When experts are split over fewer or more ranks than share a parameter.
    """
    options, strategy = start.options, start.strategy
    world = start.ranks()
    context = int(options.integer(f"{start.arguments}ulysses_size", default=1))
    shards = int(options.integer(f"{strategy}fsdp_size", default=1, low=-1, high=2**20))
    shards = world if shards <= 1 or shards >= world else shards
    ep = int(options.integer(f"{strategy}ep_size", default=1))
    if ep > 1:
        across = ep * int(options.integer(f"{strategy}efsdp_size", default=1))
        if across != shards:
            problem = f"times efsdp_size splits an expert over {across:,} ranks, and other parameters over {shards:,}"
            raise options.error(f"{strategy}ep_size", problem, ep, "write factors of the same ranks")
    replicas = max(1, world // context)
    stored = start.stored_bytes()
    return ShardedJob(
        start.file,
        SHARDED_NAME,
        start.model,
        ROLL_FSDP,
        world,
        start.length,
        start.samples(replicas),
        start.micro_batch(replicas),
        cp=context,
        ep=ep,
        shards=shards,
        recomputed=not options.is_on(f"{start.arguments}disable_gradient_checkpointing"),
        stored_bytes=stored,
        compute_bytes=start.type_bytes("param_dtype", "bf16"),
        reduced_bytes=start.type_bytes("reduce_dtype", "fp32"),
        stay_gathered=not options.is_on(f"{strategy}reshard_after_forward", default=True),
        adapters=start.adapters(),
        frozen=start.frozen(),
        mlp_tiles=int(options.integer(f"{strategy}tiled_num_shards", default=4))
        if options.is_on(f"{strategy}apply_tiled_mlp")
        else 0,
    )


def sharded_unmodelled(start: RollStart) -> tuple[UnmodelledFlag, ...]:
    """Options that cost and are in no figure, or that nobody knows."""
    return start.unread({each.name: each.values[0].text for each in start.options.by_name.values()})
