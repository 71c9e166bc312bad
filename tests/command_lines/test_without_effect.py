"""Flags that the user sets and that would change nothing are refused in one line, with exit code 2."""

from __future__ import annotations

import json

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import parallel_tool, pipeline_parallel
from taylor.parsers.read import read_config
from tests.conftest import ROOT

MEASURED_ELSEWHERE = ("-dryrun", "n", "-check", "n")


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # The commands' own logging must not outlive a test.
    monkeypatch.setattr(pipeline_parallel, "start_logging", lambda **_: None)
    monkeypatch.setattr(parallel_tool, "start_logging", lambda **_: None)


@pytest.mark.parametrize(
    "words, flags",
    [
        (["-o", "out.yaml"], "-o: has"),
        (["-oout.yaml"], "-o: has"),
        (["-t", "5"], "-t: has"),
        (["--encoder", "bubbles"], "--encoder: has"),
        (["-mps_form", "compact"], "-mps_form: has"),
        (["-solver_name", "NONSENSE"], "-solver_name: has"),
        (["-solver_name", "HIGHS", "-workers=2"], "-solver_name, -workers: have"),
    ],
)
def test_what_only_a_solve_takes_is_noted_with_evaluate(reference_yaml, caplog, words, flags):
    pipeline_parallel.run(["-yaml", str(reference_yaml), *MEASURED_ELSEWHERE, "-evaluate", "y", *words])
    assert f"{flags} no effect with -evaluate y, which solves and writes no plan" in caplog.messages


@pytest.mark.parametrize("flag", ["--html", "--trace", "-o", "--result_json", "-memory"])
def test_what_a_printed_solution_cannot_give_is_noted_with_extract(tmp_path, caplog, capsys, flag):
    solution = tmp_path / "a.sol"
    solution.write_text("# offset: [0]\n", encoding="utf-8")
    with pytest.raises(InputError, match="a.sol"):  # It holds no plan, which is found out behind the note.
        pipeline_parallel.run(["-extract", "y", "-solution", str(solution), flag, "file"])
    assert f"{flag}: has no effect with -extract y, which prints a saved solution" in caplog.messages


def test_a_configuration_beside_a_printed_solution_is_accepted(tmp_path, capsys, reference_yaml):
    """The older manual asks for it."""
    saved = tmp_path / "a.sol"
    saved.write_text("# status optimal\nx_moe[0,0] 3\n")
    pipeline_parallel.run(["-yaml", str(reference_yaml), "-extract", "y", "-solution", str(saved)])
    assert "layers moe: [3]" in capsys.readouterr().out


def test_a_solution_is_refused_without_extract(reference_yaml):
    """Ignored, it would turn printing into a solve that writes."""
    for words in ([], ["-extract", "n"]):
        with pytest.raises(InputError, match="^-solution: has no effect without -extract y; leave it out, or add"):
            pipeline_parallel.run(["-yaml", str(reference_yaml), "-solution", "a.sol", *words])


def test_a_flag_of_the_json_file_counts_and_a_default_does_not(reference_yaml, tmp_path, caplog):
    flags = tmp_path / "flags.json"
    flags.write_text(
        json.dumps({"yaml": str(reference_yaml), "memory": "memory.json", "dryrun": False, "check": False})
    )
    pipeline_parallel.run(["--config", str(flags), "-evaluate", "y"])
    assert not any("no effect" in message for message in caplog.messages)
    flags.write_text(json.dumps({"yaml": str(reference_yaml), "dryrun": False, "check": False, "t": 9}))
    pipeline_parallel.run(["--config", str(flags), "-evaluate", "y"])
    assert any(message.startswith("-t: has no effect") for message in caplog.messages)


@pytest.mark.parametrize(
    "words, reason",
    [
        (["-low_mem", "y"], "-low_mem y has no effect here: 1f1b with 1 virtual stage has no low-memory order"),
        (["-low_mem", "n", "-schedule", "gpipe"], "-low_mem n has no effect here: gpipe with 1 virtual stage has no"),
        (["-low_mem", "y", "-schedule", "auto"], "-low_mem y has no effect with -schedule auto, which tries the low"),
    ],
)
def test_the_low_memory_switch_is_noted_once_where_the_schedule_has_none(reference_yaml, caplog, words, reason):
    job = ["-yaml", str(reference_yaml), "-memory", "memory.json", *MEASURED_ELSEWHERE, "-write", "n"]
    pipeline_parallel.run([*job, *words])
    assert sum(reason in message for message in caplog.messages) == 1


@pytest.mark.parametrize("words", [["--solver_name", "CBC"], ["--workers", "2"], ["--time_limit", "3"]])
def test_the_solvers_flags_are_noted_in_a_search_that_solves_nothing(caplog, words):
    path = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    parallel_tool.run(["--yaml_path", path, "--profile_num", "1", *words])
    assert f"{words[0]}: has no effect without --full: nothing is solved" in caplog.messages


def test_sequence_parallelism_can_be_pinned_to_off(tmp_path):
    path = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    parallel_tool.run(["--yaml_path", path, "--fix", "tp=2,sp=0", "--profile_num", "1"])
    emitted = next((tmp_path / "output" / "profile_yaml").glob("DP*_TP2_*.yaml"))
    assert read_config(emitted).strategy.sp is False
    with pytest.raises(InputError, match="--fix tp: is no value of this dimension"):
        parallel_tool.run(["--yaml_path", path, "--fix", "tp=0"])
