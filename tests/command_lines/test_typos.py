"""Whoever mistypes a name is told in one line which one was probably meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.base.near import did_you_mean
from taylor.command_lines import devices, models, parallel_tool, pipeline_parallel, pipeline_tool, timeline_tool, tune
from tests.conftest import ROOT

LLAMA = ["-yaml", str(ROOT / "config" / "pretrain_llama2_7b.yaml")]
SLIPS = [
    (pipeline_parallel, ["-yamll", "x.yaml"], "-yaml"),
    (pipeline_parallel, ["-tml", "x.toml"], "-toml"),
    (pipeline_parallel, [*LLAMA, "--eval", "y"], "-evaluate"),
    (pipeline_parallel, [*LLAMA, "-schedule", "zero-buble-v"], "zero_bubble_v"),
    (pipeline_parallel, [*LLAMA, "-solver_name", "HIGS"], "HIGHS"),
    (pipeline_parallel, [*LLAMA, "--export", "megatron"], "megatron-layout"),
    (pipeline_parallel, [*LLAMA, "--device", "ascend910b"], "ascend-910b"),
    (parallel_tool, ["--wordl_size", "8"], "--world_size"),
    (parallel_tool, ["--dryrun_backend", "troch"], "torch"),
    (parallel_tool, ["--full", "--solver_name", "CCB"], "CBC"),
    (parallel_tool, ["--search", "dp,mps"], "mbs"),
    (pipeline_tool, ["--yamlpath", "x"], "--yaml_path"),
    (timeline_tool, ["--logdir", "x"], "--log_dir"),
    (tune, ["--shell_pth", "x"], "--shell_path"),
    (models, ["qwen3-8"], "qwen3-8b"),
    (devices, ["h100-80"], "h100-80g"),
]


@pytest.mark.parametrize("tool, words, meant", SLIPS)
def test_a_slip_is_answered_in_one_line_with_what_was_meant(tool, words, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        tool.run(words)
    told = str(caught.value)
    assert "\n" not in told and f"did you mean {meant}" in told.replace(" or ", " did you mean ").replace(",", " ")
    assert list(tmp_path.iterdir()) == []


def test_the_terminal_shows_one_line_and_no_usage(run_tool):
    done = run_tool("pipeline_parallel.py", "-yamll", "x.yaml")
    assert done.returncode == 2 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert "-yamll" in line and "did you mean -yaml?" in line and "--help" in line


def test_a_mistyped_key_of_the_json_of_flags_is_answered_alike(tmp_path):
    path = tmp_path / "flags.json"
    path.write_text(json.dumps({"solver-nam": "HIGHS"}))
    with pytest.raises(InputError, match="flags.json: solver-nam: is no flag; did you mean --?solver_name"):
        pipeline_parallel.run(["--config", str(path)])


@pytest.mark.parametrize("words", [["-t20"], ["-osolved.yaml"], ["-oplan"]])
def test_a_value_may_still_follow_a_flag_of_one_letter_at_once(words):
    assert words[0][1] in pipeline_parallel.build_parser().parse(words).given


def test_where_nothing_is_near_a_few_names_are_listed():
    assert did_you_mean("xyzzy", ["one", "two"]) == "known are one, two"
    assert did_you_mean("xyzzy", [f"name{n}" for n in range(90)]).endswith(" and 66 more")


@given(st.lists(st.text("abcdefgh", min_size=3, max_size=9), min_size=1, unique=True), st.data())
def test_a_known_name_in_other_letters_is_always_found(names, data):
    name = data.draw(st.sampled_from(names))
    assert name in did_you_mean(name.upper(), names)
