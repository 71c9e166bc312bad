"""Every figure that the laws of three hidden networks give, and those of tables that are drawn at random.

    python -m tests.blackbox.figures

writes them again. Other tests compare such figures with the networks' own; these show that none moved which a change
was not meant to move.
"""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.tune_campaign import CARDS, Network
from taylor.blackbox.blocks import LawfulOperator, lawful_operators
from taylor.blackbox.collective_lines import Collective
from taylor.blackbox.degree_search import Job, Ranked, again, choices, search, within_reach
from taylor.blackbox.foretold import foretell, showing_run
from taylor.blackbox.law_summary import law_summary, laws_as_data
from taylor.blackbox.memory_laws import MemoryLaws, MemorySharding
from taylor.blackbox.passes import PassPart
from taylor.blackbox.quick_steps import quick_step
from taylor.blackbox.small_runs import candidate_runs
from taylor.blackbox.stage_problem import even_stages, layer_names, stage_peaks, stage_problem
from taylor.parsers.small_run import RunSetting
from taylor.pipeline.plan import FULL, PipelinePlan
from taylor.workflows.tuning.tune_search import TunedLaws
from tests.blackbox import drawn_figures
from tests.blackbox.shown_networks import MODULES, laws_of, network_of
from tests.cost_model.figures import told

KEPT = Path(__file__).with_suffix(".json")
NETWORKS = ("ring", "experts", "sharded")


@dataclass(frozen=True)
class Shown:
    """A network with its laws, and large runs of it."""

    name: str
    network: Network
    laws: TunedLaws

    @property
    def runs(self) -> list[RunSetting]:
        """Large runs, the first without stages."""
        own = self.laws.sizes.own
        ep = 4 if own.experts > 1 else 1
        sharded = self.name == "sharded"
        own = own.replace(layers=32, vpp=1)
        return [
            own.replace(tp=2, cp=1, ep=ep, pp=1, dp=16, mbs=2, dense=2 * own.dense),
            own.replace(tp=4, cp=4, ep=2 * ep if ep > 1 else 1, pp=2, dp=8, replicas=2 if sharded else 1),
            own.replace(tp=1, cp=2, ep=1, pp=4, dp=8, seq=2 * own.seq),
        ]


def shown(name: str) -> Shown:
    """A network with its laws."""
    with tempfile.TemporaryDirectory() as folder:
        network = network_of(name, Path(folder))
        return Shown(name, network, laws_of(network, () if name == "sharded" else MODULES))


def operators(one: Shown) -> dict[str, Any]:
    """Laws of operators, and what they give in large runs."""
    found, sizes, cards = one.laws.steps.operators, one.laws.sizes, CARDS.ranks
    candidates = candidate_runs(one.laws.single[0].setting, sizes, cards)
    some = [each.operators() for each in one.laws.single if each.setting.mbs == 1]
    fewer = lawful_operators(some[: 4 if sizes.own.dense else None])
    large = [foretell(found, run) for run in one.runs]
    missing = [showing_run(found, each.operators, run, sizes, cards) for each, run in zip(large, one.runs, strict=True)]
    return {
        "laws": [_line(each) for each in found],
        "data": _digest(laws_as_data([each for each in found if each.is_counted])),
        "parts": [part and part.name for part in one.laws.steps.parts],
        "counted": [told(law_summary(each, candidates, 3)) for each in (found, fewer)],
        "fewer": _digest([_line(each) for each in fewer]),
        "large": [[len(each.operators), each.unsure, _size(each.operators)] for each in large],
        "showing": told(missing),
        "in parts": [
            [[len(each), _size(each)] for part in PassPart for each in [one.laws.steps.operators_in(part, run)]]
            for run in one.runs
        ],
    }


def _line(one: LawfulOperator) -> str:
    """An operator: its type, when and how often it runs, and the law of each dimension."""
    count = "?" if one.count is None else f"{one.count}{f' up to {one.count.open_above}' * bool(one.count.open_above)}"
    laws = (
        " | ".join(map(str, fit.laws[:2])) + f" of {len(fit.laws)}" * (len(fit.laws) > 2)
        + f" ({told(fit.spread)})" * bool(fit.spread)
        for fit in one.fits
    )  # fmt: skip
    return f"{one.like.type}: {one.condition}: {count}{' again' * one.repeats}: {', '.join(laws)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _size(operators: Any) -> int:
    return sum(math.prod(shape) for one in operators for shape in (*one.inputs, *one.outputs))


def times(one: Shown) -> dict[str, Any]:
    """Times of small and large runs, and all that they are made of."""
    steps = one.laws.steps
    collectives = [
        Collective(kind, *group, size)
        for kind in ("all-reduce", "transfer", "hcom_allGather_", "nccl:allgather", "any")
        for group in ((2, 1), (4, 8), (16, 1), (8, 2))
        for size in (1 << 18, 1 << 28)
    ]
    singles = [run.setting for run in one.laws.single]
    return {
        "lines": {" ".join(key): told(line) for key, line in steps.lines.lines.items()},
        "collectives": [told((line.at(each), line.error, line.points)) if (line := steps.lines.line(each)) else None
                        for each in collectives],
        "speed": {" ".join(key): told(line) for key, line in steps.speeds.lines.items()},
        "pace": told(steps.pace),
        "gradients": told(steps.gradients),
        "update": told(steps._update),
        "unsure": steps.unsure,
        "parts": [[told(steps.part(part, run)) for part in PassPart] for run in (*one.runs, *singles[:6])],
        "least": [told(steps.least_fraction(run, ("tp", "ep"))) for run in one.runs],
        "errors": [told(steps.relative_error(run)) for run in one.runs],
        "blocks": [told(steps.block_times(run)) for run in one.runs],
        "tails": [told(steps.tails_ms(run, even_stages(run))) for run in one.runs],
        "small": [told((steps.passes_ns(run.setting), steps.measured_passes_ns(run))) for run in one.laws.single],
        "modules": {kind: [told((each.name, sorted(each.operators), sorted(each.freed), sorted(each.added), each.last))
                           for each in modules] for kind, modules in steps.modules.items()},
    }  # fmt: skip


def memory(one: Shown) -> dict[str, Any]:
    """Bytes of small and large runs."""
    laws = _with_step(one.laws.memory)
    ways = (False, True, *(name for name in MODULES if any(name in each for each in laws.modules.values())))
    found: dict[str, Any] = {
        "ways": told((laws.states, laws.step)),
        "margin": told([laws.margin, *(replace(laws, risk=risk).margin for risk in (0.001, 0.2))]),
        "peaks": [told((laws.run_peak(run), run.peak, run.start, run.step)) for run in laws.runs],
        "unsure": {name: block.unsure() for name, block in laws.blocks.items()},
    }
    for at, run in enumerate(one.runs):
        names = ["embedding", *dict.fromkeys(layer_names(run)), "head"]
        blocks = [(name, again) for name in names for again in (ways if name in ("dense", "layer") else (False,))]
        whole = [("embedding", False), *((name, number % 2 == 0) for number, name in enumerate(layer_names(run)))]
        stages = [*even_stages(run), whole, [*whole, ("head", False)]]
        found[f"blocks {at}"] = {f"{name} {again}": told(laws.micro_batch(run, (name, again)))
                                 for name, again in blocks}  # fmt: skip
        found[f"stages {at}"] = [
            told(laws.stage(run, stage, in_flight, accumulates=accumulates))
            for stage in stages for in_flight, accumulates in ((1, False), (3, True))
        ]  # fmt: skip
        found[f"elements {at}"] = told(
            (laws.elements(run, [name for name, _ in stages[-1]]), laws.step_bytes(run, stages[-1]))
        )
    return found


def plans(one: Shown) -> dict[str, Any]:
    """Problems of dividing layers, quick divisions of them and the choices of a search."""
    laws, steps, found = _with_step(one.laws.memory), one.laws.steps, dict[str, Any]()
    uniform = one.network.launcher.uniform_recompute(32, (FULL,))
    for at, run in enumerate((*one.runs, *(each.replace(vpp=2) for each in one.runs[1:]))):
        free = max(peak.upper for peak in stage_peaks(laws, run, _even(run, 0), 16))
        least = max(peak.upper for peak in stage_peaks(laws, run, _even(run, 32), 16))
        half = max(peak.upper for peak in stage_peaks(laws, run, _even(run, 1), 16))
        problems = [
            stage_problem(laws, run, steps.block_times(run), 16, limit, rows, stages)
            for limit in ((free + least) / 2, 1.02 * free) for rows in ((), uniform) for stages in (None, (), (0,))
        ]  # fmt: skip
        kept = problems[0]
        quick = [quick_step(each) for each in problems]
        found[f"problem {at}"] = {
            "peaks": told((free, least, half)),
            "kinds": [told((kind.name, kind.count, kind.forward, kind.layer_mib, kind.activation_mib,
                            {name: each.backward for name, each in kind.choices.items()})) for kind in kept.kinds],
            "rows": [told((kept.unit_ms, kept.lag, kept.tail, kept.embedding_forward, kept.head_forward)),
                     told((kept.backward_ratio, kept.recompute_ratio))],
            "static": [told(each.static_mib) for each in problems],
            "most": sorted({each for problem in problems for each in problem.max_layers.values()}),
            "limit": told(problems[0].limit_mib),
            "uniform": [told(each.uniform_recompute) for each in problems[::3]],
            "quick": [told(each.ms) for each in quick],
            "layers": [each.plan and [each.plan.total_layers(), each.plan.recompute] for each in quick],
        }  # fmt: skip
    return found


def _with_step(laws: MemoryLaws) -> MemoryLaws:
    """The same with bytes that the optimizer's step takes on top: two ways, of which the largest counts."""
    ways = MemorySharding(3e7, 1.5, 12.0, "over shards", "over DP"), MemorySharding(1e7, 2.5, 4.0, "whole", "whole")
    return replace(laws, step=ways, _known={})


def _even(run: RunSetting, number: int) -> PipelinePlan:
    """Even chunks, the first layers of each run again; dense layers stand in the first one."""
    each = run.layers // run.pp // run.vpp
    dense = [[run.dense * (at == chunk == 0) for at in range(run.pp)] for chunk in range(run.vpp)]
    layers = {"layer": tuple(tuple(each - own for own in row) for row in dense)}
    layers = {"dense": tuple(map(tuple, dense)), **layers} if run.dense else layers
    return PipelinePlan(layers, {FULL: ((min(number, each),) * run.pp,) * run.vpp})


def searches(one: Shown) -> dict[str, Any]:
    """The best plans of small jobs, and the choices that a search of many degrees has."""
    steps, own = one.laws.steps, one.laws.sizes.own
    sharded = one.name == "sharded"
    own = own.replace(layers=8, pp=1 if sharded else 2, dp=4, tp=2, cp=1, vpp=1, dense=min(1, own.dense))
    sizes = replace(one.laws.sizes, own=own)
    job = Job(sizes, 16, 32, 40 * 2.0**30, {"tp", "pp"})
    wide = Job(sizes, 32, 64, job.limit, {"tp", "cp", "pp", "ep", "mbs", "vpp", "replicas"})
    jobs = [job] if one.name == "experts" else [job, replace(job, searched={"mbs", "vpp", "replicas"})]
    jobs += [replace(wide, searched={"tp", "cp", "pp", "mbs"})] if sharded else []
    found: dict[str, Any] = {"choices": [[len(each), _digest(told(each))] for each in (list(choices(wide)),)]}
    for number, each in enumerate(jobs):
        plans = search(each, steps, count=2)
        found[f"search {number}"] = {
            "counts": [plans.legal, plans.fitting, plans.solved],
            "best": [_ranked(best) for best in (*plans.best, *plans.near)],
            "again": [_ranked(best) for best in again(plans.best, each, steps)],
        }
    beat = 1.1 * plans.best[0].step_ms
    reached = within_reach(jobs[-1], steps, beat, lambda run: 0.9 if run.tp > 1 else 1.0, [plans.best[0].run])
    found["reached"] = [told((each.run, each.micro_batches, each.quick_ms, each.first_least)) for each in reached]
    return found


def _ranked(one: Ranked) -> list[Any]:
    plan = {mode: grid for mode, grid in one.plan.recompute.items() if one.plan.uses(mode)}
    return [*told((one.run, one.micro_batches, one.step_ms, one.error, one.peaks)), one.plan.total_layers(), plan]


PARTS = {"operators": operators, "times": times, "memory": memory, "plans": plans, "searches": searches}


def figures_of(name: str) -> dict[str, Any]:
    """All of a network."""
    one = shown(name)
    return {part: function(one) for part, function in PARTS.items()}


def in_lines(figures: dict[str, dict[str, Any]]) -> str:
    """The figures as JSON, a line for each part of a network, so that a change shows what has moved."""
    parts = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f"{json.dumps(part)}: {json.dumps(figures[name][part])}" for part in figures[name])
        for name in figures
    ]
    return "{\n" + "},\n".join(parts) + "}}\n"


if __name__ == "__main__":
    figures: dict[str, Any] = {name: figures_of(name) for name in NETWORKS}
    figures["drawn"] = {part: function() for part, function in drawn_figures.PARTS.items()}
    KEPT.write_text(in_lines(figures), encoding="utf-8")
