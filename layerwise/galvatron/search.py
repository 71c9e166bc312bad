"""Galvatron's search as it is: an even division, a dynamic program a stage, its own formula of the step.

Kept to compare with. What it finds is what Galvatron finds, plan by plan; only tasks whose bound under its formula is
above the best plan are skipped. Hetu-Galvatron cea12ff galvatron/core/search_engine/dynamic_programming.py,
paddle-galvatron b0bdd07 paddlenlp/experimental/galvatron/search_engine/dynamic_programming.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from taylor.base.errors import InputError
from taylor.cost_model.measured.cost_table import CostProvider, CostRow, CostSetting, EndCosts, hidden_mib
from taylor.cost_model.measured.galvatron.step import galvatron_step_s, gather_buffer_mib
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan, even_division
from taylor.layerwise.galvatron.dynamic_program import StageProgram
from taylor.layerwise.galvatron.tasks import Task
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.pipeline_solver.model.stopping import Stopper

LAYOUT_PRICE = 1e-7
"""Its price of a byte that changes its layout over an all-reduce's ms a MiB."""


@dataclass(frozen=True)
class GalvatronPlan:
    """A plan that Galvatron's search finds.

    Parameters
    ----------
    plan : LayerwisePlan
    step_s : float
        By its formula.
    buffer_tp : int or None
        TP degree that its search kept a buffer of gathered hidden states for.
    """

    plan: LayerwisePlan
    step_s: float
    buffer_tp: int | None

    @property
    def samples_a_s(self) -> float:
        """Throughput."""
        return self.plan.global_batch / self.step_s


@dataclass(frozen=True)
class GalvatronSearch:
    """Its search of one job.

    Parameters
    ----------
    job : LayerwiseJob
    provider : CostProvider
        Galvatron's own costs: `HetuCosts` or `PaddleCosts`.
    layout_ms_a_mib : callable of int to float
        Cost of an all-reduce among n ranks, for changes of layout.
    one_for_all : bool
        Every layer has the same strategy (``fine_grained_mode`` 0), which embedding and head share.
    paddle : bool
        Under the rule of the port to Paddle that the embedding's activations count for as many micro-batches as
        there are stages.
    """

    job: LayerwiseJob
    provider: CostProvider
    layout_ms_a_mib: dict[int, float]
    one_for_all: bool = False
    paddle: bool = False

    def best(self, tasks: Iterable[Task], stopper: Stopper | None = None) -> GalvatronPlan | None:
        """The plan of most samples a second, of equal ones the first in the tasks' order; None where nothing fits.

        Parameters
        ----------
        stopper : Stopper, optional
            Asked before every task.

        Raises
        ------
        InputError
            When a cost is missing.
        OutOfTime
            When the stopper's deadline comes first.
        """
        stopper = stopper or Stopper(None)
        found: list[tuple[float, int, _Run]] = []
        for number, task in enumerate(tasks):
            stopper.check()
            if task.strategies and task.ends:
                run = _Run(self, task)
                bound = run.bound_s()
                if math.isfinite(bound):
                    found.append((bound / task.global_batch, number, run))
        best: tuple[float, int, GalvatronPlan] | None = None
        programs: dict[tuple[object, ...], StageProgram] = {}
        for bound, number, run in sorted(found, key=lambda each: each[:2]):
            if best is not None and bound > best[0] * (1 + 1e-12):
                break
            stopper.check()
            plan = run.solve(programs)
            if plan is not None:
                key = (1 / plan.samples_a_s, number)
                if best is None or key < best[:2]:
                    best = (*key, plan)
        return None if best is None else best[2]


class _Run:
    """One task with its costs."""

    def __init__(self, search: GalvatronSearch, task: Task) -> None:
        self.search, self.task = search, task
        job = search.job
        self.setting: CostSetting = job.setting(
            OuterChoice(task.global_batch, task.micro_batches, task.stages, task.ends[0])
        )
        self.division = even_division(job.layers, task.stages)
        self.rows: list[CostRow] = []
        self.strategies: list[LayerStrategy] = []
        for each in task.strategies:
            if self.setting.micro_batch >= each.dp:
                self.rows.append(search.provider.layer(job.kind, each, self.setting))
                self.strategies.append(each)
        self.ends = [
            (each, search.provider.ends(each, self.setting))
            for each in task.ends
            if self.setting.micro_batch >= each.dp
        ]
        alive = [self.setting.alive(stage) for stage in range(task.stages)]
        self.memory = [
            np.array([math.ceil(row.states_mib + n * row.activation_mib) for row in self.rows], dtype=np.int64)
            for n in alive
        ]
        self.usable = int(search.provider.memory.usable_mib(job.limit_mib))

    def bound_s(self) -> float:
        """No plan of the task is shorter by its formula: every stage at the least time that its memory allows."""
        if not self.rows:
            return math.inf
        times = np.array([row.micro_batch_s for row in self.rows])
        pick = int(np.argmin(times))
        least = math.inf
        for _, ends in self.ends:
            rows: list[list[CostRow]] = []
            for stage, count in enumerate(self.division):
                free = self._free(stage, ends)
                mean = _hull(self.memory[stage], times, free / count)
                if not math.isfinite(mean):
                    break
                rows.append([replace(self.rows[pick], forward_s=mean, backward_s=0.0, tail_s=-mean)] * count)
            if len(rows) == self.task.stages:
                least = min(least, galvatron_step_s(rows, ends, self.task.micro_batches))
        return least

    def _free(self, stage: int, ends: EndCosts) -> int:
        """Whole MiB that the layers of a stage may take."""
        end = ends.on_stage(stage, self.task.stages)
        alive = self.setting.alive(stage)
        if self.search.paddle:
            alive = self.task.stages if stage == 0 else 1
        kept = 0.0 if end is None else end.states_mib + alive * end.activation_mib
        buffer = 0
        if self.task.buffer_tp is not None and self.search.job.global_buffer:
            ranks = self.search.job.world // self.task.stages
            buffer = int(gather_buffer_mib(self.setting, ranks, self.task.buffer_tp))
        return self.usable - math.ceil(self.search.provider.memory.context_mib + kept) - buffer

    def solve(self, programs: dict[tuple[object, ...], StageProgram]) -> GalvatronPlan | None:
        """The plan of least step time by its formula; None where none fits."""
        best: GalvatronPlan | None = None
        for layers, ends, costs in self._uniform() if self.search.one_for_all else self._programs(programs):
            rows = [self.rows[each] for each in layers]
            starts = np.cumsum([0, *self.division])
            step = galvatron_step_s(
                [rows[a:b] for a, b in zip(starts[:-1], starts[1:], strict=True)], costs, self.task.micro_batches
            )
            if best is None or step < best.step_s:
                plan = LayerwisePlan(
                    self.division, tuple(self.strategies[each] for each in layers), ends, self.task.global_batch,
                    self.task.micro_batches, self.setting.schedule,
                )  # fmt: skip
                best = GalvatronPlan(plan, step, self.task.buffer_tp)
        return best

    def _programs(
        self, programs: dict[tuple[object, ...], StageProgram]
    ) -> Iterable[tuple[list[int], EndStrategy, EndCosts]]:
        """Result of its dynamic program for every strategy of embedding and head."""
        inside = np.array([row.micro_batch_s + row.tail_s for row in self.rows])
        between = self._between()
        for strategy, costs in self.ends:
            layers: list[int] = []
            for stage, count in enumerate(self.division):
                free = self._free(stage, costs)
                most = max(self._free(stage, their) for _, their in self.ends)
                memory = self.memory[stage]
                if free < count * int(memory.min()):
                    break
                key = (stage == 0, count, tuple(self.strategies), inside.tobytes(), memory.tobytes())
                program = programs.get(key)
                if program is None or len(program.f) <= most:
                    programs.clear()  # Tasks come by their bounds: what is asked for again is asked for soon.
                    program = StageProgram(memory, inside, between, count, most, stage == 0)
                    programs[key] = program
                chosen = program.choices(free)
                if chosen is None:
                    break
                layers += chosen
            if len(layers) == self.search.job.layers:
                yield layers, strategy, costs

    def _uniform(self) -> Iterable[tuple[list[int], EndStrategy, EndCosts]]:
        """Every strategy for all layers and the ends, where it fits."""
        for number, each in enumerate(self.strategies):
            costs = self.search.provider.ends(each.end, self.setting)
            if all(
                count * int(self.memory[stage][number]) <= self._free(stage, costs)
                for stage, count in enumerate(self.division)
            ):
                yield [number] * self.search.job.layers, each.end, costs

    def _between(self) -> NDArray[np.float64]:
        """Its price of one strategy after another, s [S, S]: dear changes of layout, and what sorts equal plans."""
        count = len(self.strategies)
        prices = np.zeros((count, count))
        ranks = self.search.job.world // self.task.stages
        for i, former in enumerate(self.strategies):
            for j, latter in enumerate(self.strategies):
                if i == j:
                    continue
                ways = max(former.ways, latter.ways)
                if former.ways != latter.ways and self.setting.sequence_parallel:
                    sent = (ways - 1) / ways * hidden_mib(self.setting.micro_batch / (ranks // ways), self.setting)
                    prices[i, j] = sent * 2**20 * self.search.layout_ms_a_mib[ways] * LAYOUT_PRICE
                else:
                    prices[i, j] = _bias(former, latter)
        return prices


def _bias(former: LayerStrategy, latter: LayerStrategy) -> float:
    """Tie-breaking cost of equal plans: recompute first, then ZeRO-3 (dynamic_programming.py:492-519)."""
    if (former.ways, former.dp, former.cp) != (latter.ways, latter.dp, latter.cp):
        return 0.0
    if former.sp != latter.sp:
        same = (former.zero, former.recompute) == (latter.zero, latter.recompute)
        return 1e-10 if same and latter.sp > 1 else 0.0
    if former.zero != latter.zero and former.recompute != latter.recompute and former.zero == 3 and latter.recompute:
        return 1e-9
    if latter.zero == 3 and latter.recompute:
        return 3e-9
    if former.zero == latter.zero:
        return 2e-9 if latter.recompute else 0.0
    return 1e-9 if former.recompute == latter.recompute and latter.zero == 3 else 0.0


def _hull(memory: NDArray[np.int64], times: NDArray[np.float64], free: float) -> float:
    """Least mean time of layers whose mean memory is at most so much, strategies mixed in any shares."""
    fitting = memory <= free
    least = float(times[fitting].min()) if fitting.any() else math.inf
    for below in np.nonzero(fitting)[0]:
        for above in np.nonzero(~fitting)[0]:
            share = (free - memory[below]) / (memory[above] - memory[below])
            least = min(least, float(times[below] + share * (times[above] - times[below])))
    return least


def layout_prices(bandwidths: Sequence[tuple[int, float]]) -> dict[int, float]:
    """Costs of all-reduces, ms a MiB, by ranks, from their bandwidths, MiB a ms; one rank's is free.

    Raises
    ------
    InputError
        When a bandwidth is 0.
    """
    if any(bandwidth <= 0 for _, bandwidth in bandwidths):
        raise InputError("must be above 0", file="allreduce_bandwidth_*.json", cure="measure it again")
    return {1: 0.0, **{ranks: 1 / bandwidth for ranks, bandwidth in bandwidths}}
