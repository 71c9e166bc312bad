"""Slurm's ``#SBATCH`` lines of a script: the variables that they set, and the tasks that ``srun`` starts by them.

Source: Slurm's manual page sbatch, «Description» (lines behind the first command are not read) and «Output environment
variables». The command line of sbatch goes before them; a user states it by ``--env``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LINE = re.compile(r"^#SBATCH[ \t]+(\S.*?)[ \t]*$")
_OPTION = re.compile(r"(?<!\S)(?:--([a-z-]+)(?:=|[ \t]+)?|-([NncG])[ \t]*)(?:\"([^\"\n]*)\"|([^\s\"-][^\s\"]*))?")
_LONG = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus"}
_COUNTED = frozenset({*_LONG.values(), "ntasks-per-node", "gpus-per-node", "gpus-per-task", "gres"})
_CARDS = re.compile(r"(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,6})$")
_NODES = re.compile(r"^(#SBATCH[ \t]+(?:[^\n]*[ \t])?(?:--nodes(?:=|[ \t]+)|-N[ \t]*))\d+", re.M)


@dataclass(frozen=True)
class SlurmJob:
    """What the lines ask for; None where they do not say it.

    Parameters
    ----------
    nodes, tasks, tasks_per_node : int, optional
        Options ``--nodes``, ``--ntasks`` and ``--ntasks-per-node``.
    cards : int, optional
        GPUs of a node, by ``--gpus-per-node`` or ``--gres``.
    variables : tuple of (str, str)
        Variables of the script's environment, with their values.
    """

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    cards: int | None = None
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def started(self) -> int | None:
        """Tasks that srun starts without options of its own."""
        if self.tasks is not None:
            return self.tasks
        return None if self.tasks_per_node is None else self.tasks_per_node * (self.nodes or 1)


def slurm_job(text: str) -> SlurmJob:
    """The job that a script's ``#SBATCH`` lines describe, as far as they say it in numbers."""
    asked: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if match := _LINE.match(line):
            for long, short, quoted, plain in _OPTION.findall(match[1].partition(" #")[0]):
                name = long or _LONG[short]
                if name in _COUNTED:
                    asked[name] = quoted or plain
    nodes, tasks = _count(asked.get("nodes")), _count(asked.get("ntasks"))
    each = _count(asked.get("ntasks-per-node"))
    cards = asked.get("gpus-per-node", asked.get("gres", ""))
    found = _CARDS.match(cards.partition(",")[0])
    job = SlurmJob(nodes, tasks, each, int(found[1]) if found else None)
    values: dict[str, int | str | None] = {
        "SLURM_JOB_NUM_NODES": nodes,
        "SLURM_NNODES": nodes,
        "SLURM_NTASKS": job.started,
        "SLURM_NPROCS": job.started,
        "SLURM_NTASKS_PER_NODE": each,
        "SLURM_CPUS_PER_TASK": _count(asked.get("cpus-per-task")),
        "SLURM_GPUS": asked.get("gpus"),
        "SLURM_GPUS_PER_NODE": asked.get("gpus-per-node"),
        "SLURM_GPUS_PER_TASK": asked.get("gpus-per-task"),
        "SLURM_GPUS_ON_NODE": job.cards,
    }
    stated = tuple((name, str(value)) for name, value in values.items() if value not in (None, ""))
    return SlurmJob(nodes, tasks, each, job.cards, stated)


def with_nodes(text: str, nodes: int) -> str | None:
    """The script with another number of nodes in its ``#SBATCH`` lines; None where none states it."""
    if slurm_job(text).nodes is None:
        return None
    changed = _NODES.sub(lambda match: f"{match[1]}{nodes}", text)
    return changed if slurm_job(changed).nodes == nodes else None


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[1-9]\d{0,5}", text) else None
