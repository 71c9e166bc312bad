"""From a configuration file to a plan that the stage model confirms, and a search by few dry-runs."""

from __future__ import annotations

import base64
import gzip
import json
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.tower import TowerRun
from taylor.dryrun import torch_backend
from taylor.dryrun.torch_backend import TorchBackend
from taylor.nd_search.options import SearchOptions
from taylor.parsers.read import read_config
from taylor.register.adapters import EMBEDDING, Adapters
from taylor.register.tower import TowerSpec
from taylor.workflows.searching.explain import explain_strategy
from taylor.workflows.searching.search import StrategySearchOptions, search_strategies
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.dryrun_backend import open_backend
from taylor.workflows.statement.options import DryRunOptions, FileJob, Outputs
from tests.conftest import ROOT
from tests.torch_cases import LLAMA3_70B, STAND_IN, StandIn

LLAMA_YAML = ROOT / "config" / "pretrain_llama3_70b.yaml"
MIXTRAL_YAML = ROOT / "config" / "pretrain_mixtral_8x7b.yaml"

TOML = """\
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 8
seq_len = 8192
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 8
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "1F1B"
[activation_checkpoint]
mode = "full"
"""


@pytest.fixture
def standin(tmp_path, monkeypatch):
    monkeypatch.setattr("taylor.dryrun.torch_backend.TorchBackend", partial(TorchBackend, module=STAND_IN))
    monkeypatch.chdir(tmp_path)
    return StandIn(tmp_path, monkeypatch)


def script(tmp_path, micro_batch=1):
    path = tmp_path / "llama3_70b.sh"
    path.write_text(LLAMA3_70B.replace("--micro-batch-size 1", f"--micro-batch-size {micro_batch}"))
    return path


def job_on(path, **changes):
    return FileJob(path, **{"dryruns": DryRunOptions("torch"), "device": "h100-80g", **changes})


def solve(path, device="h100-80g", **outputs):
    return solve_file(job_on(path, device=device), outputs=Outputs(write=False, **outputs))


@pytest.mark.slow
@pytest.mark.parametrize("factors", [{}, {"activations": 1.2, "workspace": 0.4}, {"weights": 0.8, "logits": 1.5}])
def test_the_check_ends_with_a_plan_that_holds_in_few_dry_runs(tmp_path, standin, factors):
    standin.tell(factors=factors)
    solved = solve(script(tmp_path, micro_batch=2))
    assert solved.memory.source == "dry-run" and solved.dryrun is not None
    limit = solved.memory.device_limit_mib
    assert len(solved.dryrun.stages) == 4
    assert all(peak.peak_mib <= limit for peak in solved.dryrun.stages)
    # Two samples a micro-batch do not fit in even stages without recompute: layers are recomputed, or move to later
    # stages, whichever takes less; and one stage at least is filled well.
    plan = solved.solution.plan
    assert any(map(any, plan.recompute["full"])) or plan.layers["dense"][0][0] < 20
    assert max(peak.peak_mib for peak in solved.dryrun.stages) > 0.9 * limit
    # Six unknowns and three runs more, then four stages a round of the check.
    assert len(standin.starts()) <= 9 + 3 * 4


@pytest.mark.slow
def test_the_result_shows_the_dry_run_by_category_beside_the_closed_forms(tmp_path, standin):
    standin.tell(factors={"activations": 1.25})
    solve(script(tmp_path), result_json=tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert [entry["stage"] for entry in result["dryrun"]] == [0, 1, 2, 3]
    for entry in result["dryrun"]:
        assert entry["source"] == "torch" and entry["failure"] == ""
        assert sum(entry["categories"].values()) == pytest.approx(entry["peak_mib"], abs=0.1)
        ratio = entry["categories"]["activations dense"] / entry["estimate"]["activations dense"]
        assert ratio == pytest.approx(1.25, rel=1e-6)
        assert entry["categories"]["weights"] == entry["estimate"]["weights"]


@pytest.mark.slow
def test_trace_and_page_show_the_dry_run_task_by_task_beside_the_planned_memory(tmp_path, standin):
    solved = solve(script(tmp_path), trace=tmp_path / "trace.json", html=tmp_path / "page.html")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    for stage, peak in enumerate(solved.dryrun.stages):
        counter = [event for event in events if event["name"] == "memory by dry-run MiB" and event["pid"] == stage + 1]
        assert max(event["args"]["used"] for event in counter) == pytest.approx(
            max(moment.peak_mib for moment in peak.memory.moments)
        )
        tasks = [
            event
            for event in events
            if event["ph"] == "X" and event["pid"] == stage + 1 and "direction" in event["args"]
        ]
        assert {event["ts"] for event in counter} <= {t["ts"] for t in tasks} | {t["ts"] + t["dur"] for t in tasks}
    page = (tmp_path / "page.html").read_text()
    packed = page.split('<script id="report-data" type="application/octet-stream">')[1].split("</script>")[0]
    data = json.loads(gzip.decompress(base64.b64decode(packed)))
    curves = data["plans"]["llama3_70b"]["dryrun"]
    assert len(curves) == 4 and all(len(curve["time"]) > 32 for curve in curves)


def test_evaluating_the_files_own_plan_dry_runs_that_plan(tmp_path, standin):
    solved = evaluate_file(job_on(script(tmp_path), dryrun=False))
    assert [peak.stage for peak in solved.dryrun.stages] == [0, 1, 2, 3] and len(standin.starts()) == 4
    assert solved.dryrun.run.plan.layers == read_config(script(tmp_path)).plan.layers


@pytest.mark.slow
def test_a_second_call_finds_everything(tmp_path, standin):
    first = solve(script(tmp_path))
    before = len(standin.starts())
    again = solve(script(tmp_path))
    assert len(standin.starts()) == before
    assert again.solution.plan == first.solution.plan


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sh", "toml", "yaml"])
def test_every_kind_of_file_gets_its_memory_from_the_stage_model(tmp_path, standin, kind):
    if kind == "yaml":
        path = tmp_path / "a.yaml"
        path.write_bytes(LLAMA_YAML.read_bytes())
    else:
        path = tmp_path / f"a.{kind}"
        path.write_text(LLAMA3_70B if kind == "sh" else TOML)
    solved = solve(path, device="h200-141g")
    assert solved.memory.source == "dry-run" and standin.starts()
    assert all(peak.source == "torch" and peak.peak_mib for peak in solved.dryrun.stages)


@pytest.mark.slow
def test_a_search_runs_two_expert_degrees_a_family_and_says_torch_decided(tmp_path, standin):
    standin.tell(factors={"weights": 1.1, "gradients": 1.1, "optimizer": 1.1})
    options = StrategySearchOptions(
        MIXTRAL_YAML,
        SearchOptions(gbs=256, world_size=64, max_expert_parallel=8),
        DryRunOptions("torch"),
        device="h100-80g",
        output=Path("output/nd_output"),
    )
    done = search_strategies(options)
    plan = pd.read_csv("output/nd_output/dryrun_plan.csv")
    assert set(plan["source"]) == {"torch"} and plan["measured_mib"].notna().all()
    assert len(standin.starts()) == len(plan) <= 100
    families = plan.groupby(["dp", "tp", "pp", "cp", "vpp", "mbs"])["ep"]
    assert families.nunique().max() == 2
    # Strategies that were run themselves, and those between them.
    assert set(pd.read_csv(done.candidates_csv)["source"]) == {"torch", "fit"}


def test_an_explanation_dry_runs_the_strategy_beside_the_closed_forms(tmp_path, standin):
    options = StrategySearchOptions(
        MIXTRAL_YAML, SearchOptions(gbs=256, world_size=64), DryRunOptions("torch"), device="h100-80g"
    )
    told = explain_strategy(options, "DP8_TP4_PP2_EP8")
    assert [memory.stage for memory in told.measured] == [0, 1]
    for memory, closed in zip(told.measured, told.stages, strict=True):
        assert memory.peak_mib == pytest.approx(closed.total, rel=1e-9)


def test_without_torch_it_is_refused_with_what_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_backend, "torch_version", lambda: None)
    with pytest.raises(InputError, match=r"pip install 'taylor-parallel\[torch\]'"):
        open_backend(DryRunOptions("torch"), read_config(script(tmp_path)), tmp_path)


def test_auto_never_chooses_torch_and_names_it_for_a_script_on_gpus(tmp_path, caplog):
    caplog.set_level("INFO", logger="taylor")
    with open_backend(DryRunOptions("auto"), read_config(script(tmp_path)), tmp_path) as backend:
        assert backend is None
    assert "--dryrun_backend torch measures its stages" in caplog.text and "mindspore" not in caplog.text


@pytest.mark.parametrize(
    ("changes", "found"),
    [({"adapters": Adapters(8, decomposed=True)}, "DoRA's adapters"), ({"mlp_tiles": 4}, "a tiled MLP")],
    ids=["DoRA", "tiled"],
)
def test_jobs_that_the_stage_model_lacks_are_not_measured_as_others(tmp_path, changes, found):
    config = read_config(script(tmp_path))
    config = config.replace(rules=config.rules.replace(**changes))
    with pytest.raises(InputError, match=f"--dryrun_backend: measures .*, and this job has {found}.*estimate"):
        open_backend(DryRunOptions("torch"), config, tmp_path)
    with open_backend(DryRunOptions("auto"), config, tmp_path) as backend:
        assert backend is None


@pytest.mark.parametrize("changes", [{"adapters": Adapters(8)}, {"frozen": (EMBEDDING,)}], ids=["LoRA", "frozen"])
def test_jobs_that_train_a_part_are_measured(tmp_path, changes):
    config = read_config(script(tmp_path))
    with open_backend(
        DryRunOptions("torch"), config.replace(rules=config.rules.replace(**changes)), tmp_path
    ) as backend:
        assert isinstance(backend, TorchBackend)


def test_jobs_with_a_vision_encoder_are_not_measured_without_it(tmp_path):
    """The stage model has the language model alone, and measured memory is taken to include the encoder."""
    config = read_config(script(tmp_path)).replace(tower=TowerRun(TowerSpec(32, 1280, 16, 80, 3420)))
    with pytest.raises(InputError, match="this job has a vision encoder"):
        open_backend(DryRunOptions("torch"), config, tmp_path)
