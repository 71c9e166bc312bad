"""MindSpeed's passes against the product's: tasks of a stage, pairs of layers, exchanges, recompute in the bubble.

What MindSpeed's own functions do is recorded in mindspeed_passes.yaml, which
`python -m benchmarks.mindspeed.own_passes` writes by running them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from taylor.cost_model.job.strategy import TrainingRules
from taylor.cost_model.time.expert_exchange import EXCHANGE_PROCESSORS, alone_exchange_ms, shown_exchange_ms
from taylor.pipeline.alive import alive_vectors
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.partners import partners
from taylor.pipeline.plan import FULL, NONE
from taylor.pipeline.schedule import BACKWARD, FORWARD, ScheduleSpec
from taylor.pipeline_solver.check.checker import exact_peak_memory
from taylor.pipeline_solver.model.problem import LayerKind, Pairing, PipelineProblem
from taylor.pipeline_solver.timing.evaluate import peak_memory_mib
from tests.solver_cases import plan_of

RECORD = yaml.safe_load(Path(__file__).with_name("mindspeed_passes.yaml").read_text(encoding="utf-8"))


def tasks_of(stages: int, micro_batches: int, *, detach: bool) -> list[str]:
    """The product's order in the letters of the record."""
    schedule = build_schedule(ScheduleSpec("dualpipev", whole_drain=not detach), stages, 2, micro_batches)
    beside, whole = partners(schedule), schedule.whole
    assert whole is not None
    found = []
    for s, tasks in enumerate(schedule.order[:, :, :2].tolist()):
        letters = []
        for t, (direction, chunk) in enumerate(tasks):
            of_the_one_before = t > 0 and (whole[s, t - 1] or beside[s, t - 1] >= 0)
            if direction == FORWARD:
                letters.append(("fF" if beside[s, t] < 0 else "xX")[chunk])
            elif direction == BACKWARD:
                letters.append("" if of_the_one_before else ("bB" if whole[s, t] else "dD")[chunk])
            else:
                letters.append("" if of_the_one_before else "wW"[chunk])
        found.append("".join(letters))
    return found


@pytest.mark.parametrize("name", ["dualpipev", "dw_detach"])
def test_dualpipev_s_tasks_are_those_of_the_stages(name: str) -> None:
    """Combined passes, whole backwards and separate weight gradients included."""
    for shape, tasks in RECORD[name].items():
        stages, micro_batches = map(int, shape.split())
        assert tasks_of(stages, micro_batches, detach=name == "dw_detach") == tasks, shape


def test_layers_of_a_combined_pass_pair_as_its_positions_do() -> None:
    for shape, letters in RECORD["pairs"].items():
        positions, own, other = map(int, shape.split())
        pairs = Pairing(positions).count(own, other)
        behind = positions - own
        assert letters == "a" * (own - pairs) + "p" * pairs + "a" * behind, shape
    assert not Pairing(4).keeps_first(backward=False) and not Pairing(4).keeps_first(backward=True)


def test_layers_pair_whatever_their_kinds_are_but_with_no_empty_position() -> None:
    for kinds, calls in RECORD["kinds"].items():
        assert ("overlaping" in calls) is ("-" not in kinds)


def overlapped(pair: str, way: str) -> list[bool]:
    """Whether a layer's dispatch and combine in one direction run beside any work."""
    return [bool(RECORD["exchanges"][pair][f"{way} {name}"]) for name in ("dispatch", "combine")]


@pytest.mark.parametrize(("pair", "ways"), [("mm", "fb"), ("ss", "fb"), ("md", "f"), ("dm", "b")])
def test_every_exchange_of_a_pair_runs_beside_work_of_the_other_layer(pair: str, ways: str) -> None:
    """That of a dense layer, too; exposed is then what it takes from the processors."""
    for way in ways:
        assert overlapped(pair, {"f": "forward", "b": "backward"}[way]) == [True, True]
    rules = TrainingRules(overlap_experts=True, overlap_inside=True)
    assert shown_exchange_ms(1.0, 100.0, rules) == pytest.approx(EXCHANGE_PROCESSORS)


@pytest.mark.parametrize(("letter", "shared"), [("m", 0.0), ("s", 100.0)])
def test_a_layer_that_runs_alone_overlaps_what_the_program_does_inside_it(letter: str, shared: float) -> None:
    """Half of the exchanges is the dispatch. In DualPipeV's fill weight gradients run behind their backward, and not
    beside its dispatch: at most S - 1 of the tasks of a stage, which count as the others do."""
    rules = TrainingRules(overlap_experts=True, overlap_inside=True)
    forward, backward = alone_exchange_ms(1.0, rules, shared, 100.0)
    assert forward == 1.0 - sum(overlapped(f"{letter} ", "forward")) / 2
    assert backward == 1.0 - sum(overlapped(f" {letter}", "backward")) / 2
    assert alone_exchange_ms(1.0, rules, 0.0, 0.0) == (1.0, 1.0)


@pytest.mark.parametrize("share", [0.0, 0.08, 0.5, 1.0])
def test_recompute_in_the_bubble_keeps_as_much_at_the_worst_moment(share: float) -> None:
    rng = np.random.default_rng(57)
    for shape, stages in RECORD["bubble"].items():
        S, V, m = map(int, shape.split())
        schedule = build_schedule(
            ScheduleSpec("megatron-interleaved", bubble_share=share if m >= 2 * S else None), S, V, m
        )
        for alive, row in zip(alive_vectors(schedule), stages, strict=True):
            moments = np.array([moment.split() for moment in row.split("; ")], dtype=float)
            for _ in range(20):
                kept = rng.integers(0, 9, V)
                most = ((moments[:, :V] + share * moments[:, V:]) @ kept).max()
                assert (alive @ kept).max() == pytest.approx(most), shape


def test_evaluation_and_checker_agree_on_uneven_chunks_that_run_again_in_the_bubble() -> None:
    kind = LayerKind("dense", 20, 1.0, 0.0, {NONE: 8.0, FULL: 1.0})
    spec = ScheduleSpec("megatron-interleaved", bubble_share=0.125)
    problem = PipelineProblem(4, 2, 16, (kind,), (0.0,) * 4, (1e6,) * 4, spec)
    plan = plan_of({"dense": [[4, 4, 3, 3], [1, 1, 2, 2]]})
    exact = [float(peak) for peak in exact_peak_memory(problem, plan)]
    assert peak_memory_mib(problem, plan) == pytest.approx(exact)
    # Of stage 0: 8 micro-batches in chunk 0, of which 3 keep their inputs alone, and 3 in chunk 1.
    assert exact[0] == 8 * (4 * (5 + 3 * 0.125) + 3)
