"""Legality: what the rules of the search let through against what the frameworks' own checks do."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.reliability.campaign import Figure, Part, Portion, Result, Sized, faults_of, pieces, split
from benchmarks.reliability.outside import NotHere
from taylor.cost_model.job.strategy import Strategy
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.nd_search.rule import LEGALITY, Rule
from taylor.nd_search.rules import judge, select_rules
from taylor.nd_search.space import build_space, divisors, split_by_rule
from taylor.parsers.read import read_config
from taylor.register.registry import Registry

STRATEGIES, A_JOB = 2_000, 25
"""Strategies a framework, and strategies drawn for one job."""

Verdict = Callable[[Strategy], str | None]
"""Reason why a framework refuses a strategy of a job, None where it starts it."""


@dataclass(frozen=True)
class Job:
    """A training file with its framework's verdict on strategies.

    Parameters
    ----------
    name : str
        File name, from which the product knows the launcher.
    text : str
    """

    name: str
    text: str
    world: int
    gbs: int
    experts: int | None
    refusal: Verdict
    registered: Mapping[str, str] = field(default_factory=dict)
    """Files that register its model."""


def portions(share: float = 1.0) -> list[Portion]:
    """Portions of every framework."""
    return [
        Portion(f"{framework}-{k}", compared, {"framework": framework, "count": count, "seed": k})
        for framework in ("megatron", "torchtitan", "mindformers")
        for k, count in enumerate(split(max(1, round(STRATEGIES * share)), pieces(4, share)))
    ]


def compared(framework: str, count: int, seed: int) -> Result:
    """Random jobs and strategies under both judges."""
    from benchmarks.reliability.legality_jobs import JOBS

    draw = random.Random(f"legality of {framework} {seed}")
    found: list[str] = []
    judged = legal = 0
    try:
        while judged < count:
            job = JOBS[framework](draw, seed)
            context = settled(job)
            wanted = min(A_JOB, count - judged)
            strategies = [*let_through(draw, context, wanted // 2), *(drawn(draw, job) for _ in range(wanted))]
            strategies = with_splits(list(dict.fromkeys(strategies))[:wanted], context)
            for strategy, ours in zip(strategies, broken_rules(context, strategies), strict=True):
                theirs = job.refusal(strategy)
                judged, legal = judged + 1, legal + (theirs is None)
                if (theirs is None) != (ours is None):
                    difference = (
                        f"starts, ours breaks {ours}" if theirs is None else f"refuses ({theirs}), ours lets it through"
                    )
                    found.append(f"{framework} {difference}: {strategy} of\n{job.text}")
    except NotHere as absent:
        return {"strategies": 0, "legal": 0, "absent": str(absent), "faults": []}
    return {"strategies": judged, "legal": legal, "faults": found}


def drawn(draw: random.Random, job: Job) -> Strategy:
    """A strategy of the job's ranks, as a search's space has them: the sizes multiply to the ranks."""
    tp = draw.choice([t for t in divisors(job.world).tolist() if t <= 12])
    pp = draw.choice([p for p in divisors(job.world // tp).tolist() if p <= 8])
    cp = draw.choice([1, 1, *divisors(job.world // tp // pp).tolist()])
    ep = 1 if job.experts is None and draw.random() < 0.9 else draw.choice(divisors(job.world).tolist())
    dp, mbs = job.world // (tp * pp * cp), draw.choice([1, 1, 2, 4])
    sp = tp > 1 and draw.random() < 0.8
    vpp = draw.choice([1, 1, 1, 2, 2, 3, 4])
    return Strategy(dp, tp, pp, ep, cp, 1, sp, vpp, mbs, job.gbs // (dp * mbs))


def settled(job: Job) -> SearchContext:
    """The job as the search sees it when every dimension is searched."""
    options = SearchOptions(world_size=job.world, gbs=job.gbs, max_expert_parallel=job.world)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / job.name
        for name, text in {job.name: job.text, **job.registered}.items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        config = read_config(path, Path(folder) if job.registered else None)
        return SearchContext.settle(config, Registry.load().device("h100-80g"), options)


def let_through(draw: random.Random, context: SearchContext, count: int) -> list[Strategy]:
    """Strategies that keep every legality rule of ours."""
    options = SearchOptions(search=("dp", "tp", "pp", "ep", "cp", "sp", "vpp", "mbs"))
    legal: list[Strategy] = []
    for table in build_space(context, options).blocks():
        kept = np.ones(len(table), dtype=bool)
        for rule in legality_rules(context):
            kept &= judge(rule, table, context)
        legal += table.select(kept)
    return draw.sample(legal, min(count, len(legal)))


def with_splits(strategies: Sequence[Strategy], context: SearchContext) -> list[Strategy]:
    """The strategies with the optimizer split that the job gives them; without those of chunks that hold no layer."""
    replicas = np.array([strategy.dp * strategy.cp for strategy in strategies])
    splits = split_by_rule(replicas, context).tolist()
    return [
        strategy.replace(op=split)
        for strategy, split in zip(strategies, splits, strict=True)
        if strategy.pp * strategy.vpp <= context.layers
    ]


def legality_rules(context: SearchContext) -> list[Rule]:
    """The rules that stand for refusals."""
    return [rule for rule in select_rules(context) if rule.kind == LEGALITY]


def broken_rules(context: SearchContext, strategies: Sequence[Strategy]) -> list[str | None]:
    """For each strategy the first legality rule that it breaks."""
    table = StrategyTable.from_strategies(strategies)
    broken: list[str | None] = [None] * len(strategies)
    for rule in legality_rules(context):
        for place, passes in enumerate(judge(rule, table, context).tolist()):
            broken[place] = broken[place] if passes or broken[place] else rule.name
    return broken


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    rows = []
    for framework, how in (
        ("megatron", "its parser, validate_args, configuration, process groups, layers, loop over micro-batches"),
        ("torchtitan", "its ParallelDims and pipeline functions, torch's device mesh and schedules"),
        ("mindformers", "its check_rules and configuration; what MindSpore's compiler splits evenly stated again"),
    ):  # fmt: skip
        parts = [result for name, result in results.items() if name.startswith(framework)]
        wrong = len(faults_of(parts))
        judged, legal = (sum(part[key] for part in parts) for key in ("strategies", "legal"))
        absent = next((part["absent"] for part in parts if part.get("absent")), None)
        rows.append(
            Figure(
                f"legality from outside: {framework}",
                f"{STRATEGIES:,} strategies: no legal one pruned, no illegal one let through",
                absent or f"{judged:,} strategies, {legal:,} of them started by the framework; {wrong} differences",
                not wrong and absent is None,
                how,
            )
        )
    return rows


PART = Part("legality", portions, figures, sources=(
    "nd_search", "parsers", "register", "pipeline", "cost_model/job/strategy.py", "benchmarks/reliability/legality.py",
    "benchmarks/reliability/legality_jobs.py", "benchmarks/reliability/megatron_verdict.py",
    "benchmarks/reliability/torchtitan_verdict.py", "benchmarks/reliability/mindformers_verdict.py",
    "benchmarks/reliability/outside.py",
),
    nightly=0.02,
    table=Sized(0.15, minutes=3),
)  # fmt: skip
