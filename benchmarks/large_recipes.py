"""Recipes of LLaMA3-405B and DeepSeek-V3 as stated jobs, for comparisons of what a plan may use."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.mlperf_layouts import mlperf_configs
from benchmarks.recipes import RECIPES, recipe_configs
from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import AskedModules, FileJob
from taylor.workflows.statement.stated_file import StatedFile

MODELS = ("405b", "deepseek")

Stated = TypeVar("Stated")


class Chosen(argparse.Namespace):
    """What the command line asks of a comparison."""

    folder: Path
    time_limit: float
    margin: MemoryMargin
    only: str

    @property
    def options(self) -> SolveOptions:
        """Options of each solve."""
        return SolveOptions(time_limit=self.time_limit)


def chosen_recipes(doc: str | None, arguments: list[str] | None) -> Chosen:
    """The command line of a comparison with a module's description."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=RECIPES)
    parser.add_argument("--time_limit", type=float, default=60.0, help="seconds a solve")
    parser.add_argument("--margin", type=_margin, default=MemoryMargin(), help="MiB that each device keeps free")
    parser.add_argument("--only", default="", help="recipes with this text in their name")
    return parser.parse_args(arguments, Chosen())


def _margin(text: str) -> MemoryMargin:
    return MemoryMargin(mib=float(text))


def stated(config: TrainingConfig, device: str, margin: MemoryMargin, **requests: Any) -> StatedFile:
    """A recipe with all that its file can state, and further requests of a `FileJob`."""
    config = config.replace(margin=margin)
    for modules in (AskedModules(True, True), AskedModules(True, False), AskedModules()):
        job = FileJob(config.path, device=device, dryrun=False, check=False, margin=margin, modules=modules, **requests)
        try:
            return StatedFile.of(job, config, choose_device(config, device))
        except InputError as error:
            if error.field not in ("--recompute_modules", "--offload"):
                raise
    raise AssertionError("a job without choices is stated")


def each_recipe(
    chosen: Chosen, state: Callable[[StatedFile], Stated], **requests: Any
) -> Iterator[tuple[str, StatedFile, Stated]]:
    """The recipes with several stages, each once, and what `state` makes of each; refused ones are printed."""
    known: set[str] = set()
    for row, config in chain(recipe_configs(chosen.folder), mlperf_configs(chosen.folder)):
        name = row["script"].removesuffix(".sh")
        wanted = any(model in name.lower() for model in MODELS) and chosen.only in name
        if config.strategy.pp == 1 or name in known or not wanted:
            continue
        known.add(name)
        try:
            file = stated(config, row["system"], chosen.margin, **requests)
            found = state(file)
        except TaylorError as error:
            print(name, error, file=sys.stderr, flush=True)
            continue
        yield name, file, found


def shape_of(problem: PipelineProblem) -> str:
    """Stages, virtual stages and micro-batches of a problem."""
    return f"PP{problem.stages} VP{problem.interleaves} m{problem.micro_batches}"
