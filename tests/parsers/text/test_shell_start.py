"""Values from outside a script: arguments, variables, files of its checkout, loops that count; bash is the judge."""

from __future__ import annotations

import subprocess

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import ShellStart, parse_start, started

SCRIPT = """\
HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
UP=$(cd "$(dirname "$0")/.." && pwd)
source "${HERE}/sizes.sh"
MODE=$1
case $MODE in
dsw) NODES=1 ;;
dlc) NODES=${WORLD_SIZE:-4} ;;
esac
if [ $2 = true ]; then SP="--sequence-parallel"; else SP=""; fi
FLAGS=()
for ((i = 1; i <= COUNT; i += 2)); do
    if (( i == 3 )); then FLAGS+=("three"); else FLAGS+=("$i"); fi
done
printf -v LIST "[%s]" "$(IFS=','; echo "${FLAGS[*]}")"
shift 2
echo result $NODES ${SP} $LIST $1 $# $@ ${3:-none} $UP $SIZE
"""
SIZES = "COUNT=7\nSIZE=$((COUNT * 2))\n"


@pytest.fixture
def script(tmp_path):
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "sizes.sh").write_text(SIZES)
    path = folder / "run.sh"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize("arguments", [("dsw", "true", "a", "b c"), ("dlc", "false"), ("dlc", "true", "x", "y", "z")])
@pytest.mark.parametrize("variables", [{}, {"WORLD_SIZE": "16"}])
def test_a_script_with_its_arguments_is_read_as_bash_runs_it(script, arguments, variables):
    done = subprocess.run(
        ["bash", str(script), *arguments], capture_output=True, text=True, env=variables, check=True, timeout=60
    )
    read = ShellScript(script.read_text(), script, start=ShellStart(arguments, variables))
    assert " ".join(word.text for word in read.commands[-1].words[1:]) + "\n" == done.stdout


def test_what_nobody_states_stays_unknown_with_its_line(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "TP=$9\ntorchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 "
        "--max-position-embeddings 128 --micro-batch-size 1 --tensor-model-parallel-size $TP "
        "--pipeline-model-parallel-size $STAGES\n"
    )
    with pytest.raises(InputError, match=r"\(line 1\) \(found '\$9'\).*-shell 'FILE ARGUMENT"):
        read_config(path)
    arguments = tuple("123456781")
    with started(ShellStart(arguments)), pytest.raises(InputError, match=r"\(line 2\).*--env STAGES=VALUE"):
        read_config(path)
    with started(ShellStart(arguments, {"STAGES": "2"})):
        assert read_config(path).strategy.pp == 2


def test_a_variable_that_a_test_finds_empty_is_not_set_once_the_start_is_stated(tmp_path):
    text = "if [ -z ${CHUNKS} ]; then OPTION=plain; else OPTION=split; fi\necho $OPTION\n"
    read = ShellScript(text, tmp_path / "a.sh", start=ShellStart(("a",)))
    assert [word.text for word in read.commands[-1].words] == ["echo", "plain"]
    assert any("CHUNKS is taken for not set" in note for note in read.notes)
    read = ShellScript(text, tmp_path / "a.sh", start=ShellStart(("a",), {"CHUNKS": "2"}))
    assert [word.text for word in read.commands[-1].words] == ["echo", "split"]


def test_a_test_for_a_value_fails_for_a_variable_that_the_stated_start_leaves_out(tmp_path):
    text = "O=none\nif [ ${PACKING} = true ]; then O=packed; else O=plain; fi\necho $O\n"
    for start, found in ((("a",), {}), "plain"), ((("a",), {"PACKING": "true"}), "packed"), ((None, {}), "none"):
        read = ShellScript(text, tmp_path / "a.sh", start=ShellStart(*start))
        assert [word.text for word in read.commands[-1].words] == ["echo", found]
    bash = ["bash", "-c", text.replace("echo", "2>/dev/null; echo")]
    assert subprocess.run(bash, capture_output=True, text=True, check=True, env={}).stdout == "plain\n"


def test_the_cure_names_the_variable_of_the_word_inside_a_longer_value(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "STEPS=$(( $TOKENS / 8 ))\nif [ $SIZE = 7B ]; then\nLAYERS=32\nfi\n"
        'OPTIONS="--train-iters ${STEPS} --num-layers ${LAYERS} --hidden-size 64 --num-attention-heads 4"\n'
        "torchrun pretrain_gpt.py $OPTIONS --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1\n"
    )
    with started(ShellStart(None, {"SIZE": "8B"})), pytest.raises(InputError, match="--env LAYERS=VALUE"):
        read_config(path)


def test_a_blank_behind_a_file_is_no_argument(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("echo\n")
    assert parse_start(f"{path} ", []) == (str(path), ShellStart(None, {}))


def test_only_files_of_the_scripts_own_checkout_are_taken_in(tmp_path):
    (tmp_path / "secret.sh").write_text("TP=8\n")
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "link.sh").symlink_to(tmp_path / "secret.sh")
    for name in ("../secret.sh", str(tmp_path / "secret.sh"), "link.sh"):
        script = ShellScript(f"source {name}\necho $TP\n", folder / "run.sh")
        assert script.commands[-1].words[-1].unknown
        assert any("is not in the script's checkout" in note for note in script.notes)


HOSTS = """\
TP=2
NODES=$(cat "$HOSTFILE" | wc -l)
WORLD=$((8 * $NODES))
DP=$(($WORLD / $TP))
torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 128 \\
  --max-position-embeddings 128 --micro-batch-size 1 --tensor-model-parallel-size $TP --nproc-per-node 8 \\
  --nnodes $NODES --global-batch-size {batch}
"""


@pytest.mark.parametrize(
    ("batch", "named"),
    [("$(($TP * $DP))", "NODES"), ("$DP", "NODES"), ("$((TP * EXTRA))", "EXTRA"), ("$(cat batch)", None)],
)
def test_an_unknown_value_names_the_variable_that_settles_it(tmp_path, batch, named):
    path = tmp_path / "run.sh"
    path.write_text(HOSTS.format(batch=batch))
    with pytest.raises(InputError) as refused:
        read_config(path)
    assert refused.value.field == "--global-batch-size"
    assert refused.value.cure == "write it out" + (f", or give --env {named}=VALUE" if named else "")
    if named:
        with started(ShellStart(None, {"EXTRA": "8", "NODES": "4"})):
            assert read_config(path).strategy.world_size == 32


def test_a_stated_variable_stands_for_the_output_of_a_program_alone(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text("A=$(hostname)\nB=3\nC=$(seq 2)x\nC=5\necho $A $B $C\n")
    read = ShellScript(path.read_text(), path, start=ShellStart(None, {"A": "1", "B": "2", "C": "4"}))
    assert [word.text for word in read.commands[-1].words] == ["echo", "1", "3", "5"]
    assert [note.split()[0] for note in read.notes] == ["A", "C"]


def test_a_path_of_another_machine_names_the_file_that_ends_alike(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts" / "models").mkdir(parents=True)
    (tmp_path / "scripts" / "models" / "a.sh").write_text("TP=8\n")
    (tmp_path / "examples").mkdir()
    script = ShellScript("source /opt/tool/scripts/models/a.sh\necho $TP\n", tmp_path / "examples" / "run.sh")
    assert script.commands[-1].words[-1].text == "8"


def test_files_that_take_in_each_other_end(tmp_path):
    (tmp_path / "a.sh").write_text("source b.sh\nA=1\n")
    (tmp_path / "b.sh").write_text("source a.sh\nsource a.sh\nB=1\n")
    script = ShellScript.read(tmp_path / "a.sh")
    assert script.variables["A"].texts() == ["1"] and script.variables["B"].texts() == ["1"]


def test_a_loop_without_an_end_is_refused(tmp_path):
    with pytest.raises(InputError, match="loop of more than 4096 rounds"):
        ShellScript("for ((i=0; i<10; i=0)); do A=$i; done\n", tmp_path / "a.sh")


def test_a_file_with_its_arguments_is_taken_apart_as_a_shell_does(script):
    command, start = parse_start(f"{script} dlc 'A 3B' 1", ["TP=4", "EMPTY="])
    assert (command, start.arguments) == (str(script), ("dlc", "A 3B", "1"))
    assert start.variables == {"TP": "4", "EMPTY": ""}
    assert parse_start(str(script), []) == (str(script), ShellStart())
    with pytest.raises(InputError, match=r"--env: must be NAME=VALUE \(found '4TP'\)"):
        parse_start(None, ["4TP"])


def test_both_commands_take_arguments_and_variables(tmp_path, run_tool):
    path = tmp_path / "run.sh"
    path.write_text(
        "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4 "
        "--seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --vocab-size 1000 "
        "--tensor-model-parallel-size $1 --pipeline-model-parallel-size $STAGES\n"
    )
    given = ("-shell", f"{path} 2", "--env", "STAGES=4", "-evaluate", "y", "-dryrun", "n")
    done = run_tool("pipeline_parallel.py", *given)
    assert done.returncode == 0 and "TP2 PP4" in done.stderr + done.stdout
    done = run_tool("parallel_tool.py", "--shell_path", f"{path} 2", "--env", "STAGES=four")
    assert (
        done.returncode == 2 and "--pipeline-model-parallel-size: must be a whole number (found 'four')" in done.stderr
    )
