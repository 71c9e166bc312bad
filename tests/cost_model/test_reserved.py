"""Memory that torch's allocator reserves, beside torchtitan's published figures and a count by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.best_case import best_case_peak_mib
from taylor.cost_model.memory.breakdown import memory_profile, stage_breakdown
from taylor.cost_model.memory.statics import MIB
from taylor.cost_model.memory.workspaces import allocated_mib, reserved_mib
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.registry import Registry

H100 = Registry.load().device("h100-96g")

PUBLISHED = [
    # pytorch/torchtitan b5bcd76c benchmarks/llama3_h100_202412_torchtitan.md, tables 1 to 3: FSDP, CP, tokens of a
    # sample, samples, recompute, compiled, fp8, GiB.
    (8, 1, 8192, 2, "selective", False, False, 82.4),
    (8, 1, 8192, 2, "selective", True, False, 77.0),
    (8, 1, 8192, 2, "selective", True, True, 76.8),
    (128, 1, 8192, 2, "selective", False, False, 67.0),
    (128, 1, 8192, 2, "selective", True, False, 62.0),
    (128, 1, 8192, 2, "selective", True, True, 61.8),
    (8, 1, 32768, 1, "full", True, True, 83.9),
    (4, 2, 65536, 1, "full", True, True, 84.2),
    (2, 4, 131072, 1, "full", True, True, 84.0),
    (1, 8, 262144, 1, "full", True, True, 84.5),
]


def _job(tmp_path: Path, row: tuple[int, int, int, int, str, bool, bool, float], more: str = "") -> TrainingConfig:
    shard, cp, seq, local, recompute, compiled, narrow, _ = row
    path = tmp_path / "job.toml"
    path.write_text(
        f"""\
# taylor: torchtitan_release 2024-12-26
[model]
name = "llama3"
flavor = "8B"
converters = [{'"float8"' if narrow else ""}]
[training]
local_batch_size = {local}
seq_len = {seq}
[parallelism]
data_parallel_shard_degree = {shard}
context_parallel_degree = {cp}
{more}
[activation_checkpoint]
mode = "{recompute}"
selective_ac_option = "op"
[compile]
enable = {str(compiled).lower()}
[float8]
enable_fsdp_float8_all_gather = {str(narrow).lower()}
"""
    )
    return read_config(path)


@pytest.mark.parametrize("row", PUBLISHED)
def test_a_published_job_reserves_what_is_predicted(
    tmp_path: Path, row: tuple[int, int, int, int, str, bool, bool, float]
) -> None:
    config = _job(tmp_path, row)
    [stage] = stage_breakdown(config.model, config.strategy, config.rules, config.plan)
    reserved = reserved_mib(stage, config.model, config.rules, H100)
    assert reserved == pytest.approx(row[-1] * 1024, rel=0.03)
    # torch's published figure is far above what its tensors take.
    assert allocated_mib(stage, config.model, config.rules, H100) < 0.9 * row[-1] * 1024


def test_the_pools_of_two_streams_are_those_of_a_count_by_hand(tmp_path: Path) -> None:
    """LLaMA3-8B, FSDP 8: gradients' shards, two gathered groups with their cast shards, and what the loss left."""
    config = _job(tmp_path, PUBLISHED[0])
    [stage] = stage_breakdown(config.model, config.strategy, config.rules, config.plan)
    vocabulary, hidden, ffn, tokens = 128256, 4096, 14336, 2 * 8192
    layer = hidden * (2 * hidden + 2 * 1024 + 3 * ffn) + 2 * hidden
    parameters = 32 * layer + 2 * vocabulary * hidden + hidden
    gradients = 4 * parameters / 8
    ends = 2 * (2 * vocabulary * hidden + hidden)  # The root's group, in bf16.
    gathered = (2 * layer + ends) * (1 + 1 / 8)
    logits, inner = 2 * tokens * vocabulary, 3 * 2 * tokens * ffn
    pages = 3 * (20 + 2) * MIB
    by_hand = gradients + gathered + logits + inner + 2 * 2 * layer + pages
    assert stage.cached == pytest.approx(by_hand / MIB, rel=1e-4)


@pytest.mark.parametrize("more", ["", "pipeline_parallel_degree = 4"])
def test_profile_breakdown_and_bound_count_the_same_reserved_memory(tmp_path: Path, more: str) -> None:
    config = _job(tmp_path, (8, 1, 8192, 8, "full", False, False, 0.0), more)
    plan = config.plan
    assert plan is not None
    stages = stage_breakdown(config.model, config.strategy, config.rules, plan, config.schedule)
    profile = memory_profile(config.model, config.strategy, config.rules, 1e6, config.schedule)
    statics = profile.static_mib(config.strategy.pp)
    [row] = plan.total_layers()
    for stage, (part, static) in enumerate(zip(stages, statics, strict=True)):
        each = profile.layer_mib["dense"] + part.alive * profile.activation_mib["dense"]["full"]
        assert part.cached > 0
        assert part.total == pytest.approx(static + row[stage] * each, rel=1e-9)
    table = StrategyTable.from_strategies([config.strategy] * 3)
    peak, _ = best_case_peak_mib(config.model, config.rules, table, schedule=config.schedule)
    assert np.all(peak <= max(part.total for part in stages) + 0.02)


def test_without_pools_of_their_own_nothing_is_cached(tmp_path: Path) -> None:
    config = _job(tmp_path, PUBLISHED[0])
    rules = config.rules.replace(separate_pools=False)
    [with_pools] = stage_breakdown(config.model, config.strategy, config.rules, config.plan)
    [without] = stage_breakdown(config.model, config.strategy, rules, config.plan)
    assert without.cached == 0 and "cached" not in without.categories()
    assert with_pools.total == pytest.approx(without.total + with_pools.cached, rel=1e-12)
    assert reserved_mib(without, config.model, rules, H100) is None
