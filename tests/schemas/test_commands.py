"""Every command with --json prints one valid document on standard output, an error's where it fails."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from taylor.base import documents
from taylor.base.console import run_command, start_logging
from taylor.base.errors import DocumentError, InputError, WriteError
from taylor.command_lines import main
from taylor.pipeline_solver.solving.result import Result
from taylor.schemas.writing import print_document, write_document
from taylor.workflows.ranking import rank_page
from tests import galvatron_cases
from tests.conftest import ROOT
from tests.schemas.documents import check, validator

CONFIG = ROOT / "config" / "pretrain_llama2_7b.yaml"
SCRIPT = ROOT / "config" / "pretrain_llama3_70b.sh"


def printed(capsys, *words: str, code: int = 0):
    """Document of a command line in this process."""
    start_logging()
    assert run_command(lambda: main.run(words), words) == code, capsys.readouterr().err
    shown = capsys.readouterr()
    return check(shown.out), shown.err


@pytest.mark.parametrize("name", main.SUBCOMMANDS)
def test_a_wrong_flag_is_an_error_as_data_and_a_line_of_the_log(name, capsys):
    found, log = printed(capsys, *name.split(), "--json", "--no_such_flag=1", code=2)
    assert (found["schema"], found["code"], found["field"]) == ("taylor.error/1", "bad_input", "--no_such_flag")
    assert "--help lists the flags" in found["cure"] and found["message"] in log


@pytest.mark.parametrize("name", main.SUBCOMMANDS)
def test_the_help_is_a_document_of_lines(name, capsys):
    words = [*name.split(), "--json", "--help"]
    with pytest.raises(SystemExit):
        run_command(lambda: main.run(words), words)
    assert check(capsys.readouterr().out)["lines"][0].startswith(f"usage: taylor {name}")


@pytest.mark.parametrize(
    "words, schema",
    [
        (["models"], "models"), (["models", "glm-5"], "model"), (["devices"], "devices"),
        (["devices", "h100"], "device"), (["rules"], "rules"),
        (["rules", "experts-by-ep"], "rule"),
        (["support", "--launcher", "megatron"], "support"),
        (["schema"], "schemas"), (["schema", "error"], "schema"), (["completion", "bash"], "text"),
        (["why-memory", str(CONFIG)], "reasons"),
        (["solve", str(CONFIG), "-evaluate", "y"], "result"),
        (["search", str(CONFIG), "--dryrun_backend", "estimate", "--profile_num", "3"], "search"),
        (["search", str(CONFIG), "--explain", "DP8_TP1_PP1"], "explanation"),
    ],
)  # fmt: skip
def test_what_a_command_prints_is_its_document(words, schema, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, log = printed(capsys, *words, "--json")
    assert found["schema"] == f"taylor.{schema}/1" and "{" not in log


def test_solved_ranked_and_compared_plans_are_documents_and_so_is_the_history(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    solved, _ = printed(capsys, "solve", str(CONFIG), "--json", "-o", "a.yaml", "--result_json", "r.json")
    written = check((tmp_path / "r.json").read_text())
    assert written == {**solved, "files": written["files"]}
    assert solved["verdict"]["command"].startswith("taylor solve ") and solved["verdict"]["software"]["framework"]
    again, _ = printed(capsys, "solve", "-extract", "y", "-solution", "r.json", "--json")
    assert again["verdict"] == solved["verdict"] and again["problem"] == solved["problem"]
    compared, _ = printed(capsys, "compare", "r.json", "r.json", "--json")
    assert compared["schema"] == "taylor.comparison/1" and not compared["differences"]
    runs, _ = printed(capsys, "history", "--json")
    one, _ = printed(capsys, "history", runs["runs"][0]["id"], "--json")
    assert one["schema"] == "taylor.run/1" and one["plans"][0]["status"] == solved["status"]
    request = {"schema": "taylor.request/1", "command": "history", "run": runs["runs"][0]["id"]}
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert printed(capsys, "history", "--json", "--config", "request.json")[0] == one


@pytest.mark.slow
def test_a_ranking_is_a_document_with_a_verdict_on_the_best(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["search", str(CONFIG), "--dryrun_backend", "estimate", "--profile_num", "3", "--full", "--json"]
    found, _ = printed(capsys, *words)
    ranking = found["ranking"]
    solved = [row for row in ranking["rows"] if not row["own"] and row["step_ms"]]
    assert ranking["verdict"]["fit"] == "fits" and solved == sorted(solved, key=lambda row: row["step_ms"])
    best, second = solved[:2]
    rival = ranking["verdict"]["runner_up"]
    assert rival["gain"] == pytest.approx(second["step_ms"] / best["step_ms"] - 1)
    assert rival["tie"] == (second["step_ms"] <= 1.08 * best["step_ms"])
    ranked, _ = printed(capsys, "rank", "--yaml_path", "output/dryrun_yaml", "--json", "--report", "off")
    assert ranked["schema"] == "taylor.ranking/1" and ranked["rows"][0]["step_ms"] == pytest.approx(best["step_ms"])
    words = ["rank", "--yaml_path", "output/dryrun_yaml", "--json", "--report"]
    monkeypatch.setattr(rank_page, "write_ranking_page", refuse)
    ranked, log = printed(capsys, *words, "page.html", code=2)
    assert ranked["schema"] == "taylor.ranking/1" and "requested and not written: report" in log


def refuse(*_, **__):
    raise WriteError("no space")


LORA = ROOT / "config" / "finetune_llama3_70b_lora.sh"
LENGTHS = ROOT / "config" / "sample_lengths.csv"
RL = ROOT / "config" / "rl_qwen3_8b_verl.sh"
OTHER_RESULTS = {
    "size": ("--model", "llama3-8b", "--device", "h100-80g", "--max_devices", "8"),
    "lengths": (str(LORA), "--lengths", str(LENGTHS), "--scenarios", "4", "-t", "10"),
    "rl": (str(RL), "--generation", "tokens_per_s=6000,alone=80", "--mean_answer", "1500"),
    "layerwise": ("--costs", "estimate", "--model", "llama2-7b", "--device", "h100-80g", "--world_size", "8",
                  "--gbs", "16", "--seq", "2048", "-t", "10"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", OTHER_RESULTS)
def test_a_result_of_another_kind_has_the_same_verdict(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _ = printed(capsys, command, *OTHER_RESULTS[command], "--json")
    verdict = found["devices"][0]["verdict"] if command == "size" else found["verdict"]
    assert verdict["fit"] == "fits" and not any(verdict["shortage_mib"])
    assert verdict["command"].startswith(f"taylor {command} ") and verdict["software"]["framework"]
    assert (verdict["probability"] is None) == (command == "layerwise"), "tables of costs have no known error"
    if command == "lengths":
        gain = found["fresh_mean_step_of_equal_lengths_plan_ms"] / found["fresh_mean_step_ms"] - 1
        assert verdict["baseline"]["gain"] == pytest.approx(gain)


def test_a_broken_rule_is_an_error_with_its_source(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = SCRIPT.read_text(encoding="utf-8").replace("TP=8", "TP=16")
    (tmp_path / "a.sh").write_text(text, encoding="utf-8")
    found, _ = printed(capsys, "solve", "a.sh", "-evaluate", "y", "--json", code=2)
    assert (found["code"], found["field"], found["value"]) == ("illegal", "--nproc-per-node", 32)
    assert found["source"].startswith("Megatron-LM") and "start 64 ranks" in found["cure"]


def test_a_job_that_cannot_fit_is_an_error_of_its_own_kind(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, _ = printed(capsys, "solve", str(CONFIG), "--json", "--margin", "99%", "-write", "n", code=3)
    assert found["code"] == "infeasible" and found["exit_code"] == 3 and "MiB" in found["message"]


def test_what_is_printed_beside_a_document_stays_out_of_it(capsys):
    def talk() -> None:
        print("by the way")
        print_document("taylor.text/1", {"lines": []})
        print("and more")

    assert run_command(talk, ["--json"]) == 0
    assert check(capsys.readouterr().out) == {"schema": "taylor.text/1", "lines": []}


def test_a_document_that_differs_from_its_schema_is_neither_printed_nor_written(capsys, tmp_path):
    wrong = {"lines": [1]}
    assert run_command(lambda: print_document("taylor.text/1", wrong), ["--json"]) == 1
    found = check(capsys.readouterr().out)
    assert found["code"] == "fault" and "lines.0" in found["message"]
    with pytest.raises(DocumentError, match="no taylor.text/1: more"):
        write_document(tmp_path / "a.json", "taylor.text/1", {"lines": [], "more": 1})
    assert not list(tmp_path.iterdir())


def test_a_plan_is_kept_although_its_result_differs_from_the_schema(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = Result.to_dict
    monkeypatch.setattr(Result, "to_dict", lambda self: {**whole(self), "stages": "four"})
    words = ["solve", str(CONFIG), "-o", "a.yaml", "--result_json", "r.json", "--store", "none"]
    start_logging()
    assert run_command(lambda: main.run(words), words) == 2
    assert (tmp_path / "a.yaml").is_file() and not (tmp_path / "r.json").exists()
    assert "stages" in capsys.readouterr().err


def test_a_fault_of_the_program_is_a_document_too_and_keeps_its_traceback(capsys):
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0, ["--json"])
    assert check(capsys.readouterr().out)["code"] == "fault"


def test_figures_that_json_lacks_are_null_and_values_of_errors_are_plain():
    text = documents.document_text("taylor.comparison/1", {
        "names": ["a", "b"], "verdict": "", "exceeds_error": None, "warnings": [], "differences": {}, "unit": "ms",
        "parts": {},
    })  # fmt: skip
    assert json.loads(text)["parts"] == {}
    data = {"a": [float("inf"), 1.5, float("nan")], "b": (1, "c")}
    assert documents.finite(data) == {"a": [None, 1.5, None], "b": [1, "c"]}
    error = InputError("is wrong", field="f", value=object(), cure="mend it", source="a.py:1")
    assert isinstance(error.to_dict()["value"], str) and error.to_dict()["source"] == "a.py:1"


OF_A_SEARCH = '{"schema": "taylor.request/1", "command": "search", "file": "a.sh"}'


@pytest.mark.parametrize("text", ['{"json": true}', OF_A_SEARCH, "[1]", "{"])
def test_a_request_that_is_none_of_the_command_is_refused_in_words(text, capsys, tmp_path):
    path = tmp_path / "q.json"
    path.write_text(text)
    found, _ = printed(capsys, "solve", "--json", "--config", str(path), code=2)
    assert found["file"] == str(path) and found["problem"]


def test_a_file_that_names_a_command_is_a_request_without_its_schema_too(capsys, tmp_path):
    path = tmp_path / "q.json"
    path.write_text('{"command": "devices"}')
    assert "devices" in printed(capsys, "devices", "--json", "--config", str(path))[0]
    path.write_text('{"command": "search", "file": "a.sh"}')
    found, _ = printed(capsys, "devices", "--json", "--config", str(path), code=2)
    assert (found["field"], found["problem"]) == ("command", "is of another command")


def test_a_request_is_read_from_standard_input(tmp_path):
    request = {"schema": "taylor.request/1", "command": "why-memory", "file": str(CONFIG), "stage": 0}
    words = [sys.executable, "-m", "taylor", "why-memory", "--json", "--config", "-"]
    done = subprocess.run(words, cwd=ROOT, input=json.dumps(request), capture_output=True, text=True)
    assert done.returncode == 0 and check(done.stdout)["file"] == str(CONFIG)


@pytest.mark.parametrize(
    "answer, request_",
    [
        ("model", {"command": "models", "name": "glm-5"}),
        ("devices", {"command": "devices"}),
        ("rule", {"command": "rules", "name": "experts-by-ep"}),
        ("check", {"command": "check", "file": "plan.json", "profiles": ["profiles", "profiles"], "hidden": 1024,
                   "seq": 4096, "memory": 80}),
        ("rl", {"command": "rl", "file": str(RL), "generation": "tokens_per_s=6000,alone=80", "mean_answer": 1500}),
        pytest.param(
            "lengths", {"command": "lengths", "file": str(LORA), "lengths": str(LENGTHS), "scenarios": 4, "gap": 0.05,
                        "time_limit": 10}, marks=pytest.mark.slow),
        pytest.param(
            "layerwise", {"command": "layerwise", "costs": "estimate", "model": "llama2-7b", "device": "h100-80g",
                          "world_size": 8, "gbs": 16, "seq": [2048], "pp": [1, 2], "rival": False, "time_limit": 10},
            marks=pytest.mark.slow),
        pytest.param(
            "ranking", {"command": "rank", "model": "llama2-7b", "device": "h100-80g", "world_size": 8, "gbs": 64,
                        "seq": 2048, "fix": {"tp": 2, "pp": 2}, "prove": 1, "time_limit": 5, "report": "off"},
            marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_request_drives_its_command(answer, request_, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(galvatron_cases.STRATEGY))
    galvatron_cases.write_folder(tmp_path / "profiles")
    asked = {"schema": "taylor.request/1", **request_}
    assert validator("taylor.request/1").is_valid(asked)
    (tmp_path / "request.json").write_text(json.dumps(asked))
    found, _ = printed(capsys, request_["command"], "--json", "--config", "request.json")
    assert found["schema"] == f"taylor.{answer}/1"
