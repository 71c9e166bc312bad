"""The search as a whole: counts that add up, rules by name, reasons when nothing is left, the choice."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taylor.base.errors import InfeasibleError, InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.nd_search.choose import choose
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.rule import EXPERIENCE, LEGALITY
from taylor.nd_search.rules import built_in_rules, judge, list_rules, select_rules
from taylor.nd_search.search import explain, search
from taylor.nd_search.space import StrategySpace, build_space, with_ruled_splits
from taylor.nd_search.steps import SolvedStep
from taylor.nd_search.user_rules import load_user_rules
from taylor.parsers.training_config import Misfit
from tests.nd_search_cases import DEVICE, LLAMA2_7B, job

EVERYTHING = ("dp", "tp", "pp", "ep", "cp", "op", "vpp", "mbs")


def test_the_demo_job_leaves_enough_candidates_that_all_fit() -> None:
    result = search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024))
    assert len(result.chosen) == 20
    assert (result.peak_mib <= 55296).all()
    assert (result.candidates.world_size == 1024).all()
    assert (result.candidates.global_batch == 1024).all()
    alone = result.candidates.select(slice(0, 1))
    peak, stage = best_case_peak_mib(job().model, job().rules, alone)
    assert result.peak_mib[0] == pytest.approx(peak[0], abs=0.02)
    assert result.heaviest_stage[0] == stage[0]


def test_what_is_built_is_either_removed_once_or_a_candidate() -> None:
    result = search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024, search=EVERYTHING))
    assert result.counts["built"] == sum(record.count for record in result.pruned) + len(result.candidates)
    assert result.counts["legal"] >= result.counts["sensible"] >= result.counts["fitting"] == len(result.candidates)
    assert len(set(result.candidates)) == len(result.candidates)
    assert all((record.example is None) == (record.count == 0) for record in result.pruned)


def test_the_chosen_come_first_and_each_part_is_ordered_by_time() -> None:
    result = search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024, profile_num=7))
    assert list(result.chosen) == list(range(7))
    assert (np.diff(result.estimated_ms[:7]) >= 0).all()
    assert (np.diff(result.estimated_ms[7:]) >= 0).all()
    assert result.estimated_ms[0] == result.estimated_ms.min()


def test_a_disabled_rule_gives_back_what_it_removed_and_only_that() -> None:
    options = SearchOptions(world_size=1024, gbs=1024)
    before = set(search(job(), DEVICE, options).candidates)
    disabled = SearchOptions(world_size=1024, gbs=1024, disabled_rules=("tp-within-node",))
    after = set(search(job(), DEVICE, disabled).candidates)
    assert before < after
    assert {s.tp for s in after - before} <= {16, 32, 64, 128}


def test_disabling_a_rule_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="tp-within-nodes.*tp-within-node"):
        search(job(), DEVICE, SearchOptions(disabled_rules=("tp-within-nodes",)))


def test_every_rule_has_its_own_name_a_line_of_explanation_and_a_way_out() -> None:
    rules = built_in_rules()
    assert len({rule.name for rule in rules}) == len(rules)
    assert all(rule.explanation and "\n" not in rule.explanation and rule.relax for rule in rules)
    assert {rule.kind for rule in rules} == {LEGALITY, EXPERIENCE}
    assert len(list_rules().splitlines()) == len(rules)


def test_a_batch_that_suits_no_strategy_is_refused_with_one_near_it_that_does() -> None:
    with pytest.raises(InputError, match="--gbs.*found 7") as refused:
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=7))
    named = re.search(r"(\d+) works", str(refused.value))
    assert named is not None
    assert len(search(job(), DEVICE, SearchOptions(world_size=1024, gbs=int(named[1]))).candidates) >= 1


def test_the_named_batch_is_the_nearest_one_that_works() -> None:
    options = {"world_size": 48, "fix": {"tp": 1}, "bounds": {"pp": (2, 4)}}
    own = Strategy(8, 1, 4, micro_batches=4)
    config = job(LLAMA2_7B, own)

    def works(gbs: int) -> bool:
        try:
            search(config, DEVICE, SearchOptions(gbs=gbs, **options))
        except (InputError, InfeasibleError):
            return False
        return True

    asked = 101
    assert not works(asked)
    with pytest.raises(InputError) as refused:
        search(config, DEVICE, SearchOptions(gbs=asked, **options))
    named = int(re.search(r"(\d+) works", str(refused.value))[1])
    away = abs(named - asked)
    assert works(named) and not any(works(gbs) for gbs in range(asked - away + 1, asked + away))


def test_a_space_that_one_rule_empties_names_the_rule_and_what_to_relax() -> None:
    with pytest.raises(InputError, match="the rule experts-by-ep .ep divides the experts.*search other ep"):
        search(job(), DEVICE, SearchOptions(world_size=1536, gbs=1536, fix={"ep": 3}))


def test_a_space_that_an_experience_rule_empties_says_so() -> None:
    with pytest.raises(InputError, match="the rule tp-within-node"):
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024, fix={"tp": 16}))


def test_rules_that_empty_a_space_together_are_named_together() -> None:
    with pytest.raises(InputError, match="the rules.*max-expert-parallel.*tp-within-node.*for tp-w"):
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024, fix={"tp": 16, "ep": 128, "pp": 2}))


def test_pins_that_do_not_multiply_to_the_world_are_refused() -> None:
    with pytest.raises(InputError, match="--world_size.*1024"):
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024, fix={"tp": 3}))


@pytest.mark.parametrize("block", [1, 2, 1 << 17])
def test_an_emptied_space_says_how_many_were_near_and_which_rule_most_of_them_break(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many strategies a block of the space holds."""
    # 16 ranks: of dp 1, 2, 4, 8, 16 (tp 1, pp the rest) three experts are split by ep 3 in none.
    options = SearchOptions(world_size=16, gbs=48, fix={"ep": 3, "tp": 1}, search=("dp", "pp"))
    monkeypatch.setattr(StrategySpace.blocks, "__defaults__", (block,))
    with pytest.raises(InputError) as refused:
        search(job(), DEVICE, options)
    monkeypatch.undo()
    context = SearchContext.settle(job(), DEVICE, options)
    rules = select_rules(context, options.rules_left_out)
    [table] = list(build_space(context, options).blocks())
    broken = [tuple(rule.name for rule in rules if not judge(rule, table, context)[k]) for k in range(len(table))]
    fewest = min(map(len, broken))
    most = Counter(names for names in broken if len(names) == fewest).most_common(1)[0]
    told = str(refused.value)
    assert f"no strategy of {len(table)} for 16 ranks obeys all rules: {most[1]} obey all but" in told
    assert all(f"{name} (" in told for name in most[0])


@pytest.mark.parametrize("more", [0.0, 1.0])
def test_a_peak_of_exactly_the_limit_fits(more: float) -> None:
    config, options = job(LLAMA2_7B, Strategy(8, 1, 1, op=8)), SearchOptions(world_size=8, gbs=64)
    best = search(config, DEVICE, options)
    peak, row = float(best.peak_mib.min()), best.candidates.row(int(best.peak_mib.argmin()))
    options = replace(options, device_limit_mib=peak - more)
    assert any(("fits" in line) == (not more) for line in explain(config, DEVICE, options, row) if "memory:" in line)
    if more:
        with pytest.raises(InfeasibleError):
            search(config, DEVICE, options)
    else:
        assert list(search(config, DEVICE, options).candidates) == [row]


def test_memory_that_suits_no_strategy_is_proven_infeasible_with_the_least_that_would_do() -> None:
    options = {"world_size": 64, "gbs": 64}
    with pytest.raises(InfeasibleError) as refused:
        search(job(), DEVICE, SearchOptions(**options))
    needed = float(re.search(r"needs (\d+) MiB", str(refused.value))[1])
    enough = search(job(), DEVICE, SearchOptions(**options, device_limit_mib=needed + 1))
    assert len(enough.candidates) >= 1
    with pytest.raises(InfeasibleError):
        search(job(), DEVICE, SearchOptions(**options, device_limit_mib=needed - 1))


def test_the_files_own_limit_goes_before_the_devices() -> None:
    assert search(job(), DEVICE, SearchOptions()).device_limit_mib == 55296
    assert search(job(device_limit_mib=50000.0), DEVICE, SearchOptions()).device_limit_mib == 50000
    assert search(job(device_limit_mib=None), DEVICE, SearchOptions()).device_limit_mib == DEVICE.usable_memory_mib


def test_another_source_of_peaks_decides_what_fits() -> None:
    def heavy_below_tp_8(model, rules, table, recompute="best", device_limit_mib=None, schedule=None):
        return np.where(table.tp < 8, 1e6, 100.0), np.zeros(len(table), dtype=np.int64)

    result = search(
        job(),
        DEVICE,
        SearchOptions(world_size=1024, gbs=1024),
        peak_of=heavy_below_tp_8,
        sources_of=lambda table, recompute: tuple(f"{recompute} of TP{tp}" for tp in table.tp),
    )
    assert set(result.candidates.tp) == {8} and (result.peak_mib == 100).all()
    assert result.memory_source == ("best of TP8",) * len(result.candidates)


def test_without_recompute_fewer_strategies_fit() -> None:
    best = set(search(job(), DEVICE, SearchOptions(gbs=1024)).candidates)
    none = set(search(job(), DEVICE, SearchOptions(gbs=1024, recompute="none")).candidates)
    assert none < best


@pytest.mark.parametrize("own_sp", [True, False])
def test_a_candidate_named_by_its_mesh_is_completed_to_the_strategy_that_was_searched(own_sp) -> None:
    options, config = SearchOptions(world_size=1024, gbs=1024), job()
    config = config.replace(strategy=config.strategy.replace(sp=own_sp))
    context = SearchContext.settle(config, DEVICE, options)
    for found in list(search(config, DEVICE, options).candidates)[:20]:
        named = config.strategy.replace(
            dp=found.dp, tp=found.tp, pp=found.pp, ep=found.ep, micro_batches=found.micro_batches
        )
        assert with_ruled_splits(named, context, options) == found


def test_the_explanation_names_every_broken_rule_and_the_memory() -> None:
    options = SearchOptions(world_size=1024, gbs=1024)
    strategy = Strategy(8, 16, 8, 128, op=8, micro_batches=128)
    told = "\n".join(explain(job(), DEVICE, options, strategy))
    assert "breaks 2 of" in told
    assert "rule max-expert-parallel (legality)" in told and "rule tp-within-node (experience)" in told
    assert "MiB on stage" in told


def test_the_explanation_of_a_candidate_has_its_peak_and_breaks_nothing() -> None:
    options = SearchOptions(world_size=1024, gbs=1024)
    result = search(job(), DEVICE, options)
    told = "\n".join(explain(job(), DEVICE, options, result.candidates.row(3)))
    assert "breaks 0 of" in told and f"{result.peak_mib[3]:.0f} MiB" in told and "fits" in told
    assert "outside the search" not in told


def test_the_explanation_says_what_memory_removed_and_what_was_not_searched() -> None:
    options = SearchOptions(world_size=1024, gbs=1024)
    heavy = Strategy(128, 4, 2, 64, op=128, micro_batches=8)
    assert "is too much for 55296 MiB" in "\n".join(explain(job(), DEVICE, options, heavy))
    with_cp = Strategy(8, 4, 16, 8, cp=2, op=16, micro_batches=128)
    assert "outside the search" in "\n".join(explain(job(), DEVICE, options, with_cp))


def test_memory_is_told_of_a_strategy_that_has_one_micro_batch_and_not_of_one_without() -> None:
    options = SearchOptions(world_size=1024, gbs=1024)
    for micro_batches, told in ((1, True), (2, True), (0, False)):
        strategy = Strategy(64, 16, 1, 8, op=64, micro_batches=micro_batches)
        lines = explain(job(), DEVICE, options, strategy)
        assert any(line.startswith("memory: ") for line in lines) == told
    elsewhere = Strategy(32, 16, 1, 8, op=32, micro_batches=1)
    assert not any(line.startswith("memory: ") for line in explain(job(), DEVICE, options, elsewhere))


def test_bounds_may_meet_and_not_cross() -> None:
    assert SearchOptions(bounds={"tp": (4, 4)}).bounds["tp"] == (4, 4)
    with pytest.raises(InputError, match="lower bound above the upper"):
        SearchOptions(bounds={"tp": (4, 3)})


USER_RULES = """
from taylor.nd_search.rules import Rule

RULES = [
    Rule("even-pp", "pp is even", lambda table, context: table.pp % 2 == 0),
    Rule("tp-within-node", "tp is at most 4", lambda table, context: table.tp <= 4),
]
"""


def test_a_users_rules_are_asked_and_replace_those_of_their_name(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "mine.py").write_text(USER_RULES)
    result = search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024), tmp_path)
    assert result.candidates.tp.max() == 4
    assert (result.candidates.pp % 2 == 0).all()
    assert "even-pp" in [record.rule for record in result.pruned]
    assert "even-pp" in list_rules(load_user_rules(tmp_path))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise RuntimeError('no')", "does not load: RuntimeError: no"),
        ("RULES = 3", "RULES: must be a list"),
        ("def (", "does not load: SyntaxError"),
        ("from nd_search.rules import Rule\nRULES = [Rule('a', 'b', lambda t, c: t.absent)]", "rule a: fails"),
        ("from nd_search.rules import Rule\nRULES = [Rule('a', 'b', lambda t, c: 1)]", "rule a: must give a boolean"),
    ],
)
def test_a_users_bad_rule_file_is_named_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    with pytest.raises(InputError, match=reason):
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024), tmp_path)


def test_a_python_file_without_rules_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("answer = 42\n")
    assert load_user_rules(tmp_path) == ()


@pytest.mark.parametrize(
    "wrong",
    [
        {"search": ("dp", "xp")},
        {"fix": {"sp": 2}},
        {"fix": {"tp": 0}},
        {"bounds": {"tp": (4, 2)}},
        {"recompute": "some"},
        {"gbs": 0},
        {"world_size": -1},
        {"fix": {"rank": 3}},
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        SearchOptions(**wrong)


def candidates_of(rows: list[tuple[int, int, int]]) -> StrategyTable:
    return StrategyTable.from_strategies([Strategy(dp, tp, 4, dp * tp, mbs=mbs) for dp, tp, mbs in rows])


def test_the_choice_spreads_over_degrees_when_the_times_are_close() -> None:
    rows = [Strategy(2**i, 8, 4, 8) for i in range(10)] + [Strategy(2**i, 2, 8, 16) for i in range(10)]
    times = np.array([100.0 + i for i in range(10)] + [112.0 + i for i in range(10)])
    chosen = choose(StrategyTable.from_strategies(rows), times, 10)
    assert {rows[i].tp for i in chosen} == {2, 8}


def test_a_kind_that_is_far_slower_is_not_chosen_for_variety() -> None:
    rows = [Strategy(2**i, 8, 4, 8) for i in range(10)] + [Strategy(2**i, 2, 8, 16) for i in range(10)]
    times = np.array([100.0 + i for i in range(10)] + [300.0 + i for i in range(10)])
    assert {rows[i].tp for i in choose(StrategyTable.from_strategies(rows), times, 10)} == {8}


def test_twins_of_a_mesh_wait_for_the_other_meshes() -> None:
    rows = [Strategy(8, 8, 4, 8, mbs=mbs) for mbs in (1, 2, 4, 8)] + [Strategy(4, 8, 8, 8), Strategy(16, 8, 2, 8)]
    times = np.array([100.0, 101.0, 102.0, 103.0, 120.0, 125.0])
    assert sorted(choose(StrategyTable.from_strategies(rows), times, 3)) == [0, 4, 5]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])),
        min_size=1,
        max_size=40,
        unique=True,
    ),
    number=st.integers(1, 30),
    data=st.data(),
)
def test_the_choice_is_of_the_asked_size_holds_the_quickest_and_is_ordered(rows, number, data) -> None:
    times = np.array(data.draw(st.lists(st.floats(1, 1000), min_size=len(rows), max_size=len(rows))))
    chosen = choose(candidates_of(rows), times, number)
    assert len(set(chosen.tolist())) == len(chosen) == min(number, len(rows))
    assert times[chosen[0]] == times.min()
    assert (np.diff(times[chosen]) >= 0).all()


def solved_at(times: dict[str, float], asked: list[str]) -> object:
    """A quick solve by a table of step times: a strategy that is missing has no plan."""

    def solve(strategies: list[Strategy], limit_mib: float) -> list[SolvedStep]:
        asked.extend(strategy.name for strategy in strategies)
        return [
            SolvedStep(times[one.name]) if one.name in times else SolvedStep(None, "no plan fits the memory: short")
            for one in strategies
        ]

    return solve


def test_every_chosen_strategy_is_solved_and_the_next_take_the_place_of_those_without_a_plan() -> None:
    options = SearchOptions(world_size=1024, gbs=1024, profile_num=5)
    before = search(job(), DEVICE, options)
    names = [strategy.name for strategy in before.candidates]
    times = {name: float(ms) for name, ms in zip(names, before.estimated_ms, strict=True)}
    gone = [names[0], names[2]]
    asked: list[str] = []
    after = search(
        job(), DEVICE, options, quick_solve=solved_at({k: 1.5 * v for k, v in times.items() if k not in gone}, asked)
    )
    assert after.solved[after.chosen].all() and len(after.chosen) == 5
    assert not set(gone) & {strategy.name for strategy in after.candidates}
    assert len(asked) == len(set(asked)) and set(gone) <= set(asked)
    record = after.pruned[-1]
    assert (record.rule, record.count) == ("plan", 2) and "short" in record.explanation
    assert after.counts["built"] == sum(each.count for each in after.pruned) + len(after.candidates)
    for index in after.chosen:
        assert after.estimated_ms[index] == 1.5 * times[after.candidates.row(int(index)).name]


def test_the_chosen_are_the_quickest_by_their_solves_whatever_the_formula_said() -> None:
    options = SearchOptions(world_size=1024, gbs=1024, profile_num=3, spread=False)
    before = search(job(), DEVICE, options)
    rng = np.random.default_rng(11)
    times = {
        one.name: float(ms * rng.uniform(1, 2.2))
        for one, ms in zip(before.candidates, before.estimated_ms, strict=True)
    }
    after = search(job(), DEVICE, options, quick_solve=solved_at(times, []))
    chosen = [after.candidates.row(int(index)).name for index in after.chosen]
    assert chosen == sorted(times, key=times.__getitem__)[:3]


def test_a_search_in_which_no_strategy_has_a_plan_says_what_the_quickest_lacks() -> None:
    with pytest.raises(InfeasibleError, match="none of the .* strategies .* has a plan; the quickest, .* short"):
        search(job(), DEVICE, SearchOptions(world_size=1024, gbs=1024), quick_solve=solved_at({}, []))


def test_the_explanation_names_what_keeps_the_file_s_job_from_starting_unless_its_rule_is_disabled() -> None:
    ever = Misfit("fp16", True, "is on beside bf16", "leave one out", "one-half-type", any_strategy=True)
    here = Misfit("--moe", 3, "is odd", "write 2", "even-experts")
    config = job().replace(misfits=(ever, here))
    strategy = Strategy(8, 16, 8, 128, op=8, micro_batches=128)
    lines = explain(config, DEVICE, SearchOptions(world_size=1024, gbs=1024), strategy)
    assert lines[:2] == [
        "the file's job does not start under any strategy (rule one-half-type): fp16 is on beside bf16; leave one out",
        "the file's job does not start as it is written (rule even-experts): --moe is odd; write 2",
    ]
    waived = SearchOptions(world_size=1024, gbs=1024, disabled_rules=("one-half-type", "even-experts"))
    assert explain(config, DEVICE, waived, strategy) == lines[2:]
