"""Published full fine-tunings, short and long samples, beside the steps and peaks predicted; none is in a fit.

Run from the repository's root: ``python -m benchmarks.fine_tuning [--host US]``; ``--host`` prices the cards of
Megatron-Bridge with another cost of starting an operation on the host, as ``benchmarks.adapters`` does.

- ``long``: huggingface/trl PR 6845 (its description, 21 August 2026): one node of 8 H100, ring attention over all
  cards, FSDP2, chunked loss, checkpoints of every layer on the host. Weights in 16 bits are assumed: in fp32 the states
  of Qwen3-32B alone take more than its peak. Rows of 16 and 32 cards have a step alone.
- ``sft``: model verification cards of NVIDIA-NeMo/Megatron-Bridge 067f987d whose recipes state every degree; attention
  inside a pack sees each sample alone, which is not stated and not counted.

NeMo's rows from 4K to 1M tokens are among ``benchmarks.measured_runs``. Cards of 32K samples are not stated:
gpt-oss-20b, qwen3-30b-a3b and nemotron-3-super run at 13, 26 and 16 TFLOP/s a card, and no source says what they wait
for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.time.step import step_ms
from taylor.pipeline.plan import FULL
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import MEGATRON, TORCHTITAN
from taylor.register.registry import Registry

MILLION = 2**20
GIB = 1024
CHUNK = 256
"""Tokens of a piece of the loss (assumed); at a million tokens its memory is a hundredth of a layer's."""

LONG = (
    ("qwen3-0.6b", 8, MILLION, 137.0, 27.9),
    ("qwen3-8b", 8, MILLION, 364.0, 56.2),
    ("qwen3-30b-a3b", 8, MILLION, 483.0, 46.0),
    ("qwen3-32b", 8, MILLION, 1295.0, 60.8),
    ("qwen3-0.6b", 8, 4 * MILLION, 2135.0, 73.7),
    ("qwen3-8b", 16, 2 * MILLION, 696.0, None),
    ("qwen3-8b", 32, 4 * MILLION, 1346.0, None),
)
"""Model, cards, tokens of a sample, step in seconds, peak in GB as the table states it (taken as GiB)."""

SFT = (
    ("qwen3-8b", 4, 4, 1, 2048, 32, 7424.24, "qwen/h100/qwen3.py:996"),
    ("moonlight-16b-a3b", 8, 1, 8, 8192, 8, 562.14, "moonlight/h100/moonlight_16b.py"),
)
"""Model, cards, TP, EP, tokens of a sample, samples a step, step in ms, recipe."""


@dataclass(frozen=True)
class Row:
    """One published run: milliseconds and MiB, None where a figure is not stated."""

    table: str
    name: str
    measured_ms: float
    predicted_ms: float
    measured_mib: float | None = None
    predicted_mib: float | None = None

    @property
    def error(self) -> float:
        """Prediction over measurement, less 1."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def peak_error(self) -> float | None:
        """The same of the peak."""
        if self.measured_mib is None or self.predicted_mib is None:
            return None
        return self.predicted_mib / self.measured_mib - 1


def rows(registry: Registry, host_us: float | None = None) -> Iterator[Row]:
    """Every run with its prediction."""
    card = registry.device("h100-80g")
    for name, cards, tokens, seconds, gib in LONG:
        yield _long(registry, card, name, cards, tokens, seconds, gib)
    slow = card if host_us is None else replace(card, operation_us=host_us)
    for name, cards, tp, ep, tokens, samples, measured, _ in SFT:
        dp = cards // tp
        strategy = Strategy(dp, tp, 1, ep, op=dp, sp=False, micro_batches=samples // dp)
        rules = TrainingRules(
            framework=MEGATRON, seq_length=tokens, param_bytes=2, fused_norms=True, engine_layers=True,
            expert_tensor_parallel=False,
        )  # fmt: skip
        predicted = float(step_ms(registry.model(name), strategy, rules, slow, balanced=True))
        yield Row("sft", f"{name}, {cards} cards", measured, predicted)


def _long(
    registry: Registry, card: DeviceSpec, name: str, cards: int, tokens: int, seconds: float, gib: float | None
) -> Row:
    model = registry.model(name)
    strategy = Strategy(1, 1, 1, cp=cards, op=cards, sp=False)
    rules = TrainingRules(
        framework=TORCHTITAN, seq_length=tokens, parameter_shard=True, gradient_shard=True, param_bytes=2,
        optimizer=OptimizerStates(2, 0, 4, reduced_bytes=2), ulysses_degree=1, inputs_on_host=True,
        loss_chunks=tokens // cards // CHUNK, separate_pools=True,
    )  # fmt: skip
    predicted = float(step_ms(model, strategy, rules, card, {FULL: 1.0}))
    peak = stage_breakdown(model, strategy, rules, recompute=FULL)[0].total
    measured = None if gib is None else gib * GIB
    return Row("long", f"{name}, {tokens // 1024}K, {cards} cards", 1e3 * seconds, predicted, measured, peak)


def main() -> None:
    """Print every row, and each set's errors."""
    parser = argparse.ArgumentParser(description="published full fine-tunings, short and long samples")
    parser.add_argument("--host", type=float, metavar="US", help="cost of an operation on the hosts of the cards, us")
    found = list(rows(Registry.load(), parser.parse_args().host))
    for each in found:
        peak = "" if each.peak_error is None else f"{each.measured_mib:9,.0f} {each.predicted_mib:9,.0f} MiB"
        error = "" if each.peak_error is None else f" {each.peak_error:+7.1%}"
        step = f"{each.measured_ms:11,.0f} {each.predicted_ms:11,.0f} ms {each.error:+7.1%}"
        print(f"{each.table:5s} {each.name:32s} {step}  {peak}{error}")
    for table in dict.fromkeys(each.table for each in found):
        errors = [each.error for each in found if each.table == table]
        peaks = [each.peak_error for each in found if each.table == table and each.peak_error is not None]
        text = f"{table:5s} steps: median {median(map(abs, errors)):.1%}, bias {median(errors):+.1%}"
        print(text + (f"; peaks: median {median(map(abs, peaks)):.1%}, bias {median(peaks):+.1%}" if peaks else ""))


if __name__ == "__main__":
    main()
