"""A tuning as a page: its runs, coverage, laws, best plans, predicted beside measured, and what to run next."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from taylor.blackbox.blocks import LawfulOperator
from taylor.blackbox.law_summary import law_state
from taylor.blackbox.laws import SizeFit
from taylor.parsers.small_run import RunSetting
from taylor.report.facts import BAD, GOOD, WARNING, Answer, PageFacts, PageTable
from taylor.report.html import write_html_report
from taylor.report.planned import planned_timeline
from taylor.workflows.tuning.tune import Tuned, Written
from taylor.workflows.tuning.tune_search import GIB, BestPlan, OwnRun

MOST_LAWS = 300
"""Rows of the table of laws; a network has some 50 different ones."""
STATES = {
    "settled": "exact",
    "ambiguous": "several: a further run decides",
    "scattered": "scatters, as the data do",
    "lawless": "none",
}


def write_tune_page(path: Path, done: Tuned, script: Path, limit: float | None) -> Path:
    """Write the page, whatever was reached: runs without plans have a page too.

    Parameters
    ----------
    limit : float or None
        Bytes of a device.

    Raises
    ------
    InputError
        When the file cannot be written.
    """
    best = done.searched.best if done.searched is not None else ()
    tables = [_plans(best), _runs(done), _coverage(done), _laws(done.operators), _next(done)]
    drawn = {f"plan {at}": one for at, one in enumerate(best, 1)}
    facts = PageFacts(
        f"{script.name}: planned from small runs",
        ranks=f"{done.ranks:,}",
        sequence=f"{done.sizes.own.seq:,}",
        file=str(script),
        verdict=_verdict(done),
        answers=_answers(done, limit),
        assumed=() if done.searched is None else done.searched.assumed,
    )
    return write_html_report(
        path,
        facts,
        plans={name: planned_timeline(one.ranked.problem, one.ranked.plan, name) for name, one in drawn.items()},
        tables=[one for one in tables if one.rows],
        beside="plan 2" if len(best) > 1 else "",
    )


def _verdict(done: Tuned) -> str:
    if done.searched is None or not done.searched.best:
        return f"No plan yet: {done.not_searched or 'too few small runs ended with a profile'}."
    first = done.searched.best[0]
    return f"{_degrees(first.ranked.run)}: {_step(first)} a step, at most {_gib(first.upper)} GiB a card."


def _answers(done: Tuned, limit: float | None) -> list[Answer]:
    ended = Counter("failed" if one.ended else "ended well" if one.ended == "" else "not started" for one in done.runs)
    state = ", ".join(f"{count} {name}" for name, count in ended.items())
    found = [Answer("Did the small runs end?", state, tone=WARNING if ended["failed"] else GOOD)]
    if done.law_summary is not None:
        laws = done.law_summary
        answer = f"{laws.settled} of {laws.operators} operators exact"
        tone = GOOD if laws.settled == laws.operators else WARNING
        found.append(Answer("Are the laws known?", answer, _law_detail(done), tone))
    if done.searched is not None and done.searched.best:
        own = done.searched
        detail = f"{own.own_error:.1%} in the median, {own.own_worst:.1%} at most, on the small runs' own passes"
        found.append(Answer("How far off are the times?", _step(own.best[0]), detail))
        first = own.best[0]
        if limit is not None:
            fits = f"{_gib(first.upper)} of {_gib(limit)} GiB"
            found.append(Answer("Does the first plan fit?", fits, tone=GOOD if first.upper <= limit else BAD))
    return found


def _law_detail(done: Tuned) -> str:
    laws = done.law_summary
    assert laws is not None
    counts = (("with several laws", laws.ambiguous), ("that scatter", laws.scattered), ("without one", laws.lawless))
    return ", ".join(f"{count} {name}" for name, count in counts if count)


def _plans(best: tuple[BestPlan, ...]) -> PageTable:
    rows = []
    for place, one in enumerate(best, 1):
        layers = "; ".join(",".join(map(str, row)) for row in one.ranked.plan.total_layers())
        switches = ", ".join(f"{name} {'on' if on else 'off'}" for name, on in one.states.items())
        measured = "the base has its operators" if one.before_ms is not None else "not verified"
        if one.verified is not None:
            measured = f"{one.verified.predicted_ms:,.1f} / {one.verified.measured_ms:,.1f} ms ({one.verified.run})"
        if one.full_size is not None:
            whole = one.full_size.step_ms
            measured += "; at full size failed" if whole is None else f"; at full size {whole:,.1f} ms"
        rows.append(
            (str(place), _degrees(one.ranked.run), f"{one.ranked.micro_batches}", _step(one), _gib(one.peak),
             _gib(one.upper), measured, layers, one.recomputed, switches or "-",
             str(one.script or "its flags cannot state it"))
        )  # fmt: skip
    columns = ("", "degrees", "micro-batches", "step", "peak GiB", "at most GiB", "passes predicted / measured",
               "layers by stage", "recomputed", "switches", "script")  # fmt: skip
    note = "Layers and recomputed ones: one number a stage, a semicolon between virtual stages."
    return PageTable("Best plans", columns, rows, note, marked=0)


def _runs(done: Tuned) -> PageTable:
    own = {} if done.searched is None else {one.name: one for one in done.searched.own}
    base = done.runs[0].run.setting
    rows = [_run_row(one, base, own.get(one.run.name)) for one in done.runs]
    columns = ("run", "change", "shows", "outcome", "passes predicted ms", "measured ms", "off", "peak predicted GiB",
               "measured GiB", "off")  # fmt: skip
    note = f"The base: {_degrees(base)}, {base.layers} layers, {base.seq:,} tokens. Predicted by the laws of all runs."
    return PageTable("Small runs, predicted beside measured", columns, rows, note)


def _run_row(one: Written, base: RunSetting, own: OwnRun | None) -> tuple[str, ...]:
    change = base.differences(one.run.setting) or "-"
    outcome = "not started" if one.ended is None else f"failed: {one.ended}" if one.ended else f"{one.seconds:.0f} s"
    if own is None:
        return (one.run.name, change, one.run.why, outcome, *["-"] * 6)
    passes = f"{own.predicted_ms:,.2f}", f"{own.measured_ms:,.2f}", f"{own.predicted_ms / own.measured_ms - 1:+.1%}"
    off = f"{own.predicted_peak / max(1.0, own.measured_peak) - 1:+.1%}"
    peaks = f"{own.predicted_peak / GIB:.2f}", f"{own.measured_peak / GIB:.2f}", off
    return (one.run.name, change, one.run.why, outcome, *passes, *peaks)


def _coverage(done: Tuned) -> PageTable:
    rows = []
    if done.covered is not None:
        covered = done.covered.coverage
        rows = [
            ("operators predicted", f"{done.covered.operators}"),
            ("not settled by the laws", f"{done.covered.unsure}"),
            ("in the base, of those that compute", f"{covered.by_count:.0%}"),
            ("their part of the time", f"{covered.by_time:.0%}"),
        ]
    return PageTable("Coverage of the job at the script's degrees by the operator base", ("of its operators", ""), rows)


def _laws(operators: tuple[LawfulOperator, ...]) -> PageTable:
    own = [one for one in operators if not one.further and not one.repeats]
    counts = Counter(
        (one.like.type, str(one.condition or "no rule found"), str(one.count or "open"), _shapes(one.inputs),
         _shapes(one.outputs), STATES[law_state(one)])
        for one in own
    )  # fmt: skip
    rows = [(kind, str(number), *others) for (kind, *others), number in counts.items()][:MOST_LAWS]
    note = f"{len(own)} operators of {len(counts)} kinds, in their order" + (
        f"; the first {MOST_LAWS} kinds are listed." if len(counts) > MOST_LAWS else "."
    )
    columns = ("operator", "number", "runs", "times a pass", "inputs", "outputs", "laws")
    return PageTable("Laws of the computing operators", columns, rows, note)


def _shapes(fits: tuple[tuple[SizeFit, ...], ...]) -> str:
    return "; ".join("[" + ", ".join(str(fit.laws[0]) if fit.laws else "?" for fit in shape) + "]" for shape in fits)


def _next(done: Tuned) -> PageTable:
    """Runs and changes that would tell more, the most pressing first."""
    base = done.runs[0].run.setting
    rows = [(f"{one.run.name} again (--retry)", f"it failed: {one.ended}") for one in done.runs if one.ended]
    rows += [(one.run.name, one.run.why) for one in done.runs if one.ended is None]
    if done.law_summary is not None:
        rows += [
            (f"a run with {base.differences(one.setting)}", f"distinguishes the laws of {len(one.fits)} sizes")
            for one in done.law_summary.deciding
        ]
    if done.covered is not None and done.covered.further is not None:
        further = done.covered.further
        rows.append((f"a run with {base.differences(further.setting)}", f"shows {further.shown} operators of the job"))
    if done.searched is None:
        rows += [("the same command, changed", done.not_searched)] if done.not_searched else []
    else:
        rows += [
            (str(one.script), f"plan {place} itself")
            for place, one in enumerate(done.searched.best, 1)
            if one.script is not None and one.full_size is None
        ]
    rows += [("other cards", f"left out: {reason}") for reason in done.left_out]
    return PageTable("What to run next", ("run", "why"), rows)


def _degrees(run: RunSetting) -> str:
    names = [name for name in ("dp", "replicas", "tp", "pp", "vpp", "cp", "ep") if getattr(run, name) > 1]
    return " ".join((*(f"{name.upper()}{getattr(run, name)}" for name in names), f"micro-batch {run.mbs}"))


def _step(one: BestPlan) -> str:
    return f"{one.ranked.step_ms:,.1f} ms ({one.low_ms:,.0f}-{one.high_ms:,.0f})"


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"
