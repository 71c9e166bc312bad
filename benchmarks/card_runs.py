"""torchtitan's own steps on one card, as a rank of a pretended cluster, beside what Taylor tells of their memory.

torch's fake process group lets one process train as any rank of a job: its layers, kernels and allocator are real, only
what other ranks would send is missing (torchtitan v0.2.2 ``comm.mode = "fake_backend"``). The peak of allocated memory
is that of the rank. `card_runs.yaml` holds the jobs with what was measured.

``python -m benchmarks.card_runs`` prints the comparison. ``--run CHECKOUT`` measures with a checkout of torchtitan
v0.2.2 on a machine with a GPU and writes the figures into the file; ``--only NAME`` takes jobs whose name begins so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from taylor.base.files import write_atomic
from taylor.cost_model.memory.breakdown import StageBreakdown, stage_breakdown
from taylor.cost_model.memory.statics import overhead_mib
from taylor.cost_model.memory.workspaces import allocated_mib, reserved_mib, workspaces_mib
from taylor.dryrun.interface import DryRun
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry

FILE = Path(__file__).with_suffix(".yaml")
WORKER = Path(__file__).with_name("card_worker.py")
SECONDS = 300.0
FSDP, ONE_CARD = "fsdp", "one card"


@dataclass(frozen=True)
class CardRun:
    """A job, the rank that was run, and its allocator's peak.

    Parameters
    ----------
    job : mapping
        Values of the TOML file, by ``section.key``.
    world : int
    stage : int
        Whose first rank was run.
    active_mib, reserved_mib : float or None
        Most that tensors took, and most that the allocator had from the driver; None: not measured.
    """

    name: str
    job: Mapping[str, Any]
    world: int
    stage: int = 0
    active_mib: float | None = None
    reserved_mib: float | None = None
    step_ms: float | None = None

    @property
    def group(self) -> str:
        """`FSDP`, or `ONE_CARD`, where torchtitan computes under autocast."""
        return FSDP if self.world > 1 else ONE_CARD

    @property
    def rank(self) -> int:
        """The first rank of the stage: pipeline ranks are the outermost."""
        return self.stage * self.world // int(self.job.get("parallelism.pipeline_parallel_degree", 1))

    def toml(self) -> str:
        """The job's file."""
        sections: dict[str, list[str]] = {}
        for key, value in self.job.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
        return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())


def read_runs() -> tuple[dict[str, str], list[CardRun]]:
    """Software and device of the runs, and the runs."""
    data = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return data["measured_on"], [CardRun(**row) for row in data["runs"]]


def predicted_peak(run: CardRun, folder: Path) -> tuple[TrainingConfig, float]:
    """The job as it is read, and the stage's peak by the analytical model, MiB, without the context."""
    config, stage = _stage(run, folder)
    return config, allocated_mib(stage, config.model, config.rules, _device())


def _stage(run: CardRun, folder: Path) -> tuple[TrainingConfig, StageBreakdown]:
    path = folder / f"{run.name}.toml"
    path.write_text(run.toml(), encoding="utf-8")
    config = read_config(path)
    plan = config.plan or config.even_plan(config.strategy)
    return config, stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)[run.stage]


def dry_run(run: CardRun, config: TrainingConfig) -> float:
    """The peak that the dry-run on fake tensors tells, MiB, context left out."""
    from taylor.dryrun.torch_stage.run import CACHED, run_stage

    memory = run_stage(DryRun(config, config.strategy, config.plan), run.stage)
    beyond = overhead_mib(config.rules) + memory.categories.get(CACHED, 0.0)
    return memory.peak_mib - beyond + workspaces_mib(config.model, config.rules, _device())


def predicted_reserved(run: CardRun, folder: Path) -> float | None:
    """The memory that torch's allocator reserves on the stage by the analytical model, MiB; None where it has none."""
    config, stage = _stage(run, folder)
    return reserved_mib(stage, config.model, config.rules, _device())


def _device() -> DeviceSpec:
    return Registry.load().device("h200-141g")


def compared(runs: list[CardRun]) -> Iterator[tuple[CardRun, float, float]]:
    """Every measured run with the relative errors of analytical model and dry-run."""
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            if run.active_mib is not None:
                config, closed = predicted_peak(run, Path(folder))
                yield run, closed / run.active_mib - 1, dry_run(run, config) / run.active_mib - 1


def measure(run: CardRun, checkout: Path) -> CardRun:
    """Train some steps of the job as that rank.

    Raises
    ------
    RuntimeError
        When the job ends otherwise than with figures.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, answer = Path(folder) / "job.toml", Path(folder) / "answer.json"
        job.write_text(run.toml(), encoding="utf-8")
        world, rank = str(run.world), str(run.rank)
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(checkout), os.environ.get("PYTHONPATH", "")]),
            "NGPU": world, "WORLD_SIZE": world, "RANK": rank, "LOCAL_RANK": "0", "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29500", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        }  # fmt: skip
        mode = "fake_backend" if run.world > 1 else "default"
        words = [sys.executable, str(WORKER), str(answer), "--job.config_file", str(job), "--comm.mode", mode]
        done = subprocess.run(
            [*words, "--metrics.log_freq", "1000"],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if not answer.exists():
            raise RuntimeError(f"{run.name} ended with {done.returncode}: {done.stderr[-1500:]}")
        return CardRun(**{**vars(run), **json.loads(answer.read_text(encoding="utf-8"))})


def write_runs(measured_on: Mapping[str, str], runs: list[CardRun]) -> None:
    """Write the file again."""
    rows = [{name: value for name, value in vars(run).items() if value is not None and value != 0} for run in runs]
    head = "# Jobs of benchmarks/card_runs.py with what was measured; MiB and ms.\n"
    text = yaml.safe_dump({"measured_on": dict(measured_on), "runs": rows}, sort_keys=False, width=120)
    write_atomic(FILE, head + text)


def main() -> None:
    """Measure where asked, and print the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--run", type=Path, metavar="CHECKOUT", help="measure with this checkout of torchtitan v0.2.2")
    parser.add_argument("--only", default="", metavar="NAME", help="the jobs whose name begins so")
    options = parser.parse_args()
    measured_on, runs = read_runs()
    chosen = [run for run in runs if run.name.startswith(options.only)]
    if options.run is not None:
        import torch

        fresh = {run.name: measure(run, options.run.resolve()) for run in chosen}
        measured_on = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "torchtitan": "v0.2.2"}
        write_runs(measured_on, [fresh.get(run.name, run) for run in runs])
        chosen = list(fresh.values())
    print(", ".join(measured_on.values()))
    print(f"{'job':38s} {'measured':>9s} {'reserved':>9s} {'analytical':>12s} {'dry-run':>9s}")
    errors: dict[str, list[tuple[float, float]]] = {FSDP: [], ONE_CARD: []}
    for run, closed, dry in compared(chosen):
        errors[run.group].append((abs(closed), abs(dry)))
        measured = f"{run.active_mib:9,.0f} {run.reserved_mib:9,.0f}"
        print(f"{run.name:38s} {measured} {100 * closed:+11.1f}% {100 * dry:+8.1f}%")
    for group, found in errors.items():
        if found:
            of_closed, of_dry = (
                f"{100 * median(each):.2f} % in the middle, {100 * max(each):.1f} at most"
                for each in zip(*found, strict=True)
            )
            print(f"{group}: analytical model {of_closed}; dry-run {of_dry}")


if __name__ == "__main__":
    main()
