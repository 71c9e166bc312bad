"""Time ratios of a folder of candidates from their profiles, written as a table; failures are logged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from taylor.base.console import log, progress
from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.launch import read_environment
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE, SELECT
from taylor.profiling.extract import ExtractedRatios, extract_ratios
from taylor.profiling.folders import find_profile_folders
from taylor.profiling.table import RESULT_NAME, write_profiling_result
from taylor.register.device import DeviceSpec
from taylor.workflows.statement.devices import choose_device

LISTED_PROBLEMS = 3
"""Problems of one configuration that are logged; each rank has its own."""
LISTED_NOTES = 1
"""Notes of one configuration that are logged at once; the others need --verbose."""


def parse_profiles(
    files: Iterable[Path],
    profile_data: Path,
    device: str | DeviceSpec | None,
    output: Path,
    register_path: Path | None = None,
    env_json: Path | None = None,
) -> dict[Path, TimeRatios]:
    """Ratios of the candidates that were profiled, by file; also written as ``profiling_result.csv``.

    A configuration whose profiles do not fit is omitted, with the reason in the log; its ratios are then estimated. A
    single figure missing in the profiles is estimated on the device or, where that is None, on the usual one of the
    file's jobs.

    Parameters
    ----------
    env_json : Path, optional
        Environment of the candidates' runs, as JSON.

    Raises
    ------
    InputError
        When there is no such folder.
    """
    environment = read_environment(env_json)
    folders = find_profile_folders(profile_data, files)
    for folder in folders.unknown:
        log.warning("%s: no candidate is named like this folder", folder)
    ratios: dict[Path, TimeRatios] = {}
    rows: list[tuple[Strategy, ExtractedRatios]] = []
    with progress("parsing profiles", len(folders.found)) as advance:
        for file, folder in folders.found.items():
            advance(1, folder.name)
            try:
                config = read_config(file, register_path, environment)
                found = extract_ratios(read_config(folders.profiled[file], register_path, environment), folder)
            except TaylorError as error:
                log.warning("%s: %s; its ratios are estimated", file.name, error)
                continue
            _log_ratios(file, found)
            if found.ratios is None:
                continue
            ratios[file] = _completed(found, config, choose_device(config, device, register_path).spec)
            rows.append((config.strategy, replace(found, ratios=ratios[file])))
    if rows:
        log.info(
            "time ratios: parsed from profiles for %d of %d candidates, %s",
            len(rows),
            len(folders.found) + len(folders.absent),
            write_profiling_result(rows, output / RESULT_NAME),
        )
    else:
        log.warning("%s: no candidate has a profile that can be used", profile_data)
    return ratios


def _completed(found: ExtractedRatios, config: TrainingConfig, device: DeviceSpec) -> TimeRatios:
    """Parsed ratios, with estimates for those missing in the profiles."""
    assert found.ratios is not None
    if not found.missing:
        return found.ratios
    guess = estimate_ratios(config.model, config.strategy, config.rules, device)
    ratios = found.ratios
    if "dmratio" in found.missing:
        ratios = replace(ratios, dense_forward=guess.dense_forward)
    if "bfratio" in found.missing:
        ratios = replace(ratios, backward=guess.backward)
    if "hratio" in found.missing:
        ratios = replace(ratios, head=guess.head)
    if "re_grow_ration" in found.missing:
        select = guess.recompute.get(SELECT, ratios.recompute[SELECT])
        ratios = replace(ratios, recompute={FULL: guess.recompute[FULL], SELECT: select, NONE: 0.0})
    return ratios


def _log_ratios(file: Path, found: ExtractedRatios) -> None:
    for problem in found.problems[:LISTED_PROBLEMS]:
        log.warning("%s: %s", file.name, problem)
    if found.problems:
        rest = len(found.problems) - LISTED_PROBLEMS
        more = f" ({rest} more ranks do not fit)" if rest > 0 else ""
        log.warning("%s: does not fit its profile%s: its ratios are estimated", file.name, more)
    if found.ratios is not None and found.missing:
        log.warning("%s: not measured and estimated: %s", file.name, ", ".join(found.missing))
    for number, note in enumerate(found.notes):
        hidden = len(found.notes) - LISTED_NOTES if number == LISTED_NOTES - 1 else 0
        text = f"{note} ({hidden} more notes with --verbose)" if hidden > 0 else note
        (log.info if number < LISTED_NOTES else log.debug)("%s: %s", file.name, text)
