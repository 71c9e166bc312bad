"""A model alone becomes a job: strategies searched, the quickest solved, the best one written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from taylor.base.errors import InputError
from taylor.nd_search.search import search
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.register.registry import Registry
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.rank import Ranking
from taylor.workflows.searching import model_job
from taylor.workflows.searching.model_job import ModelJob, choose_strategy, search_options, state_model, usual_batch
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from tests.parsers.huggingface.test_launcher import SECTION, written

WIDE = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}


def chosen(path: Path, output: Path, **job: object) -> Path:
    return choose_strategy(ModelJob(path, 8, gbs=16, **job), SolveOptions(workers=1), 1, output)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_strategy_written_is_the_best_of_those_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_job, "SOLVED_STRATEGIES", 3)
    path = written(tmp_path, None, **WIDE, num_hidden_layers=16, vocab_size=32000)
    target = chosen(path, tmp_path / "out", fix={"pp": 2})
    config = read_config(target)
    assert config.strategy.world_size == 8
    assert config.strategy.pp == 2
    assert config.strategy.global_batch == 16
    files = sorted((target.parent / "strategies").glob("*_pretrain.sh"))
    assert len(files) == 3
    steps = {}
    for file in [target, *files]:
        planned = solve_file(
            FileJob(file, dryrun=False, check=False), SolveOptions(workers=1), Outputs(tmp_path / "each", write=False)
        )
        assert planned.speed is not None
        steps[file] = planned.speed.step_ms
    assert steps[target] == pytest.approx(min(steps.values()))


def test_the_last_solve_is_never_worse_than_the_step_that_was_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its time limit may end before it has found the plan that the choice of the strategy found."""
    monkeypatch.setattr(model_job, "SOLVED_STRATEGIES", 2)
    path = written(tmp_path, None, **WIDE, num_hidden_layers=13, vocab_size=64000)
    with caplog.at_level("INFO", logger="taylor"):
        target = chosen(path, tmp_path / "out", fix={"pp": 4, "mbs": 1})
    listed = [float(found) for found in re.findall(r": (\d+) ms a step", caplog.text)]
    assert listed and read_config(target).plan != read_config(target).even_plan(read_config(target).strategy)
    job = FileJob(target, dryrun=False, check=False, made_for_model=True)
    how = SolveOptions(workers=1, time_limit=0.01)
    planned = solve_file(job, how, Outputs(tmp_path / "another", write=False))
    assert planned.speed is not None and planned.speed.step_ms <= min(listed) + 0.5


def test_a_hybrid_is_planned_to_its_optimum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_job, "SOLVED_STRATEGIES", 1)
    changes = {
        "model_type": "qwen3_5_text", "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "num_hidden_layers": 4, "head_dim": 256, "linear_num_value_heads": 32,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    path = written(tmp_path, None, **WIDE, **changes)
    target = chosen(path, tmp_path / "out", fix={"pp": 2, "tp": 1})
    planned = solve_file(
        FileJob(target, dryrun=False, check=False), SolveOptions(workers=1), Outputs(tmp_path / "out", write=False)
    )
    assert planned.solution.status == "optimal"
    assert sum(map(sum, planned.plan.total_layers())) == 4


def test_what_the_model_file_says_of_its_batch_stays_unless_it_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, SECTION)
    stated = read_config(state_model(ModelJob(path, 8), tmp_path / "out"))
    assert (stated.strategy.global_batch, stated.rules.seq_length) == (32, 1024)
    named = read_config(state_model(ModelJob(path, 8, seq_length=512, gbs=64), tmp_path / "out"))
    assert (named.strategy.global_batch, named.rules.seq_length) == (64, 512)


@pytest.mark.parametrize(("ranks", "samples"), [(8, 1024), (60, 1020), (96, 1056), (768, 768), (2048, 1024)])
def test_the_batch_that_is_assumed_can_be_split_over_any_fewer_ranks(ranks: int, samples: int) -> None:
    assert usual_batch(ranks) == samples


@pytest.mark.parametrize("gbs", [None, 1024])
def test_contexts_of_usual_samples_stay_whole_whatever_the_ranks(tmp_path: Path, gbs: int | None) -> None:
    """Sixty ranks and 1,024 samples: the file that names no degree is read with contexts split fifteenfold."""
    path = written(tmp_path, None, **WIDE, num_hidden_layers=30, vocab_size=32000)
    job = ModelJob(path, 60, gbs=gbs, device="h100-80g")
    config = read_config(state_model(job, tmp_path))
    found = search(config, Registry.load().device("h100-80g"), search_options(job, config))
    assert len(found.candidates) and set(found.candidates.cp) == {1}


def test_degrees_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose from dp,tp,pp"):
        chosen(written(tmp_path), tmp_path / "out", fix={"zz": 2})


def test_where_no_plan_is_found_in_time_the_quickest_by_the_estimate_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Path] = []

    def out_of_time(candidates: Sequence[CandidateFile], *_: object, **__: object) -> Ranking:
        seen.extend(candidate.path for candidate in candidates)
        rows = [{"cost": float("nan"), "status": "no_solution", "file": str(path), "reason": ""} for path in seen]
        return Ranking(pd.DataFrame(rows[::-1]), tmp_path / "none.csv", None)

    monkeypatch.setattr(model_job, "rank", out_of_time)
    path = written(tmp_path, None, **WIDE, num_hidden_layers=16, vocab_size=32000)
    config = read_config(chosen(path, tmp_path / "out"))
    assert config.strategy == read_config(seen[0]).strategy
    assert "quickest by the estimate" in caplog.text
