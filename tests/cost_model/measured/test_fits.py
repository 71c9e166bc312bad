"""A law through measured points: what it says beyond them, and between which bounds."""

from __future__ import annotations

import json
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.measured.fits import CURVE, LINE, PROPORTIONAL, MeasuredLaw
from taylor.parsers.galvatron.computation import read_computation
from tests.conftest import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")
LENGTHS = (4096, 8192, 12288, 16384)


def law(points, powers=CURVE):
    return MeasuredLaw.through(points, powers, of="a layer", cause="tokens", unit="ms", source="profile.json")


positive = st.floats(1e-3, 1e3)


@settings(deadline=None)
@given(positive, positive, positive, st.floats(0.2, 5))
def test_a_law_is_found_again_from_points_on_it(square, line, start, beyond):
    def true(x):
        return square * x**2 + line * x + start

    found = law({x: true(x) for x in (1, 2, 3, 4)})
    low, high = found.interval(4 * beyond)
    assert low <= true(4 * beyond) <= high
    for x in (1.5, 3.3):
        assert found.at(x) == pytest.approx(true(x), rel=0.01)


@settings(deadline=None)
@given(st.lists(st.floats(-0.02, 0.02), min_size=4, max_size=4), st.floats(1, 4))
def test_the_interval_holds_what_small_noise_hides(noise, beyond):
    def true(x):
        return 3 * x**2 + 5 * x + 1

    found = law({x: true(x) * (1 + off) for x, off in zip((1, 2, 3, 4), noise, strict=True)})
    low, high = found.interval(4 * beyond)
    assert low <= true(4 * beyond) <= high
    assert all(each >= 0 for each in found.coefficients)
    assert found.at(4 * beyond) >= found.at(4) * 0.95


def test_a_single_point_is_proportional_and_says_how_little_it_knows():
    found = law({4.0: 8.0})
    assert found.powers == PROPORTIONAL
    assert found.at(8.0) == pytest.approx(16.0)
    low, high = found.interval(8.0)
    assert low < 8.5 and high > 31


def test_what_was_measured_is_given_as_it_was_measured():
    points = {1: 10.0, 2: 25.0, 3: 30.0, 4: 41.0}
    assert [law(points, LINE).at(x) for x in points] == list(points.values())


def test_far_answers_are_warned_of():
    found = law({x: float(x) for x in LENGTHS})
    assert found.warning(8192) is None and found.warning(10000) is None
    assert "times beyond" in found.warning(32768) and "is far" not in found.warning(32768)
    assert "is far" in found.warning(131072)


def test_a_law_through_nothing_is_refused():
    with pytest.raises(InputError, match="profile it"):
        law({4096: 0.0})


@pytest.fixture
def tables(tmp_path):
    """Measured lengths of Paddle's published table and of Hetu's noisy one."""
    known = json.loads((DATA / "galvatron_tests/profile_processing.json").read_text())
    path = tmp_path / "hetu.json"
    path.write_text(json.dumps(known["expected"]["create_sequence_time_config"]))
    hetu = read_computation(path)
    paddle = read_computation(DATA / "paddle_galvatron/configs/computation_profiling_bf16_llama_rank[0].json")
    return {
        (name, what): {shape.tokens: ms for shape, ms in times.items()}
        for name, profile in (("hetu", hetu), ("paddle", paddle))
        for what, times in (("layer", profile.layer_ms["body"]), ("rest", profile.other_ms))
    }


@needs_data
@pytest.mark.parametrize(
    ("name", "what", "powers", "share"),
    [("paddle", "layer", CURVE, 0.01), ("paddle", "rest", LINE, 0.04), ("hetu", "layer", CURVE, 0.1),
     ("hetu", "rest", LINE, 0.1)],
)  # fmt: skip
def test_laws_of_4k_to_16k_hold_up_to_32k(tables, name, what, powers, share):
    times = tables[name, what]
    found = law({x: times[x] for x in LENGTHS}, powers)
    for x, measured in times.items():
        assert found.at(x) == pytest.approx(measured, rel=share)
        low, high = found.interval(x)
        assert low <= measured <= high


@needs_data
@pytest.mark.parametrize("number", [1, 2])
def test_the_interval_covers_every_length_held_out_of_few(tables, number):
    for (_, what), times in tables.items():
        for lengths in combinations(sorted(times), number):
            found = law({x: times[x] for x in lengths}, CURVE if what == "layer" else LINE)
            for x in set(times) - set(lengths):
                low, high = found.interval(x)
                assert low <= times[x] <= high


@needs_data
@pytest.mark.parametrize("longest", [12288, 16384, 20480, 24576])
def test_the_interval_covers_every_longer_length_held_out(tables, longest):
    for (_, what), times in tables.items():
        found = law({x: ms for x, ms in times.items() if x <= longest}, CURVE if what == "layer" else LINE)
        for x, measured in times.items():
            low, high = found.interval(x)
            assert low <= measured <= high
