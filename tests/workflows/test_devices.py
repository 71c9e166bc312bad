"""A file is judged on the device of its family where nobody names one, on every road; a named one goes before it."""

from __future__ import annotations

from pathlib import Path

import pytest

import taylor
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.nd_search.options import SearchOptions
from taylor.parsers.read import read_config
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.ranking.candidates import load_candidates, rank_folder
from taylor.workflows.ranking.rank import RankOptions
from taylor.workflows.searching.search import StrategySearchOptions, search_strategies
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.devices import choose_device
from taylor.workflows.statement.options import DryRunOptions, FileJob, Outputs
from tests.conftest import ROOT
from tests.parsers.torchtitan.test_files import BASE as TOML

SCRIPT = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text(encoding="utf-8")
LIMITS = {"h100-80g": 81039.0, "ascend-910b": 59392.0}
USUAL = {"megatron.sh": "h100-80g", "mindspeed.sh": "ascend-910b"}


@pytest.fixture(params=USUAL)
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The sample script in a folder of its own: as it is, and with a flag of MindSpeed's."""
    path = tmp_path / "files" / request.param
    path.parent.mkdir()
    more = "" if request.param == "megatron.sh" else "    --use-fused-swiglu\n"
    path.write_text(SCRIPT.replace("    --swiglu\n", "    --swiglu\n" + more), encoding="utf-8")
    return path


def test_a_script_is_planned_for_its_family_s_device_on_every_road(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    usual = USUAL[script.name]
    # Without risk, so that the limit is the device's own.
    margin = MemoryMargin(risk=0.0)
    job = FileJob(script, dryrun=False, check=False, ratios=taylor.TimeRatios(), margin=margin)
    outputs = Outputs(folder=tmp_path / "out", write=False)
    for planned in (evaluate_file(job, outputs), solve_file(job, SolveOptions(time_limit=10), outputs)):
        assert planned.facts.device.spec.name == usual
        assert set(planned.problem.limit_mib) == {LIMITS[usual]}
    space = SearchOptions(profile_num=1)
    found = search_strategies(
        StrategySearchOptions(
            script, space, DryRunOptions("estimate"), output=tmp_path / "nd" / "nd_output", margin=margin
        )
    )
    assert (found.device.name, found.result.device_limit_mib) == (usual, LIMITS[usual])
    estimate = DryRunOptions("estimate")
    how = RankOptions(SolveOptions(time_limit=10), workers=1, report=False)
    ranking = rank_folder(script.parent, how, dryruns=estimate, margin=margin)
    assert str(int(LIMITS[usual])) in ranking.table["memory_limit"][0]
    own = taylor.evaluate(script)
    assert own.planned is not None and own.planned.facts.device.spec.name == usual
    assert taylor.search(script, profile_num=1).result.device.name == usual


def test_a_device_that_is_named_goes_before_the_family_s(script: Path) -> None:
    for named in ("a100-80g", taylor.Registry.load().device("a100-80g")):
        chosen = choose_device(read_config(script), named)
        assert (chosen.spec.name, chosen.assumption) == ("a100-80g", None)
        assert load_candidates([script], named)[0].memory == load_candidates([script], "a100-80g")[0].memory
    with pytest.raises(taylor.InputError, match="--device"):
        choose_device(read_config(script), "no-such-card")


def test_a_default_is_said_in_one_line(tmp_path: Path) -> None:
    toml, yaml = tmp_path / "job.toml", ROOT / "config" / "pretrain_llama2_7b.yaml"
    toml.write_text(TOML, encoding="utf-8")
    said = [choose_device(read_config(path)).assumption for path in (toml, yaml)]
    assert said == [
        "no device named: h100-80g (80 GiB), the default for torchtitan files; --device names another",
        "no device named: ascend-910b (64 GiB), the default for MindFormers files; --device names another",
    ]
