"""V-shaped schedules start with 2 * pp - 1 micro-batches, or with one more where their framework asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import TrainingRules
from taylor.parsers.read import read_config
from taylor.pipeline.schedule import ScheduleSpec
from taylor.register.frameworks import FRAMEWORKS
from taylor.register.registry import Registry
from taylor.workflows.statement.legality import require_legal

DEVICE = Registry.load(None).device("ascend-910b")
ZBV = """use_legacy: {legacy}
parallel_config: {{data_parallel: 2, model_parallel: 1, pipeline_stage: 4, micro_batch_num: {micro}}}
parallel: {{pipeline_config: {{pipeline_interleave: true, pipeline_scheduler: zero_bubble_v}}}}
recompute_config: {{recompute: {recompute}}}
runner_config: {{batch_size: 1}}
model: {{model_config: {{model_type: qwen3, num_hidden_layers: 16, hidden_size: 1024, num_attention_heads: 16,
  intermediate_size: 4096, vocab_size: 32000, seq_length: 4096, pp_interleave_num: 2, use_flash_attention: true}}}}
"""


@pytest.mark.parametrize(
    ("framework", "schedule", "core", "least"),
    [
        ("mindformers", "zero_bubble_v", True, 8), ("mindformers", "zero_bubble_v", False, 7),
        ("megatron", "dualpipev", True, 7), ("torchtitan", "dualpipev", True, 8), ("torchtitan", "zbv", True, 1),
    ],
)  # fmt: skip
def test_the_fewest_micro_batches_are_those_of_the_frameworks_own_check(
    framework: str, schedule: str, core: bool, least: int
) -> None:
    """MindFormers 167a50de transformer_config.py:2518, MindSpeed 028de58c dualpipev_feature.py:47, torch 2.13
    schedules.py:3439."""
    rules = TrainingRules(framework=FRAMEWORKS[framework], seq_length=4096, core_models=core)
    assert rules.least_micro_batches(ScheduleSpec(schedule), 4) == least


@pytest.mark.parametrize(
    ("micro", "recompute", "refused"),
    [
        (8, "false", None), (7, "false", "micro-batches-fill-zero-bubble"),
        (8, "[[1, 1, 0, 0], [0, 0, 1, 1]]", None), (8, "[1, 1, 1, 1]", "recompute-list-by-interleave"),
        (8, "true", None),
    ],
)  # fmt: skip
def test_core_models_refuse_few_micro_batches_and_a_flat_recompute_list_under_zero_bubble_v(
    tmp_path: Path, micro: int, recompute: str, refused: str | None
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(ZBV.format(legacy="false", micro=micro, recompute=recompute), encoding="utf-8")
    config = read_config(file)
    if refused is None:
        require_legal(config, DEVICE)
        return
    with pytest.raises(InputError, match=f"breaks the rule {refused}"):
        require_legal(config, DEVICE)
    require_legal(config, DEVICE, [refused])
