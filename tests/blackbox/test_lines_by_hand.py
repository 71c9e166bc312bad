"""Lines of operators and of collectives whose weights are known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from taylor.blackbox.collective_lines import ALL_REDUCE, TRANSFER, Collective, CollectiveLine, CollectiveLines
from taylor.blackbox.operator_base import OperatorTime
from taylor.blackbox.operator_speed import (
    _BYTES,
    Estimate,
    OperatorSpeeds,
    SpeedLine,
    _has_products,
    _noise_of,
    _patterns,
    fit_line,
    work_of,
)
from taylor.blackbox.rejection import ROBUST
from taylor.parsers.profiles.operators import Operator


def took(weights: tuple[float, float, float], one: Collective) -> float:
    return sum(weight * work for weight, work in zip(weights, one.work, strict=True))


NEAR, FAR = (100.0, 10.0, 0.5), (400.0, 30.0, 2.0)


def seen(
    kind: str, weights: tuple[float, float, float], *places: tuple[int, int, int]
) -> list[tuple[Collective, float]]:
    each = [Collective(kind, *place) for place in places]
    return [(one, took(weights, one)) for one in each]


def line_of(samples: list[tuple[Collective, float]], asked: Collective) -> CollectiveLine:
    line = CollectiveLines(samples, 8).line(asked)
    assert line is not None
    return line


def test_two_of_a_kind_scale_the_line_of_three_others_and_three_have_their_own():
    others = seen("gather", NEAR, (2, 1, 1000), (4, 1, 1000), (8, 1, 9000))
    two = [(Collective("all", 2, 1, 1000), 3 * took(NEAR, Collective("all", 2, 1, 1000))),
           (Collective("all", 4, 1, 5000), 3.2 * took(NEAR, Collective("all", 4, 1, 5000)))]  # fmt: skip
    asked = Collective("all", 8, 1, 10_000)
    line = line_of([*others, *two], asked)
    # The two deviate by a tenth of 3.1; of three others the line's own error is more.
    assert line.at(asked) == pytest.approx(3.1 * took(NEAR, asked)) and line.error > 0.1 / 3.1
    assert line.error == line_of(others, replace(asked, kind="gather")).error
    several = seen("gather", NEAR, (2, 1, 1000), (4, 1, 1000), (8, 1, 9000), (8, 1, 500), (2, 1, 7000), (4, 1, 300))
    assert line_of([*several, *two], asked).error == pytest.approx(0.1 / 3.1)
    assert line.points == 3 and line.weights == pytest.approx([3.1 * each for each in NEAR])
    own = line_of(
        [*others, *two, (Collective("all", 8, 1, 9000), 3 * took(NEAR, Collective("all", 8, 1, 9000)))], asked
    )
    assert own.points == 3 and own.weights != line.weights
    # Beside two others all together have a line, which is not scaled.
    few = line_of([*others[:2], *two], asked)
    assert few.points == 4


def test_a_kind_on_the_other_links_that_leave_a_node_scales_with_how_far_it_differs_for_an_error():
    between = seen("gather", FAR, (2, 8, 1000), (4, 8, 1000), (8, 8, 9000))
    mixed = seen("gather", FAR, (16, 1, 1000), (16, 2, 4000), (12, 1, 9000))
    mine = [(one, 1.5 * took(FAR, one)) for one in [Collective("all", 2, 8, 4000)]]
    asked = Collective("all", 32, 1, 10_000)
    line = line_of([*between, *mixed, *mine], asked)
    assert line.at(asked) == pytest.approx(1.5 * took(FAR, asked)) and line.error == pytest.approx(0.5)
    # One in a node says nothing of other links.
    within = [(Collective("all", 2, 1, 4000), 77.0)]
    plain = line_of([*mixed, *within], asked)
    assert plain.at(asked) == pytest.approx(took(FAR, asked))


def test_what_three_of_a_kind_differ_from_three_others_is_the_error_where_only_others_were_seen():
    places = ((2, 1, 1000), (4, 1, 1000), (8, 1, 9000))
    near = [*seen("gather", NEAR, *places), *[(one, 1.25 * ns) for one, ns in seen("all", NEAR, *places)]]
    far = seen("gather", FAR, (16, 1, 1000), (16, 2, 4000), (12, 1, 9000))
    asked = Collective("all", 32, 1, 10_000)
    assert line_of([*near, *far], asked).error == pytest.approx(1 - 1 / 1.25)
    # Of an unknown kind it is the worst of all kinds: others by "all" are a quarter too long.
    assert line_of([*near, *far], replace(asked, kind="new")).error == pytest.approx(0.25)
    assert line_of([*near[:5], *far], asked).error == line_of(far, asked).error < 0.01


def test_a_line_of_groups_of_one_size_has_the_step_of_the_slowest_other_line():
    fast = seen("gather", NEAR, (2, 1, 1000), (4, 1, 1000), (8, 1, 9000))
    slow = seen("gather", FAR, (2, 8, 1000), (4, 8, 1000), (8, 8, 9000))
    alike = seen("all", (500.0, 0.0, 1.0), (4, 1, 1000), (4, 1, 2000), (4, 1, 9000))
    lines = CollectiveLines([*fast, *slow, *alike], 8).lines
    assert lines["all", "in-node"].weights == pytest.approx((500 - 30 * 3, 30, 1))
    short = seen("all", (60.0, 0.0, 1.0), (4, 1, 1000), (4, 1, 2000), (4, 1, 9000))
    assert CollectiveLines([*fast, *slow, *short], 8).lines["all", "in-node"].weights == pytest.approx((0, 20, 1))
    assert CollectiveLines(alike, 8).lines["all", "in-node"].weights[2] == pytest.approx(1)
    # Of several samples the median counts.
    late = [(alike[0][0], 9e9), (alike[0][0], alike[0][1]), (alike[0][0], alike[0][1])]
    assert CollectiveLines([*late, *alike[1:]], 8).lines["all", "in-node"].error == pytest.approx(0, abs=1e-9)


def test_kinds_send_what_rings_send():
    assert Collective(ALL_REDUCE, 8, 1, 80).work == (1, 14, 140) and Collective("any", 8, 1, 80).work == (1, 7, 70)
    assert Collective(TRANSFER, 8, 1, 80).work == (1, 1, 80)


# Operators ------------------------------------------------------------------------------------------------------------


def gemm(m: int, k: int, n: int, dtype: str = "DT_BF16") -> Operator:
    return Operator("MatMul", "AI_CORE", (dtype, dtype), ((m, k), (k, n)), ((m, n),))


def moving(size: int, kind: str = "Add", dtype: str = "FLOAT") -> Operator:
    return Operator(kind, "AI_VECTOR_CORE", (dtype,), ((size,),), ((size,),))


def test_bytes_are_those_of_the_types_of_numbers():
    assert _BYTES == {"FLOAT": 4, "FLOAT32": 4, "DT_BF16": 2, "FLOAT16": 2, "INT64": 8, "INT32": 4, "DOUBLE": 8,
                      "BOOL": 1, "INT8": 1, "UINT8": 1, "INT16": 2, "UINT64": 8}  # fmt: skip
    assert [work_of(moving(10, dtype=name))[1] for name in ("DT_BF16", "DOUBLE", "BOOL", "COMPLEX")] == [
        40,
        160,
        20,
        80,
    ]
    # An input without a type, and the outputs, have that of the first; without any, four bytes.
    mixed = Operator("Where", "", ("BOOL", "DOUBLE"), ((5,), (7,), (11,)), ((13,), (17,)))
    assert work_of(mixed)[1] == 5 + 56 + 11 + 30 and work_of(Operator("New", "", (), ((5,),), ((2,),)))[1] == 28
    assert work_of(Operator("Nothing")) == (1, 0, 0)


def test_multiplications_are_a_gemms_or_the_first_inputs_numbers_with_a_dimension_of_the_second():
    one = gemm(6, 8, 10)
    assert work_of(one) == (1, 2 * (48 + 80 + 60), 480) and [work_of(one, at)[2] for at in range(3)] == [384, 480, 0]
    flat = Operator("Bias", "", ("FLOAT",), ((6, 8), (8,)), ((6, 8),))
    assert work_of(flat)[2] == 0 and work_of(replace(flat, inputs=((6, 8), (8, 2)), outputs=()))[2] == 0
    assert work_of(replace(flat, inputs=((48,), (8, 2))))[2] == 0
    assert work_of(Operator("Scores", "", (), ((2, 3, 4), (2, 5, 4)), ((2, 3, 5),)), 1)[2] == 24 * 5
    assert _has_products([one]) and not _has_products([moving(4)])
    alike = Operator("Mul", "", (), ((4, 4), (4, 4)), ((4, 4),))
    assert not _has_products([alike]) and _has_products([alike, one])


def test_a_line_is_found_from_times_that_follow_it():
    line = fit_line({moving(size): 50.0 + 0.25 * 8 * size for size in (100, 200, 400, 900, 2000, 5000)})
    assert (line.base, line.per_byte, line.per_product) == pytest.approx((50, 0.25, 0)) and line.operators == 6
    assert line.error == pytest.approx(0, abs=1e-9) and line.products is None and not line.roof
    sizes = [(8, 8, 8), (16, 64, 8), (64, 64, 64), (128, 16, 256), (256, 256, 64), (512, 64, 32), (32, 512, 128)]
    both = fit_line({gemm(*size): 70.0 + 0.5 * work_of(gemm(*size))[1] + 0.02 * math.prod(size) for size in sizes})
    assert (both.base, both.per_byte, both.per_product) == pytest.approx((70, 0.5, 0.02)) and both.products is None
    roof = fit_line({gemm(*size): 70.0 + max(0.5 * work_of(gemm(*size))[1], 0.2 * math.prod(size)) for size in sizes})
    assert roof.roof and (roof.base, roof.per_byte, roof.per_product) == pytest.approx((70, 0.5, 0.2), rel=1e-3)
    second = fit_line({gemm(*size): 70.0 + 0.02 * size[0] * size[1] * size[1] for size in sizes})
    assert (
        second.products == 0
        and second.per_product == pytest.approx(0.02)
        and second.at(gemm(20, 30, 50)) == pytest.approx(430)
    )


def test_no_operator_is_estimated_below_the_time_to_move_it():
    line = SpeedLine(10.0, 0.5, 2.0, 0.1, 9, None, True, 1.0, 0.3)
    low, high = gemm(2, 2, 2), gemm(40, 40, 40)  # 24 and 9600 bytes, 8 and 64,000 multiplications
    assert line.at(low) == 10 + 16 and line.at(high) == 10 + 128_000
    assert line.estimate(high) == Estimate(128_010, 0.1, False) and line.estimate(low) == Estimate(10 + 24, 0.3, False)
    assert line.estimate(low, 34 / 26) == Estimate(34, 0.1, False)
    assert replace(line, least_error=0.05).estimate(low).error == 0.1
    assert replace(line, roof=False).at(low) == 10 + 12 + 16


def times(*each: tuple[Operator, float], spread: float = 0.0, count: int = 9) -> dict[Operator, OperatorTime]:
    return {one: OperatorTime(ns, spread, count, "", "") for one, ns in each}


def test_types_that_move_alone_have_a_line_of_three_and_others_of_five():
    def lines(count: int, with_products: bool) -> Any:
        each = [gemm(16 * at, 32, 64) if with_products else moving(100 * at) for at in range(1, count + 1)]
        return set(OperatorSpeeds(times(*((one, 50.0 + work_of(one)[1]) for one in each))).lines)

    assert lines(2, False) == set() and lines(3, False) == {("type", "Add")}
    assert lines(5, False) == {("type", "Add"), ("core", "AI_VECTOR_CORE")}
    assert lines(4, True) == set() and lines(5, True) == {("type", "MatMul"), ("core", "AI_CORE")}


def test_an_operator_measured_many_times_counts_almost_alone():
    each = [(moving(100 * at), 50.0 + 800.0 * at) for at in range(1, 7)]
    away = {**times(*each, spread=0.02, count=3), **times((moving(700), 2 * 5650.0), spread=0.02, count=3)}
    estimate = OperatorSpeeds(away).estimate(moving(700))
    assert estimate is not None and estimate.exact
    line = OperatorSpeeds(away).lines["type", "Add"]
    noise = 0.02**2 * math.pi / 2 / 3
    apart = line.at(moving(700)) / 11_300 - 1
    own = apart**2 - noise
    part = own / (own + noise)
    assert estimate.ns == pytest.approx(11_300 * (1 + (1 - part) * apart)) and estimate.error == pytest.approx(
        math.sqrt(part * noise)
    )
    # Two samples have their mean for a median.
    two = OperatorSpeeds(times((moving(7), 100.0), spread=0.1, count=2)).estimate(moving(7))
    assert two is not None and two.ns == 100 and two.exact and two.error == pytest.approx(math.sqrt(0.01 / 2))
    assert OperatorSpeeds(times((moving(7), 100.0))).estimate(moving(7)) == Estimate(100, 0, True)


def test_an_unmeasured_size_is_drawn_half_way_to_the_nearest_sibling():
    each = [(moving(100 * at), 800.0 * at) for at in range(1, 12)]
    known = OperatorSpeeds(times(*each, (gemm(64, 128, 256), 5e5)))
    line = known.lines["type", "Add"]
    asked = moving(1250)
    factor = (8800 / line.at(moving(1100))) ** 0.5
    assert known._drawn(asked, line) == pytest.approx(factor) and known.estimate(asked).ns == pytest.approx(
        factor * line.at(asked)
    )
    assert known._drawn(moving(5, kind="Mul"), line) == 1.0
    shapes = {pattern[3] for pattern in _patterns(gemm(64, 128, 64))}
    assert shapes == {((0, 128), (128, 0), (0, 0)), ((64, 0), (0, 64), (64, 64))} and not list(_patterns(gemm(1, 1, 1)))


def test_a_form_seen_once_is_scaled_by_what_it_moves_or_multiplies():
    moved = OperatorSpeeds(times((moving(100), 400.0), (moving(1000), 900.0)))
    assert moved.estimate(moving(200)) == Estimate(800, 0.5, False) and moved.estimate(moving(2000)).ns == 1800
    assert moved.estimate(moving(50)) == Estimate(200, 1.0, False) and moved.estimate(moving(0)) is None
    # Without a usual rate of moving the multiplications count: of several counts the largest ratio.
    product = OperatorSpeeds(times((gemm(8, 8, 8), 1000.0)))
    estimate = product.estimate(gemm(16, 8, 8))
    assert estimate is not None and estimate.ns == 2000 and estimate.error == pytest.approx(1 - 640 / 384 / 2)
    # One that takes no longer than twice the time of moving it is scaled by that.
    rate = times(*((moving(100 * at), 800.0 * at) for at in range(1, 4)))  # 1 ns a byte
    least, more = (OperatorSpeeds({**rate, **times((gemm(8, 8, 8), ns))}) for ns in (2 * 384.0, 2 * 384.0 + 1))
    assert (
        least.estimate(gemm(16, 8, 8)).ns == pytest.approx(768 * 640 / 384)
        and more.estimate(gemm(16, 8, 8)).ns == 2 * 769
    )
    # Of nothing moved a byte counts.
    flags = Operator("Add", "AI_VECTOR_CORE", ("BOOL",), ((1,),), ((2,),))
    small = OperatorSpeeds(times((moving(0, dtype="BOOL"), 7.0), (flags, 30.0)))
    assert small.estimate(moving(1, dtype="BOOL")).ns == pytest.approx(30 * 2 / 3)
    assert OperatorSpeeds({}).estimate(gemm(8, 8, 8)) is None


def test_the_noise_of_a_type_is_that_of_operators_with_several_samples():
    few, many, more = (OperatorTime(1.0, spread, count, "", "") for spread, count in ((0.5, 3), (0.1, 4), (0.3, 9)))
    assert _noise_of([few, many, more]) == pytest.approx(0.2) and _noise_of([few, few]) == 0.5


def test_coverage_is_of_numbers_and_of_time():
    known = OperatorSpeeds(times((moving(100), 400.0), (moving(1000), 900.0)))
    found = known.coverage([moving(100), moving(200), moving(100), moving(0), moving(200)])
    assert (found.by_count, found.by_time, found.unknown) == (0.4, 800 / 2400, (moving(200), moving(0)))
    empty = known.coverage([])
    assert (empty.by_count, empty.by_time, empty.unknown) == (0, 0, ())
    assert ROBUST == 1.4826
