"""The margin that the next solve keeps below the limits, after a plan was over them."""

from __future__ import annotations

import numpy as np
import pytest

from taylor.dryrun.fitting.margins import BEYOND, LARGEST_MARGIN, WIDER, next_margins, stages_over
from taylor.dryrun.interface import OUT_OF_MEMORY, DryRun, DryRunResult, StagePeak
from taylor.parsers.read import read_config
from tests.conftest import ROOT

CONFIG = read_config(ROOT / "config" / "pretrain_llama3_70b.sh")
LIMITS = np.full(4, 1000.0)
FITTED = np.array([900.0, 980.0, 700.0, 990.0])
NONE_YET = np.zeros(4)


def measured(*peaks):
    """A dry-run with these peaks, MiB; None is a stage that ran out of memory, a text another failure."""
    stages = (
        StagePeak(stage, None, "x", failure=OUT_OF_MEMORY if peak is None else peak)
        if peak is None or isinstance(peak, str)
        else StagePeak(stage, peak, "x")
        for stage, peak in enumerate(peaks)
    )
    return DryRunResult(DryRun(CONFIG, CONFIG.strategy, CONFIG.plan), tuple(stages))


def test_a_stage_is_over_by_its_peak_or_for_lack_of_memory_and_not_by_another_failure():
    over = stages_over(measured(1000.0, 1000.5, None, "crashed"), LIMITS)
    assert set(over) == {1, 2} and "1000 of 1000 MiB" in over[1] and "ran out of memory" in over[2]


def test_after_the_first_round_each_stage_keeps_what_its_peak_was_above_the_fit():
    margins = next_margins(FITTED, measured(910.0, 1010.0, 650.0, 990.0), LIMITS, NONE_YET, 1)
    assert margins.tolist() == [10.0, 30.0, 0.0, 0.0]


def test_after_the_second_round_every_stage_keeps_the_largest_margin():
    assert next_margins(FITTED, measured(910.0, 1010.0, 650.0, 990.0), LIMITS, NONE_YET, 2).tolist() == [30.0] * 4


def test_later_margins_grow_even_where_nothing_new_is_over_but_never_beyond_their_share():
    calm = measured(*FITTED.tolist())
    wider = next_margins(FITTED, calm, LIMITS, np.full(4, 30.0), 3)
    assert wider.tolist() == [WIDER * 30.0] * 4
    assert next_margins(FITTED, calm, LIMITS, np.full(4, 450.0), 4).tolist() == [LARGEST_MARGIN * 1000.0] * 4


def test_a_stage_that_ran_out_of_memory_counts_as_a_little_over_its_limit():
    margins = next_margins(FITTED, measured(900.0, 980.0, None, 990.0), LIMITS, NONE_YET, 1)
    # The solve let the stage grow up to the limit, where it had no margin: only the share beyond it is known.
    assert margins[2] == pytest.approx(BEYOND * 1000.0) and margins[[0, 1, 3]].tolist() == [0.0, 0.0, 0.0]
    again = next_margins(FITTED, measured(900.0, 980.0, None, 990.0), LIMITS, margins, 1)
    assert again[2] > margins[2]


def test_below_a_margin_a_stage_that_ran_out_of_memory_was_let_grow_up_to_the_margin_alone():
    """The fit gave it at most the limit without the margin, or what the fit says where that is more."""
    ran_out = measured(900.0, 980.0, None, 990.0)
    margins = next_margins(FITTED, ran_out, LIMITS, np.array([0.0, 0.0, 60.0, 0.0]), 1)
    assert margins[2] == pytest.approx(BEYOND * 1000.0 + 60.0 + 60.0)
    nearer = next_margins(np.array([900.0, 980.0, 970.0, 990.0]), ran_out, LIMITS, np.array([0.0, 0.0, 60.0, 0.0]), 1)
    assert nearer[2] == pytest.approx(BEYOND * 1000.0 + 30.0 + 60.0)


def test_margins_never_shrink():
    before = np.array([0.0, 50.0, 5.0, 20.0])
    for round_ in (1, 2, 3, 4):
        assert (next_margins(FITTED, measured(901.0, 981.0, 701.0, 991.0), LIMITS, before, round_) >= before).all()
