"""Random synthetic runs, extracted and compared with the times they were written from.

Run from the repository's root: python -m benchmarks.profile_extraction [--runs 200] [--seed 0] [--noise 0.03]
Each run draws a schedule, 2 to 16 stages, up to 3 virtual stages, layer kinds, recompute lists and times; half
of the runs are Ascend, half Kineto. With noise one micro-batch straggles. Prints the largest error of each ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.synthetic.profiles import Disturbance, SyntheticTimes, write_synthetic_profiles
from taylor.cost_model.job.strategy import Strategy, TrainingRules
from taylor.cost_model.profile import TimeRatios
from taylor.parsers.training_config import TrainingConfig
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, SELECT, PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.extract import ExtractedRatios, extract_ratios
from taylor.register.model import DENSE, MOE, MTP, ModelSpec, MoeSpec


@dataclass(frozen=True)
class RandomRun:
    """A random configuration and the times it runs with."""

    config: TrainingConfig
    times: SyntheticTimes


def random_run(
    generator: np.random.Generator, path: Path = Path("synthetic.yaml"), *, most_stages: int = 16
) -> RandomRun:
    """Draw a configuration with one or two kinds of layers, and times for it."""
    stages = int(generator.integers(2, most_stages + 1))
    vpp = int(generator.integers(1, 4))
    spec, micro_batches = _schedule(generator, stages, vpp)
    if spec.v_shape:
        vpp = 2
    chunks = stages * vpp
    order = chunk_order(stages, vpp, spec.v_shape)
    counts = generator.integers(1, 4, chunks)
    total = int(counts.sum())
    dense = int(generator.integers(1, max(2, total // 2))) if generator.random() < 0.6 else 0
    mtp = int(generator.random() < 0.2)
    kinds = [kind for kind, count in ((DENSE, dense), (MOE, total - dense), (MTP, mtp)) if count]
    grids = {kind: np.zeros((vpp, stages), dtype=int) for kind in kinds}
    left = dense
    for (v, s), count in zip(order, counts, strict=True):
        first = min(left, int(count))
        left -= first
        if dense:
            grids[DENSE][v, s] = first
        grids[MOE][v, s] = count - first
    if mtp:
        grids[MTP][order[-1]] = 1
    share = generator.choice([0.0, 0.5, 1.0], p=[0.15, 0.7, 0.15])
    full = np.zeros((vpp, stages), dtype=int)
    for (v, s), count in zip(order, counts, strict=True):
        full[v, s] = int(count) if share == 1.0 else int(generator.integers(0, count + 1)) if share else 0
    if share == 1.0 and mtp:
        full[order[-1]] += 1
    select = np.zeros_like(full)
    if generator.random() < 0.2:
        select = np.maximum(0, sum(grids.values()) - full) // 2
    plan = PipelinePlan(
        {kind: as_grid(grid.tolist()) for kind, grid in grids.items()},
        {FULL: as_grid(full.tolist()), SELECT: as_grid(select.tolist())},
    )
    ratios = TimeRatios(
        dense_forward=float(generator.uniform(0.3, 1.2)) if dense else 1.0,
        backward=float(generator.uniform(1.6, 2.6)),
        recompute={FULL: float(generator.uniform(0.7, 1.0)), SELECT: float(generator.uniform(0.1, 0.4)), "none": 0.0},
        head=float(generator.uniform(0.5, 3.0)),
        unit_ms=float(generator.uniform(2.0, 30.0)),
        embedding=float(generator.uniform(0.05, 0.3)),
        lag=float(generator.uniform(0.02, 0.2)),
        tail=3.0,
    )
    model = ModelSpec(
        "synthetic", total, 1024, 8, 8, 128, 4096, 32000, mtp_layers=mtp, moe=MoeSpec(8, 2, 1024, first_dense=dense)
    )
    strategy = Strategy(
        dp=int(generator.integers(1, 3)),
        tp=int(generator.integers(1, 3)),
        pp=stages,
        vpp=vpp,
        micro_batches=micro_batches,
    )
    config = TrainingConfig(path, "mindformers", model, strategy, TrainingRules(), spec, plan)
    return RandomRun(config, SyntheticTimes.from_ratios(ratios, plan))


def _schedule(generator: np.random.Generator, stages: int, vpp: int) -> tuple[ScheduleSpec, int]:
    groups = int(generator.integers(1, 3))
    if vpp == 1:
        name = str(generator.choice(["1f1b", "gpipe", "seqpipe"], p=[0.7, 0.15, 0.15]))
        splits = 2 if name == "seqpipe" else 1
        return ScheduleSpec(name, seq_splits=splits), int(generator.integers(max(4, stages), 2 * stages + 6))
    if vpp == 2 and generator.random() < 0.25:
        return ScheduleSpec("dualpipev"), int(generator.integers(2 * stages, 3 * stages + 4))
    if generator.random() < 0.5:
        return ScheduleSpec("megatron-interleaved", low_memory=False), max(groups, -(-4 // stages)) * stages
    extra = int(generator.integers(0, stages))
    return ScheduleSpec("interleaved", low_memory=bool(generator.random() < 0.5)), max(groups * stages + extra, 4)


def errors(run: RandomRun, found: ExtractedRatios) -> dict[str, float]:
    """Relative error of every figure that was measured."""
    times, kinds = run.times, list(run.times.forward_ms)
    body = kinds[-1]
    unit = times.forward_ms[body]
    truth = {
        "moe_bw": unit,
        "bfratio": times.backward_ms[body] / unit,
        "re_grow_ration": times.recompute_ms[body] / unit,
        "hratio": times.head_ms / unit,
    }
    if len(kinds) > 1:
        truth["dmratio"] = times.forward_ms[DENSE] / unit
    assert found.ratios is not None
    value = {
        "moe_bw": found.ratios.unit_ms or 0.0,
        "bfratio": found.ratios.backward,
        "re_grow_ration": found.ratios.recompute[FULL],
        "hratio": found.ratios.head,
        "dmratio": found.ratios.dense_forward,
    }
    result = {name: abs(value[name] / truth[name] - 1.0) for name in truth if name not in found.missing}
    if found.transfer_ms is not None:
        result["transfer"] = abs(found.transfer_ms / times.transfer_ms - 1.0)
    return result


def run_one(seed: int, noise: float, folder: Path, *, most_stages: int = 16) -> tuple[RandomRun, ExtractedRatios]:
    """Draw, write and extract one run."""
    generator = np.random.default_rng(seed)
    run = random_run(generator, most_stages=most_stages)
    disturbance = Disturbance()
    if noise:
        disturbance = Disturbance(noise, straggler=int(generator.integers(run.config.strategy.micro_batches)))
    target = folder / f"run{seed}"
    write_synthetic_profiles(
        run.config,
        run.times,
        target,
        form="kineto" if seed % 2 else "ascend",
        steps=3,
        disturbance=disturbance,
        seed=seed,
        trace_only=seed % 8 == 2,
    )
    return run, extract_ratios(run.config, target)


def main() -> int:
    """Print the largest errors and what was marked or missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--noise", type=float, default=0.03)
    args = parser.parse_args()
    began, marked = time.perf_counter(), 0
    worst: dict[str, list[tuple[float, int]]] = {}
    missing: dict[str, int] = {}
    for seed in range(args.seed, args.seed + args.runs):
        with tempfile.TemporaryDirectory() as folder:
            run, found = run_one(seed, args.noise, Path(folder))
        if found.problems:
            marked += 1
            print(f"run {seed}: marked: {found.problems[0]}")
            continue
        for name in found.missing:
            missing[name] = missing.get(name, 0) + 1
        for name, error in errors(run, found).items():
            worst.setdefault(name, []).append((error, seed))
    for name, found_errors in worst.items():
        all_errors = np.array([error for error, _ in found_errors])
        error, seed = max(found_errors)
        print(
            f"{name:>15}: {len(all_errors)} runs, largest error {error:.3%} (seed {seed}), "
            f"95th percentile {np.quantile(all_errors, 0.95):.3%}, above 2 %: {int((all_errors > 0.02).sum())}"
        )
    print(
        f"{args.runs} runs, noise {args.noise:g}: {marked} marked, not measured {missing}, "
        f"{time.perf_counter() - began:.0f} s"
    )
    return 1 if marked else 0


if __name__ == "__main__":
    raise SystemExit(main())
