"""Flags are taken as users spell them, from the command line and from a JSON file."""

from __future__ import annotations

import io
import json
from functools import partial
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.base.files import text_of
from taylor.base.shipped import CONFIG
from taylor.command_lines import (
    arguments,
    compare,
    merge,
    parallel_tool,
    pipeline_parallel,
    pipeline_tool,
    timeline_tool,
    why_memory,
)
from taylor.command_lines.arguments import asked_margin, chosen_path, default_file
from taylor.cost_model.errors.margin import MemoryMargin


@pytest.mark.parametrize("words", [["--gbs", "64"], ["--gbs=64"]])
def test_values_follow_the_flag_or_an_equals_sign(words):
    assert parallel_tool.build_parser().parse(words).gbs == 64


@pytest.mark.parametrize("flag", ["--yaml_path", "--yaml-path"])
def test_both_spellings_of_a_flag_are_accepted(flag):
    assert parallel_tool.build_parser().parse([flag, "a.yaml"]).yaml_path == "a.yaml"


def test_single_dash_flags_also_take_two_dashes_and_hyphens():
    args = pipeline_parallel.build_parser().parse(["--yaml", "a.yaml", "-layer-ratio", "0.3"])
    assert (args.yaml, args.layer_ratio) == ("a.yaml", 0.3)


def test_the_misspellings_of_the_older_manual_are_accepted():
    args = parallel_tool.build_parser().parse(["--mindfomres_dir", "Y/run_mindformer.py", "--dataset_dir", "Z"])
    assert (args.mindformers_dir, args.dataset) == ("Y/run_mindformer.py", "Z")
    assert pipeline_tool.build_parser().parse(["--mindfomres_dir", "Y"]).mindformers_dir == "Y"


def test_values_that_look_like_flags_are_left_alone():
    assert parallel_tool.build_parser().parse(["--fix", "tp=8,pp=16"]).fix == {"tp": 8, "pp": 16}


def test_a_json_file_supplies_flags_and_the_command_line_wins(tmp_path):
    path = tmp_path / "flags.json"
    path.write_text(json.dumps({"gbs": 512, "full": True, "search": ["dp", "vpp"], "disable-rule": "a"}))
    args = parallel_tool.build_parser().parse(["--config", str(path), "--gbs", "256"])
    assert (args.gbs, args.full, args.search, args.disable_rule) == (256, True, ("dp", "vpp"), ["a"])


@pytest.mark.parametrize(
    "text, words",
    [
        ('{"gsb": 3}', "gsb: is no flag; did you mean --gbs"),
        ('{"frob": 3}', "frob: is no flag; parallel_tool.py --help lists the flags"),
        ("[1]", "JSON object"),
        ("{", "not JSON"),
        ('{"full": "x"}', "true or false"),
        ('{"gbs": {"a": 1}}', "plain value"),
    ],
)
def test_a_bad_json_file_is_refused_with_the_key_named(tmp_path, text, words):
    path = tmp_path / "flags.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        parallel_tool.build_parser().parse(["--config", str(path)])


@pytest.mark.parametrize(
    "parser, words",
    [
        (pipeline_parallel, ["-layer_ratio", "nan"]),
        (pipeline_parallel, ["-b_ratio", "-1"]),
        (pipeline_parallel, ["-dryrun", "perhaps"]),
        (parallel_tool, ["--gbs", "0"]),
        (pipeline_tool, ["--time_limit", "inf"]),
        (parallel_tool, ["--fix", "tp"]),
    ],
)
def test_bad_values_are_refused_in_one_line_that_names_the_flag(parser, words):
    with pytest.raises(InputError, match=f"^{words[0]}.*--help lists the flags$") as caught:
        parser.build_parser().parse(words)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("tool", [parallel_tool, pipeline_tool, pipeline_parallel, timeline_tool])
def test_help_is_readable_at_80_columns(tool, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    text = tool.build_parser().format_help()
    assert max(map(len, text.splitlines())) <= 80


DEFAULTS = {
    parallel_tool: {
        "mindformers_dir": "./mindformers",
        "dryrun_data_dir": None,
        "profile_data_dir": None,
        "parallel_num": 2,
        "rank_num": 64,
        "solver_name": "HIGHS",
        "register_path": "./register/",
        "small_dataset": "./config/dataset/wiki4096.mindrecord",
        "dataset": "./config/dataset/wiki103-4k.mindrecord",
        "max_expert_parallel": 64,
        "output_path": "./output/nd_output/",
        "env_json": "./config/env_config.json",
        "gbs": None,
        "world_size": None,
        "device": None,
        "dryrun_backend": "auto",
        "recompute": "best",
        "profile_num": 20,
        "full": False,
        "search": ("dp", "tp", "pp", "ep"),
    },
    pipeline_tool: {
        "yaml_path": "./output/dryrun_yaml/",
        "mindformers_dir": "./mindformers/run_mindformer.py",
        "parser_result": None,
        "profile_data_dir": "./profile_data/",
        "solver_name": "HIGHS",
        "nd_path": "./config/nd_result.csv",
        "time_limit": None,
        "topn": None,
        "report": "on",
    },
    pipeline_parallel: {
        "mindformers": None,
        "solver_name": "HIGHS",
        "ratios": "estimated",
        "layer_ratio": None,
        "b_ratio": None,
        "head_loss": None,
        "ra_ratio": None,
        "sr_ratio": None,
        "select": False,
        "t": None,
        "dryrun": True,
        "check": True,
        "evaluate": False,
        "extract": False,
        "solution": None,
        "memory": None,
        "vpp": None,
        "schedule": None,
        "low_mem": None,
        "o": None,
        "write": True,
        "result_json": None,
        "trace": None,
        "html": None,
        "png": None,
    },
}


@pytest.mark.parametrize("tool", DEFAULTS, ids=lambda tool: tool.__name__)
def test_the_defaults_are_those_of_the_contract(tool):
    found = vars(tool.build_parser().parse([]))
    assert {name: found[name] for name in DEFAULTS[tool]} == DEFAULTS[tool]


@pytest.mark.parametrize("tool", [parallel_tool, pipeline_tool, pipeline_parallel])
def test_a_folder_called_register_is_the_users_only_when_it_is_named(tool, tmp_path):
    flags = tmp_path / "flags.json"
    flags.write_text(json.dumps({"register_path": "./register/"}))
    for words, chosen in (
        ([], None),
        (["--register_path", "./register/"], Path("register")),
        (["--config", str(flags)], Path("register")),
    ):
        assert chosen_path(tool.build_parser().parse(words).register_path) == chosen


def test_a_default_file_is_the_working_folders_own_else_the_one_that_is_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    args = pipeline_parallel.build_parser().parse([])
    assert default_file(args.env_json) == CONFIG / "env_config.json"
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "env_config.json").write_text("{}")
    assert default_file(args.env_json) == Path("config/env_config.json")
    assert default_file("absent.json") == Path("absent.json")


@pytest.mark.parametrize("tool", [parallel_tool, pipeline_parallel, pipeline_tool])
def test_gap_margin_and_length_of_the_training_are_said_alike_in_all_tools(tool):
    args = tool.build_parser().parse(["-gap", "0.1%", "--margin", "5%", "--risk", "2%", "--train-tokens", "1.5T"])
    assert (args.gap, args.margin, args.train_tokens) == (pytest.approx(1e-3), MemoryMargin(share=0.05), 1.5e12)
    assert asked_margin(args) == MemoryMargin(share=0.05, risk=0.02)
    assert tool.build_parser().parse(["--gap=0"]).gap == 0


@pytest.mark.parametrize(
    "flag, value",
    [("-gap", "1"), ("-gap", "-0.1"), ("-gap", "x"), ("--margin", "5GB"), ("--margin", "101%"),
     ("--risk", "-0.1"), ("--risk", "51%"), ("--risk", "x"),
     ("--train_tokens", "0"), ("--train_tokens", "many"), ("--train_tokens", "-1T"), ("--train_tokens", "nan")],
)  # fmt: skip
def test_a_gap_margin_or_length_that_is_none_is_refused_with_its_value(flag, value):
    with pytest.raises(InputError, match=f"{flag}.*{value}") as refused:
        pipeline_parallel.build_parser().parse([f"{flag}={value}"])
    assert refused.value.exit_code == 2


def test_places_of_a_json_are_found_by_name_and_the_command_line_wins(tmp_path):
    path = tmp_path / "flags.json"
    path.write_text('{"second": "b.json", "first": "a.json"}')
    args = compare.build_parser().parse(["--config", str(path)])
    assert (args.first, args.second) == ("a.json", "b.json")
    path.write_text('{"file": "of_json.yaml"}')
    for words, file in (([], "of_json.yaml"), (["typed.yaml"], "typed.yaml")):
        assert why_memory.build_parser().parse([*words, "--config", str(path)]).file == file
    path.write_text('{"folders": "shard"}')
    assert merge.build_parser().parse(["--config", str(path)]).folders == [Path("shard")]
    with pytest.raises(InputError, match="required"):
        why_memory.build_parser().parse([])


@pytest.mark.parametrize(
    "data, words", [(b"\xff{}", "is not UTF-8"), (b"[" * 9, "is not JSON"), (b" " * 101, "larger")]
)
def test_standard_input_is_read_as_a_file_is(data, words, monkeypatch):
    monkeypatch.setattr(arguments, "MAX_TEXT_BYTES", 100)
    monkeypatch.setattr(arguments, "text_of", partial(text_of, limit_bytes=100))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(InputError, match=words):
        why_memory.build_parser().parse(["--config", "-"])
