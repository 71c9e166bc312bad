"""Profiles the hardware: writes the measuring script, runs it on request, and writes the tables of results."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError, OutsideProgramError
from taylor.base.files import write_atomic
from taylor.base.isolated import module_command
from taylor.dryrun.logs import last_lines
from taylor.dryrun.processes import Outcome, ProgramRun, run_programs
from taylor.profiling.measuring.hardware_tables import hardware_tables, measured_device, write_tables
from taylor.profiling.measuring.plan import HOST_LINK, HardwarePlan, hardware_jobs
from taylor.profiling.measuring.samples import TimedSample, read_samples
from taylor.register.device_file import device_text
from taylor.register.registry import Registry

WORKER = "taylor.profiling.measuring.hardware_worker"
PLAN, MEASURED = "plan.json", "measured.json"


@dataclass(frozen=True)
class HardwareProfileOptions:
    """A plan, and its execution.

    Parameters
    ----------
    run : bool
        Whether to measure here, on one node; else write the script for every node, and the tables of existing results.
    device : str or None
        Registered device, or its file, whose figures are replaced by measured ones.
    timeout_s : float
        Longest time of all measurements.
    """

    plan: HardwarePlan
    output: Path
    run: bool = True
    device: str | None = None
    register_path: Path | None = None
    timeout_s: float = 4 * 3600.0


@dataclass(frozen=True)
class HardwareProfiled:
    """Results, missing measurements, and the files."""

    samples: dict[str, TimedSample]
    missing: tuple[str, ...]
    files: list[Path] = field(default_factory=list)

    @property
    def disturbed(self) -> dict[str, str]:
        """Measurements that are not to be trusted, with the reason."""
        return {key: one.disturbed for key, one in self.samples.items() if one.disturbed}


def profile_hardware(options: HardwareProfileOptions) -> HardwareProfiled:
    """Measure a cluster, or write the script that does, and the tables of existing results.

    Raises
    ------
    InputError
        When torch is missing, or the device is unknown.
    OutsideProgramError
        When a rank ended with an error.
    """
    plan, folder = options.plan, options.output
    device = None if options.device is None else Registry.load(options.register_path).device(options.device)
    work = folder / "measuring" / "hardware"
    write_atomic(work / PLAN, json.dumps(asdict(plan), indent=1) + "\n")
    files = [write_atomic(folder / "profile_hardware.sh", _script(plan, work.resolve()))]
    if options.run:
        if plan.nodes > 1:
            raise InputError(
                "several nodes are not started from here", field="--num_nodes", value=plan.nodes,
                cure=f"leave --run out, and start {files[0]} on every node",
            )  # fmt: skip
        require_torch("profile hardware")
        run_ranks(WORKER, [str(work.resolve())], plan.world, work, options.timeout_s)
    samples = read_samples(work / MEASURED)
    tables = hardware_tables(plan, samples)
    files += write_tables(tables, folder)
    if device is not None and samples:
        card = measured_device(device, plan, samples, "single kernels and collectives, measured")
        comments = ["Measured by `taylor profile hardware`; kernels in a step reach less: see `taylor calibrate`."]
        files.append(write_atomic(folder / f"{card.name}.yaml", device_text(card, comments)))
    missing = tuple(job.key for job in hardware_jobs(plan) if job.key not in samples and job.kind != HOST_LINK)
    return HardwareProfiled(samples, missing, files)


def require_torch(command: str) -> None:
    """Refuse to continue without torch.

    Raises
    ------
    InputError
        With the command that installs it.
    """
    if importlib.util.find_spec("torch") is None:
        cure = "pip install 'taylor-parallel[torch]', or the build of your card"
        raise InputError(f"taylor {command} measures with torch, which is not installed", cure=cure)


def run_ranks(module: str, arguments: Sequence[str], world: int, folder: Path, timeout_s: float) -> None:
    """Run a module as this number of ranks on this machine, to their end; all end when one fails or we do.

    Raises
    ------
    OutsideProgramError
        With the last lines of the first that failed.
    """
    port = _free_port()
    programs = [
        ProgramRun(
            module_command(module, *arguments),
            {**os.environ, **_environment(rank, world, port)},
            folder.resolve(),
            folder.resolve() / "logs" / f"rank{rank}.log",
            timeout_s,
        )
        for rank in range(world)
    ]

    def done(index: int, outcome: Outcome) -> bool:
        if outcome.failure:
            path = programs[index].log
            last = " | ".join(last_lines(path))
            raise OutsideProgramError(f"rank {index} {outcome.failure}: {last} ({path})")
        return False

    run_programs(programs, world, done)


def _environment(rank: int, world: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _script(plan: HardwarePlan, folder: Path) -> str:
    """Script that measures on every node, under torchrun."""
    import shlex

    return f"""#!/bin/bash
# Start it on every node, in a folder that all of them see; a killed run goes on where it was.
set -e
export PYTHONSAFEPATH=1  # nothing is imported from the folder in which it is started
torchrun --nnodes {plan.nodes} --nproc_per_node {plan.per_node} \\
    --node_rank "${{NODE_RANK:-0}}" \\
    --master_addr "${{MASTER_ADDR:-127.0.0.1}}" --master_port "${{MASTER_PORT:-29500}}" \\
    -m {WORKER} {shlex.quote(str(folder))}
"""


def tell(profiled: HardwareProfiled) -> None:
    """Log missing and disturbed measurements."""
    for key, why in profiled.disturbed.items():
        log.warning("%s: disturbed (%s); it is measured again when the command is", key, why)
    if profiled.missing:
        log.warning("%d measurements are missing: %s", len(profiled.missing), ", ".join(profiled.missing[:5]))
