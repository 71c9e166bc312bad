"""An encoder of images on several of the first stages: evaluated as stated, and planned as well as on the first one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.choices.tower_costs import costs_behind, tower_costs
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.write_back import write_plan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.tower import EMBEDDING, VISION
from taylor.workflows.showing.card_memory import card_memory
from taylor.workflows.showing.verdict import summary
from taylor.workflows.solving import bounded
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.solving.why_memory import why_memory
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.spread_ways import least_step, spread_as, ways_of
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_model_file import DECODER, job
from tests.parsers.megatron.test_tower_file import vision

ESTIMATE = MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE)
PLACES = "pipeline_num_layers"


def stated(folder: Path, encoder: list[int], language: list[int], **changes: Any) -> FileJob:
    """Layers of Qwen2.5-VL-7B on four stages: some of its encoder in front of some of its language model."""
    data = {
        "image_encoder": vision(num_layers=sum(encoder), **{PLACES: encoder}, **changes),
        "text_decoder": {**DECODER, "num_layers": sum(language), PLACES: language},
    }
    return FileJob(job(folder, data), dryrun=False, check=False, device="ascend-910b", images="1x1024")


def evaluated(folder: Path, encoder: list[int], language: list[int], **changes: Any) -> Any:
    return evaluate_file(stated(folder, encoder, language, **changes), Outputs(folder=folder, write=False))


def test_a_stated_spread_is_evaluated_as_it_lies(tmp_path: Path) -> None:
    one = evaluated(tmp_path, [16, 16, 0, 0], [0, 4, 12, 12])
    assert one.plan.layers == {
        "dense": ((0, 4, 12, 12),), VISION: ((16, 0, 0, 0),), f"{VISION}#2": ((0, 16, 0, 0),),
        EMBEDDING: ((0, 1, 0, 0),),
    }  # fmt: skip
    assert check(one.problem, one.plan, one.solution.objective) == []
    first, second = (kind for kind in one.problem.kinds if kind.name.startswith(VISION))
    # The first stage's frozen layers have no backward and keep nothing; the gradient passes through the second's.
    assert (first.forward, first.added_backward, first.activation_mib["none"]) == (0.0, 0.0, 0.0)
    assert second.forward > 0 and second.activation_mib["none"] > 0 and second.layer_mib == first.layer_mib
    file = StatedFile.read(stated(tmp_path, [16, 16, 0, 0], [0, 4, 12, 12]))
    assert any("layers 16+16+0+0, the language model from chunk 1 on" in line for line in file.facts.head())
    # 1,024 patches of 1,280 where a usual transfer has 1,024 tokens of 3,584.
    lags = one.problem.lags
    assert lags[0] == pytest.approx(lags[1] * 1280 / 3584) and lags[1] == lags[2]
    apart = evaluated(tmp_path, [16, 16, 0, 0], [0, 0, 14, 14]).problem.lags
    assert apart[1] == pytest.approx(lags[1] / 4)  # 2 x 2 patches a token


def test_the_embedding_and_its_memory_lie_where_the_language_model_begins(tmp_path: Path) -> None:
    nested = evaluated(tmp_path, [4, 0, 0, 0], [4, 8, 8, 8])
    moved = [evaluated(tmp_path, encoder, [0, 10, 10, 8]) for encoder in ([4, 0, 0, 0], [2, 2, 0, 0])]
    table = nested.problem.static_mib[0] - nested.problem.static_mib[1]
    # 152,064 x 3,584 in bf16 with gradients, and optimizer states over two replicas, take some GiB.
    assert table > 2 * 152064 * 3584 / 2**20
    for one in moved:
        (embedding,) = (kind for kind in one.problem.kinds if kind.name == EMBEDDING)
        assert (embedding.places, embedding.layer_mib) == ((1,), pytest.approx(table))
        assert one.problem.embedding_forward == 0 and embedding.added_forward == nested.problem.embedding_forward
        assert one.problem.static_mib[0] == one.problem.static_mib[1] == nested.problem.static_mib[1]
        assert sum(one.problem.static_mib) + table == pytest.approx(sum(nested.problem.static_mib))


def test_layers_behind_the_first_chunk_have_the_inputs_gradients_where_they_are_frozen(tmp_path: Path) -> None:
    costs = {}
    for frozen in (True, False):
        file = StatedFile.read(stated(tmp_path, [4, 0, 0, 0], [4, 8, 8, 8], freeze=frozen))
        config = file.config
        assert config.tower is not None
        of = (config.tower, config.strategy, config.rules, file.device)
        costs[frozen] = tower_costs(*of), costs_behind(*of)
    (first, behind), (trained, same) = costs[True], costs[False]
    assert first.backward_ms == first.kept_mib == 0 < behind.backward_ms < trained.backward_ms
    assert 0 < behind.kept_mib < trained.kept_mib and trained == same
    assert first.forward_ms == behind.forward_ms and first.states_mib == behind.states_mib < trained.states_mib


def test_memory_by_stage_is_that_of_the_plan(tmp_path: Path) -> None:
    asks = stated(tmp_path, [2, 2, 0, 0], [0, 10, 10, 8], freeze=False)
    planned = evaluate_file(asks, Outputs(folder=tmp_path, write=False))
    reasons = why_memory(asks)
    peaks = [stage.peak_mib for stage in reasons.stages]
    assert peaks == pytest.approx(planned.solution.peak_memory_mib, rel=0.02)
    file = StatedFile.read(asks)
    cards = card_memory(planned.config, planned.plan, file.device)
    nested = evaluated(tmp_path, [4, 0, 0, 0], [4, 8, 8, 8], freeze=False)
    assert cards is not None and cards[0].allocated_mib < nested.solution.peak_memory_mib[0] / 2


@pytest.mark.parametrize("frozen", [True, False])
def test_the_best_way_is_that_of_all_solved_one_by_one_and_never_worse_than_the_first_stage(
    frozen: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "SECONDS", 1e3)  # proofs do not depend on the machine
    asks = stated(tmp_path, [4, 0, 0, 0], [1, 1, 1, 2], freeze=frozen)
    asks = FileJob(asks.path, dryrun=False, check=False, device="ascend-910b", images="1x2048", encoder="spread")
    out = Outputs(folder=tmp_path, write=False, result_json=tmp_path / "r.json")
    planned = solve_file(asks, SolveOptions(), out)
    found = planned.spread
    assert found is not None and found.proven and planned.solution.status == OPTIMAL
    assert found.step_ms <= found.nested_ms == planned.nested_ms
    file = StatedFile.read(asks)
    steps, unit = [found.nested_ms], planned.problem.unit_ms or 1.0
    for spread in ways_of(file):
        assert sum(spread.layers) == 4 and min(spread.layers) >= 1
        problem = spread_as(file, spread).problem(file.memory_like(ESTIMATE))
        solution = solve(problem)
        assert solution.plan is not None and solution.objective is not None
        assert least_step(problem, spread) <= solution.objective * (1 + 1e-9)
        assert check(problem, solution.plan, solution.objective) == []
        steps.append(solution.objective * unit)
    assert len(steps) == found.ways + 1 and found.step_ms == pytest.approx(min(steps), rel=1e-6)
    assert found.step_ms < found.nested_ms  # of this job the encoder is too much for one stage
    # The result is the spread plan's, and what it says to write is read again as the same plan.
    again = read_result(tmp_path / "r.json")
    assert again.solution.plan == planned.plan and again.problem == planned.problem
    lists = re.findall(r"pipeline_num_layers (\[[^\]]*\])", dict(summary(planned))["spread"])
    written = stated(tmp_path, *map(json.loads, lists), freeze=frozen)
    written = FileJob(written.path, dryrun=False, check=False, device="ascend-910b", images="1x2048")
    own = evaluate_file(written, Outputs(folder=tmp_path, write=False))
    assert own.problem.kinds == planned.problem.kinds
    assert {name: own.plan.layers[name] for name in planned.plan.layers} == planned.plan.layers
    # Written into the JSON of a job with its encoder on the first stage, it is that plan too.
    asks = stated(tmp_path, [4, 0, 0, 0], [1, 1, 1, 2], freeze=frozen)
    write_plan(planned.config, planned.plan)
    asks = FileJob(asks.path, dryrun=False, check=False, device="ascend-910b", images="1x2048")
    own = evaluate_file(asks, Outputs(folder=tmp_path, write=False))
    assert own.solution.objective == pytest.approx(planned.solution.objective)


def test_a_small_encoder_stays_on_the_first_stage(tmp_path: Path) -> None:
    asks = stated(tmp_path, [2, 0, 0, 0], [3, 4, 4, 2])
    asks = FileJob(asks.path, dryrun=False, check=False, device="ascend-910b", images="1x64", encoder="spread")
    planned = solve_file(asks, SolveOptions(), Outputs(folder=tmp_path, write=False))
    assert planned.spread is not None and planned.spread.spread is None
    assert "no faster on several stages" in dict(summary(planned))["spread"]
    assert planned.plan.layers[VISION] == ((2, 0, 0, 0),) and planned.spread.step_ms == planned.nested_ms


def test_where_a_spread_cannot_run_it_is_refused_by_its_reason(tmp_path: Path) -> None:
    out = Outputs(folder=tmp_path, write=False)
    other = stated(tmp_path, [4, 0, 0, 0], [4, 8, 8, 8], model_id="qwen3vit")
    with pytest.raises(InputError, match=r"--encoder: asks for an encoder on several stages: model_id qwen3vit"):
        solve_file(FileJob(other.path, dryrun=False, check=False, encoder="spread"), SolveOptions(), out)
    config = {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asks = FileJob(tmp_path / "config.json", device="h100-80g", images="1x64", encoder="spread")
    with pytest.raises(InputError, match="its launcher cannot state that"):
        solve_file(asks, SolveOptions(), out)
