"""Published jobs with an encoder of images, planned with it in every place: the first stage, several, ranks of its own,
bubbles.

    python -m benchmarks.published_encoders CHECKOUT [--device NAME] [--time_limit SECONDS]

CHECKOUT is one of Ascend/MindSpeed-MM (57069cd5 in the printed figures). Its examples state the layers of each stage
(``pipeline_num_layers``), with all of the encoder on the first one. A row is one job: the step of the published layout
and of the best plan in every place, with the images that its files state. The exit code is 1 where a plan on the first
stage, or the best of all places, takes longer than the published layout.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from taylor.base.console import start_logging
from taylor.base.errors import TaylorError
from taylor.parsers.text.shell_start import ShellStart, started
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OVER_LIMIT
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs

JOBS: dict[str, dict[str, str]] = {
    "qwen2.5vl/finetune_qwen2_5_vl_7b.sh": {},
    "qwen2.5omni/finetune_qwen2_5_omni_7b.sh": {},
    "qwen2.5vl/finetune_qwen2_5_vl_32b.sh": {"NNODES": "2"},
    "qwen2.5vl/finetune_qwen2_5_vl_72b.sh": {"NNODES": "8"},
}
"""Scripts of the examples with several stages, and the nodes of those that read them from a list of hosts."""
SAME = 1e-6


@dataclass(frozen=True)
class Row:
    """Steps of one job, ms: the published layout, and the best plan in each place; None where there is none."""

    name: str
    published: float
    fits: bool
    nested: float
    spread: float | None
    beside: float | None
    bubbles: float | None
    gap: float | None

    @property
    def best(self) -> float:
        """The shortest step of all places."""
        return min(step for step in (self.nested, self.spread, self.beside, self.bubbles) if step is not None)

    @property
    def never_worse(self) -> bool:
        """Return whether the published layout, where it fits, is no faster than the first stage's and the best plan."""
        return not self.fits or max(self.nested, self.best) <= self.published * (1 + SAME)

    def cells(self) -> list[str]:
        """The row as text."""
        steps = [f"{self.published:,.0f}{'' if self.fits else ' (does not fit)'}"]
        for step in (self.nested, self.spread, self.beside, self.bubbles):
            gain = "" if step is None else f" ({100 * (1 - step / self.published):+.1f} %)"
            steps.append("none" if step is None else f"{step:,.0f}{gain}")
        gap = "" if self.gap is None else f"{100 * self.gap:.1f} %"
        return [self.name, *steps, gap]


def row_of(name: str, checkout: Path, device: str | None, time_limit: float) -> Row:
    """Plan one job in every place."""
    path = checkout / "examples" / name
    job = FileJob(path, dryrun=False, check=False, device=device, encoder="best")
    with tempfile.TemporaryDirectory() as folder, started(ShellStart(None, JOBS[name])):
        outputs = Outputs(folder=Path(folder), write=False)
        own = evaluate_file(job, outputs)
        planned = solve_file(job, SolveOptions(time_limit=time_limit), outputs)
    spread, beside, bubbles = planned.spread, planned.beside, planned.bubbles
    return Row(
        path.stem,
        (own.solution.objective or 0.0) * (own.problem.unit_ms or 1.0),
        own.solution.status != OVER_LIMIT,
        planned.nested_ms,
        None if spread is None else spread.step_ms,
        None if beside is None else beside.step_ms,
        None if bubbles is None else bubbles.step_ms,
        None if bubbles is None else 1 - bubbles.bound / bubbles.insertion.step,
    )


def main(arguments: list[str] | None = None) -> int:
    """Print a row a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--device", help="a registered device; the launcher's usual one when omitted")
    parser.add_argument("--time_limit", type=float, default=300.0, help="seconds of one job (default: %(default)s)")
    chosen = parser.parse_args(arguments)
    start_logging()
    worse = False
    print("| job | published, ms | first stage | several stages | own ranks | bubbles | bubbles: above the bound |")
    print("|---|---|---|---|---|---|---|")
    for name in JOBS:
        try:
            row = row_of(name, chosen.checkout, chosen.device, chosen.time_limit)
        except TaylorError as error:
            print(f"| {name} | {error} | | | | | |", flush=True)
            worse = True
            continue
        print(f"| {' | '.join(row.cells())} |", flush=True)
        worse |= not row.never_worse
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
