"""`taylor galvatron` as a user of Galvatron calls it."""

from __future__ import annotations

import json

import pytest

from tests import galvatron_cases as cases
from tests.parsers.paddlenlp.test_auto_tuner import HISTORY
from tests.parsers.paddlenlp.test_auto_tuner import JOB as JOB_OF_TUNER
from tests.parsers.paddlenlp.test_scripts import SCRIPT


@pytest.fixture
def galvatron(tmp_path, run_tool):
    """Run the command beside a folder of profiles, ``profiles``, and a strategy file."""
    cases.write_folder(tmp_path / "profiles")
    (tmp_path / "strategy.json").write_text(json.dumps(cases.STRATEGY))

    def run(*words):
        return run_tool("taylor/__main__.py", "galvatron", *words)

    return run


JOB = (
    "--world_size",
    "8",
    "--layers",
    "12",
    "--hidden",
    "1024",
    "--seq",
    "4096",
    "--gbs",
    "32",
    "--micro_batches",
    "4",
)


@pytest.mark.slow
def test_a_folder_tells_what_it_holds_and_what_is_missing(galvatron, tmp_path):
    done = galvatron("profiles")
    assert done.returncode == 0
    assert "1 x 8 cards" in done.stdout and "bf16_toy" in done.stdout and "missing" not in done.stdout
    (tmp_path / "profiles/overlap_coefficient.json").unlink()
    assert "overlap_coefficient.json: gradients reduced beside the backward" in galvatron("profiles").stdout


@pytest.mark.parametrize("costs", ["taylor", "galvatron"])
def test_a_job_gets_the_cost_of_every_strategy(galvatron, costs):
    done = galvatron("profiles", *JOB, "--costs", costs, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    names = [row["name"] for row in told["layers"]]
    assert "dp8 zero3" in names and "tp2 dp4 zero2 recompute" in names and len(names) == len(set(names))
    assert set(told["ends"]) == {name.replace(" recompute", "") for name in names}


def test_a_job_without_profiles_gets_estimated_costs(galvatron):
    job = (*JOB[:2], *JOB[6:])
    done = galvatron("--costs", "estimate", "--model", "llama2-7b", "--device", "h100-80g", *job, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "dp8 zero3" in [row["name"] for row in told["layers"]]
    assert "llama2-7b on 8 h100-80g" in told["title"] and "estimate" in told["title"]


def test_an_answer_beyond_the_profiles_is_warned_of_with_its_bounds(galvatron):
    far = [word if word != "4096" else "65536" for word in JOB]
    done = galvatron("profiles", *far)
    assert "65536" in done.stderr and "between" in done.stderr and "profile nearer" in done.stderr


@pytest.mark.slow
def test_a_strategy_goes_to_the_other_form_and_back(galvatron, tmp_path):
    assert galvatron("strategy.json", "--to", "paddle", "-o", "fine_grained_config.json").returncode == 0
    back = galvatron("fine_grained_config.json", "--to", "hetu")
    assert json.loads(back.stdout) == cases.STRATEGY
    shown = galvatron("strategy.json").stdout
    assert "6 layers on 2 stages of 4 ranks" in shown and "sp4 zero3" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("profiles", "--world_size", "8"), "--layers: is missing"),
        (("profiles", *JOB[:1], "16", *JOB[2:]), "no cluster with 16 ranks"),
        (("profiles", *JOB, "--model", "gpt"), "has no such model"),
        (("profiles", *JOB, "--costs", "galvatron", "--time_mode", "fast"), "--time_mode: is no mode"),
        (("profiles", *JOB[:-1], "3"), "does not divide --gbs"),
        (("nothing",), "no such file"),
        (("profiles", "strategy.json"), "stands beside others"),
        (("strategy.json", "-o", "x.json"), "needs the form to write"),
        (("profiles", "--to", "hetu"), "takes one strategy file"),
        ((), "PATH: is missing"),
        (("--costs", "estimate", "--model", "llama2-7b"), "--device: is missing"),
        (("profiles", *JOB, "--costs", "estimate"), "takes no profiles"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(galvatron, words, told):
    done = galvatron(*words)
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr


def test_a_device_is_noted_beside_measured_costs(galvatron):
    done = galvatron("profiles", *JOB, "--device", "h100-80g")
    assert done.returncode == 0 and "--device: has no effect on measured costs" in done.stderr


@pytest.mark.slow
def test_a_script_is_made_to_train_a_strategy(galvatron, tmp_path):
    (tmp_path / "train.sh").write_text(SCRIPT)
    galvatron("strategy.json", "--to", "paddle", "-o", "fine_grained_config.json")
    done = galvatron("fine_grained_config.json", "--script", "train.sh", "-o", "new.sh", "--profile_steps", "10,12")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "new.sh").read_text()
    assert "--fine_grained_config_path fine_grained_config.json" in text
    assert "--job_schedule_profiler_start 10" in text and "--job_schedule_profiler_end 12" in text
    refused = galvatron("strategy.json", "--script", "train.sh")
    assert refused.returncode == 2 and "--to paddle" in refused.stderr


@pytest.mark.slow
def test_the_made_script_is_planned_by_the_other_tools(galvatron, run_tool, tmp_path):
    (tmp_path / "train.sh").write_text(SCRIPT)
    galvatron("strategy.json", "--to", "paddle", "-o", "fine_grained_config.json")
    galvatron("fine_grained_config.json", "--script", "train.sh", "-o", "train.sh")
    done = run_tool("pipeline_parallel.py", "-shell", "train.sh", "-t", "20", "-dryrun", "n")
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "fine_grained_config.json").read_text())
    assert told["pp_stage_idx_list"].count("0") + told["pp_stage_idx_list"].count("1") == 6
    assert (tmp_path / "fine_grained_config.json.orig").exists()


def test_files_of_paddles_tuner_are_shown(galvatron, tmp_path):
    (tmp_path / "job.json").write_text(json.dumps(JOB_OF_TUNER))
    (tmp_path / "history.csv").write_text(HISTORY)
    assert "28 layers, hidden 4096" in galvatron("job.json").stdout
    assert "Out of memory" in galvatron("history.csv").stdout
