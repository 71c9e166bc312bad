"""Figures of every point, by the `taylor` of one checkout: a script, run with that checkout's root in PYTHONPATH.

It uses only what release 0.2.0 has as well, so that both sides run this same file::

    PYTHONPATH=ROOT python -P evaluate.py POINTS.json FIGURES.npz ROOT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

STEP = ("compute", "communication", "bubble", "host")
MEMORY = ("weights", "states", "activations", "reserved")
CAUSES = (*STEP, *MEMORY)
"""Parts of the step, ms, and of the first stage's memory, MiB."""


def main(points: Path, figures: Path, root: Path) -> None:
    """Evaluate each group of points; a file that this checkout does not read has no figures."""
    import taylor.cost_model.time.step as time_module
    from taylor.base.errors import TaylorError
    from taylor.parsers.read import read_config
    from taylor.register.registry import Registry

    if not Path(str(time_module.__file__)).is_relative_to(root):
        raise SystemExit(f"taylor comes from {time_module.__file__}, not from {root}")
    stated = json.loads(points.read_text())
    register, found = Registry.load(), {}
    for at, group in enumerate(stated):
        try:
            config, device = read_config(group["file"]), register.device(group["device"])
        except TaylorError as error:
            print(f"{group['file']}: {error}", file=sys.stderr)
            continue
        found[str(at)] = figures_of(config, device, group["table"])
    np.savez(figures, allow_pickle=False, **found)


def figures_of(config: Any, device: Any, columns: dict[str, list[int]]) -> np.ndarray:
    """Figures of one group, float64 [n, CAUSES]."""
    from taylor.cost_model.job.strategy_table import StrategyTable

    table = StrategyTable(**{name: np.array(column) for name, column in columns.items()})
    with np.errstate(all="ignore"):
        parts = {**step_parts(config, device, table), **memory_parts(config, table)}
    return np.stack([np.broadcast_to(np.asarray(parts[cause], float), (len(table),)) for cause in CAUSES], axis=1)


def step_parts(config: Any, device: Any, table: Any) -> dict[str, Any]:
    """The step split by what it would be on links and a host that take no time; the parts add up to it, ms.

    With twice the micro-batches the step is longer by its steady part: what remains is the bubble with the step's end.
    """
    from taylor.cost_model.time.step import step_ms

    free_links = tuple(replace(tier, gb_s=1e12, latency_us=1e-9) for tier in device.links)
    unlinked = replace(device, links=free_links)
    step = step_ms(config.model, table, config.rules, device)
    without_links = step_ms(config.model, table, config.rules, unlinked)
    twice = replace(table, micro_batches=2 * table.micro_batches)
    with without_host():
        busy = step_ms(config.model, table, config.rules, unlinked)
        steady = step_ms(config.model, twice, config.rules, unlinked) - busy
    return {
        "compute": steady,
        "communication": step - without_links,
        "bubble": busy - steady,
        "host": without_links - busy,
    }


@contextmanager
def without_host() -> Iterator[None]:
    """Predict as if the host took no time; releases count its operations in more or fewer places."""
    from taylor.cost_model import launches, tail, time

    nothing = {
        (time, "host_time"): launches.NO_HOST, (time, "ends_ms"): (0.0, 0.0), (tail, "update_ms"): 0.0,
    }  # fmt: skip
    counted = {place: value for place, value in nothing.items() if hasattr(*place)}
    real = {place: getattr(*place) for place in counted}
    for (module, name), value in counted.items():
        setattr(module, name, lambda *_, value=value: value)
    try:
        yield
    finally:
        for (module, name), function in real.items():
            setattr(module, name, function)


def memory_parts(config: Any, table: Any) -> dict[str, Any]:
    """Memory of the first stage with layers evenly spread and none recomputed, MiB."""
    from taylor.cost_model.memory import statics

    if hasattr(statics, "kept_bytes"):
        kept_bytes = statics.kept_bytes
    else:  # 0.2.0
        from taylor.cost_model.memory.activations import activation_bytes as kept_bytes
    model, rules = config.model, config.rules
    ends = statics.embedding_state_bytes(model, table, rules)
    weights, states, activations = ends.weights, ends.gradients + ends.optimizer, 0.0
    alive = np.minimum(table.micro_batches, table.pp)
    for kind, count in model.body_counts.items():
        layer, layers = statics.layer_state_bytes(model, kind, table, rules), count / table.pp
        weights = weights + layers * layer.weights
        states = states + layers * (layer.gradients + layer.optimizer)
        activations = activations + layers * alive * kept_bytes(model, kind, "none", table, rules)
    first = statics.static_mib(model, table, rules, config.schedule)[0]
    mib = 2**20
    return {
        "weights": weights / mib,
        "states": states / mib,
        "activations": activations / mib,
        "reserved": first - (ends.weights + ends.gradients + ends.optimizer) / mib,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]).resolve())
