"""`taylor solve FILE` and `taylor search FILE` read a configuration as the flag of its form does."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines import lengths, rl, why_memory
from taylor.command_lines.parallel_tool import build_parser as search_parser
from taylor.command_lines.pipeline_parallel import build_parser as solve_parser
from taylor.command_lines.pipeline_parallel import run
from taylor.command_lines.source_file import file_started, place_file
from taylor.parsers.megatron.script import FORM
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript

CONFIG = Path(__file__).resolve().parents[2] / "config"


@pytest.mark.parametrize(("name", "flag"), [("pretrain_llama2_7b.yaml", "-yaml"), ("pretrain_llama3_70b.sh", "-shell")])
def test_the_word_reads_what_the_flag_reads(name, flag, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = []
    for words in ([str(CONFIG / name)], [flag, str(CONFIG / name)]):
        run([*words, "-evaluate", "y"], "taylor solve")
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "a step by the plan in the file" in printed[0]


def placed(words, parser=solve_parser, ending=""):
    args = parser().parse(words)
    place_file(args, ending)
    return args


def test_a_model_is_distinguished_from_a_training_file(tmp_path):
    model = tmp_path / "config.json"
    model.write_text("{}")
    assert placed([str(model)]).hf == str(model) and placed([str(tmp_path)]).hf == str(tmp_path)
    assert placed([str(model)], search_parser, "_path").hf_path == str(model)


def test_a_script_keeps_its_arguments(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("")
    assert placed([f"{script} dlc 8"]).shell == f"{script} dlc 8"


def test_a_word_that_is_no_file_names_the_cure():
    with pytest.raises(InputError, match="--model llama3-70b"):
        placed(["llama3-70b"])
    with pytest.raises(InputError, match="did you mean pretrain_llama2_7b.yaml"):
        run([str(CONFIG / "pretrain_llama2_7.yaml"), "-evaluate", "y"], "taylor solve")


def test_two_configurations_are_refused(tmp_path):
    with pytest.raises(InputError, match="named twice: by -yaml too"):
        placed([str(CONFIG / "pretrain_llama2_7b.yaml"), "-yaml", "other.yaml"])


@pytest.mark.parametrize("command", [why_memory, lengths, rl])
def test_every_command_reads_a_script_as_it_is_started(command, tmp_path):
    """With its arguments and its variables, as `taylor solve` does."""
    script = tmp_path / "run.sh"
    script.write_text("torchrun pretrain_gpt.py --num-layers $1 --hidden-size $WIDTH --tensor-model-parallel-size 2\n")
    words = {"lengths": ["--lengths", "table.csv"], "rl": ["--generation", "tokens_per_s=6000"]}
    name = command.__name__.rpartition(".")[2]
    args = command.build_parser().parse([f"{script} 12", "--env", "WIDTH=512", *words.get(name, [])])
    with file_started(args):
        options = flags_of(ShellScript.read(Path(args.file)), FORM)
    assert args.file == str(script)
    assert (options.integer("num-layers"), options.integer("hidden-size")) == (12, 512)
