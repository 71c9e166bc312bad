"""Planning with recompute by module and offload: what a user asks for, is told, and finds in the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.margin import MemoryMargin
from taylor.parsers.megatron.recompute import by_module, nearest_plan, uniform_choices
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.result import read_result
from taylor.workflows.options import FileJob, Outputs
from taylor.workflows.solve_file import solve_file
from taylor.workflows.stated_file import StatedFile
from tests.solver_cases import plan_of

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCRIPT = CONFIG / "pretrain_llama3_70b.sh"
MARGIN = MemoryMargin(mib=20_000)


def job(**changes):
    return FileJob(path=SCRIPT, dryrun=False, check=False, **changes)


def solved(folder, **changes):
    outputs = Outputs(folder / "out", write_to=folder / "plan.sh", result_json=folder / "plan.json")
    return solve_file(job(**changes), SolveOptions(time_limit=60), outputs)


def test_offload_beats_recompute_alone_and_stands_in_the_script(tmp_path):
    """With a margin that recompute pays for: the modules that are moved are flags of the script, which reads back."""
    alone = solved(tmp_path, margin=MARGIN)
    found = solved(tmp_path, margin=MARGIN, offload=True, recompute_modules=True)
    assert found.solution.objective < alone.solution.objective
    (used,) = [mode for mode in found.plan.recompute if found.plan.uses(mode)]
    assert "offload:" in used
    text = (tmp_path / "plan.sh").read_text()
    assert "--fine-grained-activation-offloading" in text
    assert f"--offload-modules {' '.join(used.partition('offload:')[2].split('+'))}" in text
    written = read_config(tmp_path / "plan.sh")
    assert written.plan is not None and written.plan.layers == found.plan.layers and not written.plan.uses(FULL)
    data = json.loads((tmp_path / "plan.json").read_text())
    assert max(data["host_memory"]) > 0 and 0 < max(data["host_link"]) < 1
    assert any(sentence.startswith("offload: 80%") for sentence in data["assumed"])
    assert read_result(tmp_path / "plan.json").plan == found.plan


def test_modules_that_are_not_asked_for_change_nothing_of_the_problem():
    file = StatedFile.read(job())
    problem = file.problem(file.obtain_memory(None, Path()))
    assert problem.choices == () and all(not kind.choices for kind in problem.kinds)


def test_files_that_cannot_say_modules_are_refused_with_the_flag_named():
    with pytest.raises(InputError, match="cannot be said by MindFormers"):
        StatedFile.read(FileJob(path=CONFIG / "pretrain_llama2_7b.yaml", offload=True))
    with pytest.raises(InputError, match="needs the bandwidth between ascend-910b and its host"):
        StatedFile.read(job(device="ascend-910b", offload=True))


def test_one_choice_by_module_for_all_layers_is_what_megatron_can_say():
    name = "layernorm+offload:core_attn"
    assert uniform_choices(3, (FULL, name))[-1] == (name, 3)
    plan = plan_of({"dense": [[2, 2]]}, {FULL: [[0, 0]], name: [[2, 2]], "mlp": [[0, 0]]})
    assert nearest_plan(plan) == (plan, ())
    plain, flags = by_module(plan)
    assert plain.recompute == {SELECT: ((2, 2),)}
    assert flags["recompute-modules"] == ("layernorm",) and flags["offload-modules"] == ("core_attn",)
    unused, flags = by_module(plan_of({"dense": [[2, 2]]}, {FULL: [[1, 1]], name: [[0, 0]]}))
    assert unused.recompute == {FULL: ((1, 1),)}
    assert flags == {"fine-grained-activation-offloading": False, "offload-modules": False}
    assert by_module(plan_of({"dense": [[2, 2]]}, {FULL: [[1, 1]]}))[1] == {}
