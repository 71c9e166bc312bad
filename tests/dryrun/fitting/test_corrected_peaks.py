"""What few measured strategies say of all others, held against the rule written strategy by strategy."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.dryrun.fitting.grey_box import FAMILY, CorrectedPeaks, Measurement, estimate_of, family_of, plan_to_measure
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL
from tests.dryrun_cases import DEEPSEEK

CONFIG = read_config(DEEPSEEK)
OWN = CONFIG.strategy
EPS = (1, 2, 4, 8, 16)
TABLE = [OWN.replace(dp=dp, ep=ep) for dp in (16, 32) for ep in EPS]
STAGE = {1: 3, 2: 5, 4: 7, 8: 2, 16: 6}
"""The heaviest stage of a measured strategy, by EP."""


def closed_forms(model, rules, table, recompute="best", device_limit_mib=None, schedule=None):
    assert device_limit_mib is None
    return 1000.0 + np.arange(len(table)) * 10.0, np.full(len(table), 15, dtype=np.int64)


def measured_peak(ep: int, bent: bool) -> float:
    return 9_000.0 + 120_000.0 / ep if not bent else -2_000.0 + 8_000.0 / ep


def estimate(ep: int, stage: int) -> float:
    strategy = OWN.replace(ep=ep)
    return estimate_of(CONFIG, strategy, plan_to_measure(CONFIG, strategy, FULL), stage)


ESTIMATES = {(ep, stage): estimate(ep, stage) for ep in EPS for stage in STAGE.values()}
SOME = [eps for number in (0, 1, 2) for eps in itertools.permutations((2, 4, 16), number)]


def expected(eps, with_estimate, bent, recompute):
    """(peak, stage, source) of every strategy of the table by the rule, one after the other."""
    peaks = {ep: measured_peak(ep, bent) for ep in eps}
    ratios = {ep: peaks[ep] / ESTIMATES[ep, STAGE[ep]] for ep in eps}
    usual = statistics.median(ratios.values()) if with_estimate and eps else 1.0
    base, _ = closed_forms(None, None, TABLE)
    told = []
    for strategy, form in zip(TABLE, base.tolist(), strict=True):
        ep, first = strategy.ep, eps[0] if eps else None
        line = max(0.0, measured_peak(ep, bent)) if len(eps) == 2 else None
        if strategy.dp != 16 or not eps:
            told.append((form * usual, 15, "scaled estimate" if with_estimate and eps else "estimate"))
        elif with_estimate and ep in eps:
            told.append((form * ratios[ep], 15, "torch"))
        elif with_estimate and line is None:
            told.append((form * ratios[first], 15, "fit"))
        elif with_estimate:
            told.append((form * line / ESTIMATES[ep, STAGE[first]], 15, "fit"))
        elif ep in eps:
            told.append((peaks[ep], STAGE[ep], "torch"))
        elif line is not None and recompute != "none":
            told.append((line, STAGE[first], "fit"))
        else:
            told.append((form, 15, "estimate"))
    return told


@pytest.mark.parametrize("bent", [False, True])
@pytest.mark.parametrize("recompute", ["best", "full", "none"])
@pytest.mark.parametrize("with_estimate", [True, False])
def test_every_strategy_is_corrected_as_its_own_family_tells(with_estimate, recompute, bent):
    table = StrategyTable.from_strategies(TABLE)
    for eps in SOME:
        measurements = [
            Measurement(
                OWN.replace(ep=ep), STAGE[ep], measured_peak(ep, bent),
                ESTIMATES[ep, STAGE[ep]] if with_estimate else None,
            )
            for ep in eps
        ]  # fmt: skip
        peaks = CorrectedPeaks(closed_forms, CONFIG, measurements, source="torch")
        wanted = expected(eps, with_estimate, bent, recompute)
        peak, stage = peaks(CONFIG.model, CONFIG.rules, table, recompute=recompute, device_limit_mib=1.0)
        assert peak == pytest.approx([row[0] for row in wanted], rel=1e-9), eps
        assert stage.tolist() == [row[1] for row in wanted], eps
        assert peaks.sources(table, recompute) == tuple(row[2] for row in wanted), eps


def test_recompute_of_the_best_plan_is_asked_for_where_none_is_named():
    peaks = CorrectedPeaks(closed_forms, CONFIG, [])
    table = StrategyTable.from_strategies(TABLE)
    assert peaks(CONFIG.model, CONFIG.rules, table)[0].tolist() == closed_forms(None, None, TABLE)[0].tolist()
    assert (peaks.mode, peaks.source) == (FULL, "dry-run")


def test_a_family_is_all_that_a_strategy_says_but_ep_and_how_states_are_split():
    for name in FAMILY:
        other = OWN.replace(**{name: not OWN.sp if name == "sp" else 2 * getattr(OWN, name)})
        assert family_of(other) != family_of(OWN), name
    assert family_of(OWN.replace(ep=1)) == family_of(OWN)


def test_of_several_ratios_the_median_is_carried_to_other_families():
    table = StrategyTable.from_strategies([OWN.replace(dp=32)])
    for ratios in ([0.5, 0.9, 2.0], [1.5, 1.0], [0.25]):
        measurements = [
            Measurement(OWN.replace(dp=4, ep=2**place), 0, 100.0 * ratio, 100.0) for place, ratio in enumerate(ratios)
        ]
        peak, _ = CorrectedPeaks(closed_forms, CONFIG, measurements)(CONFIG.model, CONFIG.rules, table)
        assert peak.tolist() == pytest.approx([1000.0 * statistics.median(ratios)])
