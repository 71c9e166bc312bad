"""Defaults with quotes and the branches of an `if`, read as bash would run them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.shell_start import ShellStart


def words(text: str) -> list[str]:
    return [word.text for word in ShellScript(text, Path("start.sh")).commands[-1].words]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "text",
    [
        'N=${UNSET_NODES:-"4"}\necho --nnodes $N',
        "N=${UNSET_NODES:-'4'}\necho --nnodes ${N}",
        'A=3\nN=${UNSET_NODES:-$A}\nM="${UNSET_MORE:-"$A"}"\necho $N $M',
        "echo a${UNSET_NODES:-}b",
        "if [ a = b ]; then A=1; B=2; else A=1; B=2; fi\necho $A $B",
        "A=0\nif [ a = b ]; then A=1; elif [ a = c ]; then A=1; else A=1; fi\necho $A",
        "A=0\nB=0\nif [ -d x ]; then A=1; B=1; else A=1; fi\nif [ $A = 1 ]; then B=2; fi\necho $A $B",
        'L=(--a 1)\nif [ a = b ]; then L+=(--v 5); else L+=(--v 5); fi\necho "${L[@]}"',
        "A=1\nif [ a = a ]; then if [ a = b ]; then A=2; else A=2; fi; else A=2; fi\necho $A",
        "M=65\nif [[ ${M} == 7 ]]; then H=4096; elif [[ ${M} == 65 ]]; then H=9216; else H=1; fi\necho $H",
        'N=2\nH=1\nif [ "$N" -ge 2 ] && [ $N -lt 4 ]; then H=5; fi\necho $H',
        'N=2\nif [[ $N -gt 4 || -z "$N" ]]; then H=5; else H=6; fi\necho $H',
        "N=a\nif ! [ $N = b ]; then H=5; else H=6; fi\necho $H",
        'N=a\nM=\nif [ -n "$N" ]; then H=5; else H=6; fi\nif [ -n "$M" ]; then J=5; else J=6; fi\necho $H $J',
        'N=a\nM=\nif [ -z "$N" ]; then H=5; else H=6; fi\nif [ -z "$M" ]; then J=5; else J=6; fi\necho $H $J',
        "N=a\n[ $N = a ] && H=5 || H=6\n[ $N = b ] && J=5 || J=6\necho $H $J",
        "A=1\nif [ $A = 2 ]; then echo no; fi\necho $A",
        'L=(--a 1 --b)\nM="x ${L[@]} y"\nN=${L[*]}\necho $M $N',
        "A=1\nB=0\n[ $A = 1 ] &&\n  B=5\n[ $A = 2 ] ||\n\n  C=6\necho $B $C",
        'M=8B\ncase "${M}" in\n "7B") H=1 ;;\n 8B|9B)\n H=2\n L="a b"\n ;;\n *) H=3; exit 1 ;;\nesac\necho $H $L',
        "M=13b\ncase $M in (7*) H=1;; ([12]?b) H=2;; *) H=3; esac\necho $H",
        "M='*'\ncase $M in '*'x) H=1;; \\*) H=2;; esac\necho $H",
        "M=x\nH=0\ncase $M in # none fits\n a) H=1;;\n b) H=2\nesac\necho $H",
        "N=b\ncase a in\n a) case $N in\n c) H=1;;\n b) if [ $N = b ]; then H=2; fi;; esac;;\n *) H=4;;\nesac\necho $H",
        "for M in a; do case a in a) G=1;; esac; done\ncase z in z) H=5;; esac\necho $H",
        ': "${X:=8}"\necho $X',
        "echo ${X:=8} $X",
        "X=\n: ${X:=8}\necho $X",
        "X=\n: ${X=8}\necho a$X",
        "X=5\n: ${X:=8}\necho $X",
        ': ${X:="a b"} ${Y:=${Z:=6}}\necho $X $Y $Z',
        "A=1\nB=${X:=$A}\nA=2\necho $X $B",
        "if [ a = b ]; then : ${X:=9}; fi\n: ${X:=4}\necho $X",
        "[ a = b ] && : ${X:=9}\n[ a = b ] || : ${Y:=3}\n: ${X:=4} ${Y:=5}\necho $X $Y",
        "case a in b) : ${X:=9};; *) : ${X:=4};; esac\necho $X",
    ],
)
def test_quoted_defaults_and_branches_that_agree_expand_as_under_bash(text: str) -> None:
    out = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout
    assert " ".join(words(text)[1:]) == out.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    "text",
    [
        'if [ "$U" = yes ]; then H=1; else H=2; fi\necho $H',
        "if [[ $U == yes ]]; then H=1; else H=2; fi\necho $H",
        'if [ "$U" = "" ]; then H=1; else H=2; fi\necho $H',
        "if [[ -n $U && $U == a ]]; then H=1; else H=2; fi\necho $H",
        '[ -z "$U" ] && H=4\necho $H',
    ],
)
def test_a_variable_that_no_start_sets_is_empty_in_a_test_as_under_bash(text: str) -> None:
    out = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env={}).stdout
    script = ShellScript(text, Path("start.sh"), start=ShellStart((), {}))
    assert script.commands[-1].words[1].text == out.strip()


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_a_script_with_slurms_lines_expands_as_under_bash_with_slurms_variables() -> None:
    text = (
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=8 # two\n#SBATCH --gres=gpu:h100:4\nN=${SLURM_NNODES:-1}\n"
        ': "${SLURM_GPUS_ON_NODE:=8}"\necho $N $SLURM_NTASKS ${SLURM_GPUS_ON_NODE} $((N * SLURM_NTASKS_PER_NODE))'
    )
    slurm = {"SLURM_NNODES": "2", "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8", "SLURM_GPUS_ON_NODE": "4"}
    out = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env=slurm).stdout
    assert " ".join(words(text)[1:]) == out.strip()


def test_branches_that_differ_keep_the_value_before_them_and_say_so() -> None:
    script = ShellScript("A=0\nif [ -d x ]; then A=1; else A=2; fi\necho $A", Path("start.sh"))
    assert [word.text for word in script.commands[-1].words] == ["echo", "0"]
    assert script.notes == ["A is set again under a condition: the value before it is taken"]


def test_of_lists_that_branches_add_to_what_all_of_them_add_holds() -> None:
    text = 'L=(--a 1)\nif [ -d x ]; then L+=(--mock "--v 5"); else L+=(--data d "--v 5"); fi\necho ${L[@]}'
    assert words(text) == ["echo", "--a", "1", "--v", "5"]


def test_a_value_in_a_quoted_default_has_its_place_in_the_script() -> None:
    text = 'N=${UNSET_NODES:-"4"}\necho $N'
    word = ShellScript(text, Path("start.sh")).commands[-1].words[1]
    assert word.span() == (text.index("4"), text.index("4") + 1)


@pytest.mark.parametrize("text", ["if [ -d x ]; then A=1; else A=2; fi", "case $1 in\na) A=1 ;;\nb) A=2 ;;\nesac"])
def test_a_value_that_only_an_unsettled_condition_sets_is_named(text: str) -> None:
    script = ShellScript(text + "\necho $A", Path("start.sh"))
    assert [word.text for word in script.commands[-1].words] == ["echo", "2"]
    assert script.notes == ["A is set under a condition that the script does not settle: the last value is taken"]


def test_a_branch_that_never_runs_starts_nothing() -> None:
    script = ShellScript("A=1\nif [ $A = 2 ]; then torchrun a.py; else torchrun b.py; fi", Path("start.sh"))
    assert [[word.text for word in command.words] for command in script.commands] == [["torchrun", "b.py"]]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_the_words_that_another_shell_is_given_are_a_command_with_their_places(quote: str) -> None:
    text = f'RUN="python x.py"\nARGS="--a 5"\nsrun -c 4 bash -c {quote}$RUN --b 6 $ARGS{quote} | tee log'
    started = ShellScript(text, Path("start.sh")).commands[1]
    assert [word.text for word in started.words] == ["python", "x.py", "--b", "6", "--a", "5"]
    assert started.words[3].span() == (text.index("6"), text.index("6") + 1)
    assert started.words[5].span() == (text.index("5"), text.index("5") + 1)


def test_eval_takes_off_the_quotes_that_the_text_still_holds() -> None:
    text = 'RUN="torchrun x.py --layout \'Et|t*3L\' --name \\"a b\\" --more a\\|b"\neval $RUN'
    started = ShellScript(text, Path("start.sh")).commands[-1].words
    assert [word.text for word in started][2:] == ["--layout", "Et|t*3L", "--name", "a b", "--more", "a|b"]
    assert started[3].span() == (text.index("Et|"), text.index("Et|") + 7)


def test_a_default_whose_own_expansion_is_never_closed_stays_as_it_is_written() -> None:
    script = ShellScript("A=${B:-$(}\n", Path("a.sh"))
    (word,) = script.variables["A"].words
    assert word.text == "${B:-$(}" and word.unknown and word.span() == (2, 10)


@pytest.mark.parametrize("ends", [";&", ";;&"])
def test_a_clause_that_goes_on_into_the_next_settles_nothing(ends: str) -> None:
    script = ShellScript(f"A=1\ncase a in\n a) A=2 {ends}\n b) A=3 ;;\nesac\necho $A", Path("start.sh"))
    assert [word.text for word in script.commands[-1].words] == ["echo", "1"]
    assert script.notes == ["A is set again under a condition: the value before it is taken"]


def test_a_case_that_is_no_word_of_the_shell_is_one_of_a_command() -> None:
    assert words("echo case esac") == ["echo", "case", "esac"]
    assert not ShellScript("case\n", Path("start.sh")).commands
