"""Plans written back into training files, and files like a given one for another strategy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, Sequence

from taylor.base.console import log
from taylor.base.errors import InputError
from taylor.base.files import write_atomic
from taylor.cost_model.strategy import Strategy
from taylor.parsers.megatron import write as megatron_write
from taylor.parsers.megatron.read import MEGATRON
from taylor.parsers.mindformers import write as mindformers_write
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.toml_edit import TomlSource
from taylor.parsers.text.yaml_source import YamlSource
from taylor.parsers.torchtitan import write as torchtitan_write
from taylor.parsers.torchtitan.read import TORCHTITAN
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan

ORIGINAL_SUFFIX = ".orig"


def write_plan(
    config: TrainingConfig,
    plan: PipelinePlan,
    *,
    output: Path | None = None,
    micro_batches: int | None = None,
) -> Path:
    """Write a plan into the configuration's file, or into a copy of it.

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
        Where to write; the configuration's own file when left out.
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
    plan, changes = expressible(config, plan)
    for change in changes:
        log.warning("%s: %s", config.path, change)
    old, new = _planned(config, plan, micro_batches)
    return _store(old, new, config.path, output)


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
    plan = None if plan is None else expressible(config, plan)[0]
    if config.format == TORCHTITAN:
        toml = TomlSource.read(config.path)
        return write_atomic(output, torchtitan_write.with_strategy(toml, config, strategy, plan, extra).text)
    if config.format == MEGATRON:
        script = ShellScript.read(config.path)
        return write_atomic(output, megatron_write.with_strategy(script, config, strategy, plan, extra).text)
    source = YamlSource.read(config.path)
    return write_atomic(output, mindformers_write.with_strategy(source, config, strategy, plan, extra).text)


def expressible(config: TrainingConfig, plan: PipelinePlan) -> tuple[PipelinePlan, tuple[str, ...]]:
    """The plan itself where the configuration's kind of file can say it, else the nearest that fits memory.

    MindFormers files can say any plan. Megatron's flags know one recompute count for all chunks,
    torchtitan one recompute mode for all layers.

    Returns
    -------
    PipelinePlan, tuple of str
        What `write_plan` writes, and a sentence for each thing that had to change.
    """
    if config.format == TORCHTITAN:
        return torchtitan_write.nearest_plan(plan)
    return megatron_write.nearest_plan(plan) if config.format == MEGATRON else (plan, ())


def uniform_recompute(config: TrainingConfig, modes: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """What one recompute choice for all chunks the configuration's kind of file can say, of the modes searched.

    Returns
    -------
    tuple of (mode, int)
        As `PipelineProblem.uniform_recompute`: Megatron counts fully recomputed layers a chunk, or
        recomputes selectively everywhere; torchtitan all or nothing. Empty for MindFormers, which says any plan.
    """
    layers = sum(config.model.layer_counts().values())
    if config.format == MEGATRON:
        choices = [(FULL, count) for count in range(layers + 1)]
    elif config.format == TORCHTITAN:
        choices = [(FULL, 0), (FULL, layers)]
    else:
        return ()
    return tuple(choice for choice in [*choices, (SELECT, layers)] if choice[0] in modes)


def _planned(config: TrainingConfig, plan: PipelinePlan, micro_batches: int | None) -> tuple[str, str]:
    """The file's text before and after."""
    if config.format == TORCHTITAN:
        toml = TomlSource.read(config.path)
        return toml.text, torchtitan_write.with_plan(toml, config, plan, micro_batches).text
    if config.format == MEGATRON:
        script = ShellScript.read(config.path)
        return script.text, megatron_write.with_plan(script, config, plan, micro_batches).text
    source = YamlSource.read(config.path)
    return source.text, mindformers_write.with_plan(source, config, plan, micro_batches).text


def _store(old: str, new: str, path: Path, output: Path | None) -> Path:
    target = Path(output) if output is not None else Path(path)
    in_place = os.path.realpath(target) == os.path.realpath(path)
    if in_place and new == old:
        return target
    if target.exists() and not target.stat().st_mode & 0o222:
        # A superuser may write it all the same; who made it read-only did not mean that.
        raise InputError("is read-only", file=target, cure="make it writable or name another output")
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
