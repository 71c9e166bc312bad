"""The world size of a recipe: its own data-parallel degree, what its cloud section starts, or an assumption.

Sources are lines of NVIDIA-NeMo/Automodel 36044ad3. The recipe takes the ranks that torchrun starts
(nemo_automodel/components/launcher/interactive.py:120-140), and no comment or ``benchmark`` section changes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import lcm

from taylor.cost_model.job.ranks import OpenRanks
from taylor.parsers.text.fields import MAX_DEGREE, Fields

PER_NODE = 8
_PER_NODE_OF = {"gb200": 4, "gb300": 4, "gb10": 1}
"""Devices of a node by ``ci.cluster_tag``: those of its machines (NVIDIA DGX GB200 and DGX Spark)."""
_CLOUD = re.compile(r"[\w.-]{1,40}:(\d{1,3})$")


@dataclass(frozen=True)
class Degrees:
    """Parallel degrees that a file states.

    Parameters
    ----------
    dp : int or None
        None: it follows the ranks.
    replicas : int
        Copies of the shards (``dp_replicate_size``).
    """

    dp: int | None
    replicas: int
    tp: int
    cp: int
    ep: int
    pp: int

    @property
    def unit(self) -> int:
        """Least world size that starts (nemo_automodel/components/distributed/mesh_utils.py:118-122, 309-318)."""
        shards = self.tp * self.cp * self.replicas
        return self.pp * lcm(shards, self.ep)

    @property
    def why(self) -> str:
        """The products behind `unit`, as messages write them."""
        text = f"DP replicas x TP x CP x PP = {self.replicas * self.tp * self.cp * self.pp:,}"
        return (
            text
            if self.unit == self.replicas * self.tp * self.cp * self.pp
            else f"{text} and EP x PP = {self.ep * self.pp:,}"
        )


def degrees_of(section: Fields) -> Degrees:
    """The degrees of ``distributed``; nothing and values below 1 mean 1 (mesh_utils.py:44-46)."""

    def degree(name: str) -> int:
        return max(1, int(section.integer(name, default=1, low=-(2**31))))

    stated = section.integer("dp_size", default=0, low=-(2**31))
    names = ("dp_replicate_size", "tp_size", "cp_size", "ep_size", "pp_size")
    return Degrees(stated if stated > 0 else None, *map(degree, names))


def world_of(top: Fields, degrees: Degrees, local: int, samples: int) -> tuple[int, OpenRanks | None]:
    """The world size, and what is known of it where the file does not state it.

    Parameters
    ----------
    local, samples : int
        Samples of a data-parallel rank at once, and of a step.
    """
    whole = degrees.tp * degrees.cp * degrees.pp
    if degrees.dp is not None:
        return degrees.dp * whole, None
    cloud = _cloud_of(top)
    if cloud is not None:
        return cloud, None
    started, source = _started(top)
    world = started if started % degrees.unit == 0 else lcm(started, degrees.unit)
    if world != started:
        source = f"the least multiple of {degrees.why} and of the {started:,} {source}"
    else:
        source = f"the {started:,} {source}"
    if samples % (local * max(1, world // whole)):
        world, source = degrees.unit, f"the least multiple of {degrees.why}; {world:,} do not divide the global batch"
    note = f"the file states no ranks: a world size of {world:,} is assumed, {source}; --world_size names another"
    return world, OpenRanks(degrees.unit, degrees.why, note)


def _cloud_of(top: Fields) -> int | None:
    """Ranks that ``skypilot`` starts (components/launcher/skypilot/launcher.py:57-117)."""
    section = top.section("skypilot")
    named = _CLOUD.match(str(section.raw("accelerators") or ""))
    if named is None:
        return None
    return int(named[1]) * int(section.integer("num_nodes", default=1))


def _started(top: Fields) -> tuple[int, str]:
    """Ranks that something beside the recipe names, and what does.

    ``ci`` goes before ``benchmark``: the repository's tests start its nodes (tests/ci_tests/utils/
    generate_ci_tests.py:120-129, scripts/finetune_launcher.sh:58-60), while benchmark.num_nodes is only recorded
    (scripts/collect_benchmark_artifact.py:93).
    """
    ci = top.section("ci")
    each = int(ci.integer("nproc_per_node", default=_PER_NODE_OF.get(str(ci.raw("cluster_tag")), PER_NODE), high=64))
    if ci.has("nodes"):
        nodes = int(ci.integer("nodes", high=MAX_DEGREE))
        return nodes * each, f"that the repository's own tests start (ci.nodes {nodes} of {each})"
    nodes = top.section("benchmark").integer("num_nodes", default=None, high=MAX_DEGREE)
    if nodes is not None:
        return int(nodes) * each, f"of benchmark.num_nodes {nodes} of {each}"
    return each, f"of one node of {each} (assumed)"
