"""What noisy profiles and made-up runs come out as, drawn at random.

    python -m tests.profiling.figures

writes it anew; as for `tests.cost_model.figures`, other tests say whether it is right.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.profile_extraction import run_one
from benchmarks.synthetic.profiles import Disturbance
from taylor.base.errors import TaylorError
from taylor.pipeline.schedule import ScheduleSpec
from taylor.profiling.calibration.figures import FIGURES, Figures
from taylor.profiling.calibration.fit import Measured, calibrate
from taylor.profiling.extract import extract_ratios
from taylor.profiling.fit import LinearFit, centre
from taylor.register.device import DeviceSpec
from taylor.register.model import DENSE
from tests.cost_model.figures import told
from tests.profiling.test_calibration import H100
from tests.profiling.test_extract import MIXED, job, write

KEPT = Path(__file__).with_suffix(".json")


def centres() -> list[Any]:
    """Centres of samples with outliers, and of few."""
    draw = np.random.default_rng(3)
    found = []
    for count in (1, 2, 3, 4, 9, 40):
        for _ in range(4):
            samples = draw.normal(5.0, 0.3, count)
            samples[: count // 4] *= draw.choice([1.0, 1.3, 3.0])
            found.append(told(centre(samples)))
    found.append(told(centre(np.array([5.0, 5.0, 5.0, 5.00004, 5.0002]))))
    return found


def systems() -> list[Any]:
    """Sums of pieces from windows that hold several."""
    draw = random.Random("systems")
    pieces = [("before", "dense"), ("after", "dense"), ("before", "moe"), ("after", "moe"), ("head", "")]
    found = []
    for _ in range(8):
        fit = LinearFit()
        for _ in range(draw.choice((3, 5, 9))):
            held = {piece: float(draw.choice((1, 1, 2))) for piece in draw.sample(pieces, draw.choice((1, 2, 3)))}
            samples = np.array([draw.gauss(3.0 * len(held), 0.1) for _ in range(draw.choice((1, 5, 20)))])
            fit.add(held, centre(samples), draw.choice((1e-4, 1e-2)))
        solved = fit.solve()
        sums = [solved.sum_of(some) for some in (pieces[:1], pieces[:2], pieces[2:], pieces)]
        found.append([told(sums), told(solved.worst_residual())])
    return found


def device_figures() -> list[Any]:
    """Points, intervals and bounds of a device."""
    draw = np.random.default_rng(5)
    figures = Figures(H100)
    found: list[Any] = [told(figures.bounds()), told(figures.start())]
    for scale in (0.5, 3.0):
        point = draw.normal(0, scale, figures.size)
        mixed = draw.normal(0, 0.3, (figures.size, figures.size))
        spread = mixed @ mixed.T / figures.size
        found.append(told(figures.values(point)))
        found.append([told(figures.interval(point, spread, at)) for at in range(1, figures.size)])
    return found


def _predictor(draw: random.Random) -> Callable[[DeviceSpec], float]:
    """A time that is made of shares, credits and costs of a device."""
    shares = {key: draw.uniform(1.0, 20.0) for one in FIGURES[:6] for key in one.keys if draw.random() < 0.6}
    rest = {key: draw.uniform(0.0, 5.0) for one in FIGURES[6:10] for key in one.keys if draw.random() < 0.4}
    costs = {"softmax_flops": 0.01, "layer_us": 0.02, "step_ms": 1.0}
    base = Figures(H100).known

    def predict(device: DeviceSpec) -> float:
        known = {**base, **device.efficiency}
        work = sum(amount / known[key] for key, amount in shares.items())
        return 10.0 + work + sum(amount * known[key] for key, amount in {**rest, **costs}.items())

    return predict


def calibrations() -> list[Any]:
    """Calibrations by few and by many runs, some of one job, one of them odd."""
    found = []
    for seed, runs in ((1, 1), (2, 2), (3, 4), (4, 7), (5, 9)):
        draw = random.Random(f"calibration {seed}")
        card = Figures(H100).at(np.array([draw.gauss(0.5, 0.7) for _ in range(1 + len(FIGURES))]))
        measured = []
        for number in range(runs):
            predict = _predictor(draw)
            for again in range(draw.choice((1, 1, 2))):
                ms = predict(card) * draw.gauss(1.0, 0.03) * (1.5 if number == 5 else 1.0) * (1.08 if again else 1.0)
                flags = tuple(draw.sample(("--one", "--two", "--three"), draw.choice((0, 0, 1))))
                measured.append(Measured(f"run {number}.{again}", ms, predict, number, flags))
        made = calibrate(measured, H100)
        figures = [(one.name, one.from_runs, one.value, one.least, one.largest) for one in made.figures]
        # What the solver of another machine ends at is the same to four digits.
        found.append(
            [
                made.moved,
                [[name, told_by_runs, *(f"{value:.3g}" for value in rest)] for name, told_by_runs, *rest in figures],
                [[run.name, run.contradicts, f"{run.before:.3f}", f"{run.fitted:.3f}",
                  None if run.left_out is None else f"{run.left_out:.3f}"] for run in made.runs],
                list(made.notes),
            ]
        )  # fmt: skip
    return found


def extractions(group: int) -> list[Any]:
    """Ratios of noisy profiles of several layouts."""
    dense = {DENSE: ((2, 2), (2, 2))}
    layouts = [
        lambda folder: extract_ratios(MIXED, write(MIXED, folder, disturbance=Disturbance(straggler=2))),
        lambda folder: extract_ratios(MIXED, write(MIXED, folder, form="kineto")),
        *(
            lambda folder, config=config: extract_ratios(config, write(config, folder))
            for config in (
                job({DENSE: ((2, 2),)}, ((2, 2),)),
                job({DENSE: ((4,),)}, ((2,),)),
                job(dense, ((1, 0), (0, 2)), 8, ScheduleSpec("zero_bubble_v")),
            )
        ),
        *(lambda folder, seed=seed: run_one(seed, 0.03, folder, most_stages=4)[1] for seed in (20, 21, 22)),
    ]
    found = []
    for layout in layouts[group::4]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = layout(Path(folder))
            except TaylorError as error:
                found.append(type(error).__name__)
                continue
            found.append(json.loads(json.dumps(told(replace(result, config=None))).replace(folder, "")))
    return found


PARTS: dict[str, Callable[[], list[Any]]] = {
    "centres": centres,
    "systems": systems,
    "device": device_figures,
    "calibrations": calibrations,
    **{f"profiles {group}": lambda group=group: extractions(group) for group in range(4)},
}


def main() -> None:
    """Write the figures."""
    lines = (f"{json.dumps(name)}: {json.dumps(part())}" for name, part in PARTS.items())
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
