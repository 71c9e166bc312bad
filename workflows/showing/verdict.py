"""Verdict on a plan in a few lines: how fast, against what, does it fit, what it rests on."""

from __future__ import annotations

from taylor.cost_model.errors.known_error import KnownError
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.cost_model.job.length import UNSTATED, TrainingLength
from taylor.cost_model.profile import MemorySource
from taylor.cost_model.time.throughput import Throughput
from taylor.pipeline.plan import RECOMPUTE_MODES, PipelinePlan, mode_title
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.model.solution import (
    CUT_OFF,
    OPTIMAL,
    PROVEN_GAP,
    UNLENT_BOUND,
    UNLENT_OBJECTIVE,
    Solution,
    Termination,
)
from taylor.pipeline_solver.solving.uniform_recompute import UNRESTRICTED_OBJECTIVE
from taylor.pipeline_solver.timing.evaluate import host_memory_mib, lent_memory_mib, link_shares
from taylor.report.compress import compress, gap_text, hours_text, rate_text
from taylor.workflows.showing.alternative import choice_name
from taylor.workflows.showing.fit import UNKNOWN_ERROR, Fit, is_tight, odds_text
from taylor.workflows.showing.planned_file import PlannedFile, over_limit
from taylor.workflows.showing.verdict_data import EQUAL_SHARE
from taylor.workflows.statement.stage_devices import order_name

MEMORY_WORDS: dict[str, str] = {
    MemorySource.ESTIMATE: "memory estimated by the analytical model",
    MemorySource.DRY_RUN: "memory fitted to dry-runs",
    MemorySource.SAVED: "memory fitted to an earlier run's dry-runs",
    MemorySource.REPLAY: "memory estimated and moved onto the peaks of earlier dry-runs",
    MemorySource.FILE: "memory as the given profile states it",
}

EQUAL_STEPS = 2e-6
"""Relative difference below which two proven step times are equal: twice the gap of a proof."""

TIGHT = "tight"
"""Start of the line on a plan that fits as predicted, but not at the upper end of its interval."""


def verdict(planned: PlannedFile) -> list[str]:
    """Three lines: which plan and how much faster, does it fit and with what margin, what it rests on."""
    return [gain_line(planned), fit_line(planned), basis_line(planned)]


def summary(planned: PlannedFile) -> list[tuple[str, str]]:
    """Result of a solve or an evaluation, as name and text, in the field's units."""
    problem, solution = planned.problem, planned.solution
    pairs = [("step", f"{step_text(problem, solution.objective)}, {proof_text(problem, solution)}")]
    if (ends := planned.step_interval_ms) is not None:
        low, high = (_ms_text(end) for end in ends)
        rests = planned.narrowed_by or "as far as the estimate is known to be off"
        odds = odds_text(planned.config.margin.stated_risk)
        pairs.append(("interval", f"{low} to {high} {odds}, {rests}"))
    if (speed := planned.speed) is not None:
        pairs.append(("speed", speed_text(speed, planned.facts.length)))
    if (cards := planned.card_memory) is not None:
        fullest = max(range(len(cards)), key=lambda stage: cards[stage].card_mib)
        pairs.append(("card", f"stage {fullest}: {cards[fullest].sentence}"))
    if (bubble := solution.bubble) is not None:
        parts = f"ideal {bubble.ideal:.1%}, imbalance {bubble.imbalance:.1%}, recompute {bubble.recompute:.1%}"
        shares = f"{bubble.total:.1%} of the step: {parts}, communication {bubble.communication:.1%}"
        pairs.append(("bubble", shares.replace("%", " %")))
    if solution.plan is not None:
        uncounted = [kind.name for kind in problem.kinds if kind.pinned]
        pairs.append(("offset", _spaced(compress(solution.plan.offset(uncounted)))))
        pairs += [
            (mode_title(mode), _spaced(compress(grid)))
            for mode, grid in solution.plan.recompute.items()
            if mode in RECOMPUTE_MODES or solution.plan.uses(mode)
        ]
        if max(host_memory_mib(problem, solution.plan)) > 0:
            pairs.append(("host", _host_text(problem, solution.plan)))
        if problem.lenders:
            pairs.append(("lent", _lent_text(problem, solution.plan)))
    if (gain := lending_gain_text(problem, solution)) is not None:
        pairs.append(("lending", gain))
    pairs += planned.encoder_places.items()
    if planned.facts.learned is not None:
        pairs += [("learned", sentence) for sentence in planned.facts.learned.sentences]
    return pairs


def _host_text(problem: PipelineProblem, plan: PipelinePlan) -> str:
    """Largest amount on the host, and the time that its link is busy."""
    used, busy = host_memory_mib(problem, plan), link_shares(problem, plan, lent=False)
    fullest, busiest = used.index(max(used)), busy.index(max(busy))
    limit = f" of {problem.host_limit_mib[fullest]:,.0f}" if problem.host_limit_mib else ""
    text = f"at most {used[fullest]:,.0f}{limit} MiB a device, on stage {fullest}; "
    if not busy[busiest]:
        return text + "the time of its transfers is not counted"
    return f"{text}the link to it busy {100 * busy[busiest]:.1f} % of the step in each direction, on stage {busiest}"


def _lent_text(problem: PipelineProblem, plan: PipelinePlan) -> str:
    """Memory that each stage keeps on another one, and the time that the busiest link takes."""
    lent, busy = lent_memory_mib(problem, plan), link_shares(problem, plan, lent=True)
    used = [f"{s} {mib:,.0f} MiB on {problem.lenders[s]}" for s, mib in enumerate(lent) if mib > 0]
    if not used:
        return "nothing"
    return (
        f"a device of stage {', '.join(used)}; the busiest link {100 * max(busy):.1f} % of the step in each direction"
    )


def lending_gain_text(problem: PipelineProblem, solution: Solution) -> str | None:
    """Gain of lending against the best plan without it, with its bounds; None where that is not known."""
    known = solution.statistics
    if UNLENT_OBJECTIVE not in known or not solution.objective:
        return None
    alone, bound = known[UNLENT_OBJECTIVE], known.get(UNLENT_BOUND)
    text = f"{100 * (1 - solution.objective / alone):.2f} % shorter than the {step_text(problem, alone)} without it"
    least = "" if bound is None else f"at least {max(0.0, 100 * (1 - solution.objective / bound)):.2f} and "
    return (
        text if solution.bound is None else f"{text}; proven {least}at most {100 * (1 - solution.bound / alone):.2f} %"
    )


def units_line(planned: PlannedFile) -> str:
    """Step and its bound as the solver and the model file count them."""
    solution, unit = planned.solution, planned.problem.unit_ms
    bound = "" if solution.bound is None else f", proven bound {solution.bound:.6f}"
    each = "" if unit is None else f" of {unit:,.6f} ms each"
    return f"step {solution.objective or 0.0:.6f} forwards of one body layer{each}{bound}"


def step_text(problem: PipelineProblem, objective: float | None) -> str:
    """Step time in ms, or in plain words of its unit where no real time is known."""
    if objective is None:
        return "unknown"
    if problem.unit_ms is None:
        return f"{objective:,.2f} times the forward of one body layer"
    return _ms_text(objective * problem.unit_ms)


def _ms_text(step: float) -> str:
    return f"{step:,.0f} ms" if step >= 1000 else f"{step:,.4g} ms"


def proof_text(problem: PipelineProblem, solution: Solution) -> str:
    """Proof of a plan's quality."""
    if solution.termination is Termination.NOT_SOLVED:
        return "evaluated, not solved"
    took = f" in {solution.seconds:.1f} s"
    if solution.solved_on:
        took += f" by the run of {solution.solved_on}"
    why = f" ({solution.message})" if solution.message else ""
    if solution.gap is None or solution.bound is None:
        return f"no bound yet{took}{why}"
    if solution.gap <= PROVEN_GAP:
        within = "" if expressible_cost(solution) is None else " within what the file can express"
        return f"proven to be the fastest{within}{took}{why}"
    least = step_text(problem, solution.bound)
    return f"no plan takes less than {least} (gap {gap_text(solution.gap)}){took}{why}"


def expressible_cost(solution: Solution) -> float | None:
    """Relative cost of the file's one recompute choice for all chunks against the best plan that the file cannot
    express; None where there is none.
    """
    free = solution.statistics.get(UNRESTRICTED_OBJECTIVE)
    if not free or solution.objective is None:
        return None
    cost = solution.objective / free - 1.0
    return cost if cost > EQUAL_STEPS else None


def speed_text(speed: Throughput, length: TrainingLength = UNSTATED) -> str:
    """Samples and tokens a second, TFLOP/s and MFU, and the time of an epoch and of the training as far as stated."""
    mfu = "" if speed.mfu is None else f" (MFU {100 * speed.mfu:.1f} % of the {speed.mfu_precision} peak)"
    times = ""
    if speed.epoch_hours is not None and length.epoch_samples is not None:
        times += f"; {hours_text(speed.epoch_hours)} an epoch of {length.epoch_samples:,} samples"
    if speed.train_days is not None and length.tokens is not None:
        times += f"; {speed.train_days:,.1f} days for {tokens_text(length.tokens)} tokens"
    elif speed.run_hours is not None:
        count = f"{length.samples:,} samples" if length.steps is None else f"{length.steps:,} steps"
        times += f"; {hours_text(speed.run_hours)} for {count}"
    return (
        f"{speed.tokens_per_second:,.0f} tokens/s, {speed.tokens_per_second_per_device:,.1f} a device; "
        f"{rate_text(speed.samples_per_second)} samples/s; {speed.tflops_per_device:,.1f} TFLOP/s a device{mfu}{times}"
    )


def tokens_text(count: float) -> str:
    """Count of tokens as a person writes it: ``1.5 T``."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:,.4g} {letter}"
    return f"{count:,.0f}"


def alternative_lines(planned: PlannedFile) -> list[tuple[str, str]]:
    """Schedules and virtual stages that were tried, each with its outcome."""
    lines = []
    for one in planned.alternatives:
        if one.objective is not None:
            text = step_text(planned.problem, one.objective)
            text += "" if one.status == OPTIMAL else f", {one.status}"
        elif one.status == CUT_OFF:
            text = f"stopped: no plan takes less than {step_text(planned.problem, one.bound)}"
        else:
            text = f"{one.status}: {one.note}" if one.note else one.status
        lines.append(("tried", f"{one.name}: {text}"))
    return lines


def split_lines(planned: PlannedFile) -> list[tuple[str, str]]:
    """Plan of evenly spread layers on the same stages, where their devices differ."""
    even, solution = planned.even, planned.solution
    if even is None or not solution.objective:
        return []
    if even.objective is None:
        return [("even split", f"no plan: {even.message or even.status}")]
    slower = 100 * (even.objective / solution.objective - 1.0)
    text = f"{slower:.1f} % slower" if slower >= 0.05 else "as fast"
    return [("even split", f"{step_text(planned.problem, even.objective)}, {text}")]


def order_lines(planned: PlannedFile) -> list[tuple[str, str]]:
    """Gain of an order that was chosen for the plan, its proof, and the frameworks that can run it."""
    order, problem = planned.order, planned.problem
    if order is None:
        return []
    known, found = order.known_step, order.found
    gain = known / found.step - 1.0
    better = "as fast as" if gain < EQUAL_SHARE else f"{100 * gain:.1f} % faster than"
    proof = (
        "no order of this plan takes less"
        if found.proven
        else (f"no order of this plan takes less than {step_text(problem, found.bound)}")
    )
    return [
        *placement_lines(planned),
        ("order", f"{better} the best plan with {order.known} ({step_text(problem, known)}); {proof}"),
        ("order", "no launcher takes it as it stands; torch's pipelining does from --export torch-actions=FILE"),
    ]


def placement_lines(planned: PlannedFile) -> list[tuple[str, str]]:
    """Stages of the chunks where they were chosen, and the gain over the better of a loop and a V."""
    order, problem = planned.order, planned.problem
    if order is None or order.placement is None or not order.shape_step:
        return []
    gain = order.shape_step / order.found.step - 1.0
    better = "nothing is gained over" if gain < EQUAL_SHARE else f"{100 * gain:.2f} % faster than"
    stages = " ".join(map(str, order.placement.stage_of))
    shape = f"the best plan and order on a {order.shape} ({step_text(problem, order.shape_step)})"
    return [("placement", f"chunks in model order on stages {stages} ({order.placement.name}); {better} {shape}")]


def gain_line(planned: PlannedFile) -> str:
    """Step beside that of the baseline, under the same memory and times."""
    own, solution, problem = planned.own, planned.solution, planned.problem
    step = step_text(problem, solution.objective)
    if planned.variant:
        step = f"{planned.variant}: {step}"
    elif planned.facts.stages is not None:
        step = f"{order_name(planned.facts.stages.specs)}: {step}"
    elif planned.alternatives:
        step = f"{choice_name(problem.interleaves, problem.schedule)}: {step}"
    if not planned.compared:
        return f"{step} a step"
    if own is solution:
        return f"{step} a step by the plan in the file; nothing was solved"
    if own is None or own.objective is None or not solution.objective:
        reason = (
            "the file has no plan to compare with"
            if planned.config.plan is None
            else "the plan in the file cannot be compared: its schedule does not run so, or its memory is not known"
        )
        return f"{step} a step; {reason}"
    gain = own.objective / solution.objective - 1.0
    if abs(gain) < EQUAL_SHARE:
        against = f"{step} a step, as fast as the plan in the file"
    else:
        word = "faster" if gain > 0 else "slower"
        other = step_text(problem, own.objective)
        against = f"{step} a step, {100 * abs(gain):.1f} % {word} than the plan in the file ({other})"
    return f"{against}{over_text(own, '; that one is')}"


def fit_line(planned: PlannedFile) -> str:
    """Fit of the plan, with the free memory of the fullest stage, and the certainty."""
    solution, judged = planned.solution, planned.fit
    if not solution.peak_memory_mib:
        return "its memory is not known"
    if judged.fit is not Fit.FITS:
        return judged.sentence
    by_stage = zip(solution.peak_memory_mib, solution.memory_limit_mib, strict=True)
    margin, known = planned.config.margin, planned.config.memory_error(planned.memory.source)
    _, peak, limit, stage = min((limit - peak, peak, limit, stage) for stage, (peak, limit) in enumerate(by_stage))
    beside = ", apart from the margin" if margin.mib or margin.share else ""
    certain = judged.probability is not None
    line = f"{judged.answer}{':' if certain else ','} {free_text(margin, known, peak, limit, stage)}{beside}"
    if planned.dryrun is not None:
        return f"{line}; a dry-run of this very plan passed"
    return line + sure_text(known, margin, peak, limit)


def free_text(margin: MemoryMargin, known: KnownError | None, peak_mib: float, limit_mib: float, stage: int) -> str:
    """Free memory of the fullest stage, of all that its real peak may take."""
    whole = margin.within(limit_mib, known)
    share = 100 * (whole - peak_mib) / whole
    return f"{whole - peak_mib:,.0f} of {whole:,.0f} MiB ({share:.1f} %) free on stage {stage}, the fullest"


def sure_text(known: KnownError | None, margin: MemoryMargin, peak_mib: float, limit_mib: float) -> str:
    """Certainty that a stage fits: the upper end of its peak, beside the limit that the margin was taken off.

    Parameters
    ----------
    known : KnownError or None
        Of the peak; None where nothing is known.
    """
    whole, tight = margin.around(limit_mib, known), is_tight(known, margin, peak_mib, limit_mib)
    if known is None:
        return f"; {TIGHT}: --margin {100 * UNKNOWN_ERROR:.0f}% keeps more memory free" if tight else ""
    risk, most = margin.stated_risk, peak_mib * known.upper(margin.stated_risk)
    # The upper end is compared with the limit before the margin was taken off.
    of_whole = f" of {whole:,.0f}" if margin else ""
    upper = f"up to {most:,.0f}{of_whole} MiB with {100 * risk:g} % risk"
    if not tight:
        return f"; {upper}, as {known.sentence}"
    return f"; {TIGHT}: {upper}, as {known.sentence}; --risk {100 * risk:g}% keeps memory free for it"


def over_text(solution: Solution, lead: str) -> str:
    """Excess of a plan over its limit, after `lead`; empty where it fits."""
    over = over_limit(solution)
    if not over:
        return ""
    peaks, limits = solution.peak_memory_mib, solution.memory_limit_mib
    worst = max(over, key=lambda stage: peaks[stage] - limits[stage])
    others = f", and {len(over) - 1} further stage{'s' * (len(over) > 2)} over theirs" if len(over) > 1 else ""
    beyond = f"{peaks[worst] - limits[worst]:,.0f} MiB over its limit of {limits[worst]:,.0f} on stage {worst}"
    return f"{lead} {beyond}{others}"


def basis_line(planned: PlannedFile) -> str:
    """Sources of the figures, and the values that nobody stated."""
    memory = MEMORY_WORDS.get(planned.memory.source, f"memory: {planned.memory.source}")
    facts = planned.facts
    device = facts.device.spec.name
    named = f"{device}, assumed as no device was named" if facts.device.is_default else device
    times = "" if facts.ratios is None else f", {facts.ratios.short} for {named}"
    return f"{memory}{times}"


def _spaced(text: str) -> str:
    return text.replace(",", ", ")
