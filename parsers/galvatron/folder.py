"""Folders of Galvatron's files: what each is, what they hold together, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.cost_model.measured.hardware import HardwareProfile
from taylor.cost_model.measured.profiles import HETU, PADDLE, ComputationProfile, MeasuredMemory, ProfileRules
from taylor.parsers.galvatron.computation import read_computation
from taylor.parsers.galvatron.hardware import read_hardware
from taylor.parsers.galvatron.memory import read_memory
from taylor.parsers.galvatron.strategy_file import StrategyFile, read_strategy

MOST_FILES = 1000
_CLUSTER = re.compile(r"(allreduce_bandwidth|p2p_bandwidth|sp_time)_(\d{1,6})nodes_(\d{1,6})gpus_per_node\.json")
_OVERLAP = "overlap_coefficient.json"
_ALL_TO_ALL = "profile_all2all.json"
"""All-to-all times that name no cluster: one that has no `sp_time` of its own takes them."""
_COMPUTATION = re.compile(r"computation_profiling_(?P<name>(?:bf16|fp16|fp32)_.+?)(?:_all|_rank\[0\])?\.json")
_MEMORY = re.compile(r"memory_profiling_(?P<name>(?:bf16|fp16|fp32)_.+?)(?:_all)?(?P<end>_first|_last)?\.json")
_STRATEGY = re.compile(r"galvatron_config_.*\.json|fine_grained_config.*\.json")
_NAMED = re.compile(f"{re.escape(_OVERLAP)}|{re.escape(_ALL_TO_ALL)}")
_NAMES = "computation_profiling_bf16_NAME.json, memory_profiling_bf16_NAME.json, sp_time_1nodes_8gpus_per_node.json, …"


@dataclass(frozen=True, order=True)
class Cluster:
    """The machines that hardware was measured on.

    Parameters
    ----------
    nodes, cards : int
        Nodes, and cards of each.
    """

    nodes: int
    cards: int

    @property
    def ranks(self) -> int:
        """Cards in all."""
        return self.nodes * self.cards

    def __str__(self) -> str:
        return f"{self.nodes} x {self.cards} cards"


@dataclass(frozen=True)
class MeasuredModel:
    """The profiles of one model.

    Parameters
    ----------
    name : str
        Precision and model, as the file names have them: ``bf16_llama2-7b``.
    computation : ComputationProfile or None
    memory : MeasuredMemory or None
    rules : ProfileRules
        Whose profiler wrote the memory profile.
    """

    name: str
    computation: ComputationProfile | None = None
    memory: MeasuredMemory | None = None
    rules: ProfileRules = HETU


@dataclass(frozen=True)
class ProfileFolder:
    """Content of some folders.

    Parameters
    ----------
    folders : tuple of Path
    hardware : mapping of Cluster to HardwareProfile
    models : mapping of str to MeasuredModel
        By `MeasuredModel.name`.
    strategies : mapping of Path to StrategyFile
    """

    folders: tuple[Path, ...]
    hardware: Mapping[Cluster, HardwareProfile] = field(default_factory=dict)
    models: Mapping[str, MeasuredModel] = field(default_factory=dict)
    strategies: Mapping[Path, StrategyFile] = field(default_factory=dict)

    def cluster(self, world: int) -> tuple[Cluster, HardwareProfile]:
        """The cluster with n ranks.

        Raises
        ------
        InputError
            When none was measured, or several of that size.
        """
        fitting = [each for each in self.hardware if each.ranks == world]
        if len(fitting) == 1:
            return fitting[0], self.hardware[fitting[0]]
        known = ", ".join(map(str, sorted(self.hardware))) or "none"
        what = f"{len(fitting)} clusters" if fitting else "no cluster"
        raise InputError(
            f"has hardware profiles of {what} with {world} ranks",
            file=self.folders[0],
            cure=f"profile that cluster, or take --world_size of one that is there: {known}",
        )

    def model(self, name: str | None) -> MeasuredModel:
        """The model of a name, or of a part of it; the only one with both profiles where none is given.

        Raises
        ------
        InputError
            When there is none, or several.
        """
        fitting = [each for each in self.models.values() if name is None or name in each.name]
        exact = [each for each in fitting if name in (each.name, each.name.partition("_")[2])]
        fitting = exact or fitting
        whole = [each for each in fitting if each.computation is not None and each.memory is not None] or fitting
        if name is None and len(whole) > 1:
            useful = [each for each in whole if each.memory is not None and each.memory.tables]
            whole = useful or whole
        if len(whole) == 1:
            return whole[0]
        known = ", ".join(sorted(self.models)) or "none"
        raise InputError(
            f"has {len(whole)} models{'' if name is None else f' named {name}'}" if whole else "has no such model",
            file=self.folders[0],
            cure=f"give --model with one of: {known}",
        )


def read_folders(folders: Sequence[Path]) -> ProfileFolder:
    """Read all of Galvatron's files that lie directly in some folders; other files are passed over.

    Parameters
    ----------
    folders : sequence of Path
        Folders, and files by name.

    Raises
    ------
    InputError
        When a folder is none or holds no such file, or a file is wrong.
    """
    files = _ByContent()
    for file in dict.fromkeys(file for folder in folders for file in _files(folder)):
        files.add(file)
    if files == _ByContent():
        raise InputError(
            "contains no file of Galvatron",
            file=folders[0],
            cure="give the folder with allreduce_bandwidth_*.json, computation_profiling_*.json, …: "
            "profile_hardware/hardware_configs and configs of Hetu, configs of Paddle",
        )
    strategies = {file: read_strategy(file) for file in files.strategies}
    read_hardware(files.exchanges)  # Wrong values are reported, whoever takes them.
    return ProfileFolder(
        tuple(folders),
        {cluster: files.hardware(cluster) for cluster in sorted(files.clusters)},
        {name: files.model(name) for name in sorted({*files.computations, *files.memories})},
        strategies,
    )


@dataclass
class _ByContent:
    """Files by their content, as their names say it."""

    clusters: dict[Cluster, list[Path]] = field(default_factory=dict)
    overlaps: list[Path] = field(default_factory=list)
    exchanges: list[Path] = field(default_factory=list)
    computations: dict[str, Path] = field(default_factory=dict)
    memories: dict[str, list[Path]] = field(default_factory=dict)
    strategies: list[Path] = field(default_factory=list)

    def add(self, file: Path) -> None:
        """Sort in a file."""
        if match := _CLUSTER.fullmatch(file.name):
            self.clusters.setdefault(Cluster(int(match[2]), int(match[3])), []).append(file)
        elif file.name == _OVERLAP:
            self.overlaps.append(file)
        elif file.name == _ALL_TO_ALL:
            self.exchanges.append(file)
        elif match := _COMPUTATION.fullmatch(file.name):
            self.computations[match["name"]] = file
        elif match := _MEMORY.fullmatch(file.name):
            self.memories.setdefault(match["name"], []).append(file)
        elif _STRATEGY.fullmatch(file.name):
            self.strategies.append(file)

    def hardware(self, cluster: Cluster) -> HardwareProfile:
        """Read what was measured on a cluster."""
        own = self.clusters[cluster]
        timed = [file for file in own if file.name.startswith("sp_time")]
        if timed and self.exchanges:
            log.warning("%s is ignored: %s has the times of its cluster", self.exchanges[0], timed[0].name)
        return read_hardware([*own, *self.overlaps, *([] if timed else self.exchanges)])

    def model(self, name: str) -> MeasuredModel:
        """Read what was measured of a model."""
        computation = read_computation(self.computations[name]) if name in self.computations else None
        memory, rules = None, PADDLE if "rank[" in str(self.computations.get(name, "")) else HETU
        if name in self.memories:
            # The joined file comes last, so that it names the profile.
            memory, rules = read_memory(sorted(self.memories[name], key=lambda file: -len(file.name)))
        return MeasuredModel(name, computation, memory, rules)


def _files(folder: Path) -> list[Path]:
    if folder.suffix == ".json" and folder.is_file():
        if not any(form.fullmatch(folder.name) for form in (_CLUSTER, _COMPUTATION, _MEMORY, _STRATEGY, _NAMED)):
            raise InputError("is not named as Galvatron names its files", file=folder, cure=f"name it as {_NAMES}")
        return [folder]
    if not folder.is_dir():
        raise InputError("is no folder", file=folder, cure="give the folder that the profilers wrote to")
    try:
        found = sorted(file for file in folder.iterdir() if file.suffix == ".json" and file.is_file())
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=folder) from error
    if len(found) > MOST_FILES:
        raise InputError(f"contains {len(found)} JSON files", file=folder, cure=f"at most {MOST_FILES} are read")
    return found
