"""Plans in the words of other launchers, from the command line."""

from __future__ import annotations

import json

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.command_lines import pipeline_parallel
from taylor.parsers.megatron.layout import expand_layout
from taylor.pipeline.chunks import Placement
from taylor.pipeline.plan import FULL
from taylor.register.model import DENSE, MOE, MTP
from taylor.workflows.statement.export import with_mtp
from tests.conftest import ROOT
from tests.solver_cases import plan_of

pytestmark = pytest.mark.slow  # its fixtures take ten seconds and more


@pytest.fixture
def solved(run_tool, reference_yaml, tmp_path):
    """The reference case solved, its layers exported in three ways."""
    run = run_tool(
        "pipeline_parallel.py",
        "-yaml",
        reference_yaml,
        "-memory",
        "memory.json",
        "-layer_ratio",
        "0.397",
        "-b_ratio",
        "1.839",
        "--result_json",
        "result.json",
        "--export",
        "megatron-layout",
        "--export",
        "mindspeed-list=lists/layers.txt",
        "--export=json=plan.json",
    )
    assert run.returncode == 0, run.stderr
    return run, json.loads((tmp_path / "result.json").read_text())


def test_a_solve_exports_to_files_and_to_the_terminal(solved, tmp_path):
    run, result = solved
    held = [sum(rows[0][s] for rows in result["layers"].values()) for s in range(16)]
    layout = next(line for line in run.stdout.splitlines() if line.startswith("megatron-layout: "))
    stages = expand_layout(layout.split(": ", 1)[1])
    assert [stage.count("t") + stage.count("m") for stage in stages] == held
    # The legacy file counts its MTP layer among the 62: in a layout it is an m, the last one.
    assert stages[-1].count("m") == 1 and sum(stage.count("m") for stage in stages) == 1
    listed = [int(count) for count in (tmp_path / "lists" / "layers.txt").read_text().split(",")]
    assert listed == [*held[:-1], held[-1] - 1]
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["recompute"][FULL] == result["recompute"][FULL] and plan["offset"] == result["offset"]
    assert result["files"]["export json"] == "plan.json"
    assert "not which are recomputed" in run.stderr


def test_a_saved_result_exports_the_same(solved, run_tool, tmp_path):
    run, _ = solved
    again = run_tool(
        "pipeline_parallel.py",
        "-extract",
        "y",
        "-solution",
        "result.json",
        "--export",
        "megatron-layout",
        "--export",
        "json=again.json",
        "--export",
        "mindformers=part.yaml",
    )
    assert again.returncode == 0, again.stderr
    layout = next(line for line in run.stdout.splitlines() if line.startswith("megatron-layout: "))
    assert layout in again.stdout.splitlines()
    assert (tmp_path / "again.json").read_text() == (tmp_path / "plan.json").read_text()
    fragment = yaml.safe_load((tmp_path / "part.yaml").read_text())
    written = yaml.safe_load((tmp_path / "deepseek3.yaml").read_text())
    assert fragment["model"]["model_config"]["offset"] == written["model"]["model_config"]["offset"]
    assert fragment["recompute_config"]["recompute"] == written["recompute_config"]["recompute"]


def test_a_sol_file_is_refused_with_what_to_name_instead(solved, run_tool, tmp_path):
    sol = next((tmp_path / "pipeline_output" / "sol_output").glob("*.sol"))
    run = run_tool("pipeline_parallel.py", "-extract", "y", "-solution", sol, "--export", "json")
    assert run.returncode == 2 and "--result_json" in run.stderr


def test_what_a_form_cannot_say_is_told_before_anything_is_solved(run_tool, reference_yaml, tmp_path):
    run = run_tool(
        "pipeline_parallel.py",
        "-yaml",
        reference_yaml,
        "-memory",
        "memory.json",
        "-vpp",
        "2",
        "--export",
        "mindspeed-list",
    )
    assert run.returncode == 2 and "--num-layer-list" in run.stderr
    assert not (tmp_path / "pipeline_output").exists()


def test_an_unknown_form_is_refused_with_those_there_are():
    with pytest.raises(InputError, match="megatron-layout"):
        pipeline_parallel.build_parser().parse(["-yaml", str(ROOT / "config" / "x.yaml"), "--export", "slurm=f"])


@pytest.mark.parametrize(
    ("v_shape", "dense", "moe", "mtp"),
    [
        (False, [[1, 1], [0, 0]], [[0, 2], [3, 0]], [[0, 0], [0, 2]]),
        (True, [[1, 1], [0, 0]], [[0, 2], [1, 2]], [[0, 0], [2, 0]]),
    ],
)
def test_the_last_layers_in_model_order_are_the_mtp_ones(v_shape, dense, moe, mtp):
    plan = plan_of({DENSE: [[1, 1], [0, 0]], MOE: [[0, 2], [3, 2]]})
    placement = Placement.shaped(plan.stages, plan.interleaves, v_shape=v_shape)
    named = with_mtp(plan, 2, placement)
    assert named.layers == plan_of({DENSE: dense, MOE: moe, MTP: mtp}).layers
    assert with_mtp(named, 2, placement) is named
