"""Words that the project's texts do not use: the check of `benchmarks/words.py` finds them, and finds none."""

from __future__ import annotations

import pytest

from benchmarks import words


def found(reader, text: str) -> list[str]:
    return [hit.word for hit in words.hits("page.md", reader(text))]


@pytest.mark.slow
def test_readme_and_documentation_use_none_of_the_words() -> None:
    assert [str(hit) for hit in words.check()] == []


def test_pages_that_are_left_out_exist() -> None:
    named = (*words.GENERATED, *words.ALLOWED, *words.NOT_COVERED)
    assert [name for name in named if not (words.ROOT / name).is_file()] == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("A step is told in ms.", "told"),
        ("Figures held against runs.", "held against"),
        ("The plan in the file's own form.", "file's own"),
        ("Links such as are measured.", "such as are"),
        ("Measured anew.", "anew"),
    ],
)
def test_a_word_is_found_in_prose_with_its_place(line: str, word: str) -> None:
    [hit] = words.hits("page.md", words.prose(f"# Title\n\n{line}\n"))
    assert (hit.place, hit.word) == ("page.md:3", word)


def test_code_links_and_what_a_program_writes_are_not_prose() -> None:
    text = (
        "```\nsteps are told\n```\n`told` ``told`` [link](told.md)\n"
        "<!-- table: written by make x -->\ntold\n<!-- end of the table -->\nHugging Face\n"
    )
    assert found(words.prose, text) == []


def test_docstrings_and_messages_can_be_read_too() -> None:
    text = '"""Steps told."""\nLIMIT = 1\n"""Told apart."""\nprint("measured anew", "told")\n'
    assert sorted(found(words.docstrings, text)) == ["Told", "told"]
    assert found(words.messages, text) == ["anew"]


def test_names_and_comments_can_be_read_too() -> None:
    text = "def told_ms(held, withheld):\n    # Measured anew, `told`.\n    room_mib = held.told\n"
    hits = [*words.hits("a.py", words.names(text), words=words.NAMES), *words.hits("a.py", words.comments(text))]
    assert sorted((hit.place, hit.word) for hit in hits) == [
        ("a.py:1", "held"), ("a.py:1", "told"), ("a.py:2", "anew"), ("a.py:3", "room"),
    ]  # fmt: skip
    assert found(words.notes, "key: told\n# Steps told.\n") == ["told"]


def test_messages_have_further_words() -> None:
    text = 'raise InputError(f"holds {count} rows", cure="write one a stage")\nlog.info("held")\nx = "%s holds"\n'
    hits = words.hits("a.py", words.messages(text), words=words.MESSAGE_WORDS)
    assert sorted((hit.place, hit.word) for hit in hits) == [("a.py:1", "holds"), ("a.py:3", "holds")]
