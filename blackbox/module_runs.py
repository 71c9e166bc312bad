"""Recompute by module, from small runs in which one module of every layer runs again: its operators and its tensors.

No profile names a layer's modules. A run that recomputes one of them has its operators once more than a run that
recomputes none, and keeps fewer tensors. Both have the degrees of the base run, whose laws then say how large and how
long these operators and tensors are elsewhere. A set of modules adds up, except for modules inside others. Where dense
layers stand in front of others a run shows both kinds, and a module may be in one of them or in both.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from taylor.base.errors import InputError
from taylor.blackbox.blocks import LawfulOperator
from taylor.blackbox.module_subsets import CandidateModule, unbeaten, unbeaten_subsets
from taylor.blackbox.recorded import RecordedRun
from taylor.cost_model.choices.module_choices import choice_name
from taylor.parsers.profiles.allocations import Allocation
from taylor.parsers.profiles.operators import Operator
from taylor.parsers.small_run import RunSetting

Again = bool | str
"""Whether a block runs again in its backward pass; or the modules of it that do, by the name of their choice."""
SETTLED = 4
"""Allocations after the layers' forward passes from which on a tensor counts as kept: one more than by which memory of
another stream is given back late (`memory_laws.LATE`)."""
PAGE = 512.0
"""Bytes to which allocators round a tensor up."""


@dataclass(frozen=True)
class Module:
    """A module that runs again, as a small run shows it in layers of one kind.

    Parameters
    ----------
    name : str
        Its name in the launcher's files.
    operators : frozenset of int
        Those of a layer's forward pass that run again, by their places among all operators.
    freed, added : frozenset of str
        Tensors of a layer that are no longer kept for the backward pass, and those kept in addition.
    order : tuple of LawfulOperator
        The operators in their order.
    last : int
        Number in `order` of the base run's last one.
    """

    name: str
    operators: frozenset[int]
    freed: frozenset[str]
    added: frozenset[str] = frozenset()
    order: tuple[LawfulOperator, ...] = ()
    last: int = 0

    @property
    def is_absent(self) -> bool:
        """Return whether layers of the kind have nothing of it."""
        return not self.operators and not self.freed

    def passes_on(self, run: RunSetting) -> float | None:
        """Elements of what a run's last operator makes, where the base run's last one is absent; else None.

        As of a collective over one rank, whose input then is the module's output: what follows keeps it. Infinite
        where its size is not known.
        """
        there = [at for at, one in enumerate(self.order) if _stands(one, run)]
        if not there or self.last in there:
            return None
        operator = self.order[there[-1]].at(run)
        return float(max(map(math.prod, operator.outputs))) if operator is not None and operator.outputs else math.inf


def _stands(one: LawfulOperator, run: RunSetting) -> bool:
    """Return whether a layer of a run has an operator, whatever the model's layers are."""
    return one.condition is None or one.condition.is_met(run.replace(layers=one.condition.least_layers))


def repeated_operators(
    operators: Sequence[LawfulOperator],
    forward: Mapping[str, Sequence[int]],
    number: int,
    base: RecordedRun,
    run: RecordedRun,
) -> dict[str, frozenset[int]]:
    """Operators of each kind's forward pass that a run has once more than it would have without recompute.

    Parameters
    ----------
    forward : mapping of str to sequence of int
        By kind of layer: places of its forward operators among `operators`, in order.
    number : int
        Number of the base run in their `places`.
    base : RecordedRun
        The same run where every layer runs again.

    Raises
    ------
    InputError
        When the run differs from the base in more than what it repeats.
    """
    seen = base.operators().operators
    shown = {
        kind: [(at, seen[operators[at].places[number]]) for at in places if number in operators[at].places]
        for kind, places in forward.items()
    }
    # The base has each of them twice: in the forward pass and once more.
    excess = Counter(run.operators().operators)
    excess.subtract(seen)
    excess.update(one for each in shown.values() for _, one in each)
    repeated = _chosen(shown, _settled(excess))
    found = dict[str, frozenset[int]]()
    for kind, places in forward.items():
        own = [at for at, _ in shown[kind]]
        mine = repeated.intersection(own)
        found[kind] = frozenset(mine | {at for at in places if at not in own and _is_amid(at, own, mine, operators)})
    return found


def _is_amid(at: int, own: Sequence[int], found: Collection[int], operators: Sequence[LawfulOperator]) -> bool:
    """Return whether an operator that stands only under other degrees is of a module.

    Both its neighbours in the base run are, or one of them is and it stands in the place of another one that is.
    """
    before = max((one for one in own if one < at), default=-1)
    after = min((one for one in own if one > at), default=-1)
    if before in found and after in found:
        return True
    mine = operators[at].condition
    return (before in found or after in found) and any(
        operators[one].like.type == operators[at].like.type and mine.opposite_in(its)
        for one in found
        if mine is not None and (its := operators[one].condition) is not None
    )


def _signature(one: Operator) -> tuple[object, ...]:
    """All of an operator but its sizes, which may follow the data."""
    return one.type, one.core, one.dtypes, tuple(map(len, one.inputs)), tuple(map(len, one.outputs))


def _settled(excess: Counter[Operator]) -> Counter[Operator]:
    """What a run has too many, after those of other sizes made up for what it lacks."""
    for lacking in [one for one, count in excess.items() if count < 0]:
        alike = [one for one, count in excess.items() if count > 0 and _signature(one) == _signature(lacking)]
        for one in alike:
            moved = min(excess[one], -excess[lacking])
            excess[one] -= moved
            excess[lacking] += moved
        if excess[lacking] < 0:
            cure = "profile every small run with the same flags"
            raise InputError("lacks an operator of the base run", field="small run", value=lacking.type, cure=cure)
    return +excess


def _chosen(shown: Mapping[str, Sequence[tuple[int, Operator]]], repeated: Counter[Operator]) -> set[int]:
    """Forward operators that are repeated; of alike ones those amid the others of their kind, or next to them."""
    kinds = {at: kind for kind, each in shown.items() for at, _ in each}
    places: dict[object, list[int]] = {}
    by_signature: dict[object, list[int]] = {}
    for at, one in (each for every in shown.values() for each in every):
        places.setdefault(one, []).append(at)
        by_signature.setdefault(_signature(one), []).append(at)
    found, open_counts = set[int](), list[tuple[int, list[int]]]()
    for one, count in repeated.items():
        like = places.get(one) or by_signature.get(_signature(one), [])
        if count > len(like):
            cure = "profile every small run with the same flags"
            raise InputError("repeats what no forward pass has", field="small run", value=one.type, cure=cure)
        if count == len(like):
            found.update(like)
        else:
            open_counts.append((count, like))
    known = {kind: [at for at in found if kinds[at] == kind] for kind in shown}
    spans = {kind: (min(each), max(each)) for kind, each in known.items() if each}

    def beyond(at: int) -> float:
        # A kind of layer without any operator of the module comes last.
        low, high = spans.get(kinds[at], (math.inf, -math.inf)) if spans else (0, 0)
        return max(low - at, at - high, 0)

    for count, like in open_counts:
        # A module seldom begins with a sum, and often ends with one.
        found.update(sorted(like, key=lambda at: (beyond(at), -at))[:count])
    return found


def kept_tensors(forward: Sequence[tuple[int, str]], base: RecordedRun, run: RecordedRun) -> frozenset[str]:
    """Tensors of a layer's forward pass that a run keeps for the backward pass.

    Parameters
    ----------
    forward : sequence of (int, str)
        Places of the forward pass's allocations in the base run, and the tensors' names.
    """
    last = max(place for place, _ in forward)
    there = _beside(base.allocations[: last + 1], run.allocations)
    after = min(max(there.values(), default=0) + SETTLED, len(run.allocations) - 1)
    now = run.allocations[after].start_ns
    kept = set[str]()
    for place, name in forward:
        if place in there:
            end = run.allocations[there[place]].end_ns
            if end is None or end > now:
                kept.add(name)
    return frozenset(kept)


def freed_tensors(kept: Collection[str], mine: Collection[str], names: Iterable[str]) -> frozenset[str]:
    """Tensors that a module's recompute frees: in the base run, and under degrees where others are kept.

    Parameters
    ----------
    kept, mine : collection of str
        Those that are kept where nothing runs again, and where the module does.
    names : iterable of str
        Those of the layer, numbers in the order of their allocation. One that the base run does not keep lies in the
        module where both its neighbours of those that it keeps do.
    """
    order = sorted(map(int, kept))
    found = set(kept) - set(mine)
    for name in names:
        if not name.isdecimal() or name in kept or name in mine:
            continue
        at = bisect.bisect(order, int(name))
        if 0 < at < len(order) and {str(order[at - 1]), str(order[at])} <= found:
            found.add(name)
    return frozenset(found)


def _beside(base: Sequence[Allocation], run: Sequence[Allocation]) -> dict[int, int]:
    """Places of a run's allocations beside those of the base, up to the end of the layers' forward passes."""
    left, right = ([(one.name, one.bytes) for one in each] for each in (base, run[: len(base) + SETTLED]))
    matcher = SequenceMatcher(None, left, right, autojunk=False)
    return {one.a + at: one.b + at for one in matcher.get_matching_blocks() for at in range(one.size)}


@dataclass(frozen=True)
class KindModules:
    """The modules of one kind of layer, with what they cost in a run.

    Parameters
    ----------
    modules : sequence of Module
    kept_bytes : float
        That a layer keeps where nothing runs again.
    bytes_of : callable
        Of a module: bytes that it no longer keeps where it runs again, and those that it keeps in addition.
    ns_of : callable
        Time of some operators of the forward pass.
    """

    modules: Sequence[Module]
    kept_bytes: float
    bytes_of: Callable[[Module], tuple[float, float]]
    ns_of: Callable[[frozenset[int]], float]

    def named(self, name: str) -> Module | None:
        """The module of this name; None where layers of the kind lack it."""
        return next((one for one in self.modules if one.name == name), None)


def choices(kinds: Sequence[KindModules]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """The sets of modules that no other set is as good as in memory and time of every kind of layer, exactly.

    Returns
    -------
    tuple of (str, tuple of float)
        Name of each, and the time that a layer of each kind takes again, ns; without the empty set.
    """
    # A layer's most bytes are taken to be the same under each set: what a second run takes at once is in them.
    every = sorted(unbeaten_subsets(_tree(kinds)), key=lambda one: (one.extra_ns, one.kept_bytes))
    best = sorted(unbeaten([(*one.extra_ns, *one.kept_bytes) for one in every]))
    found = list[tuple[str, tuple[float, ...]]]()
    for one in (every[at] for at in best if every[at].modules):
        names = [module.rpartition(".")[2] for module in one.modules]
        found.append((choice_name(names, ()), tuple(map(float, one.extra_ns))))
    return tuple(found)


def _tree(kinds: Sequence[KindModules]) -> CandidateModule:
    """A layer with its modules, those inside others below them; the layer itself gains nothing by running again."""
    operators: dict[str, frozenset[int]] = {}
    for one in (module for kind in kinds for module in kind.modules):
        operators[one.name] = operators.get(one.name, frozenset()) | one.operators
    below: dict[str, list[str]] = {}
    top: list[str] = []
    for name in sorted(operators, key=lambda each: (-len(operators[each]), each)):
        around = [other for other in top if operators[name] & operators[other]]
        home = top
        while around:
            home = below.setdefault(around[0], [])
            around = [other for other in home if operators[name] & operators[other]]
        home.append(name)

    def node(name: str) -> CandidateModule:
        children = tuple(node(each) for each in below.get(name, ()))
        added, own, took = list[int](), list[int](), list[int]()
        for at, kind in enumerate(kinds):
            module = kind.named(name)
            saved, more = (0.0, 0.0) if module is None else kind.bytes_of(module)
            ns = 0.0 if module is None else kind.ns_of(module.operators)
            added.append(round(more))
            own.append(max(0, round(saved) - sum(each.kept_bytes[at] for each in children)))
            took.append(max(0, round(ns) - sum(each.forward_ns[at] for each in children)))
        return CandidateModule(name, tuple(added), tuple(own), tuple(took), children)

    nodes = tuple(node(name) for name in top)
    # Modules may seem to save more than a layer keeps: the layer then keeps what they do.
    inside = [sum(each.kept_bytes[at] for each in nodes) for at in range(len(kinds))]
    kept = tuple(max(round(kind.kept_bytes), most) for kind, most in zip(kinds, inside, strict=True))
    own = tuple(whole - most for whole, most in zip(kept, inside, strict=True))
    return CandidateModule("layer", kept, own, (0,) * len(kinds), nodes)


def apart(modules: Mapping[str, Sequence[Module]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of modules of which any two lie one in the other or share no operator, and why others are left out.

    Of two that are the same the first stays; of two that share some operators, too.

    Parameters
    ----------
    modules : mapping of str to sequence of Module
        By name: one a kind of layer.
    """
    operators = {name: frozenset[int]().union(*(one.operators for one in each)) for name, each in modules.items()}
    found, left_out = list[str](), list[str]()
    for name, each in modules.items():
        mine = operators[name]
        other = next((one for one in found if mine & operators[one] and not _nested(mine, operators[one])), None)
        if all(one.is_absent for one in each):
            left_out.append(f"{name}: nothing of a layer runs again")
        elif other is not None:
            left_out.append(f"{name}: shares operators with {other}")
        else:
            found.append(name)
    return tuple(found), tuple(left_out)


def _nested(left: frozenset[int], right: frozenset[int]) -> bool:
    return left < right or right < left


def saved_bytes(
    modules: Iterable[Module], size_of: Callable[[str, bool], float], run: RunSetting
) -> tuple[float, float]:
    """Bytes that modules no longer keep in a run, and those that they keep in addition.

    Parameters
    ----------
    size_of : callable
        Bytes of a tensor by its name in the run, 0 unless it is kept there, or is not, where nothing runs again.
    """
    every = list(modules)
    freed = frozenset[str]().union(*(one.freed for one in every))
    added = frozenset[str]().union(*(one.added for one in every)) - freed
    left = 0.0
    for one in every:
        elements = one.passes_on(run)
        if elements is not None:
            sizes = [size_of(name, True) for name in one.freed]
            # Of one, two or four bytes each, and some more of padding.
            outputs = [size for size in sizes if any(0 <= size - each * elements < PAGE for each in (1, 2, 4))]
            left += max(sizes if math.isinf(elements) else outputs, default=0.0)
    gone = max(0.0, sum(size_of(name, True) for name in freed) - left)
    return gone, sum(size_of(name, False) for name in added)
