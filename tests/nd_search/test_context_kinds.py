"""The kind of context parallelism as a searched dimension: a ring, Ulysses, and both at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.nd_search.options import SearchOptions
from taylor.nd_search.search import explain, search
from taylor.nd_search.stated import broken_rules
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from tests.nd_search_cases import DEVICE, LLAMA2_7B, job

RANKS = 32
LONG = TrainingRules(seq_length=65536)
OWN = Strategy(1, 4, 1, cp=8, op=8, micro_batches=8)
SCRIPT = """\
#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \\
    --tensor-model-parallel-size 4 --context-parallel-size 8 {more}\\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 --num-attention-heads 32 --swiglu \\
    --seq-length 65536 --max-position-embeddings 65536 --micro-batch-size 1 --global-batch-size 8 \\
    --normalization RMSNorm --bf16 --use-flash-attn --use-distributed-optimizer --sequence-parallel \\
    --vocab-size 32000 --untie-embeddings-and-output-weights --position-embedding-type rope
"""
YAML = """\
parallel_config: {data_parallel: 1, model_parallel: 4, pipeline_stage: 1, context_parallel: 8, micro_batch_num: 1}
runner_config: {batch_size: 1}
model:
  model_config:
    {num_layers: 32, hidden_size: 4096, num_heads: 32, intermediate_size: 11008, seq_length: 65536, vocab_size: 32000,
     use_flash_attention: True}
parallel: {enable_parallel_optimizer: True}
"""


def options(*search: str) -> SearchOptions:
    return SearchOptions(world_size=RANKS, gbs=8, search=search, device_limit_mib=1e6)


def test_the_searched_kinds_are_those_of_one_search_a_kind_with_the_same_figures() -> None:
    """Every kind as a file states it, in a search of its own, is the brute force."""
    found = search(job(LLAMA2_7B, OWN, LONG), DEVICE, options("dp", "tp", "pp", "cp", "ulysses"))
    figures = {
        strategy: (peak, step)
        for strategy, peak, step in zip(found.candidates, found.peak_mib, found.estimated_ms, strict=True)
    }
    alone: dict[Strategy, tuple[float, float]] = {}
    for degree in (1, None, 2, 4, 8, 16, 32):
        one = search(job(LLAMA2_7B, OWN, LONG.replace(ulysses_degree=degree)), DEVICE, options("dp", "tp", "pp", "cp"))
        for strategy, peak, step in zip(one.candidates, one.peak_mib, one.estimated_ms, strict=True):
            # Without context parallelism every kind is the same.
            heads = 1 if strategy.cp == 1 else strategy.cp if degree is None else degree
            alone[strategy.replace(ulysses=heads)] = (peak, step)
    assert figures.keys() == alone.keys()
    assert {strategy.ulysses for strategy in figures} >= {1, 2, 4, 8}
    for strategy, (peak, step) in alone.items():
        assert figures[strategy] == (pytest.approx(peak, abs=0.02), pytest.approx(step))


def file_of(folder: Path, kind: str) -> Path:
    path = folder / ("job.yaml" if kind == "mindformers" else "job.sh")
    more = "--use-fused-rmsnorm --context-parallel-algo megatron_cp_algo " if kind == "mindspeed" else ""
    path.write_text(YAML if kind == "mindformers" else SCRIPT.replace("{more}", more), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["megatron", "mindspeed", "mindformers"])
@pytest.mark.parametrize(("heads", "degree"), [(1, 1), (2, 2), (4, 4), (8, None)])
def test_a_written_file_says_the_kind_of_its_strategy(
    tmp_path: Path, kind: str, heads: int, degree: int | None
) -> None:
    config = read_config(file_of(tmp_path, kind))
    assert config.rules.ulysses_degree == 1 and config.strategy.ulysses == 0
    launcher = launcher_of(config)
    assert launcher.fixed_context(config) is None
    written = launcher.with_strategy(config, config.strategy.replace(ulysses=heads), None, {})
    config.path.write_text(written, encoding="utf-8")
    again = read_config(config.path)
    assert again.rules.ulysses_degree == degree and again.strategy == config.strategy
    ring = again.strategy.replace(ulysses=1)
    config.path.write_text(launcher_of(again).with_strategy(again, ring, None, {}), encoding="utf-8")
    assert read_config(config.path).rules.ulysses_degree == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("--use-fused-rmsnorm --context-parallel-algo kvallgather_cp_algo ", "kvallgather_cp_algo"),
        ("--use-fused-rmsnorm --context-parallel-algo megatron_cp_algo --cp-window-size 2 ", "cp-window-size"),
    ],
)
def test_a_file_whose_flags_go_with_one_kind_keeps_it(tmp_path: Path, more: str, why: str) -> None:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPT.replace("{more}", more), encoding="utf-8")
    with pytest.raises(InputError, match=why):
        search(read_config(path), DEVICE, options("cp", "ulysses"))


def test_a_file_that_cannot_say_a_kind_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 8192\n', encoding="utf-8")
    with pytest.raises(InputError, match="torchtitan") as raised:
        search(read_config(path), DEVICE, options("cp", "ulysses"))
    assert "Megatron" in str(raised.value)


def test_an_illegal_kind_is_explained_by_its_rule() -> None:
    strategy = OWN.replace(tp=8, cp=4, op=4, ulysses=3)
    lines = explain(job(LLAMA2_7B, OWN, LONG), DEVICE, options("tp", "cp", "ulysses"), strategy)
    assert any("Ulysses" in line for line in lines)


def test_mindspeed_exchanges_heads_of_few_groups_whether_the_file_names_an_algorithm_or_not(tmp_path: Path) -> None:
    path, found = tmp_path / "job.sh", []
    for own in ("", "--context-parallel-algo megatron_cp_algo "):
        more = f"--use-fused-rmsnorm --group-query-attention --num-query-groups 4 {own}"
        path.write_text(SCRIPT.replace("{more}", more), encoding="utf-8")
        config = read_config(path)
        config = config.replace(strategy=config.strategy.replace(ulysses=8))
        found.append([rule.name for rule in broken_rules(config, DEVICE)])
    assert found == [[], []]
