"""Strategy files: a choice for every layer, as Hetu's search and Paddle's write them, read and written.

Hetu: ``galvatron_config_*.json`` (Hetu-Galvatron cea12ff galvatron/utils/strategy_utils.py:276-301,
galvatron/core/search_engine/search_engine.py:741-779; what its runtime takes:
galvatron/core/runtime/hybrid_parallel_config.py). Paddle: ``fine_grained_config.json`` (paddle-galvatron b0bdd07
paddlenlp/experimental/galvatron/search_engine/search_engine.py:411-450, runtime/comm_group.py:79-101).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.cost_model.measured.layer_strategy import LayerStrategy, LayerwisePlan, even_division
from taylor.parsers.galvatron.values import read_table
from taylor.parsers.text.fields import MAX_DEGREE, MAX_LAYERS, Fields

HETU, PADDLE = "hetu", "paddle"
"""The two forms."""
_MACHINES = re.compile(r"_(\d{1,6})nodes_(\d{1,6})gpus_per_node_")
_LIST = re.compile(r"\d{1,7}(?:,\d{1,7})*")
_SCHEDULES = {"pipedream_flush": "1f1b", "gpipe": "gpipe"}
_DEFAULT_ZERO = {"ddp": 0, "zero2": 2}

_HETU_KEYS = frozenset(
    (
        "pp_deg",
        "tp_sizes_enc",
        "tp_consecutive_flags",
        "cp_sizes_enc",
        "dp_types_enc",
        "use_sp",
        "checkpoint",
        "ep_sizes_enc",
        "tp_of_ep_sizes_enc",
        "world_size",
        "global_bsz",
        "chunks",
        "pp_division",
        "pipeline_type",
        "default_dp_type",
        "vtp",
        "vsp",
        "vcp",
        "embed_sdp",
        "vocab_sdp",
    )
)
_PADDLE_KEYS = frozenset(
    (
        "pp_size",
        "vtp",
        "vsp_flag",
        "embed_sdp",
        "global_batch_size",
        "gradient_accumulation_steps",
        "dp_size_list",
        "sharding_stage_list",
        "tp_size_list",
        "usp_flag_list",
        "recompute_list",
        "pp_stage_idx_list",
    )
)


@dataclass(frozen=True)
class StrategyFile:
    """A strategy file as it was read.

    Parameters
    ----------
    plan : LayerwisePlan
    form : str
        `HETU` or `PADDLE`.
    notes : tuple of str
        Assumptions and ignored entries, one line each.
    """

    plan: LayerwisePlan
    form: str
    notes: tuple[str, ...] = ()


def read_strategy(file: Path, world: int | None = None) -> StrategyFile:
    """Read a strategy file of Hetu or of Paddle.

    Parameters
    ----------
    world : int, optional
        Ranks, where an older file of Hetu does not say them; else those that its name tells.

    Raises
    ------
    InputError
        When the file cannot be read, is none of the two, an entry is missing or wrong, or two contradict each other.
    """
    return strategy_of(read_table(file), file, world)


def strategy_of(data: Mapping[str, Any], file: Path, world: int | None = None) -> StrategyFile:
    """Read the entries of a strategy file of Hetu or of Paddle.

    Raises
    ------
    InputError
        As `read_strategy` does.
    """
    if "tp_sizes_enc" in data or "pp_deg" in data:
        return _Hetu(dict(data), file).read(world)
    if "tp_size_list" in data or "pp_size" in data:
        return _Paddle(dict(data), file).read()
    raise InputError(
        "is no strategy file: it has neither tp_sizes_enc (Hetu) nor tp_size_list (Paddle)",
        file=file,
        cure="give a galvatron_config_*.json or a fine_grained_config.json",
    )


class _Entries(Fields):
    """The entries of a strategy file."""

    def listed(self, name: str, length: int | None, what: str, low: int, high: int) -> tuple[int, ...]:
        """A comma list, one number a layer.

        Raises
        ------
        InputError
            When it is missing, no such list, of another length, or out of range.
        """
        written = str(self.raw(name)) if isinstance(self.raw(name), int) else self.text(name)
        if not _LIST.fullmatch(written.replace(" ", "")):
            raise self.error(name, "must be whole numbers with commas between them", written, f"write one {what}")
        found = tuple(map(int, written.split(",")))
        if len(found) > MAX_LAYERS:
            raise self.error(name, f"has {len(found)} entries", cure=f"at most {MAX_LAYERS} are taken")
        if length is not None and len(found) != length:
            raise self.error(name, f"has {len(found)} entries and other lists {length}", cure=f"write one {what}")
        for at, one in enumerate(found):
            if not low <= one <= high:
                raise self.error(name, f"has {one} as entry {at}", cure=f"write {low} to {high}")
        return found

    def flag(self, name: str, default: int | None = None) -> bool:
        """A 0 or 1."""
        if default is not None and not self.has(name):
            return bool(default)
        return bool(self.integer(name, low=0, high=1))


def _notes(data: Mapping[str, Any], known: frozenset[str]) -> tuple[str, ...]:
    return tuple(f"{key} is ignored: Galvatron reads no such key" for key in sorted(set(data) - known))


class _Hetu:
    """Reads ``galvatron_config_*.json``."""

    def __init__(self, data: dict[str, Any], file: Path) -> None:
        self.entries = _Entries(data, file)
        self.file = file

    def read(self, world: int | None) -> StrategyFile:
        entries, file = self.entries, self.file
        notes = list(_notes(entries.data, _HETU_KEYS))
        ways = entries.listed("tp_sizes_enc", None, "a layer", 1, MAX_DEGREE)
        count = len(ways)

        def of_layers(name: str, default: int, low: int, high: int) -> tuple[int, ...]:
            return entries.listed(name, count, "a layer", low, high) if entries.has(name) else (default,) * count

        pp = entries.integer("pp_deg")
        ranks = self._ranks(world, notes)
        default = entries.text("default_dp_type", default="ddp")
        if default not in _DEFAULT_ZERO:
            raise entries.error("default_dp_type", "must be ddp or zero2", default, "write one of the two")
        sharded = entries.listed("dp_types_enc", count, "a layer", 0, 1)
        ulysses = of_layers("use_sp", 0, 0, 1)
        recompute = of_layers("checkpoint", 0, 0, 1)
        context = of_layers("cp_sizes_enc", 1, 1, MAX_DEGREE)
        experts = of_layers("ep_sizes_enc", 1, 1, MAX_DEGREE)
        inside = of_layers("tp_of_ep_sizes_enc", 1, 1, MAX_DEGREE)
        in_a_row = of_layers("tp_consecutive_flags", 1, 0, 1)
        split = _splitter(ranks, pp, file, "world_size")
        layers = tuple(
            split(
                f"entry {at} of tp_sizes_enc", ways[at], bool(ulysses[at]), context[at],
                3 if sharded[at] else _DEFAULT_ZERO[default],
            ).replace(recompute=bool(recompute[at]), ep=experts[at], expert_tp=inside[at])
            for at in range(count)
        )  # fmt: skip
        whole_ends = self._sharded_ends()
        ends = split(
            "vtp", entries.integer("vtp", default=1), entries.flag("vsp", 0), entries.integer("vcp", default=1),
            3 if whole_ends else _DEFAULT_ZERO[default],
        ).end  # fmt: skip
        division = even_division(count, pp)
        if entries.has("pp_division"):
            division = entries.listed("pp_division", pp, "a stage", 0, MAX_LAYERS)
        if sum(division) != count or min(division) < 1:
            field = "pp_division" if entries.has("pp_division") else "pp_deg"
            raise entries.error(
                field, f"gives the stages {list(division)} of {count} layers", cure="every stage takes at least one"
            )
        schedule = entries.text("pipeline_type", default="gpipe")
        if schedule not in _SCHEDULES:
            raise entries.error("pipeline_type", "must be gpipe or pipedream_flush", schedule, "write one of the two")
        plan = LayerwisePlan(
            division=division,
            layers=layers,
            ends=ends,
            global_batch=entries.integer("global_bsz"),
            micro_batches=entries.integer("chunks"),
            schedule=_SCHEDULES[schedule],
            apart=tuple(at for at in range(count) if not in_a_row[at]),
        )
        plan.refuse_odd_batch(file, "global_bsz")
        return StrategyFile(plan, HETU, tuple(notes))

    def _ranks(self, world: int | None, notes: list[str]) -> int:
        """The ranks that the file says, else those that the caller does, else those of the file's name."""
        if self.entries.has("world_size"):
            stated: int = self.entries.integer("world_size")
            if world is not None and world != stated:
                raise self.entries.error(
                    "world_size", f"contradicts --world_size {world}", stated, "leave the flag out"
                )
            return stated
        named = _MACHINES.search(self.file.name)
        if world is None and named is None:
            raise self.entries.error(
                "world_size", "is missing, and the data parallel degree of every layer needs it",
                cure="add it, or give --world_size",
            )  # fmt: skip
        if world is None and named is not None:
            world = int(named[1]) * int(named[2])
            notes.append(f"world_size: {world}, as the file's name says")
        assert world is not None
        if not 1 <= world <= MAX_DEGREE:
            raise self.entries.error("world_size", f"must be from 1 to {MAX_DEGREE}", world, "correct the name")
        return world

    def _sharded_ends(self) -> bool:
        """ZeRO-3 of embedding and head: the search writes ``embed_sdp``, the runtime reads ``vocab_sdp``."""
        entries = self.entries
        stated = [name for name in ("vocab_sdp", "embed_sdp") if entries.has(name)]
        flags = [entries.flag(name) for name in stated]
        if len(set(flags)) > 1:
            raise entries.error(
                "vocab_sdp", f"contradicts embed_sdp {int(flags[1])}", int(flags[0]),
                "the runtime reads vocab_sdp: write the same in both",
            )  # fmt: skip
        return bool(flags) and flags[0]


class _Paddle:
    """Reads ``fine_grained_config.json``."""

    def __init__(self, data: dict[str, Any], file: Path) -> None:
        self.entries = _Entries(data, file)
        self.file = file

    def read(self) -> StrategyFile:
        entries = self.entries
        ways = entries.listed("tp_size_list", None, "a layer", 1, MAX_DEGREE)
        count = len(ways)

        def of_layers(name: str, low: int, high: int) -> tuple[int, ...]:
            return entries.listed(name, count, "a layer", low, high)

        pp = entries.integer("pp_size")
        data_ways = of_layers("dp_size_list", 1, MAX_DEGREE)
        zero = of_layers("sharding_stage_list", 0, 3)
        ulysses = of_layers("usp_flag_list", 0, 1)
        recompute = of_layers("recompute_list", 0, 1)
        stage_of = of_layers("pp_stage_idx_list", 0, pp - 1)
        ranks = ways[0] * data_ways[0] * pp
        split = _splitter(ranks, pp, self.file, "dp_size_list")
        layers = []
        for at in range(count):
            if ways[at] * data_ways[at] * pp != ranks:
                raise entries.error(
                    "dp_size_list",
                    f"makes {ways[at] * data_ways[at] * pp} ranks with tp_size_list at layer {at}, and {ranks} before",
                    cure="every layer fills its stage: tensor parallel x data parallel is the same in all",
                )
            if zero[at] == 1:
                raise entries.error("sharding_stage_list", f"has 1 for layer {at}", cure="write 0, 2 or 3")
            layer = split(f"entry {at} of tp_size_list", ways[at], bool(ulysses[at]), 1, zero[at])
            layers.append(layer.replace(recompute=bool(recompute[at])))
        if list(stage_of) != sorted(stage_of) or set(stage_of) != set(range(pp)):
            raise entries.error(
                "pp_stage_idx_list", "must rise from 0 to pp_size - 1 without leaving a stage out",
                cure="write the stage of every layer, in model order",
            )  # fmt: skip
        ends = split(
            "vtp", entries.integer("vtp"), entries.flag("vsp_flag"), 1, 3 if entries.flag("embed_sdp") else 2
        ).end
        plan = LayerwisePlan(
            division=tuple(stage_of.count(stage) for stage in range(pp)),
            layers=tuple(layers),
            ends=ends,
            global_batch=entries.integer("global_batch_size"),
            micro_batches=entries.integer("gradient_accumulation_steps"),
        )
        plan.refuse_odd_batch(self.file, "global_batch_size")
        return StrategyFile(plan, PADDLE, _notes(entries.data, _PADDLE_KEYS))


def _splitter(ranks: int, pp: int, file: Path, field: str) -> Callable[..., LayerStrategy]:
    """Function that makes a strategy of its degrees; the remaining ranks of a stage are data parallel."""
    if ranks % pp:
        raise InputError(f"is no multiple of {pp} stages", file=file, field=field, value=ranks, cure="correct one")
    stage = ranks // pp

    def split(name: str, ways: int, ulysses: bool, context: int, zero: int) -> LayerStrategy:
        if stage % (ways * context):
            raise InputError(
                f"does not divide the {stage} ranks of a stage",
                file=file,
                field=name,
                value=ways * context,
                cure=f"{ranks} ranks in {pp} stages have {stage} each",
            )
        tp, sp = (1, ways) if ulysses else (ways, 1)
        return LayerStrategy(tp=tp, sp=sp, cp=context, dp=stage // (ways * context), zero=zero)

    return split


def strategy_text(plan: LayerwisePlan, form: str) -> str:
    """A plan as a strategy file of ``hetu`` or ``paddle``.

    Raises
    ------
    InputError
        When the form cannot say the plan; with what can.
    """
    data = {HETU: _hetu_entries, PADDLE: _paddle_entries}[form](plan)
    return json.dumps(data, indent=4) + "\n"


def write_strategy(plan: LayerwisePlan, form: str, file: Path) -> Path:
    """Write a plan as a strategy file, atomically; see `strategy_text`."""
    return write_atomic(file, strategy_text(plan, form))


def _join(values: Sequence[object]) -> str:
    return ",".join(str(int(value)) if isinstance(value, bool) else str(value) for value in values)


def _refuse(problem: str, cure: str) -> InputError:
    return InputError(problem, field="plan", cure=cure)


def _hetu_entries(plan: LayerwisePlan) -> dict[str, object]:
    layers = plan.layers
    _refuse_unsaid(plan)
    # One default serves all layers that are not ZeRO-3; a layer without replicas can be either.
    plain = {each.zero for each in (*layers, plan.ends) if each.zero != 3 and each.replicas > 1}
    if len(plain) > 1:
        raise _refuse(
            "has layers with ZeRO-2 and layers without ZeRO, and Hetu's file one default_dp_type for both",
            "take one of the two, or write Paddle's file",
        )
    default = (plain or {each.zero for each in layers if each.zero != 3} or {2}).pop()
    data: dict[str, object] = {
        "pp_deg": plan.stages,
        "tp_sizes_enc": _join([each.ways for each in layers]),
        "tp_consecutive_flags": _join([at not in plan.apart for at in range(len(layers))]),
    }
    if any(each.cp > 1 for each in layers):
        data["cp_sizes_enc"] = _join([each.cp for each in layers])
    data |= {
        "dp_types_enc": _join([each.zero == 3 for each in layers]),
        "use_sp": _join([each.sp > 1 for each in layers]),
        "checkpoint": _join([each.recompute for each in layers]),
    }
    if any(each.ep > 1 or each.expert_tp > 1 for each in layers):
        data["ep_sizes_enc"] = _join([each.ep for each in layers])
        data["tp_of_ep_sizes_enc"] = _join([each.expert_tp for each in layers])
    data |= {
        "world_size": plan.world,
        "global_bsz": plan.global_batch,
        "chunks": plan.micro_batches,
        "pp_division": _join(plan.division),
        "pipeline_type": {word: name for name, word in _SCHEDULES.items()}[plan.schedule],
        "default_dp_type": {word: name for name, word in _DEFAULT_ZERO.items()}[default],
        "vtp": plan.ends.ways,
        "vsp": int(plan.ends.sp > 1),
    }
    if plan.ends.cp > 1 or "cp_sizes_enc" in data:
        data["vcp"] = plan.ends.cp
    sharded = int(plan.ends.zero == 3)
    # The search writes the one and the runtime reads the other (hybrid_parallel_config.py, `vocab_sdp`).
    return data | {"embed_sdp": sharded, "vocab_sdp": sharded}


def _paddle_entries(plan: LayerwisePlan) -> dict[str, object]:
    layers = plan.layers
    _refuse_unsaid(plan)
    if any(each.cp > 1 for each in (*layers, plan.ends)):
        raise _refuse("splits the context, and Paddle's file has no such degree", "write Hetu's file")
    if any(each.ep > 1 or each.expert_tp > 1 for each in layers):
        raise _refuse("has expert parallel layers, and Paddle's file has none", "write Hetu's file")
    if plan.schedule != "1f1b":
        raise _refuse(f"runs {plan.schedule}, and Paddle's Galvatron 1f1b", "write Hetu's file")
    stages = [stage for stage, count in enumerate(plan.division) for _ in range(count)]
    return {
        "pp_size": plan.stages,
        "vtp": plan.ends.ways,
        "vsp_flag": int(plan.ends.sp > 1),
        "embed_sdp": int(plan.ends.zero == 3),
        "global_batch_size": plan.global_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "dp_size_list": _join([each.dp for each in layers]),
        "sharding_stage_list": _join([each.zero for each in layers]),
        "tp_size_list": _join([each.ways for each in layers]),
        "usp_flag_list": _join([each.sp > 1 for each in layers]),
        "recompute_list": _join([each.recompute for each in layers]),
        "pp_stage_idx_list": _join(stages),
    }


def _refuse_unsaid(plan: LayerwisePlan) -> None:
    if plan.interleaves > 1:
        raise _refuse("has several chunks a stage, which a strategy file cannot express", "plan without virtual stages")
    if any(each.offload for each in plan.layers):
        raise _refuse("sends activations to the host, which a strategy file cannot express", "plan without offload")
