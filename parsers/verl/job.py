"""A shell script that starts one of verl's programs, as a launch by Megatron's flags or on sharded parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from taylor.parsers.flag_table import LESS, MORE, FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.megatron.named_sizes import flag
from taylor.parsers.megatron.section_adapters import bridge_dora, refuse_grouped_dora
from taylor.parsers.named_model import named_model
from taylor.parsers.policy.adapters import adapters_of
from taylor.parsers.policy.fields import CLASS_DEFAULTS
from taylor.parsers.policy.job import (
    LENGTH,
    MICRO_BATCH,
    NODES,
    PER_NODE,
    SAMPLES,
    TRAINING_HALF,
    Places,
    PolicyJob,
    Sizes,
    packed_samples,
    unread_options,
    usual_flags,
)
from taylor.parsers.policy.options import Options, option, unquoted
from taylor.parsers.policy.sharded import ShardedJob
from taylor.parsers.rl_iteration import with_value_head
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flags import Flag, Flags
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.verl.command import VerlCommand
from taylor.parsers.verl.programs import EASY_R1, MEGATRON, SHARDED, VEOMNI, Program
from taylor.register import frameworks
from taylor.register.adapters import ALL_HUGGING_FACE, ALL_MEGATRON, MEGATRON_TARGETS, ROUTERS, Adapters
from taylor.register.model import ModelSpec
from taylor.register.trainers import VERL_FSDP

NAME, SHARDED_NAME = "verl", "verl-fsdp"
_BRIDGE_DEFAULTS = {**CLASS_DEFAULTS, "moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": "true"}
"""Fields that the models' bridges set: verl b178a3cd verl/models/mcore/config_converter.py:88, 243; ISEEKYAN/mbridge
10cb17f5 mbridge/core/llm_bridge.py:82, mbridge/models/deepseek_v3.py:148, glm4moe.py:155."""
_OPTIMIZER = "override_optimizer_config."
_TYPES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}


class VerlStart:
    """What a script says of its program, whatever trains it.

    Raises
    ------
    InputError
        When it starts no training, trains LoRA, or a size is missing or wrong.
    """

    def __init__(
        self,
        script: ShellScript,
        register_path: Path | None = None,
        model: ModelSpec | None = None,
        *,
        critic: bool = False,
    ) -> None:
        self.command = VerlCommand.of(script)
        self.command = self.command.of_critic() if critic else self.command
        self.program: Program = self.command.program
        self.options: Options = self.command.options
        self.notes = [*script.notes, *self.command.notes]
        priced = self.program.rolls_out and self.program.states_iteration
        self.notes.append(TRAINING_HALF if priced else "the training step alone is predicted")
        self.kind = str(self.options.text(self.program.strategy, default="fsdp")).lower()
        self._refuse()
        self.model = model if model is not None else self._named(register_path)

    @property
    def file(self) -> Path:
        """The script's file."""
        return self.options.file

    @property
    def rank_key(self) -> str | None:
        """Key of the rank of its adapters; None where all weights train."""
        return next((name for name in self.program.adapters if self.options.text(name, default="0") != "0"), None)

    @property
    def kind_key(self) -> str:
        """Key of the kind of its adapters on Megatron."""
        return f"{(self.rank_key or '').rpartition('.')[0]}.type"

    def adapters(self) -> Adapters | None:
        """Adapters: Megatron-Bridge's, or peft's beside weights that FSDP stores and shards as it does all.

        Source: verl b178a3cd verl/trainer/config/ppo_megatron_trainer.yaml:44-77;
        verl/workers/engine/fsdp/transformer_impl.py:270-278; all linear modules by default
        (verl/trainer/config/model/hf_model.yaml:49).
        """
        rank = self.rank_key
        if rank is None:
            return None
        if self.kind not in SHARDED:
            place = rank.rpartition(".")[0]
            found = adapters_of(
                self.options,
                rank=rank,
                targets=f"{place}.target_modules",
                usual=MEGATRON_TARGETS,
                everything=ALL_MEGATRON,
                excluded=f"{place}.exclude_modules",
                dropout=f"{place}.dropout",
                gathers=True,
            )
            kind = str(self.options.text(self.kind_key, default="lora"))
            return bridge_dora(found, self.file, f"{place}.dropout") if kind == "dora" else found
        targets = self.program.targets or f"{self.program.model[0].rpartition('.')[0]}.target_modules"
        stored = float(_bytes(self.options, self.program.of_sharding("model_dtype")))
        if self.program is EASY_R1:
            stored = 2.0  # hiyouga/EasyR1 b44b311b verl/workers/fsdp_workers.py:254: what is frozen is cast to bf16.
        return adapters_of(
            self.options,
            rank=rank,
            targets=targets,
            usual=ALL_HUGGING_FACE,
            everything=ALL_HUGGING_FACE,
            excluded=f"{targets.rpartition('.')[0]}.exclude_modules",
            base_bytes=stored,
        )

    def _refuse(self) -> None:
        options, program = self.options, self.program
        rank = self.rank_key
        kind = str(options.text(self.kind_key, default="lora"))
        if rank is not None and self.kind not in SHARDED and kind not in ("lora", "vlm_lora", "dora"):
            problem = "names adapters that are not modelled"
            raise options.error(self.kind_key, problem, kind, "write lora or dora")
        path = f"{program.model[0].rpartition('.')[0]}.lora_adapter_path"
        if options.has(path):
            raise options.error(path, "trains adapters, whose memory and step are not modelled", cure="leave it out")
        if self.kind == VEOMNI:
            cure = "write fsdp, fsdp2 or megatron"
            raise options.error(program.strategy, "trains by VeOmni, which is not read", self.kind, cure)
        if self.kind not in (*SHARDED, MEGATRON) or (self.kind == MEGATRON and not program.engine):
            raise options.error(
                program.strategy, "is no trainer that is read", self.kind, "write fsdp, fsdp2 or megatron"
            )

    def _named(self, register_path: Path | None) -> ModelSpec:
        """The model of the path, by its last part where only the shell knows the first."""
        key = next((name for name in self.program.model if self.options.has(name)), self.program.model[0])
        each = self.options.by_name.get(key)
        if each is None:
            problem = "is empty" if key in self.command.stated else "is missing"
            raise self.options.error(key, problem, cure=f"write it into the command, as in {key}=Qwen/Qwen3-8B")
        chars = each.values[0].chars
        last = 1 + max((at for at, char in enumerate(chars) if char.unknown), default=-1)
        name = unquoted("".join(char.text for char in chars[last:])).rstrip("/")
        if last:
            name = name.lstrip("}/\"'")
        if not name:
            self.options.text(key)  # The error names the line that leaves it open.
        model, remarks = named_model(name, self.file, key, register_path)
        self.notes += remarks
        return self._trained(model)

    def _trained(self, model: ModelSpec) -> ModelSpec:
        """The model as it is trained: MTP layers where an option asks for them.

        Sources: verl b178a3cd verl/trainer/config/model/hf_model.yaml (``mtp``),
        verl/workers/megatron_workers.py:155-168.
        """
        options = self.options
        if self.program.is_critic:
            return with_value_head(model)
        mtp = options.is_on("actor_rollout_ref.model.mtp.enable") and options.is_on(
            "actor_rollout_ref.model.mtp.enable_train"
        )
        if model.mtp_layers and not mtp:
            model = model.replace(mtp_layers=0)
        return model

    def frozen(self) -> tuple[str, ...]:
        """A vision part on FSDP, routers on Megatron that are frozen (`TrainingRules.frozen`).

        Sources: verl b178a3cd verl/workers/fsdp_workers.py:474 (of the policy), 1417 (of the critic, by an option of
        its own; no other worker reads either); verl/trainer/config/ppo_megatron_trainer.yaml:34-35,
        verl/utils/megatron_utils.py:189.
        """
        place = self.program.model[0].rpartition(".")[0]
        if self.kind == MEGATRON:
            routers = self.options.is_on(f"{place}.override_config.moe_config.freeze_moe_router")
            return (ROUTERS,) if routers and self.model.moe is not None else ()
        return frozen_vision(self.model, self.notes, freezes=self.options.is_on(self.program.frozen_vision))

    # ---- sizes -----------------------------------------------------------------------------------

    def length(self) -> int:
        """Tokens of the longest sample: prompt and answer, or ``data.max_length``."""
        options = self.options
        if not self.program.rolls_out:
            return int(options.integer("data.max_length", high=MAX_SIZE))
        prompt = options.integer("data.max_prompt_length", low=0, high=MAX_SIZE)
        answer = options.integer("data.max_response_length", high=MAX_SIZE)
        self.notes.append(f"samples are as long as they can be: {prompt} tokens of prompt and {answer} of answer")
        return int(prompt + answer)

    @property
    def answers(self) -> int:
        """Samples that come of one prompt (verl b178a3cd verl/workers/megatron_workers.py:354)."""
        return int(self.options.integer(self.program.answers)) if self.program.rolls_out else 1

    def samples(self) -> int:
        """Samples of one step of the optimizer."""
        return int(self.options.integer(self.program.samples, high=2**31)) * self.answers

    def micro_batch(self, replicas: int, context: int, length: int, samples: int) -> int:
        """Samples of a rank's micro-batch.

        Packed by tokens, it is `packed_samples` of the tokens of all ranks that share a sample (verl b178a3cd
        verl/workers/actor/megatron_actor.py:806, dp_actor.py:552).
        """
        options, program = self.options, self.program
        each = max(1, samples // replicas)
        if program.dynamic and options.is_on(program.dynamic):
            tokens = options.integer(program.tokens, high=MAX_SIZE) * context
            count = packed_samples(tokens, length, each)
            packed = f"micro-batches are packed up to {tokens} tokens"
            self.notes.append(f"{packed}: {count} sample(s) of {length} tokens are taken")
            return count
        if (
            not options.has(program.micro_batch)
            and program.former_micro_batch
            and options.has(program.former_micro_batch)
        ):
            return max(1, int(options.integer(program.former_micro_batch, high=2**31)) // replicas)
        if not options.has(program.micro_batch):
            cure = "add it to the command, as in =1"
            raise options.error(program.micro_batch, "is missing", cure=cure)
        return int(options.integer(program.micro_batch, high=2**31))

    def ranks(self) -> tuple[Flag, ...]:
        """The ranks that train, by torchrun's flags; none that only the start knows."""
        found = []
        for name, key in ((PER_NODE, "trainer.n_gpus_per_node"), (NODES, "trainer.nnodes")):
            each = self.options.by_name.get(key)
            if each is not None and not each.values[0].unknown:
                found.append(Flag(name, flag(name).word, (each.values[0],)))
        return tuple(found)


class VerlMegatronJob(PolicyJob):
    """A script whose policy Megatron trains; see `PolicyJob`."""

    launcher = NAME

    def __init__(self, start: VerlStart) -> None:
        self._start, self.options = start, start.options
        self.file, self.text = start.file, start.command.script.text
        program, options = start.program, start.options
        self.program, self.adapters = program, start.adapters()
        if start.kind != MEGATRON:
            problem = "is trained on sharded parameters, without Megatron's flags"
            raise options.error(program.strategy, problem, start.kind)
        engine, override = program.engine, f"{program.engine}override_transformer_config."
        self.places = Places(
            keys={
                SAMPLES: program.samples,
                MICRO_BATCH: program.micro_batch,
                LENGTH: "data.max_response_length" if program.rolls_out else "data.max_length",
                PER_NODE: "trainer.n_gpus_per_node",
                NODES: "trainer.nnodes",
            },
            fields={name: f"{engine}{name}" for name in _DEGREES},
            overrides=override,
            samples_each=start.answers,
        )
        length, samples = start.length(), start.samples()
        tp, pp, cp = (options.integer(f"{engine}{name}_parallel_size") for name in _REPLICA)
        ranks = start.ranks()
        world = Flags(self.file, ranks).world_size()
        replicas = max(1, (world or tp * pp * cp) // (tp * pp * cp))
        sizes = Sizes(length, samples, start.micro_batch(replicas, cp, length, samples), ranks)
        half = "fp16" if options.text(f"{engine}dtype", default="bfloat16") in ("float16", "fp16") else "bf16"
        self.state(start.model, self._fields(tp), sizes, usual_flags(half, start.model))
        self.frozen = start.frozen()
        self.notes = tuple(start.notes)

    def _fields(self, tp: int) -> dict[str, Flag]:
        """Fields of Megatron's classes: the bridges', the engine's, and what is laid over them."""
        program, options = self._start.program, self.options
        fields = {name: option(name, value) for name, value in _BRIDGE_DEFAULTS.items()}
        engine = options.below(program.engine)
        fields |= {name: engine[name] for name in _DEGREES if name in engine}
        fields["sequence_parallel"] = option("sequence_parallel", str(tp > 1).lower())
        fields |= options.below(f"{program.engine}override_ddp_config.")
        fields |= options.below(f"{program.optimizer}{_OPTIMIZER}")
        fields |= options.below(f"{program.engine}override_transformer_config.")
        virtual = fields.get("virtual_pipeline_model_parallel_size")
        if virtual is not None and virtual.values[0].text == "1":
            del fields["virtual_pipeline_model_parallel_size"]
        return fields

    def edited(self, wanted: Mapping[str, object]) -> VerlMegatronJob:
        """See `PolicyJob.edited`."""
        return VerlMegatronJob(VerlStart(self._start.command.edited(wanted), model=self.model))

    def config(self) -> TrainingConfig:
        """See `PolicyJob.config`."""
        config = super().config()
        refuse_grouped_dora(config, self._start.kind_key)
        return config

    def own_table(self) -> FlagTable:
        """See `PolicyJob.own_table`."""
        return own_table()

    def _is_flag(self, each: Flag) -> bool:
        program = self._start.program
        sections = [f"{program.optimizer}{_OPTIMIZER}", f"{program.engine}override_ddp_config."]
        sections += [program.sharding] if program.sharding != program.engine else []
        return super()._is_flag(each) or each.name.startswith(tuple(sections))


_REPLICA = ("tensor_model", "pipeline_model", "context")
_DEGREES = (
    "tensor_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "context_parallel_size",
    "use_distributed_optimizer",
)
"""Fields that stand in verl's own part and not among those that are laid over Megatron's."""


def own_table() -> FlagTable:
    """The table of verl's options."""
    return load_flag_table("taylor.parsers.verl", "options.yaml")


def is_sharded(script: ShellScript) -> bool:
    """Return whether the script's policy is trained on sharded parameters."""
    command = VerlCommand.of(script)
    return str(command.options.text(command.program.strategy, default="fsdp")).lower() != MEGATRON


def sharded_job(start: VerlStart) -> ShardedJob:
    """The training of a script's policy, or of its critic, on sharded parameters.

    Sources: verl b178a3cd verl/workers/fsdp_workers.py:98-105 (replicas), 241-249 (batch), 493-500 (types),
    verl/workers/engine/fsdp; verl/trainer/fsdp_sft_trainer.py.
    """
    options, program = start.options, start.program
    # verl/workers/config/actor.py:330-331: the older key replaces the newer one where it is above 1.
    degrees = [int(options.integer(name, default=1)) for name in program.ulysses]
    context = next((degree for degree in degrees if degree > 1), 1)
    length, samples = start.length(), start.samples()
    ranks = Flags(start.file, start.ranks())
    world, note = ranks.world_size(), ""
    if world is None:
        world = context
        note = f"the file does not say how many ranks it starts: {world} is assumed, the least multiple of its degrees"
    elif ranks.assumed(PER_NODE, NODES):
        note = f"a world size of {world:,} is assumed, by the default of a variable that the script leaves open"
    replicas = max(1, world // context)
    of = program.of_sharding
    shards = int(options.integer(of("fsdp_size"), low=-1))
    reduced = options.text(of("mixed_precision.reduce_dtype"), default="fp32")
    computed = options.text(of("mixed_precision.param_dtype"), default=options.text(of("dtype")))
    return ShardedJob(
        start.file,
        SHARDED_NAME,
        start.model,
        VERL_FSDP,
        world,
        length,
        samples,
        start.micro_batch(replicas, context, length, samples),
        cp=context,
        shards=world if shards < 0 or shards >= world else shards,
        recomputed=options.is_on(program.checkpoints),
        inputs_on_host=options.is_on(_offloading(program)),
        stored_bytes=_bytes(options, of("model_dtype")),
        compute_bytes=_TYPES.get(str(computed), 2),
        reduced_bytes=_TYPES.get(str(reduced), 4),
        stay_gathered=not options.is_on(of("reshard_after_forward"), default=True),
        moments_bytes=_moments(options, program),
        adapters=start.adapters(),
        frozen=start.frozen(),
        mlp_tiles=_mlp_tiles(options, f"{program.model[0].rpartition('.')[0]}.tiled_mlp."),
        loss_kernel=frameworks.FLASH_LOSS if program.rolls_out else None,
        open_note=note,
    )


def _moments(options: Options, program: Program) -> int | None:
    """Bytes of an optimizer's states that are no copy of the weights; None: those of torch's AdamW.

    EasyR1's ``adamw_bf16`` keeps two moments and a compensation in bf16 (hiyouga/EasyR1 b44b311b
    verl/utils/torch_functional.py:258-269, 352-361).
    """
    narrow = program is EASY_R1 and options.text(f"{program.optimizer}strategy", default="adamw") == "adamw_bf16"
    return 6 if narrow else None


def _mlp_tiles(options: Options, place: str) -> int:
    """Parts of the sequence of a dense MLP; 4 unless stated.

    Source: verl b178a3cd verl/trainer/config/model/hf_model.yaml:71-80.
    """
    return int(options.integer(f"{place}num_shards", default=4)) if options.is_on(f"{place}enabled") else 0


def _bytes(options: Options, name: str) -> int:
    written = str(options.text(name))
    if written not in _TYPES:
        raise options.error(name, "is no type that is read", written, f"use one of {', '.join(_TYPES)}")
    return _TYPES[written]


def sharded_unmodelled(start: VerlStart) -> tuple[UnmodelledFlag, ...]:
    """Options that cost and are in no figure, or that nobody knows."""
    options, program = start.options, start.program
    skipped = tuple(prefix for prefix in (program.engine,) if prefix and prefix != program.sharding)
    stated = [each for each in options.by_name.values() if each.name not in options.usual]
    given = [(each.name, each.values[0].text) for each in stated if not each.name.startswith(skipped)]
    found = unread_options(own_table(), given, start.model)
    if not options.is_on(_offloading(program)) or options.is_on(program.checkpoints):
        return found
    why = "what layers keep goes to the host; only inputs of layers that run again are counted there"
    return (*found, UnmodelledFlag(_offloading(program), "True", LESS, MORE, None, why, spares_states=True))


def _offloading(program: Program) -> str:
    return f"{program.checkpoints.rpartition('.')[0]}.enable_activation_offload"
