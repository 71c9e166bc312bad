"""Modules of a layer that small runs recomputed one by one, as further choices of the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from taylor.base.errors import InputError
from taylor.blackbox.memory_laws import MemoryLaws
from taylor.blackbox.module_runs import Module, apart, freed_tensors, kept_tensors, repeated_operators
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.stage_problem import LAYER
from taylor.blackbox.step_laws import StepLaws
from taylor.blackbox.tensor_traces import module_memory
from taylor.cost_model.choices.module_choices import choice_name


@dataclass(frozen=True)
class FoundModules:
    """Modules, and the memory laws that know them; their runs' peaks are among those that its margin covers."""

    modules: tuple[Module, ...]
    memory: MemoryLaws


def read_modules(
    runs: Mapping[tuple[str, ...], RecordedRun], single: Sequence[RecordedRun], steps: StepLaws
) -> tuple[FoundModules | None, tuple[str, ...]]:
    """Modules that small runs show, and why others are left out.

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
    base, forward = single[number], steps.memory.runs[number].forward[LAYER]
    found, left_out = list[Module](), list[str]()
    kept = kept_tensors(forward, base, plain)
    for set_of_one, run in runs.items():
        if not set_of_one:
            continue
        (name,) = set_of_one
        try:
            again = repeated_operators(steps.operators, steps.forward_operators(), number, base, run)
        except InputError as error:
            left_out.append(f"{name}: its run {error}")
            continue
        mine = kept_tensors(forward, base, run)
        names = steps.memory.blocks[LAYER].tensors
        order = sorted(again)
        last = max((at for at, one in enumerate(order) if number in steps.operators[one].places), default=0)
        operators = tuple(steps.operators[one] for one in order)
        found.append(Module(name, again, freed_tensors(kept, mine, names), mine - kept, operators, last))
    modules, alike = apart(found)
    known = {one.name: one for one in modules}
    # The runs' own peaks count in the margin, of those modules that are searched.
    peaks = [module_memory(plain, False)]
    peaks += [module_memory(run, choice_name(names, ())) for names, run in runs.items() if names and names[0] in known]
    memory = replace(steps.memory, modules=known, runs=(*steps.memory.runs, *peaks), _known={})
    return FoundModules(modules, memory), (*left_out, *alike)
