"""A margin of memory: as a person writes it, and in every limit that a plan is held to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.profile import MemorySource
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.conftest import ROOT

LLAMA = ROOT / "config" / "pretrain_llama2_7b.yaml"


@given(st.floats(0, 1e5), st.floats(0, 99.0), st.floats(1, 1e6))
def test_what_is_left_of_a_limit_is_the_limit_less_both_parts(mib: float, percent: float, limit: float) -> None:
    margin = MemoryMargin(mib, percent / 100)
    left = limit - limit * percent / 100 - mib
    if left > 1e-6 * limit:
        assert margin.below(limit) == pytest.approx(left)
    elif left < -1e-6 * limit:
        with pytest.raises(InputError, match="--margin: uses up all"):
            margin.below(limit)


@pytest.mark.parametrize(
    "text, margin",
    [("2048", MemoryMargin(2048.0)), ("5%", MemoryMargin(share=0.05)), (" 2.5 % ", MemoryMargin(share=0.025))],
)
def test_a_margin_is_mib_or_per_cent(text: str, margin: MemoryMargin) -> None:
    assert MemoryMargin.parse(text) == margin


@pytest.mark.parametrize("text", ["", "%", "-1", "100%", "nan", "inf", "2GiB", "5%%"])
def test_anything_else_is_no_margin(text: str) -> None:
    with pytest.raises(ValueError):
        MemoryMargin.parse(text)


@given(st.lists(st.floats(0.2, 5), min_size=1, max_size=60), st.floats(0.001, 0.49), st.floats(0.001, 0.49))
def test_less_risk_leaves_more_room_and_one_of_twenty_is_beyond_an_end(ratios: list, one: float, other: float) -> None:
    known, low, high = KnownError.seen(ratios), min(one, other), max(one, other)
    assert known.lower(low) <= known.lower(high) <= 1 <= known.upper(high) <= known.upper(low)
    assert sum(ratio > known.upper() * (1 + 1e-9) for ratio in ratios) <= (len(ratios) + 1) / 20
    assert sum(ratio < known.lower() * (1 - 1e-9) for ratio in ratios) <= (len(ratios) + 1) / 20
    wide = known.widened(0.1)
    assert wide.above > known.above and wide.below > known.below
    margin = MemoryMargin(100.0, 0.1, low)
    assert margin.around(margin.below(1e5, known), known) == pytest.approx(1e5)
    assert margin.below(1e5, known) * known.upper(low) == pytest.approx(0.9e5 - 100)


def test_a_solve_a_search_and_a_ranking_are_held_to_the_same_limit() -> None:
    margin = MemoryMargin(share=0.1)
    device = Registry.load().device("ascend-910b")
    config = read_config(LLAMA)
    assert config.device_limit_mib is not None
    known = config.memory_error(MemorySource.ESTIMATE)
    assert known is not None
    limit = 0.9 * config.device_limit_mib / known.upper(0.05)
    searched = SearchContext.settle(config.replace(margin=margin), device, SearchOptions())
    (candidate,) = load_candidates([LLAMA], device, margin=margin)
    assert candidate.memory is not None
    assert searched.device_limit_mib == pytest.approx(limit) == candidate.memory.device_limit_mib


def test_an_estimate_is_planned_with_the_default_risk_and_a_measurement_as_it_is() -> None:
    estimated, measured = (KnownError(0.05, 0.1, 0.03, planned=planned) for planned in (True, False))
    assert MemoryMargin().below(1100.0, estimated) == pytest.approx(1000.0)
    assert MemoryMargin().below(1100.0, measured) == 1100.0 == MemoryMargin().below(1100.0)
    assert MemoryMargin(risk=0.0).below(1100.0, estimated) == 1100.0 == MemoryMargin(risk=0.5).below(1100.0, estimated)
    assert MemoryMargin(risk=0.05).below(1100.0, measured) == pytest.approx(1000.0)
    assert MemoryMargin().described(estimated) == "free memory for 5 % risk" and not MemoryMargin().described(measured)
    for risk in (-0.1, 0.51, float("nan")):
        with pytest.raises(ValueError, match="risk"):
            MemoryMargin(risk=risk)


def test_a_margin_goes_off_the_limit_of_a_given_profile_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    profile = tmp_path / "memory.json"
    data = {
        "device_limit": 50000,
        "static": {"first": 3000, "middle": 2000, "last": 4000},
        "layer": {"dense": 500},
        "activation": {"dense": {"none": 400, "full": 30}},
    }
    profile.write_text(json.dumps(data), encoding="utf-8")
    job = FileJob(LLAMA, memory_file=profile, dryrun=False, check=False, margin=MemoryMargin(1000.0))
    with caplog.at_level("INFO", logger="taylor"):
        planned = evaluate_file(job, Outputs(folder=tmp_path / "out"))
    assert set(planned.solution.memory_limit_mib) == {49000.0}
    assert "limit 49,000 MiB" in caplog.text and "margin of 1,000 MiB" in caplog.text
