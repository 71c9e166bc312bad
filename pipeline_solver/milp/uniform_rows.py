"""The rows of a MILP for one recompute choice for all chunks."""

from __future__ import annotations

from typing import Any, Mapping

import pyomo.environ as pyo

from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem


def add_uniform_rows(
    model: Any,
    problem: PipelineProblem,
    prefixes: Mapping[str, str],
    kinds: list[LayerKind],
    chunks: list[tuple[int, int]],
    layers: dict[str, Any],
    recompute: dict[tuple[str, str], Any],
    most: dict[tuple[str, tuple[int, int]], int],
) -> tuple[Any, dict[str, Any]]:
    """Add the rows of one uniform choice: recomputed = min(its count, layers) in every chunk and mode.

    Parameters
    ----------
    prefixes : mapping of mode to str
        The modes searched, with the prefix of their variables' names.
    most : mapping of (kind name, (stage, interleave)) to int
        Upper bounds on the layers.

    Returns
    -------
    The variable of each choice (None without a rule), and by mode those of fully recomputed chunks.
    """
    choices = problem.uniform_recompute
    if not choices:
        return None, {}
    model.uniform = pyo.Var(range(len(choices)), domain=pyo.Binary)
    model.one_choice = pyo.Constraint(expr=pyo.quicksum(model.uniform.values()) == 1)
    model.uniform_recompute = pyo.Constraint(pyo.Any)
    whole: dict[str, Any] = {}
    able = {chunk: [kind for kind in kinds if chunk in layers[kind.name]] for chunk in chunks}
    most_layers = {chunk: min(problem.layers, sum(most[kind.name, chunk] for kind in able[chunk])) for chunk in chunks}
    for mode, prefix in prefixes.items():
        counts = {index: count for index, (of, count) in enumerate(choices) if of == mode and count}
        largest = min(max(counts.values(), default=0), max(most_layers.values()))
        given = pyo.quicksum(min(count, largest) * model.uniform[index] for index, count in counts.items())
        partial = [chunk for chunk in chunks if any(count < most_layers[chunk] for count in counts.values())]
        whole[mode] = pyo.Var(partial, domain=pyo.Binary)
        model.add_component(f"whole_{prefix}", whole[mode])
        for s, v in (chunk for chunk in chunks if able[chunk]):
            total = pyo.quicksum(layers[kind.name][s, v] for kind in able[s, v])
            taken = pyo.quicksum(recompute[mode, kind.name][s, v] for kind in able[s, v])
            span = most_layers[s, v]
            every = [model.uniform[index] for index, count in counts.items() if count >= span]
            # The rows of recompute bound recomputed layers by the chunk's layers.
            model.uniform_recompute[prefix, "most", s, v] = taken - given <= 0
            if every:
                model.uniform_recompute[prefix, "all", s, v] = taken - total - span * pyo.quicksum(every) >= -span
            if (s, v) in whole[mode]:
                switch = whole[mode][s, v]
                model.uniform_recompute[prefix, "held", s, v] = taken - total - span * switch >= -span
                model.uniform_recompute[prefix, "count", s, v] = taken - given + largest * switch >= 0
    return model.uniform, whole
