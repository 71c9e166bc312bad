"""Figures of every point, by the `taylor` of one checkout: a script, run with that checkout's root in PYTHONPATH.

It uses only what release 0.2.0 has as well, so that both sides run this same file::

    PYTHONPATH=ROOT python -P evaluate.py POINTS.json FIGURES.npz ROOT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

STEP = ("compute", "communication", "bubble", "host")
MEMORY = ("weights", "states", "activations", "reserved")
CAUSES = (*STEP, *MEMORY)
"""Parts of the step, ms, and of the first stage's memory, MiB."""


def main(points: Path, figures: Path, root: Path) -> None:
    """Evaluate each group of points; a file that this checkout does not read has no figures."""
    from taylor.base.errors import TaylorError
    from taylor.parsers.read import read_config
    from taylor.register.registry import Registry

    place = str(cost_model("time.step", "time").__file__)
    if not Path(place).is_relative_to(root):
        raise SystemExit(f"taylor comes from {place}, not from {root}")
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


def cost_model(*names: str) -> Any:
    """Import the first of the modules that this release has; 0.2.0 has them in one folder."""
    for name in names[:-1]:
        with suppress(ModuleNotFoundError):
            return import_module(f"taylor.cost_model.{name}")
    return import_module(f"taylor.cost_model.{names[-1]}")


def figures_of(config: Any, device: Any, columns: dict[str, list[int]]) -> np.ndarray:
    """Figures of one group, float64 [n, CAUSES]."""
    table_type = cost_model("job.strategy_table", "strategy_table").StrategyTable
    table = table_type(**{name: np.array(column) for name, column in columns.items()})
    with np.errstate(all="ignore"):
        parts = {**step_parts(config, device, table), **memory_parts(config, table)}
    return np.stack([np.broadcast_to(np.asarray(parts[cause], float), (len(table),)) for cause in CAUSES], axis=1)


def step_parts(config: Any, device: Any, table: Any) -> dict[str, Any]:
    """The step split by what it would be on links and a host that take no time; the parts add up to it, ms.

    With twice the micro-batches the step is longer by its steady part: what remains is the bubble with the step's end.
    """
    step_ms = cost_model("time.step", "time").step_ms
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
    launches, tail = (cost_model(f"time.{name}", name) for name in ("launches", "tail"))
    time = cost_model("time.step", "time")
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
    statics = cost_model("memory.statics", "statics")
    kept_bytes = getattr(statics, "kept_bytes", None) or cost_model("activations").activation_bytes  # 0.2.0
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
