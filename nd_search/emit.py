"""Files of a search: candidates, pruned strategies, and a configuration for each chosen strategy."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Mapping, Sequence

import numpy as np
import pandas as pd

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.files import write_atomic
from taylor.base.kept import read_kept, write_kept
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.prune import describe
from taylor.nd_search.reduce import Reduction, reduce_strategy
from taylor.nd_search.search import SearchResult
from taylor.nd_search.steps import ESTIMATED, SOLVED
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant

FURTHER = ("cp", "vpp", "mbs", "ulysses")
FOLLOWING = ("op", "sp", "micro_batches")
"""Dimensions that a file's name has where they vary; those that usually follow from others, only where two
strategies differ in nothing else.
"""

LISTED_MISSING = 4
"""Strategies without a configuration to profile that the log names, by reason."""

MANIFEST = "emitted.json"
"""List of the files of the last emission into a folder, and their job: the files that the next one may remove."""

BASELINE = "baseline"
"""Folder, below that of the files, of a copy of the configuration that was searched."""


def candidate_frame(result: SearchResult) -> pd.DataFrame:
    """Table of the candidates, one row each, in the order of the result."""
    table = result.candidates
    chosen = np.zeros(len(table), dtype=bool)
    chosen[result.chosen] = True
    return pd.DataFrame(
        {
            "dp": table.dp,
            "tp": table.tp,
            "pp": table.pp,
            "ep": table.ep,
            "peakMem": np.round(result.peak_mib, 1),
            "cp": table.cp,
            "op": table.op,
            "sp": table.sp.astype(int),
            "vpp": table.vpp,
            "mbs": table.mbs,
            "micro_batches": table.micro_batches,
            **({"ulysses": table.ulysses} if table.ulysses.any() else {}),
            "heaviest_stage": result.heaviest_stage,
            "estimated_ms": np.round(result.estimated_ms, 3),
            "chosen": chosen.astype(int),
            "recompute": result.recompute,
            "peakMemNoRecompute": np.round(result.peak_none_mib, 1),
            "source": list(result.memory_source),
            "step_source": [SOLVED if solved else ESTIMATED for solved in result.solved],
        }
    )


def write_candidates_csv(result: SearchResult, path: Path) -> Path:
    """Write the candidates: dp, tp, pp, ep, peakMem (MiB), then the other dimensions and the sources of figures."""
    return write_atomic(path, candidate_frame(result).to_csv(index=False, lineterminator="\n"))


def pruned_frame(result: SearchResult) -> pd.DataFrame:
    """Table of pruned strategies: each rule, and last the memory, with its count and an example."""
    return pd.DataFrame(
        [
            {
                "rule": record.rule,
                "removed": record.count,
                "example": describe(record.example) if record.example else "",
                "explanation": record.explanation,
            }
            for record in result.pruned
        ]
    )


def write_pruned_csv(result: SearchResult, path: Path) -> Path:
    """Write the table of pruned strategies."""
    return write_atomic(path, pruned_frame(result).to_csv(index=False, lineterminator="\n"))


def file_stems(table: StrategyTable) -> list[str]:
    """Name for each strategy, no two alike: ``DP16_TP4_PP16_EP8``, and the further dimensions that vary.

    Raises
    ------
    ValueError
        When two rows are the same strategy.
    """
    names = [strategy.name for strategy in table]
    for dimension in (*FURTHER, *FOLLOWING):
        values = getattr(table, dimension)
        of_name: dict[str, set[int]] = {}
        for name, value in zip(names, values, strict=True):
            of_name.setdefault(name, set()).add(int(value))
        if len(set(values)) > 1 and (dimension in FURTHER or any(len(each) > 1 for each in of_name.values())):
            label = "M" if dimension == "micro_batches" else dimension.upper()
            names = [f"{name}_{label}{int(value)}" for name, value in zip(names, values, strict=True)]
    if len(set(names)) != len(names):
        raise ValueError("two candidates are the same strategy")
    return names


def emit_yaml(
    result: SearchResult,
    config: TrainingConfig,
    folder: Path,
    *,
    dataset: str | None = None,
    profile: bool = False,
    rank_num: int = 64,
    which: Sequence[int] | None = None,
) -> list[Path]:
    """Write one configuration for each strategy, in the form of the user's file.

    The full-size files have an even split of the layers; the solver replaces it. With `profile`, each is reduced to
    `rank_num` cards (`reduce_strategy`), the profiler is switched on, and ``NAME.reduction.json`` beside it lists kept
    and changed values; a strategy that cannot be reduced that far gets no profile file but the reason.

    Files of an earlier emission of the same job into the same folder (and only those: they are listed in
    ``emitted.json``) are removed when they are not written again; those of another job (another file, other ranks or
    another batch) are moved to a folder ``NAME.1`` and so on beside it, which is logged. A copy of the configuration
    itself goes to the folder's ``baseline``, for a ranking of the files to compare with.

    Parameters
    ----------
    dataset : str, optional
        Data set written into the files.
    which : sequence of int, optional
        Indices of the candidates; the chosen ones when omitted.

    Returns
    -------
    list of Path
        Configurations, in the order of `which`; those that the file's form cannot express (with `profile`: reduce) are
        omitted and named.

    Raises
    ------
    InputError
        When the file's form can express none of them.
    WriteError
        When a file cannot be written.
    """
    indices = list(result.chosen if which is None else which)
    table = result.candidates.select(np.asarray(indices, dtype=np.int64))
    job = _job_of(config, table, folder)
    moved = _set_aside(folder, job)
    emission = _Emission(result, config, folder, dataset, rank_num)
    write = emission.write_reduced if profile else emission.write
    try:
        for stem, strategy in zip(file_stems(table), table, strict=True):
            write(stem, strategy)
        if emission.refused is not None and not emission.written:
            raise emission.refused
    except InputError:
        _put_back(moved)  # the output of an earlier emission stays
        raise
    if not profile and config.path.is_file():
        write_atomic(folder / BASELINE / config.path.name, config.path.read_bytes())
    if moved:
        log.info("%s: the files of an earlier search for another job are kept in %s", folder, moved[0][1].parent)
    if profile:
        emission.note_missing(len(table))
    _remove_stale(folder, emission.names, job)
    return emission.written


class _Emission:
    """Files of one emission; parameters as in `emit_yaml`.

    Attributes
    ----------
    written : list of Path
        Configurations.
    names : list of str
        Names of all files.
    refused : InputError or None
        Reason why the last strategy without a file has none.
    """

    def __init__(
        self, result: SearchResult, config: TrainingConfig, folder: Path, dataset: str | None, rank_num: int
    ) -> None:
        self.result, self.config, self.folder, self.rank_num = result, config, folder, rank_num
        self.launcher = launcher = launcher_of(config)
        self.suffix = config.path.suffix if config.path.suffix in launcher.suffixes else launcher.suffixes[0]
        self.data = launcher.dataset_keys(dataset) if dataset is not None else {}
        self.written: list[Path] = []
        self.names: list[str] = []
        self.refused: InputError | None = None
        self._missing: dict[str, list[tuple[str, str | None]]] = {}

    def write(self, stem: str, strategy: Strategy) -> None:
        """Write the full-size file of a strategy; one that the file's form cannot express is logged."""
        target = self.folder / f"{stem}_pretrain{self.suffix}"
        try:
            self.written.append(emit_variant(self.config, strategy, target, plan=None, extra=self.data))
        except WriteError:
            raise  # not the strategy's fault
        except InputError as error:
            log.warning("%s has no file: %s", describe(strategy), error)
            self.refused = error
        else:
            self.names.append(target.name)

    def write_reduced(self, stem: str, strategy: Strategy) -> None:
        """Write the file to profile a strategy, and beside it what was kept and changed, or why there is none."""
        target = self.folder / f"{stem}_pretrain{self.suffix}"
        record = self.folder / f"{stem}_pretrain.reduction.json"
        self.names.append(record.name)
        limit = self.result.device_limit_mib
        text: dict[str, object]
        try:
            reduction = reduce_strategy(self.config, self.result.device, strategy, self.rank_num, limit)
            extra = {**self.data, **self.launcher.profile_switches}
            file = emit_variant(self.config, reduction.strategy, target, plan=reduction.plan, extra=extra)
        except WriteError:
            raise
        except InputError as error:
            self._missing.setdefault(error.problem, []).append((stem, error.field))
            text = {"strategy": describe(strategy), "not_reduced": str(error)}
        else:
            self.written.append(file)
            self.names.append(target.name)
            text = _reduction_text(reduction)
        write_atomic(record, json.dumps(text, indent=1) + "\n")

    def note_missing(self, count: int) -> None:
        """Log the number of files to profile, of `count` strategies, and those without one."""
        log.info(
            "%d of %d configurations to profile on at most %d cards are written",
            len(self.written),
            count,
            self.rank_num,
        )
        for problem, missing in self._missing.items():
            stems, places = [stem for stem, _ in missing], {field for _, field in missing}
            place = places.pop() if len(places) == 1 else None
            reason = f"{place}: {problem}" if place else problem
            further = f" and {len(stems) - LISTED_MISSING} more" if len(stems) > LISTED_MISSING else ""
            line = f"{', '.join(stems[:LISTED_MISSING])}{further}: {reason}"
            log.warning("not written: %s; NAME_pretrain.reduction.json says what each needs", line)


def _reduction_text(reduction: Reduction) -> dict[str, object]:
    return {
        "stands_for": describe(reduction.original),
        "profiled_as": describe(reduction.strategy),
        "kept": list(reduction.kept),
        "changed": list(reduction.changed),
    }


def baseline_of(folder: Path) -> Path | None:
    """Configuration behind the files of a folder; None where no search has written them.

    The file as it was searched takes precedence over its path of that time.
    """
    job = _manifest(folder).get("job")
    if not isinstance(job, dict):
        return None
    path = Path(str(job.get("path", "")))
    known = [folder / BASELINE / path.name, folder / path]
    return next((one for one in known if one.is_file()), None)


def _job_of(config: TrainingConfig, table: StrategyTable, folder: Path) -> dict[str, object]:
    """Identity of one search's files: the configuration's path from their folder, ranks and batch."""
    first = table.row(0) if len(table) else config.strategy
    return {
        "path": os.path.relpath(config.path.resolve(), folder.resolve()),
        "ranks": first.world_size,
        "batch": first.global_batch,
    }


def _manifest(folder: Path) -> dict[str, Any]:
    """Record of the last emission: its job and the names of its files; empty where there is none."""
    kept = read_kept(folder / MANIFEST)
    if isinstance(kept, list):  # by an earlier version
        return {"files": kept}
    return kept if isinstance(kept, dict) else {}


def _files_of(folder: Path, manifest: Mapping[str, Any]) -> list[Path]:
    """Files of an emission that lie in a folder; never one outside of it."""
    files = [folder / Path(str(name)).name for name in manifest.get("files", [])]
    return [file for file in files if file.name != MANIFEST and file.is_file()]


def _set_aside(folder: Path, job: Mapping[str, object]) -> list[tuple[Path, Path]]:
    """Move the files of an earlier emission for another job to a folder of their own; returns the moves.

    Raises
    ------
    WriteError
        When they cannot be moved; none is then.
    """
    manifest = _manifest(folder)
    files = _files_of(folder, manifest)
    if not files or manifest.get("job") in (None, job):
        return []
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    moved = [(file, aside / file.name) for file in (*files, folder / MANIFEST, folder / BASELINE)]
    moved = [(old, new) for old, new in moved if old.exists()]
    done: list[tuple[Path, Path]] = []
    try:
        aside.mkdir(parents=True)
        for old, new in moved:
            old.rename(new)
            done.append((old, new))
    except OSError as error:
        _put_back(done)
        with suppress(OSError):
            aside.rmdir()
        problem = f"does not take the files of an earlier search for another job: {error.strerror or error}"
        raise WriteError(problem, file=aside, cure="make it writable, or choose another folder") from error
    return moved


def _put_back(moved: Sequence[tuple[Path, Path]]) -> None:
    """Undo `_set_aside`."""
    for old, new in moved:
        new.rename(old)
    if moved:
        moved[0][1].parent.rmdir()


def _remove_stale(folder: Path, names: Sequence[str], job: Mapping[str, object]) -> None:
    """Remove files of an earlier emission of the job that this one did not write, and record those of this one."""
    for stale in _files_of(folder, _manifest(folder)):
        if stale.name not in names:
            stale.unlink()
    write_kept(folder / MANIFEST, {"job": dict(job), "files": sorted(names)})
