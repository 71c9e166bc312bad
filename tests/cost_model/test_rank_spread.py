"""The wait for the slowest rank, checked against drawn ranks and a simulated pipeline."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from benchmarks.rank_spread import spread
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.rank_spread import OPERATION, RANK, STEP, slowest_of, wait_share
from taylor.register.registry import Registry

DENSE = Registry.load().model("llama3-8b")
MOE = Registry.load().model("qwen3-30b-a3b")
RULES = TrainingRules()


@pytest.mark.parametrize("ranks", [1, 2, 8, 64, 1024])
def test_the_slowest_of_n_is_the_mean_maximum_of_n_drawn_ones(ranks: int) -> None:
    drawn = np.random.default_rng(0).standard_normal((4000, ranks)).max(axis=1).mean()
    assert float(slowest_of(ranks)) == pytest.approx(drawn, abs=0.04)


def _simulated_1f1b(stages: int, micro_batches: int, deviation: float, samples: int) -> float:
    """Mean extra time of a 1F1B pipeline whose operations vary, a fraction of a stage's work."""
    draw = np.random.default_rng(1)
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches - ahead):
            order += [("F", ahead + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(micro_batches - ahead, micro_batches)])
    clock, at = [np.zeros(samples) for _ in range(stages)], [0] * stages
    done: dict[tuple[str, int, int], np.ndarray] = {}
    while any(at[s] < len(orders[s]) for s in range(stages)):
        for s in range(stages):
            while at[s] < len(orders[s]):
                name, i = orders[s][at[s]]
                before = (name, s - 1, i) if name == "F" else (name, s + 1, i)
                if 0 <= before[1] < stages:
                    if before not in done:
                        break
                    clock[s] = np.maximum(clock[s], done[before])
                work = 1.0 if name == "F" else 2.0
                clock[s] = clock[s] + work * (1 + deviation * draw.standard_normal(samples))
                done[name, s, i] = clock[s]
                at[s] += 1
    even = 3.0 * (micro_batches + stages - 1)
    return float((np.max(clock, axis=0).mean() - even) / (3 * micro_batches))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_a_plain_pipeline_waits_for_its_neighbours_as_a_simulated_one(stages: int) -> None:
    alone = Strategy(dp=1, tp=1, pp=stages, micro_batches=64)
    spread_of_ranks = float(np.hypot(STEP, RANK) * slowest_of(stages))
    waited = float(wait_share(DENSE, alone, RULES)) - spread_of_ranks
    assert waited == pytest.approx(_simulated_1f1b(stages, 64, OPERATION, 40), rel=0.2)


def test_one_rank_waits_for_nobody() -> None:
    assert float(wait_share(DENSE, Strategy(dp=1, tp=1, pp=1), RULES)) == 0


def test_the_wait_grows_with_the_ranks_and_ever_more_slowly() -> None:
    shares = [float(wait_share(DENSE, Strategy(dp=dp, tp=8, pp=8, vpp=2), RULES)) for dp in (1, 8, 64, 512)]
    grown = np.diff(shares)
    assert (grown > 0).all()
    assert (np.diff(grown) < 0).all()


def test_ranks_that_meet_in_every_operation_wait_longer_than_those_that_meet_once_a_step() -> None:
    once = Strategy(dp=16, tp=1, pp=1, op=16)
    meeting = once.replace(ep=8), RULES, MOE
    assert float(wait_share(meeting[2], meeting[0], meeting[1])) > float(wait_share(MOE, once, RULES))
    sharded = RULES.replace(parameter_shard=True)
    assert float(wait_share(DENSE, once, sharded)) > float(wait_share(DENSE, once, RULES))


def test_the_spread_of_drawn_operations_is_found_again() -> None:
    draw = np.random.default_rng(2)
    lines = []
    usual = {(s, d): 1 + 0.01 * draw.standard_normal() for s in range(4) for d in range(16)}
    for step in range(30):
        for (s, d), rank in usual.items():
            of_step = 1 + 0.005 * draw.standard_normal()
            for _ in range(20):
                time = rank * of_step * (1 + 0.02 * draw.standard_normal())
                lines.append((step, s, d, 0, "forward-compute", 100 * time))
    found = spread(pd.DataFrame(lines, columns=["step", "stage", "dp", "chunk", "name", "duration"]))
    assert found.operation == pytest.approx(0.02, rel=0.05)
    assert found.step == pytest.approx(0.005, rel=0.15)
    assert found.rank == pytest.approx(0.01, rel=0.3)
