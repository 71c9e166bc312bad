"""Names that are one letter from a known one."""

from __future__ import annotations

import pytest

from taylor.parsers.text.spelling import likely_meant, one_letter_apart


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("pipeline_stages", "pipeline_stage"),
        ("pipline_stage", "pipeline_stage"),
        ("pipeline_stagw", "pipeline_stage"),
        ("pipeline_satge", "pipeline_stage"),
        ("pipeline-stage", "pipeline_stage"),
        ("Pipeline_stage", "pipeline_stage"),
    ],
)
def test_a_letter_added_left_out_replaced_or_swapped_is_one_letter(one, other):
    assert one_letter_apart(one, other) and one_letter_apart(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("stage", "stage"), ("stages", "tage"), ("adam_beta1", "adam_beta2"), ("layer1", "layer"), ("abcd", "badc")],
)
def test_equal_names_numbered_names_and_two_letters_are_not(one, other):
    assert not one_letter_apart(one, other) and not one_letter_apart(other, one)


def test_short_names_stand_for_themselves():
    assert likely_meant("lr", ["tr"]) is None
    assert likely_meant("seqs", ["seq", "seqz"]) == "seqz"
