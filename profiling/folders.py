"""Folders of the profiles of each configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from taylor.base.errors import InputError
from taylor.parsers.registry import is_training_file

ENDINGS = ("_pretrain",)
"""Ending of an emitted file's name that a folder's name may leave out."""


@dataclass(frozen=True)
class ProfileFolders:
    """Folders matched with configurations by name.

    Parameters
    ----------
    found : mapping of configuration to folder
    profiled : mapping of configuration to configuration
        The file that was really run for the profile: one beside the profiles, else the one of the same
        name in the ``profile_yaml`` folder beside the configurations' own, else the configuration itself.
    unknown : tuple of Path
        Folders that no configuration is named like.
    absent : tuple of Path
        Configurations without a folder.
    """

    found: Mapping[Path, Path]
    profiled: Mapping[Path, Path]
    unknown: tuple[Path, ...] = ()
    absent: tuple[Path, ...] = ()


def find_profile_folders(profile_data_dir: str | Path, configs: Iterable[Path]) -> ProfileFolders:
    """Match the folders in a profile folder with configuration files: a folder is named like its file.

    ``DP2_TP4_PP4_EP8_pretrain/`` and ``DP2_TP4_PP4_EP8/`` both belong to ``DP2_TP4_PP4_EP8_pretrain.yaml``.
    The inside of a folder is the profiler's layout.

    Raises
    ------
    InputError
        When there is no such folder, or none in it, or two folders belong to one configuration.
    """
    top = Path(profile_data_dir)
    if not top.is_dir():
        raise InputError("no such folder", file=top, field="--profile_data_dir", cure="check the path")
    folders = {_key(path.name): path for path in sorted(top.iterdir()) if path.is_dir()}
    if not folders:
        raise InputError(
            "contains no profile: one folder for each configuration is needed",
            file=top,
            field="--profile_data_dir",
            cure="name the folder that the profiled runs wrote into, or leave the flag out to estimate the ratios",
        )
    if len(folders) < sum(path.is_dir() for path in top.iterdir()):
        raise InputError(
            "contains two folders of one configuration",
            file=top,
            value=sorted(path.name for path in top.iterdir() if path.is_dir()),
        )
    found: dict[Path, Path] = {}
    absent: list[Path] = []
    for config in configs:
        folder = folders.get(_key(config.stem))
        if folder is None:
            absent.append(config)
        else:
            found[config] = folder
    unknown = tuple(sorted(set(folders.values()) - set(found.values())))
    return ProfileFolders(
        found, {config: _profiled(config, folder) for config, folder in found.items()}, unknown, tuple(absent)
    )


def _profiled(config: Path, folder: Path) -> Path:
    beside = [path for path in sorted(folder.iterdir()) if path.is_file() and is_training_file(path)]
    reduced = config.parent.parent / "profile_yaml" / config.name
    if len(beside) > 1:
        raise InputError(
            "contains several configurations",
            file=folder,
            value=[path.name for path in beside],
            cure="leave the one that was profiled",
        )
    if beside:
        return beside[0]
    return reduced if reduced.is_file() else config


def _key(name: str) -> str:
    for ending in ENDINGS:
        name = name.removesuffix(ending)
    return name.lower()
