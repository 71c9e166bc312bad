"""Types of flags take the values at their limits and refuse those beyond, and the parser names what is wrong."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import arguments as of
from taylor.command_lines import galvatron_names, layerwise, pipeline_parallel, ranking, why_memory
from taylor.command_lines.arguments import CommandParser
from taylor.cost_model.errors.margin import MemoryMargin

B = 10**9
TYPES = {
    of.yes_no: ({"y": True, "YES ": True, "true": True, "1": True, "on": True, " N": False, "no": False,
                 "False": False, "0": False, "off": False}, ["", "2", "yn"]),
    of.positive_int: ({"1": 1, str(B): B, " 7 ": 7}, ["0", str(B + 1), "-1", "1.0", "x", ""]),
    of.non_negative_int: ({"0": 0, " 0 ": 0, "1": 1, str(B): B}, ["-1", "00", str(B + 1), "x"]),
    of.int_list: ({"4": (4,), "4,8": (4, 8), ",".join(["1"] * 1000): (1,) * 1000},
                  ["", "4,", "0", "4,x", ",".join(["1"] * 1001)]),
    of.non_negative_float: ({"0": 0.0, "1.5": 1.5, "1e300": 1e300}, ["-0.1", "inf", "nan", "x", ""]),
    of.positive_float: ({"1e-9": 1e-9, "2": 2.0}, ["0", "-1", "inf", "x"]),
    of.time_ratio: ({"0": 0.0, "1e6": 1e6}, ["1000000.1", "-1", "nan"]),
    of.relative_gap: ({"0": 0.0, "0.999": 0.999, "1%": 0.01, " 99.9% ": 0.999}, ["1", "100%", "-0.1", "x"]),
    of.risk_share: ({"0": 0.0, "0.5": 0.5, "50%": 0.5, " 5% ": 0.05}, ["0.501", "51%", "-1%", "x"]),
    of.memory_margin: ({"2048": MemoryMargin(mib=2048), "5%": MemoryMargin(share=0.05)}, ["5GB", "-1", "101%"]),
    of.token_count: ({"1.5T": 1.5e12, "300b": 3e11, "2e12": 2e12, " 7M ": 7e6, "1": 1.0, "1000000T": 1e18},
                     ["0", "0.9", "1000001T", "T", "", "x", "nan", "1Q"]),
    of.key_values: ({"tp=8, pp = 16 ,": {"tp": 8, "pp": 16}, "": {}, "sp=0": {"sp": 0}}, ["tp", "tp=", "tp=x",
        "tp=-1"]),
    of.names: ({"a, b,,": ("a", "b"), "": (), " ": ()}, []),
    of.device_numbers: ({"0,3": (0, 3), "": ()}, ["-1", "0,-1", "a"]),
    of.time_window: ({"0,1": (0.0, 1.0), "1.5,2": (1.5, 2.0)}, ["1", "1,1", "2,1", "-1,2", "1,x"]),
    of.step_range: ({"0,0": (0, 0), "1,3": (1, 3)}, ["1", "2,1", "-1,1", "1,x", "1.5,2"]),
    of.stage_mib: ({"0=1.5,2=7": ((0, 1.5), (2, 7.0))}, ["0", "x=1", "0=x", "0=0"]),
    of.stage_list: ({"0,2": (0, 2)}, ["x", "-1"]),
    pipeline_parallel.count_or_auto: ({"auto": "auto", " AUTO ": "auto", "1": 1}, ["0", "x"]),
    pipeline_parallel.stage_devices: ({"a:2,b": (("a", 2), ("b", 1))}, ["a:0", ":2"]),
    ranking.proven_number: ({"all": None, " ALL": None, "1": 1}, ["0", "x", ""]),
    ranking.shard_number: ({"1/1": (1, 1), "2/8": (2, 8), "8/8": (8, 8)}, ["9/8", "0/8", "1", "1/0", "x/8", "1/x",
        "2/1"]),
    layerwise.zero_list: ({"3,2": (2, 3), "0": (0,), "2,2, 3": (2, 3)}, ["", "1", "2,x", "2,"]),
    layerwise.any_degree: ({"-1": -1, " -1 ": -1, "1": 1}, ["0", "-2", "x"]),
    galvatron_names.unless_minus_one(of.positive_int): ({"-1": None, " -1": None, "2": 2}, ["0", "-2"]),
}  # fmt: skip
"""Values taken, with what they become, and values refused, by type."""


def test_a_type_takes_the_values_at_its_limits_and_refuses_those_beyond():
    for kind, (taken, refused) in TYPES.items():
        for text, value in taken.items():
            found = kind(text)
            assert found == (pytest.approx(value) if isinstance(value, float) else value), (kind, text)
            assert type(found) is type(value), (kind, text)
        for text in refused:
            with pytest.raises(argparse.ArgumentTypeError):
                raise AssertionError((kind, text, kind(text)))


def parser(program: str = "taylor toy") -> CommandParser:
    toy = CommandParser(program, "Purpose.", "a.yaml", {"their_count": "count"})
    toy.add_argument("file", nargs="?", metavar="FILE")
    toy.add_argument("--world_size", type=int)
    toy.add_argument("--count", type=of.positive_int)
    toy.add_argument("-o", metavar="FILE")
    toy.add_argument("-select", type=of.yes_no, default=False)
    toy.add_argument("--list", type=of.names, default=())
    toy.add_argument("--env", action="append", default=[])
    toy.add_argument("--many", nargs="+", default=[])
    toy.add_argument("--loud", action="store_true")
    toy.add_argument("--kind", choices=("plain", "fancy"))
    return toy


def test_flags_are_taken_in_every_spelling_and_those_given_are_known_by_it():
    words = ["a.yaml", "--their-count", "3", "--select=y", "-world-size", "8", "-oX", "--env", "A=1", "--env=B=2"]
    args = parser().parse(words)
    assert (args.file, args.count, args.select, args.world_size, args.o) == ("a.yaml", 3, True, 8, "X")
    assert args.env == ["A=1", "B=2"] and not args.loud
    assert args.given == {
        "file": "file", "count": "--count", "select": "-select", "world_size": "--world_size", "o": "-o", "env": "--env"
    }  # fmt: skip
    assert parser().parse(["--kind", "plain", "-select", "n"]).given == {"kind": "--kind", "select": "-select"}
    assert parser().parse(["-"]).file == "-"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cuont", "3"], "--cuont: is no flag; did you mean --count? taylor toy --help lists the flags"),
        (["--nproc=3"], "--nproc: is no flag; did you mean --world_size? taylor toy --help lists the flags"),
        (["--n-gpus", "3"], "--n-gpus: is no flag; did you mean --world_size? taylor toy --help lists the flags"),
        (["--zzz"], "--zzz: is no flag; taylor toy --help lists the flags"),
        (["a", "b"], "'b' belongs to no flag; taylor toy --help lists the flags"),
        (["--count", "0"], f"--count: 0 is not between 1 and {B}; taylor toy --help lists the flags"),
        (["--count"], "--count: expected one argument; taylor toy --help lists the flags"),
        (["--kind", "fncy"],
         "--kind: 'fncy' is not one of its values; did you mean fancy? taylor toy --help lists the flags"),
        (["--kind", "qqqqq"],
         "--kind: 'qqqqq' is not one of its values; known are plain, fancy; taylor toy --help lists the flags"),
        (["-ott"], None),
        (["-ofile"], None),
    ],
)  # fmt: skip
def test_a_word_that_is_not_understood_is_refused_in_one_line(words, said):
    if said is None:
        assert parser().parse(words).o == words[0][2:]
        return
    with pytest.raises(InputError) as refused:
        parser().parse(words)
    assert str(refused.value) == said


def test_a_mistyped_flag_is_not_taken_for_one_of_a_letter_and_its_value():
    toy = parser()
    toy.add_argument("-only_memory")
    with pytest.raises(InputError, match=r"^-only_memroy: is no flag; did you mean -only_memory\?"):
        toy.parse(["-only_memroy", "x"])
    assert toy.parse(["-only_memory", "x"]).only_memory == "x"
    assert toy.parse(["-o1", "x"]).o == "1" and toy.parse(["-only_memroy.yaml"]).o == "nly_memroy.yaml"
    assert toy.parse(["-o", "x"]).o == "x"
    toy.add_argument("-off")
    with pytest.raises(InputError, match=r"^-of: is no flag; did you mean -off or -o\?"):
        toy.parse(["-of"])


def test_a_missing_flag_under_another_spelling_is_the_fault_that_is_named():
    toy = parser()
    toy.add_argument("--needed", required=True)
    for words, said in (
        ([], "the following arguments are required: --needed"), (["--neede", "1"], "--neede: is no flag"),
        (["--", "--neede"], "the following arguments are required"), (["--count=1"], "the following arguments are"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=f"^{said}"):
            toy.parse(words)


def of_json(tmp_path, data, *words, toy=None):
    path = tmp_path / "q.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return (toy or parser()).parse([*words, "--config", str(path)])


def test_a_json_file_gives_values_as_the_command_line_does(tmp_path):
    data = {
        "file": "a.yaml", "count": 3, "select": True, "list": ["a", 1, 2.5], "env": ["A=1", "B=2"], "many": ["x", "y"],
        "loud": True, "world-size": None, "-o": "out",
    }  # fmt: skip
    args = of_json(tmp_path, data)
    assert (args.file, args.count, args.select, args.list) == ("a.yaml", 3, True, ("a", "1", "2.5"))
    assert (args.env, args.many, args.loud, args.world_size, args.o) == (["A=1", "B=2"], ["x", "y"], True, None, "out")
    other = of_json(tmp_path, {"loud": False, "select": False, "many": "x", "count": 3}, "--count", "4", "b.yaml")
    assert (other.loud, other.select, other.many, other.count, other.file) == (False, False, ["x"], 4, "b.yaml")
    assert "loud" not in other.given and other.given["select"] == "-select"
    assert of_json(tmp_path, {"file": "j.yaml"}, "b.yaml").file == "b.yaml"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"config": "x"}, "config: belongs on the command line (found none); leave it out there"),
        ({"help": True}, "help: belongs on the command line"), ({"json": True}, "json: belongs on the command line"),
        ({"cuont": 1}, "cuont: is no flag; did you mean --count?"), ({"loud": "y"},
         "loud: must be true or false (found 'y')"),
        ({"list": [["a"]]}, "list: must be a plain value"), ({"count": {"a": 1}}, "count: must be a plain value"),
        ({"o": "a\0b"}, "o: has a NUL character"), ({"many": ["-x"]},
         "many: must be text that begins with no dash (found '-x')"),
        ({"many": [""]}, "many: must be text"), ({"many": [1]}, "many: must be text"), ({"file": "a\0"},
         "file: must be text"),
        ({"file": ["a"]}, "file: must be text"), ([1], "must be a JSON object of flags"), ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
    ],
)  # fmt: skip
def test_a_json_file_that_gives_no_flags_is_refused_with_its_key(data, said, tmp_path):
    with pytest.raises(InputError) as refused:
        of_json(tmp_path, data)
    assert f"q.json: {said}".replace(" (found none)", "").partition(";")[0] in str(refused.value)


def test_a_request_is_of_the_command_that_takes_it(tmp_path):
    request = {"command": "evaluate", "file": "a.sh", "vpp": 2}
    toy = pipeline_parallel.build_parser("taylor solve")
    args = of_json(tmp_path, request, toy=toy)
    assert (args.evaluate, args.file, args.vpp) == (True, "a.sh", 2)
    assert of_json(tmp_path, {**request, "schema": "taylor.request/1"}, toy=pipeline_parallel.build_parser()).vpp == 2
    for data, cure in ((request, "run taylor solve"), ({"command": "models"}, "run taylor models")):
        with pytest.raises(InputError, match=f"command: is of another command .*{cure}$"):
            of_json(tmp_path, data, toy=why_memory.build_parser())


def test_standard_input_that_is_closed_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input: is closed; name a file"):
        parser().parse(["--config", "-"])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"count": 2}')))
    assert parser().parse(["--config", "-"]).count == 2


def test_flags_without_effect_are_noted_or_refused_together(caplog):
    args = parser().parse(["--count", "1", "--loud", "-select", "n"])
    of.note_without_effect(args, {"count"}, "here")
    of.note_without_effect(args, {"count", "loud"}, "here")
    of.note_without_effect(args, {"list", "o"}, "here")
    assert caplog.messages == ["--count: has no effect here", "--count, --loud: have no effect here"]
    for flags, cure, said in (
        ({"select"}, "", "-select: has no effect here; leave it out"),
        ({"count", "loud"}, "", "--count, --loud: have no effect here; leave them out"),
        ({"count"}, "do it", "--count: has no effect here; leave it out, or do it"),
    ):
        with pytest.raises(InputError) as refused:
            of.refuse_without_effect(args, flags, "here", cure)
        assert str(refused.value) == said
    of.refuse_without_effect(args, {"list"}, "here")


def test_the_help_names_how_a_script_of_the_checkout_is_started():
    assert "example:\n  taylor toy a.yaml" in parser().format_help()
    assert "example:\n  python toy.py a.yaml" in parser("toy.py").format_help()
    toy = parser()
    toy.add_argument("--a_flag_with_a_very_long_name", metavar="VALUE", help="x " * 90)
    lines = toy.format_help().splitlines()
    at = next(place for place, line in enumerate(lines) if "very_long_name VALUE" in line and "usage" not in line)
    helps = [line for line in lines[at:] if set(line.strip()) == {"x", " "}]
    assert {len(line) - len(line.lstrip()) for line in helps} == {30} and max(map(len, helps)) == 79


def test_paths_are_those_chosen_or_those_that_are_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert of.path_or_none("") is None is of.path_or_none(None) and of.path_or_none("a") == Path("a")
    assert of.chosen_path(of.Default("a")) is None and of.chosen_path("a") == Path("a")
    assert of.chosen_or_there(of.Default("d")) is None and of.chosen_or_there("d") == Path("d")
    (tmp_path / "d").mkdir()
    assert of.chosen_or_there(of.Default("d")) is None
    (tmp_path / "d" / "f").write_text("")
    assert of.chosen_or_there(of.Default("d")) == Path("d") and of.chosen_or_there(of.Default("d/f")) == Path("d/f")
    args = argparse.Namespace(output_path="named")
    with of.chosen_folder(args) as folder:
        assert folder.path == Path("named")
    (tmp_path / "locked").write_text("")
    with pytest.raises(InputError, match="locked"), of.chosen_folder(argparse.Namespace(output_path="locked/x")):
        pass
    with of.chosen_folder(argparse.Namespace(output_path=of.Default("locked/x"))) as folder:
        assert folder.work != folder.path


def test_a_command_line_is_kept_in_a_length_that_can_be_read():
    assert of.command_text("taylor solve", ["a b", "-o", "c"]) == "taylor solve 'a b' -o c"
    assert len(of.command_text("taylor", ["x" * 4000])) == 4000 and len(of.command_text("t", ["x" * 3000])) == 3002


def test_what_the_flags_state_reaches_the_work():
    args = pipeline_parallel.build_parser().parse([
        "--margin", "5%", "--risk", "2%", "--train_tokens", "1T", "--samples", "9", "--images", "2", "--device", "a",
        "--parallel_num", "3", "--dryrun_timeout", "7", "--dryrun_retries", "4", "--dryrun_backend", "torch",
    ])  # fmt: skip
    assert of.asked_margin(args) == MemoryMargin(share=0.05, risk=0.02)
    length = of.stated_length(args)
    assert (length.tokens, length.epoch_samples, of.inputs_of(args)) == (1e12, 9, "2")
    options = of.dryrun_options(args, "mf")
    assert (options.backend, options.mindformers, options.parallel_num) == ("torch", Path("mf"), 3)
    assert (options.timeout_s, options.retries, options.env_named, options.register_path) == (7.0, 4, False, None)
    assert options.env_json is not None and options.env_json.name == "env_config.json"
    named = pipeline_parallel.build_parser().parse(["--env_json", "e.json", "--stack", "new"])
    options = of.dryrun_options(named, None)
    assert (options.env_json, options.env_named, options.mindformers) == (Path("e.json"), True, None)
    assert of.dryrun_options(pipeline_parallel.build_parser().parse(["--env_json="]), None).env_json is None
    assert of.named_device(args) == "a" and of.named_device(named) == of.STACK_SIGN + "new"
    both = pipeline_parallel.build_parser().parse(["--device", "a", "--stack", "new"])
    assert of.named_device(both) == f"a{of.STACK_SIGN}new"
    assert of.inputs_of(argparse.Namespace()) == ""


def test_an_encoder_has_its_place_where_strategies_are_compared():
    of.refuse_encoder_beside(argparse.Namespace(encoder="nested"), "a")
    with pytest.raises(InputError, match="--encoder best"):
        of.refuse_encoder_beside(argparse.Namespace(encoder="best"), "a")
