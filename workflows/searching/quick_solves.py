"""Quick solves of a search's strategies: the first plan that the solver finds for each, under a ranking's figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from os import cpu_count
from pathlib import Path
from tempfile import TemporaryDirectory

from taylor.base.console import progress
from taylor.base.errors import TaylorError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.time.step import estimate_ratios
from taylor.dryrun.estimate import estimate_memory
from taylor.nd_search.steps import SolvedStep
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant
from taylor.pipeline_solver.model.options import DEFAULT_OPTIONS, SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE, Solution
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.ranking.rank_solves import nothing_to_beat, solve_one
from taylor.workflows.running.kept_solves import SolveStore
from taylor.workflows.running.process_pool import Failed, run_in_processes
from taylor.workflows.statement.devices import ChosenDevice
from taylor.workflows.statement.legality import require_legal
from taylor.workflows.statement.measured_run import SeenMemory
from taylor.workflows.statement.module_choices import offered_words, with_host_priced
from taylor.workflows.statement.options import AskedModules
from taylor.workflows.statement.stated_file import read_for

LOOK_SECONDS = 20.0
"""Longest time of a quick solve; most end within half a second. A strategy unsolved by then keeps its estimate."""


class _Unwritten(Exception):
    """The configuration's form cannot state a strategy."""


@dataclass(frozen=True)
class QuickSolves:
    """Solves strategies of one configuration like a ranking's quick solves.

    Parameters
    ----------
    config : TrainingConfig
        Configuration that is searched; its strategy and plan are not used.
    modules : AskedModules
        Choices by module for the solves.
    how : SolveOptions
        Settings of the ranking's solves; a time limit takes precedence over `LOOK_SECONDS` where it is shorter.
    workers : int
        Solves at once, a process each.
    estimated_memory : bool
        Whether the search's memory is estimated too: only then is a strategy without a plan dropped.
    register_path, env_json : Path or None
        Where files name their model, and the environment of their runs.
    store : SolveStore or None
        Store of finished solves.
    allow_illegal : tuple of str
        Legality rules that a strategy may break.
    seen : SeenMemory
        What runs showed of the memory, and limits of single stages.
    until : float
        Time of the monotonic clock after which no solve begins: an unsolved strategy keeps its estimate.
    """

    config: TrainingConfig
    device: ChosenDevice
    modules: AskedModules = AskedModules()
    how: SolveOptions = DEFAULT_OPTIONS
    workers: int = field(default_factory=lambda: cpu_count() or 1)
    estimated_memory: bool = True
    register_path: Path | None = None
    env_json: Path | None = None
    store: SolveStore | None = None
    allow_illegal: tuple[str, ...] = ()
    until: float = math.inf
    seen: SeenMemory = SeenMemory()

    def __call__(self, strategies: Sequence[Strategy], limit_mib: float) -> list[SolvedStep]:
        """Step time of the first plan of each strategy, or the reason why there is none."""
        found: dict[int, SolvedStep] = {}
        problems: dict[int, PipelineProblem] = {}
        limit = LOOK_SECONDS if self.how.time_limit is None else min(LOOK_SECONDS, self.how.time_limit)
        look = self.how.replace(cutoff=nothing_to_beat, time_limit=limit, workers=1)
        tasks: dict[int, Callable[[], Callable[[], Solution] | None]] = {}
        for number, strategy in enumerate(strategies):
            try:
                problems[number] = self._problem(strategy, limit_mib)
            except _Unwritten:
                found[number] = SolvedStep(None)  # reported where the files are written
                continue
            except TaylorError as error:
                found[number] = SolvedStep(None, str(error) if self.estimated_memory else "")
                continue
            kept = None if self.store is None else self.store.find(problems[number], look)
            if kept is not None:
                found[number] = self._step(problems[number], kept.solution)
            else:
                tasks[number] = partial(self._task, problems[number], look)

        with progress("looking", len(tasks)) as advance:

            def take(number: int, outcome: Solution | Failed) -> None:
                advance(1, "")
                if isinstance(outcome, Failed):
                    found[number] = SolvedStep(None)
                    return
                if self.store is not None:
                    self.store.keep(problems[number], look, outcome)
                found[number] = self._step(problems[number], outcome)

            run_in_processes(tasks, self.workers, take)
        return [found.get(number, SolvedStep(None)) for number in range(len(strategies))]

    def _task(self, problem: PipelineProblem, how: SolveOptions) -> Callable[[], Solution] | None:
        return partial(solve_one, problem, how, None) if time.monotonic() < self.until else None

    def _problem(self, strategy: Strategy, limit_mib: float) -> PipelineProblem:
        """Problem that a ranking states for the strategy's file.

        The file is written and read again, so that values that a launcher derives from the degrees, such as a padded
        vocabulary, are derived again.

        Raises
        ------
        _Unwritten
            When the configuration's form cannot state the strategy, and the job has no encoder.
        TaylorError
            When the strategy has no pipeline problem.
        """
        launcher, card = launcher_of(self.config), self.device.spec
        suffix = self.config.path.suffix
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{strategy.name}{suffix if suffix in launcher.suffixes else launcher.suffixes[0]}"
            try:
                emit_variant(self.config, strategy, path, plan=None)
                config = read_for(path, self.register_path, self.env_json, self.config.margin)
                if config.open_ranks is not None:
                    config = config.on_ranks(strategy.world_size, strategy.global_batch)
            except TaylorError as error:
                if self.config.tower is None:
                    raise _Unwritten(str(error)) from error
                # The layers of a job with an encoder stand in a file beside its script, which the user writes.
                config = self.config.replace(strategy=strategy, plan=None, by_module=None, open_ranks=None)
                config = config.replace(schedule=config.schedule_for(strategy.vpp), stage_devices=())
        config = config.replace(tower=self.config.tower)
        config = require_legal(with_host_priced(config, card), card, self.allow_illegal)
        memory = replace(estimate_memory(config, card), device_limit_mib=limit_mib)
        ratios = estimate_ratios(config.model, strategy, config.rules, card)
        words = offered_words(config, card, self.modules)
        return problem_of(CandidateFile(config, memory, ratios, device=self.device, modules=words, seen=self.seen))

    def _step(self, problem: PipelineProblem, solution: Solution) -> SolvedStep:
        if solution.objective is not None and problem.unit_ms is not None:
            peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
            return SolvedStep(solution.objective * problem.unit_ms, "", tuple(peaks), tuple(limits))
        proven = solution.status is INFEASIBLE and self.estimated_memory
        return SolvedStep(None, solution.message if proven else "")
