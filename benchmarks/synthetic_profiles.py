"""Write profiles that nobody measured for the configurations of a folder, to try the path from profiles to a ranking.

Run from the repository's root:
python -m benchmarks.synthetic_profiles --yaml_path output/profile_yaml --output profile_data [--form kineto]
Layer times are the estimates of each configuration, moved at random by up to 15 %, with 1 % noise on every kernel
and one straggling micro-batch. Every file and folder says that it is synthetic.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.synthetic.profiles import Disturbance, SyntheticTimes, write_synthetic_profiles
from taylor.base.console import log, run_command, start_logging
from taylor.base.errors import InputError, TaylorError
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.read import read_config
from taylor.parsers.registry import config_suffixes
from taylor.register.registry import Registry


def write_all(folder: Path, output: Path, *, form: str, device: str, seed: int, limit: int, steps: int) -> int:
    """Write one folder of profiles for each configuration; returns how many.

    Raises
    ------
    InputError
        When the folder has no configuration.
    """
    files = sorted(path for path in folder.glob("*") if path.suffix in config_suffixes())[:limit]
    if not files:
        raise InputError("has no configuration", file=folder, cure="run parallel_tool.py first")
    spec = Registry.load(None).device(device)
    written = 0
    for number, path in enumerate(files):
        try:
            config = read_config(path)
            ratios = estimate_ratios(config.model, config.strategy, config.rules, spec)
            if config.plan is None:
                raise InputError("does not settle its layers", file=path)
        except TaylorError as error:
            log.warning("%s", error)
            continue
        generator = np.random.default_rng([seed, number])
        moved = {
            name: getattr(ratios, name) * float(generator.uniform(0.85, 1.15))
            for name in ("dense_forward", "backward", "head", "unit_ms")
        }
        times = SyntheticTimes.from_ratios(replace(ratios, **moved), config.plan)
        slow = int(generator.integers(config.strategy.micro_batches))
        write_synthetic_profiles(
            config,
            times,
            output / path.stem,
            form=form,
            steps=steps,
            seed=seed + number,
            disturbance=Disturbance(noise=0.01, straggler=slow, launch_gap_us=1.0),
        )
        written += 1
    return written


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yaml_path", type=Path, default=Path("output/profile_yaml"))
    parser.add_argument("--output", type=Path, default=Path("profile_data"))
    parser.add_argument("--form", choices=("ascend", "kineto"), default="ascend")
    parser.add_argument("--device", default="ascend-910b")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=1000, help="most configurations written")
    parser.add_argument("--steps", type=int, default=2)
    args = parser.parse_args()
    start_logging()

    def write() -> None:
        written = write_all(
            args.yaml_path,
            args.output,
            form=args.form,
            device=args.device,
            seed=args.seed,
            limit=args.limit,
            steps=args.steps,
        )
        print(f"synthetic profiles of {written} configurations (nothing was measured): {args.output}")

    return run_command(write)


if __name__ == "__main__":
    raise SystemExit(main())
