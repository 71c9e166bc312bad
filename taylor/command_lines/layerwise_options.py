"""Options of both of Galvatron's search programs, joined with a search file; contradictions are refused here."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.base.errors import InputError
from taylor.layerwise.search import OuterSpace
from taylor.layerwise.space import SpaceLimits, batch_sizes
from taylor.parsers.galvatron.search_file import SearchFile, read_search_file
from taylor.pipeline.schedule import PLAIN
from taylor.workflows.layerwise.layerwise import LayerwiseRequest
from taylor.workflows.layerwise.layerwise_search import ESTIMATE, SearchRequest

MOST_BATCHES = 10_000
_PATHS = (
    "time_profile_data_path", "memory_profile_data_path", "allreduce_coe_path", "p2p_coe_path", "overlap_coe_path",
    "sp_time_path",
)  # fmt: skip
_IN_FILE = {
    "model": "model_size",
    "gbs": "settle_bsz",
    "micro_batches": "settle_chunk",
    "time_mode": "time_profile_mode",
    "memory_mode": "memory_profile_mode",
}
"""Names in a search file that differ from the flag's."""


@dataclass(frozen=True)
class Options:
    """Values from the command line or a search file.

    Parameters
    ----------
    args : argparse.Namespace
    search_file : SearchFile or None
    """

    args: argparse.Namespace
    search_file: SearchFile | None

    @property
    def notes(self) -> tuple[str, ...]:
        """Options without effect."""
        notes = list(() if self.search_file is None else self.search_file.notes)
        if self.args.log_dir is not None:
            notes.append("--log_dir has no effect: see --result_json")
        return tuple(notes)

    @property
    def batch_settled(self) -> bool:
        """Return whether one batch was given."""
        return self.get("gbs") is not None

    def _given(self, name: str) -> tuple[Any, bool]:
        """Value, and whether the file stated it; the command line takes precedence."""
        mine = getattr(self.args, name, None)
        in_file = _IN_FILE.get(name, name)
        if name not in self.args.given and self.search_file and in_file in self.search_file.options:
            return self.search_file.options[in_file], True
        return mine, False

    def get(self, name: str, default: Any = None) -> Any:
        """Value; the default where nobody stated it."""
        value = self._given(name)[0]
        return default if value is None else value

    def error(self, name: str, problem: str, cure: str) -> InputError:
        """Error about one value, at its place."""
        value, filed = self._given(name)
        if isinstance(value, tuple):
            value = ",".join(map(str, value))
        if filed and self.search_file is not None:
            place = self.search_file.fields.get(_IN_FILE.get(name, name), name)
            return InputError(problem, file=self.search_file.file, field=place, value=value, cure=cure)
        return InputError(problem, field=self.args.given.get(name, f"--{name}"), value=value, cure=cure)

    def needed(self, name: str, what: str) -> Any:
        """Value that must be there."""
        value = self.get(name)
        if value is None:
            raise InputError(f"is missing: {what}", field=f"--{name}", cure="give it, or a search file that says it")
        return value

    def alike(self, name: str) -> int:
        """One number for all kinds of layers."""
        value = self.get(name)
        if isinstance(value, int):
            return value
        assert isinstance(value, tuple)
        kinds = self.get("num_layertype")
        if kinds is not None and len(value) != kinds:
            raise self.error(name, f"has {len(value)} numbers, and --num_layertype is {kinds}", "give one a kind")
        if len(set(value)) > 1:
            raise self.error(
                name, "differs by kind of layer", "give one number for all: one width and one length are planned"
            )
        return int(value[0])


def search_request(args: argparse.Namespace) -> tuple[Options, SearchRequest]:
    """Requested search.

    Raises
    ------
    InputError
        When something is missing, or two options contradict each other.
    """
    paths = [Path(path) for path in args.paths]
    files = [path for path in paths if path.suffix in (".yaml", ".yml")]
    if len(files) > 1:
        raise InputError("is a second search file", field=str(files[1]), cure="give one")
    found = read_search_file(files[0]) if files else None
    options = Options(args, found)
    named = [Path(value) for name in _PATHS if (value := getattr(args, name)) is not None]
    folders = [path for path in paths if path not in files] + named
    if found is not None and not folders:
        folders = list(found.profiles)
    if not folders and args.costs != ESTIMATE:
        raise InputError(
            "is missing", field="PATH", cure="name the profiles, or --costs estimate with --model and --device"
        )
    estimate = args.costs == ESTIMATE
    world = _world(options)
    layers = _layers(options, estimate)
    if not estimate:
        for name, what in (("hidden", "the width of the hidden states"), ("memory", "the memory of a rank")):
            options.needed(name, what)
    options.needed("seq", "tokens a sample")
    job = LayerwiseRequest(
        tuple(folders), options.alike("seq"), options.alike("hidden") if options.get("hidden") else 0,
        options.get("memory", 0.0), args.costs, options.get("model"), options.get("time_mode"),
        options.get("memory_mode"), options.get("sp_space") == "tp", options.get("kv_hidden"),
        bool(options.get("reduce_every_micro_batch")), bool(options.get("sequence_parallel", True)),
        bool(options.get("global_memory_buffer", False)), args.whole_mib, options.get("mixed_precision", "bf16"),
    )  # fmt: skip
    _refuse_modes(options, job)
    coarse = options.get("fine_grained_mode") == 0
    if options.get("search_granularity") is not None:
        other = options.get("search_granularity") == "coarse-grained"
        if options.get("fine_grained_mode") is not None and other != coarse:
            raise options.error("search_granularity", "contradicts --fine_grained_mode", "give one of the two")
        coarse = other
    space = OuterSpace(
        _batches(options), _micro_batches(options), options.get("pp", ()), options.get("vpp"),
        "gpipe" if options.get("pipeline_type") == "gpipe" else PLAIN, limits=_limits(options), one_for_all=coarse,
    )  # fmt: skip
    return options, SearchRequest(
        job, world, layers, space, _zeros(options), args.device, args.gap, args.t, args.rival and not estimate,
        workers=_workers(options),
    )  # fmt: skip


def _workers(options: Options) -> int:
    """Processes: the requested number, or cores; one without Galvatron's ``parallel_search``."""
    asked, parallel = options.get("worker"), options.get("parallel_search")
    if parallel is False:
        if "parallel_search" in options.args.given and "worker" in options.args.given and asked > 1:
            raise options.error("worker", "contradicts --parallel_search n", "give one of the two")
        return 1
    return asked or os.cpu_count() or 1


def _world(options: Options) -> int:
    nodes, cards, world = options.get("num_nodes"), options.get("num_gpus_per_node"), options.get("world_size")
    if world is None:
        if nodes is None and cards is None:
            raise InputError("is missing", field="--world_size", cure="give the ranks")
        world = (nodes or 1) * (cards or 8)
    elif "world_size" not in options.args.given or "num_nodes" in options.args.given:
        stated = (nodes or 1) * (cards or world // (nodes or 1))
        if stated != world:
            raise options.error("world_size", f"contradicts {nodes or 1} nodes with {cards} cards", "correct one")
    profiled = options.get("profile_gpu_num")
    if profiled is not None and profiled != world:
        raise options.error(
            "profile_gpu_num", f"contradicts the search's {world} ranks",
            f"give the profiles of {world} ranks, or --world_size {profiled}",
        )  # fmt: skip
    return int(world)


def _layers(options: Options, estimate: bool) -> tuple[int, ...] | None:
    by_kind, total = options.get("layers"), options.get("layernum")
    if isinstance(by_kind, int):
        by_kind = (by_kind,)
    kinds = options.get("num_layertype")
    if by_kind is None and total is None:
        if estimate:
            return None
        options.needed("layers", "layers of the model")
    if by_kind is None:
        by_kind = (total,)
    if kinds is not None and len(by_kind) != kinds:
        raise options.error("layers", f"has {len(by_kind)} numbers, and --num_layertype is {kinds}", "give one a kind")
    if total is not None and sum(by_kind) != total:
        raise options.error(
            "layernum", f"contradicts the profiles' {sum(by_kind)} layers (--layernum_list)", f"take {sum(by_kind)}"
        )
    return tuple(by_kind)


def _refuse_modes(options: Options, job: LayerwiseRequest) -> None:
    if job.memory_mode == "sequence" and not job.sequence_parallel:
        # search_engine.py:339-341 of Hetu's.
        raise options.error(
            "memory_mode", "scales what was measured under sequence parallelism, which is off",
            "take static, or --sequence_parallel y",
        )  # fmt: skip
    for name in ("time_mode", "memory_mode"):
        mode = options.get(name)
        known = ("static", "batch", "sequence") if name == "time_mode" else ("static", "sequence")
        if mode is not None and mode not in known:
            raise options.error(name, "is no mode of its search", f"take {', '.join(known)}")


def _batches(options: Options) -> tuple[int, ...]:
    settled = options.get("gbs")
    if settled is not None:
        if "gbs" in options.args.given:
            for name in ("min_bsz", "max_bsz"):
                if name in options.args.given and getattr(options.args, name) != settled:
                    raise options.error(name, f"contradicts the settled batch of {settled}", "give one of the two")
        return (int(settled),)
    least, most = options.get("min_bsz"), options.get("max_bsz")
    if least is None and most is None:
        raise InputError("is missing", field="--gbs", cure="give it, or --min_bsz and --max_bsz")
    least, most = least or most, most or least
    if least > most:
        raise options.error("min_bsz", f"is above the largest batch, {most}", "correct one")
    step = options.get("bsz_scale", 1)
    if (most - least) // step > MOST_BATCHES:
        raise options.error("bsz_scale", f"makes more than {MOST_BATCHES} batches", "take a larger step")
    batches = batch_sizes(least, most, step)
    if not batches:
        raise options.error("bsz_scale", f"leaves no batch from {least} to {most}", "take a smaller step")
    return batches


def _micro_batches(options: Options) -> tuple[int, ...]:
    given = options.get("micro_batches", ())
    numbers: tuple[int, ...] = (given,) if isinstance(given, int) else given
    settled = options.get("gbs")
    for number in numbers:
        if settled is not None and settled % number:
            raise options.error("micro_batches", f"does not divide the batch of {settled}", "correct one")
    return numbers


def _limits(options: Options) -> SpaceLimits:
    def off(name: str, default: bool = False) -> bool:
        return bool(options.get(name, default))

    def most(name: str) -> int | None:
        value = options.get(name)
        return None if value in (None, -1) else int(value)

    for name, disable in (("max_tp_deg", "disable_tp"), ("max_sp_deg", "disable_sp"), ("max_pp_deg", "disable_pp")):
        if name in options.args.given and disable in options.args.given and off(disable) and most(name) != 1:
            raise options.error(name, f"contradicts --{disable}", "give one of the two")
    if off("disable_pp") and max(options.get("pp", (1,))) > 1:
        raise options.error("pp", "contradicts --disable_pp", "give one of the two")
    return SpaceLimits(
        off("disable_dp"), off("disable_tp"), off("disable_sp"), off("disable_cp", True), off("disable_pp"),
        off("disable_ckpt"), off("disable_fsdp"), off("disable_embedding_lmhead_tp"),
        off("disable_embedding_lmhead_sp"), off("disable_sdp"), most("max_tp_deg"), most("max_sp_deg"),
        most("max_cp_deg"), most("max_pp_deg"), offload=options.args.offload, all_degrees=options.args.all_degrees,
    )  # fmt: skip


def _zeros(options: Options) -> tuple[int, ...] | None:
    given: tuple[int, ...] | None = options.get("zeros")
    named: Mapping[str, tuple[int, ...]] = {"ddp": (0, 3), "zero2": (2, 3), "zero3": (2, 3)}
    kind = options.get("default_dp_type")
    if given is not None:
        if kind is not None and "default_dp_type" in options.args.given and given != named[kind]:
            raise options.error("default_dp_type", "contradicts --zeros", "give one of the two")
        return given
    return None if kind is None else named[kind]
