"""Cards of training and of roll-outs, so that neither waits: every split with every layout of the training.

One iteration's samples are generated while those before are trained. Its time is the longer of the two sides, and the
passing of weights. A pair of split and layout has a lower bound before it is solved: the roll-outs of that many cards,
and the least step that any plan of the layout can have (`work_limits.least_step_time`). Pairs are solved in the order
of these bounds, until none that remains can be better than the best one found.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from taylor.base.console import progress
from taylor.base.errors import InfeasibleError, InputError, TaylorError
from taylor.cost_model.job.strategy import Strategy
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import search
from taylor.parsers.registry import launcher_of
from taylor.parsers.rl_iteration import CRITIC, LOG_PROBS, REFERENCE, VALUES, RlIteration
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import PipelinePlan
from taylor.pipeline_solver.columns.work_limits import least_step_time
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import INFEASIBLE
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.device import DeviceSpec
from taylor.workflows.rl.evaluate import RlChoice
from taylor.workflows.rl.memory import FITS, phase_memory, samples_cached, stages_of, training_profile
from taylor.workflows.rl.times import (
    SampleTokens,
    critic_ms,
    least_scoring_ms,
    problem_for,
    reshard_ms,
    rollout_ms,
    scoring_ms,
    timed_config,
)
from taylor.workflows.statement.devices import ChosenDevice

SEARCHED = ("tp", "pp", "ep")
"""Degrees of the training that are searched as far as its file can state them; data parallelism takes what they leave
of the cards."""
SOLVE_SECONDS = 20.0
"""Longest solve of one layout; its bound counts where it ends unproven."""


@dataclass(frozen=True)
class SplitRow:
    """Best that is known of one split.

    Parameters
    ----------
    training_cards, rollout_cards : int
    rollout_ms : float
        Generation of an iteration's samples.
    layouts : int
        Layouts of the training that are legal and fit.
    bound_ms : float
        No layout of this split has a shorter iteration.
    iteration_ms, training_ms : float or None
        Iteration and training side of its best layout that was solved; None where none had to be.
    strategy : Strategy or None
        That layout.
    reason : str
        Why there is none.
    """

    training_cards: int
    rollout_cards: int
    rollout_ms: float
    layouts: int = 0
    bound_ms: float = math.inf
    iteration_ms: float | None = None
    training_ms: float | None = None
    strategy: Strategy | None = None
    reason: str = ""


@dataclass(frozen=True)
class SplitPlan:
    """Best split of the cards.

    Parameters
    ----------
    rows : tuple of SplitRow
        Every split, the training's cards rising.
    best : SplitRow
    plan : PipelinePlan
        Layers and recompute of the best one's training.
    bound_ms : float
        No split with any layout has a shorter iteration.
    solved : int
        Pairs of split and layout that were solved.
    """

    config: TrainingConfig
    iteration: RlIteration
    rows: tuple[SplitRow, ...]
    best: SplitRow
    plan: PipelinePlan
    bound_ms: float
    solved: int

    @property
    def cards(self) -> int:
        """Cards of the job."""
        return self.best.training_cards + self.best.rollout_cards

    @property
    def iteration_ms(self) -> float:
        """Time of an iteration, ms."""
        assert self.best.iteration_ms is not None
        return self.best.iteration_ms

    @property
    def gap(self) -> float:
        """Share of the iteration by which the bound lies below it."""
        return max(0.0, 1 - self.bound_ms / self.iteration_ms)

    @property
    def samples_a_second(self) -> float:
        """Trained samples a second."""
        return self.iteration.samples / (1e-3 * self.iteration_ms)

    def to_dict(self) -> dict[str, Any]:
        """Figures as plain data."""
        return {
            "training_cards": self.best.training_cards,
            "rollout_cards": self.best.rollout_cards,
            "strategy": None if self.best.strategy is None else self.best.strategy.name,
            "plan": {"layers": self.plan.layers, "recompute": self.plan.recompute},
            "iteration_ms": self.iteration_ms,
            "lower_bound_ms": self.bound_ms,
            "gap": self.gap,
            "samples_per_second": self.samples_a_second,
            "solved": self.solved,
            "splits": [
                {
                    "training_cards": row.training_cards,
                    "rollout_cards": row.rollout_cards,
                    "rollout_ms": row.rollout_ms,
                    "training_ms": row.training_ms,
                    "iteration_ms": row.iteration_ms,
                    "lower_bound_ms": None if math.isinf(row.bound_ms) else row.bound_ms,
                    "strategy": None if row.strategy is None else row.strategy.name,
                    "layouts": row.layouts,
                    "reason": row.reason,
                }
                for row in self.rows
            ],
        }


@dataclass(frozen=True)
class Layout:
    """One layout of the training on the cards of one split.

    Parameters
    ----------
    config, timed : TrainingConfig
        With samples of the greatest and of the mean length.
    iteration : RlIteration
        With the cards of the split, and the critic on those of the training.
    problem : PipelineProblem
        Limited as samples of the greatest length are.
    beside_ms : float
        Lower bound of what the training side does beside its steps, the critic's phases included.
    critic_ms : float
        The critic's phases.
    sync_ms : float
        Passing of weights.
    """

    strategy: Strategy
    config: TrainingConfig
    timed: TrainingConfig
    iteration: RlIteration
    problem: PipelineProblem
    beside_ms: float
    critic_ms: float
    sync_ms: float

    def iteration_ms(self, rollout: float, step: float, beside: float, updates: int) -> float:
        """Iteration with a step and further passes of these times, ms."""
        return max(rollout, updates * step + beside) + self.sync_ms


def split_cards(
    config: TrainingConfig,
    iteration: RlIteration,
    chosen: ChosenDevice,
    choice: RlChoice,
    cards: int,
    time_limit: float = 120.0,
) -> SplitPlan:
    """Best split of a number of cards.

    Raises
    ------
    InputError
        When no split of the cards leaves a legal job.
    InfeasibleError
        When none fits.
    """
    until = time.monotonic() + time_limit
    iteration = separated(iteration)
    tokens = choice.tokens(iteration)
    rows: list[SplitRow] = []
    queue: list[tuple[float, int, int, Layout]] = []
    count = itertools.count()
    for training in training_cards(cards, iteration, chosen.spec):
        row, layouts = _layouts(config, iteration, chosen, choice, tokens, training, cards - training)
        for layout, bound in layouts:
            heapq.heappush(queue, (bound, next(count), len(rows), layout))
        rows.append(replace(row, bound_ms=min((bound for _, bound in layouts), default=math.inf)))
    if not queue:
        raise _nothing(config, rows, cards)
    best: tuple[float, int, PipelinePlan] | None = None
    open_bounds: list[float] = []
    solved = 0
    with progress("splits", len(queue)) as advance:
        while queue and (best is None or queue[0][0] < best[0]):
            if time.monotonic() > until and best is not None:
                break
            bound, _, at, layout = heapq.heappop(queue)
            found, proven, row = _solved(layout, rows[at], chosen, bound)
            solved += 1
            advance(1, "")
            rows[at] = row
            open_bounds.append(proven)
            if found is not None and (best is None or found[0] < best[0]):
                best = (found[0], at, found[1])
    if best is None:
        raise _nothing(config, rows, cards)
    lowest = min([best[0], *open_bounds, *(entry[0] for entry in queue[:1])])
    return SplitPlan(config, iteration, tuple(rows), rows[best[1]], best[2], lowest, solved)


def separated(iteration: RlIteration) -> RlIteration:
    """The same iteration on cards of its own, one step behind the roll-outs."""
    return replace(iteration, colocated=False, staleness=max(1, iteration.staleness))


def training_cards(cards: int, iteration: RlIteration, device: DeviceSpec) -> list[int]:
    """Cards of the training in every split: any number of one node's, else whole nodes or as many of each node."""
    node = min(8, device.devices_per_node)
    nodes = max(1, cards // node)
    engine = iteration.engine.cards
    return [
        each
        for each in range(1, cards - engine + 1)
        if (each % nodes == 0 or each % node == 0) and (cards - each) % engine == 0
    ]


def _layouts(
    config: TrainingConfig,
    iteration: RlIteration,
    chosen: ChosenDevice,
    choice: RlChoice,
    tokens: SampleTokens,
    training: int,
    rollout: int,
) -> tuple[SplitRow, list[tuple[Layout, float]]]:
    """Row of a split, and its layouts with the lower bound of each one's iteration, ms."""
    row = SplitRow(training, rollout, math.inf)
    try:
        critic = None if iteration.critic is None else iteration.critic.on_cards(training)
    except InputError:
        return replace(row, reason="the critic's layout does not divide the cards"), []
    on_cards = replace(iteration, rollout_cards=rollout, critic=critic)
    cached = samples_cached(config, on_cards, chosen.spec, tokens.total)
    if cached < 1:
        return replace(row, reason="an engine's weights leave no cache"), []
    generated = rollout_ms(on_cards, choice.speed, tokens, rollout, min(cached, iteration.engine.concurrent))
    row = replace(row, rollout_ms=generated)
    of_critic = 0.0 if critic is None else sum(critic_ms(critic, chosen, tokens).values())
    try:
        strategies = legal_strategies(config, chosen.spec, training)
    except InfeasibleError:
        return replace(row, reason="no layout fits a card"), []
    except InputError:
        return replace(row, reason="no layout is legal"), []
    found = []
    for strategy in strategies:
        try:
            layout = layout_of(config, strategy, on_cards, chosen, tokens, of_critic)
        except TaylorError:
            continue
        step = least_step_time(layout.problem) * _unit(layout.problem)
        found.append((layout, layout.iteration_ms(generated, step, layout.beside_ms, iteration.updates)))
    return replace(row, layouts=len(found), reason="" if found else "no layout can be planned"), found


def legal_strategies(config: TrainingConfig, device: DeviceSpec, cards: int) -> Sequence[Strategy]:
    """Strategies of the training on a number of cards that are legal and fit.

    Raises
    ------
    TaylorError
        When there is none.
    """
    stated = set(launcher_of(config).degree_words)
    names = ("dp", *(name for name in SEARCHED if name in stated))
    options = SearchOptions(
        world_size=cards, gbs=config.strategy.global_batch, search=names, profile_num=1, spread=False
    )
    return list(search(config.replace(open_ranks=None), device, options).candidates)


def layout_of(
    config: TrainingConfig,
    strategy: Strategy,
    iteration: RlIteration,
    chosen: ChosenDevice,
    tokens: SampleTokens,
    beside_ms: float = 0.0,
) -> Layout:
    """A layout of the training, with its problem.

    Parameters
    ----------
    beside_ms : float
        Time of the critic's phases on these cards, whatever the layout.

    Raises
    ------
    TaylorError
        When its problem cannot be stated.
    """
    own = config.replace(strategy=strategy, plan=None, by_module=None)
    own = own.replace(schedule=own.schedule_for(strategy.vpp))
    timed = timed_config(own, iteration, tokens)
    problem = problem_for(timed, chosen, training_profile(own, iteration, chosen.spec))
    beside = _passes(iteration) * least_scoring_ms(timed, iteration, chosen.spec) + beside_ms
    sync = reshard_ms(own, iteration, chosen.spec)
    return Layout(strategy, own, timed, iteration, problem, beside, beside_ms, sync)


def _solved(
    layout: Layout, row: SplitRow, chosen: ChosenDevice, bound: float
) -> tuple[tuple[float, PipelinePlan] | None, float, SplitRow]:
    """Iteration and plan of a layout, the proven lower bound of its iteration, and the split's row with it."""
    solution = solve(layout.problem, SolveOptions(time_limit=SOLVE_SECONDS))
    if solution.plan is None or solution.objective is None:
        why = row.reason or ("no plan fits a card" if solution.status is INFEASIBLE else "no plan was found in time")
        return None, math.inf if solution.status is INFEASIBLE else bound, replace(row, reason=why)
    iteration = layout.iteration
    if not _critic_fits(layout, solution.plan, chosen):
        return None, bound, replace(row, reason=row.reason or "the critic does not fit beside the policy")
    unit = _unit(layout.problem)
    beside = (
        _passes(iteration) * scoring_ms(layout.timed.replace(plan=solution.plan), iteration, chosen.spec)
        + layout.critic_ms
    )
    step, least = solution.objective * unit, (solution.bound or 0.0) * unit
    found = layout.iteration_ms(row.rollout_ms, step, beside, iteration.updates)
    # A plan with a longer step may pass shorter beside it, so that this plan's own time there bounds nothing.
    proven = layout.iteration_ms(row.rollout_ms, least, layout.beside_ms, iteration.updates)
    if row.iteration_ms is None or found < row.iteration_ms:
        training = iteration.updates * step + beside
        row = replace(row, iteration_ms=found, training_ms=training, strategy=layout.strategy, reason="")
    return (found, solution.plan), max(bound, proven), row


def _critic_fits(layout: Layout, plan: PipelinePlan, chosen: ChosenDevice) -> bool:
    """Return whether the critic's phases fit beside what a plan of the policy leaves on the cards."""
    if layout.iteration.critic is None:
        return True
    config = layout.config.replace(plan=plan)
    memory = phase_memory(config, layout.iteration, chosen.spec, stages_of(config))
    return all(one.verdict == FITS for one in memory if one.phase in (VALUES, CRITIC))


def _passes(iteration: RlIteration) -> int:
    """Forward passes of the policy's size over all samples beside the training: log-probabilities, the reference's."""
    return sum(phase in iteration.resident for phase in (LOG_PROBS, REFERENCE))


def _unit(problem: PipelineProblem) -> float:
    assert problem.unit_ms is not None
    return problem.unit_ms


def _nothing(config: TrainingConfig, rows: Sequence[SplitRow], cards: int) -> TaylorError:
    """Error where no split can run."""
    if not rows:
        cure = "name more cards, or fewer ones an engine"
        return InputError("cannot be split: an engine leaves no card", field="--cards", value=cards, cure=cure)
    reasons = "; ".join(dict.fromkeys(f"{row.training_cards} + {row.rollout_cards}: {row.reason}" for row in rows[-3:]))
    return InfeasibleError(f"{config.path}: no split of {cards} cards has a training that fits ({reasons})")
