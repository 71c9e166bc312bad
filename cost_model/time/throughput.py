"""Throughput of a step time: tokens a second, and the fraction of the devices' peak that the model's work takes."""

from __future__ import annotations

from dataclasses import dataclass

from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.time.work import model_flops
from taylor.register.adapters import HEAD
from taylor.register.device import DeviceSpec
from taylor.register.model import ModelSpec


@dataclass(frozen=True)
class Throughput:
    """Speed of a job.

    Parameters
    ----------
    step_ms : float
        Time of a step, ms.
    samples_per_second, tokens_per_second : float
        Of the whole job.
    tokens_per_second_per_device : float
    mfu : float or None
        Model FLOPs utilization, a fraction of the peak in `mfu_precision`; None where that is not known. It counts
        forward and backward of every weight that a token meets and of the attention scores, none of them masked, and
        nothing of recompute: Chowdhery et al. 2022 (PaLM, arXiv:2204.02311) appendix B, Korthikanti et al. 2022
        (arXiv:2205.05198) appendix A. The embedding, which multiplies nothing, is not counted.
    tflops_per_device : float
        Work that the model itself asks of each device, TFLOP/s, counted as for the MFU.
    train_days : float or None
        Days of the whole training at this speed; None where its length is not known.
    epoch_hours : float or None
        Hours in which every sample of the data set is trained once.
    run_hours : float or None
        Hours of all steps after which the training ends.
    mfu_precision : str or None
        Precision of the peak that `mfu` refers to: that of the layers' GEMMs, or 16 bits where these are
        narrower and the device has no peak for them.
    """

    step_ms: float
    samples_per_second: float
    tokens_per_second: float
    tokens_per_second_per_device: float
    mfu: float | None
    tflops_per_device: float
    train_days: float | None = None
    epoch_hours: float | None = None
    run_hours: float | None = None
    mfu_precision: str | None = None


def throughput(
    model: ModelSpec,
    strategy: Strategy,
    rules: TrainingRules,
    device: DeviceSpec,
    step_ms: float,
    length: TrainingLength = UNSTATED,
) -> Throughput:
    """Speed of a job whose step takes `step_ms` (above 0) and whose training has this length."""
    seconds = step_ms / 1e3
    samples = strategy.global_batch / seconds
    tokens = samples * rules.seq_length
    each = tokens / strategy.world_size
    precision = device.peak_precision(rules.gemm_precision)
    peak = None if precision is None else device.peak(precision)
    frozen, frozen_head = rules.adapters is not None, HEAD in rules.frozen
    flops = model_flops(model, rules.seq_length, frozen=frozen, frozen_head=frozen_head)
    tflops = each * flops / 1e12
    return Throughput(
        step_ms,
        samples,
        tokens,
        each,
        None if peak is None else tflops / peak,
        tflops,
        train_days=length.train_days(tokens),
        epoch_hours=length.epoch_hours(samples),
        run_hours=length.run_hours(seconds, samples),
        mfu_precision=precision,
    )
