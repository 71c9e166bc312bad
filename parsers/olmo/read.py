"""OLMo-core's configurations, read to a `TrainingConfig`.

Sources are lines of allenai/OLMo-core fa6c5014; src/olmo_core is left out of their paths. FSDP, pipelining, tensor
parallel and compilation are torch's, as in torchtitan, whose record of rules is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.ranks import OpenRanks
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.parsers.flag_table import FlagTable, load_flag_table
from taylor.parsers.nested_keys import unmodelled_keys
from taylor.parsers.olmo.model import capacity_of, read_model
from taylor.parsers.olmo.start_rules import START_RULES
from taylor.parsers.start_rules import misfits_of, of_mapping
from taylor.parsers.text.fields import MAX_SIZE, Fields
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, Grid, PipelinePlan, as_grid, deal_kinds, grid_in_order, zero_grid
from taylor.pipeline.schedule import PLAIN, ScheduleSpec
from taylor.register.frameworks import DENSE_MLP
from taylor.register.trainers import OLMO_CORE

NAME = "olmo"
PER_NODE = 8
"""Devices of a node where nothing says otherwise (launch/beaker.py: ``num_gpus``)."""
SCHEDULES = {
    "1F1B": PLAIN,
    "Interleaved1F1B": "torch-interleaved",
    "GPipe": "gpipe",
    "InterleavedZeroBubble": "interleaved-zb",
    "ZBVZeroBubble": "zbv",
}
"""distributed/parallel/pipeline_parallel.py:25-43."""
_SINGLE = ("1F1B", "GPipe")
_TYPES = ("fsdp", "hsdp", "ddp")
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class Ranks:
    """Ranks that a launch starts.

    Parameters
    ----------
    nodes, per_node : int
    stated : bool
        The launch says them. Off: one node of eight devices is assumed.
    """

    nodes: int = 1
    per_node: int = PER_NODE
    stated: bool = False


def flag_table() -> FlagTable:
    """Meaning of each key of a configuration for a plan."""
    return load_flag_table("taylor.parsers.olmo", "keys.yaml")


def config_from_data(data: dict[str, Any], file: Path, ranks: Ranks, name: str, notes: list[str]) -> TrainingConfig:
    """Read a configuration as plain data.

    Parameters
    ----------
    data : dict
        ``model``, ``train_module`` and the loader's ``global_batch_size`` in tokens, as config.json has them.
    name : str
        The model's.

    Raises
    ------
    InputError
        When a value is missing or wrong, or its model is of a kind that is not read.
    """
    top = Fields(data, file)
    for section in ("model", "train_module"):
        if not top.has(section):
            raise top.error(
                section, "is missing: it is no configuration of OLMo-core", cure="give the whole config.json"
            )
    model = read_model(top, name)
    module = top.section("train_module")
    strategy, sharded, left_open = read_strategy(top, ranks, notes)
    schedule = ScheduleSpec(SCHEDULES[_schedule(module)]) if strategy.pp > 1 else ScheduleSpec()
    sizes = stage_sizes(module, model.n_layers, strategy.pp * strategy.vpp)
    layers = deal_kinds(model.layer_counts(), sizes, strategy.pp, schedule.v_shape)
    modes, selective = _recompute(module, grid_in_order(sizes, strategy.pp, schedule.v_shape), notes)
    wide = str(model_dtype(top)) not in _HALF
    dp_config = module.section("dp_config")
    computes = dp_config.raw("param_dtype") or module.raw("autocast_precision") or model_dtype(top)
    compiled = bool(module.boolean("compile_model", default=False))
    notes.append("torchtitan's rules of memory and time are taken: both run torch's FSDP, pipelines and compiler")
    return TrainingConfig(
        path=file,
        launcher=NAME,
        model=model,
        strategy=strategy,
        rules=TrainingRules(
            framework=OLMO_CORE,
            seq_length=module.integer("max_sequence_length", high=MAX_SIZE),
            parallel_optimizer=sharded,
            gradient_shard=sharded,
            parameter_shard=sharded,
            param_bytes=4 if wide else 2,
            compute_bytes=2 if str(computes) in _HALF else 4,
            optimizer=OptimizerStates() if wide else OptimizerStates(2, 0, 4),
            whole_ends=sharded and dp_config.text("wrapping_strategy", default="full") == "blocks",
            separate_pools=sharded,
            expert_tensor_parallel=False,
            capacity_factor=capacity_of(data),
            compiled=compiled,
            selective=selective,
            ulysses_degree=strategy.cp if _ulysses(module) else 1,
        ),
        schedule=schedule,
        plan=PipelinePlan(layers, modes),
        mtp_counted=False,
        misfits=misfits_of(START_RULES, of_mapping(data)),
        open_ranks=left_open,
        notes=tuple(notes),
        unmodelled=unmodelled_keys(flag_table(), data, ["@experts"] if model.moe else []),
    )


def model_dtype(top: Fields) -> str:
    """Type of stored parameters (nn/transformer/config.py: ``dtype``)."""
    return str(top.section("model").text("dtype", default="float32"))


def _schedule(module: Fields) -> str:
    section = module.section("pp_config")
    written = section.text("schedule", default="Interleaved1F1B")
    known = {name.lower(): name for name in SCHEDULES}
    if written.lower() not in known:
        raise section.error("schedule", "is no schedule that is read", written, f"use {', '.join(SCHEDULES)}")
    return known[written.lower()]


def _ulysses(module: Fields) -> bool:
    section = module.section("cp_config")
    return section.raw("uly") is not None or section.raw("style") == "ulysses"


def read_strategy(top: Fields, ranks: Ranks, notes: list[str]) -> tuple[Strategy, bool, OpenRanks | None]:
    """The strategy, whether parameters are sharded, and ranks that the launch leaves open.

    distributed/parallel/__init__.py:110-250: the ranks of data parallel are what the other degrees leave; HSDP has a
    replica a node by default (data_parallel.py:37-62). Context parallel shards parameters with the data (:327-340).

    Raises
    ------
    InputError
        When degrees do not fit the ranks, or a batch does not fit the degrees.
    """
    module = top.section("train_module")
    tp, cp, pp, ep = (_degree(module, kind) for kind in ("tp", "cp", "pp", "ep"))
    others = tp * cp * pp
    world = ranks.nodes * ranks.per_node
    section = module.section("dp_config")
    if not section.data:
        if others > 1:
            raise module.error("dp_config", "is missing: OLMo-core wants one beside any other degree")
        world = 1
        notes.append("without dp_config one rank is assumed")
    elif world % others:
        if ranks.stated:
            problem = f"are {world} ranks, no multiple of TP x CP x PP = {others}"
            raise top.error("nproc-per-node", problem, ranks.per_node, f"start a multiple of {others}")
        world = others * max(1, -(-world // others))
    dp = world // others
    kind = section.text("name", default="fsdp") if section.data else "none"
    if section.data and kind not in _TYPES:
        raise section.error("name", f"must be one of {', '.join(_TYPES)}", kind)
    replicas, shard = _sharding(section, kind, dp, ranks)
    ep = shard if ep < 0 else ep
    if ep > 1 and (kind != "hsdp" or ep != shard or tp > 1):
        raise module.section("ep_config").error(
            "degree", f"must be the shard degree {shard} of HSDP, without tensor parallel", ep
        )
    length = module.integer("max_sequence_length", high=MAX_SIZE)
    tokens = module.integer("rank_microbatch_size", high=2**40)
    if tokens % length:
        raise module.error("rank_microbatch_size", f"is no multiple of the {length} tokens of a sample", tokens)
    loader = top.section("data_loader")
    total = loader.integer("global_batch_size", default=tokens * dp, high=2**50)
    if total % (tokens * dp):
        raise loader.error(
            "global_batch_size", f"must be a multiple of {tokens} tokens x {dp} ranks of data parallel", total
        )
    vpp = 1
    if pp > 1:
        points = module.section("pp_config").raw("split_points")
        single = _schedule(module) in _SINGLE
        chunks = len(points) + 1 if isinstance(points, list) else pp * (1 if single else 2)
        if chunks % pp or (chunks > pp) == single:
            raise module.section("pp_config").error("degree", f"does not fit the {chunks} model parts", pp)
        vpp = chunks // pp
    strategy = Strategy(
        dp=dp, tp=tp, pp=pp, ep=ep, cp=cp, op=shard * cp if kind != "ddp" and section.data else 1, sp=tp > 1, vpp=vpp,
        mbs=tokens // length, micro_batches=total // (tokens * dp),
    )  # fmt: skip
    left_open = None
    if section.data and not ranks.stated:
        note = f"the launch does not say how many ranks it starts: a world size of {world} is assumed"
        unit = others * (replicas if section.raw("num_replicas") else 1) * (shard if section.raw("shard_degree") else 1)
        left_open = OpenRanks(unit, f"TP x CP x PP with the stated shards = {unit:,}", note, shards_grow=kind == "fsdp")
        notes.append(note)
    return strategy, section.data != {} and kind != "ddp", left_open


def _degree(module: Fields, kind: str) -> int:
    name = f"{kind}_config"
    if not module.raw(name):
        return 1
    return int(module.section(name).integer("degree", low=-1 if kind == "ep" else 1))


def _sharding(section: Fields, kind: str, dp: int, ranks: Ranks) -> tuple[int, int]:
    """Replicas and shards of data parallel (data_parallel.py:37-62)."""
    if kind == "fsdp":
        return 1, dp
    if kind != "hsdp":
        return dp, 1
    replicas = section.integer("num_replicas", default=None)
    shard = section.integer("shard_degree", default=None)
    if replicas is None and shard is None:
        replicas = ranks.nodes
    for name, value in (("num_replicas", replicas), ("shard_degree", shard)):
        if value is not None and dp % value:
            raise section.error(name, f"must divide the {dp} ranks of data parallel", value)
    if shard is None:
        return int(replicas), dp // int(replicas)
    if replicas is not None and replicas * shard != dp:
        raise section.error("shard_degree", f"and num_replicas {replicas} do not make {dp} ranks", shard)
    return dp // int(shard), int(shard)


def stage_sizes(module: Fields, layers: int, chunks: int) -> list[int]:
    """Layers of every chunk in model order (train/train_module/transformer/config.py:61-94).

    Raises
    ------
    InputError
        When the split points do not rise within the layers, or there are more chunks than layers.
    """
    if chunks == 1:
        return [layers]
    section = module.section("pp_config")
    points = section.raw("split_points")
    if points is None:
        if chunks > layers:
            raise section.error("degree", f"makes {chunks} model parts of {layers} layers")
        base, extra = divmod(layers, chunks)
        sizes = [base, *(base + (at < extra) for at in range(chunks - 2))]
        return [*sizes, layers - sum(sizes)]
    whole = isinstance(points, list) and all(isinstance(at, int) and not isinstance(at, bool) for at in points)
    cuts = [0, *points, layers] if whole else []
    if not cuts or cuts != sorted(cuts):
        raise section.error("split_points", f"must rise from 0 to {layers}", str(points)[:80])
    return [end - start for start, end in zip(cuts, cuts[1:], strict=False)]


def _recompute(module: Fields, sizes: Grid, notes: list[str]) -> tuple[dict[str, Grid], tuple[str, ...] | None]:
    """Recomputed layers of every chunk by mode, and the parts that selective recompute runs again.

    train/train_module/transformer/config.py:241-290; nn/transformer/model.py, ``apply_activation_checkpointing``.
    """
    if module.raw("ac_config") is None:
        return {}, None
    section = module.section("ac_config")
    mode = section.text("mode", default="full")
    if mode == "full":
        return {FULL: sizes}, None
    if mode == "selected_ops":
        return {FULL: zero_grid(len(sizes[0]), len(sizes)), SELECT: sizes}, None
    if mode == "selected_blocks":
        every = section.integer("block_interval")
        return {FULL: _every(sizes, every)}, None
    if mode == "selected_modules":
        modules = section.raw("modules")
        names = [str(each) for each in modules] if isinstance(modules, list) else []
        if names and all(name.endswith(".feed_forward") for name in names):
            return {FULL: zero_grid(len(sizes[0]), len(sizes)), SELECT: sizes}, (DENSE_MLP,)
        notes.append("ac_config.modules: their recompute is left out of all figures")
        return {}, None
    if mode != "budget":
        raise section.error("mode", "is no mode of recompute", mode)
    notes.append("ac_config.mode budget: a compiler chooses what runs again, and no recompute is counted")
    return {}, None


def _every(sizes: Grid, every: int) -> Grid:
    """Of each chunk's layers those whose number is a multiple of `every`."""
    ends = [list(accumulate(row)) for row in zip(*sizes, strict=True)]
    return as_grid(
        [
            [-(-ends[s][v] // every) - -(-(ends[s][v] - size) // every) for s, size in enumerate(row)]
            for v, row in enumerate(sizes)
        ]
    )
