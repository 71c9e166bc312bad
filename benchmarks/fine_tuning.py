"""Published full fine-tunings, short and long samples, beside the steps and peaks predicted; none is in a fit.

Run from the repository's root: ``python -m benchmarks.fine_tuning [--host US]``; ``--host`` prices the cards of
Megatron-Bridge with another cost of starting an operation on the host, as ``benchmarks.adapters`` does.

- ``long``: huggingface/trl PR 6845 (its description, 21 August 2026): one node of 8 H100, torch's ring over all cards,
  FSDP2, chunked loss, every layer recomputed. What a row moves to the host follows the levers of its guide (PR 6846):
  inputs of layers in all rows but the first, whose peak without and with them huggingface/accelerate PR 4175 states;
  from 30B on weights and optimizer states too. Weights are fp32 (accelerate 16cb6eb8
  src/accelerate/utils/fsdp_utils.py:804-817). Its GB are 1e9 bytes: that PR's script prints 28 layers of 131,072 tokens
  so. Not counted: the loss's GEMMs in fp32 (PR 6863), and tiles of Qwen3-32B's MLP, whose number and steps no text
  states: with two as DeepSpeed's (`TrainingRules.mlp_tiles`) its peak is 11 % too low, with four and more 23 %.
- ``guide``: docs/source/long_context_training.md of trl 4f5fd515, Qwen3-4B, whose GB are 2^30 bytes ("19 GB = 1,048,576
  x 9728 x 2 bytes"); one card keeps weights and moments in 16 bits ("a fixed 22 GB").
- ``sft``: model verification cards of NVIDIA-NeMo/Megatron-Bridge 067f987d whose recipes state every degree; a pack's
  samples are rotated one by one (`TrainingRules.packed_samples`), as in ``benchmarks.adapters``; attention inside a
  pack sees each sample alone, which is not counted.

NeMo's rows from 4K to 1M tokens are among ``benchmarks.measured_runs``. Cards of 32K samples are not stated:
gpt-oss-20b, qwen3-30b-a3b and nemotron-3-super run at 13, 26 and 16 TFLOP/s a card, and no source says what they wait
for.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.adapters import SAMPLES
from benchmarks.variant_order import Variant, variant_order
from taylor.cost_model.job.optimizer import OptimizerStates
from taylor.cost_model.job.strategy import GATHERED_RING, ONE_KERNEL, Strategy, TrainingRules
from taylor.cost_model.memory.breakdown import stage_breakdown
from taylor.cost_model.time.step import step_ms
from taylor.pipeline.plan import FULL
from taylor.register.device import DeviceSpec
from taylor.register.frameworks import MEGATRON
from taylor.register.registry import Registry
from taylor.register.trainers import TRANSFORMERS

MILLION = 2**20
GIB = 1024
CHUNK = 256
"""Tokens of a piece of the loss (assumed); at a million tokens its memory is a hundredth of a layer's."""

GB = 1e9 / 2**30 * GIB
"""MiB of a billion bytes."""


@dataclass(frozen=True)
class LongJob:
    """A published job: step in seconds, peak in MiB.

    Parameters
    ----------
    inputs_on_host, states_on_host : bool
        Inputs of recomputed layers, and weights with optimizer states, wait on the host.
    """

    table: str
    model: str
    cards: int
    tokens: int
    seconds: float | None
    peak_mib: float | None = None
    inputs_on_host: bool = True
    states_on_host: bool = False


LONG = (
    LongJob("long", "qwen3-0.6b", 8, MILLION, 137.0, 27.9 * GB, inputs_on_host=False),
    LongJob("long", "qwen3-0.6b", 8, MILLION, 137.0 * 1.006, 20.8 * GB),
    LongJob("long", "qwen3-8b", 8, MILLION, 364.0, 56.2 * GB),
    LongJob("long", "qwen3-30b-a3b", 8, MILLION, 483.0, 46.0 * GB, states_on_host=True),
    LongJob("long", "qwen3-32b", 8, MILLION, 1295.0, 60.8 * GB, states_on_host=True),
    LongJob("long", "qwen3-0.6b", 8, 4 * MILLION, 2135.0, 73.7 * GB),
    LongJob("long", "qwen3-8b", 16, 2 * MILLION, 696.0),
    LongJob("long", "qwen3-8b", 32, 4 * MILLION, 1346.0),
    LongJob("guide", "qwen3-4b", 1, 96 * 1024, None, 59.9 * GIB, inputs_on_host=False),
    LongJob("guide", "qwen3-4b", 1, 96 * 1024, None, 48.8 * GIB),
    LongJob("guide", "qwen3-4b", 4, MILLION, None, 63.6 * GIB),
    LongJob("guide", "qwen3-4b", 2, MILLION // 8, 34.6, inputs_on_host=False),
    LongJob("guide", "qwen3-4b", 4, MILLION // 8, 17.8, inputs_on_host=False),
    LongJob("guide", "qwen3-4b", 8, MILLION // 8, 9.5, inputs_on_host=False),
)

SFT = (
    ("qwen3-8b", 4, 4, 1, 2048, 32, 7424.24, "qwen/h100/qwen3.py:996"),
    ("moonlight-16b-a3b", 8, 1, 8, 8192, 8, 562.14, "moonlight/h100/moonlight_16b.py"),
)
"""Model, cards, TP, EP, tokens of a sample, samples a step, step in ms, recipe."""


@dataclass(frozen=True)
class Row:
    """One published run: milliseconds and MiB, None where a figure is not stated; tokens a step on each card."""

    table: str
    name: str
    measured_ms: float | None
    predicted_ms: float
    measured_mib: float | None = None
    predicted_mib: float | None = None
    job: str = ""
    tokens: float = 1.0

    @property
    def variants(self) -> tuple[Variant | None, Variant | None]:
        """Card-milliseconds a token, and the peak, among the runs of one model; None where it is not stated."""
        step = peak = None
        if self.measured_ms is not None:
            step = Variant(self.job, self.measured_ms / self.tokens, self.predicted_ms / self.tokens)
        if self.measured_mib is not None and self.predicted_mib is not None:
            peak = Variant(self.job, self.measured_mib, self.predicted_mib)
        return step, peak

    @property
    def error(self) -> float | None:
        """Prediction over measurement, less 1."""
        return None if self.measured_ms is None else self.predicted_ms / self.measured_ms - 1

    @property
    def peak_error(self) -> float | None:
        """The same of the peak."""
        if self.measured_mib is None or self.predicted_mib is None:
            return None
        return self.predicted_mib / self.measured_mib - 1


def rows(registry: Registry, host_us: float | None = None) -> Iterator[Row]:
    """Every run with its prediction."""
    card = registry.device("h100-80g")
    for job in LONG:
        yield _long(registry, card, job)
    slow = card if host_us is None else replace(card, operation_us=host_us)
    for name, cards, tp, ep, tokens, samples, measured, _ in SFT:
        dp = cards // tp
        strategy = Strategy(dp, tp, 1, ep, op=dp, sp=False, micro_batches=samples // dp)
        rules = TrainingRules(
            framework=MEGATRON, seq_length=tokens, param_bytes=2, fused_norms=True, engine_layers=True,
            expert_tensor_parallel=False, packed_samples=tokens * SAMPLES, rotated_apart=1.0,
        )  # fmt: skip
        predicted = float(step_ms(registry.model(name), strategy, rules, slow, balanced=True))
        yield Row("sft", f"{name}, {cards} cards", measured, predicted, job=name, tokens=tokens * samples / cards)


def _long(registry: Registry, card: DeviceSpec, job: LongJob) -> Row:
    model, shards = registry.model(job.model), job.cards > 1
    strategy = Strategy(1, 1, 1, cp=job.cards, op=job.cards, sp=False)
    states = OptimizerStates(4, moments_bytes=8, reduced_bytes=2) if shards else OptimizerStates(2, 0, 4)
    if job.states_on_host:
        states = replace(states, gradient_bytes=0, host_share=1.0, host_updates=True)
    rules = TrainingRules(
        framework=TRANSFORMERS, seq_length=job.tokens, parameter_shard=shards, gradient_shard=shards,
        param_bytes=4 if shards else 2, optimizer=states, ring=GATHERED_RING, inputs_on_host=job.inputs_on_host,
        loss_chunks=job.tokens // job.cards // CHUNK, expert_tensor_parallel=False, expert_gemms=ONE_KERNEL,
    )  # fmt: skip
    predicted = float(step_ms(model, strategy, rules, card, {FULL: 1.0}))
    peak = stage_breakdown(model, strategy, rules, recompute=FULL)[0].total
    name = f"{job.model}, {job.tokens // 1024}K, {job.cards} cards"
    measured = None if job.seconds is None else 1e3 * job.seconds
    return Row(job.table, name, measured, predicted, job.peak_mib, peak, job.model, job.tokens / job.cards)


def main() -> None:
    """Print every row, and each set's errors."""
    parser = argparse.ArgumentParser(description="published full fine-tunings, short and long samples")
    parser.add_argument("--host", type=float, metavar="US", help="cost of an operation on the hosts of the cards, us")
    found = list(rows(Registry.load(), parser.parse_args().host))
    for each in found:
        measured = "          -" if each.measured_ms is None else f"{each.measured_ms:11,.0f}"
        step = f"{measured} {each.predicted_ms:11,.0f} ms {_percent(each.error)}"
        peak = "" if each.measured_mib is None else f"{each.measured_mib:9,.0f} {each.predicted_mib:9,.0f} MiB "
        print(f"{each.table:5s} {each.name:32s} {step}  {peak}{_percent(each.peak_error)}")
    for table in dict.fromkeys(each.table for each in found):
        rows_of = [each for each in found if each.table == table]
        print(f"{table:5s} steps: {_summary([each.error for each in rows_of])}")
        print(f"{table:5s} peaks: {_summary([each.peak_error for each in rows_of])}")
        for figure, at in (("steps", 0), ("peaks", 1)):
            known = [each.variants[at] for each in rows_of]
            print(f"{table:5s} {figure}: {variant_order(each for each in known if each is not None)}")


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+7.1%}"


def _summary(errors: list[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if not known:
        return "none stated"
    return f"{len(known)} rows, median {median(map(abs, known)):.1%}, bias {median(known):+.1%}"


if __name__ == "__main__":
    main()
