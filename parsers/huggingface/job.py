"""The training job of a model, as the section ``taylor`` of its config.json states it.

A config.json describes a model and no training. The section stands beside its other fields, which transformers leaves
alone, and holds what a launch script would: the framework, the degrees, the batch, and in the end the plan::

    "taylor": {
      "framework": "megatron",
      "parallel": {"dp": 8, "tp": 4, "pp": 2, "op": 8, "sp": true},
      "batch": {"global": 512, "micro": 1, "sequence": 4096},
      "schedule": "1f1b",
      "plan": {"layers": [[17, 15]], "recompute": {"full": [[4, 0]]}}
    }
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.ranks import OpenRanks, megatron_products, megatron_unit
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.text.fields import MAX_LAYERS, MAX_SIZE, Fields
from taylor.parsers.training_config import body_layers
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, as_grid, deal_kinds, values_in_order
from taylor.pipeline.schedule import ScheduleSpec, schedule_names
from taylor.register.frameworks import FRAMEWORKS, MEGATRON
from taylor.register.model import MTP, ModelSpec

SECTION = "taylor"

USUAL_SEQUENCE = 4096
"""Default tokens of a sample, or fewer where the model takes fewer."""

_ENTRIES = {
    "": ("framework", "parallel", "batch", "schedule", "plan"),
    "parallel": ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp"),
    "batch": ("global", "micro", "sequence"),
    "plan": ("layers", "recompute"),
}


def read_strategy(section: Fields, notes: list[str]) -> tuple[Strategy, OpenRanks | None]:
    """Degrees and batch, and what is known of the ranks where it states no DP; one sample where it says nothing.

    DP that is not stated is the least with which EP starts.

    Raises
    ------
    InputError
        When an entry is unknown or wrong, or the batch cannot be dealt out.
    """
    for place, known in _ENTRIES.items():
        fields = section if not place else section.section(place)
        for name in fields.data:
            if name not in known:
                raise fields.error(str(name), "is no known entry", cure=f"known are {', '.join(known)}")
    parallel, batch = section.section("parallel"), section.section("batch")
    degrees = {name: parallel.integer(name, default=1) for name in ("dp", "tp", "pp", "ep", "cp", "vpp")}
    left_open = None
    if section.data and not parallel.has("dp"):
        left_open = _open_ranks(section, degrees)
        degrees["dp"] = left_open.unit // (degrees["tp"] * degrees["pp"] * degrees["cp"])
        notes.append(left_open.note)
    replicas = degrees["dp"] * degrees["cp"]
    op = parallel.integer("op", default=replicas, high=replicas)
    mbs = batch.integer("micro", default=1)
    gathered = degrees["dp"] * mbs
    samples = batch.integer("global", default=gathered)
    if samples % gathered:
        problem = f"must be a multiple of DP x micro-batch = {gathered}"
        raise batch.error("global", problem, samples, "change the batch or DP")
    if not section.data:
        notes.append(f"no section `{SECTION}` says how it is trained: one rank and one sample a step are assumed")
    sp = parallel.boolean("sp", default=degrees["tp"] > 1)
    return Strategy(**degrees, op=op, sp=sp, mbs=mbs, micro_batches=samples // gathered), left_open


def _open_ranks(section: Fields, degrees: Mapping[str, int]) -> OpenRanks:
    """The least world size with which the degrees start; experts are whole (`read_rules`)."""
    tp, pp, cp, ep = (degrees[name] for name in ("tp", "pp", "cp", "ep"))
    unit, why = megatron_unit(tp, pp, cp, ep), megatron_products(tp, pp, cp, ep)
    note = f"{SECTION}.parallel states no dp: a world size of {unit:,} is assumed, the least multiple of {why}"
    return OpenRanks(unit, why, note, shards_grow=not section.section("parallel").has("op"))


def read_rules(section: Fields, longest: int | None, notes: list[str]) -> TrainingRules:
    """Settings of the framework, with its usual switches for large models.

    Parameters
    ----------
    longest : int or None
        Positions that the model knows.
    """
    name = section.text("framework", default=MEGATRON.name)
    if name not in FRAMEWORKS:
        raise section.error("framework", "is no known framework", name, f"known are {', '.join(FRAMEWORKS)}")
    batch = section.section("batch")
    sequence = batch.integer("sequence", default=None, high=MAX_SIZE)
    if sequence is None:
        sequence = min(USUAL_SEQUENCE, longest or USUAL_SEQUENCE)
        notes.append(f"sequences of {sequence} tokens are assumed")
    if longest is not None and sequence > longest:
        notes.append(f"sequences of {sequence} tokens are longer than the {longest} positions that the model knows")
    return TrainingRules(
        framework=FRAMEWORKS[name],
        seq_length=sequence,
        parallel_optimizer=True,
        param_bytes=2,
        expert_tensor_parallel=False,
        fused_norms=True,
    )


def read_schedule(section: Fields, strategy: Strategy, rules: TrainingRules) -> ScheduleSpec:
    """The schedule that it names, else the framework's usual one for this number of virtual stages."""
    name = section.text("schedule", default=None)
    if name is None:
        return ScheduleSpec().for_interleaves(strategy.vpp, rules.framework)
    if name not in schedule_names():
        raise section.error("schedule", "is no known schedule", name, f"known are {', '.join(schedule_names())}")
    return ScheduleSpec(name)


def read_plan(section: Fields, model: ModelSpec, strategy: Strategy, schedule: ScheduleSpec) -> PipelinePlan | None:
    """The plan that it holds; None where there is none.

    Raises
    ------
    InputError
        When its shape or its layers are not the model's and the strategy's.
    """
    plan = section.section("plan")
    if not plan.data:
        return None
    counts = _grid(plan, "layers", strategy)
    recompute = plan.section("recompute")
    modes = {mode: _grid(recompute, mode, strategy) for mode in (FULL, SELECT) if recompute.has(mode)}
    sizes = values_in_order(counts, schedule.v_shape)
    pinned = {MTP: len(sizes) - 1} if model.mtp_layers else {}
    try:
        layers = deal_kinds(model.layer_counts(), sizes, strategy.pp, schedule.v_shape, pinned)
        return PipelinePlan(layers, modes)
    except ValueError as problem:
        raise section.error("plan", str(problem), cure="leave it out, or write one for this model") from None


def written(config_rules: TrainingRules, strategy: Strategy, schedule: ScheduleSpec, plan: PipelinePlan | None) -> Any:
    """The section that says a strategy and a plan, as plain data."""
    degrees = {name: getattr(strategy, name) for name in _ENTRIES["parallel"]}
    section: dict[str, Any] = {
        "framework": config_rules.framework.name,
        "parallel": degrees,
        "batch": {"global": strategy.global_batch, "micro": strategy.mbs, "sequence": config_rules.seq_length},
        "schedule": schedule.name,
    }
    if plan is not None:
        body = body_layers(plan)
        recompute = {mode: _rows(plan.recomputed(mode)) for mode in (FULL, SELECT) if plan.uses(mode)}
        section["plan"] = {"layers": _rows(body), "recompute": recompute}
    return section


def _rows(grid: Grid) -> list[list[int]]:
    return [list(row) for row in grid]


def _grid(fields: Fields, name: str, strategy: Strategy) -> Grid:
    rows = fields.raw(name)
    shape = f"{strategy.vpp} rows of {strategy.pp} numbers, one row for each virtual stage, one number for each stage"
    wrong = fields.error(name, f"must be {shape}", rows)
    if not isinstance(rows, Sequence) or isinstance(rows, str) or len(rows) != strategy.vpp:
        raise wrong
    for row in rows:
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != strategy.pp:
            raise wrong
        if any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= MAX_LAYERS for n in row):
            raise wrong
    return as_grid(rows)


def section_of(data: Mapping[str, Any], file: Path) -> Fields:
    """The section of a parsed file; an empty one where it has none.

    Raises
    ------
    InputError
        When it is no mapping.
    """
    value = data.get(SECTION)
    if value is not None and not isinstance(value, Mapping):
        raise InputError("must be a mapping of names to values", file=file, field=SECTION, value=value)
    return Fields(value or {}, file, SECTION)
