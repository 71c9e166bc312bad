"""Time ratios are estimated for the job unless they are given or the older tool's are asked for."""

from __future__ import annotations

import pytest

from taylor.cost_model.profile import TimeRatios
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, SELECT
from taylor.register.registry import Registry
from taylor.workflows.statement.options import RatioChoice
from taylor.workflows.statement.time_ratios import SettledRatios, settle_ratios
from tests.conftest import ROOT

CARD = Registry.load().device("ascend-910b")
MOE = read_config(ROOT / "config" / "pretrain_deepseek3_128p.yaml")
DENSE = read_config(ROOT / "config" / "pretrain_llama2_7b.yaml")
GUESS = estimate_ratios(MOE.model, MOE.strategy, MOE.rules, CARD)


def settle(config=MOE, **asked: float | bool) -> SettledRatios:
    return settle_ratios(RatioChoice(**asked), config, CARD)


def test_without_a_word_they_are_the_estimate_for_the_job_on_its_device() -> None:
    settled = settle()
    assert settled.ratios == GUESS
    assert settled.described.startswith("estimated for this job on ascend-910b") and len(settled.assumptions) == 1


def test_one_given_ratio_replaces_that_one_alone_and_is_said() -> None:
    settled = settle(backward=1.8)
    ratios = settled.ratios
    assert ratios.backward == 1.8 and ratios.source == "partly given"
    assert (ratios.dense_forward, ratios.head, ratios.recompute, ratios.unit_ms, ratios.embedding, ratios.lag) == (
        GUESS.dense_forward, GUESS.head, GUESS.recompute, GUESS.unit_ms, GUESS.embedding, GUESS.lag,
    )  # fmt: skip
    assert settled.described.startswith("given: backward 1.8; the others estimated")


def test_the_fixed_ones_are_the_older_tool_s_and_cost_nothing_besides() -> None:
    ratios = settle(fixed=True).ratios
    assert (ratios.dense_forward, ratios.backward, ratios.head) == (0.33, 2.0, 1.5)
    assert (ratios.recompute[FULL], ratios.recompute[SELECT]) == (1.0, 0.33)
    assert (ratios.embedding, ratios.lag, ratios.tail) == (0.0, 0.0, 0.0)
    mixed = settle(fixed=True, head=2.5).ratios
    assert (mixed.head, mixed.backward, mixed.tail) == (2.5, 2.0, 0.0)


def test_given_ones_alone_settle_the_step_in_units_whatever_the_device() -> None:
    given = {"dense_forward": 0.4, "backward": 1.84, "head": 1.5, "recompute": 1.0}
    on = [
        settle_ratios(RatioChoice(**given), MOE, Registry.load().device(name)) for name in ("ascend-910b", "h100-80g")
    ]
    assert len({one.ratios.unit_ms for one in on}) == 2
    for one in on:
        ratios = one.ratios
        assert (ratios.embedding, ratios.lag, ratios.tail, ratios.source) == (0.0, 0.0, 0.0, "given")
        assert "(estimated)" in one.described and any("no time" in sentence for sentence in one.assumptions)
    assert on[0].ratios.unit_ms == GUESS.unit_ms


def test_a_model_of_one_kind_needs_no_ratio_of_its_kinds() -> None:
    assert settle(DENSE, backward=2.0, head=1.0, recompute=1.0).ratios.source == "given"
    assert settle(MOE, backward=2.0, head=1.0, recompute=1.0).ratios.source == "partly given"


@pytest.mark.parametrize("unit", [None, 3.5])
def test_a_unit_that_is_given_is_kept_and_one_that_is_not_estimated(unit: float | None) -> None:
    settled = settle_ratios(TimeRatios(unit_ms=unit), MOE, CARD)
    assert settled.ratios.unit_ms == (unit or GUESS.unit_ms)
    assert ("(estimated)" in settled.described) == (unit is None)
