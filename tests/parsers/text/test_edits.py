"""Values set in YAML, TOML and scripts by splicing: the whole text after each edit, as a careful person leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from taylor.base.errors import InputError
from taylor.parsers.megatron.script import FORM
from taylor.parsers.text import yaml_source
from taylor.parsers.text.flag_edit import Setting, edit_flags, plain_value, set_variable
from taylor.parsers.text.json_source import MAX_DIGITS, read_json
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.text.toml_edit import TomlSource, edit_toml, toml_text, value_end
from taylor.parsers.text.yaml_edit import edit_yaml, lookup
from taylor.parsers.text.yaml_source import MAX_DEPTH, YamlSource, flow_text

HERE = Path("a.file")


def refusal(act: Any) -> str:
    with pytest.raises(InputError) as raised:
        act()
    return str(raised.value)


def yaml_after(text: str, wanted: dict[str, Any], **more: Any) -> str:
    """The text with dotted entries set; numbers count entries of lists."""
    paths = {tuple(int(p) if p.isdigit() else p for p in key.split(".")): value for key, value in wanted.items()}
    done = edit_yaml(YamlSource(text, HERE), paths, **more)
    for path, value in paths.items():
        assert lookup(done.data, path) == value
    assert yaml.safe_load(done.text) == done.data
    return done.text


@pytest.mark.parametrize(
    ("text", "wanted", "after"),
    [
        ("a: 1\n", {"a": 2}, "a: 2\n"), ("a:\n", {"a": 2}, "a: 2\n"), ("a: 1", {"a": 2}, "a: 2"),
        ("a: 1 # one\n", {"a": "x y"}, 'a: "x y" # one\n'), ("a: 1\n", {"a": 1}, "a: 1\n"),
        ("a: &x 1\nb: *x\n", {"a": 2}, "a: 2\nb: &x 1\n"), ("a: &x 1\nb: {a: *x}\n", {"a": 2}, "a: &x 2\nb: {a: *x}\n"),
        ("a: &x 1\nb: *x\nc: *x\n", {"b": 2}, "a: &x 1\nb: 2\nc: *x\n"),
        ("a: [1, 2]\n", {"a": [1, 3]}, "a: [1, 3]\n"), ("a: [1, 2]\n", {"a": [1]}, "a: [1]\n"),
        ("a:\n- 1\n- 2 # two\nb: 3\n", {"a": [1, 4]}, "a:\n- 1\n- 4 # two\nb: 3\n"),
        ("a:\n- 1\n- 2\nb: 3\n", {"a": [1]}, "a: [1]\nb: 3\n"),
        ("a: # why\n  - 1\n  - 2\nb: 3\n", {"a": [1]}, "a: # why\n  [1]\nb: 3\n"),
        ("s:\n  a:  # why\n    - 1\n  b: 3\n", {"s.a": 5}, "s:\n  a:  # why\n    5\n  b: 3\n"),
        ("a: &x [1, 2]\nb: *x\n", {"a": [1, 3]}, "a: [1, 3]\nb: &x [1, 2]\n"),
        ("a: &x [1, 2]\nb: {a: *x}\n", {"a": [1, 3]}, "a: &x [1, 3]\nb: {a: *x}\n"),
        ("a: &x\n  - 1\nb: {a: *x}\n", {"a": [1, 2]}, "a: &x [1, 2]\nb: {a: *x}\n"),
        ("a: {b: 1, c: 2}\n", {"a.b": 3}, "a: {b: 3, c: 2}\n"), ("a: {b: 1}\n", {"a.c": 3}, "a: {c: 3, b: 1}\n"),
        ("a:\n  b: 1\n", {"a.c": 3}, "a:\n  b: 1\n  c: 3\n"), ("a:\n  b: 1 # x\nd: 2\n", {"a.c": 3},
         "a:\n  b: 1 # x\n  c: 3\nd: 2\n"), ("a: 1\n", {"b": 2}, "a: 1\nb: 2\n"), ("a: 1", {"b": 2}, "a: 1\nb: 2"),
        ("a: 1\n", {"b.c": 2}, "a: 1\nb:\n  c: 2\n"), ("a: 1\n", {"b.c.d": 2}, "a: 1\nb:\n  c: {d: 2}\n"),
        ("a: null\n", {"a.b": 2}, "a: {b: 2}\n"), ("a: True\n", {"a.b": 2}, "a: {b: 2}\n"),
        ("a:\nb: 1\n", {"a.b": 2}, "a: {b: 2}\nb: 1\n"), ("a: |\n  text\n", {"b": 2}, "b: 2\na: |\n  text\n"),
        ("b: 1\na: [x, |\n", {"b": 1}, None), ("a: 1\r\nb: 2\r\n", {"c": 3}, "a: 1\r\nb: 2\r\nc: 3\r\n"),
        ("a: [1, [2, 3]]\n", {"a": [1, [2, 4]]}, "a: [1, [2, 4]]\n"), ("a: [[1], 2]\n", {"a": [1, 2]}, "a: [1, 2]\n"),
        ("a: [1, 2]\n", {"a.1": 5}, "a: [1, 5]\n"), ("a: !!int 1\n", {"a": 2}, "a: 2\n"),
        ("a: &x !!int 1\nb: {a: *x}\n", {"a": 2}, "a: &x 2\nb: {a: *x}\n"), ('"a": 1\n', {"a": 2}, '"a": 2\n'),
        ("a: 1\na: 2\n", {"a": 3}, "a: 1\na: 3\n"), ("- a\n", {"a": 1}, None),
    ],
)  # fmt: skip
def test_a_yaml_text_has_the_new_value_and_every_other_character(
    text: str, wanted: dict[str, Any], after: str | None
) -> None:
    if after is None:
        with pytest.raises(InputError):
            yaml_after(text, wanted)
    else:
        assert yaml_after(text, wanted) == after


def test_a_key_goes_behind_the_first_sibling_that_it_belongs_beside() -> None:
    text = "s:\n  a: 1\n  b:\n    - 1\n    - 2  # two\n  c: |\n    text\n  d: 4\n"
    for names, after in ((("a",), "a: 1"), (("x", "b"), "- 2  # two"), (("b", "a"), "- 2  # two"), ((), "d: 4")):
        new = yaml_after(text, {"s.n": 9}, beside={"n": names})
        assert new == text.replace(f"{after}\n", f"{after}\n  n: 9\n")
    assert yaml_after(text, {"s.n": 9}, beside={"n": ("c",)}) == text.replace("d: 4\n", "d: 4\n  n: 9\n")
    last = text.replace("  d: 4\n", "")
    assert yaml_after(last, {"s.n": 9}) == last.replace("  a: 1", "  n: 9\n  a: 1")


def test_anchors_lead_their_aliases_where_these_are_to_follow() -> None:
    text = "p:\n  d: &d 4\nq: [*d, 1]\n"
    assert yaml_after(text, {"p.d": 8}, followed=[("p", "d")]) == "p:\n  d: &d 8\nq: [*d, 1]\n"
    assert yaml_after(text, {"p.d": 8}) == "p:\n  d: 8\nq: [&d 4, 1]\n"
    aside = "w: &d 4\np:\n  d: *d\n"
    assert yaml_after(aside, {"p.d": 8}, followed=[("p", "d")]) == "w: &d 8\np:\n  d: *d\n"
    assert yaml_after(aside, {"p.d": 8}) == "w: &d 4\np:\n  d: 8\n"
    two = "w: &d 4\np:\n  d: *d\n  e: *d\n"
    both = [("p", "d"), ("p", "e")]
    assert yaml_after(two, {"p.d": 8, "p.e": 8}, followed=both) == "w: &d 8\np:\n  d: *d\n  e: *d\n"
    assert yaml_after(two, {"p.d": 8, "p.e": 2}, followed=both) == "w: &d 4\np:\n  d: 8\n  e: 2\n"


def test_what_cannot_be_set_alone_is_refused_by_its_field() -> None:
    assert "a: must be a mapping of names" in refusal(lambda: yaml_after("a: [1]\n", {"a.b": 2}))
    assert "a: must be a mapping of names" in refusal(lambda: yaml_after("a: text\n", {"a.b": 2}))


def test_a_yaml_text_is_a_bounded_mapping_of_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, told in (
        ("", "is empty"), ("# x\n", "is empty"), ("- 1\n", "must be a mapping"), ("1\n", "must be a mapping"),
        ("a: 1\n---\nb: 2\n", "is not valid YAML"), ("a: b: c\n", "is not valid YAML at line 1: "),
        ("a: 1\nb: [\n", "is not valid YAML at line 3: "), ("a: *x\n", "is not valid YAML"),
        ("a: &x [*x]\n", "refers to itself by an alias"), ("a: !!python/name:os.system\n", "is not valid YAML"),
        ("a: 2001-99-99\n", "is no timestamp"),
    ):  # fmt: skip
        assert told in refusal(lambda text=text: YamlSource(text, HERE))
    # The key counts, and so does each value: two for the mapping and its key, one for the list.
    monkeypatch.setattr(yaml_source, "MAX_NODES", 100)
    most = 100 - 3
    assert len(YamlSource(f"a: [{'1,' * most}]", HERE).data["a"]) == most
    assert "contains more than 100 values" in refusal(lambda: YamlSource(f"a: [{'1,' * (most + 1)}]", HERE))
    deep = MAX_DEPTH - 1
    YamlSource(f"a: {'[' * deep}{']' * deep}", HERE)
    assert "is nested too deep" in refusal(lambda: YamlSource(f"a: {'[' * (deep + 2)}{']' * (deep + 2)}", HERE))
    half = 100 // 2
    assert "expands by its aliases" in refusal(lambda: YamlSource(f"a: &x [{'1,' * (half - 1)}]\nb: [*x, *x]\n", HERE))


def test_places_and_leaves_of_a_yaml_text() -> None:
    source = YamlSource("a: &x\n  b: [1, {}]\nc: *x\nd: []\n", HERE)
    for path, found in (
        (("a", "b", 0), True), (("a", "b", 2), False), (("a", "b", -1), False), (("c", "b", 0), True), (("e",), False),
        (("a", "b", "0"), False), (("d", 0), False),
    ):  # fmt: skip
        assert (source.place(path) is not None) == found
    through = source.place(("c", "b"))
    assert through is not None and through.path == ("a", "b") and through.alias is None
    own = source.place(("c",))
    assert own is not None and own.alias is not None and own.alias.name == "x"
    integer = "tag:yaml.org,2002:int"
    assert source.leaves() == {
        ("a", "b", 0): (integer, "1"), ("a", "b", 1): ("{}", ""), ("c",): ("*", "x"), ("d",): ("[]", ""),
    }  # fmt: skip
    assert lookup(source.data, ("a", "b", 0)) == 1
    assert lookup(source.data, ("a", "b", 2)) is None and lookup(source.data, ("a", "b", -1)) is None


@pytest.mark.parametrize(
    "value", [None, True, False, 3, -2.5, 1e-5, -1e20, "", 'a"b', "no", [1, [2]], {"a-b": {"c d": []}}]
)
def test_flow_text_reads_back_as_the_value(value: Any) -> None:
    found = yaml.safe_load(f"a: {flow_text(value)}")["a"]
    assert found == value and type(found) is type(value)


TOML = '# top\nx = 1\n\n[a]\nb = "one" # why\nc = [\n  1, # first\n  2,\n]\n\n[a.d]\ne = 1.5\n[[f]]\ng = 1\n'


@pytest.mark.parametrize(
    ("path", "value", "old", "new"),
    [
        (("", "x"), 2, "x = 1", "x = 2"), (("a", "b"), "two", '"one" # why', '"two" # why'),
        (("a", "c"), [3], "[\n  1, # first\n  2,\n]", "[3]"), (("a.d", "e"), True, "e = 1.5", "e = true"),
        (("", "x"), None, "x = 1\n", ""), (("a", "b"), None, 'b = "one" # why\n', ""),
        (("a", "c"), None, "c = [\n  1, # first\n  2,\n]\n", ""), (("a.d", "e"), None, "e = 1.5\n", ""),
        (("", "y"), 3, "x = 1\n", "x = 1\ny = 3\n"), (("a", "n"), 3, "2,\n]\n", "2,\n]\nn = 3\n"),
        (("a.d", "n"), [1, "z"], "e = 1.5\n", 'e = 1.5\nn = [1, "z"]\n'), (("", "x"), 1, "", ""),
        (("a", "z"), None, "", ""),
        (("", "x"), 1.0, "x = 1\n", "x = 1.0\n"), (("", "x"), True, "x = 1\n", "x = true\n"),
    ],
)  # fmt: skip
def test_a_toml_text_has_the_new_value_and_every_other_character(
    path: tuple[str, str], value: Any, old: str, new: str
) -> None:
    for text, ends in ((TOML, "\n"), (TOML.replace("\n", "\r\n"), "\r\n"), ("\ufeff" + TOML, "\n")):
        done = edit_toml(TomlSource(text, HERE), {path: value})
        assert done.text == text.replace(old.replace("\n", ends), new.replace("\n", ends), 1 if old else 0)


def test_new_tables_go_to_the_end_and_empty_ones_are_filled() -> None:
    for text, gap in ((TOML, "\n"), (TOML.rstrip("\n"), "\n\n")):
        assert edit_toml(TomlSource(text, HERE), {("n.m", "k"): 1}).text == f"{text}{gap}[n.m]\nk = 1\n"
    empty = "[a]  # none\n[b]\nc = 1\n"
    assert edit_toml(TomlSource(empty, HERE), {("a", "k"): 1}).text == "[a]  # none\nk = 1\n[b]\nc = 1\n"
    both = edit_toml(TomlSource("a = 1\nb = 2", HERE), {("", "a"): None, ("", "b"): 3})
    assert both.text == "b = 3"


def test_what_toml_cannot_set_alone_is_refused() -> None:
    for text, path in (("a = {b = 1}\n", ("a", "b")), ("a.b = 1\n", ("a", "b"))):
        assert "is written in a form that is not changed here" in refusal(
            lambda text=text, path=path: edit_toml(TomlSource(text, HERE), {path: 2})
        )
    for text, told in (
        ("", "is empty"),
        ("# x\n", "is empty"),
        ("a = \n", "is not valid TOML"),
        ("a", "is not valid TOML"),
    ):
        assert told in refusal(lambda text=text: TomlSource(text, HERE))


@pytest.mark.parametrize(
    "value",
    ["1", '"a # b"', r'"a \" b"', "'a \\'", '"""a "b" \n c"""', "'''x\n'y'''", "[1, [2, 3]]", '[ "]" ]', "{ a = '}' }",
     "[ # ]\n 1]", "2020-01-01", "[]", '""'],
)  # fmt: skip
def test_a_toml_value_ends_where_it_ends(value: str) -> None:
    for behind in ("", " ", " # [note", "\n[next]", "\r\nx = 1"):
        assert value_end(f"k = {value}{behind}", 4) == 4 + len(value)
    assert value_end('k = """open', 4) == len('k = """open')


def test_toml_text_reads_back_as_the_value() -> None:
    for value in (True, False, 1, -2.5, 'a"b\n', [1, ["x", False]], (1, 2)):
        found = TomlSource(f"a = {toml_text(value)}\n", HERE).data["a"]
        assert found == (list(value) if isinstance(value, tuple) else value)
    for value in (None, {}):
        with pytest.raises(TypeError):
            toml_text(value)


def test_json_is_bounded_and_names_every_field_once(tmp_path: Path) -> None:
    file = tmp_path / "a.json"

    def read(text: str) -> Any:
        file.write_text(text, encoding="utf-8")
        return read_json(file, "a config.json")

    assert read('\ufeff{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert read("9" * MAX_DIGITS) == 10**30 - 1 and MAX_DIGITS == 30
    assert "contains a number of 31 digits" in refusal(lambda: read("9" * 31))
    assert "a: stands twice" in refusal(lambda: read('{"b": {"a": 1, "a": 1}}'))
    assert "line 2, column 3" in refusal(lambda: read('{"a": 1,\n  }'))
    assert "is nested too deep; is it a config.json?" in refusal(lambda: read("[" * 200_000))


BASE = ("--num-layers 8", "--hidden-size 64", "--tensor-model-parallel-size 1")


def edited(text: str, **wanted: Setting) -> str:
    names = {name.replace("_", "-"): setting for name, setting in wanted.items()}
    return edit_flags(ShellScript(text, HERE), names, FORM, near=("num-layers",)).text


def one_line(*more: str) -> str:
    return f"torchrun pretrain_gpt.py {' '.join((*BASE, *more))}\n"


def lined(*more: str) -> str:
    return "torchrun pretrain_gpt.py \\\n" + " \\\n".join(f"    {each}" for each in (*BASE, *more)) + "\n"


def test_flags_of_a_command_are_changed_added_and_taken_away_in_its_own_style() -> None:
    for text, wanted, after in (
        (one_line("--bf16"), {"num_layers": "9"}, one_line("--bf16").replace("layers 8", "layers 9")),
        (one_line("--bf16"), {"bf16": False}, one_line()),
        (one_line("--a 1", "--bf16"), {"a": False}, one_line("--bf16")),
        (one_line("--bf16"), {"bf16": True}, one_line("--bf16")), (one_line("--a=1"), {"a": "2"}, one_line("--a=2")),
        (one_line("--a"), {"a": "2"}, one_line("--a 2")), (one_line("--a 1 2"), {"a": ("3", "4", "5")},
         one_line().replace("--num", "--a 3 4 5 --num")), (one_line("--a 1 2"), {"a": ("1", "2")}, one_line("--a 1 2")),
        (one_line(), {"bf16": True}, one_line().replace("--num", "--bf16 --num")),
        (one_line(), {"a": "x y"}, one_line().replace("--num", "--a 'x y' --num")),
        (one_line("--a 1", "--b 2", "--a 1"), {"a": False}, one_line("--b 2")),
        (lined("--bf16"), {"bf16": False}, lined().removesuffix("\n") + " \\\n"),
        (lined("--bf16", "--a 1"), {"bf16": False}, lined("--a 1")), (lined("--a 1"), {"a": "3"}, lined("--a 3")),
        (lined(), {"bf16": True}, lined().replace("    --num", "    --bf16 \\\n    --num")),
        (lined(), {"a": "3"}, lined().replace("    --num", "    --a 3 \\\n    --num")),
    ):  # fmt: skip
        new = edited(text, **wanted)  # type: ignore[arg-type]
        assert new.rstrip("\n\\ ") == after.rstrip("\n\\ "), (text, wanted)


def test_flags_in_variables_and_arrays_are_changed_where_they_stand() -> None:
    array = "A=(\n    --num-layers 8\n    --hidden-size 64  # wide\n    --bf16\n)\n"
    command = 'torchrun pretrain_gpt.py --tensor-model-parallel-size 1 "${A[@]}"\n'
    assert edited(array + command, bf16=False) == array.replace("    --bf16\n", "") + command
    assert edited(array + command, fp16=True) == array.replace("    --num", "    --fp16\n    --num") + command
    assert edited(array + command, hidden_size="32") == array.replace("64", "32") + command
    quoted = 'A="\n    --num-layers 8 \\\n    --hidden-size 64\n    --bf16\n"\n'
    command = "torchrun pretrain_gpt.py --tensor-model-parallel-size 1 $A\n"
    assert edited(quoted + command, fp16=True) == quoted.replace("    --num", "    --fp16 \\\n    --num") + command
    assert edited(quoted + command, bf16=False) == quoted.replace("    --bf16\n", "") + command
    crlf = (quoted + command).replace("\n", "\r\n")
    assert "\n" not in edited(crlf, fp16=True).replace("\r\n", "")


def test_a_value_in_a_variable_is_changed_there_where_nothing_else_takes_it() -> None:
    own = "N=8\ntorchrun pretrain_gpt.py --num-layers $N --hidden-size 64 --tensor-model-parallel-size 1\n"
    assert edited(own, num_layers="9") == own.replace("N=8", "N=9")
    shared = own.replace("--hidden-size 64", "--hidden-size $N")
    assert edited(shared, num_layers="9") == shared.replace("layers $N", "layers 9")
    assert edited(shared, num_layers="9", hidden_size="9") == shared.replace("N=8", "N=9")
    joined = own.replace("--num-layers $N", "--num-layers=${N}")
    assert edited(joined, num_layers="9") == joined.replace("N=8", "N=9")
    parts = own.replace("N=8", "N=8\nM=1").replace("$N", "$M$N")
    assert "put together from several places" in refusal(lambda: edited(parts, num_layers="9"))


def test_plain_variables_are_set_and_others_left(tmp_path: Path) -> None:
    text = 'A=1\nB="x y"\nC=(1 2)\nD=$A\nE=\n' + one_line()
    for name, new in (("A", "A=7"), ("B", 'B="7"')):
        done = set_variable(ShellScript(text, HERE), name, "7")
        assert done is not None and done.text == text.replace(text.splitlines()["ABCDE".index(name)], new)
    for name in ("C", "D", "E", "F"):
        assert set_variable(ShellScript(text, HERE), name, "7") is None


def test_settings_from_plain_data_are_words_that_a_shell_leaves_whole() -> None:
    assert [plain_value(value, HERE, "x") for value in (True, False, None, 3, 1.5, "a/b=c,d:e@f%g+h-i")] == [
        True, False, False, "3", "1.5", "a/b=c,d:e@f%g+h-i",
    ]  # fmt: skip
    for value in ("a b", "$a", "a;b", "'a'", "", "a\n"):
        assert "--x: contains characters" in refusal(lambda value=value: plain_value(value, HERE, "x"))
