"""Flags of MindSpeed that change how a layer runs and not what it computes: small runs compare them, with and without.

Which launches start with them: MindSpeed 028de58c mindspeed/features_manager/tensor_parallel/mc2.py:17-34,
moe/moe_alltoall_overlap.py:22-48, fusions/fused_moe_permute.py:26-50; MindSpeed-LLM c77308a1
mindspeed_llm/features_manager/transformer/transformer_block.py:20-32 (MC2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from taylor.parsers.megatron.context import ALGORITHM, RING, ULYSSES, algorithm_of
from taylor.parsers.megatron.mindspeed import is_mindspeed
from taylor.parsers.megatron.placing import Wanted
from taylor.parsers.small_run import RunSetting, Switch
from taylor.parsers.text.flags import Flags

MC2, PERMUTE, OVERLAP = "mc2", "token_permute", "alltoall_overlap"
BY_RING, BY_HEADS = "cp_ring", "cp_ulysses"
_ALGORITHMS = {BY_RING: RING, BY_HEADS: ULYSSES}
"""Values of `ALGORITHM`. Their conditions: MindSpeed 028de58c mindspeed/arguments.py:645-662; releases differ in those
that they take (MindSpeed-LLM c77308a1 mindspeed_llm/features_manager/context_parallel/context_parallel_feature.py:24).
"""
_FLAGS = {
    MC2: ("use-ascend-mc2",),
    PERMUTE: ("use-fused-moe-token-permute-and-unpermute", "moe-permute-fusion"),
    OVERLAP: ("moe-alltoall-overlap-comm",),
}
"""By name: the flag that turns it on, and others that mean the same."""
_ABOVE = {MC2: ("tp",), PERMUTE: ("experts",), OVERLAP: ("ep",)}
_OVERLAPS = {MC2: ("tp",), OVERLAP: ("ep", "tp and ep")}
"""Groups whose collectives each overlaps: of TP beside the GEMMs that need them, of EP beside the experts' GEMMs."""
_NO_MC2 = ("use-ascend-coc", "use-pipe-experts", "unaligned-linear")


def switches(flags: Flags) -> tuple[Switch, ...]:
    """Those that a launch starts with.

    MC2 is off in small runs: it fuses GEMMs with TP's communication, so that runs without TP have other operators
    (MindSpeed's own small runs leave it out too, mindspeed/auto_settings/config/search_config.py:81).
    """
    if not is_mindspeed(flags):
        return ()
    experts = flags.integer("num-experts", default=1) > 1
    grouped = flags.has("moe-grouped-gemm")
    dispatcher = flags.text("moe-token-dispatcher-type", default="allgather")
    extended = flags.has("moe-tp-extend-ep")
    # By sequence TP may be above one with experts that TP splits no more.
    sequence = dispatcher == "alltoall_seq" and extended and flags.has("moe-permutation-async-comm")
    capacity = flags.has("moe-expert-capacity-factor") and not flags.has("moe-pad-expert-input-to-capacity")
    found = []
    if not (experts and grouped) and not flags.has(*_NO_MC2):
        stays = flags.has(*_FLAGS[MC2])
        found.append(Switch(MC2, _shown(MC2), False, _ABOVE[MC2], (OVERLAP,), stays, _OVERLAPS[MC2]))
    if experts and dispatcher in ("alltoall", "alltoall_seq") and not capacity:
        found.append(Switch(PERMUTE, _shown(PERMUTE), flags.has(*_FLAGS[PERMUTE]), _ABOVE[PERMUTE]))
    if experts and grouped and (sequence or (dispatcher == "alltoall" and not extended)):
        on = flags.has(*_FLAGS[OVERLAP])
        found.append(Switch(OVERLAP, _shown(OVERLAP), on, _ABOVE[OVERLAP], (MC2,), overlaps=_OVERLAPS[OVERLAP]))
    return (*found, *_algorithms(flags))


def _algorithms(flags: Flags) -> tuple[Switch, ...]:
    """The other algorithm of context parallelism: ring attention where the file exchanges heads, and the reverse."""
    own = algorithm_of(flags)
    if own not in _ALGORITHMS.values() or flags.text("position-embedding-type", default="") == "alibi":
        return ()
    other = BY_RING if own == ULYSSES else BY_HEADS
    heads = flags.integer("num-attention-heads") if other == BY_HEADS else 0
    # A ring turns as often as CP has ranks, whatever the shapes of one turn.
    return (Switch(other, f"--{ALGORITHM} {_ALGORITHMS[other]}", False, ("cp",), overlaps=("cp", "tp and cp"),
                   heads=heads, alike=("cp",)),)  # fmt: skip


def _shown(name: str) -> str:
    return f"--{_FLAGS[name][0]}"


def small_flags(flags: Flags, run: RunSetting, switched: Collection[str]) -> Wanted:
    """Switches of a small run: as the file states them, but for those switched, and none that cannot start."""
    on = {name: name != MC2 and flags.has(*names) for name, names in _FLAGS.items()}
    wanted = _wanted(flags, run, {name: state != (name in switched) for name, state in on.items()})
    return wanted | _algorithm(flags, run, switched)


def planned_flags(flags: Flags, run: RunSetting, switched: Mapping[str, bool]) -> Wanted:
    """Switches of a plan: as the file states them, but for those given, and none that cannot start."""
    on = {name: flags.has(*names) for name, names in _FLAGS.items()}
    on |= {name: state for name, state in switched.items() if name in _FLAGS}
    return _wanted(flags, run, on) | _algorithm(flags, run, [name for name, state in switched.items() if state])


def _algorithm(flags: Flags, run: RunSetting, switched: Collection[str]) -> Wanted:
    """The algorithm of context parallelism, by name even where the file leaves it to a release's default."""
    if run.cp == 1 or not is_mindspeed(flags):
        return {}
    return {ALGORITHM: next((value for name, value in _ALGORITHMS.items() if name in switched), algorithm_of(flags))}


def _wanted(flags: Flags, run: RunSetting, on: Mapping[str, bool]) -> Wanted:
    wanted: Wanted = {}
    for name, state in on.items():
        state = state and all(getattr(run, degree) > 1 for degree in _ABOVE[name])
        there = [flag for flag in _FLAGS[name] if flags.has(flag)]
        if state and not there:
            wanted[_FLAGS[name][0]] = True
        elif not state:
            wanted |= {flag: False for flag in there}
    return wanted
