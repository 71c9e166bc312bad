"""Slurm's ``#SBATCH`` lines of a script: the variables that they set, and the tasks that ``srun`` starts by them.

Sources: Slurm's manual page sbatch, «Description» (lines behind the first command are not read) and «Output environment
variables»; SchedMD/slurm src/sbatch/opt.c, ``_opt_batch_script`` (a line whose first letter is ``#`` is no command) and
``get_argument`` (quotes, escapes, remarks). The command line of sbatch goes before them; a user states it by ``--env``.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_LINE = re.compile(r"#SBATCH[ \t]+(\S.*)")
_OPTION = re.compile(r"--([a-z-]+)(?:=(.*))?|-([NncG])(.*)", re.DOTALL)
_LONG = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "G": "gpus"}
_COUNTED = frozenset({*_LONG.values(), "ntasks-per-node", "gpus-per-node", "gpus-per-task", "gres"})
_CARDS = re.compile(r"(?:[A-Za-z][\w.-]*:)?(\d{1,6})$")
_CARDS_OF_ALL = re.compile(r"gpu:(?:[A-Za-z][\w.-]*:)?(\d{1,6})$")
_NODES = re.compile(r"^(#SBATCH[ \t]+(?:[^\n]*[ \t])?(?:--nodes(?:=|[ \t]+)|-N[ \t]*))\d+", re.M)


@dataclass(frozen=True)
class SlurmJob:
    """What options of sbatch and srun ask for; a property is None where they do not say it in a number.

    Parameters
    ----------
    asked : mapping of str to str
        Options that count nodes, tasks or cards, by their long names.
    """

    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def nodes(self) -> int | None:
        """Nodes of the job."""
        return self._count("nodes")

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on a node."""
        return self._count("ntasks-per-node")

    @property
    def cards(self) -> int | None:
        """GPUs of a node, by ``--gpus-per-node`` or ``--gres``."""
        if "gpus-per-node" in self.asked:
            found = _CARDS.match(self.asked["gpus-per-node"])
        else:
            found = next(filter(None, map(_CARDS_OF_ALL.match, self.asked.get("gres", "").split(","))), None)
        return int(found[1]) if found else None

    @property
    def started(self) -> int | None:
        """Tasks that srun starts; on one node where no option asks for nodes."""
        if "ntasks" in self.asked:
            return self._count("ntasks")
        nodes, each = self.nodes if "nodes" in self.asked else 1, self.tasks_per_node
        return None if nodes is None or each is None else nodes * each

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Variables of the script's environment, with their values."""
        values: dict[str, int | str | None] = {
            "SLURM_JOB_NUM_NODES": self.nodes,
            "SLURM_NNODES": self.nodes,
            "SLURM_NTASKS": self.started,
            "SLURM_NPROCS": self.started,
            "SLURM_NTASKS_PER_NODE": self.tasks_per_node,
            "SLURM_CPUS_PER_TASK": self._count("cpus-per-task"),
            "SLURM_GPUS": self.asked.get("gpus"),
            "SLURM_GPUS_PER_NODE": self.asked.get("gpus-per-node"),
            "SLURM_GPUS_PER_TASK": self.asked.get("gpus-per-task"),
            "SLURM_GPUS_ON_NODE": self.cards,
        }
        return tuple((name, str(value)) for name, value in values.items() if value not in (None, ""))

    def with_options(self, words: Iterable[str]) -> SlurmJob:
        """The job with the options of another command in front of its program, as ``srun`` has them."""
        return SlurmJob({**self.asked, **_counted(words)})

    def _count(self, name: str) -> int | None:
        text = self.asked.get(name, "")
        return int(text) if re.fullmatch(r"[1-9]\d{0,5}", text) else None


def slurm_job(text: str) -> SlurmJob:
    """The job that a script's ``#SBATCH`` lines describe."""
    asked: dict[str, str] = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            break
        if match := _LINE.fullmatch(line):
            try:
                asked |= _counted(shlex.split(match[1], comments=True))
            except ValueError:  # A quote that nothing closes, at which sbatch ends.
                continue
    return SlurmJob(asked)


def with_nodes(text: str, nodes: int) -> str | None:
    """The script with another number of nodes in its ``#SBATCH`` lines; None where none states it."""
    if slurm_job(text).nodes is None:
        return None
    changed = _NODES.sub(lambda match: f"{match[1]}{nodes}", text)
    return changed if slurm_job(changed).nodes == nodes else None


def _counted(words: Iterable[str]) -> dict[str, str]:
    """The options that count, by their long names, up to the first word that can be no option's value."""
    found: dict[str, str] = {}
    name: str | None = None  # The option before, where a value may follow.
    for word in words:
        if match := _OPTION.fullmatch(word):
            long, value, short, attached = match.groups()
            value = attached if short else value
            name = long or _LONG[short]
            if value and name in _COUNTED:
                found[name] = value
            name = None if value else name
        elif word.startswith("-"):
            name = ""
        elif name is None:
            break
        else:
            if name in _COUNTED:
                found[name] = word
            name = None
    return found
