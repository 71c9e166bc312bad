"""Modules of a layer that small runs recomputed one by one, as further choices of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import MemoryLaws
from taylor.blackbox.module_runs import Module, apart, freed_tensors, kept_tensors, repeated_operators
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.step_laws import StepLaws
from taylor.blackbox.tensor_traces import module_memory
from taylor.cost_model.choices.module_choices import choice_name


def read_modules(
    runs: Mapping[tuple[str, ...], RecordedRun], single: Sequence[RecordedRun], steps: StepLaws
) -> tuple[MemoryLaws | None, tuple[str, ...]]:
    """Memory laws with the modules that small runs show, and why others are left out.

    The runs' own peaks are among those that the margin of these laws covers.

    Parameters
    ----------
    runs : mapping of tuple of str to RecordedRun
        By the modules that ran again: none, and one each.
    single : sequence of RecordedRun
        The runs of the laws, in their order; one has the same setting.
    """
    plain = runs.get(())
    number = next((at for at, one in enumerate(single) if plain is not None and one.setting == plain.setting), None)
    if not runs:
        return None, ()
    if plain is None:
        return None, ("the run in which no layer runs again left no profile",)
    if number is None:
        return None, ("the run of the same degrees in which whole layers run again left no profile",)
    if len(runs) == 1:
        return None, ("no run in which a module runs again left a profile",)
    shown, left_out = dict[str, dict[str, Module]](), list[str]()
    for (name,), run in ((names, run) for names, run in runs.items() if names):
        try:
            shown[name] = _kinds_of(name, run, plain, single[number], number, steps)
        except InputError as error:
            left_out.append(f"{name}: its run {error}")
    names, alike = apart({name: tuple(each.values()) for name, each in shown.items()})
    kinds = list(steps.forward_operators())
    modules = {kind: {name: shown[name][kind] for name in names if not shown[name][kind].is_absent} for kind in kinds}
    # The runs' own peaks count in the margin, of those modules that are searched.
    peaks = [module_memory(plain, False)]
    peaks += [module_memory(runs[name,], choice_name((name,), ())) for name in names]
    memory = replace(steps.memory, modules=modules, runs=(*steps.memory.runs, *peaks), _known={})
    return memory, (*left_out, *alike)


def _kinds_of(
    name: str, run: RecordedRun, plain: RecordedRun, base: RecordedRun, number: int, steps: StepLaws
) -> dict[str, Module]:
    """A module in each kind of layer, as its run shows it beside one in which nothing runs again.

    Raises
    ------
    InputError
        When the run differs from the base in more than what it repeats.
    """
    forward = steps.forward_operators()
    again = repeated_operators(steps.operators, forward, number, base, run)
    places = {kind: steps.memory.runs[number].forward[kind] for kind in forward}
    every = [each for kind in forward for each in places[kind]]
    kept, mine = kept_tensors(every, base, plain), kept_tensors(every, base, run)
    found = dict[str, Module]()
    for kind, operators in again.items():
        order = sorted(operators)
        last = max((at for at, one in enumerate(order) if number in steps.operators[one].places), default=0)
        own = {each for _, each in places[kind]}
        freed = freed_tensors(kept & own, mine & own, steps.memory.blocks[kind].tensors)
        lawful = tuple(steps.operators[one] for one in order)
        found[kind] = Module(name, operators, freed, (mine - kept) & own, lawful, last)
    return found
