"""`taylor layerwise`: a job searched layer by layer, from profiles or a search file."""

from __future__ import annotations

import json
import os
import re
import subprocess
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.console import run_command
from taylor.base.errors import EXIT_INTERRUPTED, InfeasibleError, InputError, InterruptedSolve, WriteError
from taylor.command_lines import check, layerwise, main
from taylor.command_lines.layerwise_options import search_request
from taylor.layerwise import search as searching
from taylor.parsers.galvatron.strategy_file import read_strategy
from taylor.pipeline_solver.milp.cbc import cbc_path
from taylor.workflows.layerwise import layerwise_outputs, layerwise_search
from tests import galvatron_cases as cases

JOB = ["--hidden", "1024", "--seq", "4096"]
SMALL = ["--world_size", "8", "--layers", "6", *JOB, "--gbs", "16", "--micro_batches", "8", "--memory", "8"]

SEARCH_FILE = """
SEQ: 4096
search_engine:
  model_info: {hidden_size: 1024, num_layers: 6, model_size: toy}
  common_train_info: {seq_length: "${SEQ}", global_memory_buffer: false}
  parallelism_info: {default_dp_type: zero2, pipeline_type: pipedream_flush, mixed_precision: bf16}
  hardware_info: {num_nodes: 1, num_gpus_per_node: 8, memory_constraint: 8}
  batch_size_info: {settle_bsz: 16, settle_chunk: 8}
  profiling_info: {time_profile_mode: sequence}
"""


@pytest.fixture
def profiles(tmp_path):
    return str(cases.write_folder(tmp_path / "profiles"))


def searched(words, capsys):
    layerwise.run([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_the_plan_is_written_as_the_runtime_reads_it_and_beats_galvatrons_own(profiles, tmp_path, capsys):
    found = searched([profiles, *SMALL, "-o", str(tmp_path), "--html", str(tmp_path / "page.html")], capsys)
    assert found["status"] == "optimal" and found["gap"] <= 1e-3
    assert found["samples_a_s"] >= found["galvatron"]["samples_a_s"] * (1 - 1e-3)
    strategy = found["files"]["strategy"]
    assert strategy.endswith("galvatron_config_toy_1nodes_8gpus_per_node_8GB_bf16_bsz16.json")
    plan = read_strategy(tmp_path / strategy).plan
    assert list(plan.division) == found["plan"]["division"]
    check.run([strategy, "--profiles", profiles, *JOB, "--memory", "8", "--json"])
    assert json.loads(capsys.readouterr().out)["step_s"] == pytest.approx(found["step_s"], rel=1e-9)
    page = (tmp_path / "page.html").read_text()
    assert "What was tried, and what cut it off" in page and "Galvatron&#x27;s plan" in page


@pytest.mark.skipif(cbc_path() is None, reason="CBC is not installed")
def test_another_solver_finds_the_step_of_the_plan_in_the_model_file(profiles, tmp_path, capsys):
    few = ["--max_tp_deg", "2", "--disable_sp", "y", "--pp", "2", "--micro_batches", "4", "--rival", "n"]
    model = tmp_path / "job.mps"
    found = searched([profiles, *SMALL, *few, "--gap", "1e-6", "-o", str(tmp_path), "--mps", str(model)], capsys)
    assert found["files"]["model"] == str(model)
    told = subprocess.run([cbc_path(), str(model), "-sec", "60", "-ratio", "1e-7", "-solve"],
                          capture_output=True, text=True, check=True).stdout  # fmt: skip
    objective = float(re.search(r"Objective value:\s+(\S+)", told)[1])
    assert "Optimal solution found" in told and objective == pytest.approx(found["step_s"], rel=1e-5)


def test_a_search_file_says_the_whole_job_and_the_command_line_wins(profiles, tmp_path, capsys):
    file = tmp_path / "search_dist.yaml"
    file.write_text(SEARCH_FILE)
    words = [str(file), profiles, "--rival", "n", "-o", str(tmp_path)]
    found = searched(words, capsys)
    assert (found["world"], found["layers"], found["plan"]["global_batch"]) == (8, 6, 16)
    assert found["plan"]["micro_batches"] == 8 and found["galvatron"] is None
    other = searched([*words, "--gbs", "32", "--micro_batches", "4", "--fine_grained_mode", "0"], capsys)
    assert (other["plan"]["global_batch"], other["plan"]["micro_batches"]) == (32, 4)
    assert len({json.dumps(layer) for layer in other["plan"]["layers"]}) == 1


def test_encoder_and_decoder_have_strategies_of_their_own(tmp_path, capsys):
    folder = cases.write_folder(tmp_path / "profiles")
    for each in folder.glob("*_profiling_*"):
        each.unlink()
    held = {"parameter_size": 200.0, "tp_activation_per_bsz_dict": {n: 400.0 / n for n in (1, 2, 4, 8)}}
    held["tp_activation_per_bsz_dict"]["checkpoint"] = 40.0
    less = held | {"parameter_size": 100.0}
    ends = {"model_states": {n: 2000.0 / n for n in (1, 2, 4, 8)}, "activation": {n: 80.0 / n for n in (1, 2, 4, 8)}}
    memory = {"layertype_0_sp": {"4096": held}, "layertype_1_sp": {"4096": less}}
    memory |= {f"other_memory_pp_{end}_sp": {"4096": ends} for end in ("off", "on_first", "on_last")}
    times = {"layertype_0_bsz1_seq4096": 9.0, "layertype_1_bsz1_seq4096": 4.0, "layertype_other_bsz1_seq4096": 3.0}
    (folder / "memory_profiling_bf16_t5_all.json").write_text(json.dumps(memory))
    (folder / "computation_profiling_bf16_t5_all.json").write_text(json.dumps(times))
    words = [str(folder), *SMALL, "--layers", "2,6", "--pp", "2", "-o", str(tmp_path)]
    found = searched(words, capsys)
    assert found["status"] == "optimal" and sum(found["plan"]["division"]) == 8
    price = [found["files"]["strategy"], "--profiles", str(folder), *JOB, "--memory", "8", "--json", "--layers"]
    check.run([*price, "2,6"])
    assert json.loads(capsys.readouterr().out)["step_s"] == pytest.approx(found["step_s"], rel=1e-9)
    for layers, told in (("8", "2 kinds of layers: encoder, decoder"), ("2,5", "makes 7 layers")):
        with pytest.raises(InputError, match=told):
            check.run([*price, layers])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--profile_gpu_num", "16"], "--profile_gpu_num: contradicts the search's 8 ranks (found 16)"),
        (["--layernum", "8"], "--layernum: contradicts the profiles' 6 layers"),
        (["--num_layertype", "2"], "has 1 numbers, and --num_layertype is 2"),
        (["--micro_batches", "5"], "does not divide the batch of 16 (found '5')"),
        (["--min_bsz", "8"], "--min_bsz: contradicts the settled batch of 16"),
        (["--mixed_precision", "fp16"], "was measured in bf16"),
        (["--disable_pp", "y", "--pp", "2"], "--pp: contradicts --disable_pp"),
        (["--zeros", "0,2"], "Hetu's runtime takes one of them"),
        (["--default_dp_type", "ddp", "--zeros", "2,3"], "contradicts --zeros"),
        (["--memory_profile_mode", "sequence", "--sequence_parallel", "n"], "which is off"),
        (["--time_profile_mode", "hybrid"], "is no mode of its search"),
        (["--search_granularity", "coarse-grained", "--fine_grained_mode", "1"], "contradicts --fine_grained_mode"),
        (["--world_size", "16"], "no cluster with 16 ranks"),
    ],
)
def test_contradictions_between_options_name_the_flag_the_value_and_the_cure(profiles, words, told):
    with pytest.raises(InputError) as error:
        layerwise.run([profiles, *SMALL, *words])
    assert told in str(error.value) and error.value.cure


def test_a_wrong_value_of_a_search_file_is_named_with_its_file_and_field(profiles, tmp_path):
    file = tmp_path / "search.yaml"
    for old, new, told in (
        ("settle_chunk: 8", "settle_chunk: 3", "batch_size_info.settle_chunk: does not divide the batch of 16"),
        ("default_dp_type: zero2", "default_dp_type: zero9", "parallelism_info.default_dp_type: is unknown"),
        ('"${SEQ}"', '"${SEQ"', "seq_length: must be a whole number"),
        ('"${SEQ}"', '"${NONE}"', "refers to NONE, which is not there"),
        ("SEQ: 4096", 'SEQ: "${SEQ}"', "refers to itself"),
    ):
        file.write_text(SEARCH_FILE.replace(old, new))
        with pytest.raises(InputError, match="search.yaml") as error:
            layerwise.run([str(file), profiles])
        assert told in str(error.value)


def test_options_without_effect_are_said_to_have_none(profiles, tmp_path, capsys):
    words = ["--log_dir", "logs", "--rival", "n", "-o", str(tmp_path)]
    layerwise.run([profiles, *SMALL, *words])
    assert "--log_dir has no effect" in capsys.readouterr().err


def test_every_option_of_paddles_script_is_a_flag():
    script = Path(__file__).parents[3] / "shared/data/paddle_galvatron/scripts/search_dist.sh"
    if not script.is_file():
        pytest.skip("needs the published script")
    flags = re.findall(r"^\s+(--\w+)", script.read_text(), flags=re.MULTILINE)
    known = {flag for action in layerwise.build_parser()._actions for flag in action.option_strings}
    assert len(flags) == 28 and set(flags) <= known


def test_the_number_of_processes_is_asked_for_as_in_both_manuals(profiles, tmp_path):
    def workers(*words):
        return search_request(layerwise.build_parser().parse([profiles, *SMALL, *words]))[1].workers

    assert workers() == os.cpu_count() and workers("--worker", "0", "--parallel_search", "1") == os.cpu_count()
    assert workers("--worker", "3") == 3 and workers("--parallel_search", "0") == 1
    with pytest.raises(InputError, match="worker: contradicts --parallel_search n"):
        workers("--worker", "3", "--parallel_search", "n")
    file = tmp_path / "search.yaml"
    file.write_text(SEARCH_FILE + "\n  options_info: {parallel_search: false, worker: 4}\n")
    told = layerwise.build_parser().parse([str(file), profiles])
    assert search_request(told)[1].workers == 1


def test_further_processes_change_nothing_but_the_time(profiles, tmp_path, capsys, monkeypatch):
    class Counted(Executor):
        """Runs a task when it is sent, and dies of the third."""

        sent = 0

        def submit(self, task, /, *words):
            self.sent += 1
            if self.sent == 3:
                raise BrokenExecutor
            return ProcessPoolExecutor.submit(pool, task, *words)

    def found(*words):
        told = searched([profiles, *SMALL, "--rival", "n", "--vpp", "1,2", "-o", str(tmp_path), *words], capsys)
        return {**told, "seconds": None, "verdict": {**told["verdict"], "command": None}}

    monkeypatch.setattr(searching, "FEW_ROUNDS", 1)  # so that many bounds are too loose to cut off
    alone = found("--worker", "1")
    monkeypatch.setattr(searching, "LONG_SECONDS", 0.0)
    assert found("--worker", "2") == alone
    with ProcessPoolExecutor(1) as pool:
        dying = Counted()
        monkeypatch.setattr(layerwise_search, "open_pool", lambda workers: nullcontext(dying))
        assert found("--worker", "2") == alone
        assert dying.sent == 3


def test_what_fits_nowhere_is_proven_infeasible(profiles, tmp_path):
    with pytest.raises(InfeasibleError, match="fits 0.5 GB on 8 ranks"):
        layerwise.run([profiles, *SMALL[:-1], "0.5", "-o", str(tmp_path)])


def test_interrupting_keeps_the_best_plan_and_says_so(profiles, tmp_path, capsys, monkeypatch):
    words, whole = [profiles, *SMALL, "-o", str(tmp_path), "--json"], searching.solve_fixed
    monkeypatch.setattr(searching, "solve_fixed", lambda *a, **k: replace(whole(*a, **k), interrupted=True))
    assert run_command(lambda: main.run(["layerwise", *words])) == EXIT_INTERRUPTED
    shown = capsys.readouterr()
    assert "interrupted" in shown.err.splitlines()[-1]
    found = json.loads(shown.out)
    assert read_strategy(tmp_path / found["files"]["strategy"]).plan.global_batch == 16
    monkeypatch.setattr(searching, "solve_fixed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(InterruptedSolve, match="interrupted before any plan"):
        layerwise.run(words)


def test_a_strategy_file_that_cannot_be_written_costs_no_plan(profiles, tmp_path, capsys, monkeypatch):
    def fail(*_, **__):
        raise WriteError("no room", file="strategy.json")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(layerwise_outputs, "write_strategy", fail)
    layerwise.run([profiles, *SMALL])
    said = capsys.readouterr().out
    assert "step" in said and " samples/s, " in said and " tokens/s" in said
    with pytest.raises(WriteError, match="requested and not written: strategy"):
        layerwise.run([profiles, *SMALL, "-o", "here"])
    assert "step" in capsys.readouterr().out


def test_a_model_is_not_listed_where_there_is_none_and_no_timeline_is_made_for_it(
    profiles, tmp_path, capsys, monkeypatch
):
    whole = layerwise_search.search_job

    def without_model(*args, **named):
        found = whole(*args, **named)
        return replace(found, result=replace(found.result, problem=None))

    monkeypatch.setattr(layerwise_search, "search_job", without_model)
    monkeypatch.setattr(layerwise_outputs, "layerwise_timeline", None)
    target = tmp_path / "model.mps"
    with pytest.raises(WriteError, match="requested and not written: model"):
        layerwise.run([profiles, *SMALL, "-o", str(tmp_path), "--mps", str(target)])
    assert "step" in capsys.readouterr().out and not target.exists()


@pytest.mark.parametrize(
    ("flag", "function"),
    [("--html", "write_html_report"), ("--trace", "write_chrome_trace"), ("--png", "write_picture"),
     ("--mps", "write_milp"), ("--result_json", "write_document")],
)  # fmt: skip
def test_a_requested_file_that_is_missing_is_no_success(profiles, tmp_path, capsys, monkeypatch, flag, function):
    def fail(*_, **__):
        raise WriteError("no room", file="target")

    monkeypatch.setattr(layerwise_outputs, function, fail)
    target = str(tmp_path / "target.svg")
    with pytest.raises(WriteError, match="target.svg"):
        layerwise.run([profiles, *SMALL, "-o", str(tmp_path), flag, target])
    assert "step" in capsys.readouterr().out
