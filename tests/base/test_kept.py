"""Kept work is found again unchanged, or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.reliability.mutations import MUTATIONS, Trap
from taylor.base.kept import read_kept, write_kept

WORDS = st.text(st.characters(codec="utf-8"))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=12,
)


@pytest.mark.slow
@given(data=PLAIN)
def test_plain_data_come_back_as_they_were(tmp_path_factory, data):
    path = write_kept(tmp_path_factory.mktemp("kept") / "a.json", data)
    assert read_kept(path) == data


@pytest.mark.parametrize("kind", MUTATIONS)
def test_a_damaged_file_holds_nothing(tmp_path, kind):
    data = {"status": "optimal", "objective": 427.07, "layers": [[1, 2], [3, 4]], "time": 0.5}
    path = write_kept(tmp_path / "a.json", data)
    sound = path.read_bytes()
    for seed in range(20):
        path.write_bytes(MUTATIONS[kind](sound, np.random.default_rng(seed), "json", Trap(tmp_path, tmp_path)))
        assert read_kept(path) in (None, data), path.read_bytes()


def test_what_is_not_there_or_was_never_kept_holds_nothing(tmp_path):
    assert read_kept(tmp_path / "none.json") is None
    (tmp_path / "other.json").write_text('{"status": "optimal"}')
    assert read_kept(tmp_path / "other.json") is None and read_kept(tmp_path) is None
