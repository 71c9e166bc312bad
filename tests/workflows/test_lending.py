"""Planning with activations on other stages: what a user asks for, is told, and cannot write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.choices.lending import leaves_node, lending_costs
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.memory.activations import activation_bytes
from taylor.pipeline.plan import NONE
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.result import read_result
from taylor.workflows.showing.verdict import summary
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.lending import LEND, LEND_OVERLAPPED, lenders_of
from taylor.workflows.statement.options import AskedModules, FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile

SCRIPT = Path(__file__).resolve().parents[2] / "config" / "pretrain_llama3_70b.sh"


def job(lend: str = "mirror", **changes) -> FileJob:
    return FileJob(path=SCRIPT, dryrun=False, check=False, lend=lend, **changes)


def test_mirror_pairs_the_first_half_with_the_second_and_pairs_are_taken_as_they_stand():
    assert lenders_of("", 4) == ()
    assert lenders_of("mirror", 4) == (3, 2, -1, -1)
    assert lenders_of("mirror", 5) == (4, 3, -1, -1, -1)
    assert lenders_of("0:3, 1:3", 4) == (3, 3, -1, -1)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("mirrored", "neither mirror nor pairs"),
        ("0:9", "the job has stages 0 to 3"),
        ("0:1,1:2", "stage 1 is a lender and lends away itself"),
        ("0:3,0:2", "names stage 0 twice"),
        ("0:-1", "neither mirror nor pairs"),
        ("0:³", "neither mirror nor pairs"),
        (",".join(["0:3"] * 2), "names stage 0 twice"),
    ],
)
def test_what_cannot_be_lent_is_refused_with_the_flag_and_a_cure(asked, words):
    with pytest.raises(InputError) as refusal:
        StatedFile.read(job(asked))
    assert words in str(refusal.value) and "--lend" in str(refusal.value) and "STAGE:LENDER" in str(refusal.value)


def test_one_stage_has_no_other_to_lend_to():
    with pytest.raises(InputError, match="has no other"):
        lenders_of("mirror", 1)


def test_a_layer_lent_whole_moves_all_that_it_keeps_and_waits_for_the_rest_of_its_transfer():
    """52 MiB of the 286 of a layer of LLaMA3-70B at TP 8: the projection's input 16, queries, keys and values 20,
    the context 16; they pass within one layer's forward, and 286 do not."""
    config = StatedFile.read(job()).config
    device = StatedFile.read(job()).device
    costs = lending_costs(config.model, "dense", config.strategy, config.rules, device, [(0, 3)])
    whole = float(activation_bytes(config.model, "dense", NONE, config.strategy, config.rules)) / 2**20
    assert costs.everything.host_mib == pytest.approx(whole) == pytest.approx(286.25)
    assert costs.everything.kept_mib == 0.0
    assert costs.everything.forward == pytest.approx(costs.everything.link - 1.0)
    assert costs.overlapped.host_mib == pytest.approx(52.0)
    assert costs.overlapped.forward == costs.overlapped.backward == 0.0
    assert costs.overlapped.kept_mib == pytest.approx(whole - 52.0)
    assert leaves_node((0, 3), config.strategy, device)


def test_a_problem_with_lenders_keeps_the_file_s_one_choice_and_adds_two():
    file = StatedFile.read(job(modules=AskedModules(recompute=True)))
    problem = file.problem(file.obtain_memory(None, Path("unused")))
    assert problem.lenders == (3, 2, -1, -1)
    assert problem.choices[-2:] == (LEND, LEND_OVERLAPPED) == problem.lending_choices
    assert problem.uniform_recompute and all(
        mode not in problem.lending_choices for mode, _ in problem.uniform_recompute
    )
    kind = problem.kinds[0]
    for name in problem.lending_choices:
        assert kind.choices[name].lent_mib + kind.activation_mib[name] == pytest.approx(kind.activation_mib[NONE])
        assert not kind.choices[name].host_mib


def test_where_each_chunk_has_its_own_recompute_one_choice_lends():
    """MindFormers counts recomputed layers by chunk: what the forward overlaps is the one choice."""
    file = StatedFile.read(FileJob(path=SCRIPT.with_suffix(".yaml"), dryrun=False, check=False, lend="mirror"))
    problem = file.problem(file.obtain_memory(None, Path("unused")))
    assert not problem.uniform_recompute and problem.lending_choices == (LEND_OVERLAPPED,)
    assert problem.lenders == (7, 6, 5, 4, -1, -1, -1, -1)


def test_a_plan_that_lends_is_not_written_and_says_why_before_anything_is_solved(tmp_path):
    with pytest.raises(InputError) as refusal:
        solve_file(job(), SolveOptions(), Outputs(tmp_path))
    assert "no release of any framework keeps activations on another stage" in str(refusal.value)
    assert "-write n" in str(refusal.value) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_report_has_what_is_lent_the_gain_and_its_bound(tmp_path):
    """With 20,000 MiB kept free the first stages are short of memory, and the last ones are not."""
    outputs = Outputs(
        tmp_path, write=False, result_json=tmp_path / "r.json", trace=tmp_path / "t.json", html=tmp_path / "p.html"
    )
    found = solve_file(job(margin=MemoryMargin(mib=20_000)), SolveOptions(time_limit=60), outputs)
    assert found.plan.uses(LEND) or found.plan.uses(LEND_OVERLAPPED)
    told = dict(summary(found))
    assert " MiB on 3" in told["lent"] and "% of the step in each direction" in told["lent"]
    assert "% shorter than the" in told["lending"] and "proven at least" in told["lending"]
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["unlent"]["objective"] > data["objective"]
    assert max(data["lent_memory"]) > 0 and any(sentence.startswith("lending: ") for sentence in data["assumed"])
    assert read_result(tmp_path / "r.json").plan == found.plan
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    used = [(event["pid"], event["args"]["used"]) for event in events if event["name"] == "memory MiB"]
    for stage, peak in enumerate(found.solution.peak_memory_mib):
        assert max(mib for pid, mib in used if pid == stage + 1) == pytest.approx(peak, rel=1e-3)
    moved = [event for event in events if event["name"] == "to the lender" and event["pid"] == 1]
    assert len(moved) == found.problem.micro_batches
    busy = sum(event["dur"] for event in moved) / (data["step_ms"] * 1000)
    assert busy == pytest.approx(data["lent_link"][0], rel=1e-3)
