"""Galvatron's mode finds what Galvatron finds."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from taylor.layerwise.galvatron.dynamic_program import StageProgram
from taylor.layerwise.galvatron.tasks import hetu_tasks, paddle_tasks
from taylor.parsers.galvatron.strategy_file import read_strategy
from tests import layerwise_cases as cases


@cases.needs_data
def test_hetus_two_searches_come_out_to_the_layer(tmp_path):
    for case in cases.known_cases()["cases"]:
        search = cases.hetu_search(tmp_path, limit_gb=case["memory_GB"], one_for_all=not case["fine_grained_mode"])
        found = search.best(
            hetu_tasks(8, 28, cases.HETU_SPACE, (case["settle_bsz"],), micro_batches=case["settle_chunk"])
        )
        assert found.samples_a_s == pytest.approx(case["expected_throughput_in_test"], rel=1e-9)
        file = tmp_path / "galvatron_config.json"
        file.write_text(json.dumps(case["output_config"]))
        told = read_strategy(file).plan
        assert (found.plan.layers, found.plan.division) == (told.layers, told.division)
        # ZeRO of a single replica is nothing, whatever a file calls it.
        assert found.plan.ends.replace(zero=0) == told.ends.replace(zero=0)
        assert told.ends.replicas == 1 or found.plan.ends.zero == told.ends.zero


@cases.needs_data
def test_the_published_64_card_plan_of_the_port_to_paddle_comes_out_to_the_layer():
    found = cases.paddle_search().best(paddle_tasks(64, 72, cases.PADDLE_SPACE, (64,)))
    assert found.step_s == pytest.approx(104.02517975385634, rel=1e-9)
    assert found.plan == read_strategy(cases.DATA / "paddle_galvatron/configs/fine_grained_config.json").plan


@pytest.mark.parametrize("seed", range(5))
def test_the_program_of_a_stage_finds_the_cheapest_of_all_layer_lists(seed):
    rng = np.random.default_rng(seed)
    memory, layers, limit = rng.integers(1, 9, size=3), 4, 18
    inside, between = rng.random(3), rng.random((3, 3)) * (1 - np.eye(3))
    program = StageProgram(memory, inside, between, layers, limit, first=False)

    def cost(chosen):
        return sum(inside[s] for s in chosen) + sum(between[a, b] for a, b in itertools.pairwise(chosen))

    fitting = [each for each in itertools.product(range(3), repeat=layers) if sum(memory[s] for s in each) <= limit]
    found = program.choices(limit)
    assert (found is None) == (not fitting)
    if fitting:
        assert cost(found) == pytest.approx(min(map(cost, fitting)))
        assert sum(memory[s] for s in found) <= limit
