"""What laws, lines, plans of small runs and quick divisions come out as for tables that are drawn at random.

`tests.blackbox.figures` writes them; other tests say whether such figures are right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from benchmarks.standin_network import CARDS, JOB, LARGE, hidden_size
from taylor.blackbox.collective_lines import Collective, CollectiveLines
from taylor.blackbox.host_pace import HostPace, host_pace
from taylor.blackbox.laws import FACTORS, Fitter, SizeFit, deciding_runs
from taylor.blackbox.module_subsets import CandidateModule, unbeaten_subsets
from taylor.blackbox.operator_base import OperatorTime
from taylor.blackbox.operator_speed import OperatorSpeeds
from taylor.blackbox.quick_steps import quick_step
from taylor.blackbox.recorded import RecordedRun
from taylor.blackbox.rejection import clean, spread_of
from taylor.blackbox.small_runs import (
    SEARCHABLE,
    SmallRun,
    candidate_runs,
    fitted,
    legal,
    plan_small_runs,
    start_runs,
    substitute,
)
from taylor.blackbox.stage_problem import schedule_of
from taylor.parsers.profiles.operators import Operator, OperatorSample
from taylor.parsers.small_run import JobSizes, Machines, RunLog, RunSetting, ShardedWeights
from taylor.pipeline_solver.model.problem import LayerChoice, LayerKind, PipelineProblem
from tests.cost_model.figures import told

RUNS = [run.setting for run in plan_small_runs(JOB, CARDS).runs]
DEGREES = ("tp", "cp", "ep", "mbs", "seq", "experts", "layers", "pp", "dp", "replicas", "dense")


def _setting(run: RunSetting | None) -> Any:
    return run and [getattr(run, name) for name in DEGREES]


def _jobs() -> list[tuple[JobSizes, Machines, tuple[str, ...], int | None]]:
    plain = JobSizes(RunSetting(tp=8, seq=8192, layers=32, pp=8, dp=4), tp_ways=32)
    many = JobSizes(RunSetting(tp=8, ep=16, seq=4096, experts=160, layers=60, pp=4, dp=16, dense=2), 16, top_k=6)
    few = replace(plain, own=plain.own.replace(experts=6, seq=65536, layers=4), top_k=2)
    return [
        (plain, Machines(2, 8), SEARCHABLE, None),
        (plain, Machines(1, 4), ("tp", "mbs"), None),
        (plain, Machines(4, 16), ("pp", "vpp"), 2048),
        (replace(plain, cp_ways=4, tp_ways=4), Machines(2, 8), SEARCHABLE, None),
        (replace(plain, tp_ways=2), Machines(3, 4), SEARCHABLE, 4096),
        (many, Machines(2, 8), SEARCHABLE, None),
        (many, Machines(2, 8), ("ep",), 40960),
        (replace(many, expert_groups=8, top_k=8), Machines(4, 8), SEARCHABLE, None),
        (few, Machines(2, 8), ("tp", "ep", "pp"), None),
        (few, Machines(1, 8), SEARCHABLE, None),
        (replace(few, weights=ShardedWeights(2, 4)), Machines(2, 8), SEARCHABLE, None),
        (replace(plain, own=plain.own.replace(experts=34, seq=24576)), Machines(2, 8), ("tp", "ep"), None),
    ]


def small_runs() -> list[Any]:
    """Small runs of jobs of many kinds, those in place of failed ones, and further ones."""
    found, draw = list[Any](), random.Random(1)
    for sizes, machines, searched, tokens in _jobs():
        cards = machines.ranks
        planned = plan_small_runs(sizes, machines, searched, tokens, ("mlp",))
        base = planned.runs[0].setting
        others = [substitute(run, planned.runs, sizes, cards) for run in planned.runs]
        candidates = candidate_runs(base, sizes, cards)
        drawn = [
            RunSetting(draw.choice((1, 2, 3, 8)), draw.choice((1, 2, 4)), draw.choice((1, 2, 4)), 1,
                       draw.choice((4096, 2048, 2044)), draw.choice((2, 4, 8, 16)), draw.choice((1, 2, 4)),
                       draw.choice((1, 2)), draw.choice((1, 2, 4)), replicas=draw.choice((1, 1, 2)))
            for _ in range(12)
        ]  # fmt: skip
        found.append({
            "runs": [[run.name, run.why, run.steps, run.again, _setting(run.setting)] for run in planned.runs],
            "left out": planned.left_out,
            "in place": [each and [each.name, each.why, _setting(each.setting)] for each in others],
            "further": [len(candidates), *map(_setting, candidates[:24])],
            "legal": [legal(run, sizes) for run in drawn],
            "fitted": [_setting(fitted(run, cards)) for run in drawn[:6]],
        })  # fmt: skip
    return found


def starts() -> list[Any]:
    """The runs that are started where some of those planned fail."""
    planned, found = plan_small_runs(JOB, CARDS).runs, list[Any]()
    for failing in ((), ("tp4",), ("tp4", "cp4", "base"), tuple(run.name for run in planned[:7]),
                    tuple(run.name for run in planned[:8])):  # fmt: skip
        started = list[SmallRun]()

        def start(run: SmallRun, started: list[SmallRun] = started) -> SmallRun:
            started.append(run)
            return run

        def failed(run: SmallRun, failing: tuple[str, ...] = failing) -> bool:
            return run.name in failing

        start_runs(planned, start, failed, JOB, CARDS.ranks)
        found.append([len(planned), [run.name for run in started]])
    return found


def _fit(fit: SizeFit) -> Any:
    return [len(fit.laws), *map(str, fit.laws[:3]), fit.settled, told(fit.spread), *map(fit.at, LARGE[:20:6])]


def laws() -> dict[str, Any]:
    """Laws of sizes that are exact, rounded up, padded by shard, scattered, or there in some runs alone."""
    draw, found, open_fits = random.Random(2), dict[str, Any](), list[SizeFit]()
    wider = [*RUNS, *(RUNS[0].replace(tp=tp, seq=1 << 15) for tp in (8, 16))]
    for at in range(24):
        size = hidden_size(draw)
        runs = draw.sample(wider, draw.choice((4, 9, len(wider))))
        fit = Fitter(runs).fit([size.of(run) for run in runs])
        open_fits += [fit] * (1 < len(fit.laws) < 60)
        found[f"exact {at}"] = _fit(fit)
    for unit in (2, 16, 128, 1024, 2048):
        whole = draw.randint(unit // 2 + 1, 60 * unit)
        found[f"unit {unit}"] = _fit(
            Fitter(wider).fit([-(-whole * run.mbs // (run.tp * unit)) * unit for run in wider])
        )
    for rows, each in ((1001, 3), (33, 7), (9, 5), (15, 64), (1001, 1)):
        sizes = [-(-rows // run.tp) * each * run.mbs * run.seq // run.cp for run in wider]
        found[f"rows {rows} {each}"] = _fit(Fitter(wider).fit(sizes))
        by_tp = [run for run in wider if run.tp < 4]
        found[f"two shards {rows} {each}"] = _fit(Fitter(by_tp).fit(sizes[: len(by_tp)]))
    for spread in (0.01, 0.1, 0.15, 0.24, 0.26, 0.5):
        sizes = [round(1000 * run.seq / run.tp * (1 + spread * (at % 3) / 2)) for at, run in enumerate(wider)]
        found[f"spread {spread}"] = _fit(Fitter(wider).fit(sizes))
    found["one run"] = _fit(Fitter([RUNS[0]] * 3).fit([3, 4, 5]))
    found["none"] = _fit(Fitter(RUNS[:3]).fit([0, 0, 0]))
    found["some"] = _fit(Fitter(RUNS[:3]).fit([0, 7, 0]))
    dense = [run.replace(experts=1, ep=1) for run in RUNS]
    found["dense"] = _fit(Fitter(dense).fit([run.seq**2 // run.cp for run in dense]))
    decided = deciding_runs(open_fits, candidate_runs(RUNS[0], JOB, CARDS.ranks))
    found["decided"] = [[_setting(one.setting), list(one.fits)] for one in decided]
    found["factors"] = list(FACTORS)
    return found


def _product(kind: str, m: int, k: int, n: int, dtype: str) -> Operator:
    shapes: dict[str, tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
        "MatMul": (((m, k), (k, n)), (m, n)),
        "Batched": (((4, m, k), (4, k, n)), (4, m, n)),
        "Scores": (((m, k), (n, k), (n, k)), (m, k)),
    }
    inputs, output = shapes.get(kind, (((m, k),) * 2, (m, k)))
    return Operator(kind, "AI_CORE" if kind in shapes else "AI_VECTOR_CORE", (dtype,) * len(inputs), inputs, (output,))


def speeds() -> dict[str, Any]:
    """Lines of operators under a roofline, and estimates of measured and of other operators."""
    draw, times, others = random.Random(3), dict[Operator, OperatorTime](), list[Operator]()
    kinds = {"MatMul": 12, "Batched": 5, "Scores": 7, "Add": 6, "Mul": 3, "Cast": 4, "Few": 2, "Form": 3}
    for kind, count in kinds.items():
        for at in range(count + 3):
            m, k, n = (64 * draw.choice((1, 2, 4, 9, 16, 40)) for _ in range(3))
            one = _product(kind, m, k, n, draw.choice(("DT_BF16", "FLOAT", "INT64", "BOOL", "UNKNOWN")))
            if kind == "Form" and at % 2:
                one = Operator("Form", "AI_CORE", ("DT_BF16",), ((m, k, 2),), ((m, k, 2),))
            moved = 2.0 * sum(m * k for m, k in ((m, k), (k, n), (m, n)))
            done = m * k * n / (4.0 if kind == "Scores" else 1.0) if kind in ("MatMul", "Batched", "Scores") else 0.0
            took = 3000 + max(moved / 900, done / 90_000) * draw.gauss(1, 0.05)
            if at < count:
                times[one] = OperatorTime(took, draw.choice((0.0, 0.02, 0.2)), draw.choice((1, 2, 3, 9)), "", "")
            else:
                others.append(one)
    others += [replace(one, dtypes=("FLOAT16",)) for one in others[::4]]
    others += [Operator("New", core, ("INT8", "DOUBLE"), ((64, 3, 32), (32, 64)), ((64, 3, 64),))
               for core in ("AI_CORE", "AI_VECTOR_CORE", "AI_CPU")]  # fmt: skip
    others += [Operator("MatMul", "AI_CORE"), Operator("Few", "AI_VECTOR_CORE", (), ((7,),), ())]
    known = OperatorSpeeds(times)
    no_moving = OperatorSpeeds({one: time for one, time in times.items() if one.type in ("MatMul", "Batched", "Few")})
    return {
        "lines": {" ".join(key): told(line) for key, line in known.lines.items()},
        "measured": [told(known.estimate(one)) for one in times],
        "others": [told(known.estimate(one)) for one in others],
        "without": [told(no_moving.estimate(one)) for one in others],
        "coverage": [told(known.coverage(each)) for each in ([*times, *others], others[-1:], [])],
    }


def lines() -> dict[str, Any]:
    """Lines of collectives over the links of nodes, and times of large ones."""
    found = dict[str, Any]()
    for seed in range(3):
        draw, samples = random.Random(seed), list[tuple[Collective, float]]()
        groups = [(2, 1), (4, 1), (8, 1), (2, 8), (4, 8), (16, 1), (4, 4), (1, 1)]
        for kind in ("gather", "all-reduce", "transfer", "all-to-all"):
            for group in draw.sample(groups, 5 if seed else 8):
                for size in (1 << 18, 1 << 22, 1 << 26):
                    one = Collective(kind, *group, size)
                    took = 9000 + 1500 * one.work[1] + one.work[2] / {"in-node": 120, "mixed": 22}.get(one.link(8), 18)
                    samples += [(one, took * draw.gauss(1, 0.04)) for _ in range(3)] if draw.random() < 0.8 else []
        known = CollectiveLines([*samples, (Collective("gather", 2, 1, 5), 0.0)], 8)
        asked = [Collective(kind, group, stride, 1 << 30) for kind in ("gather", "transfer", "all-reduce", "new")
                 for group, stride in ((8, 1), (32, 1), (16, 8), (4, 2), (2, 4), (2, 8))]  # fmt: skip
        found[f"{seed} lines"] = {" ".join(key): told(line) for key, line in known.lines.items()}
        found[f"{seed} large"] = [told((line.at(one), line)) if (line := known.line(one)) else None for one in asked]
    return found


def quick() -> list[Any]:
    """Quick divisions of layers of one or two kinds, with limits that some divisions meet."""
    draw, found = random.Random(4), list[Any]()
    for _ in range(60):
        stages, chunks = draw.choice((1, 2, 3, 4)), draw.choice((1, 1, 2, 3))
        layers = stages * chunks + draw.randint(0, 9)
        front = draw.choice((0, 0, 1, 2)) if layers > 4 else 0
        by_module = draw.random() < 0.3
        modes = {"none": 40.0, "full": draw.choice((4.0, 12.0, 50.0)), **({"mlp": 20.0} if by_module else {})}
        own = {"mlp": LayerChoice(backward=0.3)} if by_module else {}
        kinds = tuple(
            LayerKind(name, count, scale, 100 * scale, {mode: scale * mib for mode, mib in modes.items()}, choices=own)
            for name, count, scale in (("dense", front, 0.6), ("layer", layers - front, 1.0)) if count
        )  # fmt: skip
        limit = (100 * layers / stages + 40 * layers) * draw.uniform(0.4, 1.2)
        problem = PipelineProblem(
            stages, chunks, 2 * stages, kinds, tuple(draw.uniform(0, 30) for _ in range(stages)), (limit,) * stages,
            embedding_forward=0.3, head_forward=draw.uniform(0, 2), backward_ratio=2.0, lag=0.1,
            tail=tuple(draw.uniform(0, 1) for _ in range(stages)), schedule=schedule_of(chunks), unit_ms=3.0,
            uniform_recompute=tuple(("full", count) for count in range(4)) if draw.random() < 0.3 else (),
            max_layers={(0, stages - 1): draw.randint(1, 6)} if draw.random() < 0.3 else {},
        )  # fmt: skip
        whole = quick_step(problem)
        each = [quick_step(problem, beat_ms=share * whole.ms).ms for share in (0.7, 0.97, 1.0, 1.2)]
        plan = whole.plan and [whole.plan.total_layers(), whole.plan.layers, whole.plan.recompute]
        found.append([told(whole.ms) if plan else str(whole.ms), plan, told([min(one, 1e9) for one in each])])
    return found


def paces() -> list[Any]:
    """Paces of hosts, of runs whose short operators wait for them, and the times of passes under them."""
    draw, found = random.Random(5), list[Any]()
    for launch in (0, 4_000, 20_000):
        runs = list[RecordedRun]()
        for _ in range(2):
            samples, now = list[OperatorSample](), 0
            for at in range(60):
                kind, took = draw.choice((("Long", 60_000), ("Short", 900), ("Tiny", 300)))
                if at % 17 == 16:
                    kind = "hcom_allReduce_"
                samples.append(OperatorSample(Operator(kind, "AI_CORE"), now, took + draw.randint(0, 99), 0))
                now = max(now + took + draw.randint(300, 500), now + launch + draw.randint(0, 300))
            runs.append(RecordedRun(RunSetting(), tuple(samples), {}, (), RunLog({}, None, None)))
        pace = host_pace(runs)
        passes = [("Long", 50_000.0), *[("Short", 800.0)] * 9, ("Other", 70.0)]
        found.append([told(pace), told(pace.passes_ns(passes)), told(HostPace(9.0).passes_ns(passes))])
    return [*found, told(host_pace([]))]


def cleaned() -> list[Any]:
    """Samples of profiles that rules leave out, and spreads."""
    draw, found = random.Random(6), list[Any]()
    for steps, first in ((1, 1.0), (2, 2.0), (3, 1.19), (3, 1.21), (4, 2.0)):
        samples = list[OperatorSample]()
        for step in range(steps):
            for at in range(9):
                took = round(draw.gauss(1000, 30) * (first if step == 0 else 1.0) * draw.choice((1, 1, 1, 1.4, 1.6, 0)))
                samples.append(OperatorSample(Operator(f"Op{at % 4}"), len(samples), took, step))
        done = clean(samples)
        found.append([done.rejected, done.count, [[one.type, list(each)] for one, each in done.durations.items()]])
    return [*found, told([spread_of(each) for each in ((1, 2, 3, 9), (5,), (0, 0), (2, 4))])]


def subsets() -> list[Any]:
    """Unbeaten subsets of modules of drawn trees."""
    draw = random.Random(7)

    def module(depth: int, number: int) -> CandidateModule:
        figures = [tuple(draw.randint(0, 9) for _ in range(2)) for _ in range(3)]
        children = tuple(module(depth - 1, at) for at in range(draw.randint(0, 2))) if depth else ()
        return CandidateModule(f"m{number}", *figures, children)

    return [[told(one) for one in unbeaten_subsets(module(3, 0))] for _ in range(6)]


PARTS: dict[str, Callable[[], Any]] = {
    "small runs": small_runs, "starts": starts, "laws": laws, "speeds": speeds, "lines": lines, "quick": quick,
    "paces": paces, "cleaned": cleaned, "subsets": subsets,
}  # fmt: skip
