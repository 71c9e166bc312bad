"""Tables of phases, splits, rules, launchers, peaks and pages as text, word by word."""

from __future__ import annotations

from dataclasses import replace

from taylor.cost_model.memory.breakdown import StageBreakdown
from taylor.dryrun.stage_memory import StageMemory
from taylor.report.breakdown import comparison_table
from taylor.report.facts import PageTable, Share
from taylor.report.memory_reasons import parts_table
from taylor.report.page_tables import terminal_table
from taylor.report.rl_tables import PhaseRow, SplitLine, duration, phase_table, split_table
from taylor.report.rules import DescribedRule, rule_page, rules_table
from taylor.report.support import support_table
from tests.report_cases import block, printed


def test_a_phase_has_its_time_its_peak_and_its_three_largest_parts():
    rows = [
        PhaseRow("roll-out", 12345.6, {"weights": 1000.0, "kv cache": 30000.4, "x": 0.2, "y": 700.0}, 61000.0, "fits"),
        PhaseRow("training", None, {"weights": 70000.0, "rest": 0.5, "less": 0.49}, 61000.0, "too large"),
    ]
    assert printed(phase_table(rows), 100) == block(
        """

         phase          time  peak MiB  free MiB             largest parts, MiB
         ─────────────────────────────────────────────────────────────────────────────────────────
         roll-out       12 s    31,701    29,299  fits       kv cache 30,000, weights 1,000, y 700
         training  not known    70,001    -9,001  too large  weights 70,000

        """
    )
    assert printed(phase_table(rows), 60) == block(
        """

                                                           largest
                                                           parts,
         phase         time  peak MiB  free MiB            MiB
         ──────────────────────────────────────────────────────────
         roll-out      12 s    31,701    29,299  fits      kv cache
                                                           30,000,
                                                           weights
                                                           1,000, y
                                                           700
         training       not    70,001    -9,001  too       weights
                      known                      large     70,000

        """
    )
    assert [duration(ms) for ms in (0.4, 9999.0, 10000.0, 1234567.0)] == ["0 ms", "9,999 ms", "10 s", "1,235 s"]


def test_a_split_has_its_times_or_the_least_of_them_and_the_best_is_bold():
    never = float("inf")
    rows = [
        SplitLine(16, 48, 2000.0, 3000.0, 5000.0, 4000.0, "DP4 TP4"),
        SplitLine(32, 32, 1500.0, None, None, 4500.0, "cut off"),
        SplitLine(64, 0, never, None, None, never, "nothing fits"),
    ]
    table = split_table(rows, 1)
    assert printed(table, 100) == block(
        """

         training  roll-outs  roll-out time  training time          iteration  layout of the training
         ────────────────────────────────────────────────────────────────────────────────────────────
               16         48       2,000 ms       3,000 ms           5,000 ms  DP4 TP4
               32         32       1,500 ms                 at least 4,500 ms  cut off
               64          0                                                   nothing fits

        """
    )
    assert [row.style for row in table.rows] == [None, "bold", None]


RULE = DescribedRule(
    "tp_divides_heads", "legality", (), "tp divides the number of heads of an attention layer", ("a.py:1", "b.py:2"),
    "choose another tp",
)  # fmt: skip


def test_rules_stand_in_a_table_and_each_on_a_page():
    own = replace(RULE, name="mine [x]", kind="user", frameworks=("megatron", "deepspeed"), sources=(), cure="-")
    assert printed(rules_table([RULE, own]), 100) == block(
        """
        rule              kind      framework            what is required
        tp_divides_heads  legality  all                  tp divides the number of heads of an attention
                                                         layer
        mine [x]          user      megatron, deepspeed  tp divides the number of heads of an attention
                                                         layer
        a search leaves out every strategy that breaks a rule; taylor rules NAME has its source
        """
    )
    assert printed(rules_table([RULE, own]), 60) == block(
        """
                                                     what is
        rule              kind      framework        required
        tp_divides_heads  legality  all              tp divides the
                                                     number of heads
                                                     of an attention
                                                     layer
        mine [x]          user      megatron,        tp divides the
                                    deepspeed        number of heads
                                                     of an attention
                                                     layer
        a search leaves out every strategy that breaks a rule;
        taylor rules NAME has its source
        """
    )
    assert printed(rule_page(RULE), 100) == block(
        """
        tp_divides_heads
        required         tp divides the number of heads of an attention layer
        kind             legality: the framework does not start otherwise
        frameworks       all
        stands for       a.py:1
                         b.py:2
        leaves nothing?  choose another tp
        leave it out     --disable_rule tp_divides_heads
        """
    )
    assert printed(rule_page(own), 40) == block(
        """
        mine [x]
        required         tp divides the number
                         of heads of an
                         attention layer
        kind             a user's own
        frameworks       megatron, deepspeed
        leaves nothing?  -
        leave it out     --disable_rule mine [x]
        """
    )


def test_a_launcher_has_a_row_of_what_it_can():
    answer = {
        "launcher": "torchtitan", "title": "Titan", "suffixes": [".toml"], "evaluated": True,
        "solved": False, "written": True, "new_file": False, "degrees": ["dp", "tp"],
        "options": {"modelled": 2, "open": 3},
    }  # fmt: skip
    assert printed(support_table([answer]), 100) == block(
        """
        ┏━━━━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━┓
        ┃ launcher   ┃ files        ┃ evaluated ┃ solved ┃ written ┃ from a model ┃ degrees ┃ options      ┃
        ┡━━━━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━┩
        │ torchtitan │ Titan        │ yes       │ no     │ yes     │ no           │ dp tp   │ 2 modelled,  │
        │            │ (.toml)      │           │        │         │              │         │ 3 open       │
        └────────────┴──────────────┴───────────┴────────┴─────────┴──────────────┴─────────┴──────────────┘
        """
    )


PARTS = [{"weights": 1000.0 * (stage + 1), "activations": 500.0, "logits": 0.4 + (stage == 6)} for stage in range(7)]
PARTS[3]["buffers"] = 60.0


def test_the_parts_of_a_peak_have_a_column_a_stage():
    table = parts_table(PARTS[:2], [5000.0, 2600.0], 1)
    assert printed(table, 100) == block(
        """
            memory at the peak, MiB

                      stage 0  stage 1
         ─────────────────────────────
         weights        1,000    2,000
         activations      500      500

         peak           1,500    2,500
         limit          5,000    2,600

        """
    )
    assert [column.style for column in table.columns] == ["", "", "bold"]


def test_of_many_stages_the_fullest_and_the_chosen_one_are_shown():
    limits = [8000.0] * 7
    assert printed(parts_table(PARTS, limits, 0), 100) == block(
        """
              memory at the peak, MiB: the 5 fullest stages

                      stage 0  stage 3  stage 4  stage 5  stage 6
         ────────────────────────────────────────────────────────
         weights        1,000    4,000    5,000    6,000    7,000
         activations      500      500      500      500      500
         logits             0        0        0        0        1
         buffers            0       60        0        0        0

         peak           1,500    4,560    5,500    6,500    7,501
         limit          8,000    8,000    8,000    8,000    8,000

        """
    )
    # The chosen one is among the five fullest here.
    assert [str(column.header) for column in parts_table(PARTS, limits, 6).columns][1:] == [
        f"stage {stage}" for stage in range(2, 7)
    ]


def test_a_pages_table_is_printed_without_its_bars():
    share = Share((("compute", 0.5), ("idle", 0.5)))
    table = PageTable("Time [x]", ("device [a]", "split", "idle"), [["GPU 0 of a node", share, "1 %"]], "Note [b].")
    assert printed(terminal_table(table), 60) == block(
        """
        Time [x]
        device [a]       split  idle
        GPU 0 of a node         1 %
        Note [b].
        """
    )
    assert printed(terminal_table(table), 24) == block(
        """
        Time [x]
                         sp
                         li  idl
        device [a]       t   e
        GPU 0 of a node      1 %
        Note [b].
        """
    )
    assert terminal_table(replace(table, note="")).caption is None


def test_measured_memory_stands_above_the_estimate_of_the_same_stage():
    stage = StageBreakdown(1, {"dense": 2}, 4.0, 1000, 20, 30, {"dense": 40.0}, 50, 60, 70, 80)
    other = replace(stage, stage=0)
    measured = StageMemory(1, 1500.0, {"weights": 1100.0, "fragments": 400.0})
    table = comparison_table([measured], [other, stage], 61440.0)
    assert printed(table, 110) == block(
        """
                                memory by stage, MiB: dry-run over analytical model

                                                       gradi-  opti-  activ.                   work-  over-
             stage  total   apart  weights  fragments    ents  mizer   dense  logits  buffers  space   head
         ──────────────────────────────────────────────────────────────────────────────────────────────────
         1 dry-run  1,500            1,100        400       0      0       0       0        0      0      0
             forms  1,350  -10.0%    1,000          0      20     30      40      50       60     70     80

                                          the device's limit is 61,440 MiB
        """
    )
    assert [row.style for row in table.rows] == [None, "dim"]
    # Where the last columns are cut, the totals remain.
    assert printed(comparison_table([measured], [stage]), 80) == block(
        """
                                memory by stage, MiB: dry-run over analytical model

                                                       gradi-  opti-  activ.
             stage  total   apart  weights  fragments    ents  mizer   dense  logits  bu
         ───────────────────────────────────────────────────────────────────────────────
         1 dry-run  1,500            1,100        400       0      0       0       0
             forms  1,350  -10.0%    1,000          0      20     30      40      50

        """
    )
