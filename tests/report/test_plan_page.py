"""A plan by stage and its summary as text, word by word."""

from __future__ import annotations

from dataclasses import replace

import pytest

from taylor.pipeline_solver.model.problem import LayerKind
from taylor.pipeline_solver.model.solution import BubbleShares, Solution, Status
from taylor.report.plan_text import pair_lines, plan_table, table_of_sums
from taylor.report.tables import summary_lines
from tests.report_cases import block, printed
from tests.solver_cases import plan_of, small_problem

GRIDS = ({"body": [[2, 1], [1, 0]], "mtp": [[0, 0], [0, 1]]}, {"full": [[1, 1], [0, 0]], "select": [[1, 0], [0, 0]]})
PLAN = plan_of(*GRIDS)
LAYERS = (
    LayerKind("body", 4, 1.0, 10.0, {"none": 4.0, "full": 1.0, "select": 2.0}),
    LayerKind("mtp", 1, 1.0, 10.0, {"none": 4.0, "full": 1.0, "select": 2.0}, pinned_last=True),
)
PROBLEM = small_problem(interleaves=2, limit_mib=(12345.0, 12345.0))
SOLUTION = Solution(Status.FEASIBLE, plan=PLAN, peak_memory_mib=(12345.0 + 1e-6, 0.97 * 12345.0))


def test_a_plan_lists_its_virtual_stages_where_they_fit_and_their_sums_where_not():
    wide = printed(plan_table(PROBLEM, SOLUTION, 80), 80)
    width = max(map(len, wide.splitlines()[2:-2])) + 1
    assert wide == block(
        """

         stage   body   mtp   recompute   select rec.   peak MiB   free MiB
         ──────────────────────────────────────────────────────────────────
             0    2+1   0+0         1+0           1+0     12,345          0
             1    1+0   0+1         1+0           0+0     11,975        370

                             limit: 12,345 MiB a device
        """
    )
    assert printed(plan_table(PROBLEM, SOLUTION, width), 80) == wide
    assert printed(plan_table(PROBLEM, SOLUTION, width - 1), 80) == block(
        """

         stage   layers   recompute   select rec.   peak MiB   free MiB
         ──────────────────────────────────────────────────────────────
             0        3           1             1     12,345          0
             1        2           1             0     11,975        370

                           limit: 12,345 MiB a device
        """
    )
    sums = printed(table_of_sums(PROBLEM, SOLUTION), 80)
    assert sums == block(
        """

         stage   layers   recompute   select rec.   peak MiB   free MiB
         ──────────────────────────────────────────────────────────────
             0        3           1             1     12,345          0
             1        2           1             0     11,975        370

                           limit: 12,345 MiB a device
        """
    )
    assert printed(plan_table(PROBLEM, SOLUTION, 20), 80) == sums
    assert printed(plan_table(PROBLEM, SOLUTION, 20), 30) == block(
        """

              re…   selec…   p…   fr…
         ────────────────────────────
                1        1   1…     0
                1        0   1…   370

          limit: 12,345 MiB a device
        """
    )


def test_limits_cards_and_slow_cards_have_columns_of_their_own():
    problem = PROBLEM.replace(limit_mib=(12345.0, 20000.0), cards=("h100", "a100"), slowness=(1.0, 1.25))
    assert printed(plan_table(problem, replace(SOLUTION, peak_memory_mib=())), 80) == block(
        """

         sta…    time   ca…   lay…   recompu…   select r…   peak M…   limit …   free M…
         ──────────────────────────────────────────────────────────────────────────────
            0     1 x   h1…      3          1           1         -    12,345         -
            1   1.25…   a1…      2          1           0         -    20,000         -

        """
    )
    table = plan_table(problem, SOLUTION)
    assert table.caption is None


def test_free_memory_has_the_colour_of_what_it_means():
    def style(peak):
        table = plan_table(PROBLEM, replace(SOLUTION, peak_memory_mib=(peak, peak)))
        return [str(cell.style) for cell in table.columns[-1].cells][0]

    limit = 12345.0
    peaks = (0.97 * limit, 0.971 * limit, limit + 0.9e-6, limit + 2e-6)
    assert [style(peak) for peak in peaks] == ["green", "yellow", "yellow", "red bold"]


def test_a_plan_that_recomputes_nothing_still_shows_full_recompute_alone():
    plan = plan_of({"body": [[2, 2], [0, 0]]}, {"full": [[0, 0], [0, 0]], "select": [[0, 0], [0, 0]]})
    headings = [str(column.header) for column in plan_table(PROBLEM, replace(SOLUTION, plan=plan)).columns]
    assert headings == ["stage", "body", "recompute", "peak MiB", "free MiB"]
    with pytest.raises(ValueError, match="no plan to show"):
        plan_table(PROBLEM, replace(SOLUTION, plan=None))


def test_names_are_aligned_and_long_texts_go_on_below_themselves():
    assert "\n".join(pair_lines([("offset", "1, 2, 3"), ("a much longer name", "12")], None)) == block(
        """
              offset: 1, 2, 3
        a much longer name: 12
        """
    )
    text = "12 GiB free of 80 GiB on stage 3"
    assert pair_lines([("memory", text)], 14 + len(text)) == [f"      memory: {text}"]
    assert "\n".join(pair_lines([("memory", text)], 13 + len(text))) == block(
        """
              memory: 12 GiB free of 80 GiB on stage
                      3
        """
    )


def test_a_solution_is_summed_up_in_lines():
    problem = PROBLEM.replace(kinds=LAYERS, unit_ms=2.5)
    bubble = BubbleShares(0.25, 0.125, 0.05, 0.0625, 0.0125)
    whole = replace(
        SOLUTION, objective=1234.5, bound=1200.0, solver="HiGHS", seconds=1.234, bubble=bubble, message="why"
    )
    assert "\n".join(summary_lines(problem, whole)) == block(
        """
        status feasible, HiGHS, 1.23 s
        step 1,234.50 body-layer forwards = 3,086.25 ms
        bound 1,200.00, gap 2.79 %
        bubble 25.00%: ideal 12.50%, imbalance 5.00%, recompute 6.25%, communication 1.25%
        offset 1,0 | 0,-1
        recompute 2×1 | 2×0
        select recompute 1,0 | 2×0
        why
        """
    )
    assert "\n".join(summary_lines(problem.replace(unit_ms=None), whole)).splitlines()[1] == (
        "step 1,234.50 body-layer forwards"
    )
    nothing = Solution(Status.NO_SOLUTION, bound=7.0)
    assert summary_lines(problem, nothing) == ["status no_solution, no solver, 0.00 s", "no bound yet"]
