"""The base of measured operators."""

from __future__ import annotations

import csv
import itertools
import math
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_DONE, InputError
from taylor.base.stored_rows import MOST_NAMED
from taylor.blackbox.operator_base import OperatorBase, OperatorOrigin
from taylor.blackbox.operator_speed import OperatorSpeeds
from taylor.blackbox.rejection import FIRST_LAUNCH, NO_TIME, STRAGGLER, WARM_UP, Cleaned, clean
from taylor.command_lines import operators
from taylor.parsers.profiles.operators import Operator, OperatorSample, parse_shapes, read_operators
from tests.conftest import ROOT, SHARED

CARD = OperatorOrigin("ascend-910b", "24.1", "8.0")
PROFILES = SHARED / "data" / "ascend_profiles"
real = pytest.mark.skipif(not PROFILES.is_dir(), reason="real profiles are not here")


def product(m: int, k: int, n: int) -> Operator:
    return Operator("MatMulV2", "AI_CORE", ("DT_BF16", "DT_BF16"), ((m, k), (k, n)), ((m, n),))


def samples(operator: Operator, durations: list[int], step: int = 5) -> list[OperatorSample]:
    return [OperatorSample(operator, at, each, step) for at, each in enumerate(durations)]


def filled(
    path: Path, operators: dict[Operator, list[int]], origin: OperatorOrigin = CARD, digest: str = "a"
) -> OperatorBase:
    base = OperatorBase(path)
    kept = {operator: tuple(durations) for operator, durations in operators.items()}
    base.fill(origin, Cleaned(kept, {}), digest=digest, when="2026-01-01")
    return base


def test_first_launches_stragglers_and_empty_samples_are_left_out_and_counted():
    cleaned = clean(samples(product(8, 8, 8), [9000, 100, 102, 98, 101, 0, 99, 700]))
    assert cleaned.rejected == {FIRST_LAUNCH: 1, STRAGGLER: 1, NO_TIME: 1}
    assert sorted(next(iter(cleaned.durations.values()))) == [98, 99, 100, 101, 102]


@pytest.mark.parametrize(("durations", "left"), [([9000, 100], [100]), ([9000], [9000]), ([100, 100], [100, 100])])
def test_a_slow_first_launch_is_left_out_where_one_other_shows_it(durations, left):
    cleaned = clean(samples(product(8, 8, 8), durations))
    assert [list(each) for each in cleaned.durations.values()] == [left]
    assert cleaned.rejected == ({FIRST_LAUNCH: 1} if len(left) < len(durations) else {})


def test_a_slow_first_step_of_several_is_warm_up():
    one = product(8, 8, 8)
    steps = [sample for step, each in ((3, 150), (4, 100), (5, 100)) for sample in samples(one, [each] * 4, step)]
    cleaned = clean(steps)
    assert cleaned.rejected == {WARM_UP: 4} and set(cleaned.durations[one]) == {100}


def test_versions_of_the_software_never_mix(tmp_path):
    newer = OperatorOrigin("ascend-910b", "24.1", "8.1")
    base = filled(tmp_path / "base.sqlite", {product(8, 8, 8): [100, 110, 120]})
    base.fill(newer, Cleaned({product(8, 8, 8): (50,)}, {}), digest="b", when="2026-02-01")
    assert base.times(CARD)[product(8, 8, 8)].centre_ns == 110 and base.times(newer)[product(8, 8, 8)].centre_ns == 50
    assert sorted(base.origins()) == [CARD, newer]


def test_a_profile_counts_once_and_merging_twice_changes_nothing(tmp_path):
    mine = filled(tmp_path / "mine.sqlite", {product(8, 8, 8): [100, 100]})
    filled(tmp_path / "mine.sqlite", {product(8, 8, 8): [100, 100]})
    filled(tmp_path / "other.sqlite", {product(8, 8, 8): [200] * 5, product(16, 8, 8): [300]}, digest="b")
    assert mine.merge(tmp_path / "other.sqlite") == 1
    assert mine.merge(tmp_path / "other.sqlite") == 0
    times = mine.times(CARD)
    assert times[product(8, 8, 8)].count == 7 and times[product(8, 8, 8)].centre_ns == 200
    assert times[product(16, 8, 8)].count == 1


def test_bases_that_share_some_profiles_are_not_merged(tmp_path):
    mine = filled(tmp_path / "mine.sqlite", {product(8, 8, 8): [100]})
    other = filled(tmp_path / "other.sqlite", {product(8, 8, 8): [100]})
    other.fill(CARD, Cleaned({product(4, 4, 4): (9,)}, {}), digest="b", when="2026-01-01")
    with pytest.raises(InputError, match="in the base already"):
        mine.merge(tmp_path / "other.sqlite")


def test_a_file_that_is_no_base_is_refused(tmp_path):
    (tmp_path / "base.sqlite").write_text("not a database, and long enough to be told from an empty one")
    with pytest.raises(InputError):
        OperatorBase(tmp_path / "base.sqlite")


DAMAGED = {
    "operator": {
        "device": [None, b"\xff", "x" * 10**5],
        "type": [None, b"x"],
        "dtypes": ["x" * 10**5],
        "inputs": ["", "2:8,8", "1:8 8", "1:" + "9" * 10**5, "no shapes", b"x"],
        "count": ["many", -1, 1.5, "9" * 10**5],
        "first": [None],
        "samples": [
            "", "no JSON", "{}", "[]", "[0]", "[1.5]", "[true]", "[1e999]", '["1"]', "[" * 3000, "[" + "9" * 4000 + "]",
        ],
    },
    "rejected": {"reason": [None], "count": ["many", -1]},
    "profile": {"digest": [None, b"x"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("table", "column", "cell"),
    [(table, column, cell) for table in DAMAGED for column in DAMAGED[table] for cell in DAMAGED[table][column]],
    ids=lambda value: repr(value)[:16],
)
def test_a_damaged_row_of_a_base_is_named_and_hides_no_other(tmp_path, capsys, table, column, cell):
    good, bad = product(8, 8, 8), product(16, 8, 8)
    base = OperatorBase(tmp_path / "base.sqlite")
    for digest, operator in (("a", bad), ("b", good)):
        base.fill(CARD, Cleaned({operator: (100,)}, {digest: 1}), digest=digest, when="2026-01-01")
    with closing(sqlite3.connect(base.path)) as database, database:
        first = database.execute(f"SELECT min(rowid) FROM {table}").fetchone()
        database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (cell, *first))
    words = [str(tmp_path / "new.sqlite"), "--merge", str(base.path), "--export", str(tmp_path / "all.csv")]
    assert run_command(lambda: operators.run(words)) == EXIT_DONE
    shown = capsys.readouterr()
    assert any("left out" in line and f"column {column}" in line and len(line) < 700 for line in shown.err.splitlines())
    known = OperatorBase(tmp_path / "new.sqlite").times(CARD)
    assert known[good].count == 1 and (bad in known) == (table != "operator")
    assert run_command(lambda: operators.run([str(base.path)])) == EXIT_DONE
    assert base.fill(CARD, Cleaned({bad: (200,)}, {"a": 1}), digest="c", when="2026-02-01").taken == 1
    assert bad in base.times(CARD)


def test_of_many_damaged_rows_the_first_are_named_and_all_are_counted(tmp_path, caplog):
    base = filled(tmp_path / "base.sqlite", {product(8 * size, 8, 8): [100] for size in range(1, 101)})
    with closing(sqlite3.connect(base.path)) as database, database:
        database.execute("UPDATE operator SET count = 'many' WHERE rowid < 100")
    assert len(base.times(CARD)) == 1
    assert len(caplog.records) == MOST_NAMED + 1 and f"{99 - MOST_NAMED} more rows" in caplog.text


def test_what_a_base_holds_moves_no_terminal(tmp_path, capsys):
    evil = OperatorOrigin("\x1b]0;title\x07\x1b[2J\x9b31m\rcard")
    operator = Operator("\x1b[2JMatMulV2", "\x1b[2J", (), ((8, 8), (8, 8)), ((8, 8),))
    kept = {replace(operator, outputs=((size, size),)): (100 * size,) for size in range(1, 9)}
    OperatorBase(tmp_path / "b.sqlite").fill(evil, Cleaned(kept, {"\x1b[2J": 1}), digest="a", when="2026-01-01")
    assert run_command(lambda: operators.run([str(tmp_path / "b.sqlite")])) == EXIT_DONE
    shown = capsys.readouterr()
    assert "card" in shown.out and not set(shown.out + shown.err) & set("\x1b\x07\x9b\r")


def test_of_many_samples_the_middle_stays_though_few_are_kept(tmp_path):
    draw = random.Random(1)
    durations = [round(draw.gauss(10_000, 300)) for _ in range(5000)]
    base = filled(tmp_path / "base.sqlite", {product(8, 8, 8): durations})
    known = base.times(CARD)[product(8, 8, 8)]
    assert known.count == 5000 and known.centre_ns == pytest.approx(median(durations), rel=0.005)
    assert known.spread == pytest.approx(0.03, rel=0.3)


def test_a_missing_operator_is_estimated_by_the_line_of_its_type_with_an_error_that_holds(tmp_path):
    draw = random.Random(2)

    def truth(m: int, k: int, n: int) -> float:  # 250 Tproducts/s and 1 TB/s, in ns, stated apart from the product's.
        return 4000 + m * k * n / 125e3 + 2 * (m * k + k * n + m * n) / 1000

    sizes = [tuple(256 * draw.randint(1, 32) for _ in range(3)) for _ in range(60)]
    known = {product(*size): [round(truth(*size) * draw.gauss(1, 0.03))] for size in sizes[:30]}
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", known).times(CARD))
    estimates = [(speeds.estimate(product(*size)), truth(*size)) for size in sizes[30:]]
    errors = [abs(estimate.ns / true - 1) for estimate, true in estimates]
    assert not any(estimate.exact for estimate, _ in estimates)
    assert median(errors) < 0.05 and estimates[0][0].error < 0.06


def test_few_samples_of_an_operator_are_drawn_to_a_line_as_far_as_both_are_sure(tmp_path):
    draw = random.Random(3)
    sizes = [(256 * m, 1024, 256 * n) for m in range(2, 12) for n in (2, 5, 9)]
    truth = {product(*size): 4000 + math.prod(size) / 1e5 for size in sizes}
    odd = product(2048, 1024, 2048)  # Slower than the others are for their size, by far more than noise.
    truth[odd] = 1.5 * (4000 + 2048 * 1024 * 2048 / 1e5)
    known = {one: [round(ns * draw.gauss(1, 0.03)) for _ in range(2)] for one, ns in truth.items()}
    times = filled(tmp_path / "base.sqlite", known).times(CARD)
    speeds = OperatorSpeeds(times)
    before = [times[one].centre_ns / ns - 1 for one, ns in truth.items() if one != odd]
    after = [speeds.estimate(one).ns / ns - 1 for one, ns in truth.items() if one != odd]
    assert sum(each**2 for each in after) < 0.5 * sum(each**2 for each in before)
    assert all(speeds.estimate(one).exact for one in truth)
    assert speeds.estimate(odd).ns == pytest.approx(times[odd].centre_ns, rel=0.01)
    # The error that is told is that of the samples' middle, not that of one sample.
    assert 0.01 < speeds.estimate(odd).error < 0.03


def test_an_operator_that_moves_more_than_any_seen_takes_as_long_as_moving_it(tmp_path):
    add = [
        Operator("Add", "AI_VECTOR_CORE", ("DT_BF16",) * 2, ((n,), (n,)), ((n,),)) for n in range(10**6, 10**7, 10**6)
    ]
    known = {one: [round(6 * one.outputs[0][0] / 500)] * 3 for one in add}  # 500 bytes a ns
    # Products take all of the time of those that were seen.
    sizes = itertools.product((4096, 8192), (2048, 6144), (1024, 2048, 4096))
    known |= {product(m, k, n): [round(2000 + m * k * n / 1e5)] * 3 for m, k, n in sizes}
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", known).times(CARD))
    thin = speeds.estimate(product(16, 65536, 8192))
    assert thin.ns == pytest.approx(2 * (16 * 65536 + 65536 * 8192 + 16 * 8192) / 500, rel=0.01) and not thin.exact
    thick = speeds.estimate(product(8192, 8192, 4096))
    assert thick.ns == pytest.approx(2000 + 8192 * 8192 * 4096 / 1e5, rel=0.01)


def test_a_type_seen_in_a_few_sizes_has_a_line_of_its_own_though_both_inputs_are_matrices(tmp_path):
    add = {
        Operator("Add", "AI_CORE", ("DT_BF16",) * 2, ((n, 4096),) * 2, ((n, 4096),)): [round(3000 + n * 4096 / 50)] * 3
        for n in (512, 1024, 2048)
    }
    products = {
        product(m, 4096, n): [round(2000 + m * 4096 * n / 1e5)] * 3 for m in (512, 8192) for n in (64, 512, 4096)
    }
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", add | products).times(CARD))
    large = Operator("Add", "AI_CORE", ("DT_BF16",) * 2, ((65536, 4096),) * 2, ((65536, 4096),))
    assert speeds.estimate(large).ns == pytest.approx(3000 + 65536 * 4096 / 50, rel=0.01)


def test_coverage_counts_operators_and_time(tmp_path):
    known = {product(256 * at, 256, 256): [1000 * at] for at in range(1, 8)}
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", known).times(CARD))
    run = [product(256, 256, 256), product(256 * 6, 256, 256), product(256 * 3, 256, 512)]
    covered = speeds.coverage(run)
    assert covered.by_count == pytest.approx(2 / 3) and 0.5 < covered.by_time < 0.95
    assert covered.unknown == (product(256 * 3, 256, 512),)
    assert OperatorSpeeds({}).estimate(run[0]) is None


@pytest.mark.parametrize(
    "cell, shapes",
    [('"32,3;64"', ((32, 3), (64,))), ('";"', ((), ())), ("N/A", ()), ('"8,,2;;16"', ((8, 2), (), (16,))),
     ("DT_BF16;FLOAT", None), ("9" * 30, None), ("9" * 100_000, None), ("8 16", None), (" 8 , 16 ;", ((8, 16), ()))],
)  # fmt: skip
def test_shapes_are_read_as_the_profiler_writes_them(cell, shapes):
    assert parse_shapes(cell) == shapes


@real
def test_real_profiles_fill_a_base_and_its_stated_error_is_that_of_a_half_held_back(tmp_path):
    words = [sys.executable, "-m", "taylor", "operators", str(tmp_path / "base.sqlite"), "--fill", str(PROFILES)]
    words += ["--device", "ascend-910b", "--export", str(tmp_path / "base.csv")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "was taken without shapes" in done.stderr and "median of those left out" in done.stdout
    with open(tmp_path / "base.csv", newline="") as stream:
        assert len(list(csv.DictReader(stream))) > 250
    table = read_operators(PROFILES / "llm_kernel_details" / "kernel_details.csv")
    times = OperatorBase(tmp_path / "base.sqlite").times(OperatorOrigin("ascend-910b"))
    mine = sorted({sample.operator for sample in table.samples if sample.operator in times})
    speeds = OperatorSpeeds({operator: times[operator] for operator in mine[::2]})
    held = [(speeds.estimate(operator), times[operator].centre_ns) for operator in mine[1::2]]
    pairs = [(estimate, true) for estimate, true in held if estimate is not None]
    assert len(pairs) > 0.8 * len(held)
    stated = median(estimate.error for estimate, _ in pairs)
    assert median(abs(estimate.ns / true - 1) for estimate, true in pairs) < 1.5 * stated + 0.05


def test_the_operators_of_a_candidate_are_looked_up_without_reading_the_file_again(tmp_path):
    known = {product(at + 1, 64, 64): [1000 + at] for at in range(500)}
    base = filled(tmp_path / "base.sqlite", known)
    speeds = OperatorSpeeds(base.times(CARD))
    base.path.unlink()
    assert [speeds.estimate(operator).ns for operator in known] == [durations[0] for durations in known.values()]


def test_a_third_size_of_a_measured_operator_is_drawn_half_way_to_its_own_deviation(tmp_path):
    # One pair of weights multiplies a fifth slower than the others.
    known = {
        product(m, 4096, n): [round((1.2 if n == 2048 else 1.0) * (2000 + m * 4096 * n / 1e5))] * 3
        for m in (1024, 3072) for n in (1024, 2048, 4096, 8192, 12288)
    }  # fmt: skip
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", known).times(CARD))
    line = speeds.lines["type", "MatMulV2"]
    slow, near, true = product(8192, 4096, 2048), product(3072, 4096, 2048), 1.2 * (2000 + 8192 * 4096 * 2048 / 1e5)
    drawn = speeds.estimate(slow).ns
    assert drawn == pytest.approx(line.at(slow) * (known[near][0] / line.at(near)) ** 0.5, rel=1e-6)
    assert line.at(slow) < drawn < true and true - drawn < 0.6 * (true - line.at(slow))
    unlike = product(8192, 6144, 2048)  # Two sizes differ from any that was measured.
    assert speeds.estimate(unlike).ns == pytest.approx(line.at(unlike), rel=1e-9)


def test_operators_of_one_type_with_other_ranks_are_other_kernels(tmp_path):
    def attention(rows: int, width: int, packed: bool) -> Operator:
        key = (2, rows, width) if packed else (rows, width)
        return Operator("Attention", "AI_CORE", ("DT_BF16",) * 2, ((rows, width), key), ((rows, width),))

    known = {
        product(m, 4096, n): [round(2000 + m * 4096 * n / 1e5)] * 3 for m in (512, 4096) for n in (512, 2048, 8192)
    }
    known |= {attention(rows, 1024, True): [3000 + 10 * rows] * 3 for rows in (512, 1024, 2048, 4096, 8192, 16384)}
    known |= {
        Operator("Add", "AI_VECTOR_CORE", ("DT_BF16",) * 2, ((n,), (n,)), ((n,),)): [round(6 * n / 1000)] * 3
        for n in (10**6, 2 * 10**6, 4 * 10**6)
    }
    once = attention(4096, 1024, False)
    known[once] = [round(4096 * 1024 * 4096 / 8e4)] * 3
    speeds = OperatorSpeeds(filled(tmp_path / "base.sqlite", known).times(CARD))
    # Four times the rows multiply sixteen times as often; the packed form moves four times as much.
    assert speeds.estimate(attention(16384, 1024, False)).ns == pytest.approx(16 * known[once][0], rel=0.01)
    assert speeds.estimate(attention(32768, 1024, True)).ns == pytest.approx(3000 + 327680, rel=0.01)
    assert speeds.estimate(attention(16384, 1024, False)).error > 0.5
