"""Planning with an encoder of images: what a user states, sees, and how a published layout compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taylor.base.budget import TimeBudget
from taylor.base.errors import InputError
from taylor.cost_model.profile import MemoryProfile, MemorySource
from taylor.parsers.read import read_config
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.check.insertion import check_insertion
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.solving.solve import solve
from taylor.register.tower import VISION
from taylor.report.planned import inserted_timeline
from taylor.workflows.showing.card_memory import card_memory
from taylor.workflows.showing.verdict import summary
from taylor.workflows.solving import solve_file as solving
from taylor.workflows.solving.beside import best_beside
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.solving.why_memory import why_memory
from taylor.workflows.statement.bubbles import WORDS, bubble_jobs
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.own_ranks import beside_problem, splits_of
from taylor.workflows.statement.stated_file import StatedFile
from taylor.workflows.statement.towers import costs_of, inputs_text
from tests.parsers.megatron.test_model_file import DECODER, job
from tests.parsers.megatron.test_tower_file import OMNI, PIXELS, QWEN25, vision

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


def test_seconds_of_sound_count_and_are_named_in_the_first_lines(tmp_path: Path) -> None:
    file = job(tmp_path, {"image_encoder": QWEN25, "audio_encoder": OMNI, "text_decoder": DECODER})
    none, some, more = (
        StatedFile.read(asked(file, images=text)) for text in ("", inputs_text("", "30"), inputs_text("2x1024", "4x60"))
    )
    lines = [[line for line in one.facts.head() if "encoder of" in line] for one in (none, some, more)]
    assert [line.split(" ", 1)[0] for line in lines[0]] == ["vision", "audio"]
    assert "no sound is stated, so it does not run" in lines[0][1]
    assert "1 clip of 30 s a sample (by --audio_seconds)" in lines[1][1]
    assert "2 images of 1,024 patches" in lines[2][0] and "4 clips of 60 s" in lines[2][1]
    memory = none.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
    times = [one.problem(memory).kinds[-1].added_forward for one in (none, some, more)]
    assert 0 < times[0] < times[1] < times[2]
    # Its weights are there, heard or not.
    assert none.problem(memory).kinds[-1].layer_mib == some.problem(memory).kinds[-1].layer_mib


@pytest.mark.parametrize("text", ["x30s", "30x", "0s", "1x0s", "s", "2x4000s", "1e3s", "-3s", "30s+", "30ss", "30s+9s"])
def test_odd_sound_is_refused(text: str, tmp_path: Path) -> None:
    file = job(tmp_path, {"audio_encoder": OMNI, "text_decoder": DECODER})
    with pytest.raises(InputError, match=r"--audio_seconds|--images"):
        StatedFile.read(asked(file, images=text))


def test_sound_of_a_job_without_an_encoder_of_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no encoder of sound is known of this job"):
        StatedFile.read(asked(published(tmp_path), images="30s"))
    with pytest.raises(InputError, match="no encoder of images is known of this job"):
        StatedFile.read(asked(job(tmp_path, {"audio_encoder": OMNI, "text_decoder": DECODER}), images="1x1024"))


def test_a_named_model_with_an_encoder_of_sound_is_priced_by_its_clips(tmp_path: Path) -> None:
    config = {"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "num_hidden_layers": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    without, stated = (
        StatedFile.read(FileJob(tmp_path / "config.json", device="h100-80g", images=text)) for text in ("", "2x15s")
    )
    assert without.config.tower is None and stated.config.tower is not None
    tower = stated.config.tower
    assert (tower.images, tower.tokens, tower.counted) == (2.0, 2 * 15 * 25, True)
    assert any("without --audio_seconds" in note for note in without.config.notes)


def test_encoders_of_images_and_sound_lie_in_bubbles_together(tmp_path: Path) -> None:
    sound = {"audio_encoder": {**OMNI["audio_encoder"], "num_layers": 4, "pipeline_num_layers": [4, 0, 0, 0]}}
    seen = vision(num_layers=4, pipeline_num_layers=[4, 0, 0, 0])
    file = job(tmp_path, {"image_encoder": seen, "audio_encoder": sound, "text_decoder": DECODER})
    out = Outputs(folder=tmp_path, write=False)
    planned = solve_file(asked(file, encoder="bubbles", images="4x1024+4x30s"), SolveOptions(), out)
    found = planned.bubbles
    assert found is not None and check_insertion(found.job.problem, found.plan, found.job.work, found.insertion) == []
    alone = solve_file(asked(file, encoder="bubbles", images="4x1024"), SolveOptions(), out).bubbles
    assert alone is not None and alone.job.work.forward < found.job.work.forward


def test_images_of_a_job_without_an_encoder_are_refused(tmp_path: Path) -> None:
    file = job(tmp_path, {"text_decoder": DECODER})
    with pytest.raises(InputError, match="no encoder of images is known of this job"):
        StatedFile.read(asked(file, images="1x1024"))
    assert read_config(file).tower is None


def test_an_encoder_on_ranks_of_its_own_is_compared_with_one_on_the_first_stage(tmp_path: Path) -> None:
    out = Outputs(folder=tmp_path, write=False, result_json=tmp_path / "r.json")
    small = vision(num_layers=2, pipeline_num_layers=[2, 0, 0, 0])
    few = solve_file(asked(published(tmp_path, small), encoder="beside", images="1x256"), SolveOptions(), out)
    many = solve_file(asked(published(tmp_path), encoder="beside", images="16x4096"), SolveOptions(), out)
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
    for place in ("beside", "bubbles", "best"):
        with pytest.raises(InputError, match="none is known of this job"):
            solve_file(asked(file, encoder=place), SolveOptions(), Outputs(folder=tmp_path, write=False))


@pytest.mark.parametrize("place", ["beside", "bubbles", "best"])
def test_an_encoder_without_an_input_is_placed_nowhere_else(place: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen2_audio", "text_config": {"model_type": "qwen2", "num_hidden_layers": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named = FileJob(tmp_path / "config.json", device="h100-80g", encoder=place)
    stated = asked(job(tmp_path, {"audio_encoder": OMNI, "text_decoder": DECODER}), encoder=place)
    for silent in (named, stated):
        with pytest.raises(InputError, match="has no input.*state some by --audio_seconds"):
            solve_file(silent, SolveOptions(), Outputs(folder=tmp_path, write=False))


@pytest.mark.parametrize(
    ("images", "audio_seconds", "flag"),
    [("30s", "", "--images"), ("1+2", "", "--images"), ("", "1+2", "--audio_seconds"), ("", "5s", "--audio_seconds")],
)
def test_a_flag_does_not_state_what_the_other_is_for(images: str, audio_seconds: str, flag: str) -> None:
    with pytest.raises(InputError, match=f"^{flag}: states no"):
        inputs_text(images, audio_seconds)


def small_job(folder: Path, **changes: Any) -> Path:
    return published(folder, vision(num_layers=4, pipeline_num_layers=[4, 0, 0, 0], **changes))


def test_an_encoder_in_bubbles_is_compared_and_drawn(tmp_path: Path) -> None:
    out = Outputs(
        folder=tmp_path, write=False, result_json=tmp_path / "r.json", trace=tmp_path / "t.json",
        html=tmp_path / "p.html",
    )  # fmt: skip
    planned = solve_file(asked(small_job(tmp_path), encoder="bubbles", images="4x1024"), SolveOptions(), out)
    found, pairs = planned.bubbles, dict(summary(planned))
    assert found is not None and "best place" not in pairs
    assert "faster than on the first stage" in pairs["bubbles"] and WORDS in pairs["bubbles"]
    assert check_insertion(found.job.problem, found.plan, found.job.work, found.insertion) == []
    assert found.bound <= found.insertion.step and found.alone < found.insertion.step
    (written,) = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))["alternatives"]
    assert written["note"] == pairs["bubbles"] and len(written["insertion"]["runs"]) == len(found.insertion.runs)
    names = {one["name"] for one in json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]}
    assert any(name.startswith("encoder forward") for name in names)
    assert "encoder in bubbles" in (tmp_path / "p.html").read_text(encoding="utf-8")
    assert (tmp_path / "model_mps" / f"{planned.name}.bubbles.mps").is_file()


def test_the_drawn_encoder_ends_with_the_step(tmp_path: Path) -> None:
    planned = solve_file(
        asked(small_job(tmp_path, freeze=False), encoder="bubbles", images="1x256"),
        SolveOptions(),
        Outputs(folder=tmp_path, write=False),
    )
    found = planned.bubbles
    assert found is not None and found.job.work.backward > 0
    drawn = inserted_timeline(found.job.problem, found.plan, found.job.work, found.insertion, "")
    assert drawn.finish == pytest.approx(found.insertion.step)
    for stage in range(4):
        own = np.flatnonzero((drawn.stage == stage) & (drawn.end > drawn.start))
        own = own[np.argsort(drawn.start[own])]
        assert (drawn.start[own][1:] >= drawn.end[own][:-1] - 1e-9).all()


def test_the_best_place_is_the_one_with_the_shortest_step(tmp_path: Path) -> None:
    out = Outputs(folder=tmp_path, write=False)
    planned = solve_file(asked(small_job(tmp_path), encoder="best", images="4x1024"), SolveOptions(), out)
    assert planned.beside is not None and planned.bubbles is not None and planned.solution.objective is not None
    nested = planned.solution.objective * (planned.problem.unit_ms or 1.0)
    least = min(nested, planned.beside.step_ms, planned.bubbles.step_ms)
    assert dict(summary(planned))["best place"].endswith(f"{least:,.0f} ms a step")


def test_every_stage_counts_the_encoder_s_states_and_the_reduction_of_its_gradients(tmp_path: Path) -> None:
    jobs, more = [], []
    for frozen in (True, False):
        stated = StatedFile.read(asked(published(tmp_path, vision(freeze=frozen)), images="4x1024"))
        memory = stated.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE))
        nested = stated.problem(memory)
        jobs.append(bubble_jobs(stated.running, nested, stated.device)[0])
        pairs = zip(jobs[-1].problem.static_mib, nested.static_mib, strict=True)
        more.append([has - alone for has, alone in pairs])
    still, moving = (one.problem for one in jobs)
    weights = 2 * 676_550_144 / 2**20
    assert more[0][1:] == pytest.approx([weights] * 3, rel=1e-3)
    # The first stage has all results of a step, too: 16 micro-batches of 4 x 1,024 / 4 tokens of 3,584 in 16 bits.
    assert more[0][0] - more[0][1] == pytest.approx(16 * 1024 * 3584 * 2 / 2**20)
    # Trained: weights, gradients and a share of the states in eight replicas.
    assert min(more[1]) > 2 * weights and min(moving.tail) > max(still.tail)
    assert VISION not in {kind.name for kind in still.kinds}
    # Four images a micro-batch and one rank a stage: nothing to share out.
    assert [one.name for one in jobs] == ["as TP splits it"] * 2


def test_whole_images_on_the_ranks_of_a_stage_take_less_than_one_rank_s_time_for_all(tmp_path: Path) -> None:
    config = {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    stated = StatedFile.read(FileJob(tmp_path / "config.json", device="h100-80g", images="4x1024"))
    config_of = stated.running.replace(strategy=stated.running.strategy.replace(tp=4, dp=1, pp=2))
    problem = stated.problem(stated.memory_like(MemoryProfile(0.0, 0.0, 0.0, 0.0, {}, {}, MemorySource.ESTIMATE)))
    whole, shared = bubble_jobs(config_of, problem, stated.device)
    assert "on 4 ranks" in shared.name and shared.work.forward == pytest.approx(whole.work.forward / 4)
    assert shared.work.kept_mib == pytest.approx(whole.work.kept_mib / 4)


def test_other_places_beside_a_given_memory_profile_are_refused_before_anything_is_solved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solving, "_solve_unchecked", None)
    memory = tmp_path / "memory.json"
    memory.write_text(json.dumps(GIVEN), encoding="utf-8")
    out = Outputs(folder=tmp_path, write=False)
    for place in ("beside", "bubbles", "best"):
        with pytest.raises(InputError, match="a given memory profile or list of devices covers"):
            solve_file(asked(published(tmp_path), encoder=place, memory_file=memory), SolveOptions(), out)


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
