"""Legality of one stated job: the rules that it breaks, and the nearest values that obey them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.legality import LEGALITY_RULES
from taylor.nd_search.options import SearchContext
from taylor.nd_search.rule import Rule
from taylor.nd_search.rules import OF_NEW_RELEASES
from taylor.nd_search.space import divisors
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec

ASKED_BY_SEARCH = frozenset({"max-expert-parallel"})
"""Rules that bound a search and do not apply to a stated job."""

SETTLED_BY_PLAN = frozenset({"layers-fill-chunks"})
"""Rules that the plan in a file replaces: it may leave a chunk to the embedding or the head alone."""

NEAREST_TRIED = 512
"""Most values tried on each side of a stated one."""

SEQUENCE, BATCH = "seq", "gbs"
"""Changes that a rule may request other than a field of the strategy: tokens a sample, samples a step."""


@dataclass(frozen=True)
class Illegality:
    """Reasons why a stated job does not start.

    Parameters
    ----------
    rules : tuple of Rule
        Legality rules that it breaks, in the order of `LEGALITY_RULES`; at least one.
    field : str
        Change that the first of them requests: one of its ``changes``, else its flag with dashes.
    value : int or str
        The stated value of `field`; ``on`` of a flag without one, ``not given`` of one that is not there.
    nearest : tuple of (str, int)
        Single changes, at most two a field, that make the job legal; where none does, those that satisfy the first
        rule.
    """

    rules: tuple[Rule, ...]
    field: str
    value: int | str
    nearest: tuple[tuple[str, int], ...]


def broken_rules(config: TrainingConfig, device: DeviceSpec, allowed: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Find the legality rules that a job breaks with the strategy, schedule and batch that it states.

    The rules are those of a search, evaluated under the job's own ranks and batch. Sequence parallelism counts as off
    where tp = 1: it splits nothing, Megatron-LM's launcher turns it off (core_v0.16.0
    megatron/training/arguments.py:907), and MindFormers 1.3 to 1.6 accept it.

    Parameters
    ----------
    allowed : sequence of str
        Names of rules that do not apply.
    """
    return _first_checked(_broken(_asked_of(config, allowed), _normal(config), device))


def _first_checked(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Rules in the launcher's order: those of its arguments come before those of ranks and layers."""
    return tuple(sorted(rules, key=lambda rule: not rule.field))


def find_illegality(config: TrainingConfig, device: DeviceSpec, allowed: Sequence[str] = ()) -> Illegality | None:
    """Find the rules that keep a job from starting (`broken_rules`), and the nearest legal values; None if none do.

    Parameters
    ----------
    allowed : sequence of str
        Names of rules that do not apply.
    """
    broken = broken_rules(config, device, allowed)
    if not broken:
        return None
    config = _normal(config)
    obeyed = [rule for rule in _asked_of(config, allowed) if rule not in broken]
    nearest = _nearest(broken, [*broken, *obeyed], config, device) or _nearest(
        broken[:1], [broken[0], *obeyed], config, device
    )
    first = broken[0]
    if not first.changes:
        return Illegality(broken, f"--{first.field}", config.flags.shown(first.field), nearest)
    return Illegality(broken, first.changes[0], _value(config, first.changes[0]), nearest)


def _asked_of(config: TrainingConfig, allowed: Sequence[str]) -> list[Rule]:
    answered = {*allowed, *ASKED_BY_SEARCH, *(() if config.plan is None else SETTLED_BY_PLAN)}
    return [rule for rule in LEGALITY_RULES if rule.name not in answered]


def _normal(config: TrainingConfig) -> TrainingConfig:
    own = config.strategy
    return config.replace(strategy=own.replace(sp=own.sp and own.tp > 1))


def broken_in_new_releases(config: TrainingConfig, device: DeviceSpec) -> tuple[Rule, ...]:
    """Return the rules of a framework's newer releases alone that a job breaks."""
    return tuple(_broken(OF_NEW_RELEASES, config, device))


def _broken(rules: Sequence[Rule], config: TrainingConfig, device: DeviceSpec) -> list[Rule]:
    context = SearchContext.of_job(config, device)
    table = StrategyTable.from_strategies([config.strategy])
    return [rule for rule in rules if rule.concerns(context) and not rule.keep(table, context).all()]


def _nearest(
    broken: Sequence[Rule], judges: Sequence[Rule], config: TrainingConfig, device: DeviceSpec
) -> tuple[tuple[str, int], ...]:
    """Find the single changes nearest to the stated values with which the job obeys all rules."""
    # Other degrees are other ranks, and every batch tried is a whole number of micro-batches.
    judges = [rule for rule in judges if rule.name not in ("world-size", "batch-by-dp")]
    found = []
    for field in dict.fromkeys(field for rule in broken for field in rule.changes):
        legal = _legal_lengths if field == SEQUENCE else _legal_values
        for side in _around(config, field):
            found += [(field, value) for value in legal(side, field, judges, config, device)[:1]]
    return tuple(found)


def _around(config: TrainingConfig, field: str) -> tuple[range, range]:
    """Values below and above the stated one, nearest first."""
    value = _value(config, field)
    if field == "sp":
        return range(0), range(1, 2 - value)
    step = config.strategy.dp * config.strategy.mbs if field == BATCH else 1
    reach = NEAREST_TRIED * step
    return range(value - step, max(0, value - reach), -step), range(value + step, value + reach, step)


def _value(config: TrainingConfig, field: str) -> int:
    if field == SEQUENCE:
        return config.rules.seq_length
    return int(config.strategy.global_batch if field == BATCH else getattr(config.strategy, field))


def _legal_values(
    values: range, field: str, judges: Sequence[Rule], config: TrainingConfig, device: DeviceSpec
) -> list[int]:
    """Return those values of a strategy's field, or of the batch, with which the job obeys all of some rules."""
    if not values:
        return []
    context = SearchContext.of_job(config, device)
    table = StrategyTable.from_strategies([_changed(config.strategy, field, value) for value in values])
    kept = np.ones(len(table), dtype=bool)
    for rule in judges:
        if rule.concerns(context):
            kept &= rule.keep(table, context)
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _legal_lengths(
    values: range, field: str, judges: Sequence[Rule], config: TrainingConfig, device: DeviceSpec
) -> list[int]:
    """Return the first of some sequence lengths with which the job obeys all rules, or nothing."""
    bound = [rule for rule in judges if SEQUENCE not in rule.changes]
    if _broken(bound, config, device):
        return []
    judges = [rule for rule in judges if SEQUENCE in rule.changes]
    for value in values:
        if not _broken(judges, config.replace(rules=config.rules.replace(seq_length=value)), device):
            return [value]
    return []


def _changed(own: Strategy, field: str, value: int) -> Strategy:
    """Strategy with one field changed; replicas and their optimizer sharding follow where the ranks allow it."""
    if field == BATCH:
        return own.replace(micro_batches=value // (own.dp * own.mbs))
    changed = own.replace(**{field: bool(value) if field == "sp" else value})
    changed = changed.replace(sp=changed.sp and changed.tp > 1)
    others = changed.tp * changed.pp * changed.cp
    if field not in ("tp", "pp", "cp") or own.world_size % others:
        return changed
    dp = own.world_size // others
    if own.global_batch % (dp * own.mbs):
        return changed
    op = dp * changed.cp if own.op == own.dp * own.cp else own.op
    return changed.replace(dp=dp, op=op, micro_batches=own.global_batch // (dp * own.mbs))


def barred_shapes(
    model: ModelSpec, rules: TrainingRules, device: DeviceSpec, world: int
) -> frozenset[tuple[int, int, int]]:
    """Find the ways to split a layer that the framework does not start, for a layer-wise search.

    Returns
    -------
    frozenset of (int, int, int)
        Degrees (tp, sp, cp), divisors of `world`; sp ranks exchange heads (Ulysses), and either it or tp is 1.
        Key/value heads that are too few for them count as repeated.
    """
    asked = [rule for rule in LEGALITY_RULES if {"tp", "cp"} & {*rule.changes} and not _OUTER & {*rule.changes}]
    degrees = [int(degree) for degree in divisors(world)]
    shapes = {shape for ways in degrees for cp in degrees for shape in ((ways, 1, cp), (1, ways, cp))}
    barred = set()
    for tp, sp, cp in shapes:
        # Ulysses alone exchanges heads among all ranks of the context group, beside a ring among its own.
        heads = rules.replace(ulysses_degree=sp if cp > 1 else None if sp > 1 else 1, repeats_kv_heads=True)
        context = SearchContext(
            model=model,
            rules=heads,
            device=device,
            own=Strategy(1, 1, 1),
            schedule=ScheduleSpec(),
            world_size=tp * sp * cp,
            gbs=1,
            layers=model.n_layers,
            max_expert_parallel=1,
            device_limit_mib=float(device.usable_memory_mib),
        )
        table = StrategyTable.from_strategies([Strategy(1, tp, 1, cp=sp * cp, op=sp * cp, sp=tp > 1)])
        if not all(rule.keep(table, context).all() for rule in asked if rule.concerns(context)):
            barred.add((tp, sp, cp))
    return frozenset(barred)


_OUTER = {"pp", "ep", "vpp", "gbs", "op"}
"""Dimensions that a layer-wise search decides around the layers, or not at all."""
