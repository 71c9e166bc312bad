"""The size of a training: the curve, its knee, the least devices, the deadline, energy and price."""

from __future__ import annotations

import json
import math

import pytest

import taylor
from benchmarks.scaling import ScalingRow, efficiencies, mlperf_rows
from taylor.base.errors import InfeasibleError, InputError, NoSolutionError
from taylor.command_lines import size as size_command
from taylor.cost_model.job.strategy import Strategy
from taylor.nd_search.steps import SolvedStep
from taylor.parsers.tables.device_prices import DevicePrice, read_device_prices
from taylor.report.size import answer_lines
from taylor.workflows.searching.model_job import ModelJob, model_file
from taylor.workflows.searching.quick_solves import QuickSolves
from taylor.workflows.searching.scaling import SizePoint, efficiency_of, kept_of, knee_of
from taylor.workflows.searching.size import SizeOptions, _Sizing
from tests.conftest import SHARED


def curve(*speeds):
    """Points of 8, 16, 32 … devices with these speeds of a device; None where there is no plan."""
    return [
        SizePoint(8 << turn, tokens_per_second=None if speed is None else speed * (8 << turn))
        for turn, speed in enumerate(speeds)
    ]


def test_a_doubling_keeps_the_ratio_of_a_devices_speeds_where_both_ends_have_a_plan():
    assert kept_of(curve(None, 100, 90, None, 45)) == {32: 0.9}
    assert efficiency_of(curve(None, 80, 100, 50)) == {16: 0.8, 32: 1.0, 64: 0.5}


def test_a_last_number_that_is_no_doubling_ends_the_curve_and_keeps_nothing():
    assert SizeOptions(most=100).sizes == [8, 16, 32, 64, 100] and SizeOptions(most=64).sizes == [8, 16, 32, 64]
    points = [SizePoint(devices, tokens_per_second=devices) for devices in (8, 16, 17)]
    assert kept_of(points) == {16: 1.0} and knee_of(points).devices == 16


def sizing(tmp_path, speeds, **options):
    """A sizing that knows the tokens a second of these numbers of devices."""
    points = {devices: SizePoint(devices, step_ms=1.0, tokens_per_second=speed) for devices, speed in speeds.items()}
    job = ModelJob(model_file("llama3-8b", tmp_path), 1, device="h100-80g")
    return _Sizing(job, SizeOptions(**options), tmp_path, math.inf, points)


def test_a_deadline_that_the_curves_first_number_meets_is_met_by_the_fewest_devices(tmp_path):
    run = sizing(tmp_path, {1: 0.5, 2: 1.0, 4: 2.0, 8: 4.0}, tokens=86_400.0, days=1.0, most=8)
    assert run._in_time(run.points([8]), end=0).devices == 2


def test_the_numbers_between_the_last_doubling_and_the_most_are_tried(tmp_path):
    run = sizing(tmp_path, {64: 64, 72: 72, 80: 80, 88: 88, 96: 96, 100: 100}, tokens=86_400.0 * 75, days=1.0, most=100)
    assert run._in_time(run.points([64, 100]), end=0).devices == 80


def test_an_unfinished_solve_takes_precedence_over_a_strategy_that_does_not_fit(tmp_path, monkeypatch):
    run = sizing(tmp_path, {}, most=8)
    strategies = [Strategy(dp=8, tp=1, pp=1), Strategy(dp=4, tp=2, pp=1)]
    refused = [SolvedStep(None, "too large"), SolvedStep(None)]
    monkeypatch.setattr(_Sizing, "_ranked", lambda self, devices: strategies)
    monkeypatch.setattr(QuickSolves, "__call__", lambda self, tried, limit: refused[: len(tried)])
    assert run.points([8])[0].lacks == "time"
    refused.reverse()
    assert sizing(tmp_path, {}, most=8).points([8])[0].lacks == "time"


def test_the_knee_is_where_every_further_doubling_keeps_too_little():
    knee = knee_of(curve(100, 99, 80, 79, 63.2, 50.56))
    assert knee.devices == 64 and knee.kept_before == pytest.approx(0.808, abs=1e-3)
    assert knee.kept_beyond == pytest.approx(0.8)
    assert knee.sentence == "beyond 64 devices each doubling keeps 80% of a device's speed"


def test_a_curve_that_keeps_its_speed_has_no_knee_and_a_single_point_none_at_all():
    assert knee_of(curve(100, 98, 97)).kept_beyond is None
    assert knee_of(curve(100, 98, 97)).sentence.startswith("no knee: each doubling up to 32 devices keeps at least 98%")
    assert knee_of(curve(100)) is None and knee_of([]) is None


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        ("", "", "names no device"),
        ("device,euro\nh100-80g,2", "row 1", "has other columns"),
        ("watts\n3", "row 1", "has other columns"),
        ("device,watts\nh100-80g,-1", "row 2, column watts", "must be a number above 0"),
        ("device,watts\nh100-80g,nan", "row 2, column watts", "must be a number above 0"),
        ("device,watts\nh100-80g,1,2", "row 2", "has 3 cells and the header 2"),
        ("device,watts\nh100-80g,1\nh100-80g,2", "row 3, column device", "comes twice"),
        ("device,watts\n,1", "row 2, column device", "must name a device"),
    ],
)
def test_a_bad_table_of_prices_is_refused_with_its_place(tmp_path, text, field, problem):
    file = tmp_path / "prices.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as refused:
        read_device_prices(file)
    assert problem in str(refused.value) and field in str(refused.value) and str(file) in str(refused.value)


def test_an_empty_cell_of_a_table_of_prices_states_nothing(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("\ufeffdevice, watts ,price_per_hour\n\nh100-80g, 1300,\nb200-180g,,4\n", encoding="utf-8")
    assert read_device_prices(file) == {"h100-80g": DevicePrice(watts=1300), "b200-180g": DevicePrice(price_per_hour=4)}


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"days": 3.0}, "--days"), ({"least": 16, "most": 8}, "--min_devices"), ({"most": 10**9}, "--max_devices"),
     ({"tokens": float("inf")}, "--tokens")],
)  # fmt: skip
def test_a_question_that_has_no_answer_is_refused(asked, field):
    with pytest.raises(InputError, match=field):
        SizeOptions(**asked)


@pytest.mark.slow
def test_a_sizing_says_how_many_devices_how_long_and_for_what_price(tmp_path):
    found = taylor.size(
        "llama3-8b", device="h100-80g", tokens=300e9, days=12, gbs=256, max_devices=64, output=tmp_path,
        prices={"h100-80g": DevicePrice(watts=1000, price_per_hour=2)}, time_limit=60,
    )  # fmt: skip
    data = json.loads(json.dumps(found.to_dict()))
    device = data["devices"][0]
    assert [row["devices"] for row in device["curve"]] == [8, 16, 32, 64]
    assert device["least"]["devices"] <= 8
    soon, sure = device["in_time"], device["surely_in_time"]
    assert soon["days"] <= 12 < device["curve"][1]["days"] and sure["days_interval"][1] <= 12
    assert soon["devices"] <= sure["devices"]
    for row in (soon, *device["curve"]):
        # A reader's own arithmetic: tokens over speed, devices times hours, kW times hours, hours times price.
        assert row["days"] == pytest.approx(300e9 / row["tokens_per_second"] / 86_400)
        assert row["device_hours"] == pytest.approx(row["days"] * 24 * row["devices"])
        assert row["energy_mwh"] == pytest.approx(row["device_hours"] / 1000)
        assert row["price"] == pytest.approx(2 * row["device_hours"])
        assert row["tokens_per_second"] == pytest.approx(256 * data["sequence"] / row["step_ms"] * 1e3)
    assert "within 12 days" in found.summary() and "<table>" in found._repr_html_()
    found.plot().savefig(tmp_path / "curve.svg")


def test_a_model_that_fits_no_number_of_devices_is_infeasible(tmp_path):
    with pytest.raises(InfeasibleError, match="no strategy on 8 to 8 devices"):
        taylor.size("llama3-405b", device="h100-80g", max_devices=8, output=tmp_path)


def test_a_price_of_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(InputError, match="h100-80q"):
        taylor.size("llama3-8b", max_devices=8, prices={"h100-80q": DevicePrice(1)}, output=tmp_path)


def test_efficiency_is_over_the_smallest_size_of_a_table():
    rows = [ScalingRow("a", 16, 90, 95), ScalingRow("a", 8, 100, 100), ScalingRow("b", 8, 1, 1)]
    assert [(one.devices, round(one.error, 3)) for one in efficiencies(rows)] == [(16, 0.05)]


@pytest.mark.slow
def test_mlperfs_405b_scales_as_predicted_within_five_points():
    folder = SHARED / "data" / "mlperf"
    if not folder.is_dir():
        pytest.skip("no published runs here")
    found = efficiencies(list(mlperf_rows(folder)))
    assert len(found) == 10 and max(abs(one.error) for one in found) < 0.05


def test_numbers_that_the_time_left_unsolved_are_named(tmp_path):
    with pytest.raises(NoSolutionError, match="no plan was found in time on 8 to 8 devices; --time_limit"):
        taylor.size("llama3-8b", device="h100-80g", max_devices=8, time_limit=1e-9, output=tmp_path)


@pytest.mark.slow
def test_a_margin_raises_the_least_devices_and_rules_that_may_be_broken_are_reported(tmp_path):
    def least(**more):
        found = taylor.size(
            "llama3-8b", device="h100-80g", seq=8192, min_devices=1, max_devices=16, output=tmp_path, **more
        )
        return found.devices[0]

    usual, tight = least(), least(margin="60%", allow_illegal=["experts-by-ep"])
    assert tight.least.devices > usual.least.devices
    assert not any("broken" in each for each in usual.assumptions)
    assert "experts-by-ep" in " ".join(tight.assumptions)


def test_a_sizing_needs_no_folder_to_write_in(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline_output").write_text("no folder")
    size_command.run(["--model", "llama3-8b", "--device", "h100-80g", "--max_devices", "8", "--picture", "a.svg"])
    assert "8" in capsys.readouterr().out and b"<svg" in (tmp_path / "a.svg").read_bytes()
    with pytest.raises(InputError, match="must end in .png, .svg, .pdf"):
        size_command.run(["--model", "llama3-8b", "--picture", "a.jpg"])


def test_an_answer_states_samples_a_second_beside_the_days():
    point = {
        "devices": 8, "strategy": {"dp": 8, "tp": 1, "pp": 1}, "tokens_per_second": 8192.0, "days": None,
        "energy_mwh": None, "price": None,
    }  # fmt: skip
    device = {"least": point, "knee": None, "assumed": ()}
    (line,) = answer_lines(device, {"sequence": 4096, "deadline_days": None})
    assert line.startswith("at least 8 devices (DP8") and line.endswith("samples/s)") and float(line.split()[-2]) == 2
