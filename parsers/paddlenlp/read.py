"""Scripts of PaddleNLP's trainer, read to a `TrainingConfig`.

What its flags mean: paddle-galvatron b0bdd07 paddlenlp/trainer/training_args.py:1646-1740 (degrees, batch), 2115
(`dataset_world_size`), llm/auto_parallel/galvatron-llama-submit/train_qwen_fine_graine.py:583-690 (model, strategy).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.measured.layer_strategy import LayerwisePlan, even_division
from taylor.parsers.flag_table import FlagTable, UnmodelledFlag, load_flag_table
from taylor.parsers.named_model import named_model
from taylor.parsers.paddlenlp.script import FORM, NAME, SHARDING_LEVEL, ULYSSES, PaddleScript, enabled
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE
from taylor.parsers.text.flags import Flags
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register import frameworks
from taylor.register.model import DENSE, ModelSpec

_MODELS = ("llama", "qwen")
_GRANULARITIES = {"full": FULL, "full_attn": SELECT, "core_attn": SELECT}


def flag_table() -> FlagTable:
    """Meaning of each of the trainer's flags for a plan."""
    return load_flag_table("taylor.parsers.paddlenlp", "flags.yaml")


def config_from_script(script: PaddleScript, register_path: Path | None = None) -> TrainingConfig:
    """Read a script.

    Parameters
    ----------
    register_path : Path, optional
        The user's folder of registrations: models that ``--model_name_or_path`` may name.

    Raises
    ------
    InputError
        When a flag that matters is missing or wrong, or the strategy file that it names is.
    """
    flags = script.flags
    notes = list(script.source.notes)
    model = _read_model(flags, notes, register_path)
    layerwise = script.layerwise()
    if layerwise is not None and len(layerwise.layers) != model.n_layers:
        raise flags.error(
            "num-hidden-layers",
            f"differs from the {len(layerwise.layers)} layers of {script.layerwise_path}",
            model.n_layers,
            "correct one of the two",
        )
    strategy, zero, left_open = _read_strategy(script, layerwise, notes)
    plan = _coarse_plan(flags, model, strategy, notes) if layerwise is None else _fine_plan(layerwise, notes)
    mode = flags.text("pipeline-schedule-mode", default="1F1B")
    if mode not in ("1F1B", "VPP", "FThenB"):
        notes.append(f"--pipeline_schedule_mode {mode}: taken for 1F1B")
    schedule = ScheduleSpec("gpipe" if mode == "FThenB" else PLAIN)
    return TrainingConfig(
        path=script.source.file,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=_read_rules(flags, strategy, zero, notes),
        schedule=schedule.for_interleaves(strategy.vpp, frameworks.PADDLENLP),
        plan=plan,
        mtp_counted=False,
        open_ranks=left_open,
        batch_follows_ranks=layerwise is None,
        notes=tuple(notes),
        unmodelled=_unmodelled(flags),
    )


def _read_model(flags: Flags, notes: list[str], register_path: Path | None) -> ModelSpec:
    """The model by its sizes; where the script has none, the one that ``--model_name_or_path`` names."""
    named = flags.text("model-name-or-path", default=None)
    if named is not None and flags.text("hidden-size", default=None) is None:
        return _named_model(flags, named, notes, register_path)
    kind = flags.text("model-type", "model-name-or-path", default="llama")
    if not any(name in kind.lower() for name in _MODELS):
        notes.append(f"{kind}: taken for a model built as LLaMA is")
    hidden = flags.integer("hidden-size", high=MAX_SIZE)
    heads = flags.integer("num-attention-heads", high=MAX_SIZE)
    groups = flags.integer("num-key-value-heads", default=heads, high=MAX_SIZE)
    if hidden % heads:
        raise flags.error("hidden-size", f"must be a multiple of the {heads} attention heads", hidden, "correct one")
    if heads % groups:
        raise flags.error("num-key-value-heads", f"must divide the {heads} attention heads", groups, "correct one")
    return ModelSpec(
        name=flags.file.stem,
        n_layers=flags.integer("num-hidden-layers", high=MAX_LAYERS),
        hidden=hidden,
        n_heads=heads,
        n_kv_heads=groups,
        head_dim=hidden // heads,
        ffn_hidden=flags.integer("intermediate-size", high=MAX_SIZE),
        vocab=flags.integer("vocab-size", high=MAX_SIZE),
    )


def _named_model(flags: Flags, name: str, notes: list[str], register_path: Path | None) -> ModelSpec:
    """A registered model or that of a folder, with the layers that the script counts."""
    model, assumed = named_model(name, flags.file, "--model_name_or_path", register_path)
    notes.extend(assumed)
    layers = flags.integer("num-hidden-layers", default=None, high=MAX_LAYERS)
    if layers is None or layers == model.n_layers:
        return model
    if model.pattern:
        cure = f"leave it out, or describe the {layers} layers by their sizes"
        raise flags.error("num-hidden-layers", f"is not the {model.n_layers} layers of {name}", layers, cure)
    return model.replace(n_layers=layers)


def _read_strategy(
    script: PaddleScript, layerwise: LayerwisePlan | None, notes: list[str]
) -> tuple[Strategy, int, OpenRanks | None]:
    """Degrees and batch, the stage of sharding, and what is known of the ranks where the script states none."""
    flags = script.flags
    vpp = flags.integer("virtual-pp-degree", default=1)
    sequence = enabled(flags, "sequence-parallel")
    if layerwise is not None:
        return (*_fine_strategy(script, layerwise, sequence, notes), None)
    tp, pp, sep = (flags.integer(f"{name}-parallel-degree", default=1) for name in ("tensor", "pipeline", "sep"))
    sharding = max(1, flags.integer("sharding-parallel-degree", default=1, low=-1))
    if flags.text(ULYSSES, default="0") == "1":
        tp, sep = 1, sep * tp
    world = script.world
    ranks = tp * pp * sep
    left_open = None
    if world is None:
        unit, why = ranks * sharding, f"TP x PP x SEP x sharding = {ranks * sharding:,}"
        note = f"the file does not say how many ranks it starts: {unit:,} is assumed, the least world size: {why}"
        left_open = OpenRanks(unit, why, note, shards_grow=False)
        notes.append(note)
    elif world % (ranks * sharding):
        notes.append(f"{world} ranks are no multiple of {ranks * sharding}: data parallel {sharding} is assumed")
        world = None
    zero = _sharding_stage(flags)
    dp = sharding if world is None else world // ranks
    strategy = Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=sep,
        op=min(sharding * sep, dp * sep) if zero else 1,
        sp=sequence and tp > 1,
        vpp=vpp if pp > 1 else 1,
        mbs=flags.integer("per-device-train-batch-size", default=8),
        micro_batches=flags.integer("gradient-accumulation-steps", default=1),
    )
    return strategy, zero, left_open


def _fine_strategy(
    script: PaddleScript, layerwise: LayerwisePlan, sequence: bool, notes: list[str]
) -> tuple[Strategy, int]:
    """Settings that the runtime takes from the strategy file; the first layer's degrees speak for all."""
    first = layerwise.layers[0]
    name = script.layerwise_path
    degrees = {(each.tp, each.sp, each.cp, each.dp) for each in layerwise.layers}
    if len(degrees) > 1:
        notes.append(f"{name}: layers are spread in {len(degrees)} ways; figures take the first layer's for all")
    stages = {each.zero for each in layerwise.layers}
    zero = max(stages)
    if len(stages) > 1:
        notes.append(f"{name}: layers have sharding stages {sorted(stages)}; figures take stage {min(stages)} for all")
        zero = min(stages)
    if script.world not in (None, layerwise.world):
        notes.append(f"{name}: is of {layerwise.world} ranks, and the script starts {script.world}")
    strategy = Strategy(
        dp=first.dp,
        tp=first.tp,
        pp=layerwise.stages,
        cp=first.sp,
        op=first.replicas if zero else 1,
        sp=sequence and first.tp > 1,
        mbs=max(1, layerwise.global_batch // layerwise.micro_batches // first.dp),
        micro_batches=layerwise.micro_batches,
    )
    return strategy, zero


def _sharding_stage(flags: Flags) -> int:
    """The stage of sharding: 0 where states are whole, else 1, 2 or 3."""
    if flags.has(SHARDING_LEVEL):
        return int(flags.integer(SHARDING_LEVEL, low=0, high=3))
    words = flags.words("sharding")
    stages = [word.removeprefix("stage") for word in words if word.startswith("stage")]
    if not stages:
        return 0
    if stages[0] not in ("1", "2", "3"):
        raise flags.error("sharding", "must be stage1, stage2 or stage3", " ".join(words), "write one of them")
    return int(stages[0])


def _recompute(flags: Flags, notes: list[str]) -> str | None:
    """Recompute of every layer: None, or a mode of plans."""
    if not enabled(flags, "recompute"):
        return None
    written = flags.text("recompute-granularity", default="full")
    if written not in _GRANULARITIES:
        raise flags.error(
            "recompute-granularity", f"must be one of {', '.join(_GRANULARITIES)}", written, "write one of them"
        )
    if written == "full_attn":
        notes.append("--recompute_granularity full_attn: its projections are counted as kept")
    return _GRANULARITIES[written]


def _coarse_plan(flags: Flags, model: ModelSpec, strategy: Strategy, notes: list[str]) -> PipelinePlan | None:
    """Layers dealt evenly, the remainder on the last stage (comm_group.py:59-77)."""
    mode = _recompute(flags, notes)
    if strategy.vpp > 1:
        chunks = strategy.vpp * strategy.pp
        if model.n_layers % chunks:
            notes.append(f"{model.n_layers} layers are no multiple of {chunks} chunks: the file settles no plan")
            return None
        grid = [[model.n_layers // chunks] * strategy.pp] * strategy.vpp
    else:
        grid = [list(even_division(model.n_layers, strategy.pp))]
        if min(grid[0]) < 1:
            raise flags.error(
                "pipeline-parallel-degree", f"asks for more stages than the {model.n_layers} layers", strategy.pp,
                "lower it",
            )  # fmt: skip
    return PipelinePlan({DENSE: as_grid(grid)}, {} if mode is None else {mode: as_grid(grid)})


def _fine_plan(layerwise: LayerwisePlan, notes: list[str]) -> PipelinePlan:
    recomputed = []
    for stage in range(layerwise.stages):
        marks = [layer.recompute for layer in layerwise.on_stage(stage)]
        if marks != sorted(marks, reverse=True):
            notes.append(f"stage {stage} recomputes layers that are not its first: their number is taken")
        recomputed.append(sum(marks))
    return PipelinePlan(
        {DENSE: as_grid([list(layerwise.division)])}, {FULL: as_grid([recomputed])} if any(recomputed) else {}
    )


def _read_rules(flags: Flags, strategy: Strategy, zero: int, notes: list[str]) -> TrainingRules:
    half = enabled(flags, "bf16") or enabled(flags, "fp16")
    tokens = flags.integer("max-seq-length", "seq-length", high=MAX_SIZE)
    model_tokens = flags.integer("seq-length", default=tokens, high=MAX_SIZE)
    if model_tokens != tokens:
        notes.append(f"--max_seq_length {tokens} is what the data give; --seq_length {model_tokens} is the model's")
    if zero == 3 and strategy.micro_batches > 1:
        notes.append(
            "gradients of several micro-batches stay whole under stage 3 (memory_cost_model.py, `zero3_ratio`): "
            "up to 4 bytes a parameter more than counted"
        )
    return TrainingRules(
        framework=frameworks.PADDLENLP,
        seq_length=tokens,
        parallel_optimizer=zero > 0,
        parameter_shard=zero == 3,
        param_bytes=2 if half else 4,
        compute_bytes=2 if half else 4,
        flash_attention=enabled(flags, "use-flash-attention"),
        ulysses_degree=strategy.cp,
        expert_tensor_parallel=False,
    )


def _unmodelled(flags: Flags) -> tuple[UnmodelledFlag, ...]:
    starting = {flag.name for flag in flags.flags[: flags.starting]}
    table = flag_table()
    given: list[tuple[str, str | None]] = []
    on: list[str] = []
    for dashed, flag in flags.by_name.items():
        name = dashed.replace("-", FORM.joint)
        if table.find(name) is None and dashed in starting:
            continue
        words: Sequence[str] = [word.text for word in flag.values]
        given.append((name, " ".join(words) or None))
        if [word.lower() for word in words[:1]] not in (["0"], ["false"]):
            on.append(name)
    return table.unmodelled(given, prefix="--", in_force=on)
