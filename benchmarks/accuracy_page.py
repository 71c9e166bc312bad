"""Writes docs/accuracy.md: predicted beside measured steps of every set, with intervals and with other tools.

    python -m benchmarks.accuracy_page [FOLDER] [--record] [--calculon PATH]

With ``--record`` every row of every set below FOLDER (``../shared/data``) is priced, the intervals are fitted to sets
left out (`benchmarks.interval_fit`), and three files are written: ``benchmarks/accuracy.json`` (ratio, class and
interval of each row), ``cost_model/errors/step_errors.json`` (the errors that the product states) and the page. Without
it the page is compared with the two files, and the exit code is 1 where they differ. PATH is a copy of Calculon, which
then runs on the rows that it can state.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.accuracy_orders import MICRO_BATCHES, RecomputeRow, ScheduleRow, pairs, recompute_rows, schedule_rows
from benchmarks.accuracy_rows import CARD, MLPERF, SHARED, SOURCES, TABLES, AccuracyRow, every_row
from benchmarks.interval_fit import Residual, Settings, fit, left_out
from benchmarks.peers import MEGATRON_MFU
from taylor.base.files import write_atomic
from taylor.cost_model.errors.known_error import NEIGHBOUR_ERROR
from taylor.cost_model.errors.step_interval import RECORD, WHOLE, StepErrors

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
ROWS = ROOT / "benchmarks" / "accuracy.json"

LARGE_SET = 8
"""Rows from which on a set's coverage is judged by itself."""

FOLDERS = {
    "measured_runs_2026": "configuration files restated from public tables, golden files of continuous integration and "
    "issue threads; published after the constants of the cost model were chosen",
    "measured_runs": "MindSpeed-LLM's and NeMo's tables, Megatron-LM's golden files, torchtitan's tables, papers",
}

AMD_ROWS = (
    ("Llama 3.1 8B, FP8, 64 MI325X", 16_186, 17_351),
    ("Llama 3.1 70B, FP8, FSDP, 64 MI325X", 1_726, 1_818),
    ("Llama 3.1 70B, BF16, FSDP, 64 MI325X", 1_174, 1_066),
    ("Mixtral 8x22B, BF16, PP 4, EP 8, 64 MI355X", 3_534, 3_260),
)
"""Tokens a second and device, measured and projected by Primus from a run on one node: AMD-AGI/Primus fd1eeabb
docs_deprecated/tech_blogs/projection/projection.md:452-462."""


@dataclass(frozen=True)
class Accuracy:
    """All that the page states.

    Parameters
    ----------
    rows : sequence of AccuracyRow
        Every measured step.
    without : mapping of str to str
        Reason for each job that is not stated.
    schedules, recompute : sequence
        Differences between runs of one job.
    settings : Settings
        Settings of the intervals' fit.
    errors : StepErrors
        Errors by class.
    """

    rows: Sequence[AccuracyRow]
    without: Mapping[str, str]
    schedules: Sequence[ScheduleRow]
    recompute: Sequence[RecomputeRow]
    settings: Settings
    errors: StepErrors

    @property
    def judged(self) -> list[AccuracyRow]:
        """Rows that nothing contradicts."""
        return [row for row in self.rows if not row.doubt]

    def as_data(self) -> dict[str, Any]:
        """The rows and differences as plain data."""
        return {
            "settings": asdict(self.settings),
            "rows": [row.as_data() for row in self.rows],
            "without": dict(self.without),
            "schedules": [_rounded(asdict(row)) for row in self.schedules],
            "recompute": [_rounded(asdict(row)) for row in self.recompute],
        }

    @classmethod
    def recorded(cls, rows: Path = ROWS, errors: Path = RECORD) -> Accuracy:
        """The accuracy in two recorded files."""
        data, found = (json.loads(file.read_text(encoding="utf-8")) for file in (rows, errors))
        return cls(
            [AccuracyRow.of_data(row) for row in data["rows"]],
            data["without"],
            [ScheduleRow(**row) for row in data["schedules"]],
            [RecomputeRow(**row) for row in data["recompute"]],
            Settings(**data["settings"]),
            StepErrors.of_data(found),
        )


def _rounded(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in data.items()}


def residuals(rows: Iterable[AccuracyRow]) -> list[Residual]:
    """What the intervals are fitted to."""
    return [Residual(math.log(row.ratio), row.fold, row.job, row.flags) for row in rows]


def measured(shared: Path, calculon: Path | None) -> Accuracy:
    """Price every row below a folder, and fit the intervals to sets left out."""
    rows, without = every_row(shared, calculon)
    # Intervals are those of the rounded rows, so that the record alone gives them again.
    rows = [AccuracyRow.of_data(row.as_data()) for row in rows]
    schedules = schedule_rows(shared / "mlperf" / "schedules_primus.csv")
    moonlight = shared / "measured_runs_2026" / "mbridge-moonlight" / "tp2ep8_none.sh"
    recompute = recompute_rows(shared / "mlperf" / "recompute_moonlight.csv", moonlight)
    rows, settings, errors = with_intervals(rows)
    return Accuracy(rows, without, schedules, recompute, settings, errors)


def with_intervals(rows: Sequence[AccuracyRow]) -> tuple[list[AccuracyRow], Settings, StepErrors]:
    """The rows with intervals by fits without their folds, the settings, and the errors of every class."""
    judged = [place for place, row in enumerate(rows) if not row.doubt]
    known = residuals(rows[place] for place in judged)
    print(f"intervals: fitting to {len(known)} steps", file=sys.stderr, flush=True)
    errors, settings = fit(known)
    print("intervals: leaving out each set", file=sys.stderr, flush=True)
    intervals = [(one.lower(), one.upper()) for one in left_out(known, settings)]
    found = list(rows)
    for place, interval in zip(judged, intervals, strict=True):
        found[place] = replace(rows[place], interval=interval)
    return found, settings, errors


@dataclass(frozen=True)
class Line:
    """Figures of some rows, %: median error, bias (median of signed errors), largest error, coverage, half-width."""

    name: str
    rows: Sequence[AccuracyRow]

    @property
    def cells(self) -> list[str]:
        """Cells of the table."""
        errors = [100 * row.error for row in self.rows]
        covered = 100 * sum(row.covered for row in self.rows) / len(self.rows)
        return [
            self.name,
            str(len(errors)),
            f"{median(map(abs, errors)):.1f}",
            f"{median(errors):+.1f}",
            f"{max(errors, key=abs):+.1f}",
            f"{covered:.0f}",
            f"±{100 * median(row.half_width for row in self.rows):.0f}",
        ]


COLUMNS = ("", "rows", "median error %", "bias %", "largest %", "in the interval %", "interval %")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table."""
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def page(found: Accuracy) -> str:
    """The page's text."""
    return "\n".join(
        [*_head(found), *_by_set(found), *_mlperf(found), *_by_kind(found), *_peers(found), *_orders(found),
         *_intervals(found), *_excluded(found)]
    ) + "\n"  # fmt: skip


def _head(found: Accuracy) -> Iterator[str]:
    rows = found.judged
    low = sum(row.ratio < row.interval[0] for row in rows)
    high = sum(row.ratio > row.interval[1] for row in rows)
    covered = 100 * sum(row.covered for row in rows) / len(rows)
    half = 100 * median(row.half_width for row in rows)
    yield "# Accuracy of predicted steps"
    yield ""
    yield "<!-- Written by python -m benchmarks.accuracy_page --record -->"
    yield ""
    yield (
        f"Predicted beside measured step times of {len(rows)} published runs. No row takes part in its own prediction. "
        "Its interval is that of a fit without its set (and without all rows of its model, where one repository "
        f"publishes a model in several sets). The 90 % intervals contain {covered:.1f} % of the measured steps; {low} "
        f"are shorter and {high} longer than their interval. Half an interval is {half:.0f} % of the step in the "
        "median."
    )
    yield ""
    yield (
        "`python -m benchmarks.accuracy_page --record` prices every row again and writes this page, the recorded rows "
        "(`benchmarks/accuracy.json`) and the product's intervals (`cost_model/errors/step_errors.json`). Errors are "
        "predicted over measured, less one; the bias is their median with its sign."
    )
    yield ""


def _by_set(found: Accuracy) -> Iterator[str]:
    yield "## Sets"
    yield ""
    rows = found.judged
    lines = []
    for part in (MLPERF, "measured_runs_2026", CARD, TABLES, "measured_runs"):
        mine = [row for row in rows if row.part == part]
        if not mine:
            continue
        lines.append(Line(f"**{part}**", mine).cells)
        groups = list(dict.fromkeys(row.group for row in mine))
        if groups != [part]:
            lines += [Line(group, [row for row in mine if row.group == group]).cells for group in groups]
    lines.append(Line("**all**", rows).cells)
    yield from table(COLUMNS, lines)
    yield ""
    yield "Sources:"
    yield ""
    for name, source in {**SOURCES, **FOLDERS}.items():
        yield f"- {name}: {source}."
    yield ""


def _mlperf(found: Accuracy) -> Iterator[str]:
    yield "## MLPerf, run by run"
    yield ""
    mine = [row for row in found.judged if row.part == MLPERF]
    yield from table(
        ("run", "device", "cards", "error %", "interval of the measured over the predicted step"),
        (
            (row.name, row.device, f"{row.job.place[2]:,.0f}", f"{100 * row.error:+.1f}", _ends(row))
            for row in sorted(mine, key=lambda row: (row.device, row.job.place[2]))
        ),
    )
    yield ""


def _ends(row: AccuracyRow) -> str:
    low, high = (100 * (end - 1) for end in row.interval)
    return f"{low:+.0f} to {high:+.0f} %{'' if row.covered else ', missed'}"


def _by_kind(found: Accuracy) -> Iterator[str]:
    yield "## By device and by kind of job"
    yield ""
    rows, lines = found.judged, []
    for name in sorted({row.device for row in rows}):
        lines.append(Line(name, [row for row in rows if row.device == name]).cells)
    kinds = {word: [row for row in rows if word in row.features] for word in ("MoE", "fp8", "CP", "FSDP", "Ascend")}
    kinds = {"dense, 16 bits": [row for row in rows if not {"MoE", "fp8"} & set(row.features)], **kinds}
    lines += [Line(name, mine).cells for name, mine in kinds.items() if mine]
    yield from table(COLUMNS, lines)
    yield ""


def _peers(found: Accuracy) -> Iterator[str]:
    yield "## Other tools on the same rows"
    yield ""
    yield (
        f"Megatron: Megatron-LM's own FLOPs of the job at {100 * MEGATRON_MFU:.0f} % of the device's peak in the job's "
        "precision, the model FLOPs utilization that its README states for H100. Calculon: calculon-ai/calculon on the "
        "rows that it can state (GPT without grouped heads or experts, A100 and H100); «not given» where it can state "
        "none. Both cells of a pair are medians over the same rows."
    )
    yield ""
    rows = found.judged
    lines = []
    for part in (MLPERF, "measured_runs_2026", CARD, TABLES, "measured_runs"):
        mine = [row for row in rows if row.part == part]
        if mine:
            lines.append([part, *(cell for peer in ("Megatron", "Calculon") for cell in _beside(mine, peer))])
    yield from table(
        ("", "rows", "Megatron %", "Taylor %", "rows", "Calculon %", "Taylor %"),
        lines,
    )
    yield ""
    yield "AMD publishes projections of Primus from runs on one node to eight nodes:"
    yield ""
    yield from table(
        ("run", "measured tokens/s/device", "projected", "error of the step %"),
        (
            (name, f"{real:,}", f"{projected:,}", f"{100 * (real / projected - 1):+.1f}")
            for name, real, projected in AMD_ROWS
        ),
    )
    yield ""
    yield "Taylor has no files of these four runs, so that no figure of its own stands beside them."
    yield ""


def _beside(rows: Sequence[AccuracyRow], peer: str) -> list[str]:
    """Number of rows, and the median errors of a peer and of this product on them, %."""
    mine = [row for row in rows if peer in row.peers]
    if not mine:
        return ["0", "not given", "—"]
    theirs = median(abs(row.peers[peer] - 1) for row in mine)
    ours = median(abs(row.error) for row in mine)
    return [str(len(mine)), f"{100 * theirs:.1f}", f"{100 * ours:.1f}"]


def _orders(found: Accuracy) -> Iterator[str]:
    right, tie, wrong = pairs(list(found.schedules))
    yield "## Differences between runs of one job"
    yield ""
    yield (
        "Primus' measured schedules (AMD-AGI/Primus fd1eeabb), as shares of the job's 1F1B step. The source states no "
        f"batch: {MICRO_BATCHES} micro-batches of one sample are assumed. Of the pairs of runs of one job, "
        f"{right} are in the measured order, {tie} are ties (measured steps within 1 %, or predicted ones within "
        f"{100 * NEIGHBOUR_ERROR:.0f} %) and {wrong} are in the other order."
    )
    yield ""
    yield from table(
        ("job", "schedule", "VPP", "measured", "predicted"),
        (
            (row.job, row.schedule, str(row.vpp), f"{row.measured:.3f}",
             "no such schedule" if row.predicted is None else f"{row.predicted:.3f}")
            for row in found.schedules
        ),
    )  # fmt: skip
    yield ""
    yield "Recompute by module in Moonlight 16B on 8 H100 (NVIDIA-NeMo/Megatron-Bridge, PR 5570), cost a step:"
    yield ""
    yield from table(
        ("modules", "measured ms", "predicted ms", "predicted over measured"),
        (
            (row.modules, f"{row.measured_ms:.1f}", f"{row.predicted_ms:.1f}", f"{row.ratio:.2f}")
            for row in found.recompute
        ),
    )
    yield ""


def _intervals(found: Accuracy) -> Iterator[str]:
    yield "## Intervals"
    yield ""
    yield (
        "A job's interval is that of its narrowest class below. The 5 % and 95 % ranks of a class are drawn towards "
        f"those of the class around it, which counts as {found.settings.shrink:g} sets, and moved out by what sets "
        "left out need on each side. Each flag that no figure includes widens it (`known_error.FLAG_WIDTH`), and so "
        f"does a size beyond those of the calibrated rows (a deviation of {found.settings.slope:g} of the logarithm "
        "for each factor of e). Ends are of the measured step over the predicted one. These two settings, and the "
        "kinds of class, were chosen on all sets at once, so that the coverage above is a little better than that of "
        "new sets."
    )
    yield ""
    yield from table(
        ("class", "interval %", "typical error %", "sets", "rows"),
        (
            (name, f"{-100 * one.below:+.0f} to {100 * one.above:+.0f}", f"{100 * one.typical:.0f}", str(one.sets),
             str(one.rows))
            for name, one in sorted(found.errors.classes.items(), key=lambda item: (item[0] != WHOLE, item[0]))
        ),
    )  # fmt: skip
    yield ""
    large = [row.group for row in found.judged]
    sets = sorted({name for name in large if large.count(name) >= LARGE_SET})
    under = [
        f"{name} ({100 * share:.0f} %)" for name in sets if (share := _coverage(found.judged, name)) < 0.8
    ]  # fmt: skip
    many = f"Of the {len(sets)} sets of {LARGE_SET} rows or more"
    few = f"{len(under)} lie in their intervals in less than 80 % of their rows: {', '.join(under)}"
    yield f"{many}, {few if under else 'each has at least 80 % of its rows in their intervals'}."
    yield ""


def _coverage(rows: Iterable[AccuracyRow], group: str) -> float:
    mine = [row.covered for row in rows if row.group == group]
    return sum(mine) / len(mine)


def _excluded(found: Accuracy) -> Iterator[str]:
    yield "## Rows that take no part"
    yield ""
    yield "Rows that contradict their own source:"
    yield ""
    yield from table(
        ("run", "error %", "reason"),
        ((row.name, f"{100 * row.error:+.1f}", row.doubt) for row in found.rows if row.doubt),
    )
    yield ""
    yield "Published runs that are not stated as a job:"
    yield ""
    reasons: dict[str, list[str]] = {}
    for name, why in found.without.items():
        reasons.setdefault(why, []).append(name)
    yield from table(("reason", "runs"), ((why, ", ".join(names)) for why, names in reasons.items()))


def json_text(data: Mapping[str, Any]) -> str:
    """Plain data as JSON with one row or class a line."""
    parts = []
    for name, value in data.items():
        if isinstance(value, list) and value:
            lines = ",\n".join(f"  {json.dumps(one)}" for one in value)
            parts.append(f"{json.dumps(name)}: [\n{lines}\n ]")
        elif isinstance(value, dict) and value:
            lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in value.items())
            parts.append(f"{json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def main() -> int:
    """Write the three files, or compare them: 1 where the page differs from the record."""
    parser = argparse.ArgumentParser(description="accuracy of predicted steps")
    parser.add_argument("folder", type=Path, nargs="?", default=SHARED)
    parser.add_argument("--record", action="store_true", help="price every row, fit the intervals, write the files")
    parser.add_argument("--calculon", type=Path, help="folder with Calculon's sources")
    options = parser.parse_args()
    if options.record:
        found = measured(options.folder, options.calculon)
        write_atomic(ROWS, json_text(found.as_data()))
        write_atomic(RECORD, json_text(found.errors.as_data()))
    found = Accuracy.recorded()
    text = page(found)
    if options.record:
        write_atomic(PAGE, text)
    print(text.split("## MLPerf")[0])
    same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
    if not same:
        print("docs/accuracy.md differs from the record: run with --record", file=sys.stderr)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
