"""The world size of a torchtitan file that leaves its sharding degree to the number of ranks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import lcm
from pathlib import Path

from taylor.base.errors import InputError
from taylor.cost_model.job.ranks import OpenRanks, torchtitan_shards
from taylor.parsers.text.script_flags import FlagForm, flags_of
from taylor.parsers.text.shell_source import ShellScript

SCRIPT = "run_train.sh"
"""The script that starts torchtitan's files (v0.2.2 README.md, torchtitan/models/deepseek_v3/README.md:25)."""
SCRIPT_STARTS = 8
"""Ranks that it starts where ``NGPU`` is not set (v0.2.2 run_train.sh:28)."""
CONFIGS = "train_configs"
"""The folder of the files in torchtitan's checkout: at its root, later in ``torchtitan/models/NAME``."""
_FORM = FlagForm(
    telltale=("nproc-per-node", "nnodes", "rdzv-backend", "rdzv-endpoint", "local-ranks-filter", "role", "tee"),
    beside=("nproc-per-node", "rdzv-backend"),
)
_PRESET = re.compile(r"#[^\n]*\bpreset for (\d{1,6}) \w+ GPUs")


@dataclass(frozen=True)
class StatedDegrees:
    """Parallel degrees that a file states."""

    replicas: int
    tp: int
    pp: int
    cp: int
    ep: int
    expert_tp: int

    @property
    def others(self) -> int:
        """Ranks of one shard."""
        return self.replicas * self.tp * self.pp * self.cp

    @property
    def unit(self) -> int:
        """Least world size that starts."""
        return self.others * torchtitan_shards(self.tp, self.cp, self.ep, self.expert_tp)

    @property
    def why(self) -> str:
        """The products behind `unit`, as messages write them."""
        text = f"DP replicas x TP x PP x CP = {self.others:,}"
        if self.unit == self.others:
            return text
        experts = self.ep * self.expert_tp
        return f"{text} whose shards, with TP and CP, contain EP x ETP = {experts:,} ranks"


def open_ranks(file: Path, text: str, degrees: StatedDegrees, samples: int, local: int) -> tuple[int, OpenRanks]:
    """The world size that is assumed for ``data_parallel_shard_degree = -1``, and what is known of it.

    A comment of the file goes before its launch script, and that before what torchtitan's script starts by default;
    more ranks where the job does not start on these, fewer where its global batch is too small for them.

    Parameters
    ----------
    samples, local : int
        Global batch, not positive where it follows the ranks, and batch of a data-parallel rank.
    """
    unit = degrees.unit
    preset = _PRESET.search(text)
    if preset and int(preset[1]) > 0 and int(preset[1]) % unit == 0:
        world, source = int(preset[1]), "by a comment of the file"
    else:
        started, script = _script_of(file) or (SCRIPT_STARTS, f"torchtitan's {SCRIPT}")
        world, source = lcm(unit, started), f"which {script} starts"
        if world != started:
            source = f"the least multiple of {degrees.why} and of the {started:,} that {script} starts"
        if samples > 0 and samples % (local * (world // (degrees.tp * degrees.pp * degrees.cp))):
            world, source = unit, f"the least multiple of {degrees.why}; {world:,} do not divide the global batch"
    return world, OpenRanks(
        unit, degrees.why, f"data_parallel_shard_degree -1: a world size of {world:,} is assumed, {source}"
    )


def _script_of(file: Path) -> tuple[int, str] | None:
    """Ranks that the launch script of a file starts, and its path; None where none is found or settles them.

    The script lies beside the file, or at the root of the checkout whose folder of configurations holds it.
    """
    folder = file.absolute().parent
    places = [folder]
    if folder.name == CONFIGS:
        places += [folder.parent, *folder.parents[3:4]]
    for place in places:
        script = place / SCRIPT
        if not os.path.isfile(script):
            continue
        try:
            world = flags_of(ShellScript.read(script), _FORM).world_size()
        except InputError:
            continue
        if world is not None:
            return world, str(script)
    return None
