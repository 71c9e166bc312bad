"""Options of Galvatron's manuals under their own names, put into those of `taylor layerwise`.

Names, defaults and values: Hetu-Galvatron 67b224be galvatron/core/arguments.py, ``galvatron_search_args``; what they
mean: cea12ff docs/en/source/4_galvatron_model_usage/galvatron_model_usage.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from taylor.base.errors import InputError
from taylor.command_lines.arguments import positive_int, yes_no

Value = TypeVar("Value")

SPACES: Mapping[str, Mapping[str, Any]] = {
    "full": {},
    "3d": {"disable_fsdp": True, "fine_grained_mode": 0},
    "dp+tp": {"disable_pp": True, "disable_fsdp": True},
    "dp+pp": {"disable_tp": True, "disable_sp": True, "disable_fsdp": True},
    "dp": {"disable_tp": True, "disable_sp": True, "disable_pp": True, "disable_fsdp": True},
    "sdp": {"disable_tp": True, "disable_sp": True, "disable_pp": True, "zeros": (3,)},
    "tp": {"disable_dp": True, "disable_pp": True},
    "pp": {"disable_dp": True, "disable_tp": True, "disable_sp": True},
}
"""Dimensions that ``--search_space`` leaves out; recompute goes by ``--disable_ckpt`` alone."""
MODES = ("static", "batch", "sequence", "hybrid")
WITHOUT_EFFECT = {
    "recommend_min_bsz": "batches are bounded, and cut off so",
    "use_pipeline_costmodel": "a pipeline is always simulated",
    "costmodel_coe": "costs are as measured",
    "embed_sdp": "the search decides on the embedding too",
    "vocab_size": "the profiles have the embedding's cost",
    "num_attention_heads": "the profiles have the layer's cost",
    "make_vocab_size_divisible_by": "the profiles have the embedding's cost",
}
"""Options of its search with a value that have no effect here, and why."""
_PATH_FLAGS = frozenset(
    f"{name}_path"
    for name in (
        "time_profile_data", "time_profiling", "memory_profile_data", "memory_profiling", "allreduce_coe",
        "allreduce_bandwidth_config", "p2p_coe", "p2p_bandwidth_config", "overlap_coe", "sp_time", "output_config",
    )
)  # fmt: skip


def unless_minus_one(kind: Callable[[str], Value]) -> Callable[[str], Value | None]:
    """Type of a value for which -1 says that nothing is settled."""

    def convert(text: str) -> Value | None:
        return None if text.strip() == "-1" else kind(text)

    return convert


def add_manual_names(parser: argparse.ArgumentParser) -> None:
    """Add the manuals' options that other names already say, or that have no effect."""
    group = parser.add_argument_group("names of Galvatron's manuals")
    group.add_argument("--search_space", choices=tuple(SPACES), help="dimensions searched; 3d: one strategy for all")
    group.add_argument("--profile_mode", choices=MODES, help="of time and memory (batch: memory static)")
    group.add_argument("--no_global_memory_buffer", action="store_true", help="gathered states keep no buffer")
    group.add_argument("--no_async_grad_reduce", action="store_true", help="as --reduce_every_micro_batch")
    group.add_argument("--use_ulysses", action="store_true", help="Ulysses in place of tensor parallelism")
    group.add_argument("--disable_tp_consec", type=yes_no, metavar="0/1", help="TP ranks always follow each other here")
    for name, what in (("model_config", "sizes"), ("layernum", "layers"), ("seqlen", "length")):
        group.add_argument(
            f"--set_{name}_manually", type=yes_no, metavar="0/1", help=f"{what} as given, not the model's preset"
        )
    group.add_argument("--num_hidden_layers", type=positive_int, metavar="N", help="layers, where they are set by hand")
    group.add_argument("--hidden_size", type=positive_int, metavar="N", help="width, where it is set by hand")
    for name in WITHOUT_EFFECT:
        group.add_argument(f"--{name}", metavar="X", help="taken, without effect")


def settle_manual_names(args: argparse.Namespace) -> tuple[str, ...]:
    """Put the manuals' options into those of `taylor layerwise`; returns a note for each without effect.

    Raises
    ------
    InputError
        When two options contradict each other, or a preset is not registered.
    """
    if args.search_space is not None:
        for name, value in SPACES[args.search_space].items():
            _settle(args, name, value, f"--search_space {args.search_space}")
    if args.profile_mode is not None:
        _settle(args, "time_mode", args.profile_mode, "--profile_mode")
        # Batches change no memory: its engine reads the static table then.
        memory = "static" if args.profile_mode == "batch" else args.profile_mode
        _settle(args, "memory_mode", memory, "--profile_mode")
    if args.no_global_memory_buffer:
        _settle(args, "global_memory_buffer", False, "--no_global_memory_buffer")
    if args.no_async_grad_reduce:
        _settle(args, "reduce_every_micro_batch", True, "--no_async_grad_reduce")
    if args.sp_space == "sp":
        _settle(args, "disable_tp", True, "--sp_space sp")
    if args.use_ulysses:
        _settle(args, "disable_tp", True, "--use_ulysses")
    _settle_model(args)
    notes = [f"--{name} has no effect: {why}" for name, why in WITHOUT_EFFECT.items() if name in args.given]
    if args.disable_tp_consec is False:
        notes.append("--disable_tp_consec 0 has no effect: TP ranks follow each other in every strategy")
    return tuple(notes)


def _settle(args: argparse.Namespace, name: str, value: Any, said: str) -> None:
    """Set one option; what the user gave must not say otherwise."""
    if name in args.given and getattr(args, name) not in (None, value):
        raise InputError(f"contradicts {said}", field=args.given[name], value=getattr(args, name), cure="give one")
    setattr(args, name, value)
    args.given.setdefault(name, said)


def _settle_model(args: argparse.Namespace) -> None:
    """Sizes by hand, or those of the preset that ``--model_size`` names, as the three switches say."""
    by_hand = args.set_model_config_manually is True
    asked = {"hidden": args.hidden_size, "layers": args.num_hidden_layers}
    if args.set_model_config_manually is False and args.model is not None and any(asked.values()):
        from taylor.register.registry import Registry

        preset = Registry.load().model(args.model)
        asked["hidden"] = preset.hidden
        if args.set_layernum_manually is not True:
            asked["layers"] = preset.n_layers
    elif args.set_layernum_manually is False and not by_hand and args.layers is not None:
        asked["layers"] = None
    for name, value in asked.items():
        if value is not None:
            _settle(args, name, (value,), f"--{'hidden_size' if name == 'hidden' else 'num_hidden_layers'}")


def with_script(arguments: Sequence[str]) -> list[str]:
    """The arguments with a script's options in its place: those of the ``search_dist.py`` that it starts.

    Paths are those of the folder in which the script is meant to run. What follows on the command line goes before the
    script's options.

    Raises
    ------
    InputError
        When the script cannot be read, starts no search, or an option's value is known to a running shell alone.
    """
    found = list(arguments)
    at = next((at for at, word in enumerate(found) if word.endswith(".sh") and _is_path(found, at)), None)
    if at is None:
        return found
    from taylor.parsers.galvatron.script import search_started

    started = search_started(Path(found[at]))
    words = list(started.words)
    for place, word in enumerate(words):
        flag = words[place - 1].lstrip("-").replace("-", "_") if place else ""
        if place in started.unknown:
            cure = "set the variable where the script is read"
            raise InputError("is known only when the script runs", file=started.file, field=flag, value=word, cure=cure)
        if flag in _PATH_FLAGS or (not word.startswith("-") and word.endswith((".yaml", ".yml"))):
            words[place] = str(started.folder / word)
    return [*words, *found[:at], *found[at + 1 :]]


def _is_path(words: Sequence[str], at: int) -> bool:
    return at == 0 or not words[at - 1].startswith("-") or words[at - 1] == "--json"
