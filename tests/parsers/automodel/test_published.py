"""Published steps of NeMo Automodel's benchmarks against the steps that are predicted for their recipes.

Source: NVIDIA-NeMo/Automodel 36044ad3 docs/performance-summary.mdx (DGX H100, BF16), and recompute, loss and kernels of
the files of examples/llm_benchmark that it names. Nothing of the model of time was fitted to these rows.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import yaml

from taylor.parsers.read import read_config
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

_MOE = {
    "attn": "te",
    "linear": "te",
    "rms_norm": "te",
    "experts": "torch_mm",
    "dispatcher": "deepep",
    "fake_balanced_gate": True,
}
# Model, GPUs, global and local batch, TP, CP, PP, EP, tokens, recompute, LoRA, seconds of a step: every row.
ROWS: tuple[tuple[Any, ...], ...] = (
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16", 64, 512, 2, 1, 1, 1, 64, 4096, True, False, 7.286),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 8, 512, 4, 1, 1, 1, 8, 4096, True, False, 15.614),
    ("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", 128, 256, 2, 1, 1, 1, 64, 4096, True, False, 10.05),
    ("deepseek-ai/DeepSeek-V3", 1024, 8192, 8, 1, 1, 4, 64, 4096, False, False, 37.87),
    ("deepseek-ai/DeepSeek-V3", 256, 512, 8, 1, 1, 4, 64, 4096, False, False, 8.18),
    ("moonshotai/Kimi-K2-Base", 256, 512, 8, 1, 1, 8, 32, 4096, True, False, 8.86),
    ("Qwen/Qwen3-30B-A3B", 8, 512, 4, 1, 1, 1, 8, 4096, True, False, 21.773),
    ("openai/gpt-oss-20b", 8, 256, 2, 1, 1, 1, 8, 4096, False, False, 10.04),
    ("openai/gpt-oss-120b", 64, 512, 2, 1, 1, 1, 64, 4096, False, False, 4.30),
    ("meta-llama/Llama-3.1-70B", 64, 128, 1, 1, 2, 1, 1, 8192, True, False, 18.90),
    ("meta-llama/Llama-3.1-8B", 1, 32, 2, 1, 1, 1, 1, 4096, False, True, 10.51),
    ("Qwen/Qwen2.5-7B", 1, 32, 2, 1, 1, 1, 1, 4096, False, True, 9.29),
    ("meta-llama/Llama-3.3-70B-Instruct", 8, 32, 2, 2, 1, 1, 1, 4096, True, True, 15.00),
    ("Qwen/Qwen2.5-32B", 8, 32, 2, 2, 1, 1, 1, 4096, True, True, 7.28),
    ("meta-llama/Llama-3.3-70B-Instruct", 16, 32, 2, 2, 1, 1, 1, 4096, True, True, 8.32),
    ("Qwen/Qwen2.5-32B", 16, 32, 2, 2, 1, 1, 1, 4096, True, True, 3.95),
)
_PIPELINE = {
    "pp_schedule": "interleaved1f1b",
    "pp_microbatch_size": 1,
    "layers_per_stage": 2,
    "round_virtual_stages_to_pp_multiple": "up",
}


def recipe(row: tuple[Any, ...]) -> str:
    model, gpus, batch, local, tp, cp, pp, ep, tokens, recomputes, adapters, _ = row
    data: dict[str, Any] = {
        "recipe": "BenchmarkingRecipeForNextTokenPrediction",
        "step_scheduler": {"global_batch_size": batch, "local_batch_size": local},
        "distributed": {
            "dp_size": gpus // (tp * cp * pp),
            "tp_size": tp,
            "cp_size": cp,
            "pp_size": pp,
            **({"pipeline": _PIPELINE} if pp > 1 else {}),
            "ep_size": ep,
            "sequence_parallel": tp > 1,
            "activation_checkpointing": recomputes,
            "enable_compile": tp > 1,
        },
        "model": {
            "_target_": "nemo_automodel.NeMoAutoModelForCausalLM.from_pretrained",
            "pretrained_model_name_or_path": model,
            **({"backend": _MOE} if ep > 1 else {}),
        },
        "dataset": {"seq_len": tokens},
    }
    if adapters:
        data["peft"] = {"target_modules": "*_proj", "dim": 16}
    return yaml.safe_dump(data)


def test_the_published_steps_are_predicted_within_a_median_of_a_seventh(tmp_path: Path) -> None:
    device = Registry.load().device("h100-80g")
    errors = {}
    for number, row in enumerate(ROWS):
        path = tmp_path / f"{number}.yaml"
        path.write_text(recipe(row), encoding="utf-8")
        config = read_config(path)
        assert (config.strategy.world_size, config.strategy.global_batch, config.misfits) == (row[1], row[2], ())
        errors[row[0], row[1]] = planned_step_ms(config, device) / 1e3 / row[-1] - 1
    off = sorted(map(abs, errors.values()))
    assert statistics.median(off) < 1 / 7 and off[-4] < 0.25 and off[-1] < 0.4, errors
