"""Key and value heads of a MindFormers file, by MindFormers' own rules."""

from __future__ import annotations

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config

FILE = """\
use_legacy: False
parallel_config: {{model_parallel: 4, pipeline_stage: 1, context_parallel: {cp}, context_parallel_algo: ulysses_cp}}
model:
  model_config:
    model_type: {kind}
    num_attention_heads: {heads}
    num_hidden_layers: 4
    hidden_size: 1024
    seq_length: 4096
{more}
"""


def written(tmp_path, kind, heads, more="", cp=1):
    path = tmp_path / "a.yaml"
    lines = "\n".join(f"    {line}" for line in more.split("; ") if line)
    path.write_text(FILE.format(kind=kind, heads=heads, more=lines, cp=cp), encoding="utf-8")
    return path


def test_latent_attention_has_no_groups_whatever_its_class_says(tmp_path):
    config = read_config(written(tmp_path, "deepseek_v3", 8))
    assert (config.model.n_heads, config.model.n_kv_heads) == (8, 8)
    assert not any("num_key_value_heads" in note for note in config.notes)


def test_latent_attention_of_the_legacy_generation_has_none_either(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "parallel_config: {model_parallel: 4}\n"
        "moe_config: {expert_num: 8, num_experts_chosen: 2}\n"
        "model: {model_config: {type: DeepseekV3Config, num_heads: 8, n_kv_heads: 128, num_layers: 4, "
        "hidden_size: 1024, vocab_size: 1000, seq_length: 4096}}\n"
    )
    model = read_config(path).model
    assert (model.n_heads, model.n_kv_heads, model.mla is None) == (8, 8, False)


def test_a_class_default_above_the_heads_means_no_groups(tmp_path):
    """Qwen3Config says 32 groups."""
    assert read_config(written(tmp_path, "qwen3", 16)).model.n_kv_heads == 16


def test_groups_below_the_heads_count_and_have_to_divide_them(tmp_path):
    assert read_config(written(tmp_path, "qwen3", 16, "num_key_value_heads: 4")).model.n_kv_heads == 4
    with pytest.raises(InputError, match="num_key_value_heads: must divide the 16 attention heads"):
        read_config(written(tmp_path, "qwen3", 16, "num_key_value_heads: 5"))


@pytest.mark.slow
def test_mcore_exchanges_fewer_groups_than_ranks_under_ulysses(tmp_path, run_tool):
    """attention.py:176 refuses only groups that TP alone does not divide; the heads have to fill all ranks."""
    words = ("-evaluate", "y", "-write", "n", "-dryrun", "n", "-check", "n")
    search = ("--dryrun_backend", "estimate", "--search", "tp", "--world_size", "16", "--gbs", "16")
    path = written(tmp_path, "qwen3", 16, "num_key_value_heads: 4", cp=4)
    done = run_tool("parallel_tool.py", "--yaml_path", path, *search)
    table = (tmp_path / "output" / "nd_output" / "nd_candidate_config.csv").read_text()
    assert done.returncode == 0, done.stderr
    assert any(line.split(",")[1] == "4" for line in table.splitlines()[1:]), table
    assert run_tool("pipeline_parallel.py", "-yaml", path, *words).returncode == 0
