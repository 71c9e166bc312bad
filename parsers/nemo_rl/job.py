"""A NeMo RL YAML as a launch by Megatron's flags, or as a training on DTensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.frozen import frozen_vision
from taylor.parsers.megatron.named_sizes import flag
from taylor.parsers.named_model import named_model
from taylor.parsers.nemo_rl.experiment import RlExperiment, parts_of
from taylor.parsers.policy.adapters import adapters_of
from taylor.parsers.policy.fields import CLASS_DEFAULTS, GRANULARITY
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
from taylor.parsers.policy.options import Options, option
from taylor.parsers.policy.sharded import ShardedJob
from taylor.parsers.text.fields import MAX_SIZE
from taylor.parsers.text.flag_edit import Setting
from taylor.parsers.text.flags import Flag
from taylor.register.adapters import ALL_HUGGING_FACE, ALL_MEGATRON, DOWN, GATE, ROUTERS, UP, Adapters
from taylor.register.model import ModelSpec
from taylor.register.trainers import NEMO_DTENSOR

NAME, SHARDED_NAME = "nemo_rl", "nemo_rl-dtensor"
POLICY, MEGATRON, DTENSOR = "policy.", "policy.megatron_cfg.", "policy.dtensor_cfg."
OVERRIDES = f"{MEGATRON}model_overrides."
_BRIDGE_DEFAULTS = {**CLASS_DEFAULTS, "moe_grouped_gemm": "true"}
"""Fields that Megatron-Bridge's providers set (NVIDIA-NeMo/Megatron-Bridge 067f987d src/megatron/bridge/models)."""
_PAIRS = ("dpo", "rm")
"""Algorithms whose samples are pairs of answers, each of which counts (NVIDIA-NeMo/RL 7ea279ab
nemo_rl/algorithms/dpo.py:602, rm.py:542)."""
_FIELDS = (
    "tensor_model_parallel_size",
    "expert_tensor_parallel_size",
    "expert_model_parallel_size",
    "pipeline_model_parallel_size",
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "context_parallel_size",
    "moe_router_dtype",
    "moe_router_load_balancing_type",
    "moe_permute_fusion",
    "moe_enable_deepep",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_shared_expert_overlap",
    "moe_grouped_gemm",
    "apply_rope_fusion",
    "gradient_accumulation_fusion",
    "attention_backend",
    "transformer_impl",
    "cuda_graph_impl",
    "cuda_graph_modules",
    "fine_grained_activation_offloading",
    "offload_modules",
)
"""Options of ``megatron_cfg`` that are fields of Megatron's classes (nemo_rl/models/megatron/setup.py:858-1209)."""
_REPLICA = ("tensor_model", "pipeline_model", "context")
_RECOMPUTE = (GRANULARITY, "recompute_method", "recompute_num_layers", "recompute_modules")
_ELSEWHERE = {
    "sequence_parallel": f"{MEGATRON}sequence_parallel",
    "use_distributed_optimizer": f"{MEGATRON}optimizer.use_distributed_optimizer",
    **{name: f"{MEGATRON}{name}" for name in (*_FIELDS, GRANULARITY, "recompute_modules")},
}
_TYPES = {"float32": 4, "bfloat16": 2, "float16": 2}


class RlStart:
    """What a file says of its policy, whatever trains it.

    Raises
    ------
    InputError
        When it names no model, trains adapters, or a size is missing or wrong.
    """

    def __init__(
        self, experiment: RlExperiment, register_path: Path | None = None, model: ModelSpec | None = None
    ) -> None:
        self.experiment, self.options = experiment, experiment.options()
        self.notes = [TRAINING_HALF]
        self._refuse()
        self.model = model if model is not None else self._named(register_path)
        self.length = int(self.options.integer(f"{POLICY}max_total_sequence_length", high=MAX_SIZE))
        self.each = 2 if any(name in experiment.data for name in _PAIRS) else 1
        if self.each > 1:
            self.notes.append("a sample is a pair of answers, each of which is counted")
        self.notes.append(f"samples are as long as they can be: {self.length} tokens")

    @property
    def file(self) -> Path:
        """The file that was named."""
        return self.experiment.file

    @property
    def by_megatron(self) -> bool:
        """Megatron Core trains the policy."""
        return self.options.is_on(f"{MEGATRON}enabled")

    def adapters(self) -> Adapters | None:
        """Adapters that train alone: Megatron-Bridge's, or Automodel's beside weights that FSDP stores in fp32.

        Without a name of a module, Megatron-Bridge's lie beside every linear module of a layer but the routed experts,
        which run in grouped GEMMs. The head's own is not counted.
        Source: NeMo RL 7ea279ab nemo_rl/models/megatron/setup.py:1772-1791; nemo_rl/models/automodel/setup.py:664-673;
        Megatron-Bridge 067f987d src/megatron/bridge/peft/module_matcher.py:147-163; Automodel 24b47e85, which that
        NeMo RL pins, nemo_automodel/components/_peft/lora.py:545-548 (no DoRA for experts).
        """
        options = self.options
        if self.by_megatron:
            place = f"{MEGATRON}peft."
            if not options.is_on(f"{place}enabled"):
                return None
            usual, everything, base = ALL_MEGATRON, ALL_MEGATRON, None
        else:
            place = f"{DTENSOR}lora_cfg."
            if not options.is_on(f"{place}enabled"):
                return None
            usual, everything, base = ALL_HUGGING_FACE, ALL_HUGGING_FACE, 4.0
        whole = not self.by_megatron and options.is_on(f"{place}match_all_linear")
        found = adapters_of(
            options,
            rank=f"{place}dim",
            targets="" if whole else f"{place}target_modules",
            usual=usual,
            everything=everything,
            excluded=f"{place}exclude_modules",
            dropout=f"{place}dropout",
            base_bytes=base,
            gathers=self.by_megatron,
            usual_beside_experts=not self.by_megatron,
            decomposed="" if self.by_megatron else f"{place}use_dora",
        )
        if found.decomposed and self.model.moe is not None and found.reaches(GATE, UP, DOWN):
            problem = "is refused by Automodel beside experts"
            raise options.error(f"{place}use_dora", problem, cure="write false, or name modules of attention alone")
        return found

    def frozen(self) -> tuple[str, ...]:
        """Routers and a vision part that Megatron's setup freezes (`TrainingRules.frozen`).

        Source: NeMo RL 7ea279ab nemo_rl/models/megatron/setup.py:1715-1742 (``freeze_moe_router``), 1744-1770
        (``freeze_config``), community_import.py:35-44 (``freeze_vision_model``, of Nemotron Omni).
        """
        options = self.options
        names = ("freeze_config.freeze_vision_model", "freeze_vision_model")
        vision = frozen_vision(
            self.model, self.notes, freezes=any(options.is_on(f"{MEGATRON}{name}") for name in names)
        )
        routers = self.model.moe is not None and options.is_on(f"{MEGATRON}freeze_moe_router")
        return (*vision, *((ROUTERS,) if routers else ()))

    def _refuse(self) -> None:
        options = self.options
        if not self.by_megatron and not options.is_on(f"{DTENSOR}enabled", default=True):
            problem = "is off, and dtensor_cfg.enabled too: nothing trains the policy"
            raise options.error(f"{MEGATRON}enabled", problem, cure="switch one of them on")
        for name in ("freeze_config.freeze_language_model", "freeze_language_model"):
            if self.by_megatron and options.is_on(f"{MEGATRON}{name}"):
                raise options.error(
                    f"{MEGATRON}{name}", "trains the other parts alone, and only language models are planned"
                )
        if options.has(f"{POLICY}quant_cfg"):
            problem = "trains through simulated quantization, which is not modelled"
            raise options.error(f"{POLICY}quant_cfg", problem, options.text(f"{POLICY}quant_cfg"), "leave it out")

    def _named(self, register_path: Path | None) -> ModelSpec:
        key = f"{POLICY}model_name"
        model, remarks = named_model(str(self.options.text(key)), self.file, key, register_path)
        self.notes += remarks
        depth = self.options.integer(f"{MEGATRON}mtp_num_layers", default=0, low=0, high=16) if self.by_megatron else 0
        if depth and not model.mtp_layers:
            problem = f"asks for MTP layers, which {model.name} does not have"
            raise self.options.error(f"{MEGATRON}mtp_num_layers", problem, depth)
        return model if depth == model.mtp_layers else model.replace(mtp_layers=depth)

    def samples(self) -> int:
        """Samples of one step of the optimizer."""
        return int(self.options.integer(f"{POLICY}train_global_batch_size", high=2**31)) * self.each

    def micro_batch(self, replicas: int) -> int:
        """Samples of a rank's micro-batch; a packed one has as many tokens as that many of the longest."""
        options = self.options
        count = int(options.integer(f"{POLICY}train_micro_batch_size")) * self.each
        for name in ("sequence_packing", "dynamic_batching"):
            if options.is_on(f"{POLICY}{name}.enabled"):
                tokens = options.integer(f"{POLICY}{name}.train_mb_tokens", default=count * self.length, high=MAX_SIZE)
                count = packed_samples(tokens, self.length, max(1, self.samples() // replicas))
                self.notes.append(
                    f"micro-batches are packed up to {tokens} tokens: {count} sample(s) of {self.length} are taken"
                )
                break
        return count

    def ranks(self) -> tuple[int, int]:
        """Ranks a node and nodes of the policy: the cluster's without those of roll-outs, rewards and teachers.

        Source: NVIDIA-NeMo/RL 7ea279ab nemo_rl/algorithms/grpo.py:758-914, nemo_rl/models/policy/
        teacher_worker_group.py:59-108.

        Raises
        ------
        InputError
            When nothing remains for the policy.
        """
        options = self.options
        each, nodes = options.integer("cluster.gpus_per_node"), options.integer("cluster.num_nodes", default=1)
        whole = nodes
        if nodes > 1:
            nodes -= self._of_rewards("num_nodes")
        else:
            each -= self._of_rewards("gpus_per_node")
        nodes -= self._teacher_nodes()
        generation = f"{POLICY}generation.colocated."
        rolls_out = any(name in self.experiment.data for name in ("grpo", "ppo", "distillation"))
        if rolls_out and not options.is_on(f"{generation}enabled", default=True):
            taken = options.integer(f"{generation}resources.gpus_per_node", default=None)
            if nodes == 1:
                each -= taken or 0
            else:
                nodes -= options.integer(f"{generation}resources.num_nodes", default=0)
            self.notes.append(
                f"roll-outs have ranks of their own: {each} x {nodes} of {whole} node(s) train the policy"
            )
        if each < 1 or nodes < 1:
            cure = "raise cluster.num_nodes, or give the roll-outs fewer"
            raise options.error("cluster.num_nodes", "leaves no ranks for the policy", whole, cure)
        return int(each), int(nodes)

    def _of_rewards(self, name: str) -> int:
        """What a reward model takes of the cluster; GRPO's data name its environment (grpo.py:729)."""
        uses = "grpo" in self.experiment.data and any(
            name.startswith("data.") and name.endswith(".env_name") and each.values[0].text == "reward_model"
            for name, each in self.options.by_name.items()
        )
        return int(self.options.integer(f"env.reward_model.resources.{name}", default=0)) if uses else 0

    def _teacher_nodes(self) -> int:
        """Nodes of teachers beside the policy, one group a checkpoint."""
        prefix = "on_policy_distillation."
        if not self.options.is_on(f"{prefix}non_colocated_teachers.enabled"):
            return 0
        models: dict[str, str] = {}
        for section in parts_of(self.experiment.data, "on_policy_distillation"):
            for teachers in parts_of(section, "teacher_model_by_agent_name"):
                for alias in teachers:
                    stated = self.options.text(f"{prefix}teacher_model_by_agent_name.{alias}", default=str(alias))
                    models.setdefault(str(stated), str(alias))
        usual = self.options.integer(f"{prefix}non_colocated_teachers.default_teacher_cfg.num_nodes", default=1)
        below = f"{prefix}non_colocated_teachers.teacher_overrides."
        return sum(int(self.options.integer(f"{below}{alias}.num_nodes", default=usual)) for alias in models.values())


class RlMegatronJob(PolicyJob):
    """A file whose policy Megatron Core trains; see `PolicyJob`."""

    launcher = NAME

    def __init__(self, start: RlStart) -> None:
        self._start, self.options, self.adapters = start, start.options, start.adapters()
        self.file, self.text = start.file, start.experiment.source.text
        if not start.by_megatron:
            raise start.options.error(f"{MEGATRON}enabled", "is off: the policy is trained on DTensors", "false")
        self.places = Places(
            keys={
                SAMPLES: f"{POLICY}train_global_batch_size",
                MICRO_BATCH: f"{POLICY}train_micro_batch_size",
                LENGTH: f"{POLICY}max_total_sequence_length",
                PER_NODE: "cluster.gpus_per_node",
                NODES: "cluster.num_nodes",
            },
            fields=_ELSEWHERE,
            overrides=OVERRIDES,
            samples_each=start.each,
            micro_batch_each=start.each,
        )
        per_node, nodes = start.ranks()
        ranks = (flag(PER_NODE, str(per_node)), flag(NODES, str(nodes)))
        replica = math.prod(start.options.integer(f"{MEGATRON}{name}_parallel_size", default=1) for name in _REPLICA)
        replicas = max(1, per_node * nodes // replica)
        sizes = Sizes(start.length, start.samples(), start.micro_batch(replicas), ranks)
        self._shared = (per_node, nodes) != (
            start.options.integer("cluster.gpus_per_node"),
            start.options.integer("cluster.num_nodes", default=1),
        )
        precision = str(start.options.text(f"{POLICY}precision", default="bfloat16"))
        half = {"bfloat16": "bf16", "float16": "fp16"}.get(precision, "")
        self.state(start.model, self._fields(), sizes, usual_flags(half, start.model))
        self.frozen = start.frozen()
        self.notes = tuple(start.notes)

    def _fields(self) -> dict[str, Flag]:
        """Fields of Megatron's classes (nemo_rl/models/megatron/setup.py:858-1209, 1363-1445)."""
        options = self.options
        fields = {name: option(name, value) for name, value in _BRIDGE_DEFAULTS.items()}
        fields |= options.below(OVERRIDES)
        stated = options.below(MEGATRON)
        fields |= {name: stated[name] for name in _FIELDS if name in stated}
        if options.is_on(f"{MEGATRON}sequence_parallel"):
            fields["sequence_parallel"] = option("sequence_parallel", "true")
        fields |= {name: each for name, each in options.below(f"{MEGATRON}optimizer.").items() if name not in _HALVES}
        fields |= options.below(f"{MEGATRON}distributed_data_parallel_config.")
        if options.is_on(f"{MEGATRON}fp8_cfg.enabled"):
            fp8 = options.below(f"{MEGATRON}fp8_cfg.")
            fields |= {name: each for name, each in fp8.items() if name != "enabled"}
        for name in _RECOMPUTE:
            fields.pop(name, None)
        fields |= _recompute(options)
        return fields

    def edited(self, wanted: Mapping[str, object]) -> RlMegatronJob:
        """See `PolicyJob.edited`."""
        if self._shared and {"cluster.gpus_per_node", "cluster.num_nodes"} & set(wanted):
            cure = "plan on the ranks that the file gives the policy"
            raise self.flags.error(NODES, "counts ranks of roll-outs, rewards or teachers too", cure=cure)
        return RlMegatronJob(RlStart(self._start.experiment.edited(wanted), model=self.model))

    def edits(self, missing: Mapping[str, Setting], wanted: Mapping[str, Setting]) -> dict[str, object]:
        """See `PolicyJob.edits`; recompute is one switch and its granularity (setting.py:1071-1085)."""
        names = ("recompute-granularity", "recompute-method", "recompute-num-layers")
        edits = super().edits({name: to for name, to in missing.items() if name not in names}, wanted)
        if any(name in missing for name in names):
            to = wanted.get("recompute-granularity", False)
            on = to is not False
            if self.options.is_on(f"{MEGATRON}activation_checkpointing") != on:
                edits[f"{MEGATRON}activation_checkpointing"] = on
            if on and self.options.text(f"{MEGATRON}{GRANULARITY}", default="full") != to:
                edits[f"{MEGATRON}{GRANULARITY}"] = to
        return edits

    def own_table(self) -> FlagTable:
        """See `PolicyJob.own_table`."""
        return own_table()

    def _is_flag(self, each: Flag) -> bool:
        return super()._is_flag(each) or each.name.startswith((*_FLAG_SECTIONS, DTENSOR))


_HALVES = ("bf16", "fp16", "params_dtype", "lr", "min_lr", "weight_decay", "clip_grad")
_FLAG_SECTIONS = (f"{MEGATRON}optimizer.", f"{MEGATRON}distributed_data_parallel_config.")


def _recompute(options: Options) -> dict[str, Flag]:
    """Recompute: whole layers one by one, or modules (nemo_rl/models/megatron/setup.py:1071-1085)."""
    if not options.is_on(f"{MEGATRON}activation_checkpointing"):
        return {}
    granularity = str(options.text(f"{MEGATRON}{GRANULARITY}", default="full"))
    if granularity not in ("full", "selective"):
        raise options.error(f"{MEGATRON}{GRANULARITY}", "must be full or selective", granularity)
    found = {GRANULARITY: option(GRANULARITY, granularity)}
    if granularity == "full":
        return found | {
            "recompute_method": option("recompute_method", "uniform"),
            "recompute_num_layers": option("recompute_num_layers", "1"),
        }
    modules = options.by_name.get(f"{MEGATRON}recompute_modules")
    return found if modules is None else found | {"recompute_modules": modules}


def own_table() -> FlagTable:
    """The table of NeMo RL's options."""
    return load_flag_table("taylor.parsers.nemo_rl", "options.yaml")


def sharded_job(start: RlStart) -> ShardedJob:
    """The training of a file's policy on DTensors.

    Source: NVIDIA-NeMo/RL 7ea279ab nemo_rl/models/automodel/setup.py:330 (weights in fp32), 463-520 (meshes), 485-490
    (types, recompute).
    """
    options = start.options
    tp, cp, ep, replicas = (
        options.integer(f"{DTENSOR}{name}", default=1)
        for name in ("tensor_parallel_size", "context_parallel_size", "expert_parallel_size", "dp_replicate_size")
    )
    per_node, nodes = start.ranks()
    world = per_node * nodes
    precision = str(options.text(f"{POLICY}precision", default="bfloat16"))
    if precision not in _TYPES:
        raise options.error(
            f"{POLICY}precision", "is no type that is read", precision, f"use one of {', '.join(_TYPES)}"
        )
    return ShardedJob(
        start.file,
        SHARDED_NAME,
        start.model,
        NEMO_DTENSOR,
        world,
        start.length,
        start.samples(),
        start.micro_batch(max(1, world // (tp * cp))),
        tp=int(tp),
        cp=int(cp),
        ep=int(ep),
        shards=max(1, world // int(tp) // int(replicas)),
        ulysses=False,
        sequence=options.is_on(f"{DTENSOR}sequence_parallel"),
        recomputed=options.is_on(f"{DTENSOR}activation_checkpointing"),
        compute_bytes=_TYPES[precision],
        adapters=start.adapters(),
    )


def sharded_unmodelled(start: RlStart) -> tuple[UnmodelledFlag, ...]:
    """Options that cost and are in no figure, or that nobody knows."""
    given = [(each.name, each.values[0].text) for each in start.options.by_name.values()]
    return unread_options(own_table(), [pair for pair in given if not pair[0].startswith(MEGATRON)], start.model)
