"""Steps so short that the host bounds them, beside the prediction; and the fit of the host's time.

    python -m benchmarks.short_steps [FOLDER] [--fit]

FOLDER (``../shared/data/measured_runs``) holds the launch files of Megatron-LM's small functional tests (12 layers of
hidden size 512). `STEPS_MS` are their step times: medians of ``iteration-time`` from the third recorded step on in
``golden_values_dev_dgx_{a100,h100}.json`` of Megatron-LM d98e8a64 tests/functional_tests/test_cases. A device would be
through with these steps in 14 to 70 ms.

``--fit``: what an operation costs on an A100's host (`DeviceSpec.operation_us`) and what every step takes beside its
operations (`Framework.step_ms`), by the logarithms of predicted over measured, soft L1. An H100's operations cost what
was fitted to other rows (`benchmarks.published_performance`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.measured_runs import MEASURED
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.register.device import DeviceSpec
from taylor.register.registry import Registry
from taylor.workflows.statement.planned_step import planned_step_ms

STEPS_MS: Mapping[str, float] = {
    "tp1_pp1_dist_optimizer_no_mmap_bin_files__a100_8": 112,
    "tp1_pp1_uniform_full_recompute__a100_8": 131,
    "tp1_pp4_disable_bias_linear__a100_8": 162,
    "tp1_pp4_untie_embeddings_and_outputs__a100_8": 171,
    "tp1_pp4_vp1_calculate_per_token_loss__a100_8": 162,
    "tp1_pp4_vp1_dist_optimizer_overlap_grad_reduce_param_gather__a100_8": 169,
    "tp1_pp4_vp1_dist_optimizer_overlap_grad_reduce_untied__a100_8": 164,
    "tp1_pp4_vp1_uneven_pipeline__a100_8": 195,
    "tp2_pp1_multi_dist_optimizer_instances__a100_8": 182,
    "tp2_pp2__a100_8": 215,
    "tp2_pp2_cross_entropy_loss_fusion__a100_8": 167,
    "tp2_pp2_ddp_average_in_collective__a100_8": 212,
    "tp2_pp2_no_mmap_bin_files__a100_8": 215,
    "tp4_pp1_dist_optimizer_overlap_grad_reduce_param_gather__a100_8": 406,
    "tp1_pp4_vp1__h100_8": 92,
    "tp2_pp2_cross_entropy_loss_fusion__h100_8": 118,
}
"""By what follows ``gpt3_mcore_te_`` in a file's name; dense tests without context parallelism, whose ring's operations
are not counted, and without latent attention."""


@dataclass(frozen=True)
class Short:
    """One test: its job, its card and its step, ms."""

    name: str
    config: TrainingConfig
    device: DeviceSpec
    measured_ms: float

    def predicted_ms(self, operation_us: float | None = None, step_ms: float | None = None) -> float:
        """Its step with these costs of the host, or with those that are registered."""
        device = self.device if operation_us is None else replace(self.device, operation_us=operation_us)
        rules, framework = self.config.rules, self.config.rules.framework
        if step_ms is not None:
            rules = rules.replace(framework=replace(framework, step_ms=step_ms))
        return planned_step_ms(self.config.replace(rules=rules), device)


def short_steps(folder: Path) -> list[Short]:
    """The tests that a folder has."""
    registry = Registry.load()
    files = {name: folder / "megatron-ci-small" / f"gpt__gpt3_mcore_te_{name}.sh" for name in STEPS_MS}
    return [
        Short(name, read_config(file), registry.device("a100-80g" if "a100" in name else "h100-80g"), STEPS_MS[name])
        for name, file in files.items()
    ]


def fitted(runs: Sequence[Short]) -> tuple[float, float]:
    """Cost of an operation on an A100's host, us, and of a step beside its operations, ms."""

    def errors(found: NDArray[np.float64]) -> NDArray[np.float64]:
        us, step = (float(value) for value in found)
        predicted = [run.predicted_ms(us if run.device.name.startswith("a100") else None, step) for run in runs]
        return np.log([each / run.measured_ms for each, run in zip(predicted, runs, strict=True)])

    found = least_squares(
        errors, (49.0, 10.0), loss="soft_l1", f_scale=0.1, bounds=((1, 0), (500, 500)), diff_step=0.01
    )
    return float(found.x[0]), float(found.x[1])


def main() -> None:
    """Print every test, and the fit when asked to."""
    parser = argparse.ArgumentParser(description="steps that the host bounds, beside what is predicted")
    parser.add_argument("folder", type=Path, nargs="?", default=MEASURED)
    parser.add_argument("--fit", action="store_true", help="fit what the host takes, and print it")
    options = parser.parse_args()
    runs = short_steps(options.folder)
    errors = [run.predicted_ms() / run.measured_ms - 1 for run in runs]
    for run, error in zip(runs, errors, strict=True):
        print(f"{run.name:75s} {run.predicted_ms():8.1f} {run.measured_ms:8.1f} ms {100 * error:+6.1f} %")
    print(f"{len(runs)} steps, median error {100 * median(map(abs, errors)):.1f} %")
    if options.fit:
        us, step = fitted(runs)
        print(f"{us:.0f} us an operation on an A100's host, {step:.0f} ms a step")


if __name__ == "__main__":
    main()
