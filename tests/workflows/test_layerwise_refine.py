"""`parallel_tool.py --layerwise`: the best candidates refined layer by layer, or left out by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.console import run_command, start_logging
from taylor.base.errors import EXIT_INTERRUPTED
from taylor.command_lines import layerwise, parallel_tool
from taylor.parsers.galvatron.strategy_file import read_strategy
from taylor.workflows.searching import layerwise_refine, search
from tests.schemas.documents import check

JOB = ["--model", "llama-3.2-1b", "--world_size", "8", "--seq", "2048", "--gbs", "16"]
FEW = ["--fix", "tp=2", "--workers", "1", "--output_path", "out", "--full"]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    """The command's own search with what it found, its output, and its folder."""
    folder = tmp_path_factory.mktemp("refined")
    found, whole = [], search.search_strategies
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(parallel_tool, "start_logging", lambda **_: None)
        patch.setattr(search, "search_strategies", lambda *a: found.append(whole(*a)) or found[0])
        parallel_tool.run([*JOB, *FEW, "--layerwise"])
    return found[0], folder


def refined_file(done, folder):
    return json.loads((folder / done.ranking.folder / "layerwise" / "layerwise.json").read_text())["candidates"]


@pytest.mark.slow
def test_the_best_candidates_keep_their_outer_choice_and_are_no_slower_layer_by_layer(ranked):
    done, folder = ranked
    rows = done.ranking.table[done.ranking.table["own"] == 0].to_dict("records")
    told = refined_file(done, folder)
    assert 1 < len(told) <= layerwise_refine.MOST_REFINED and not any(one["reason"] for one in told)
    for row, one in zip(rows, told, strict=False):
        found, plan, own = one["layerwise"], one["layerwise"]["plan"], one["own_plan"]
        assert one["ranked_ms"] == row["cost"] and found["gap"] <= 1e-3
        for each in (plan, own):
            assert (each["stages"], each["interleaves"]) == (row["pp"], row["vpp"])
            assert (each["global_batch"], each["micro_batches"]) == (16, row["micro_batches"])
        assert {(layer["tp"], layer["dp"]) for layer in own["layers"]} == {(row["tp"], row["dp"])}
        assert sum(layer["recompute"] for layer in own["layers"]) == sum(json.loads(row["recompute"])["full"][0])
        assert one["own_faults"] or 1e3 * found["step_s"] <= one["own_ms"] * (1 + 1e-3)
        [file] = (folder / done.ranking.folder / "layerwise" / Path(row["file"]).stem).glob("galvatron_config_*.json")
        assert list(read_strategy(file).plan.division) == plan["division"]


def test_the_layerwise_command_finds_the_same_step(ranked, tmp_path, capsys):
    done, folder = ranked
    one = refined_file(done, folder)[0]
    plan, limit = one["layerwise"]["plan"], json.loads(done.ranking.table["memory_limit"][0])[0]
    words = ["--costs", "estimate", "--device", done.device.name, "--pp", str(plan["stages"]), "-o", str(tmp_path)]
    words += ["--micro_batches", str(plan["micro_batches"]), "--memory", str(limit / 1024), "--json"]
    layerwise.run([*JOB, *words])
    step_s = json.loads(capsys.readouterr().out)["step_s"]
    assert step_s == pytest.approx(one["layerwise"]["step_s"], rel=1e-3)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ({"ep": 2}, "EP: the layer-wise costs know no expert parallelism (found 2)"),
        ({"cp": 2}, "CP: the layer-wise costs know no context parallelism (found 2)"),
        ({"pp": 4, "micro_batches": 2}, "micro-batches: a layer-wise plan has one for each of 4 stages (found 2)"),
        ({"memory_limit": "[64]"}, "no strategy of its layers fits 64 MiB"),
    ],
)
def test_what_layerwise_costs_cannot_say_is_left_out_by_name(ranked, tmp_path, cells, told):
    done, _ = ranked
    table = done.ranking.table.head(1).assign(**cells)
    refinement = layerwise_refine.refine_best(
        replace(done, ranking=replace(done.ranking, table=table, folder=tmp_path))
    )
    [one] = refinement.left_out
    assert not refinement.refined and told in one.reason
    assert json.loads((tmp_path / "layerwise" / "layerwise.json").read_text())["candidates"][0]["reason"] == one.reason


@pytest.mark.slow
def test_without_full_the_flag_is_noted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    parallel_tool.run([*JOB, "--fix", "tp=2", "--output_path", "out/nd", "--layerwise"])
    assert "--layerwise: has no effect without --full" in capsys.readouterr().err


@pytest.mark.parametrize("moment", ["searched", "written", "lost"])
def test_interrupting_a_refinement_is_no_success_and_keeps_what_is_done(ranked, tmp_path, capsys, monkeypatch, moment):
    start_logging()
    done, _ = ranked
    found = replace(done, ranking=replace(done.ranking, folder=tmp_path))
    whole, presses = layerwise_refine.search_job, iter([0, 1, 1, 1, 1])

    def stop(*words, **more):
        searched = whole(*words, **more)
        return replace(searched, result=replace(searched.result, interrupted=True))

    def press(*_, **__):
        raise KeyboardInterrupt

    if moment == "searched":
        monkeypatch.setattr(layerwise_refine, "search_job", stop)
    elif moment == "written":
        monkeypatch.setattr(layerwise_refine, "write_outputs", press)
    else:
        monkeypatch.setattr(layerwise_refine, "presses", lambda: next(presses))
    code = run_command(lambda: parallel_tool._refuse_interrupted(parallel_tool._refine(found, None)))
    assert code == EXIT_INTERRUPTED and "interrupted" in capsys.readouterr().err.splitlines()[-1]
    records = json.loads((tmp_path / "layerwise" / "layerwise.json").read_text())["candidates"]
    assert all("Ctrl-C" in one["reason"] for one in records[1:])


@pytest.mark.slow
def test_the_document_of_a_search_has_its_refinement_and_all_its_files(ranked, capsys, monkeypatch):
    done, folder = ranked
    monkeypatch.chdir(folder)
    monkeypatch.setattr(search, "search_strategies", lambda *_: done)
    monkeypatch.setattr(layerwise_refine, "TIME_LIMIT_S", 5.0)
    parallel_tool.run([*JOB, *FEW, "--layerwise", "--json"])
    document = check(json.loads(capsys.readouterr().out))
    assert [one["candidate"] for one in document["refined"]] == [one["candidate"] for one in refined_file(done, folder)]
    assert {"candidates", "pruned", "dry-run", "profile", "layer-wise"} <= set(document["files"])
