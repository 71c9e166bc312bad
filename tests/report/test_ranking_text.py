"""A ranking as text, cell by cell: its columns at every width, notes, facts of a plan, and the verdict."""

from __future__ import annotations

import pytest
from rich.text import Text

from taylor.report.ranking import (
    LISTED_REASONS,
    fits_text,
    note_lines,
    percent_text,
    plan_lines,
    ranking_table,
    step_text,
    tied_rows,
    verdict_lines,
)
from tests.report_cases import block, printed

BEST = {
    "own": 0, "dp": 8, "tp": 4, "pp": 4, "vpp": 2, "micro_batches": 16, "cost": 1234.56, "objective": 150.0,
    "tokens_per_second": 123456.7, "gain": 12.34, "status": "optimal", "gap": 0.0, "ratio_source": "parsed, x",
    "peak_memory": "[40000, 51200.4, 30000]", "memory_limit": "[51300, 56320, 60000]", "memory_source": "estimate",
    "risk": 0.031, "offset": "[[1, 1, 0]]", "recompute": '{"full": [[2, 2, 0]]}', "file": "a/best.yaml",
}  # fmt: skip
OWN = BEST | {"own": 1, "cost": 1400.0, "gain": 0.0, "status": "feasible", "ratio_source": "estimate", "vpp": 1}
SECOND = BEST | {"dp": 16, "pp": 2, "cost": 1300.0, "status": "feasible", "gap": 0.01234, "ratio_source": "estimate"}
CUT = BEST | {"tp": 8, "cost": None, "objective": None, "status": "cut_off", "bound_ms": 26048.4, "ratio_source": None,
              "peak_memory": None, "tokens_per_second": None, "gain": None, "gap": None, "reason": None}  # fmt: skip
OVER = OWN | {"status": "over_limit", "peak_memory": "[51400, 1, 1]"}
RISKY = OWN | {"status": "over_limit", "reason": "exceeds the risk of 5 %"}
FAILED = CUT | {"status": "failed", "reason": "no [memory]"}
ROWS = [BEST, OWN, SECOND, CUT]


@pytest.mark.parametrize("rows", [ROWS], ids=["mixed"])
def test_the_columns_are_wider_where_the_window_is(rows):
    plain = [row | {"ratio_source": "estimate"} for row in rows]
    assert printed(ranking_table(rows, width=110), 110) == block(
        """
          #    strategy                 step ms    tokens/s       gain     peak GiB    proof         times
          1    DP8 TP4 PP4 VPP2 m16     1,234.6     123,457    +12.3 %    50.0/55.0    proven        meas.
        own    DP8 TP4 PP4 m16          1,400.0     123,457          -    50.0/55.0    evaluated     est.
          2    DP16 TP4 PP2 VPP2 m16    1,300.0     123,457    +12.3 %    50.0/55.0    gap 1.23 %    est.
          3    DP8 TP8 PP4 VPP2 m16           -           -          -            -    ≥ 26,048      est.
        """
    )
    assert printed(ranking_table(rows, width=109), 109) == block(
        """
          #  strategy               step ms  tokens/s     gain   peak GiB  proof       times
          1  DP8 TP4 PP4 VPP2 m16   1,234.6   123,457  +12.3 %  50.0/55.0  proven      meas.
        own  DP8 TP4 PP4 m16        1,400.0   123,457        -  50.0/55.0  evaluated   est.
          2  DP16 TP4 PP2 VPP2 m16  1,300.0   123,457  +12.3 %  50.0/55.0  gap 1.23 %  est.
          3  DP8 TP8 PP4 VPP2 m16         -         -        -          -  ≥ 26,048    est.
        """
    )
    assert printed(ranking_table(plain, width=100), 100) == block(
        """
          #    strategy                 step ms    tokens/s       gain     peak GiB    proof
          1    DP8 TP4 PP4 VPP2 m16     1,234.6     123,457    +12.3 %    50.0/55.0    proven
        own    DP8 TP4 PP4 m16          1,400.0     123,457          -    50.0/55.0    evaluated
          2    DP16 TP4 PP2 VPP2 m16    1,300.0     123,457    +12.3 %    50.0/55.0    gap 1.23 %
          3    DP8 TP8 PP4 VPP2 m16           -           -          -            -    ≥ 26,048
        """
    )
    assert printed(ranking_table(plain, width=99), 99) == block(
        """
          #  strategy           step ms  tokens/s     gain   peak GiB  proof
          1  DP8 TP4 PP4 VPP2   1,234.6   123,457  +12.3 %  50.0/55.0  proven
        own  DP8 TP4 PP4        1,400.0   123,457        -  50.0/55.0  evaluated
          2  DP16 TP4 PP2 VPP2  1,300.0   123,457  +12.3 %  50.0/55.0  gap 1.23 %
          3  DP8 TP8 PP4 VPP2         -         -        -          -  ≥ 26,048
        """
    )
    assert printed(ranking_table(plain, width=60), 60) == block(
        """
          #  str…  step ms  tokens/s     gain   peak GiB  proof
          1  DP8   1,234.6   123,457  +12.3 %  50.0/55.0  proven
             TP4
             PP4
             VPP2
        own  DP8   1,400.0   123,457        -  50.0/55.0  evaluated
             TP4
             PP4
          2  DP16  1,300.0   123,457  +12.3 %  50.0/55.0  gap 1.23 %
             TP4
             PP2
             VPP2
          3  DP8         -         -        -          -  ≥ 26,048
             TP8
             PP4
             VPP2
        """
    )
    assert printed(ranking_table(rows, width=40), 40) == block(
        """
          ste…  toke…  gain  peak …  proof    t…
          1,2…  123,…  +12…  50.0/…  proven   m…
          1,4…  123,…     -  50.0/…  evalua…  e…
          1,3…  123,…  +12…  50.0/…  gap 1.…  e…
             -      -     -       -  ≥ 26,0…  e…
        """
    )
    assert printed(ranking_table([OVER, RISKY, FAILED], width=80), 80) == block(
        """
          #  strategy          step ms  tokens/s  gain   peak GiB  proof
        own  DP8 TP4 PP4       1,400.0   123,457     -  50.2/50.1  too large
        own  DP8 TP4 PP4       1,400.0   123,457     -  50.0/55.0  exceeds the risk
          1  DP8 TP8 PP4 VPP2        -         -     -          -  failed
        """
    )


def test_rows_are_limited_with_the_baseline_always_shown():
    table = ranking_table([BEST, SECOND, CUT, OWN], limit=1, width=80)
    assert list(map(str, table.columns[0].cells)) == ["1", "own"]
    assert table.caption == "2 of 4 rows; all are in the CSV"
    assert [row.style for row in table.rows] == ["", "bold"]
    assert ranking_table(ROWS, limit=3, width=80).caption is None


def test_marks_have_the_colours_of_what_they_say():
    def styles(rows, heading):
        columns = ranking_table(rows, width=80).columns
        cells = next(column.cells for column in columns if column.header == heading)
        return [(cell.plain, str(cell.style)) for cell in cells]

    rows = [*ROWS, OVER, RISKY, FAILED, SECOND | {"status": "interrupted"}, SECOND | {"status": None, "gap": None}]
    assert styles(rows, "proof") == [
        ("proven", "green"),
        ("evaluated", ""),
        ("gap 1.23 %", "yellow"),
        ("≥ 26,048", "dim"),
        ("too large", "red bold"),
        ("exceeds the risk", "yellow"),
        ("failed", "red"),
        ("gap 1.23 %", "red"),
        ("-", "red"),
    ]
    assert styles([BEST, OVER, BEST | {"peak_memory": "[51300]"}, CUT], "peak GiB") == [
        ("50.0/55.0", ""),
        ("50.2/50.1", "red bold"),
        ("50.1/50.1", ""),
        ("-", ""),
    ]


def test_a_step_is_in_ms_or_in_units():
    assert [step_text(row) for row in ({"cost": 1234.56}, {"objective": 1.23456}, {})] == ["1,234.6", "1.235 u", "-"]


def test_notes_explain_the_marks_and_the_first_failures():
    lines = note_lines([*ROWS, *[FAILED | {"dp": n} for n in range(1, 8)]])
    assert lines[:3] == [
        "times: meas. by profiles or the given table, est. by the analytical model (column ratio_source)",
        "own: the plan in the file, by the same memory and times; gain is over it",
        "≥: not among the best, no plan takes fewer ms; --prove all proves every row",
    ]
    assert lines[3 : 3 + LISTED_REASONS] == [f"DP{n} TP8 PP4 VPP2 m16: failed: no [memory]" for n in range(1, 6)]
    assert lines[3 + LISTED_REASONS :] == ["and 2 more without a plan; the CSV says why"]
    assert note_lines([FAILED] * 5)[-1].startswith("DP8")
    assert note_lines([BEST]) == []


def test_ties_are_estimated_plans_near_the_quickest():
    def row(cost, **changes):
        return {"cost": cost, "status": "feasible", "own": 0, **changes}

    rows = [row(107.9), row(50.0, own=1), row(40.0, ratio_source="parsed"), row(30.0, status="cut_off"), row(100.0),
            row(None), row(108.1), row(108.0)]  # fmt: skip
    assert tied_rows(rows) == [0, 4, 7]
    assert tied_rows([]) == []


def test_facts_of_a_plan_are_listed_by_stage():
    assert plan_lines(BEST) == [
        ("offset", "2×1, 0"), ("recompute", "2×2, 0"), ("peak GiB", "39.1, 50.0, 29.3 of 50.1, 55.0, 58.6"),
        ("file", "a/best.yaml"),
    ]  # fmt: skip


def test_the_verdict_is_three_sentences():
    assert printed(Text("\n".join(verdict_lines(ROWS))), 100) == block(
        """
        DP8 TP4 PP4 VPP2 m16, 1,234.6 ms a step, 123,457 tokens/s; 12.3 % faster than the plan in the file
        (DP8 TP4 PP4 m16, 1,400.0 ms)
        fits with 97 % probability, 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest
        times measured for 1 of 3 candidates, the others estimated; memory by estimate
        """
    )
    slower, _, _ = verdict_lines([BEST | {"gain": -3.21}, OVER])
    assert slower.endswith(
        "; 3.2 % slower than the plan in the file (DP8 TP4 PP4 m16, 1,400.0 ms), "
        "which is 100 MiB over its limit on stage 0"
    )
    within = [row | {"memory_limit": "[60000, 51200.4, 60000]"} for row in (BEST | {"gain": 0.0}, RISKY)]
    as_fast, _, _ = verdict_lines(within)
    assert as_fast.endswith(
        "; 0.0 % faster than the plan in the file (DP8 TP4 PP4 m16, 1,400.0 ms), "
        "which exceeds the risk that the job may have"
    )
    units = [row | {"cost": None} for row in (BEST, OWN)]
    assert "m16, 150.000 u a step" in verdict_lines(units)[0] and "m16, 150.000 u)" in verdict_lines(units)[0]
    assert verdict_lines([BEST, OWN | {"status": "over_limit", "peak_memory": None}])[0].endswith("1,400.0 ms)")
    assert verdict_lines([FAILED, OWN])[:2] == ["no candidate has a plan", "not known"]
    assert verdict_lines([FAILED])[2] == "times estimated; memory by estimate"
    assert verdict_lines([])[2] == "times estimated; memory by nothing"
    assert verdict_lines([BEST | {"gain": None}, OWN])[0].endswith("the file has no plan to compare with")


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"tokens_per_second": None}, ""),
        ({}, ", 123,457 tokens/s"),
        ({"samples_per_second": 30.14, "epoch_hours": 0.5},
         ", 123,457 tokens/s, 30.1 samples/s, 30.0 minutes an epoch"),
        ({"run_hours": 48.0}, ", 123,457 tokens/s, 48.0 hours for all steps"),
        ({"run_hours": 48.0, "train_days": 2.0}, ", 123,457 tokens/s, 2.0 days of training"),
    ],
)  # fmt: skip
def test_the_best_plan_is_given_with_the_speeds_that_are_known(more, text):
    assert verdict_lines([BEST | more])[0] == (
        f"DP8 TP4 PP4 VPP2 m16, 1,234.6 ms a step{text}; the file has no plan to compare with"
    )


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"risk": None}, "fits, 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest"),
        ({}, "fits with 97 % probability, 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest"),
        ({"certainty": ""}, "fits with 97 % probability, 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest"),
        ({"certainty": "a flag may matter", "risk": 0.001},
         "fits with more than 99 % probability, 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest; "
         "a flag may matter"),
        ({"certainty": "it is unknown whether it fits: x"},
         "it is unknown whether it fits: x; predicted: 5,120 of 56,320 MiB (9.1 %) free on stage 1, the fullest"),
        ({"memory_limit": None}, "not known"), ({"peak_memory": "[]"}, "not known"),
    ],
)  # fmt: skip
def test_the_fullest_stage_says_whether_it_fits(more, text):
    assert verdict_lines([BEST | {"memory_limit": "[56320, 56320, 56320]"} | more])[1] == text


def test_no_probability_is_certain():
    assert [percent_text(p) for p in (12.4, 98.9, 99.0, 100.0)] == ["12 %", "99 %", "more than 99 %", "more than 99 %"]
    assert [fits_text(risk) for risk in (None, 0.25)] == ["fits", "fits with 75 % probability"]


def test_the_sources_of_times_and_memory_are_counted():
    def basis(*rows):
        return verdict_lines(rows)[2]

    assert basis(BEST, BEST) == "times measured; memory by estimate"
    assert basis(BEST, SECOND, SECOND | {"memory_source": "dry-run"}) == (
        "times measured for 1 of 3 candidates, the others estimated; memory by dry-run, estimate"
    )
