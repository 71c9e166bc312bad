"""Strategy files of Hetu and Paddle say the same plan, and come back as they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy, LayerwisePlan
from taylor.parsers.galvatron.strategy_file import read_strategy, strategy_text, write_strategy
from tests import galvatron_cases as cases
from tests.conftest import SHARED

DATA = SHARED / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")


@pytest.fixture
def written(tmp_path):
    def write(data, name="galvatron_config_toy.json"):
        path = tmp_path / name
        path.write_text(json.dumps(data))
        return path

    return write


@st.composite
def plans(draw):
    """Any plan that Paddle's file can say."""
    stages = draw(st.sampled_from([1, 2, 4]))
    ranks = draw(st.sampled_from([1, 2, 4, 8]))
    degrees = [ways for ways in (1, 2, 4, 8) if ways <= ranks]

    def choice(kind):
        ways = draw(st.sampled_from(degrees))
        ulysses = draw(st.booleans())
        zero = draw(st.sampled_from([2, 3] if kind is EndStrategy else [0, 2, 3]))
        return kind(tp=1 if ulysses else ways, sp=ways if ulysses else 1, dp=ranks // ways, zero=zero)

    division = tuple(draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages)))
    layers = tuple(choice(LayerStrategy).replace(recompute=draw(st.booleans())) for _ in range(sum(division)))
    return LayerwisePlan(
        division, layers, choice(EndStrategy), ranks * draw(st.integers(1, 4)), draw(st.integers(1, 9))
    )


@given(plans())
def test_every_plan_comes_back_from_paddles_file(tmp_path_factory, plan):
    path = tmp_path_factory.mktemp("plan") / "fine_grained_config.json"
    write_strategy(plan, "paddle", path)
    assert read_strategy(path).plan == plan


@given(plans())
def test_every_plan_with_one_default_comes_back_from_hetus_file(tmp_path_factory, plan):
    layers = tuple(each.replace(zero=each.zero or 2) for each in plan.layers)
    plan = LayerwisePlan(plan.division, layers, plan.ends, plan.global_batch, plan.micro_batches)
    path = tmp_path_factory.mktemp("plan") / "galvatron_config.json"
    write_strategy(plan, "hetu", path)
    assert read_strategy(path).plan == plan


def test_the_written_file_says_the_ends_in_both_words(written):
    plan = read_strategy(written(cases.STRATEGY)).plan
    told = json.loads(strategy_text(plan, "hetu"))
    assert told == cases.STRATEGY
    assert told["vocab_sdp"] == told["embed_sdp"] == 1


def test_a_plan_that_hetu_cannot_say_names_the_file_that_can(written):
    plan = read_strategy(written(cases.STRATEGY)).plan
    mixed = LayerwisePlan(plan.division, (plan.layers[0].replace(zero=0), *plan.layers[1:]), plan.ends, 32, 4)
    with pytest.raises(InputError, match="write Paddle's file"):
        strategy_text(mixed, "hetu")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tp_sizes_enc", "2,2,1,1,4", "other lists 5"),
        ("tp_sizes_enc", "2,2,1,1,4,3", "does not divide the 4 ranks"),
        ("tp_sizes_enc", "2;2", "commas"),
        ("dp_types_enc", "1,1,0,0,0,2", "write 0 to 1"),
        ("pp_division", "2,3", "of 6 layers"),
        ("pp_division", "0,6", "at least one"),
        ("pp_deg", 3, "no multiple of 3 stages"),
        ("pipeline_type", "dualpipe", "gpipe or pipedream_flush"),
        ("default_dp_type", "zero1", "ddp or zero2"),
        ("vocab_sdp", 0, "contradicts embed_sdp 1"),
        ("global_bsz", 30, "must be a multiple of 4"),
        ("chunks", "many", "whole number"),
        ("world_size", None, "is missing, and the data parallel degree"),
    ],
)
def test_a_wrong_entry_is_named(written, key, value, words):
    with pytest.raises(InputError) as raised:
        read_strategy(written(cases.STRATEGY | {key: value}))
    assert words in str(raised.value)
    assert "galvatron_config_toy.json" in str(raised.value)


def test_an_older_file_takes_its_ranks_from_its_name(written):
    data = {key: value for key, value in cases.STRATEGY.items() if key != "world_size"}
    found = read_strategy(written(data, "galvatron_config_toy_1nodes_8gpus_per_node_36GB.json"))
    assert found.plan.world == 8
    assert any("as the file's name says" in note for note in found.notes)


@needs_data
@pytest.mark.parametrize("name", ["galvatron_profiles/galvatron_config_llama2-7b_1nodes_8gpus_per_node_36GB_bf16.json",
                                  "paddle_galvatron/configs/fine_grained_config.json"])  # fmt: skip
def test_published_strategies_come_back_as_they_were(name):
    path = DATA / name
    found = read_strategy(path)
    told = json.loads(strategy_text(found.plan, found.form))
    assert {key: told[key] for key in json.loads(path.read_text())} == json.loads(path.read_text())


@needs_data
def test_strategies_that_hetus_search_found_come_back_as_they_were(written):
    for case in json.loads((DATA / "galvatron_tests/hetu_cases.json").read_text())["cases"]:
        own = case["output_config"]
        told = json.loads(strategy_text(read_strategy(written(own)).plan, "hetu"))
        assert {key: told[key] for key in own} == own
