"""MindFormers training files, legacy and mcore style, read to a `TrainingConfig`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.choices.module_choices import words_of
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.flag_table import load_flag_table
from taylor.parsers.mindformers.model import read_model, read_mtp_depth
from taylor.parsers.mindformers.model_section import model_section, note_defaults
from taylor.parsers.mindformers.modules import Module, counts_by_word, modules_of, plan_by_module
from taylor.parsers.mindformers.plan import PlanProblem, read_plan, recompute_counts
from taylor.parsers.mindformers.speed_up import with_speed_up
from taylor.parsers.mindformers.swap import read_swap
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.units import memory_mib
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import Misfit, MovedModules, TrainingConfig
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import Grid, PipelinePlan
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import MTP, ModelSpec

NAME = "mindformers"
_NO_LIMIT_MIB = 1024 * 1024
"""MindSpore's default of ``max_device_memory``, 1024GB: the file states no limit."""
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_DROPOUTS = tuple(f"{place}_dropout{suffix}" for place in ("hidden", "attention") for suffix in ("_rate", "", "_prob"))
_SCHEDULERS = ("1f1b", "gpipe", "seqpipe", "seqvpp", "seqsmartvpp", "zero_bubble_v")


def config_from_source(source: YamlSource) -> TrainingConfig:
    """Read a parsed MindFormers file.

    Raises
    ------
    InputError
        When it is none, or a value that matters is missing or wrong.
    """
    path = source.file
    top = Fields(source.data, path, asked=source.asked)
    if not any(top.has(name) for name in ("model", "parallel_config", "parallel", "pretrained_model_dir")):
        raise InputError(
            "is no known training file: it has neither model nor parallel_config, as MindFormers' have, and no mark of "
            "another tool's",
            file=path,
            cure="give the training YAML itself",
        )
    _require_training(top)
    notes: list[str] = []
    if not top.has("parallel_config"):
        notes.append("parallel_config is missing: one rank is assumed")
    section, moe, mcore = model_section(top, notes)
    model = read_model(section, moe, mcore=mcore, name=_model_name(top, section, path))
    mtp_counted = read_mtp_depth(section)[1] or not mcore
    schedule, interleaves = _read_schedule(top, section, notes)
    strategy = _read_strategy(top, interleaves, notes)
    layers = model.n_layers + (model.mtp_layers if mtp_counted else 0)
    if layers < strategy.pp * strategy.vpp:
        raise top.section("parallel_config").error(
            "pipeline_stage",
            f"asks for {strategy.pp * strategy.vpp} chunks and the model has {layers} layers",
            strategy.pp,
            "lower pipeline_stage or pp_interleave_num",
        )
    plan = _read_plan(top, section, model, strategy, schedule, mtp_counted, notes)
    rules = _read_rules(top, section, moe if model.moe else None, mcore, notes)
    rules = rules.replace(wide_residual=_wide_residual(section, model))
    counts = {} if plan is None else _read_modules(top, plan, modules_of(section, mcore=mcore), schedule, mtp_counted)
    if counts:
        words = modules_of(section, mcore=mcore)
        parts = tuple(dict.fromkeys(part for word in counts for part in words[word].parts))
        rules = rules.replace(selective=None if parts == rules.framework.activations.selective else parts)
    note_defaults((section, moe) if moe is not section else (section,), notes)
    swap = None if plan is None else read_swap(source.data, layers, modules_of(section, mcore=mcore))
    by_module = None
    if plan is not None:
        # What usually runs again has its price as selective recompute; with experts that is not counted by module.
        usual = () if model.moe else ("activation",)
        on_host = None if swap is None else _by_chunk(swap.words, plan, schedule, mtp_counted)
        by_module = plan_by_module(plan, counts, usual, on_host)
    moves = set() if by_module is None else {word for mode in by_module.modes for word in words_of(mode)[1]}
    moved = MovedModules(tuple(sorted(moves)), swap.keys) if moves and swap is not None else None
    table = load_flag_table("taylor.parsers.mindformers", "keys.yaml")
    misfit = _misfit_mask(section, rules) or _misfit_recompute(top, schedule, mcore)
    return TrainingConfig(
        path=path,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=rules,
        schedule=schedule,
        plan=plan,
        by_module=by_module,
        moved=moved,
        device_limit_mib=_read_device_limit(top),
        mtp_counted=mtp_counted,
        misfits=() if misfit is None else (misfit,),
        batch_follows_ranks=True,
        notes=tuple(notes),
        unmodelled=unmodelled_keys(
            table,
            with_speed_up(source.data, path),
            _facts(top, section, model, strategy, rules),
            without=("moe_config",) if mcore else (),
        ),
    )


_MODES = ("train", "finetune")


def _require_training(top: Fields) -> None:
    """Refuse a file that runs no training step: v1.5.0 run_mindformer.py:71-77 and :270."""
    mode = top.raw("run_mode")
    if mode is not None and mode not in _MODES:
        cure = f"give the file that trains, or set run_mode to {' or '.join(_MODES)}"
        raise top.error("run_mode", "is no training job: no training step is run", mode, cure)


def _facts(top: Fields, section: Fields, model: ModelSpec, strategy: Strategy, rules: TrainingRules) -> tuple[str, ...]:
    """Names that the table of keys may use under ``needs``."""
    recompute = top.raw("recompute_config")
    whole = isinstance(recompute, dict) and recompute.get("recompute") is True
    facts = {
        "@experts": model.moe,
        "@scores": not rules.flash_attention,
        "@tensor-parallel": strategy.tp > 1,
        "@copied-outputs": whole and strategy.tp > 1 and not strategy.sp,
        "@chatglm": str(section.raw("type")).startswith("ChatGLM"),
    }
    return tuple(name for name, present in facts.items() if present)


def swap_is_on(top: Fields) -> bool:
    """Return whether recompute lists are layer indices (``swap_config.swap``, or ``swap`` under recompute)."""
    recompute = top.raw("recompute_config")
    inside = top.section("recompute_config").raw("swap") if isinstance(recompute, dict) else None
    return inside is True or top.section("swap_config").boolean("swap", default=False)


def offset_section(top: Fields) -> tuple[str, ...]:
    """Place of the offset in the file: under the model, or (seen in mcore files) under parallel_config."""
    if top.section("model").section("model_config").raw("offset") is None and (
        top.section("parallel_config").raw("offset") is not None
    ):
        return ("parallel_config", "offset")
    return ("model", "model_config", "offset")


def _model_name(top: Fields, section: Fields, path: Path) -> str:
    name = top.section("trainer").raw("model_name") or section.raw("model_type") or path.stem
    return str(name)


def _read_schedule(top: Fields, section: Fields, notes: list[str]) -> tuple[ScheduleSpec, int]:
    pipeline = top.section("parallel").section("pipeline_config")
    name = str(pipeline.text("pipeline_scheduler", default="1f1b")).lower()
    if name not in _SCHEDULERS:
        raise pipeline.error("pipeline_scheduler", "is not a known schedule", name, f"use {', '.join(_SCHEDULERS)}")
    interleaved = pipeline.boolean("pipeline_interleave", default=False)
    interleaves = section.integer("pp_interleave_num", default=1, high=1024)
    if interleaves > 1 and not interleaved:
        notes.append("pp_interleave_num does not count: parallel.pipeline_config.pipeline_interleave is off")
        interleaves = 1
    spec = ScheduleSpec(name)
    fixed = spec.traits.fixed_interleaves
    if name != PLAIN and fixed not in (None, interleaves):
        raise section.error(
            "pp_interleave_num",
            f"must be {fixed} for {name}",
            interleaves,
            f"set it to {fixed} and pipeline_interleave to True",
        )
    if spec.traits.sequence_splits:
        splits = top.section("parallel_config").integer("seq_split_num", default=None, high=4096)
        if splits is None:
            splits = pipeline.integer("seq_split_num", default=1, high=4096)
        return ScheduleSpec(name, seq_splits=splits), interleaves
    return spec.for_interleaves(interleaves, frameworks.MINDFORMERS), interleaves


def _read_strategy(top: Fields, interleaves: int, notes: list[str]) -> Strategy:
    degrees, runner = top.section("parallel_config"), top.section("runner_config")
    dp, cp = degrees.integer("data_parallel", default=1), degrees.integer("context_parallel", default=1)
    pp = degrees.integer("pipeline_stage", default=1, high=4096)
    micro = degrees.integer("micro_batch_num", default=1)
    if pp == 1:
        if micro > 1:
            notes.append("micro_batch_num does not count with one stage: gradient_accumulation_steps does")
        micro = runner.integer("gradient_accumulation_steps", default=1)
    if pp > 1 and micro < pp:
        notes.append(f"micro_batch_num {micro} is below pipeline_stage {pp}: older releases of MindSpore refuse that")
    parallel = top.section("parallel")
    sharding = parallel.section("parallel_optimizer_config")
    op = 1
    if parallel.boolean("enable_parallel_optimizer", default=False):
        shard = sharding.integer("optimizer_weight_shard_size", default=-1, low=-1)
        op = dp * cp if shard < 1 else min(shard, dp * cp)
    # MindFormers multiplies runner_config.batch_size by dp, micro_batch_num and micro_batch_interleave_num, and
    # lets it override the data set's. The interleaved parts of a micro-batch are in memory together, so they are
    # one micro-batch here. model_config.batch_size only shapes inference («add for increase predict»), so it
    # counts only where the runner has none.
    model_batch = top.section("model").section("model_config").integer("batch_size", default=1)
    batch = runner.integer("batch_size", default=model_batch) * _micro_batch_interleave(top)
    return Strategy(
        dp=dp,
        tp=degrees.integer("model_parallel", default=1),
        pp=pp,
        ep=degrees.integer("expert_parallel", default=1),
        cp=cp,
        op=op,
        sp=degrees.boolean("use_seq_parallel", default=False),
        vpp=interleaves,
        mbs=batch,
        micro_batches=micro,
    )


def _micro_batch_interleave(top: Fields) -> int:
    parts: int = top.integer("micro_batch_interleave_num", default=1)
    return parts


_COMPRESSED_MASK = 2048
"""Rows of a compressed causal mask."""


def _misfit_mask(section: Fields, rules: TrainingRules) -> Misfit | None:
    """A sequence shorter than the compressed mask.

    No check bounds a sequence from above: rotary positions are made for the longer of ``max_position_embedding`` and
    the sequence (r1.5.0 mindformers/modules/layers.py:1190).
    """
    for name in ("use_attn_mask_compression", "use_eod_attn_mask_compression"):
        if section.boolean(name, default=False) and rules.seq_length < _COMPRESSED_MASK:
            return Misfit(
                "model.model_config.seq_length",
                rules.seq_length,
                f"is below {_COMPRESSED_MASK}, the size of the mask that {name} compresses to",
                f"write {_COMPRESSED_MASK} or more, or {name}: False",
                "compressed-mask-in-sequence",
                "MindFormers r1.5.0 mindformers/modules/transformer/transformer.py:1257 (1.3 to master; "
                "mindformers/parallel_core/training_graph/transformer/mask_generate.py:64)",
                any_strategy=True,
            )
    return None


def _misfit_recompute(top: Fields, schedule: ScheduleSpec, mcore: bool) -> Misfit | None:
    """Core models under zero_bubble_v whose recompute list does not distinguish the chunks of a stage.

    Releases before 1.7, and the old classes, take one number a stage.
    """
    value = recompute_entries(top)[0]
    if not mcore or schedule.name != "zero_bubble_v" or not isinstance(value, list):
        return None
    if len(value) >= 2 and not all(isinstance(item, int) for item in value):
        return None
    return Misfit(
        "recompute_config.recompute",
        str(value),
        "has one number for each stage; under zero_bubble_v it needs one list for each virtual stage",
        "write two lists, as in [[1, 1], [0, 0]]",
        "recompute-list-by-interleave",
        "MindFormers r1.7.0 mindformers/parallel_core/transformer_config.py:695-700 (core models, 1.7 to master, "
        "167a50de :2522-2527)",
    )


def _read_rules(top: Fields, section: Fields, moe: Fields | None, mcore: bool, notes: list[str]) -> TrainingRules:
    parallel = top.section("parallel")
    on = parallel.boolean("enable_parallel_optimizer", default=False)
    sharding = parallel.section("parallel_optimizer_config")
    stored = section.raw("params_dtype", "param_init_type") or "float32"
    computed = section.raw("compute_dtype") or ("bfloat16" if mcore else "float16")
    for name, value in (("params_dtype", stored), ("compute_dtype", computed)):
        if value not in _BYTES:
            raise section.error(name, "is not a known number type", value, f"use {', '.join(_BYTES)}")
    return TrainingRules(
        framework=frameworks.MINDFORMERS,
        seq_length=_read_seq_length(top, section, notes),
        parallel_optimizer=on,
        gradient_shard=on and sharding.boolean("gradient_accumulation_shard", default=False),
        param_bytes=_BYTES[stored],
        compute_bytes=_BYTES[computed],
        flash_attention=section.boolean("use_flash_attention", default=mcore),
        capacity_factor=_read_capacity(moe, mcore) if moe else None,
        core_models=mcore,
        ulysses_degree=_read_ulysses_degree(top, section),
        # Mcore takes key/value heads that TP divides under Ulysses too: master mindformers/parallel_core/
        # training_graph/transformer/attention.py:171-180.
        repeats_kv_heads=mcore,
        expert_tensor_parallel=_splits_experts(moe, mcore) if moe else None,
        dropout=any(section.number(name, default=0.0, high=1.0) > 0 for name in _DROPOUTS),
        interleaved_parts=_micro_batch_interleave(top),
        # Mcore knows the split alone: master mindformers/parallel_core/transformer_config.py:440.
        vocab_parallel=mcore or not top.section("parallel_config").boolean("vocab_emb_dp", default=True),
    )


def _wide_residual(section: Fields, model: ModelSpec) -> bool | None:
    """`TrainingRules.wide_residual`: a layer may add in float32, and casts its result back to the compute type.

    Legacy: r1.5.0 mindformers/models/llama/llama_transformer.py:1065-1081 (1.3 adds in the compute type, llama.py:271).
    Mcore: master f52743ca mindformers/parallel_core/training_graph/transformer/transformer_layer.py:301-305. Telechat's
    classes have a key of their own, which is in no figure. Latent attention's is left as the fit to dry-runs of
    DeepSeek-V3 has it: 30 MiB a recomputed layer, where an input in 16 bits takes 14 (`ActivationRules`).
    """
    layers = [layer for kind in model.body_counts for layer in model.layers_of(kind)]
    fitted = any(layer.attention is not None and layer.attention.latent is not None for layer in layers)
    return None if fitted or section.has("res_dtype") else False


def _read_ulysses_degree(top: Fields, section: Fields) -> int | None:
    """`TrainingRules.ulysses_degree` (r1.7.0 mindformers/modules/transformer/transformer.py:626-635)."""
    degrees = top.section("parallel_config")
    algorithm = degrees.raw("context_parallel_algo") or section.raw("context_parallel_algo")
    if algorithm == "ulysses_cp":
        return None
    if algorithm != "hybrid_cp":
        return 1
    home = degrees if degrees.has("ulysses_degree_in_cp") else section
    return home.integer("ulysses_degree_in_cp", default=1)


def _splits_experts(moe: Fields, mcore: bool) -> bool:
    """Return whether experts are split over ``model_parallel`` too.

    The legacy generation's batched GEMMs are sharded by (expert_parallel, model_parallel) unless
    ``expert_model_parallel: 1`` gives those ranks to the data (1.3 and 1.5: mindformers/modules/transformer/moe.py
    MoEV2, models/llama/llama_layer.py); its grouped GEMMs (``use_gmm``; modules/transformer/moev3.py) and the
    new generation leave experts whole.
    """
    if mcore or moe.boolean("use_gmm", default=False):
        return False
    return moe.integer("expert_model_parallel", default=None) != 1


def _read_capacity(moe: Fields, mcore: bool) -> float | None:
    """Tokens an expert takes over the even share; None when none is dropped.

    Grouped GEMMs (``use_gmm``) take every token, and a factor of 0 or less means the same.
    """
    if not mcore and moe.boolean("use_gmm", default=False):
        return None
    factor = moe.number("moe_expert_capacity_factor", "capacity_factor", default=None, low=-1e6, high=1e6)
    if factor is None:
        return None if mcore else 1.1  # The legacy default.
    return factor if factor > 0 else None


def _read_seq_length(top: Fields, section: Fields, notes: list[str]) -> int:
    data = top.section("train_dataset").section("data_loader")
    config = data.section("config") if isinstance(data.raw("config"), dict) else Fields({}, top.file)
    in_data = config.integer("seq_length", default=None, high=MAX_SIZE)
    if section.has("seq_length"):
        length = section.integer("seq_length", high=MAX_SIZE)
        if in_data is not None and in_data != length:
            notes.append(f"model seq_length {length} counts; the data set says {in_data}")
        return length
    if in_data is not None:
        return in_data
    length = section.integer("max_position_embeddings", high=MAX_SIZE)
    notes.append(f"seq_length is missing: max_position_embeddings {length} is taken")
    return length


def _read_device_limit(top: Fields) -> float | None:
    context = top.section("context")
    if not context.has("max_device_memory"):
        return None
    limit = memory_mib(context.raw("max_device_memory"), file=top.file, field=context.path("max_device_memory"))
    return None if limit >= _NO_LIMIT_MIB else limit


def _read_plan(
    top: Fields,
    section: Fields,
    model: ModelSpec,
    strategy: Strategy,
    schedule: ScheduleSpec,
    mtp_counted: bool,
    notes: list[str],
) -> PipelinePlan | None:
    parallel = top.section("parallel_config")
    offset = section.raw("offset") if section.has("offset") else parallel.raw("offset")
    recompute, select = recompute_entries(top)
    _check_lists(section, "offset", offset)
    try:
        return read_plan(
            model.layer_counts(),
            0 if offset is None else offset,
            recompute,
            select,
            stages=strategy.pp,
            interleaves=strategy.vpp,
            v_shape=schedule.v_shape,
            mtp_counted=mtp_counted,
            swap=swap_is_on(top),
        )
    except PlanProblem as problem:
        notes.append(f"the file settles no plan: {problem}")
        return None


def _by_chunk(
    words: Sequence[frozenset[str]], plan: PipelinePlan, schedule: ScheduleSpec, mtp_counted: bool
) -> dict[tuple[int, int], Sequence[frozenset[str]]]:
    """Settings of every layer, by chunk."""
    sizes = plan.total_layers(None if mtp_counted else [kind for kind in plan.layers if kind != MTP])
    found, first = {}, 0
    for v, s in chunk_order(plan.stages, plan.interleaves, schedule.v_shape):
        found[v, s] = words[first : first + sizes[v][s]]
        first += sizes[v][s]
    return found


def _read_modules(
    top: Fields, plan: PipelinePlan, modules: Mapping[str, Module], schedule: ScheduleSpec, mtp_counted: bool
) -> dict[str, Grid]:
    """In how many first layers of every chunk each module runs again, where the file names operators."""
    select = recompute_entries(top)[1]
    if isinstance(select, list) and select and all(isinstance(item, str) for item in select):
        select = dict.fromkeys(select, True)
    if not isinstance(select, Mapping):
        return {}
    sizes = plan.total_layers(None if mtp_counted else [kind for kind in plan.layers if kind != MTP])
    order = chunk_order(plan.stages, plan.interleaves, schedule.v_shape)
    swap = swap_is_on(top)
    grids = {
        str(pattern): recompute_counts(entry, sizes, "select_recompute", order, swap)
        for pattern, entry in select.items()
    }
    return counts_by_word(grids, modules)


def recompute_entries(top: Fields) -> tuple[Any, Any]:
    """The ``recompute`` and ``select_recompute`` entries; a bare bool in place of the section means all."""
    if isinstance(top.raw("recompute_config"), bool):
        return top.raw("recompute_config"), False
    section = top.section("recompute_config")
    for name in ("recompute", "select_recompute"):
        _check_lists(section, name, section.raw(name))
    return section.raw("recompute"), section.raw("select_recompute")


def _check_lists(section: Fields, name: str, value: Any, depth: int = 0) -> None:
    """Refuse what no form of these entries can hold: text, fractions, endless or absurd numbers."""
    items = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else None
    if items is not None and depth < 3:
        for item in items:
            _check_lists(section, name, item, depth + 1)
    elif isinstance(value, str) and depth and name == "select_recompute":
        return
    elif value is not None and (not isinstance(value, int) or abs(value) > 10**6):
        raise section.error(name, "must contain whole numbers", value, "write counts of layers, as in [1, 0, 0, -1]")
