"""Searching, ranking and asking with an encoder of images: the encoder counts in memory and time on every path."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import taylor
from taylor import api
from taylor.base import budget
from taylor.base.errors import InputError
from taylor.command_lines import why_memory
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib
from taylor.nd_search.encoder import peaks_with_encoder
from taylor.nd_search.options import SearchOptions
from taylor.parsers.read import read_config
from taylor.register.tower import VISION
from taylor.schemas.reading import read_request
from taylor.serve.question import Models, Question
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.own_plans import problem_of
from taylor.workflows.searching.search_memory import replayed_peaks
from taylor.workflows.solving import encoder_places
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.towers import costs_of, with_images
from tests.parsers.megatron.test_model_file import DECODER, job
from tests.parsers.megatron.test_tower_file import vision
from tests.report_cases import deepseek
from tests.workflows.test_replayed_memory import PEAK
from tests.workflows.test_towers import published

CARD = "ascend-910b"
EIGHT = {"device": CARD, "max_expert_parallel": 1, "profile_num": 8}


def small_model(folder: Path) -> Path:
    config = {"model_type": "qwen3_vl", "text_config": {"model_type": "qwen3_vl_text"}, "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder / "config.json"


@pytest.mark.slow
def test_a_search_takes_as_long_for_a_strategy_as_a_solve_of_it(tmp_path: Path) -> None:
    file = published(tmp_path, vision(freeze=False))
    found = taylor.search(file, images="2.5", **EIGHT)
    planned = taylor.solve(file, device=CARD, images="2.5")
    table = found.table
    (own,) = table[(table.dp == 2) & (table.tp == 1) & (table.pp == 4)].to_dict("records")
    assert own["step_source"] == "solved" and own["estimated_ms"] == pytest.approx(planned.step_ms, rel=1e-3)
    assert VISION in planned.plan.layers and own["peakMem"] <= max(planned.solution.peak_memory_mib)
    # More images make no strategy faster, for the host may be what takes time, and the first stage fuller.
    many = taylor.search(file, images="3x4096", **EIGHT).table
    both = many.merge(table, on=["dp", "tp", "pp"], suffixes=("", "_few"))
    assert len(both) > 3 and (both.estimated_ms >= both.estimated_ms_few).all()
    assert (both.estimated_ms > 1.2 * both.estimated_ms_few).any()
    assert (both.peakMem >= both.peakMem_few - 0.1).all() and (both.peakMem > both.peakMem_few + 1).any()


def test_the_least_peak_of_a_strategy_on_one_stage_has_all_of_the_encoder(tmp_path: Path) -> None:
    config = with_images(read_config(published(tmp_path, vision(freeze=False))), "2.5")
    card = choose_device(config, CARD).spec
    own = config.strategy
    one = StrategyTable.from_strategies([own.replace(dp=8 // tp, tp=tp, pp=1, op=8 // tp) for tp in (1, 2, 4)])
    with_it, stage = peaks_with_encoder(config, card)(config.model, config.rules, one)
    without, _ = best_case_peak_mib(config.model, config.rules, one)
    assert config.tower is not None
    for row, more in enumerate(with_it - without):
        costs = costs_of(config.replace(strategy=one.row(row)), config.tower, card)
        assert more == pytest.approx(costs.states_mib + costs.kept_mib, abs=0.1)
    assert not np.any(stage) and len(one) > 2


def test_a_strategy_without_a_log_has_the_encoder_beside_others_that_have_logs(tmp_path: Path) -> None:
    config = with_images(read_config(published(tmp_path, vision(freeze=False))), "2.5")
    card, options = choose_device(config, CARD).spec, SearchOptions(max_expert_parallel=1)
    log = tmp_path / "logs" / "DP2_TP1_PP4_EP1" / "rank_0.log"
    log.parent.mkdir(parents=True)
    log.write_text(PEAK.format(30_000), encoding="utf-8")
    peaks = replayed_peaks(config, card, options, None, tmp_path / "logs", tmp_path)
    table = StrategyTable.from_strategies([config.strategy, config.strategy.replace(dp=8, tp=1, pp=1, op=8)])
    found, _ = peaks(config.model, config.rules, table)
    estimated, _ = peaks_with_encoder(config, card)(config.model, config.rules, table)
    assert found.tolist() == [30_000.0, estimated[1]]


def test_a_candidate_of_a_ranking_has_the_encoder_of_the_images_that_are_asked_for(tmp_path: Path) -> None:
    path = small_model(tmp_path)
    with_it, without = (load_candidates([path], "h100-80g", images=images)[0] for images in ("2x1024", ""))
    assert [kind.name for kind in problem_of(with_it).kinds][-1] == VISION
    assert VISION not in {kind.name for kind in problem_of(without).kinds}
    with pytest.raises(InputError, match="no encoder of images is known of this job"):
        load_candidates([job(tmp_path, {"text_decoder": DECODER})], CARD, images="2")


def test_images_alone_keep_the_patches_of_the_file(tmp_path: Path) -> None:
    config = read_config(published(tmp_path))
    tower = with_images(config, "2.5").tower
    assert tower is not None and config.tower is not None
    assert (tower.images, tower.patches) == (2.5, config.tower.patches) and "images by --images" in tower.source


def test_requests_and_the_page_take_images_and_refuse_odd_ones(tmp_path: Path) -> None:
    for command in ("solve", "evaluate", "search"):
        asked = read_request({"command": command, "file": "a.sh", "images": "2.5"})
        assert asked.flags()["images"] == "2.5"
    heard = read_request({"command": "search", "file": "a.sh", "audio_seconds": "2x12.5"})
    assert heard.flags()["audio_seconds"] == "2x12.5"
    with pytest.raises(InputError):
        read_request({"command": "search", "file": "a.sh", "audio_seconds": "30s"})
    for place in ("beside", "bubbles", "best"):
        assert read_request({"command": "solve", "file": "a.sh", "encoder": place}).flags()["encoder"] == place
    with pytest.raises(InputError):
        read_request({"command": "search", "file": "a.sh", "images": "--images"})
    models = Models(tmp_path)
    ask = Question(model="qwen3-vl-2b", device="h100-80g", ranks=8, seq=4096, gbs=64, pp=2)
    few, many = (models.answer(ask.model_copy(update={"images": images})) for images in ("", "2x1024"))
    assert many["step_ms"] > few["step_ms"] and many["peak_mib"][0] > few["peak_mib"][0]
    assert few["layers"] == many["layers"]
    for model, images, says in (("qwen3-vl-2b", "2,5", "states no images"), ("llama3-8b", "2", "no encoder")):
        odd = ask.model_copy(update={"images": images, "model": model})
        with pytest.raises(InputError, match=says) as refused:
            models.answer(odd)
        assert refused.value.field == "images"


def test_an_encoder_on_ranks_of_its_own_is_planned_by_the_interface_of_python_too(tmp_path: Path) -> None:
    small = vision(num_layers=2, pipeline_num_layers=[2, 0, 0, 0])
    planned = taylor.solve(published(tmp_path, small), device=CARD, images="1x256", encoder="beside")
    (other,) = planned.to_dict()["alternatives"]
    assert "encoder on" in other["name"] and other["objective"] > 0
    with pytest.raises(InputError, match="use nested, spread, beside, bubbles or best"):
        taylor.solve(published(tmp_path), device=CARD, encoder="besides")


def test_ranks_of_an_encoder_s_own_are_planned_in_the_time_that_the_solve_leaves(tmp_path: Path, monkeypatch) -> None:
    clock, given = [0.0], []
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    whole = api.solve_stated

    def solved(*asked: Any) -> Any:
        clock[0] += 45.0
        return whole(*asked)

    monkeypatch.setattr(api, "solve_stated", solved)
    monkeypatch.setattr(encoder_places, "best_beside", lambda file, how, budget: given.append(budget.left))
    monkeypatch.setattr(encoder_places, "best_in_bubbles", lambda planned, how, budget: given.append(budget.left))
    taylor.solve(published(tmp_path), device=CARD, encoder="best", time_limit=60.0)
    assert given == [15.0, 15.0]


@pytest.mark.parametrize(("seconds", "words"), [(45.0, "no plan has memory"), (75.0, "the time limit ended before")])
def test_a_place_without_a_plan_is_blamed_on_memory_only_where_there_was_time(
    monkeypatch, seconds: float, words: str
) -> None:
    clock, warned = [0.0], []
    monkeypatch.setattr(budget, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(encoder_places, "best_in_bubbles", lambda planned, how, budget: None)
    monkeypatch.setattr(encoder_places, "log", SimpleNamespace(warning=lambda form, *rest: warned.append(form % rest)))
    limit = budget.TimeBudget.of(60.0)
    clock[0] += seconds
    file: Any = SimpleNamespace(job=SimpleNamespace(encoder="bubbles"), config=SimpleNamespace(path="job.sh"))
    planned: Any = make_dataclass("Planned", ["bubbles"], frozen=True)(None)
    how: Any = None
    encoder_places.with_places(file, planned, how, limit)
    assert len(warned) == 1 and words in warned[0]


def test_a_problem_takes_no_encoder_on_ranks_of_its_own() -> None:
    with pytest.raises(InputError, match="encoder: is settled by the problem itself"):
        taylor.solve(deepseek(4, 1, 4), encoder="beside")


def test_the_peak_that_is_explained_has_the_images_that_are_asked_for(tmp_path: Path, capsys) -> None:
    file = str(published(tmp_path, vision(freeze=False)))
    parts = []
    for images in ("1x1024", "2x1024"):
        why_memory.run([file, "--device", CARD, "--images", images, "--json"])
        parts.append(json.loads(capsys.readouterr().out)["stages"][0]["parts_mib"]["vision encoder"])
    assert parts[1] > parts[0]
    why_memory.run([file, "--device", CARD, "--images", "2x1024", "--audio-seconds", "", "--json"])
    assert json.loads(capsys.readouterr().out)["stages"][0]["parts_mib"]["vision encoder"] == parts[1]
    with pytest.raises(InputError, match="no encoder of sound is known"):
        why_memory.run([file, "--device", CARD, "--audio_seconds", "30"])
    asked = read_request({"command": "why-memory", "file": "a.sh", "images": "2"})
    assert asked.flags()["images"] == "2"


@pytest.mark.slow
def test_a_sizing_and_a_choice_count_the_images_that_are_asked_for(tmp_path: Path) -> None:
    job: dict[str, Any] = {"device": "h100-80g", "gbs": 64, "seq": 2048, "output": tmp_path}
    few, many = (
        taylor.size("qwen3-vl-2b", max_devices=8, images=images, **job).to_dict()["devices"][0]["least"]
        for images in ("", "4x4096")
    )
    assert many["tokens_per_second"] < few["tokens_per_second"]
    with pytest.raises(InputError, match="no encoder of images is known of this job"):
        taylor.choose("llama3-8b", 8, images="2", **job)
    assert read_request({"command": "size", "model": "qwen3-vl-2b", "images": "2"}).flags()["images"] == "2"
