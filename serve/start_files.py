"""Files that start a question's training under each framework."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taylor.base.files import printable
from taylor.parsers.new_files import NEW_FILES
from taylor.parsers.registry import launcher_of
from taylor.register.registry import Registry
from taylor.serve.question import Models, Question
from taylor.workflows.searching.model_job import per_node

START_FRAMEWORKS = tuple(NEW_FILES)
"""Frameworks whose files start a training."""


@dataclass(frozen=True)
class StartFile:
    """Name and text of a file."""

    name: str
    text: str


def start_file(models: Models, ask: Question, framework: str) -> StartFile:
    """File of a framework with a question's strategy and its even plan.

    Raises
    ------
    InputError
        When the framework's files cannot state the model, the strategy or a feature of the software.
    """
    config = models.config(ask.model_copy(update={"framework": framework}))
    plan = models.even_plan(config, ask)
    text = launcher_of(config).with_strategy(config, config.strategy, plan, {})
    # The page's own file, of which this is a copy, is for one host; its first lines say so.
    host = min(ask.ranks, per_node(Registry.load(None).device(ask.device)))
    text = text.replace(f" on {host:,} ranks", f" on {ask.ranks:,} ranks", 1)
    stem = printable(Path(config.model.name).stem or "train")
    return StartFile(f"{stem}{config.path.suffix}", text)
