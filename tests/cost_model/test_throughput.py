"""Tokens a second and MFU: by hand, and as published."""

from __future__ import annotations

import pytest

from benchmarks.published import PUBLISHED, korthikanti, korthikanti_config
from taylor.cost_model.job.length import TrainingLength
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.throughput import throughput
from taylor.cost_model.time.work import model_flops
from taylor.register.model import ModelSpec
from taylor.register.narrow_products import MXFP8, NVFP4, TENSORWISE, NarrowProducts
from taylor.register.registry import Registry

A100 = Registry.load().device("a100-80g")
PUBLISHED_MFU = {"megatron-22B": 41.5, "gpt3-175B": 51.4, "turing-530B": 56.0, "megatron-1T": 56.3}
"""Korthikanti et al. 2022, arXiv:2205.05198 table 5, per cent, with sequence parallelism and selective recompute."""


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published tables are not here")
@pytest.mark.parametrize("name", PUBLISHED_MFU)
def test_the_step_times_of_korthikanti_give_the_mfu_that_the_paper_prints(name: str) -> None:
    model, strategy = korthikanti_config(name)
    step_ms = 1e3 * korthikanti()["tab5_iteration_s"][name]["seq+sel"]
    speed = throughput(model, strategy, TrainingRules(seq_length=2048), A100, step_ms)
    assert speed.mfu is not None and 100 * speed.mfu == pytest.approx(PUBLISHED_MFU[name], abs=0.25)


def test_it_is_six_flops_a_weight_and_token_and_the_scores_over_the_peak() -> None:
    model = ModelSpec("made up", 2, 256, 4, 4, 64, 1024, 1000, gated_mlp=False)
    weights = 2 * (4 * 256 * 256 + 2 * 256 * 1024) + 256 * 1000
    attention = 12 * 2 * 256 * 128  # PaLM's 12·L·H·Q·T
    assert model_flops(model, 128) == pytest.approx(6 * weights + attention)
    speed = throughput(model, Strategy(1, 1, 1), TrainingRules(seq_length=128), A100, 1.0)
    assert speed.mfu == pytest.approx(128e3 * (6 * weights + attention) / (A100.peak("bf16") * 1e12))


def test_tokens_are_those_of_the_global_batch_and_shared_by_all_devices() -> None:
    strategy = Strategy(4, 2, 2, mbs=2, micro_batches=8)
    model = Registry.load().model("llama2-7b")
    speed = throughput(model, strategy, TrainingRules(seq_length=4096), A100, 2000.0)
    assert speed.tokens_per_second == 4 * 2 * 8 * 4096 / 2.0
    assert speed.tokens_per_second_per_device == speed.tokens_per_second / 16


@pytest.mark.parametrize(
    ("device", "recipe", "of"),
    [
        ("h100-80g", TENSORWISE, "fp8"),
        ("b200-180g", NVFP4, "fp4"),
        ("b200-180g", MXFP8, "fp8"),
        ("a100-80g", TENSORWISE, "bf16"),
        ("v100-32g", TENSORWISE, "fp16"),
        ("h100-80g", None, "bf16"),
    ],
)
def test_mfu_is_a_share_of_the_peak_that_the_products_run_at_and_names_it(
    device: str, recipe: NarrowProducts | None, of: str
) -> None:
    spec = Registry.load().device(device)
    job = Registry.load().model("llama2-7b"), Strategy(1, 1, 1)
    speed = throughput(*job, TrainingRules(narrow=recipe), spec, 1000.0)
    assert speed.mfu is not None and speed.mfu_precision == of
    assert speed.mfu == pytest.approx(speed.tflops_per_device / spec.peak_tflops[of])


def test_mfu_is_told_of_the_peak_in_the_job_s_precision_and_of_no_other() -> None:
    job = Registry.load().model("llama2-7b"), Strategy(1, 1, 1)
    half, single = TrainingRules(), TrainingRules(compute_bytes=4)
    in_half, in_single = (throughput(*job, rules, A100, 1000.0).mfu for rules in (half, single))
    assert in_half is not None and in_single == pytest.approx(in_half * 312 / 19.5)
    assert throughput(*job, single, Registry.load().device("ascend-910b"), 1000.0).mfu is None


def test_the_length_of_a_training_is_its_tokens_at_the_job_s_speed() -> None:
    job = Registry.load().model("llama2-7b"), Strategy(4, 2, 2, micro_batches=8), TrainingRules(seq_length=4096), A100
    speed = throughput(*job, 2000.0, TrainingLength(tokens=2e12))
    assert speed.train_days is not None
    assert speed.train_days * 86_400 * speed.tokens_per_second == pytest.approx(2e12)
    assert speed.mfu is not None and speed.tflops_per_device == pytest.approx(speed.mfu * A100.peak("bf16"))
    assert throughput(*job, 2000.0).train_days is None


def test_epoch_and_run_are_counted_in_hours_and_what_is_stated_first_wins() -> None:
    job = Registry.load().model("llama2-7b"), Strategy(4, 2, 2, micro_batches=9), TrainingRules(seq_length=4096), A100
    stated = TrainingLength(epoch_samples=720).over(TrainingLength(steps=100, epoch_samples=1))
    speed = throughput(*job, 2000.0, stated)
    # 36 samples in 2 s.
    assert speed.samples_per_second == 18.0
    assert speed.epoch_hours == pytest.approx(40 / 3600) and speed.run_hours == pytest.approx(200 / 3600)
    assert throughput(*job, 2000.0, TrainingLength(samples=1800)).run_hours == pytest.approx(100 / 3600)
    unknown = throughput(*job, 2000.0)
    assert unknown.epoch_hours is None and unknown.run_hours is None
