"""``--framework`` and the suffix of ``-o`` say the same framework."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.model_start import FRAMEWORK_NAMES, framework_of
from taylor.command_lines.pipeline_parallel import build_parser
from taylor.workflows.searching.model_job import FRAMEWORKS


def framework(*words):
    return framework_of(build_parser().parse(["--model", "llama3-8b", "--world_size", "16", *words]))


@pytest.mark.parametrize(
    "words, found",
    [((), None), (("-o", "run.sh"), None), (("-o", "job.yml"), "mindformers"), (("-o", "a.toml"), "torchtitan"),
     (("-o", "a.json"), "json"), (("--framework", "mindspeed", "-o", "run.sh"), "mindspeed"),
     (("--framework", "mindformers"), "mindformers")],
)  # fmt: skip
def test_the_suffix_chooses_the_framework_where_none_is_named(words, found):
    assert framework(*words) == found


@pytest.mark.parametrize(
    "words, cure",
    [(("--framework", "torchtitan", "-o", "run.sh"), "end it in .toml, or name --framework megatron or mindspeed"),
     (("--framework", "megatron", "-o", "run.yaml"), "end it in .sh, or name --framework mindformers"),
     (("-o", "run.txt"), "use .sh")],
)  # fmt: skip
def test_an_output_of_another_framework_is_refused(words, cure):
    with pytest.raises(InputError, match=cure):
        framework(*words)


def test_the_help_names_all_frameworks():
    assert FRAMEWORK_NAMES == FRAMEWORKS
