"""Small scripts of every form, all of a kind at once, against what bash makes of them."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from taylor.parsers.text.shell_arithmetic import evaluate_arithmetic
from taylor.parsers.text.shell_source import ShellScript

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
RUNNER = 'show() { printf "<%s>" "$@"; printf "\\0"; }\nfor each; do ( eval "$each" ) 2>/dev/null; done'


def under_bash(scripts: list[str]) -> list[str]:
    """What every script shows: the words behind ``show``, each in brackets."""
    done = subprocess.run(["bash", "-c", RUNNER, "bash", *scripts], capture_output=True, text=True, check=False)
    shown = done.stdout.split("\0")[:-1]
    assert len(shown) == len(scripts)
    return shown


def read(script: str) -> ShellScript:
    return ShellScript(script, Path("start.sh"))


def shown(script: str) -> str:
    words = next(command.words for command in read(script).commands if command.words[0].text == "show")
    return "".join(f"<{word.text}>" for word in words[1:]) or "<>"


def assert_as_under_bash(scripts: list[str]) -> None:
    wrong = {
        script: (mine, theirs)
        for script, theirs in zip(scripts, under_bash(scripts), strict=True)
        if (mine := shown(script)) != theirs
    }
    assert not wrong


VALUES = ("", "0", "4", "-4", "12", "a", "b")
NUMBERS = ("0", "4", "-4", "12", "007")


def chosen(test: str) -> str:
    return f"if {test}; then R=yes; else R=no; fi\nshow $R"


def test_comparisons_of_texts_and_numbers_come_to_what_bash_finds() -> None:
    tests = []
    for negation in ("", "! "):
        for left, right in itertools.product(VALUES, repeat=2):
            tests += [f"{negation}[ '{left}' {operator} '{right}' ]" for operator in ("=", "==", "!=")]
            tests += [f"[[ {negation}'{left}' {operator} '{right}' ]]" for operator in ("=", "==", "!=")]
        for value in VALUES:
            tests += [f"{negation}[ {operator} '{value}' ]" for operator in ("-n", "-z")]
            tests += [f"{negation}test {operator} '{value}'" for operator in ("-n", "-z")]
            tests += [f"[ {negation}{operator} '{value}' ]" for operator in ("-n", "-z")]
    for left, right in itertools.product(NUMBERS, repeat=2):
        operators = ("-eq", "-ne", "-lt", "-le", "-gt", "-ge")
        tests += [f"[ {left} {operator} {right} ]" for operator in operators]
        tests += [f"[[ ! {left} {operator} {right} ]]" for operator in operators[:3]]
    scripts = [chosen(test) for test in tests]
    assert_as_under_bash(scripts)
    assert not [script for script in scripts if read(script).notes]


UNSETTLED = "[ -d nowhere ]"


def test_tests_that_only_a_running_shell_knows_leave_a_value_open() -> None:
    for test in (
        UNSETTLED, "[ a -eq 1 ]", "[ 1 -eq '' ]", "[[ ab == a* ]]", "[ $UNSET = a ]", "[ a ]", "[ a b c d ]",
        "grep x y", "[ 1234567890123456789 -eq 1 ]", "[[ ! ab == a? ]]", "[ ! ]", "! grep x y", "[ a = b",
        "[ a '<' b ]", "[ a = a ]]",
    ):  # fmt: skip
        script = read("R=before\n" + chosen(test))
        assert shown("R=before\n" + chosen(test)) == "<before>", test
        assert script.notes == ["R is set again under a condition: the value before it is taken"], test


def test_chains_of_tests_are_settled_as_far_as_what_is_known_settles_them() -> None:
    """Kleene's logic of three values, for chains of one operator; mixed ones are left open."""
    words = {True: "[ a = a ]", False: "[ a = b ]", None: UNSETTLED}
    for count in (1, 2, 3):
        for values in itertools.product((True, False, None), repeat=count):
            for operators in itertools.product(("&&", "||"), repeat=count - 1):
                condition = words[values[0]] + "".join(
                    f" {operator} {words[value]}" for operator, value in zip(operators, values[1:], strict=True)
                )
                decides = "||" in operators
                settled = decides if decides in values else None if None in values else not decides
                settled = None if len(set(operators)) > 1 else settled if count > 1 else values[0]
                expected = {True: "<yes>", False: "<no>", None: "<before>"}[settled]
                assert shown("R=before\n" + chosen(condition)) == expected, condition


def test_what_stands_behind_a_test_and_an_operator_runs_as_under_bash() -> None:
    words = ("[ a = a ]", "[ a = b ]", "A=1", "B=2", "[[ 1 -lt 2 ]]")
    scripts = [
        f"A=0; B=0; C=0\n{first} {one} {second} {two} C=5\nshow $A $B $C"
        for first, second in itertools.product(words, repeat=2)
        for one, two in itertools.product(("&&", "||", ";", "\n"), repeat=2)
    ]
    assert_as_under_bash(scripts)
    inside = [
        f"{chosen(f'[[ {first} {operator} {second} ]]')}"
        for first, second in itertools.product(("a = a", "a = b", "-n ''", "! -z ''"), repeat=2)
        for operator in ("&&", "||")
    ]
    assert_as_under_bash(inside)


def test_cases_choose_the_clause_that_bash_chooses() -> None:
    subjects = ("''", "a", "ab", "b", "7b", "13B", "'*'", "'a b'", "'[a]'")
    patterns = ("a", "a*", "?", "[ab]", "*b", "'*'", "\\*", "7b|13B", "'a b'", "*", "'[a]'", "a?|?b", '"a"*')
    scripts = [
        f"R=none\ncase {subject} in\n{first}) R=one ;;\n{second}) R=two ;;\nesac\nshow $R"
        for subject in subjects
        for first, second in itertools.product(patterns, ("a", "*", "[!a]*"))
        if "[!" not in second
    ]
    assert_as_under_bash(scripts)
    assert not [script for script in scripts if read(script).notes]


def test_clauses_that_fall_through_leave_open_what_they_set() -> None:
    for end, second in itertools.product((";&", ";;&"), ("a", "z", "*")):
        text = f"A=0\nB=0\nC=0\ncase a in\n a) A=1 {end}\n {second}) B=1 ;;\n *) C=1 ;;\nesac\nshow $A $B $C"
        [theirs] = under_bash([text])
        mine = shown(text)
        # What is told is bash's, or what stood before, and then a note says so.
        assert all(
            one in (other, "0") for one, other in zip(mine[1:-1].split("><"), theirs[1:-1].split("><"), strict=True)
        )
        assert mine == theirs or read(text).notes, text


def test_parameters_have_their_defaults_and_alternatives() -> None:
    settings = ("", "V=\n", "V=x\n", "V='x  y'\n", "V=(a 'b c')\n", "V=()\n")
    words = ("", "d", "'d e'", '"d  e"', "d e", "$W", "${W:-z}", '"$W"')
    scripts = []
    for setting, operator, word in itertools.product(settings, ("-", ":-", "+", ":+", "=", ":="), words):
        if setting == "V=()\n" or (setting.startswith("V=(") and "=" in operator):
            continue  # An array without words is none to bash before 4.4.
        scripts.append(f'W="p q"\n{setting}show "${{V{operator}{word}}}"' if "'" not in word else f"{setting}show 1")
        scripts.append(f'W=w\n{setting}N=${{V{operator}{word}}}\nshow "$N"')
    assert_as_under_bash([script for script in scripts if "' " not in script])


def test_arrays_are_expanded_by_place_whole_or_joined() -> None:
    arrays = (
        "A=(x)",
        "A=(x 'y z')",
        'A=("p q" r\n # none\n s)',
        "A=(x)\nA+=(y z)",
        'A=(x)\nB=("${A[@]}" y)\nA=("${B[@]}")',
    )
    uses = ('"${A[@]}"', "${A[0]}", "${A[1]}", "$A", '"${A[1]}"', 'b"${A[@]}"e', '"b${A[@]}e"', "${A[*]}", "${A[@]}")
    assert_as_under_bash([f"{array}\nshow {use} end" for array, use in itertools.product(arrays, uses)])
    texts = [f"A={one}\nA+={two}\nshow $A" for one, two in itertools.product(("x", "'x y'", ""), ("z", "'  z'"))]
    assert_as_under_bash(texts)


def test_words_are_parted_and_quoted_as_under_bash() -> None:
    pieces = (
        "a",
        "'b c'",
        '"d e"',
        "\\ ",
        '\\"',
        '"\\""',
        "'\\'",
        "$V",
        '"$V"',
        "${V}x",
        '"a\\$V"',
        '"\\a"',
        "\\\n",
        '""',
    )
    scripts = [
        f"V='v  w'\nshow {one}{gap}{two} end" for one, two in itertools.product(pieces, repeat=2) for gap in ("", " ")
    ]
    # A name goes on as far as it can: `$Va` is another variable, which nothing sets.
    assert_as_under_bash([script for script in scripts if "show $Va" not in script])


def test_redirections_comments_and_documents_are_no_words() -> None:
    assert_as_under_bash([
        "show a 2>/dev/null b # c", "show a </dev/null b", "show a#b '#c' # d", "V=1 # V=2\nshow $V",
        "show a <<< text b", "show a;# b",
    ])  # fmt: skip
    # These show nothing under bash, which sends it elsewhere.
    for text in (
        "show a >/dev/null 2>&1 b", "show a b >>/dev/null", "show a <&0 b", "show a >| /dev/null b",
    ):  # fmt: skip
        assert shown(text) == "<a><b>", text
    bodies = ("", "V=2\n", "V=2\nEND x\n", "xEND\nV=3\n", "'\n", "`\n")
    documents = [
        f"V=1\ncat >/dev/null <<{dash}{quote}END{quote}\n{body}{tab}END\nshow $V a"
        for body in bodies
        for dash, tab in (("", ""), ("-", ""), ("-", "\t"))
        for quote in ("", "'")
        if quote or body != "`\n"
    ]
    assert_as_under_bash(documents)
    two = "V=1\ncat <<A <<B >/dev/null\nV=2\nB\nA\nV=3\nB\nshow $V"
    assert_as_under_bash([two])
    assert shown("show a\ncat <<END\nnever ended") == "<a>"


def test_arithmetic_is_bash_s() -> None:
    operators = ("+", "-", "*", "/", "%")
    expressions = ["-(2+3)", "+4", "- -4", "(((5)))", "N", "$N", "${N}", " 1 ", "-7/2", "7/-2", "-7%2", "7%-2", "2*-3"]
    for (one, two), (a, b, c) in itertools.product(
        itertools.product(operators, repeat=2), itertools.product(("7", "-3", "N"), repeat=3)
    ):
        expressions += [f"{a} {one} {b} {two} {c}", f"{a}{one}({b} {two} {c})"]
    values = {"N": 5}
    mine = {each: evaluate_arithmetic(each, values.get) for each in expressions}
    by_nothing = [each for each in expressions if mine[each] is None]
    fine = [each for each in expressions if mine[each] is not None]
    # bash takes `--` for an operator of its own, and ends where it would divide by nothing.
    program = "N=5; for each; do eval \"printf '%s ' \\$(( $each ))\"; done"
    told = subprocess.run(["bash", "-c", program, "bash", *fine], capture_output=True, text=True, check=True).stdout
    assert [mine[each] for each in fine] == list(map(int, told.split()))
    for each in by_nothing:
        done = subprocess.run(["bash", "-c", f"N=5; echo $(({each}))"], capture_output=True, text=True, check=False)
        assert "division by 0" in done.stderr, each
    assert shown('N=5\nshow "$((N*2-1))" $((1/0)) a$(( $N % 3 ))b') == "<9><$((1/0))><a2b>"


def test_comparisons_and_choices_of_arithmetic_are_as_bash_computes_them() -> None:
    drawn = random.Random(7)
    operators = ("+", "-", "*", "<", ">", "<=", ">=", "==", "!=", "&&", "||")
    expressions = []
    for _ in range(300):
        words = [str(drawn.randint(0, 9))]
        for _ in range(drawn.randint(1, 6)):
            words += [drawn.choice(operators), drawn.choice((str(drawn.randint(1, 9)), "N", "(2 > N)", "(N<7)"))]
        text = " ".join(words)
        expressions.append(f"({text}) ? {drawn.randint(0, 9)} : N < 3 ? 1 : 2" if drawn.random() < 0.3 else text)
    program = "N=5; for each; do eval \"printf '%s ' \\$(( $each ))\"; done"
    told = subprocess.run(["bash", "-c", program, "bash", *expressions], capture_output=True, text=True, check=True)
    assert [evaluate_arithmetic(each, {"N": 5}.get) for each in expressions] == list(map(int, told.stdout.split()))


def test_arithmetic_beyond_these_operators_or_18_digits_is_left_as_it_is() -> None:
    def value(text: str) -> int | None:
        return evaluate_arithmetic(text, {"N": 5}.get)

    for text in (
        "2**3",
        "1<<2",
        "1=1",
        "1?2",
        "1==",
        "a",
        "1 2",
        "(1",
        "1)",
        "",
        "+",
        "1+",
        "1.5",
        "x+1",
        "1/0",
        "1%(2-2)",
        "N N",
    ):
        assert value(text) is None, text
    assert value("9" * 18) == 10**18 - 1 and value("9" * 19) is None
    assert value("1000000000*1000000000") == 10**18 and value("1000000000*1000000000+1") is None
    assert value(f"{'9' * 18}+1") == 10**18 and value(f"-{'9' * 18}-2") is None
    for terms in (100, 101, 102):
        assert value("+".join(["1"] * terms)) == (terms if 2 * terms - 1 <= 201 else None)
