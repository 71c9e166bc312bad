"""The tensors of small runs' memory profiles by block: the data of `blackbox.memory_laws`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from taylor.blackbox.block_memory import CARRIED, TURN, BlockTrace
from taylor.blackbox.blocks import LawfulOperator, RunOperators, lawful_operators
from taylor.blackbox.memory_laws import RunMemory
from taylor.blackbox.module_runs import Again
from taylor.blackbox.passes import PassPart, all_parts, follows_tokens
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.stage_problem import DENSE, EMBEDDING, HEAD, LAYER, layer_names
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator

INPUT = "input"


@dataclass
class _Stretch:
    """Memory events of one part of a run: events in order; tensors that come from elsewhere, stay, or stay longest."""

    events: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    carried: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def recorded_memory(runs: Sequence[RecordedRun], dense: RecordedRun | None = None) -> list[RunMemory]:
    """Memory traces of each run; only the runs with the fewest layers show the tensors of blocks.

    Parameters
    ----------
    dense : RecordedRun or None
        A run with one dense layer more, where there are dense layers in front of others.

    Raises
    ------
    InputError
        When no run has a layer more, or none shows a head.
    """
    shown = [_tensors(run) for run in runs]
    twice = None if dense is None else _tensors(dense)
    tensors = lawful_operators(shown)
    least = min(run.setting.layers for run in runs)
    first = next(number for number, run in enumerate(runs) if run.setting.layers == least)
    # A block's output is as large as the next one's: nothing but lifetimes tells which is the layer's own.
    places = min(
        all_parts(tensors, shown, twice),
        key=lambda each: _crossing(_stretches(runs[first].allocations, tensors, each, first)),
    )
    every = [_stretches(run.allocations, tensors, places, number) for number, run in enumerate(runs)]
    few = [number for number, run in enumerate(runs) if run.setting.layers == least]
    _carry_alike([every[number] for number in few], [_sizes(runs[number], tensors, number) for number in few])
    return [
        replace(
            _memory(run, _traces(every[number]) if number in few else {}, every[number].get(PassPart.STEP)),
            forward=_forward(tensors, places, number) if number in few else {},
        )
        for number, run in enumerate(runs)
    ]


def _forward(
    tensors: Sequence[LawfulOperator], places: Sequence[PassPart | None], number: int
) -> dict[str, tuple[tuple[int, str], ...]]:
    """By layer: places of a run's allocations in its forward pass, and their names in the second forward pass."""
    found = {}
    for block, first, second in (
        (LAYER, PassPart.FORWARD, PassPart.BACKWARD),
        (DENSE, PassPart.DENSE, PassPart.DENSE_BACKWARD),
    ):
        born, again = (
            sorted((one.places[number], str(at)) for at, one in enumerate(tensors)
                   if number in one.places and places[at] is part)
            for part in (first, second)
        )  # fmt: skip
        found[block] = tuple((place, name) for (place, _), (_, name) in zip(born, again, strict=False))
    return found


def module_memory(run: RecordedRun, again: Again) -> RunMemory:
    """Memory of a run of one layer each kind, some modules of which run again: its peak alone."""
    memory = _memory(run, {}, None)
    blocks = tuple((name, again if how is True else how) for name, how in memory.blocks)
    return replace(memory, blocks=blocks)


def _sizes(run: RecordedRun, tensors: Sequence[LawfulOperator], number: int) -> dict[str, int]:
    """Bytes of a run's tensors by name."""
    places = {str(at): one.places[number] for at, one in enumerate(tensors) if number in one.places}
    return {name: run.allocations[place].bytes for name, place in places.items()}


def _carry_alike(runs: Sequence[Mapping[PassPart | None, _Stretch]], sizes: Sequence[Mapping[str, int]]) -> None:
    """State in every run the tensors that any run carries into a part; where one does not, they are gone at once.

    Memory of another stream is given back late, in one run in this part and in another one before it.
    """
    for part in PassPart:
        names = {name for run in runs if part in run for name in run[part].carried}
        for run, known in zip(runs, sizes, strict=True):
            if part not in run:
                continue
            stretch = run[part]
            missing = {name: known[name.split()[1]] for name in names if name.split()[1] in known}
            early = [f"-{name}" for name in missing if name not in stretch.carried]
            carried = {**missing, **stretch.carried}
            stretch.carried = {name: carried[name] for name in sorted(carried, key=lambda one: int(one.split()[1]))}
            stretch.events[:0] = early


def _tensors(run: RecordedRun) -> RunOperators:
    return RunOperators(run.setting, tuple(map(_tensor, run.allocations)))


def _tensor(one: Allocation) -> Operator:
    return Operator(one.name, "tensor", (), (), ((one.bytes,),))


def _memory(run: RecordedRun, traces: Mapping[str, BlockTrace], step: _Stretch | None) -> RunMemory:
    blocks = ((EMBEDDING, False), *((name, True) for name in layer_names(run.setting)), (HEAD, False))
    top = _most(step) if step is not None else 0
    return RunMemory(run.setting, blocks, 1, run.log.parameters, top, run.start_bytes, traces, run.peak_bytes)


def _crossing(stretches: Mapping[PassPart | None, _Stretch]) -> int:
    """Bytes that cross the borders of the layers' passes; what remains of a layer counts twice."""
    forward = [stretches[part] for part in (PassPart.DENSE, PassPart.FORWARD) if part in stretches]
    kept = sum(one.sizes[name] for one in forward for name in one.left)
    return kept + sum(
        sum(one.carried.values()) + sum(one.sizes[name] for name in one.left)
        for part, one in stretches.items()
        if part not in (PassPart.AFTER, PassPart.STEP, None)
    )


def _stretches(
    allocations: Sequence[Allocation],
    tensors: Sequence[LawfulOperator],
    places: Sequence[PassPart | None],
    number: int,
) -> dict[PassPart | None, _Stretch]:
    """Events of a run by the part that runs while they happen."""
    column = {one.places[number]: at for at, one in enumerate(tensors) if number in one.places}
    names = [str(column[at]) for at in range(len(allocations))]
    belongs = [places[column[at]] for at in range(len(allocations))]
    tokens = {at for at in range(len(allocations)) if follows_tokens(tensors[column[at]])}
    events = [(one.start_ns, 1, at) for at, one in enumerate(allocations)]
    events += [(one.end_ns, 0, at) for at, one in enumerate(allocations) if one.end_ns is not None]
    found: dict[PassPart | None, _Stretch] = {}
    now: PassPart | None = None
    born: dict[int, PassPart | None] = {}
    alive = 0
    for _, allocated, at in sorted(events):
        name, size = names[at], allocations[at].bytes
        if allocated:
            now = belongs[at]
            if now is PassPart.STEP and alive:  # Nothing of the step comes before the micro-batch is done.
                now = PassPart.AFTER if PassPart.BACKWARD in found else PassPart.BEFORE
            born[at] = now
        alive += (1 if allocated else -1) * (at in tokens)
        here = found.setdefault(now, _Stretch())
        if allocated:
            here.events.append(f"+{name}")
            here.sizes[name] = size
            here.left.append(name)
            continue
        origin = born.get(at, now)
        if origin == now:
            here.events.append(f"-{name}")
            here.left.remove(name)
        elif origin is PassPart.BEFORE and now not in _OF_LAYERS:
            found[origin].kept.append(name)
        elif not (now in _OF_LAYERS and origin in (PassPart.BEFORE, PassPart.DENSE, PassPart.FORWARD)):
            # Those are the layer's input, which stays from its forward pass on.
            here.carried[f"{CARRIED} {name}"] = size
            here.events.append(f"-{CARRIED} {name}")
    return found


_OF_LAYERS = (PassPart.BACKWARD, PassPart.DENSE_BACKWARD)


def _traces(stretches: Mapping[PassPart | None, _Stretch]) -> dict[str, BlockTrace]:
    empty = _Stretch()
    before, after = stretches.get(PassPart.BEFORE, empty), stretches.get(PassPart.AFTER, empty)
    forward, backward = stretches.get(PassPart.FORWARD, empty), stretches.get(PassPart.BACKWARD, empty)
    head = stretches.get(PassPart.HEAD, empty)
    found = {
        EMBEDDING: _trace(0, [*before.events, *_given(before)], [*_all(after), *_late(before)], before, after),
        LAYER: _layer(forward, backward),
        HEAD: _trace(0, _all(head), [], head),
    }
    dense = stretches.get(PassPart.DENSE)
    return found if dense is None else {**found, DENSE: _layer(dense, stretches.get(PassPart.DENSE_BACKWARD, empty))}


def _layer(forward: _Stretch, backward: _Stretch) -> BlockTrace:
    kept = sum(forward.sizes[name] for name in forward.left)
    return _trace(kept, *_turned(backward, len(forward.sizes)), backward)


def _trace(kept: int, forward: list[str], backward: list[str], *stretches: _Stretch) -> BlockTrace:
    sizes = {INPUT: kept}
    for one in stretches:
        sizes |= one.sizes | one.carried
    return BlockTrace(sizes, (f"+{INPUT}", *forward, TURN, *backward, f"-{INPUT}"), INPUT)


def _all(one: _Stretch) -> list[str]:
    return [*(f"+{name}" for name in one.carried), *one.events, *_given(one)]


def _given(one: _Stretch) -> list[str]:
    """Release what remains after the part, except what it keeps: it belongs to the next part."""
    return [f"-{name}" for name in one.left if name not in one.kept]


def _late(one: _Stretch) -> list[str]:
    return [f"-{name}" for name in one.kept]


def _turned(backward: _Stretch, again: int) -> tuple[list[str], list[str]]:
    """A layer's second forward pass, of `again` tensors, and its backward pass."""
    seen = 0
    for at, event in enumerate(backward.events):
        seen += event[0] == "+"
        if seen > again:
            carried = [f"+{name}" for name in backward.carried]
            early = [event for event in backward.events[:at] if not event.startswith(f"-{CARRIED}")]
            late = [event for event in backward.events[:at] if event.startswith(f"-{CARRIED}")]
            return early, [*carried, *late, *backward.events[at:], *_given(backward)]
    return list(backward.events), _given(backward)


def _most(one: _Stretch) -> int:
    now = most = 0
    for event in one.events:
        size = one.sizes.get(event[1:], 0)
        now += size if event[0] == "+" else -size
        most = max(most, now)
    return most
