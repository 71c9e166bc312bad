"""The search: space, rules, memory, order, choice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.time.step import quick_step_ms
from taylor.nd_search.encoder import encoder_step_ms, peaks_with_encoder
from taylor.nd_search.memory import MEMORY_ROWS, peaks
from taylor.nd_search.options import PeakEstimate, SearchContext, SearchOptions
from taylor.nd_search.prune import PruneRecord, apply_rules, describe, keep_what_fits, nothing_planned, unplanned_record
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import judge, select_rules
from taylor.nd_search.space import build_space
from taylor.nd_search.steps import ChosenSteps, QuickSolve, choose_by_estimate, choose_by_solves
from taylor.nd_search.user_rules import load_user_rules
from taylor.parsers.training_config import Misfit, TrainingConfig
from taylor.register.device import DeviceSpec

__all__ = ["SearchOptions", "SearchResult", "search", "explain"]


@dataclass(frozen=True)
class SearchResult:
    """Result of a search: arrays are aligned, the chosen strategies first, each part fastest first.

    Parameters
    ----------
    candidates : StrategyTable
        Strategies that obey the rules and fit, n of them.
    peak_mib : float64 [n]
        Peak memory of the heaviest stage under the requested recompute, MiB.
    heaviest_stage : int64 [n]
        That stage.
    estimated_ms : float64 [n]
        Estimated step time.
    solved : bool [n]
        Whether that is the step time of a plan from a quick solve, else a formula's.
    pruned : tuple of PruneRecord
        Strategies removed by each rule, then by the memory, and last by the quick solves: those without any plan.
    chosen : int64 [k]
        Indices of the strategies to profile.
    counts : mapping
        Number of strategies after each step: built, legal, sensible, fitting, chosen.
    peak_none_mib : float64 [n]
        The same without any recompute: a strategy that fits so needs none.
    device_limit_mib : float
        Limit that they were checked against.
    recompute : str
        Assumed recompute: ``best``, ``none`` or ``full``.
    device : DeviceSpec
        Device that it was searched for.
    memory_source : tuple of str [n]
        Source of each peak.
    """

    candidates: StrategyTable
    peak_mib: NDArray[np.float64]
    heaviest_stage: NDArray[np.int64]
    estimated_ms: NDArray[np.float64]
    pruned: tuple[PruneRecord, ...]
    chosen: NDArray[np.int64]
    counts: Mapping[str, int]
    device_limit_mib: float
    recompute: str
    peak_none_mib: NDArray[np.float64]
    device: DeviceSpec
    memory_source: tuple[str, ...]
    solved: NDArray[np.bool_]

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {step}" for step, count in self.counts.items())
        return f"SearchResult: strategies for {self.device.name}: {counts}"


def estimated_all(table: StrategyTable, recompute: str) -> tuple[str, ...]:
    """Source of peaks that all come from the analytical model."""
    return ("estimate",) * len(table)


def search(
    config: TrainingConfig,
    device: DeviceSpec,
    options: SearchOptions,
    rules_path: Path | None = None,
    *,
    peak_of: PeakEstimate | None = None,
    sources_of: Callable[[StrategyTable, str], tuple[str, ...]] = estimated_all,
    quick_solve: QuickSolve | None = None,
) -> SearchResult:
    """Search the strategies of a job.

    Parameters
    ----------
    rules_path : Path, optional
        Folder of the user's rules: Python files, which are run, so only a path that the user gave.
    peak_of : PeakEstimate, optional
        Source of peak memory; the analytical model when omitted.
    sources_of : callable
        Names that source for each strategy of a table, under the requested recompute.
    quick_solve : callable, optional
        Solves strategies before they are chosen; without it they are chosen by the formula alone.

    Raises
    ------
    InputError
        When the rules leave nothing (names the rule and the remedy), the batch suits no strategy (names one near it
        that does), or an option is wrong.
    InfeasibleError
        When no legal strategy fits the memory, or none has a plan: gives the least that is needed.
    """
    for misfit in _unwaived(config, options):
        if misfit.any_strategy:
            raise misfit.error(config.path)
    context = SearchContext.settle(config, device, options, peak_of or peaks_with_encoder(config, device))
    rules = _select(context, config, options, rules_path)
    ruled = apply_rules(build_space(context, options), rules, context, options.recompute)
    fitting = keep_what_fits(ruled.table, context, options.recompute)
    estimated_ms = _estimate_ms(fitting.table, context) + encoder_step_ms(config, device, fitting.table)
    steps = _choose(fitting.table, estimated_ms, context, options, quick_solve)
    by_time = np.argsort(steps.step_ms, kind="stable")
    left_out = np.isin(by_time, [*steps.chosen, *steps.refused])
    order = np.concatenate([steps.chosen, by_time[~left_out]])
    unplanned = () if quick_solve is None else (unplanned_record(fitting.table, steps.refused),)
    candidates = fitting.table.select(order)
    return SearchResult(
        candidates=candidates,
        peak_mib=fitting.peak_mib[order],
        heaviest_stage=fitting.heaviest_stage[order],
        estimated_ms=steps.step_ms[order],
        pruned=(*ruled.records, fitting.record, *unplanned),
        chosen=np.arange(len(steps.chosen), dtype=np.int64),
        counts={
            "built": ruled.built,
            "legal": ruled.legal,
            "sensible": len(ruled.table),
            "fitting": len(order),
            "chosen": len(steps.chosen),
        },
        device_limit_mib=context.device_limit_mib,
        recompute=options.recompute,
        peak_none_mib=peaks(candidates, context, "none")[0],
        device=device,
        memory_source=sources_of(candidates, options.recompute),
        solved=steps.solved[order],
    )


def explain(
    config: TrainingConfig,
    device: DeviceSpec,
    options: SearchOptions,
    strategy: Strategy,
    rules_path: Path | None = None,
) -> list[str]:
    """Reasons why one strategy is, or is not, among the candidates, a sentence each.

    Every rule is applied, not only the first that fails; the memory is given either way. What keeps the file's job from
    starting comes first.
    """
    context = SearchContext.settle(config, device, options, peaks_with_encoder(config, device))
    rules = _select(context, config, options, rules_path)
    table = StrategyTable.from_strategies([strategy])
    broken = [rule for rule in rules if not judge(rule, table, context).all()]
    lines = [_hindrance(misfit) for misfit in _unwaived(config, options)]
    lines.append(f"{describe(strategy)}: breaks {len(broken)} of {len(rules)} rules")
    lines += [_reason(rule) for rule in broken]
    if not build_space(context, options).contains(strategy):
        lines.append(
            f"outside the search: {','.join(options.search)} are searched, of {context.world_size} ranks; the other "
            "dimensions keep the file's value or follow by rule (--search, --fix, --max_…, --world_size)"
        )
    if any(rule.name == "world-size" for rule in broken) or strategy.micro_batches < 1:
        return lines
    peak, stage = peaks(table, context, options.recompute)
    verdict = "fits" if peak[0] <= context.device_limit_mib else "is too much for"
    lines.append(
        f"memory: {peak[0]:.0f} MiB on stage {stage[0]} (recompute: {options.recompute}) {verdict} "
        f"{context.device_limit_mib:.0f} MiB"
    )
    return lines


def _unwaived(config: TrainingConfig, options: SearchOptions) -> list[Misfit]:
    """Reasons why the file's job does not start, without those of disabled rules."""
    return [misfit for misfit in config.misfits if not (misfit.rule and misfit.rule in options.disabled_rules)]


def _select(
    context: SearchContext, config: TrainingConfig, options: SearchOptions, rules_path: Path | None
) -> tuple[Rule, ...]:
    """Rules of a search; names of rules that the file's reader found broken are its own, and not of these."""
    of_file = {misfit.rule for misfit in config.misfits}
    left_out = [name for name in options.rules_left_out if name not in of_file]
    return select_rules(context, left_out, load_user_rules(rules_path))


def _hindrance(misfit: Misfit) -> str:
    when = "does not start under any strategy" if misfit.any_strategy else "does not start as it is written"
    rule = f" (rule {misfit.rule})" if misfit.rule else ""
    return f"the file's job {when}{rule}: {misfit.field} {misfit.problem}; {misfit.cure}"


def _choose(
    table: StrategyTable,
    estimated_ms: NDArray[np.float64],
    context: SearchContext,
    options: SearchOptions,
    quick_solve: QuickSolve | None,
) -> ChosenSteps:
    if quick_solve is None:
        return choose_by_estimate(table, estimated_ms, options)
    steps = choose_by_solves(table, estimated_ms, options, quick_solve, context.device_limit_mib)
    if not len(steps.chosen):
        raise nothing_planned(table, steps.refused)
    return steps


def _estimate_ms(table: StrategyTable, context: SearchContext) -> NDArray[np.float64]:
    parts = [
        quick_step_ms(context.model, context.rules, table.select(slice(start, start + MEMORY_ROWS)), context.device)
        for start in range(0, len(table), MEMORY_ROWS)
    ]
    return np.concatenate(parts).astype(np.float64)


def _reason(rule: Rule) -> str:
    return f"rule {rule.name} ({rule.kind}): {rule.explanation}; {rule.relax}"
