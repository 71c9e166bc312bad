"""Plans written into training files, and variants of a file for other strategies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping

from taylor.base.console import log
from taylor.base.errors import InputError, WriteError
from taylor.base.files import write_atomic
from taylor.cost_model.job.strategy import Strategy
from taylor.parsers.registry import launcher_of
from taylor.parsers.stage_comment import with_stage_devices
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.register.model import MTP
from taylor.register.tower import IN_FRONT

ORIGINAL_SUFFIX = ".orig"


def write_plan(
    config: TrainingConfig,
    plan: PipelinePlan,
    *,
    output: Path | None = None,
    micro_batches: int | None = None,
) -> Path:
    """Write a plan into the file that holds the configuration's plan, or into a copy of the configuration.

    Only the entries that say the plan change: comments, anchors, order and layout of the rest stay
    byte for byte. Written in place, the first original is kept beside the file as ``NAME.orig``. The
    file is replaced as a whole, so a reader (or a kill) sees the old one or the new one.

    Parameters
    ----------
    config : TrainingConfig
        As read from the file; its schedule, where it was overridden, is written too.
    plan : PipelinePlan
        Layers and recompute of every chunk.
    output : Path, optional
        Path to write; in place when not given. A configuration of several files is written there as one; under the
        ending that the file with the plan alone has, that file is.
    micro_batches : int, optional
        Micro-batches a step, set too when given.

    Returns
    -------
    Path
        The file written.

    Raises
    ------
    InputError
        When the file cannot express the plan, changed meanwhile, or cannot be written.
    """
    launcher = launcher_of(config)
    plan, changes = launcher.nearest_plan(plan.with_runs_joined(MTP).without(*IN_FRONT))
    for change in changes:
        log.warning("%s: %s", config.path, change)
    home = launcher.home_of_plan(config)
    old, new = launcher.with_plan(config, plan, micro_batches)
    new = _with_cards(new, config, home)
    beside = not _same_file(home, config.path)
    if output is not None and beside and Path(output).suffix == home.suffix != config.path.suffix:
        return _store(old, new, home, output)
    if output is None or _same_file(output, home) or _same_file(output, config.path):
        return _store(old, new, home, None)
    if beside:
        strategy = config.strategy.replace(vpp=plan.interleaves)
        strategy = strategy if micro_batches is None else strategy.replace(micro_batches=micro_batches)
        text = launcher.with_strategy(config, strategy, config.in_kinds_of_model(plan), {})
        new = _with_cards(text, config, output)
    return _store(old, new, home, output)


def emit_variant(
    config: TrainingConfig,
    strategy: Strategy,
    output: Path,
    *,
    plan: PipelinePlan | None,
    extra: Mapping[str, object] = {},  # noqa: B006 - never changed
) -> Path:
    """Write a file like the configuration's with another strategy (for a dry-run or a profile).

    Parameters
    ----------
    strategy : Strategy
        Every degree, batch and interleave number to set.
    output : Path
        The new file.
    plan : PipelinePlan or None
        Its layers and recompute; without one, an even split that recomputes all or nothing, as the
        file does.
    extra : mapping of dotted key to value
        Further entries to set, such as data set paths or profile switches.
    """
    launcher = launcher_of(config)
    plan = None if plan is None else launcher.nearest_plan(config.in_kinds_of_model(plan))[0]
    text = launcher.with_strategy(config, strategy, plan, extra)
    if sum(count for _, count in config.stage_devices) != strategy.pp:
        # A comment on other stages than these would make the variant unreadable.
        config = config.replace(stage_devices=())
    return write_atomic(output, _with_cards(text, config, output))


def _with_cards(text: str, config: TrainingConfig, target: Path) -> str:
    """The text with the comment on what the stages lie on, where it can have one."""
    if target.suffix.lower() != ".json":
        return with_stage_devices(text, config.stage_devices)
    if config.stage_devices:
        log.warning("%s: JSON has no comment to name the devices of the stages in", target)
    return text


def _same_file(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _store(old: str, new: str, path: Path, output: Path | None) -> Path:
    target = Path(output) if output is not None else Path(path)
    in_place = _same_file(target, path)
    if in_place and new == old:
        return target
    if target.exists() and not target.stat().st_mode & 0o222:
        # A superuser could write it all the same, but whoever made it read-only did not want that.
        raise WriteError("is read-only", file=target, cure="make it writable or name another output")
    original = Path(os.path.realpath(target) + ORIGINAL_SUFFIX)
    kept = in_place and not original.exists()
    if kept:
        write_atomic(original, old)
    try:
        return write_atomic(target, new)
    except InputError:
        if kept:
            original.unlink(missing_ok=True)
        raise
