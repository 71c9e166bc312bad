"""Profiles, costs by strategy, layer-wise plans and searches as text, word by word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.measured.cost_table import CostRow, EndCost, EndCosts, Layout
from taylor.cost_model.measured.fits import LINE, MeasuredLaw
from taylor.cost_model.measured.hardware import HardwareProfile, MessageTimes, RankGroup
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.cost_model.measured.profiles import ComputationProfile, MeasuredMemory, Shape
from taylor.layerwise.checker import LayerwiseCheck, StageFigures
from taylor.layerwise.job import OuterChoice
from taylor.layerwise.search import SearchResult, Tried
from taylor.parsers.galvatron.folder import Cluster, MeasuredModel, ProfileFolder
from taylor.parsers.paddlenlp.auto_tuner import TrainerArguments, TunedRun, TunerJob
from taylor.report.layerwise import (
    MOST_TRIED,
    check_pairs,
    proof_text,
    refined_table,
    stage_table,
    tried_table,
    tried_text,
)
from taylor.report.measured import (
    costs_table,
    ends_table,
    folder_pairs,
    laws_table,
    layerwise_table,
    plan_text,
    tuned_table,
    tuner_pairs,
)
from tests.report_cases import block, printed

TP4 = LayerStrategy(tp=4, dp=2, zero=2, recompute=True)
DP8 = LayerStrategy(dp=8)
ENDS = EndStrategy(tp=4, dp=2)
PLAN = LayerwisePlan((3, 2), (DP8, DP8, TP4, TP4, TP4), ENDS, 64, 8)


def pairs_of(**changes):
    """Sentences on one model of a folder, or on the folder."""
    return folder_pairs(ProfileFolder((Path("profiles"),), **changes))


def test_a_folder_is_listed_with_its_gaps_and_strategies():
    profile = HardwareProfile(
        {RankGroup(8): 190.5, RankGroup(2, True): 50.25, RankGroup(4, True): 120.0},
        {2: 11.0, 4: 9.5},
        {4: MessageTimes({64: 1.0, 16: 0.5}), 2: MessageTimes({1: 0.1})},
        {8: MessageTimes({32: 1.0})},
        1.234,
    )
    found = {Path("a/plan.json"): SimpleNamespace(plan=PLAN)}
    pairs = pairs_of(hardware={Cluster(2, 8): profile, Cluster(1, 4): HardwareProfile()}, strategies=found)
    assert pairs[0] == (
        "cluster",
        "2 x 8 cards: all-reduce of 2 to 8 ranks at 50.2 to 190 GB/s; transfers at 9.5 to 11 GB/s; all-reduce times of "
        "2 to 4 ranks, 1 to 64 MiB; all-to-all times of 8 ranks, 32 MiB; 1.23 times slower under overlap",
    )
    missing = HardwareProfile().missing()
    assert pairs[1:] == [
        ("cluster", "1 x 4 cards: "),
        *(("missing", f"1 x 4 cards: {each}") for each in missing),
        ("strategy", "plan.json: 5 layers on 2 stages of 8 ranks, 2 strategies; batch 64 in 8 micro-batches"),
    ]
    assert missing


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (MeasuredModel("m"), "no computation profile; no memory profile"),
        (
            MeasuredModel("m", ComputationProfile(runs_ms={1: 1.0, 2: 2.0}), MeasuredMemory(runs={1: 1.0})),
            "2 timed runs, which give no layer's time: profile two numbers of layers; "
            "memory of 1 runs, which give no layer's memory: profile two numbers of layers",
        ),
        (
            MeasuredModel(
                "m",
                ComputationProfile(layer_ms={
                    "body": {Shape(8, (512,)): 1.0, Shape(1, (4096,)): 2.0}, "end": {Shape(2, (512,)): 1.0},
                }),
                MeasuredMemory(tables={True: SimpleNamespace(layer={"body": {4096: 1, 512: 2}, "end": {8192: 1}})}),
            ),
            "forward of body, end layers with 1 to 8 samples of 512 to 4096 tokens; "
            "memory with 512 to 8192 tokens (hetu)",
        ),
    ],
    ids=["empty", "runs alone", "whole"],
)  # fmt: skip
def test_a_model_is_listed_with_the_ranges_of_its_profiles(model, sentence):
    assert pairs_of(models={"m": model}) == [("model", f"m: {sentence}")]


def test_a_law_has_its_span_and_its_largest_residual():
    def law(points):
        return MeasuredLaw.through(points, LINE, of="forward [x]", cause="samples", unit="ms", source="a.json")

    bent = law({1: 1.0, 2: 2.0, 4: 3.0})
    assert printed(laws_table([bent, law({8: 2.5})]), 80) == block(
        """
        law          through         points  largest residual
        forward [x]  1 to 4 samples       3             12.2%
        forward [x]  8 samples            1              0.0%
        """
    )


def test_costs_are_listed_by_layer_and_by_end_in_ms_and_mib():
    row = CostRow(0.001, 0.0025, 0.5, 12.34, 56.78, "moe", TP4, Layout(2, 1), 9.1)
    end = EndCost(0.002, 0.004, 0.0005, 1.26, 3.5)
    assert printed(costs_table([row]), 120) == block(
        """
        layer  strategy                 forward ms  backward ms  tail ms  states MiB  activation MiB  working MiB
        moe    tp4 dp2 zero2 recompute       1.000        2.500  500.000        12.3            56.8          9.1
        """
    )
    assert printed(costs_table([row]), 60) == block(
        """
                                        fo…  ba…  ta…  st…  ac…  wo…
        layer  strategy                  ms   ms   ms  MiB  MiB  MiB
        moe    tp4 dp2 zero2 recompute  1.…  2.…  50…  12…  56…  9.1
        """
    )
    ends = {"tp4 dp2 of a long name": EndCosts(end), "dp8": EndCosts(end, replace(end, forward_s=1.5))}
    assert printed(ends_table(ends), 120) == block(
        """
        ends   strategy                forward ms  backward ms  tail ms  states MiB  activation MiB
        both   tp4 dp2 of a long name       2.000        4.000    0.500         1.3             3.5
        first  dp8                          2.000        4.000    0.500         1.3             3.5
        last   dp8                       1500.000        4.000    0.500         1.3             3.5
        """
    )
    assert printed(ends_table(ends), 50) == block(
        """
                                       f…  b…  t…  s…  ac…
        ends   strategy                ms  ms  ms  M…  MiB
        both   tp4 dp2 of a long name  2…  4…  0…  1…  3.5
        first  dp8                     2…  4…  0…  1…  3.5
        last   dp8                     1…  4…  0…  1…  3.5
        """
    )


def test_a_plan_is_one_line_or_a_row_for_each_run_of_equal_layers():
    alike = replace(PLAN, layers=(DP8,) * 5)
    assert plan_text(alike) == "5 layers on 2 stages of 8 ranks, all dp8; batch 64 in 8 micro-batches"
    assert printed(layerwise_table(PLAN), 80) == block(
        """
        stage  layers  strategy
            0       2  dp8
            0       1  tp4 dp2 zero2 recompute
            1       2  tp4 dp2 zero2 recompute
         ends          tp4 dp2
        """
    )
    assert printed(layerwise_table(PLAN), 24) == block(
        """
         strategy
         dp8
         tp4 dp2 zero2 recompute
         tp4 dp2 zero2 recompute
         tp4 dp2
        """
    )


def test_a_tuners_job_and_its_arguments_are_listed():
    strategy = Strategy(2, 4, 1, mbs=2, micro_batches=16)
    arguments = TrainerArguments("llama", strategy, 0, None, None)
    assert tuner_pairs(arguments) == [
        ("model", "llama"), ("strategy", "dp2 tp4 pp1, 16 micro-batches of 2"), ("sharding", "none"),
        ("recompute", "none"), ("batch", "64 samples"),
    ]  # fmt: skip
    whole = tuner_pairs(replace(arguments, sharding_stage=2, recompute="full", tokens=4096))
    assert whole[2:] == [("sharding", "stage 2"), ("recompute", "full"), ("batch", "64 samples of 4096 tokens")]
    job = TunerJob("pretrain", 32, 4096, 32, 32000, 128, {"tp": (1, 2), "pp": ()}, None)
    assert tuner_pairs(job) == [
        ("job", "pretrain: 32 layers, hidden 4096, 32 heads, vocabulary 32000, batch 128"),
        ("tp", "1, 2"),
        ("pp", "the tuner's choice"),
    ]
    runs = [
        TunedRun(1, strategy, 0, "full [x]", 3.0, 40960.0, ""),
        TunedRun(12, strategy, 2, None, None, None, "out of [memory]"),
    ]
    assert replace(runs[0]).step_ms == pytest.approx(64 / 3.0 * 1e3)
    assert printed(tuned_table(runs), 100) == block(
        """
        run  strategy                            recompute   step ms  peak MiB  failed
          1  dp2 tp4 pp1, 16 micro-batches of 2  full [x]   21,333.3  40,960.0
         12  dp2 tp4 pp1, 16 micro-batches of 2  none                           out of [memory]
        """
    )


CHECK = LayerwiseCheck(
    0.51234567, (StageFigures(0.0101, 0.02, 0.001, 30000.4, 3), StageFigures(1.5, 3.0, 0.0, 41000.0, 2)), 40000.0, ()
)


def test_a_checked_plan_has_a_row_a_stage_and_its_step():
    assert printed(stage_table(CHECK), 80) == block(
        """
        stage  layers  forward ms  backward ms  tail ms  peak MiB  free MiB
            0       3      10.100       20.000    1.000    30,000    10,000
            1       2   1,500.000    3,000.000    0.000    41,000    -1,000
        """
    )
    assert check_pairs(CHECK, PLAN, None) == [
        ("step", "0.512346 s, 124.916 samples/s"),
        ("memory", "40,000 MiB of a rank may be used"),
    ]
    formulas = [check_pairs(CHECK, PLAN, factor * CHECK.step_s)[2:] for factor in (1.1, 0.95)]
    assert formulas == [
        [("Galvatron's formula", "0.56358 s, 10.00% above")], [("Galvatron's formula", "0.486728 s, 5.00% below")],
    ]  # fmt: skip


def test_refined_candidates_keep_a_line_each():
    rows = [("DP8 TP4 PP2 of a name that is long", "1,234.5", "1,200.1", "1,100.0", "+9.1 %", "0.01 %", "12 of 32")]
    assert printed(refined_table(rows), 100) == block(
        """
        candidate                          ranked …  own ms  layer-wise ms   gain     gap  layers that diff…
        DP8 TP4 PP2 of a name that is lo…   1,234.5  1,200…        1,100.0  +9.1…  0.01 %           12 of 32
        """
    )
    assert printed(refined_table(rows), 60) == block(
        """
        candidate                     ra…    layer-…     layers tha…
        DP8 TP4 PP2 of a name that …  1,…    1,100.0        12 of 32
        """
    )


def test_a_search_lists_its_first_outer_choices_counts_them_and_says_what_it_proves():
    solved = SimpleNamespace(plan=PLAN, step_s=0.75)
    tried = (
        Tried(OuterChoice(64, 8, 2, ENDS), 0.7, solved),
        Tried(OuterChoice(64, 8, 4, ENDS, interleaves=2, buffer_tp=4), 0.72345678, SimpleNamespace(plan=None), TP4),
        Tried(OuterChoice(128, 8, 4, ENDS), 2.0),
        *(Tried(OuterChoice(256, 8, stages, ENDS), float("inf")) for stages in range(1, 11)),
    )
    result = SearchResult(PLAN, 0.75, 100.0, tried, (), 1.0)
    assert printed(tried_table(replace(result, tried=tried[:4])), 105) == block(
        """
        b…  micro-bat…  st…  interle…  ends                                   boun…  ste…  outcome
        64           8    2         1  tp4 dp2                                  0.7  0.75  solved
        64           8    4         2  all tp4 dp2 zero2 recompute, buffer …  0.72…        cut off by its conten…
        1…           8    4         1  tp4 dp2                                    2        cut off by its relaxa…
        2…           8    1         1  tp4 dp2                                             nothing fits
        """
    )
    assert printed(tried_table(replace(result, tried=tried[:2])), 50) == block(
        """
         mi…  …  ends                           outcome
           8  1  tp4 dp2                        solved
           8  2  all tp4 dp2 zero2 recompute,…  cut off b…
        """
    )
    assert tried_table(result).row_count == MOST_TRIED == 12
    assert tried_text(result) == (
        "13 choices of batch, micro-batches, stages and ends: 1 solved, 1 cut off by its contents, "
        "1 cut off by its relaxation, 10 nothing fits"
    )
    assert proof_text(result) == f"no plan of the space has more than 100 samples/s, gap {result.gap:.3%}"
    assert proof_text(replace(result, most_samples_a_s=float("inf"))).startswith("nothing is proven yet")
