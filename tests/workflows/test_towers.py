"""Planning with an encoder of images: what a user states, sees, and how a published layout compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from taylor.base.budget import TimeBudget
from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.read import read_config
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.tower import VISION
from taylor.workflows.showing.card_memory import card_memory
from taylor.workflows.showing.verdict import summary
from taylor.workflows.solving import solve_file as solving
from taylor.workflows.solving.beside import best_beside
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.solving.why_memory import why_memory
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.own_ranks import beside_problem, splits_of
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.towers import costs_of
from tests.parsers.megatron.test_model_file import DECODER, job
from tests.parsers.megatron.test_tower_file import PIXELS, QWEN25, vision

GIVEN = {
    "device_limit": 55296,
    "static": {"first": 3383, "middle": 2382, "last": 8675},
    "layer": {"dense": 866},
    "activation": {"dense": {"none": 479, "full": 30}},
}


def published(folder: Path, encoder: Any = QWEN25) -> Path:
    """Qwen2.5-VL-7B's sizes on four stages: [4, 8, 8, 8] layers behind an encoder of 32."""
    file = job(folder, {"image_encoder": encoder, "text_decoder": DECODER})
    (file.parent / "data.json").write_text(json.dumps(PIXELS), encoding="utf-8")
    return file


def asked(file: Path, **changes: Any) -> FileJob:
    return FileJob(file, dryrun=False, check=False, device="ascend-910b", **changes)


def test_a_plan_with_an_encoder_is_never_worse_than_the_layout_in_the_file(tmp_path: Path) -> None:
    file, out = published(tmp_path), Outputs(folder=tmp_path, write=False, result_json=tmp_path / "r.json")
    own = evaluate_file(asked(file), out).solution
    found = solve_file(asked(file), SolveOptions(), out).solution
    assert found.status == OPTIMAL and found.plan is not None and own.objective is not None
    assert found.objective <= own.objective
    assert own.plan.layers[VISION] == found.plan.layers[VISION] == ((32, 0, 0, 0),)
    again = read_result(tmp_path / "r.json")
    assert again.solution.plan == found.plan and again.problem.kinds[-1].pinned_first
    # Without the encoder the first stage would have more layers.
    (file.parent / "model.json").write_text(json.dumps({"text_decoder": DECODER}), encoding="utf-8")
    without = solve_file(asked(file), SolveOptions(), out).solution
    assert without.plan is not None and found.plan.layers["dense"][0][0] < without.plan.layers["dense"][0][0]


def test_images_stated_count_and_are_named_in_the_first_lines(tmp_path: Path) -> None:
    file = published(tmp_path)
    few, many = (StatedFile.read(asked(file, images=text)) for text in ("0.5x1024", "8x4096"))
    (line,) = [line for line in many.facts.head() if line.startswith("vision encoder")]
    assert "677 M parameters, frozen, on the first stage: 8 images of 4,096 patches a sample (by --images)" in line
    memory = few.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
    added = [one.problem(memory).kinds[-1].added_forward for one in (few, many)]
    assert 0 < added[0] < added[1]


def test_a_frozen_encoder_has_no_backward_and_a_trained_one_has(tmp_path: Path) -> None:
    kinds = []
    for frozen in (True, False):
        file = StatedFile.read(asked(published(tmp_path, vision(freeze=frozen))))
        memory = file.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
        kinds.append(file.problem(memory).kinds[-1])
    still, moving = kinds
    assert (still.forward, still.added_backward, still.activation_mib["none"]) == (0.0, 0.0, 0.0)
    assert moving.forward > 0 and moving.activation_mib["none"] > 0 and moving.layer_mib > 2 * still.layer_mib


@pytest.mark.parametrize(
    "text", ["x1024", "1.5.2", "1x", "0x1024", "1x0", "-1x1024", "1.5x1e9", "1x99999999", "9999x1048576"]
)
def test_odd_images_are_refused_with_an_example(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--images.*1\.5x1024"):
        StatedFile.read(asked(published(tmp_path), images=text))


def test_images_of_a_job_without_an_encoder_are_refused(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    with pytest.raises(InputError, match="no encoder of images is known of this job"):
        StatedFile.read(asked(file, images="1x1024"))
    assert read_config(file).tower is None


def test_an_encoder_on_ranks_of_its_own_is_compared_with_one_on_the_first_stage(tmp_path: Path) -> None:
    out = Outputs(folder=tmp_path, write=False, result_json=tmp_path / "r.json")
    small = vision(num_layers=2, pipeline_num_layers=[2, 0, 0, 0])
    few = solve_file(asked(published(tmp_path, small), beside=True, images="1x256"), SolveOptions(), out)
    many = solve_file(asked(published(tmp_path), beside=True, images="16x4096"), SolveOptions(), out)
    sentences = [dict(summary(each))["beside"] for each in (few, many)]
    assert "slower than on the first stage; proven the best of" in sentences[0]
    assert "faster than on the first stage" in sentences[1] and "no file states one" in sentences[1]
    (written,) = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["alternatives"]
    assert written["note"] == sentences[1] and written["status"] == "optimal"


def test_the_best_split_is_the_best_of_all_of_them_and_the_checker_passes_each(tmp_path: Path) -> None:
    stated = StatedFile.read(asked(published(tmp_path), images="4x1024"))
    steps, tower = [], stated.config.tower
    assert tower is not None
    for split in splits_of(stated):
        problem = beside_problem(stated, tower, split)
        found = solve(problem, SolveOptions())
        assert split.ranks + split.strategy.world_size == 8 and split.strategy.global_batch == 32
        if found.plan is None:
            continue
        assert check(problem, found.plan, found.objective) == []
        layers = found.plan.total_layers(["dense"])[0]
        assert layers[0] == 0 and min(layers[1:]) >= 1 and found.plan.layers[VISION][0][0] == 32
        steps.append((found.objective or 0.0) * (problem.unit_ms or 0.0))
    best = best_beside(stated, SolveOptions(), TimeBudget())
    assert best is not None and best.step_ms == pytest.approx(min(steps)) and best.proven
    assert len(steps) > 3 and best.solved <= best.splits


def test_more_ranks_of_an_encoder_take_less_time_of_their_stage(tmp_path: Path) -> None:
    stated = StatedFile.read(asked(published(tmp_path), images="8x1024"))
    assert stated.config.tower is not None
    one_stage = [split for split in splits_of(stated) if split.strategy.pp == 1]
    times = {
        split.strategy.dp / split.ranks: beside_problem(stated, stated.config.tower, split).kinds[-1].added_forward
        for split in one_stage
    }
    base = max(times)
    assert all(time == pytest.approx(times[base] * share / base) for share, time in times.items()) and len(times) > 2


def test_a_split_is_refused_where_nothing_states_the_encoder_or_the_memory_of_other_ranks(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    with pytest.raises(InputError, match="none is known of this job"):
        solve_file(asked(file, beside=True), SolveOptions(), Outputs(folder=tmp_path, write=False))


def test_a_split_beside_a_given_memory_profile_is_refused_before_anything_is_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "_solve_unchecked", None)
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps(GIVEN), encoding="utf-8")
    out = Outputs(folder=tmp_path, write=False)
    with pytest.raises(InputError, match="a given memory profile or list of devices covers"):
        solve_file(asked(published(tmp_path), beside=True, memory_file=memory), SolveOptions(), out)


def test_why_memory_counts_the_states_of_a_registered_model_s_encoder_once(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    asks = FileJob(tmp_path / "config.json", device="h100-80g", images="2x1024")
    stated = StatedFile.read(asks)
    assert stated.config.tower is not None
    kept = costs_of(stated.running, stated.config.tower, stated.device).kept_mib
    # Its weights and states are among those of the first stage: one micro-batch is alive.
    assert why_memory(asks).stages[0].parts["vision encoder"] == pytest.approx(kept)


def test_a_model_with_an_encoder_is_priced_by_its_images_alone(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    file = read_config(tmp_path / "config.json")
    without, stated = (
        StatedFile.of(asked(file.path, images=images), file, choose_device(file, "h100-80g", None))
        for images in ("", "2x1024")
    )
    memory = stated.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
    assert without.config.tower is None and VISION not in {kind.name for kind in without.problem(memory).kinds}
    tower = stated.config.tower
    assert tower is not None and tower.trained and tower.counted and not tower.split
    # Its states are among those of the first stage already.
    kind = stated.problem(memory).kinds[-1]
    assert (kind.name, kind.layer_mib) == (VISION, 0.0) and kind.forward > 0 and kind.activation_mib["none"] > 0


def test_the_card_of_the_first_stage_has_the_encoder_too(tmp_path: Path) -> None:
    stated = StatedFile.read(asked(published(tmp_path)))
    plan, alone = stated.config.plan, stated.running.replace(tower=None)
    assert plan is not None
    with_it, without = (card_memory(one, plan, stated.device) for one in (stated.running, alone))
    assert with_it is not None and without is not None
    weights = 2 * 676_550_144 / 2**20
    assert with_it[0].card_mib - without[0].card_mib == pytest.approx(weights, rel=1e-6)
    assert with_it[1] == without[1]


def test_a_job_that_names_a_registered_model_is_priced_by_its_images(tmp_path: Path) -> None:
    file = tmp_path / "sft.sh"
    file.write_text(
        "NPROC_PER_NODE=8 megatron sft --model Qwen/Qwen2.5-VL-7B-Instruct --dataset x --max_length 4096 "
        "--pipeline_model_parallel_size 4 --micro_batch_size 1 --global_batch_size 64\n",
        encoding="utf-8",
    )
    stated = StatedFile.read(FileJob(file, dryrun=False, check=False, images="2x1024"))
    assert stated.config.tower is not None and not stated.config.tower.trained  # ms-swift freezes it
    memory = stated.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
    kind = stated.problem(memory).kinds[-1]
    assert (kind.name, kind.forward, kind.layer_mib) == (VISION, 0.0, 0.0) and kind.added_forward > 0
    assert any("without --images" in note for note in read_config(file).notes)
