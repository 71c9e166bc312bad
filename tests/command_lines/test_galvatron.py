"""`taylor galvatron` as a user of Galvatron calls it."""

from __future__ import annotations

import json

import pytest

from tests import galvatron_cases as cases


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


def test_an_answer_beyond_the_profiles_is_warned_of_with_its_bounds(galvatron):
    far = [word if word != "4096" else "65536" for word in JOB]
    done = galvatron("profiles", *far)
    assert "65536" in done.stderr and "between" in done.stderr and "profile nearer" in done.stderr


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
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(galvatron, words, told):
    done = galvatron(*words)
    assert done.returncode == 2
    assert told in done.stderr and "Traceback" not in done.stderr
