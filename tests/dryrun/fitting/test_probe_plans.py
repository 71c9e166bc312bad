"""The plans of probes, laid out chunk by chunk as their description says."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from taylor.dryrun.fitting.probes import LARGEST, probe_cells
from taylor.pipeline.plan import FULL, NONE, SELECT
from tests.dryrun.fitting.test_probes import case

SEVEN = "pretrain_deepseek3_671b_1024p"
CASES = [
    ("pretrain_llama3_70b", {}),
    ("pretrain_llama3_70b", {"pp": 2}),
    (SEVEN, {"pp": 8}),
    (SEVEN, {"pp": 8, "vpp": 2}),
    ("pretrain_qwen3_30b_a3b", {"pp": 4}),
]


def laid_out(memory, plan):
    """What each chunk holds, by kind, in the order in which a micro-batch passes them."""
    schedule = memory.schedule_of(plan.stages)
    places = [schedule.chunk_at(place) for place in range(plan.stages * memory.interleaves)]
    return places, [{kind: grid[v][s] for kind, grid in plan.layers.items() if grid[v][s]} for v, s in places]


@pytest.mark.parametrize("modes", [(NONE, FULL), (NONE, SELECT, FULL)])
@pytest.mark.parametrize("name, strategy", CASES)
def test_one_chunk_holds_up_to_32_layers_and_every_other_one_layer(name, strategy, modes):
    memory, _ = case(name, modes, **strategy)
    mtp = memory.config.model.mtp_layers
    sizes, places, first, partly = Counter(), Counter(), Counter(), Counter()
    for cell in probe_cells(memory, 8 * memory.interleaves):
        plan = cell.plan
        order, chunks = laid_out(memory, plan)
        again = {mode: dict.fromkeys(order, 0) for mode in (FULL, SELECT)}
        for mode, grid in plan.recompute.items():
            again[mode] = {(v, s): grid[v][s] for v, s in order}
        large = [at for at, chunk in enumerate(order) if chunk[1] == cell.stage]
        bodies = [{kind: count for kind, count in chunk.items() if kind != "mtp"} for chunk in chunks]
        totals = [sum(chunk.values()) for chunk in bodies]
        # The last chunk holds the MTP layers; where these count as layers, it needs no other one.
        spare = bool(mtp and memory.config.mtp_counted)
        assert all(chunk.get("mtp", 0) == (mtp if at == len(order) - 1 else 0) for at, chunk in enumerate(chunks))
        others = [at for at, total in enumerate(totals) if total != (0 if spare and at == len(order) - 1 else 1)]
        assert len(others) <= 1 and set(others) <= set(large)
        most = max(totals[at] for at in large)
        assert 1 <= most <= LARGEST
        sizes[most] += 1
        places[plan.stages, cell.stage] += 1
        kinds = [kind for chunk in bodies for kind in ("dense", "moe") for _ in range(chunk.get(kind, 0))]
        assert set(kinds) <= set(memory.kinds) and kinds == sorted(kinds)
        if others:
            here = order[others[0]]
            held = {mode: again[mode][here] for mode in again}
            assert sum(held.values()) <= totals[others[0]]
            first[tuple(mode for mode in (FULL, SELECT) if held[mode])] += 1
            partly[sum(held.values()) < totals[others[0]]] += 1
        recomputing = {chunk for mode in again for chunk, count in again[mode].items() if count}
        assert len(recomputing) <= 1 and all(stage == cell.stage for _, stage in recomputing)
        assert FULL in plan.recompute
        assert (SELECT in plan.recompute) == any(again[SELECT].values())
    assert set(partly) == {True, False} and max(sizes) > 24 and min(sizes) == 1
    combinations = {(), (FULL,)} | ({(SELECT,), (FULL, SELECT)} if SELECT in modes else set())
    assert set(first) == combinations
    ends_only = memory.stages == 2
    expected = {}
    for stages in (2, 3, 4, 6, 8):
        for stage in (0, stages - 1) if ends_only or stages == 2 else (0, 1, stages - 1):
            expected[stages, stage] = 25
    assert places == expected


def test_a_body_of_unlike_layers_has_no_probes():
    model = SimpleNamespace(pattern="40 attn+dense")
    assert list(probe_cells(SimpleNamespace(stages=4, config=SimpleNamespace(model=model)), 8)) == []


def test_other_seeds_give_other_probes_and_one_seed_the_same():
    memory, _ = case(SEVEN)
    drawn = [[(cell.plan, cell.stage) for cell in probe_cells(memory, 4, seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] == [(cell.plan, cell.stage) for cell in probe_cells(memory, 4)]
