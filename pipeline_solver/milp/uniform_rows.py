"""The rows of a MILP for one recompute choice for all chunks."""

from __future__ import annotations

from typing import Mapping

from taylor.pipeline_solver.milp.linear_form import LinearModel, times
from taylor.pipeline_solver.milp.plan_rows import Columns
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem


def add_uniform_rows(
    model: LinearModel,
    problem: PipelineProblem,
    prefixes: Mapping[str, str],
    kinds: list[LayerKind],
    chunks: list[tuple[int, int]],
    layers: dict[str, Columns],
    recompute: dict[tuple[str, str], Columns],
    most: dict[tuple[str, tuple[int, int]], int],
) -> tuple[list[int], dict[str, Columns]]:
    """Add the rows of one uniform choice: recomputed = min(its count, layers) in every chunk and mode.

    Parameters
    ----------
    prefixes : mapping of mode to str
        The modes searched, with the prefix of their variables' names.
    most : mapping of (kind name, (stage, interleave)) to int
        Upper bounds on the layers.

    Returns
    -------
    Columns of the variables of the choices (none without a rule), and by mode those of fully recomputed chunks.
    """
    choices = problem.uniform_recompute
    if not choices:
        return [], {}
    uniform = [model.variable("uniform", (index,), upper=1, integer=True) for index in range(len(choices))]
    model.group("one_choice").add((), model.sum_of(uniform), lower=1, upper=1)
    rows = model.group("uniform_recompute")
    whole: dict[str, Columns] = {}
    able = {chunk: [kind for kind in kinds if chunk in layers[kind.name]] for chunk in chunks}
    most_layers = {chunk: min(problem.layers, sum(most[kind.name, chunk] for kind in able[chunk])) for chunk in chunks}
    for mode, prefix in prefixes.items():
        counts = {index: count for index, (of, count) in enumerate(choices) if of == mode and count}
        largest = min(max(counts.values(), default=0), max(most_layers.values()))
        given = [(min(count, largest), uniform[index]) for index, count in counts.items()]
        partial = [chunk for chunk in chunks if any(count < most_layers[chunk] for count in counts.values())]
        whole[mode] = model.switches(f"whole_{prefix}", partial)
        for s, v in (chunk for chunk in chunks if able[chunk]):
            total = model.sum_of(layers[kind.name][s, v] for kind in able[s, v])
            taken = model.sum_of(recompute[mode, kind.name][s, v] for kind in able[s, v])
            span = most_layers[s, v]
            every = [(span, uniform[index]) for index, count in counts.items() if count >= span]
            spared, beyond = [*taken, *times(-1, total)], [*taken, *times(-1, given)]
            # The rows of recompute bound recomputed layers by the chunk's layers.
            rows.add((prefix, "most", s, v), beyond, upper=0)
            if every:
                rows.add((prefix, "all", s, v), [*spared, *times(-1, every)], lower=-span)
            if (s, v) in whole[mode]:
                switch = whole[mode][s, v]
                rows.add((prefix, "held", s, v), [*spared, (-span, switch)], lower=-span)
                rows.add((prefix, "count", s, v), [*beyond, (largest, switch)], lower=0)
    return uniform, whole
