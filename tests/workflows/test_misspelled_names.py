"""A name that is one letter from a known one is warned of before all else, with the one that is meant."""

from __future__ import annotations

import re

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from tests.conftest import ROOT

SCRIPT = """\
torchrun --nproc_per_node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu \\
  --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 64 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --bf16 --vocab-size 32000
"""
TITAN = """\
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 4096
[parallelism]
data_parallel_shard_degree = 4
pipeline_parallel_degree = 2
"""
LLAMA = (ROOT / "config" / "pretrain_llama3_70b.yaml").read_text(encoding="utf-8")
FILES = [
    ("-yaml", "a.yaml", LLAMA, "parallel_config.pipeline_stage", "parallel_config.pipeline_stages"),
    ("-shell", "a.sh", SCRIPT, "--pipeline-model-parallel-size", "--pipeline-model-paralel-size"),
    ("-toml", "a.toml", TITAN, "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_degrees"),
]


def misspelled(text, right, wrong):
    """The text with one name changed."""
    return re.sub(rf"{re.escape(right.rpartition('.')[2])}\b", wrong.rpartition(".")[2], text, count=1)


@pytest.mark.parametrize(("flag", "name", "text", "right", "wrong"), FILES)
def test_the_first_line_names_the_key_that_is_meant(tmp_path, run_tool, flag, name, text, right, wrong):
    (tmp_path / name).write_text(misspelled(text, right, wrong), encoding="utf-8")
    words = ("-evaluate", "y", "-write", "n", "-dryrun", "n", "-check", "n")
    done = run_tool("pipeline_parallel.py", flag, tmp_path / name, *words)
    first, *others = done.stderr.splitlines()
    assert first.startswith("WARNING") and wrong in first and f"Is {right} meant?" in first
    assert not any("is not known" in line for line in others)


@pytest.mark.parametrize(("flag", "name", "text", "right", "wrong"), FILES)
def test_right_names_are_taken_for_no_others(tmp_path, flag, name, text, right, wrong):
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert not any(each.meant for each in read_config(tmp_path / name).unmodelled)


def test_a_section_is_found_too(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA.replace("recompute_config:", "recompute_confg:"), encoding="utf-8")
    assert [one.meant for one in read_config(path).unmodelled if one.meant] == ["recompute_config"]


def test_a_missing_entry_is_named_with_the_one_that_stands_for_it(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA.replace(" num_layers:", " num_layerz:"), encoding="utf-8")
    with pytest.raises(InputError, match="num_layerz is one letter from it: write num_layers"):
        read_config(path)
