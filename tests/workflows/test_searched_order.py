"""A plan with an order of its own: what a user sees, the files, and what torch makes of the order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from taylor.base.errors import InputError
from taylor.command_lines.pipeline_parallel import run
from taylor.parsers.export import export_order
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.known_orders import known_orders
from taylor.pipeline.schedule import SEARCHED, SEARCHED_FREE, SEARCHED_V, ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.solving.result import read_result
from tests.conftest import ROOT

YAML = ROOT / "config" / "pretrain_llama2_7b.yaml"  # two stages
MEMORY = {
    "device_limit": 60000,
    "static": {"first": 3000, "middle": 2000, "last": 4000},
    "layer": {"dense": 500},
    "activation": {"dense": {"none": 300, "select": 250, "full": 30}},
}


def loaded_by_torch(table: Path, stages: int, interleaves: int, micro_batches: int) -> Any:
    """The table as torch's own runtime reads, validates and completes it with transfers; on no device."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    runtime = schedules._PipelineScheduleRuntime.__new__(schedules._PipelineScheduleRuntime)
    runtime.__dict__.update(
        pp_group_size=stages, _num_stages=stages * interleaves, _n_microbatches=micro_batches, _stages=[],
        _defer_pp_recv=False, pipeline_order={},
    )  # fmt: skip
    runtime._load_csv(str(table))
    return runtime


@pytest.mark.slow
def test_a_user_gets_an_order_no_worse_than_the_known_ones_and_a_table_that_torch_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table, result = tmp_path / "order.csv", tmp_path / "result.json"
    run(
        ["-yaml", str(YAML), "-dryrun", "n", "-check", "n", "-write", "n", "-schedule", SEARCHED, "-workers", "1"]
        + ["--export", f"torch-actions={table}", "--result_json", str(result)]
    )
    told = " ".join(capsys.readouterr().out.split())
    assert "no launcher takes it as it stands" in told and "no order of this plan takes less" in told
    saved = read_result(result)
    problem, order = saved.problem, json.loads(result.read_text())["order"]
    assert len(problem.schedule.words) == problem.stages and order["proven"]
    assert check(problem, saved.plan, saved.solution.objective) == []
    assert saved.solution.bound is not None and saved.solution.objective is not None
    assert saved.solution.bound <= saved.solution.objective <= order["known_step"] * (1 + 1e-9)
    least = min(one["objective"] for one in saved.alternatives if one["objective"] is not None)
    assert order["known_step"] == pytest.approx(least)
    runtime = loaded_by_torch(table, problem.stages, 1, problem.micro_batches)
    assert set(runtime.pipeline_order_with_comms) == set(range(problem.stages))


@pytest.mark.slow
def test_chunks_on_stages_of_their_own_are_no_worse_than_on_a_loop_or_a_v(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table, result, trace = tmp_path / "order.csv", tmp_path / "result.json", tmp_path / "trace.json"
    run(
        ["-yaml", str(YAML), "-dryrun", "n", "-check", "n", "-write", "n", "-workers", "1", "-vpp", "2"]
        + ["-schedule", SEARCHED_FREE]
        + ["--export", f"torch-actions={table}", "--result_json", str(result), "--trace", str(trace)]
    )
    saved, order = read_result(result), json.loads(result.read_text())["order"]
    problem = saved.problem
    assert list(problem.schedule.stage_of) == order["stage_of"] and problem.placement.name == order["placement"]
    assert f"on stages {' '.join(map(str, order['stage_of']))}" in " ".join(capsys.readouterr().out.split())
    assert check(problem, saved.plan, saved.solution.objective) == []
    assert saved.solution.objective is not None and saved.solution.bound is not None
    assert saved.solution.bound <= saved.solution.objective <= order["shape_step"] * (1 + 1e-9)
    assert order["shape_step"] <= order["known_step"] * (1 + 1e-9)
    runtime = loaded_by_torch(table, problem.stages, 2, problem.micro_batches)
    assert runtime.stage_index_to_group_rank == dict(enumerate(order["stage_of"]))
    last = order["stage_of"][-1]
    chunks = ", ".join(str(k) for k, s in enumerate(order["stage_of"]) if s == last)
    assert f"stage {last} (chunks {chunks})" in trace.read_text()


@pytest.mark.parametrize(
    ("name", "interleaves"), [(SEARCHED, 1), (SEARCHED, 2), (SEARCHED_V, 2), (SEARCHED_FREE, 2), (SEARCHED_FREE, 3)]
)
def test_torch_reads_every_known_order_with_its_stages_where_they_are(
    tmp_path: Path, name: str, interleaves: int
) -> None:
    S, m = 4, 8
    orders = list(known_orders(ScheduleSpec(name), S, interleaves, m).values())
    if name == SEARCHED_FREE:
        any_stages = tuple(np.random.default_rng(interleaves).permutation(np.repeat(range(S), interleaves)).tolist())
        orders.append(ScheduleSpec(name, stage_of=any_stages))
    for spec in orders:
        schedule = build_schedule(spec, S, interleaves, m)
        text = export_order(schedule, "torch-actions")
        assert text is not None
        table = tmp_path / "order.csv"
        table.write_text(text)
        runtime = loaded_by_torch(table, S, interleaves, m)
        assert runtime.stage_index_to_group_rank == {
            place: schedule.chunk_at(place)[1] for place in range(schedule.chunks)
        }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["-schedule", SEARCHED], "cannot be written into this"),
        (["-schedule", SEARCHED, "-vpp", "auto"], "cannot be written into this"),
        (["-schedule", SEARCHED, "-evaluate", "y"], "leave out -evaluate"),
        (["-schedule", SEARCHED_FREE, "-vpp", "2"], "cannot be written into this"),
        (["-schedule", SEARCHED_FREE, "-vpp", "2", "-write", "n", "-memory", "memory.json"], "needs estimated memory"),
    ],
)
def test_what_does_not_go_with_an_order_of_one_s_own_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "memory.json").write_text(json.dumps(MEMORY))
    with pytest.raises(InputError, match=told):
        run(["-yaml", str(YAML), "-dryrun", "n", "-check", "n", *arguments])


def test_torch_has_no_pieces_of_sequences() -> None:
    schedule = build_schedule(ScheduleSpec("seqpipe", seq_splits=2), 2, 1, 2)
    with pytest.raises(InputError, match="no pieces of sequences"):
        export_order(schedule, "torch-actions")


def test_no_order_is_searched_where_stages_lend_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = str(ROOT / "config" / "pretrain_llama3_70b.sh")
    flags = ["-dryrun", "n", "-check", "n", "-write", "n", "--lend", "mirror"]
    with pytest.raises(InputError, match="where stages lend memory.*leave out --lend"):
        run(["-shell", script, *flags, "-schedule", SEARCHED])
