"""Two results side by side: their differences, and the parts of the step that make one faster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from taylor.base.files import printable
from taylor.cost_model.errors.known_error import MEMORY_ERRORS, NEIGHBOUR_ERROR, KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.pipeline_solver.model.problem import span
from taylor.pipeline_solver.solving.result import Result, read_result
from taylor.pipeline_solver.timing.evaluate import bubble_shares, evaluate
from taylor.report.compress import compress
from taylor.report.facts import Answer, PageFacts, PageTable
from taylor.report.html import write_html_report
from taylor.report.memory_parts import from_problem
from taylor.report.planned import planned_timeline
from taylor.workflows.showing.page_facts import EQUAL_GAIN, gap_words, memory_answer

DEGREES = ("dp", "tp", "pp", "ep", "cp", "op", "sp", "vpp", "mbs", "micro_batches")

LEAST_SHARE = 0.002
"""Fraction of the step below which the sentence on the reasons does not name a part's difference."""

MOST_REASONS = 3
"""Most parts that the sentence names."""


@dataclass(frozen=True)
class Difference:
    """One fact that the two results state, equal or not."""

    what: str
    first: str
    second: str

    @property
    def same(self) -> bool:
        """Return whether both state the same."""
        return self.first == self.second


@dataclass(frozen=True)
class Part:
    """One part of the step in each result; the parts of a result sum up to its step."""

    what: str
    first: float
    second: float


@dataclass(frozen=True)
class Comparison:
    """Two results compared.

    Parameters
    ----------
    names : (str, str)
        Names of the two.
    verdict : str
        The faster one, by how much, and the main reason.
    warnings : tuple of str
        Reasons why the two are not like with like.
    differences : tuple of Difference
        Strategy, schedule, plan, memory, times.
    parts : tuple of Part
        Parts of the step, in `unit`.
    unit : str
        ``ms a step``, ``ms a sample`` where the batches differ, or body-layer forwards where a real time is unknown.
    exceeds_error : bool or None
        Whether the difference exceeds the error between two estimates of one model
        (`known_error.NEIGHBOUR_ERROR`); None where the times are not both estimated.
    """

    names: tuple[str, str]
    verdict: str
    warnings: tuple[str, ...]
    differences: tuple[Difference, ...]
    parts: tuple[Part, ...]
    unit: str
    exceeds_error: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """Comparison as plain data."""
        return {
            "names": list(self.names),
            "verdict": self.verdict,
            "exceeds_error": self.exceeds_error,
            "warnings": list(self.warnings),
            "differences": {one.what: [one.first, one.second] for one in self.differences if not one.same},
            "unit": self.unit,
            "parts": {part.what: [part.first, part.second] for part in self.parts},
        }

    @property
    def changed_table(self) -> PageTable:
        """Differences of the two results."""
        rows = [[one.what, one.first, one.second] for one in self.differences if not one.same]
        alike = [one.what for one in self.differences if one.same and one.first]
        note = f"The same in both: {', '.join(alike)}." if alike else ""
        return PageTable("What differs", ("what", *self.names), rows, note)

    @property
    def parts_table(self) -> PageTable:
        """Parts of the step in both results."""
        total = Part("together", sum(one.first for one in self.parts), sum(one.second for one in self.parts))
        rows = [
            [one.what, f"{one.first:,.2f}", f"{one.second:,.2f}", _signed(one.second - one.first)]
            for one in (*self.parts, total)
        ]
        return PageTable(
            f"Where the time goes, {self.unit}",
            ("part of the step", *self.names, "difference"),
            rows,
            "Of an average stage: its first forwards and backwards, and all that keeps it from them.",
        )


def compare_results(first: Path, second: Path) -> Comparison:
    """Compare two ``--result_json`` files.

    Raises
    ------
    InputError
        When one of them is no result with a plan.
    """
    return compare(_names(first, second), (read_result(first), read_result(second)))


def compare(names: tuple[str, str], results: tuple[Result, Result]) -> Comparison:
    """Compare two results, which are called `names`."""
    timed = all(result.problem.unit_ms is not None for result in results)
    samples = [_samples(result) for result in results]
    each = timed and samples[0] != samples[1]
    unit = "ms a sample" if each else "ms a step" if timed else "body-layer forwards a step"
    scales = [
        (result.problem.unit_ms or 1.0 if timed else 1.0) / (count if each else 1)
        for result, count in zip(results, samples, strict=True)
    ]
    found = [_parts(result, scale) for result, scale in zip(results, scales, strict=True)]
    parts = tuple(Part(what, found[0][what], found[1][what]) for what in found[0])
    warnings = _warnings(results)
    exceeds = _exceeds_error(results, parts)
    verdict = _verdict(names, parts, unit, tie=exceeds is False)
    return Comparison(names, verdict, warnings, _differences(results), parts, unit, exceeds)


def write_comparison_page(path: Path, first: Path, second: Path) -> None:
    """Write the comparison of two results as a page with both pipelines under each other.

    Raises
    ------
    InputError
        When one of them is no result with a plan, or the page cannot be written.
    """
    names, results = _names(first, second), (read_result(first), read_result(second))
    compared = compare(names, results)
    timelines = {
        name: planned_timeline(result.problem, result.plan, name) for name, result in zip(names, results, strict=True)
    }
    fits = [memory_answer(*_memory(result), result.memory_source or "", *_error(result)) for result in results]
    answers = [
        Answer(f"Does {name} fit?", one.answer, one.detail, one.tone) for name, one in zip(names, fits, strict=True)
    ]
    models = dict.fromkeys(filter(None, (_named(result, "model") for result in results)))
    write_html_report(
        path,
        PageFacts(
            title=f"{names[0]} beside {names[1]}",
            model=" and ".join(models),
            verdict=" ".join([compared.verdict, *compared.warnings]),
            answers=answers,
            assumed=list(dict.fromkeys(one for result in results for one in _assumed(result))),
        ),
        plans=timelines,
        parts={
            name: from_problem(result.problem, result.plan, _memory(result)[0])
            for name, result in zip(names, results, strict=True)
        },
        tables=[compared.parts_table, compared.changed_table],
        beside=names[1],
    )


def _names(first: Path, second: Path) -> tuple[str, str]:
    """Names of the two files: their stems, or their paths where those are the same."""
    stems = printable(first.stem), printable(second.stem)
    if stems[0] != stems[1]:
        return stems
    paths = printable(str(first)), printable(str(second))
    return paths if paths[0] != paths[1] else (f"{paths[0]} (first)", f"{paths[1]} (second)")


def _parts(result: Result, scale: float) -> dict[str, float]:
    """Parts of the step; `scale` converts body-layer forwards to the unit."""
    problem, plan = result.problem, result.plan
    step = evaluate(problem, plan).objective or 0.0
    shares = bubble_shares(problem, plan)
    without_tail = evaluate(problem.replace(tail=()), plan).objective or 0.0
    tail = min(step - without_tail, step * shares.communication)
    parts = {
        "forward and backward of an average stage": (1.0 - shares.total) * step,
        "recompute": shares.recompute * step,
        "fill and drain of the pipeline": shares.ideal * step,
        "imbalance between the stages": shares.imbalance * step,
        "transfers between the stages": shares.communication * step - tail,
        "end of the step (gradients, optimizer)": tail,
    }
    return {what: value * scale for what, value in parts.items()}


def _exceeds_error(results: Sequence[Result], parts: Sequence[Part]) -> bool | None:
    """Return whether two estimated steps differ by more than the model's error; None where one is no estimate."""
    intervals = [result.job.get("step_interval_ms") for result in results]
    steps = sorted((sum(part.first for part in parts), sum(part.second for part in parts)))
    if not all(intervals) or not steps[0]:
        return None
    return steps[1] > (1.0 + NEIGHBOUR_ERROR) * steps[0]


def _verdict(names: Sequence[str], parts: Sequence[Part], unit: str, *, tie: bool) -> str:
    first, second = sum(part.first for part in parts), sum(part.second for part in parts)
    if not first or not second:
        return "A step of no length cannot be compared."
    if abs(first / second - 1.0) < EQUAL_GAIN / 100.0:
        return f"{names[0]} and {names[1]} are equally fast: {first:,.1f} {unit}."
    quick, slow = (0, 1) if first < second else (1, 0)
    times = (first, second)
    saved = {part.what: (part.first, part.second)[slow] - (part.first, part.second)[quick] for part in parts}
    why = [
        f"{'−' if less > 0 else '+'} {abs(less):,.1f} {what}"
        for what, less in sorted(saved.items(), key=lambda one: -abs(one[1]))
        if abs(less) >= LEAST_SHARE * times[slow]
    ][:MOST_REASONS]
    gain = 100.0 * (times[slow] / times[quick] - 1.0)
    if tie:
        return (
            f"{names[0]} and {names[1]} are a tie: {times[0]:,.1f} and {times[1]:,.1f} {unit} differ by {gain:.1f} %, "
            f"and two estimates may be off from each other by {100 * NEIGHBOUR_ERROR:.0f} %. By the estimates alone "
            f"{names[quick]} is faster ({'; '.join(why)})."
        )
    return (
        f"{names[quick]} is {gain:.1f} % faster than {names[slow]}: {times[quick]:,.1f} against {times[slow]:,.1f} "
        f"{unit} ({'; '.join(why)})."
    )


def _signed(difference: float) -> str:
    text = f"{difference:+,.2f}"
    return "0" if text in ("+0.00", "-0.00") else text.replace("-", "− ").replace("+", "+ ")


def _warnings(results: Sequence[Result]) -> tuple[str, ...]:
    """Reasons why two results are not like with like; a figure that one of them lacks is not compared."""
    found = []
    problems = [result.problem for result in results]
    models = [_named(result, "model") for result in results]
    layers = [problem.layers + sum(k.count for k in problem.kinds if k.pinned) for problem in problems]
    if (all(models) and models[0] != models[1]) or layers[0] != layers[1]:
        described = [model or f"{count} layers" for model, count in zip(models, layers, strict=True)]
        found.append(f"Not comparable: the models differ ({described[0]} and {described[1]}).")
    samples = [_samples(result) for result in results]
    if samples[0] != samples[1]:
        found.append(f"The batches differ ({samples[0]:,} and {samples[1]:,} samples): times are given by sample.")
    lengths = [_batch(result).get("sequence") for result in results]
    if all(isinstance(length, int) for length in lengths) and lengths[0] != lengths[1]:
        found.append(f"The sequences differ ({lengths[0]:,} and {lengths[1]:,} tokens): a sample is not the same work.")
    units = [problem.unit_ms for problem in problems]
    if None in units and any(unit is not None for unit in units):
        found.append("Only one of them has times in ms: both are given in body-layer forwards, which may differ.")
    elif None in units and problems[0].backward_ratio != problems[1].backward_ratio:
        found.append("Their time ratios differ, and with them what a body-layer forward stands for.")
    ranks = [_ranks(result) for result in results]
    if None not in ranks and ranks[0] != ranks[1]:
        found.append(f"They run on {ranks[0]:,} and {ranks[1]:,} devices: tokens/s a device are what compares.")
    devices = [_named(result, "device") for result in results]
    if all(devices) and devices[0] != devices[1]:
        found.append(f"They are planned for different devices ({devices[0]} and {devices[1]}).")
    sources = [result.memory_source for result in results]
    if sources[0] != sources[1]:
        found.append(f"Their memory comes from different sources ({sources[0]} and {sources[1]}).")
    return tuple(found)


def _differences(results: Sequence[Result]) -> tuple[Difference, ...]:
    facts = [_facts(result) for result in results]
    names = dict.fromkeys(name for one in facts for name in one)
    return tuple(Difference(name, facts[0].get(name, ""), facts[1].get(name, "")) for name in names)


def _facts(result: Result) -> dict[str, str]:
    """Facts that a reader compares, by name."""
    problem, plan, solution = result.problem, result.plan, result.solution
    strategy, batch, job = result.job.get("strategy"), _batch(result), result.job
    degrees = strategy if isinstance(strategy, Mapping) else {}
    facts = {"model": _named(result, "model"), "device": _named(result, "device")}
    facts |= {name: str(degrees[name]) for name in DEGREES if name in degrees}
    if not degrees:
        facts |= {
            "pp": str(problem.stages),
            "vpp": str(problem.interleaves),
            "micro_batches": str(problem.micro_batches),
        }
    if batch:
        facts |= {"batch": f"{batch.get('global', '')}", "sequence": f"{batch.get('sequence', '')}"}
    facts["schedule"] = problem.schedule.name + (", low memory" if problem.schedule.low_memory else "")
    facts["offset"] = _listed(plan.offset(tuple(kind.name for kind in problem.kinds if kind.pinned)))
    facts["layers"] = _listed(plan.total_layers(list(plan.layers)))
    for mode in problem.recompute_ratio:
        facts["recompute" if mode == "full" else f"{mode} recompute"] = _listed(plan.recomputed(mode))
    peaks, limits = _memory(result)
    if peaks:
        heaviest = min(range(len(peaks)), key=lambda stage: limits[stage] - peaks[stage])
        facts["fullest stage"] = f"stage {heaviest}: {peaks[heaviest]:,.0f} of {limits[heaviest]:,.0f} MiB"
    facts["memory from"] = result.memory_source or ""
    if isinstance(step := job.get("step_ms"), (int, float)):
        facts["step"] = f"{step:,.1f} ms"
    if isinstance(rate := job.get("tokens_per_second"), (int, float)):
        facts["tokens/s"] = f"{rate:,.0f}"
    if isinstance(each := job.get("tokens_per_second_per_device"), (int, float)):
        facts["tokens/s a device"] = f"{each:,.1f}"
    if isinstance(mfu := job.get("mfu"), (int, float)):
        precision = job.get("mfu_precision")
        facts["MFU"] = f"{100 * mfu:.1f} %" + (f" of the {precision} peak" if isinstance(precision, str) else "")
    if problem.unit_ms is not None:
        facts["one body layer's forward"] = f"{problem.unit_ms:,.3f} ms"
    facts["backward over forward"] = f"{problem.backward_ratio:.3g}"
    facts |= {f"{kind.name} forward": f"{kind.forward:.3g}" for kind in problem.kinds}
    facts["head over forward"] = f"{problem.head_forward:.3g}"
    facts |= {f"{mode} recompute over forward": f"{ratio:.3g}" for mode, ratio in problem.recompute_ratio.items()}
    facts["transfer"] = f"{span(problem.lags or (problem.lag,))} forwards"
    facts["status"] = f"{solution.status}" + ("" if solution.gap is None else f", {gap_words(solution.gap)}")
    return facts


def _listed(grid: Sequence[Sequence[int]]) -> str:
    return compress([list(row) for row in grid]).replace(",", ", ")


def _memory(result: Result) -> tuple[Sequence[float], Sequence[float]]:
    """Peak and limit of every stage, MiB; evaluated where the file lacks them."""
    solution = result.solution
    known = (
        solution if solution.peak_memory_mib and solution.memory_limit_mib else evaluate(result.problem, result.plan)
    )
    return known.peak_memory_mib, known.memory_limit_mib


def _error(result: Result) -> tuple[KnownError | None, MemoryMargin]:
    """Known error of a result's peaks and the risk that it was planned with; none where the file lacks them."""
    source, stated, risk = result.memory_source or "", result.job.get("peak_error"), result.job.get("planned_risk")
    try:
        below, above, typical = map(float, stated)  # type: ignore[arg-type]  # a file may hold anything
        known = KnownError(below, above, typical, f"{'estimated' if risk else 'stated'} peaks of such jobs are")
        return known, MemoryMargin(risk=float(risk or 0.0))
    except (TypeError, ValueError):
        return MEMORY_ERRORS.get(source), MemoryMargin(risk=0.0)


def _batch(result: Result) -> Mapping[str, Any]:
    batch = result.job.get("batch")
    return batch if isinstance(batch, Mapping) else {}


def _assumed(result: Result) -> list[str]:
    assumed = result.job.get("assumed")
    return [str(one) for one in assumed] if isinstance(assumed, list) else []


def _samples(result: Result) -> int:
    """Samples of a step; micro-batches where the file does not state them."""
    batch = _batch(result).get("global")
    return batch if isinstance(batch, int) and batch > 0 else result.problem.micro_batches


def _ranks(result: Result) -> int | None:
    """Devices of the job; None where the file does not state its degrees."""
    strategy = result.job.get("strategy")
    values = [strategy.get(name) for name in ("dp", "tp", "pp", "cp")] if isinstance(strategy, Mapping) else []
    degrees = [degree for degree in values if isinstance(degree, int)]
    return prod(degrees) if len(degrees) == 4 else None


def _named(result: Result, what: str) -> str:
    fact = result.job.get(what)
    name = fact.get("name") if isinstance(fact, Mapping) else None
    return name if isinstance(name, str) else ""
