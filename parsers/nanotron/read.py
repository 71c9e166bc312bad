"""nanotron YAML files, read to a `TrainingConfig`.

Sources are lines of huggingface/nanotron 2411b022.
"""

from __future__ import annotations

from taylor.base.errors import InputError
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.nanotron.model import MAMBA, block_costs, family, read_model, section_of
from taylor.parsers.nanotron.places import layers_of_stages
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, PipelinePlan, deal_kinds
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register.model import ModelSpec
from taylor.register.trainers import NANOTRON

NAME = "nanotron"
ENGINES = {"afab": "gpipe", "1f1b": PLAIN}
"""Pipeline engines (src/nanotron/config/utils_config.py:103-109); ``afab`` where none is named
(config/parallelism_config.py:43-45)."""
TP_MODES = ("all_reduce", "reduce_scatter")
"""``ALL_REDUCE`` where none is named (parallelism_config.py:46-47)."""
_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_HALF = 2


def flag_table() -> FlagTable:
    """Meaning of each key of a nanotron file for a plan."""
    return load_flag_table("taylor.parsers.nanotron", "keys.yaml")


def config_from_source(source: YamlSource) -> TrainingConfig:
    """Read a parsed file.

    Raises
    ------
    InputError
        When it is none of nanotron's, or a value is missing or wrong.
    """
    top = Fields(source.data, source.file)
    for section in ("parallelism", "model", "tokens"):
        if not top.has(section):
            raise top.error(section, "is missing: a nanotron file states its degrees, model and batch", cure="add it")
    notes = ["Megatron-LM's rules of memory and time are taken for nanotron but where its sources differ"]
    strategy = read_strategy(top)
    model = read_model(top, strategy.tp, notes)
    kind = family(top)
    plan: PipelinePlan | None = None
    try:
        plan = own_plan(top, model, strategy)
    except ValueError as problem:
        notes.append(f"the file settles no plan: {problem}")
    facts = ["@replicas"] if strategy.dp * strategy.cp > 1 else []
    return TrainingConfig(
        path=source.file,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=_read_rules(top, strategy, kind, notes),
        schedule=ScheduleSpec(engine_of(top)) if strategy.pp > 1 else ScheduleSpec(),
        plan=plan,
        mtp_counted=False,
        batch_follows_ranks=True,
        notes=tuple(notes),
        unmodelled=unmodelled_keys(flag_table(), source.data, facts),
    )


def engine_of(top: Fields) -> str:
    """The schedule of the file's pipeline engine."""
    section = top.section("parallelism")
    written = section.text("pp_engine", default="afab")
    if written not in ENGINES:
        raise section.error("pp_engine", f"must be {' or '.join(ENGINES)}", written)
    return ENGINES[written]


def read_strategy(top: Fields) -> Strategy:
    """Degrees and batch; the world size is DP x TP x PP x CP (src/nanotron/parallel/context.py:25-28)."""
    section, tokens = top.section("parallelism"), top.section("tokens")
    dp, tp, pp = (section.integer(name) for name in ("dp", "tp", "pp"))
    cp, ep = (section.integer(f"{name}_parallel_size", default=1) for name in ("context", "expert"))
    if ep > 1:
        # The array of ranks has DP x TP x PP x CP numbers and would need EP times as many.
        raise section.error(
            "expert_parallel_size",
            "starts no job in nanotron 2411b022 (src/nanotron/parallel/context.py:25-70): its ranks are dp x tp x pp x "
            "context_parallel_size, and the groups want expert_parallel_size times as many",
            ep,
            "write 1",
        )
    mode = section.text("tp_mode", default="ALL_REDUCE")
    if mode.lower() not in TP_MODES:
        raise section.error("tp_mode", f"must be {' or '.join(each.upper() for each in TP_MODES)}", mode)
    stage = top.section("optimizer").integer("zero_stage", default=0, low=0, high=3)
    return Strategy(
        dp=dp,
        tp=tp,
        pp=pp,
        cp=cp,
        # The distributed optimizer is over dp alone: src/nanotron/helpers.py:409-415.
        op=dp if stage else 1,
        sp=mode.lower() == "reduce_scatter" and tp > 1,
        mbs=tokens.integer("micro_batch_size"),
        micro_batches=tokens.integer("batch_accumulation_per_replica"),
    )


def own_plan(top: Fields, model: ModelSpec, strategy: Strategy) -> PipelinePlan:
    """The plan that nanotron makes of these degrees.

    Raises
    ------
    ValueError
        When it leaves the last stage without a block.
    """
    kind = family(top)
    costs = block_costs(model, section_of(top).data, kind)
    sizes = layers_of_stages(*costs, model.n_layers, strategy.pp)
    layers = deal_kinds(model.layer_counts(), sizes, strategy.pp, False)
    again = bool(top.section("parallelism").boolean("recompute_layer", default=False))
    return PipelinePlan(layers, {FULL: (tuple(sizes),)} if again else {})


def _read_rules(top: Fields, strategy: Strategy, kind: str, notes: list[str]) -> TrainingRules:
    optimizer, model = top.section("optimizer"), top.section("model")
    dtype = model.text("dtype", default="bfloat16")
    if dtype not in _BYTES:
        raise model.error("dtype", f"must be one of {', '.join(_BYTES)}", dtype)
    # Without an fp32 accumulator weights, gradients and moments have one type: helpers.py:353-391.
    wide = bool(optimizer.boolean("accumulate_grad_in_fp32", default=True)) if top.has("optimizer") else True
    width = _BYTES[dtype]
    states = OptimizerStates() if wide or width != _HALF else OptimizerStates(_HALF, 0, 2 * _HALF)
    stage = optimizer.integer("zero_stage", default=0, low=0, high=3)
    if stage > 1:
        notes.append(f"optimizer.zero_stage {stage} splits the optimizer alone: nanotron has ZeRO-1 (helpers.py:409)")
    return TrainingRules(
        framework=NANOTRON,
        seq_length=top.section("tokens").integer("sequence_length", high=MAX_SIZE),
        parallel_optimizer=stage > 0 and strategy.dp > 1,
        param_bytes=width,
        compute_bytes=width,
        optimizer=states,
        expert_tensor_parallel=False,
        wide_residual=bool(section_of(top).raw("residual_in_fp32")) if kind == MAMBA else None,
    )


def refuse_vpp(file: object, interleaves: int) -> None:
    """Refuse virtual stages, which no engine of nanotron has.

    Raises
    ------
    InputError
        When there are more than one a rank.
    """
    if interleaves > 1:
        raise InputError(
            "has no virtual stages", file=str(file), field="parallelism.pp_engine", value=interleaves,
            cure="plan it with one chunk a stage",
        )  # fmt: skip
