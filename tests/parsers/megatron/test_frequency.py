"""Frequency flags against Python itself, which is what Megatron lets work them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taylor.base.errors import InputError
from taylor.parsers.megatron.frequency import list_text, nth_layers, read_list
from taylor.parsers.megatron.script import FORM
from taylor.parsers.text.flags import Flags
from taylor.parsers.text.script_flags import flags_of
from taylor.parsers.text.shell_source import ShellScript

NAME = "moe-layer-freq"


def flags_with(value: str) -> Flags:
    text = f"torchrun pretrain_gpt.py --num-layers 4 --hidden-size 8 --{NAME} '{value}'\n"
    return flags_of(ShellScript(text, Path("job.sh")), FORM)


def lists() -> st.SearchStrategy[str]:
    """Texts such as ``([1,0]*3+[0])*2``, also with numbers in front."""
    plain = st.lists(st.sampled_from("01"), min_size=1, max_size=4).map(lambda bits: f"[{','.join(bits)}]")

    def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        times = st.integers(1, 4)
        return st.one_of(
            st.tuples(inner, inner).map("+".join),
            st.tuples(inner, times).map(lambda pair: f"({pair[0]})*{pair[1]}"),
            st.tuples(times, inner).map(lambda pair: f"{pair[0]}*({pair[1]})"),
            inner.map(lambda text: f"({text})"),
        )

    return st.recursive(plain, combined, max_leaves=5)


@given(text=lists())
def test_a_list_is_what_python_makes_of_it(text: str) -> None:
    wanted = eval(text, {"__builtins__": {}})
    assert read_list(flags_with(text), NAME, len(wanted)) == [bool(entry) for entry in wanted]


@given(entries=st.lists(st.booleans(), min_size=1, max_size=40))
def test_a_list_that_is_written_gives_its_entries_back(entries: list[bool]) -> None:
    text = list_text(entries)
    assert [bool(entry) for entry in eval(text, {"__builtins__": {}})] == entries
    assert read_list(flags_with(text), NAME, len(entries)) == entries


def test_what_repeats_is_written_once() -> None:
    assert list_text([False, True] * 12) == "([0]*1+[1]*1)*12"
    assert list_text([False] * 3 + [True] * 5) == "([0]*3+[1]*5)"


@pytest.mark.parametrize(
    "text",
    [
        *("[0,1", "[0]]", "[0]*[1]", "[0]+1", "[2]*4", "[[0]]*4", "[a]*4", "[0]**4", "__import__('os')[0]"),
        *("[0]*99999*99999", "([0]*9999)*9999", "(" * 200 + "[0]" + ")" * 200, "[0]*999999999999", "1+[", "[]*4x"),
    ],
)
def test_what_is_no_list_or_has_no_bound_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--moe-layer-freq: must be a list of 0 and 1"):
        read_list(flags_with(text.replace("'", "")), NAME, 4)


def test_a_list_of_another_length_is_refused_with_both_counts() -> None:
    with pytest.raises(InputError, match="names 3 layers; the model has 4"):
        read_list(flags_with("[0]*3"), NAME, 4)


@pytest.mark.parametrize(("nth", "wanted"), [(True, [0, 0, 1, 0, 0, 1, 0]), (False, [1, 1, 0, 1, 1, 0, 1])])
def test_a_number_marks_every_nth_layer_or_all_others(nth: bool, wanted: list[int]) -> None:
    assert nth_layers(flags_with("3"), NAME, 7, nth=nth) == [bool(each) for each in wanted]
    assert nth_layers(flags_with("-3"), NAME, 7, nth=nth) == [bool(each) for each in wanted]
