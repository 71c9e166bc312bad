"""Plans and strategies written into a MindFormers YAML: which entries change, and to what."""

from __future__ import annotations

from typing import Any, Mapping

from taylor.cost_model.choices.module_choices import words_of
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.mindformers.model_section import model_section
from taylor.parsers.mindformers.modules import Module, module_grids, modules_of
from taylor.parsers.mindformers.plan import written_offset, written_recompute
from taylor.parsers.mindformers.read import config_from_source, offset_section, recompute_entries, swap_is_on
from taylor.parsers.mindformers.swap import CORE, LAYER, LAYER_SWAP, OP_SWAP, read_swap, swap_entries
from taylor.parsers.text.fields import Fields
from taylor.parsers.text.yaml_edit import edit_yaml, lookup
from taylor.parsers.text.yaml_source import YamlPath, YamlSource
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, RECOMPUTE_MODES, SELECT, Grid, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.model import DENSE, MOE, MTP

_MODEL = ("model", "model_config")
_PIPELINE = ("parallel", "pipeline_config")
_SHARDING = ("parallel", "parallel_optimizer_config")
_SELECT = ("recompute_config", "select_recompute")
_COMM = ("recompute_config", "select_comm_recompute")
_BESIDE = {
    "offset": ("pp_interleave_num", "num_layers", "num_hidden_layers"),
    "pp_interleave_num": ("offset", "num_layers", "num_hidden_layers"),
    "recompute_config": ("parallel_config", "micro_batch_interleave_num"),
    "recompute": (),
    "select_recompute": ("recompute",),
    "seq_split_num": ("micro_batch_num",),
    "expert_parallel": ("pipeline_stage",),
    "context_parallel": ("pipeline_stage",),
    "micro_batch_num": ("pipeline_stage",),
    "use_seq_parallel": ("micro_batch_num",),
}
_FOLLOWED = frozenset(
    {
        ("parallel_config", "data_parallel"),
        ("parallel_config", "model_parallel"),
        ("parallel_config", "pipeline_stage"),
        ("parallel_config", "expert_parallel"),
        ("parallel_config", "context_parallel"),
        ("parallel_config", "micro_batch_num"),
        ("runner_config", "batch_size"),
        (*_MODEL, "pp_interleave_num"),
        (*_MODEL, "seq_length"),
        ("train_dataset", "data_loader", "config", "seq_length"),
        ("moe_config", "expert_num"),
    }
)
"""Entries whose aliases (``dataset_strategy: [[*dp, 1]]``) are meant to follow them."""

PLAN_KEYS = frozenset(
    {
        "offset",
        "pp_interleave_num",
        "pipeline_interleave",
        "pipeline_scheduler",
        "seq_split_num",
        "micro_batch_num",
        "gradient_accumulation_steps",
        "recompute_config",
        "recompute",
        "select_recompute",
        "select_comm_recompute",
        "layer_swap",
        "op_swap",
        "layers",
    }
)
"""Keys that a plan may change in a file."""

Wanted = dict[YamlPath, Any]


def with_plan(source: YamlSource, config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> YamlSource:
    """The file with a plan in it.

    Parameters
    ----------
    config : TrainingConfig
        Problem of the plan; where its schedule differs from the file's, the file's is set.
    micro_batches : int or None
        Set as ``micro_batch_num`` when given.

    Raises
    ------
    InputError
        When the file's number of stages differs, or a value cannot be set on its own.
    """
    current = config_from_source(source)
    current.refuse_other_stages(plan, "parallel_config.pipeline_stage")
    wanted: Wanted = {}
    schedule = config.schedule_for(plan.interleaves)
    if plan.interleaves != current.strategy.vpp or not _same_schedule(schedule, current.schedule):
        _want_schedule(wanted, schedule, plan.interleaves)
    if micro_batches is not None:
        _want_micro_batches(wanted, source, current, plan.stages, micro_batches)
    _want_plan(wanted, source, current, plan, schedule.v_shape)
    return edit_yaml(source, wanted, followed=_FOLLOWED, beside=_BESIDE)


def with_strategy(
    source: YamlSource,
    config: TrainingConfig,
    strategy: Strategy,
    plan: PipelinePlan | None,
    extra: Mapping[str, object],
) -> YamlSource:
    """The file with another strategy, a plan that fits it, and further dotted keys set.

    Where the plan holds more or fewer layers than the model, the model's layer counts follow it. A number in a key of
    `extra` counts the entries of a list.
    """
    current = config_from_source(source)
    wanted: Wanted = {}
    degrees = {
        "data_parallel": strategy.dp,
        "model_parallel": strategy.tp,
        "pipeline_stage": strategy.pp,
        "expert_parallel": strategy.ep,
        "context_parallel": strategy.cp,
    }
    for name, value in degrees.items():
        path = ("parallel_config", name)
        if value != 1 or lookup(source.data, path) is not None:
            wanted[path] = value
    if strategy.sp != current.strategy.sp:
        wanted["parallel_config", "use_seq_parallel"] = strategy.sp
    if strategy.ulysses:
        wanted |= _context(source, strategy)
    if strategy.mbs != current.strategy.mbs:
        _want_micro_batch_size(wanted, current, strategy.mbs)
    _want_micro_batches(wanted, source, current, strategy.pp, strategy.micro_batches)
    _want_optimizer_split(wanted, source, current, strategy)
    _want_dataset_strategy(wanted, source, current.strategy.dp, strategy.dp)
    schedule = config.schedule_for(strategy.vpp)
    if strategy.vpp != current.strategy.vpp or not _same_schedule(schedule, current.schedule):
        _want_schedule(wanted, schedule, strategy.vpp)
    if plan is None:
        plan = current.replace(schedule=schedule).even_plan(strategy)
    if (plan.stages, plan.interleaves) != (strategy.pp, strategy.vpp):
        raise ValueError("the plan's shape differs from the strategy's [vpp, pp]")
    _want_plan(wanted, source, current, plan, schedule.v_shape)
    _want_layers(wanted, source, current, plan)
    for dotted, entry in extra.items():
        wanted[tuple(int(part) if part.isdigit() else part for part in dotted.split("."))] = entry
    written = edit_yaml(source, wanted, followed=_FOLLOWED, beside=_BESIDE)
    _require_layers(written, plan)
    return written


def _context(source: YamlSource, strategy: Strategy) -> Wanted:
    """The kind of context parallelism (r1.7.0 mindformers/modules/transformer/transformer.py:626-635)."""
    kind = "ulysses_cp" if strategy.ulysses == strategy.cp else "hybrid_cp"
    kind = "colossalai_cp" if strategy.ulysses == 1 else kind
    algorithm, degree = (("parallel_config", name) for name in ("context_parallel_algo", "ulysses_degree_in_cp"))
    wanted: Wanted = {algorithm: kind}
    if kind == "hybrid_cp" or lookup(source.data, degree) is not None:
        wanted[degree] = strategy.ulysses
    return wanted


def _require_layers(written: YamlSource, plan: PipelinePlan) -> None:
    """Refuse to write a file of another number of layers than its plan; that is a fault of this program."""
    model, planned = config_from_source(written).model, plan.by_kind()
    counts = {kind: sum(map(sum, grid)) for kind, grid in planned.items()}
    mtp = counts.pop(MTP, 0)
    if (model.n_layers, model.mtp_layers) != (sum(counts.values()), mtp):
        raise RuntimeError(
            f"internal error: {written.file}: the file to be written has {model.n_layers} layers and "
            f"{model.mtp_layers} MTP layers, and its plan {sum(counts.values())} and {mtp}"
        )


def _same_schedule(one: ScheduleSpec, other: ScheduleSpec) -> bool:
    def written(spec: ScheduleSpec) -> tuple[str, int]:
        return spec.name_without_interleaves, spec.seq_splits

    return written(one) == written(other)


def _want_schedule(wanted: Wanted, schedule: ScheduleSpec, interleaves: int) -> None:
    name, traits = schedule.name_without_interleaves, schedule.traits
    wanted[_MODEL + ("pp_interleave_num",)] = interleaves
    wanted[_PIPELINE + ("pipeline_interleave",)] = interleaves > 1 or traits.needs_pipeline
    wanted[_PIPELINE + ("pipeline_scheduler",)] = name
    if traits.sequence_splits:
        wanted["parallel_config", "seq_split_num"] = schedule.seq_splits


def _want_micro_batch_size(wanted: Wanted, current: TrainingConfig, samples: int) -> None:
    """The batch of a part of a micro-batch, in as many parts as the file has where that divides the samples."""
    parts = current.rules.interleaved_parts
    if samples % parts:
        parts = 1
        wanted[("micro_batch_interleave_num",)] = parts
    wanted["runner_config", "batch_size"] = samples // parts


def _want_micro_batches(
    wanted: Wanted, source: YamlSource, current: TrainingConfig, stages: int, micro_batches: int
) -> None:
    if stages == 1:  # There MindFormers ignores micro_batch_num and accumulates gradients instead.
        accumulated = ("runner_config", "gradient_accumulation_steps")
        if micro_batches != 1 or lookup(source.data, accumulated) is not None:
            wanted[accumulated] = micro_batches
        if current.strategy.pp == 1:
            return
        wanted["parallel_config", "micro_batch_num"] = 1
        return
    wanted["parallel_config", "micro_batch_num"] = micro_batches
    for section in ("callbacks", "eval_callbacks"):
        for index, entry in enumerate(source.data.get(section) or []):
            path = (section, index, "micro_batch_num")
            if isinstance(entry, dict) and isinstance(lookup(source.data, path), int):
                place = source.place(path)
                if place is not None and place.alias is None:
                    wanted[path] = micro_batches


def _want_optimizer_split(wanted: Wanted, source: YamlSource, current: TrainingConfig, strategy: Strategy) -> None:
    """``optimizer_weight_shard_size`` says op; full and no splitting are switches of their own."""
    replicas = strategy.dp * strategy.cp
    switch, size = ("parallel", "enable_parallel_optimizer"), (*_SHARDING, "optimizer_weight_shard_size")
    present = lookup(source.data, size) is not None
    if strategy.op == 1 and replicas > 1:
        if current.rules.parallel_optimizer:
            wanted[switch] = False
        return
    if strategy.op > 1 and not current.rules.parallel_optimizer:
        wanted[switch] = True
    if strategy.op < replicas or present:
        wanted[size] = -1 if strategy.op >= replicas else strategy.op


def _want_dataset_strategy(wanted: Wanted, source: YamlSource, old: int, new: int) -> None:
    """The leading entry of each row of ``dataset_strategy`` is the data-parallel degree."""
    rows = lookup(source.data, ("parallel", "dataset_strategy"))
    for index, row in enumerate(rows if isinstance(rows, list) else []):
        if isinstance(row, list) and row and row[0] == old:
            wanted["parallel", "dataset_strategy", index, 0] = new


def _want_plan(wanted: Wanted, source: YamlSource, current: TrainingConfig, plan: PipelinePlan, v_shape: bool) -> None:
    top = Fields(source.data, source.file)
    counted = current.mtp_counted
    order = chunk_order(plan.stages, plan.interleaves, v_shape)
    layers = plan.total_layers(None if counted else [kind for kind in plan.layers if kind != MTP])
    named = [mode for mode in plan.recompute if mode not in RECOMPUTE_MODES]
    full, select = plan.recomputed(FULL), plan.recomputed(SELECT)
    if any(sum(grid[v][s] for grid in plan.recompute.values()) > layers[v][s] for v, s in order):
        raise ValueError("the plan recomputes MTP layers, which the file cannot express")
    path = offset_section(top)
    wanted[path] = written_offset(plan, counted, lookup(source.data, path))
    indices = order if swap_is_on(top) else None
    old_full, old_select = recompute_entries(top)
    wanted["recompute_config", "recompute"] = written_recompute(full, old_full, indices, layers)
    # The entry counts from the chunk's first layer, and full recompute beats it where both hold.
    until = as_grid(
        [
            [full[v][s] + select[v][s] if select[v][s] else 0 for s in range(plan.stages)]
            for v in range(plan.interleaves)
        ]
    )
    if named:
        _want_modules(wanted, source, plan, named, old_select, indices, layers)
    else:
        _want_select(wanted, source, until, old_select, indices, layers)
    _want_comm(wanted, source, plan, until, old_select, indices, layers)


def _want_layers(wanted: Wanted, source: YamlSource, current: TrainingConfig, plan: PipelinePlan) -> None:
    """The model's layer counts by kind, where the plan's differ; its MTP layers stay."""
    counts = {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()}
    body, dense = counts.get(DENSE, 0) + counts.get(MOE, 0), counts.get(DENSE, 0)
    if body != current.model.n_layers:
        paths = [(*_MODEL, name) for name in ("num_hidden_layers", "num_layers", "n_layer")]
        for path in [path for path in paths if lookup(source.data, path) is not None] or paths[:1]:
            wanted[path] = body
    if current.model.moe is not None and dense != current.model.n_dense:
        named = {
            (*section, name): entry
            for section in (_MODEL, ("moe_config",))
            for name, entry in (("first_k_dense_replace", dense), ("mlp_only_layers", list(range(dense))))
        }
        stated = {path: entry for path, entry in named.items() if lookup(source.data, path) is not None}
        section = ("moe_config",) if lookup(source.data, ("moe_config", "expert_num")) is not None else _MODEL
        wanted |= stated or {(*section, "first_k_dense_replace"): dense}


def _is_on(entry: Any) -> bool:
    if isinstance(entry, list):
        return any(map(_is_on, entry))
    return bool(entry)


def _want_select(
    wanted: Wanted, source: YamlSource, until: Grid, old: Any, indices: list[tuple[int, int]] | None, layers: Grid
) -> None:
    """Selective recompute in the user's own form: bool or list, a list of patterns, or patterns with counts."""
    used = any(map(any, until))
    if isinstance(old, Mapping):
        for pattern, entry in old.items():
            if _is_on(entry) or used or (isinstance(entry, list) and not _fits(entry, len(layers[0]), len(layers))):
                wanted[_SELECT + (pattern,)] = written_recompute(until, entry, indices, layers)
    elif isinstance(old, list) and old and all(isinstance(item, str) for item in old):
        if until != layers:
            wanted[_SELECT] = {pattern: written_recompute(until, None, indices, layers) for pattern in old}
    elif used:
        wanted[_SELECT] = written_recompute(until, old, indices, layers)
    elif _is_on(old):
        wanted[_SELECT] = False


def _want_modules(
    wanted: Wanted,
    source: YamlSource,
    plan: PipelinePlan,
    named: list[str],
    old: Any,
    indices: list[tuple[int, int]] | None,
    layers: Grid,
) -> None:
    """The modules that run again in the plan, whatever the file named before: patterns with counts, or False."""
    if plan.uses(SELECT):
        raise ValueError("the plan recomputes selectively beside its choices by module")
    section, _, mcore = model_section(Fields(source.data, source.file), [])
    modules = modules_of(section, mcore=mcore)
    grids = module_grids(plan, named, {name: words_of(name)[0] for name in named})
    patterns = {
        pattern: written_recompute(grid, None, indices, layers)
        for word, grid in grids.items()
        if any(map(any, grid))
        for pattern in modules[word].patterns
    }
    if patterns and patterns != old:
        wanted[_SELECT] = patterns
    elif not patterns and _is_on(list(old.values()) if isinstance(old, Mapping) else old):
        wanted[_SELECT] = False
    if indices is not None:
        _want_swap(wanted, source, plan, named, indices, layers, modules)


def _want_swap(
    wanted: Wanted,
    source: YamlSource,
    plan: PipelinePlan,
    named: list[str],
    order: list[tuple[int, int]],
    layers: Grid,
    modules: Mapping[str, Module],
) -> None:
    """The layers of what the plan moves to the host, of words that are among its choices, where they differ."""
    mentioned = {word for name in named for word in words_of(name)[1]}
    words: list[frozenset[str]] = []
    idle: list[frozenset[str]] = []  # what an entry may say or not, for it runs again
    for v, s in order:
        full = plan.recomputed(FULL)[v][s]
        runs = [(full, (), (LAYER, CORE)), *((plan.recompute[n][v][s], words_of(n)[1], words_of(n)[0]) for n in named)]
        runs.append((layers[v][s] - sum(count for count, _, _ in runs), (), ()))
        words += [frozenset(moved) for count, moved, _ in runs for _ in range(count)]
        idle += [frozenset(again) for count, _, again in runs for _ in range(count)]
    old = read_swap(source.data, len(words), modules)
    before = [frozenset[str]()] * len(words) if old is None else old.words
    for word, path in ((LAYER, LAYER_SWAP), (CORE, OP_SWAP)):
        neighbours = zip(words, before, idle, strict=True)
        if word in mentioned and any(word not in c and (word in a) != (word in b) for a, b, c in neighbours):
            entry = lookup(source.data, path)
            new = swap_entries(words, word, entry, modules)
            if new and isinstance(entry, list) and len(entry) == 1:
                wanted[path + (0, "layers")] = new[0]["layers"]
            else:
                wanted[path] = new


def _want_comm(
    wanted: Wanted,
    source: YamlSource,
    plan: PipelinePlan,
    until: Grid,
    old_select: Any,
    indices: list[tuple[int, int]] | None,
    layers: Grid,
) -> None:
    """Communication recompute is no part of a plan: kept, unless its lists no longer fit the stages.

    Where it equals the selective list (the usual pairing) it goes along with that one; a list for
    another number of stages becomes True when it recomputed anything.
    """
    old = lookup(source.data, _COMM)
    if isinstance(old, list) and old and old == old_select and isinstance(wanted.get(_SELECT), bool | list):
        wanted[_COMM] = wanted[_SELECT]
        return
    entries = {(*_COMM, key): entry for key, entry in old.items()} if isinstance(old, Mapping) else {_COMM: old}
    for path, entry in entries.items():
        if indices is None and isinstance(entry, list) and not _fits(entry, plan.stages, plan.interleaves):
            wanted[path] = _is_on(entry)


def _fits(entry: list[Any], stages: int, interleaves: int) -> bool:
    if all(isinstance(item, str) for item in entry):
        return True
    if any(isinstance(row, list) for row in entry):
        return len(entry) == interleaves and all(isinstance(row, bool) or len(row) == stages for row in entry)
    return len(entry) == stages
