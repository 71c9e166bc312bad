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
        (["-o", "out.yaml"], "-o"),
        (["-oout.yaml"], "-o"),
        (["-t", "5"], "-t"),
        (["-mps_form", "compact"], "-mps_form"),
        (["-solver_name", "NONSENSE"], "-solver_name"),
        (["-solver_name", "HIGHS", "-workers=2"], "-solver_name, -workers"),
    ],
)
def test_what_only_a_solve_takes_is_refused_with_evaluate(reference_yaml, words, flags):
    with pytest.raises(InputError, match=rf"^{flags}: ha(s|ve) no effect with -evaluate y") as refused:
        pipeline_parallel.run(["-yaml", str(reference_yaml), *MEASURED_ELSEWHERE, "-evaluate", "y", *words])
    assert refused.value.exit_code == 2 and "\n" not in str(refused.value)


@pytest.mark.parametrize("flag", ["--html", "--trace", "-o", "--result_json", "-yaml"])
def test_what_a_printed_solution_cannot_give_is_refused_with_extract(flag):
    with pytest.raises(InputError, match=f"^{flag}: has no effect with -extract y"):
        pipeline_parallel.run(["-extract", "y", "-solution", "a.sol", flag, "file"])


def test_a_solution_is_refused_without_extract(reference_yaml):
    for words in ([], ["-extract", "n"]):
        with pytest.raises(InputError, match="^-solution: has no effect without -extract y; leave it out, or add"):
            pipeline_parallel.run(["-yaml", str(reference_yaml), "-solution", "a.sol", *words])


def test_a_flag_of_the_json_file_counts_and_a_default_does_not(reference_yaml, tmp_path):
    flags = tmp_path / "flags.json"
    flags.write_text(
        json.dumps({"yaml": str(reference_yaml), "memory": "memory.json", "dryrun": False, "check": False})
    )
    pipeline_parallel.run(["--config", str(flags), "-evaluate", "y"])
    flags.write_text(json.dumps({"yaml": str(reference_yaml), "t": 9}))
    with pytest.raises(InputError, match="^-t: has no effect"):
        pipeline_parallel.run(["--config", str(flags), "-evaluate", "y"])


@pytest.mark.parametrize(
    "words, reason",
    [
        (["-low_mem", "y"], "1f1b with 1 interleave has no low-memory order"),
        (["-low_mem", "n", "-schedule", "gpipe"], "gpipe with 1 interleave has no"),
        (["-low_mem", "y", "-schedule", "auto"], "tries the low-memory orders too"),
    ],
)
def test_the_low_memory_switch_is_refused_where_the_schedule_has_none(reference_yaml, words, reason):
    with pytest.raises(InputError, match=reason) as refused:
        pipeline_parallel.run(["-yaml", str(reference_yaml), "-memory", "memory.json", *MEASURED_ELSEWHERE, *words])
    assert "-low_mem" in str(refused.value)


@pytest.mark.parametrize("words", [["--solver_name", "CBC"], ["--workers", "2"], ["--time_limit", "3"]])
def test_the_solvers_flags_are_refused_in_a_search_that_solves_nothing(words):
    path = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    with pytest.raises(InputError, match=f"^{words[0]}: has no effect without --full: nothing is solved"):
        parallel_tool.run(["--yaml_path", path, *words])


def test_sequence_parallelism_can_be_pinned_to_off(tmp_path):
    path = str(ROOT / "config" / "pretrain_llama2_7b.yaml")
    parallel_tool.run(["--yaml_path", path, "--fix", "tp=2,sp=0", "--profile_num", "1"])
    emitted = next((tmp_path / "output" / "profile_yaml").glob("DP*_TP2_*.yaml"))
    assert read_config(emitted).strategy.sp is False
    with pytest.raises(InputError, match="--fix tp: is no value of this dimension"):
        parallel_tool.run(["--yaml_path", path, "--fix", "tp=0"])
