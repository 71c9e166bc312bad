"""Explains why one strategy is, or is not, a candidate of a search, and lists the rules that decide it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.memory.breakdown import StageBreakdown, lightest_plan, stage_breakdown
from taylor.dryrun.interface import DryRun
from taylor.dryrun.stage_memory import StageMemory
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rules import list_rules
from taylor.nd_search.search import explain
from taylor.nd_search.space import with_ruled_splits
from taylor.nd_search.user_rules import load_user_rules
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.plan import FULL, NONE
from taylor.workflows.searching.search import StrategySearchOptions
from taylor.workflows.showing.dryrun_result import stage_memories
from taylor.workflows.showing.memory_interval import reserve
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.dryrun_backend import open_backend
from taylor.workflows.statement.job_facts import JobFacts, log_head, log_misspelled, log_notes
from taylor.workflows.statement.schedules import require_schedule
from taylor.workflows.statement.towers import tower_lines, tower_mib


@dataclass(frozen=True)
class Explanation:
    """Reason why a strategy is or is not a candidate; its memory by stage under the most recompute, MiB.

    `measured` is the memory in a dry-run of the same plan, of the stages that ran, where a backend measures it.
    """

    reasons: tuple[str, ...]
    stages: tuple[StageBreakdown, ...]
    limit_mib: float
    measured: tuple[StageMemory, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return {
            "reasons": list(self.reasons),
            "limit_mib": self.limit_mib,
            "stages": [
                {
                    "stage": one.stage,
                    "total_mib": one.total,
                    "alive": one.alive,
                    "layers": dict(one.layers),
                    "parts_mib": dict(one.categories()),
                }
                for one in self.stages
            ],
            "measured": [
                {"stage": one.stage, "total_mib": one.peak_mib, "parts_mib": dict(one.categories)}
                for one in self.measured
            ],
        }


def describe_rules(options: StrategySearchOptions) -> str:
    """Rules, one line each, the user's own included."""
    return list_rules(load_user_rules(options.rules_path))


def explain_strategy(options: StrategySearchOptions, name: str) -> Explanation:
    """Explain why one strategy is, or is not, a candidate, and the memory that it needs.

    Parameters
    ----------
    name : str
        Degrees as file names carry them, ``DP16_TP4_PP16_EP8``; ``CP``, ``VPP`` and ``MBS`` may follow.

    Raises
    ------
    InputError
        When the name is not of that form.
    """
    config = options.read()
    chosen = choose_device(config, options.device, options.register_path)
    facts, device = JobFacts(config, chosen), chosen.spec
    log_misspelled([config])
    head = [f"{config.path}: {facts.model_line(options.register_path)}", facts.device_line()]
    log_head([*head, *tower_lines(config, device)])
    log_notes(config)
    strategy = _strategy_of(name, config, options.space.gbs)
    strategy = with_ruled_splits(strategy, SearchContext.settle(config, device, options.space), options.space)
    lines = explain(config, device, options.space, strategy, options.rules_path)
    lines += [sentence for sentence in (reserve(config),) if sentence is not None]
    limit = config.memory_limit_mib(device)
    if strategy.micro_batches < 1 or strategy.pp * strategy.vpp > sum(config.model.layer_counts().values()):
        return Explanation(tuple(lines), (), limit)
    try:
        require_schedule(config.replace(strategy=strategy))
    except InputError as error:
        return Explanation((*lines, f"no memory by stage: {error.problem}"), (), limit)
    recompute = NONE if options.space.recompute == "none" else FULL
    schedule = config.schedule_for(strategy.vpp)
    plan = lightest_plan(config.model, strategy, config.rules, recompute, schedule)
    stages = stage_breakdown(config.model, strategy, config.rules, plan, schedule)
    if config.tower is not None:
        more = tower_mib(config.replace(strategy=strategy, schedule=schedule), device)
        lines.append(f"the vision encoder adds {more:,.0f} MiB to stage 0, beyond the table by stage")
    measured: tuple[StageMemory, ...] = ()
    if options.dryruns.backend == "torch":
        with open_backend(options.dryruns, config, options.ranking.output) as backend:
            assert backend is not None
            run = DryRun(config.replace(schedule=schedule), strategy, plan)
            measured = stage_memories(backend.measure([run])[0])
    return Explanation(tuple(lines), tuple(stages), limit, measured)


def _strategy_of(name: str, config: TrainingConfig, gbs: int | None) -> Strategy:
    degrees: dict[str, int] = {}
    for part in name.upper().split("_"):
        match = re.fullmatch(r"(DP|TP|PP|EP|CP|VPP|MBS)([1-9][0-9]{0,6})", part)
        if match is None:
            raise InputError("is not of the form DP16_TP4_PP16_EP8", field="--explain", value=name)
        degrees[match[1].lower()] = int(match[2])
    own = config.strategy
    strategy = own.replace(**degrees)
    batch = gbs or own.global_batch
    per_step = strategy.dp * strategy.mbs
    return strategy.replace(micro_batches=batch // per_step)
