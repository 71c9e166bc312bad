"""Automodel's recipes, read to a `TrainingConfig`.

Sources are lines of NVIDIA-NeMo/Automodel 36044ad3; nemo_automodel is left out of their paths. FSDP, pipelining and
tensor parallel are torch's, as in torchtitan, whose record of rules is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import (
    GATHERED_RING,
    GEMM_AN_EXPERT,
    MODULE_AN_EXPERT,
    ONE_KERNEL,
    Strategy,
    TrainingRules,
)
from taylor.parsers.automodel.model import read_trained
from taylor.parsers.automodel.pipeline import Stages, stages_of
from taylor.parsers.automodel.ranks import Degrees, degrees_of, world_of
from taylor.parsers.automodel.recipe import VISION, plain, recipe_of
from taylor.parsers.automodel.start_rules import START_RULES, in_words
from taylor.parsers.automodel.trained import adapters_of, frozen_of, narrow_of, optimizer_of, type_bytes
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.policy.sharded import MODEL_CODE
from taylor.parsers.start_rules import misfits_of
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, deal_kinds, grid_in_order, zero_grid
from taylor.register.frameworks import ENGINE_LOSS
from taylor.register.model import MTP, ModelSpec
from taylor.register.trainers import AUTOMODEL

NAME = "automodel"
LOCAL, GLOBAL, RECOMPUTE = "local_batch_size", "global_batch_size", "activation_checkpointing"
FSDP2, MEGATRON_FSDP, DDP = "fsdp2", "megatron_fsdp", "ddp"
_STRATEGIES = {FSDP2: FSDP2, **dict.fromkeys((MEGATRON_FSDP, "megatron-fsdp", "mfsdp"), MEGATRON_FSDP), DDP: DDP}
"""components/distributed/config.py:463-470."""
_BY_NODE = ("deepep", "hybridep", "uccl_ep", "mok")
_EXPERT_GEMMS = {"torch": MODULE_AN_EXPERT, "te": GEMM_AN_EXPERT, "gmm": GEMM_AN_EXPERT}
"""Kernels of ``backend.experts``; torch._grouped_mm is one for all (components/models/common/utils.py:283-289)."""
UNSTATED_TOKENS = {False: 256, True: 512}
"""Tokens of a sample whose data set alone has its length, of text and with images (assumed).

They are the powers of two next to the mean of the logs of the repository's tests, which count, without padding, 183 to
221 tokens a sample of SQuAD, and 338 to 607 with an image (tests/ci_tests/golden_values, ``num_tokens_per_step``).
"""
PADDED_SAMPLES = {"HellaSwag": 160}
"""Tokens that a data set pads all its samples to: its longest, in eights (components/datasets/utils.py:600-607).

HellaSwag's are those of the repository's pipelines, whose batches have one length: examples/llm_finetune/llama3_1/
llama3_1_8b_hellaswag_pp.yaml:80; by Qwen's tokenizer they are 168 (qwen/qwen3_8b_hellaswag_pp_peft.yaml:99).
"""
_OF_DATA = ("seq_len", "seq_length", "max_length", "max_sentence_len")


@dataclass(frozen=True)
class Recipe:
    """A parsed recipe.

    Parameters
    ----------
    top : Fields
        The whole file, its words for nothing and numbers as the program takes them.
    kind : str
        Its class.
    strategy : str
        `FSDP2`, `MEGATRON_FSDP` or `DDP`.
    """

    top: Fields
    kind: str
    strategy: str
    model: ModelSpec
    degrees: Degrees
    stages: Stages
    world: int
    left_open: OpenRanks | None
    notes: tuple[str, ...]
    unmodelled: tuple[UnmodelledFlag, ...]

    @property
    def distributed(self) -> Fields:
        """The section of degrees."""
        return self.top.section("distributed")

    @property
    def local(self) -> int:
        """Samples of a data-parallel rank at once."""
        return local_of(self.top)

    @property
    def replicas(self) -> int:
        """Data-parallel ranks."""
        return max(1, self.world // (self.degrees.tp * self.degrees.cp * self.degrees.pp))

    @property
    def shards(self) -> int:
        """Ranks that states are divided over (components/distributed/mesh_utils.py:320-342)."""
        if self.strategy == DDP:
            return 1
        return max(1, self.replicas // self.degrees.replicas) * self.degrees.cp


def local_of(top: Fields) -> int:
    """Samples of a data-parallel rank at once; 1 by default (recipes/_typed_config.py:222)."""
    return int(top.section("step_scheduler").integer(LOCAL, default=1))


def samples_of(top: Fields) -> int:
    """Samples of a step; 32 by default (components/training/step_scheduler.py, ``StepSchedulerConfig``)."""
    return int(top.section("step_scheduler").integer(GLOBAL, default=32, high=2**31))


def recipe_in(source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None) -> Recipe:
    """The recipe of a parsed file.

    Parameters
    ----------
    model : ModelSpec, optional
        The model, where it is known.

    Raises
    ------
    InputError
        When it trains something else than a language model, or a value is wrong.
    """
    top = Fields(plain(source.data), source.file, asked=source.asked)
    notes: list[str] = []
    unmodelled: list[UnmodelledFlag] = []
    kind = recipe_of(top, notes)
    if model is None:
        model = read_trained(top, register_path, notes, unmodelled)
    section = top.section("distributed")
    written = str(section.raw("strategy") or FSDP2).lower()
    if written not in _STRATEGIES:
        raise section.error("strategy", "is no strategy", written[:40], f"use {FSDP2}, {MEGATRON_FSDP} or {DDP}")
    degrees = degrees_of(section)
    local, samples = local_of(top), samples_of(top)
    world, left_open = world_of(top, degrees, local, samples)
    if left_open is not None:
        notes.append(left_open.note)
    stages = stages_of(section, model.n_layers, degrees.pp, local)
    return Recipe(
        top, kind, _STRATEGIES[written], model, degrees, stages, world, left_open, tuple(notes), tuple(unmodelled)
    )


def config_from_source(
    source: YamlSource, register_path: Path | None = None, model: ModelSpec | None = None
) -> TrainingConfig:
    """The configuration of a parsed file; see `recipe_in`."""
    recipe = recipe_in(source, register_path, model)
    top, notes = recipe.top, list(recipe.notes)
    strategy = _strategy(recipe, notes)
    facts = ["@experts"] if recipe.model.moe else []
    return TrainingConfig(
        path=source.file,
        launcher=NAME,
        model=recipe.model,
        strategy=strategy,
        rules=_rules(recipe, strategy, notes),
        schedule=recipe.stages.schedule,
        plan=_plan(recipe, strategy),
        mtp_counted=False,
        recomputes_mtp=_recomputes_mtp(recipe),
        misfits=misfits_of(START_RULES, in_words(top, strategy)),
        open_ranks=recipe.left_open,
        length=_length(top),
        notes=tuple(notes),
        unmodelled=(*recipe.unmodelled, *unmodelled_keys(table(), _given(top), facts), MODEL_CODE),
    )


def table() -> FlagTable:
    """Meaning of every key."""
    return load_flag_table("taylor.parsers.automodel", "options.yaml")


def _given(top: Fields) -> dict[str, Any]:
    """The file's keys without anchors of its own (``_name: &name``), which the recipe never asks for."""
    return {name: value for name, value in top.data.items() if not name.startswith("_")}


def _strategy(recipe: Recipe, notes: list[str]) -> Strategy:
    degrees, stages, dp = recipe.degrees, recipe.stages, recipe.replicas
    rounds = max(1, samples_of(recipe.top) // (recipe.local * dp))
    micro = recipe.local // stages.mbs * rounds
    if degrees.pp > 1 and rounds > 1:
        notes.append(f"{rounds} accumulated batches are taken as one pipeline of {micro} micro-batches")
    return Strategy(
        dp=dp,
        tp=degrees.tp,
        pp=degrees.pp,
        ep=degrees.ep,
        cp=degrees.cp,
        op=recipe.shards,
        sp=recipe.distributed.raw("sequence_parallel") is True and degrees.tp > 1,
        vpp=len(stages.sizes) // degrees.pp,
        mbs=stages.mbs,
        micro_batches=micro,
    )


def tokens_of(top: Fields, kind: str, notes: list[str]) -> int:
    """Tokens of a sample: a pack's, else the data set's, else those that a batch is padded to."""
    packed = top.section("packed_sequence")
    dataset = top.section("dataset")
    collated = top.section("dataloader").raw("collate_fn")
    beside = Fields(collated, top.file, "dataloader.collate_fn") if isinstance(collated, dict) else Fields({}, top.file)
    for section, names in (
        (packed, ("packed_sequence_size", "pack_size")),
        (dataset, _OF_DATA),
        (packed, ("max_length",)),
        (beside, ("max_length",)),
    ):
        for name in names:
            tokens = section.integer(name, default=0, low=0, high=MAX_SIZE)
            if tokens:
                return int(tokens)
    name = str(dataset.raw("_target_") or "").rpartition(".")[2]
    tokens = PADDED_SAMPLES.get(name, UNSTATED_TOKENS[kind == VISION])
    each = int(beside.integer("pad_seq_len_divisible", default=1, high=MAX_SIZE))
    tokens = -(-tokens // each) * each  # components/datasets/utils.py:70
    notes.append(
        f"the data set has the length of its samples, which the file does not state: {tokens} tokens are assumed"
    )
    return tokens


def _rules(recipe: Recipe, strategy: Strategy, notes: list[str]) -> TrainingRules:
    top, model, section = recipe.top, recipe.model, recipe.distributed
    backend, policy = top.section("model").section("backend"), section.section("mp_policy")
    # from_config stores bf16 and from_pretrained the checkpoint's type, which is bf16 (_transformers/auto_model.py:846,
    # model_init.py:940).
    stored = type_bytes(top.section("model"), "torch_dtype", type_bytes(top.section("model"), "dtype", 2))
    computed = type_bytes(policy, "param_dtype", 2)
    sharded = strategy.op > 1
    narrow = narrow_of(top, model)
    dispatcher = str(backend.raw("dispatcher") or "")
    return TrainingRules(
        framework=AUTOMODEL,
        seq_length=tokens_of(top, recipe.kind, notes),
        parallel_optimizer=sharded,
        gradient_shard=sharded,
        parameter_shard=sharded,
        param_bytes=stored,
        compute_bytes=computed,
        optimizer=optimizer_of(top, stored),
        flash_attention=str(backend.raw("attn") or top.section("model").raw("attn_implementation")) != "eager",
        stay_gathered=sharded and _stays_gathered(recipe),
        whole_ends=sharded,
        accumulates_whole=sharded and section.raw("defer_fsdp_grad_sync") is not False,
        separate_pools=sharded,
        wide_residual=True if str(policy.raw("output_dtype")) == "float32" else None,
        expert_tensor_parallel=False,
        expert_gemms=_EXPERT_GEMMS.get(str(backend.raw("experts")), ONE_KERNEL),
        dispatch_by_node=dispatcher in _BY_NODE,
        gathers_tokens=dispatcher == "torch" and model.moe is not None and strategy.ep > 1,
        engine_layers=backend.raw("linear") == "te",
        ulysses_degree=1,
        ring=GATHERED_RING,
        compiled=_fuses(recipe),
        loss_chunks=_loss_chunks(recipe),
        loss_kernel=ENGINE_LOSS if _loss(top) == "TEParallelCrossEntropy" else None,
        narrow=narrow.recipe,
        narrow_experts=narrow.experts,
        narrow_gather=sharded and narrow.gather,
        adapters=adapters_of(top, model, stored),
        frozen=frozen_of(top, recipe.kind, model, notes),
    )


def _stays_gathered(recipe: Recipe) -> bool:
    """Weights stay gathered between forward and backward, by default where experts are parallel.

    Source: components/distributed/config.py:179, parallelizer.py:1271-1280; _transformers/infrastructure.py:404-417.
    """
    section = recipe.distributed
    stated = section.raw("reshard_after_forward")
    if stated is None and recipe.degrees.ep > 1:
        stated = section.section("moe").raw("reshard_after_forward") is True
    return stated is False


def _fuses(recipe: Recipe) -> bool:
    """Element-wise operations are fused: by torch.compile, by liger's kernels, which models of transformers get by
    default (_transformers/auto_model.py:645), or by the kernels of the own layers (components/models/common/utils.py:
    293-310: ``torch_fp32`` is compiled)."""
    top = recipe.top
    if top.section("compile").raw("enabled") is True or recipe.distributed.raw("enable_compile") is True:
        return True
    backend = top.section("model").section("backend")
    if backend.data:
        return backend.raw("rms_norm") != "torch"
    return top.section("model").raw("use_liger_kernel") is not False


def _loss(top: Fields) -> str:
    return str(top.section("loss_fn").raw("_target_") or "").rpartition(".")[2]


def _loss_chunks(recipe: Recipe) -> int:
    """Pieces of logits and loss, as many as make a piece's logits no more than the hidden states (cut cross entropy).

    In a pipeline the whole loss takes its place (recipes/llm/train_ft.py:150-166).
    """
    if _loss(recipe.top) != "FusedLinearCrossEntropy" or recipe.degrees.pp > 1:
        return 1
    return max(1, -(-recipe.model.vocab // recipe.model.hidden))


def recompute_of(recipe: Recipe) -> str | None:
    """The mode in which every layer runs again; None: none does.

    Megatron-FSDP runs none again, whatever the file says (components/distributed/megatron_fsdp.py:108).

    Raises
    ------
    InputError
        When it is no mode (recipes/_dist_utils.py:52-69).
    """
    written = recipe.distributed.raw(RECOMPUTE)
    word = str(written).lower().replace("-", "_")
    if written is None or word in ("false", "off", "none", "disabled", "no") or recipe.strategy == MEGATRON_FSDP:
        return None
    if word in ("true", "on", "full", "enabled", "yes"):
        return FULL
    if word == "selective":
        return SELECT
    raise recipe.distributed.error(RECOMPUTE, "must be true, false, full or selective", word[:40])


def _plan(recipe: Recipe, strategy: Strategy) -> PipelinePlan:
    stages = recipe.stages
    counts = recipe.model.layer_counts()
    pinned = {MTP: len(stages.sizes) - 1} if MTP in counts else {}
    layers = deal_kinds(counts, list(stages.sizes), strategy.pp, stages.schedule.v_shape, pinned)
    modes: dict[str, Grid] = {FULL: zero_grid(strategy.pp, strategy.vpp)}
    mode = recompute_of(recipe)
    if mode is not None:
        modes[mode] = grid_in_order(list(stages.sizes), strategy.pp, stages.schedule.v_shape)
    return PipelinePlan(layers, modes)


def _recomputes_mtp(recipe: Recipe) -> bool:
    """MTP modules run again too, unless one module stands for several (components/moe/parallelizer.py:565-596)."""
    once = recipe.top.section("model").raw("mtp_use_repeated_layer") is not True
    return recipe.model.mtp_layers > 0 and once and recompute_of(recipe) == FULL


def _length(top: Fields) -> TrainingLength:
    steps = top.section("step_scheduler").raw("max_steps")
    return TrainingLength(steps=steps) if type(steps) is int and 0 < steps <= MAX_SIZE else UNSTATED
