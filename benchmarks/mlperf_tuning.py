"""Steps that submissions of MLPerf's ``llama2_70b_lora`` logged, beside those predicted from their configurations.

Run from the repository's root: ``python -m benchmarks.mlperf_tuning FOLDER``; FOLDER is a checkout of
mlcommons/training_results_v5.1 (rows of 441d65f4). No row is in a fit.

A measured step is the median over a system's result files of the median that each logs: ``train_step_time``, or the
global batch over ``throughput`` (samples/s). A system's configuration is the submitter's ``config_*.sh`` that states
the logged number of nodes and global batch, the system's cards a node, and its device where its name states one. Where
several do, those whose paths have the result folder's first words go before the others; where these predict several
steps, the row has each and counts in no error.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from taylor.base.errors import TaylorError
from taylor.parsers.mlperf.devices import DEVICES, named_device
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

_STEP = re.compile(r'"train_step_time": ([0-9.e-]+)')
_THROUGHPUT = re.compile(r'"throughput": ([0-9.e-]+)')
_BATCH = re.compile(r'"key": "global_batch_size", "value": (\d+)')
_NODES = re.compile(r'"submission_platform", "value": "(\d+)x')


@dataclass(frozen=True)
class Measured:
    """What the logs of one system state: nodes, cards a node, samples a step, step in ms, device."""

    name: str
    submitter: Path
    nodes: int
    each: int
    batch: int
    step_ms: float
    device: str | None

    @property
    def cards(self) -> int:
        """Cards of the run."""
        return self.nodes * self.each


def measured(root: Path) -> Iterator[Measured]:
    """Every system whose logs state a step."""
    for folder in sorted(root.glob("*/results/*/llama2_70b_lora")):
        found = [each for each in map(_logged, sorted(folder.glob("result_*.txt"))) if each is not None]
        system = folder.parents[2] / "systems" / f"{folder.parent.name}.json"
        if not found or not system.is_file():
            continue
        stated = json.loads(system.read_text())
        card = str(stated["accelerator_model_name"]).lower()
        device = next((name for word, name in DEVICES.items() if word in card), None)
        nodes, batch, _ = found[0]
        step = median(each[2] for each in found)
        name = f"{folder.parents[2].name} {folder.parent.name}"
        yield Measured(name, folder.parents[2], nodes, int(stated["accelerators_per_node"]), batch, step, device)


def _logged(path: Path) -> tuple[int, int, float] | None:
    """Nodes, global batch and median step of one log."""
    text = path.read_text(errors="replace")
    nodes, batch = _NODES.search(text), _BATCH.search(text)
    if nodes is None or batch is None:
        return None
    steps = [1e3 * float(each) for each in _STEP.findall(text)]
    steps = steps or [1e3 * int(batch[1]) / float(each) for each in _THROUGHPUT.findall(text)]
    return (int(nodes[1]), int(batch[1]), median(steps)) if steps else None


def configurations(run: Measured) -> list[TrainingConfig]:
    """The submitter's configurations that fit a run."""
    found: list[TrainingConfig] = []
    for path in sorted(run.submitter.glob("*/llama2_70b_lora/**/config_*.sh")):
        device = named_device(path)
        if device is not None and device[0] != run.device:
            continue
        try:
            config = read_config(path)
        except TaylorError:
            continue
        strategy = config.strategy
        if strategy.world_size == run.cards and strategy.global_batch == run.batch:
            found.append(config)
    words = run.name.split(maxsplit=1)[1].lower()
    named = [each for each in found if "_".join(words.split("_")[:3]) in str(each.path).lower()]
    return named or found


def main() -> None:
    """Print a row a system, then the errors."""
    parser = argparse.ArgumentParser(description="logged steps of MLPerf's fine-tuning benchmark")
    parser.add_argument("folder", type=Path, help="checkout of mlcommons/training_results_v5.1")
    registry = Registry.load()
    errors: dict[str, list[float]] = {}
    for run in measured(parser.parse_args().folder):
        line = f"{run.name:62s} {run.device or 'not registered':14s} {run.cards:4d} cards {run.step_ms:8.1f} ms"
        if run.device is None:
            print(f"{line}  the device is not registered")
            continue
        configs = configurations(run)
        if not configs:
            print(f"{line}  no configuration fits")
        device = registry.device(run.device)
        predicted = {round(planned_step_ms(config, device), 1): config.path.name for config in configs}
        for step, name in predicted.items():
            note = f"one of {len(predicted)}: {name}" if len(predicted) > 1 else ""
            print(f"{line} {step:8.1f} ms {step / run.step_ms - 1:+7.1%}  {note}")
            if not note:
                errors.setdefault(run.device, []).append(step / run.step_ms - 1)
    for name, found in {**errors, "all": [error for each in errors.values() for error in each]}.items():
        sizes = [abs(each) for each in found]
        print(f"{name:14s} {len(found):3d} rows: median error {median(sizes):5.1%}, largest {max(sizes):5.1%}, "
              f"bias {median(found):+5.1%}")  # fmt: skip


if __name__ == "__main__":
    main()
