"""Small runs that show the laws of a network: one change at a time from a base, so that none is ambiguous.

MindSpeed's own tuning starts eight fixed ones (MindSpeed 028de58c mindspeed/auto_settings/config/
profiling_configs.json, generate_profiling_configs.py), which leave micro-batch, sequence, number of experts and
layers to be assumed. Here each has a run of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from taylor.base.errors import InputError
from taylor.blackbox.laws import FACTORS
from taylor.parsers.small_run import JobSizes, Machines, PlannedJob, RunSetting

LEAST_CARDS = 4
"""Below, no two degrees can vary."""
MOST_RUNS = 16
"""Small runs before the best plans are verified. A failed one does not count, the one in its place does."""
LEAST_TOKENS_CP = 8192
"""Tokens of a sample where CP is searched (MindSpeed 028de58c mindspeed/auto_settings/utils/utils.py:46-49)."""
MOST_TOKENS = 32768
LEAST_TOKENS_RANK = 2048
"""Tokens of a sample on a rank of CP: with fewer, kernels show other speeds than in the job."""
MOST_EXPERTS = 16
"""Experts of a small run, where the router takes so few."""
MOST_CANDIDATES = 48
"""Number of further runs to search for deciding ones."""
SEARCHABLE = ("tp", "cp", "ep", "pp", "vpp", "mbs", "replicas")
"""Chunks of a stage (`vpp`) need no run of their own: a chunk holds layers as a stage does. Nor do copies of sharded
weights (`replicas`)."""
MODULES = "modules"
"""Recompute by module, searched where it is asked for: a run without recompute, and one for each module, come on top of
`MOST_RUNS`."""

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class SmallRun:
    """One small run, or a short one of the whole job.

    Parameters
    ----------
    name : str
        Of its folder.
    why : str
        Its purpose.
    steps : int
        Steps that are profiled.
    switched : tuple of str
        As of `Launcher.small_run`.
    whole : PlannedJob or None
        None: of the network cut down. Else nothing is profiled.
    again : tuple of str or None
        Modules that run again in every layer; None: the layers run again whole.
    """

    name: str
    setting: RunSetting
    why: str
    steps: int = 2
    switched: tuple[str, ...] = ()
    whole: PlannedJob | None = None
    again: tuple[str, ...] | None = None


@dataclass(frozen=True)
class SmallRuns:
    """The runs in the order in which they are started, and why further ones are not among them."""

    runs: tuple[SmallRun, ...]
    left_out: tuple[str, ...] = ()


def legal(setting: RunSetting, sizes: JobSizes) -> str | None:
    """Reason why a run cannot start; None where it can."""
    tests = (
        (sizes.tp_ways % setting.tp == 0, f"TP {setting.tp} does not divide the heads' {sizes.tp_ways}"),
        (
            not sizes.cp_ways or setting.cp == 1 or sizes.cp_ways % (setting.tp * setting.cp) == 0,
            f"TP {setting.tp} and CP {setting.cp} do not divide the heads' {sizes.cp_ways}",
        ),
        (setting.seq % (2 * setting.cp * setting.tp) == 0, f"{setting.seq} tokens do not split over TP and CP"),
        (setting.experts % setting.ep == 0, f"EP {setting.ep} does not divide {setting.experts} experts"),
        (setting.dp % setting.replicas == 0, f"{setting.replicas} copies do not divide DP {setting.dp}"),
        (setting.shards % setting.ep == 0, f"EP {setting.ep} does not divide DP·CP"),
        (not sizes.weights or setting.shards > 1, "no ranks share the weights, so that they stay in fp32"),
        (setting.layers % setting.pp == 0, f"{setting.layers} layers do not split over {setting.pp} stages"),
        (setting.experts >= sizes.top_k, f"a token goes to {sizes.top_k} experts"),
        (setting.experts % sizes.expert_groups == 0, f"experts stand in groups of {sizes.expert_groups}"),
        (
            setting.cp == 1 or setting.seq // setting.cp >= LEAST_TOKENS_RANK,
            f"less than {LEAST_TOKENS_RANK} tokens a rank",
        ),
    )
    return next((reason for good, reason in tests if not good), None)


def fitted(setting: RunSetting, cards: int) -> RunSetting | None:
    """The setting with the DP that takes all cards; None where there is none."""
    per_replica = setting.tp * setting.cp * setting.pp
    return setting.replace(dp=cards // per_replica) if cards % per_replica == 0 else None


def plan_small_runs(
    sizes: JobSizes,
    machines: Machines,
    searched: Collection[str] = SEARCHABLE,
    tokens: int | None = None,
    modules: Sequence[str] = (),
) -> SmallRuns:
    """The base run, and one for each thing that a search may change.

    Parameters
    ----------
    searched : collection of str
        Degrees that the search varies.
    tokens : int, optional
        Tokens of a sample in small runs; by default the job's, at least `LEAST_TOKENS_CP` where CP is searched and
        at most `MOST_TOKENS` where it is not.
    modules : sequence of str
        Those of a layer whose recompute is searched.

    Raises
    ------
    InputError
        When there are too few cards, or no base run can start on them.
    """
    cards = machines.ranks
    if cards < LEAST_CARDS:
        cure = f"name at least {LEAST_CARDS} cards; runs on two nodes give more information"
        raise InputError("are too few", field="--nnodes times --nproc-per-node", value=cards, cure=cure)
    base = _base(sizes, cards, tokens or _tokens(sizes, searched), searched)
    runs, left_out = [SmallRun("base", base, "operators and memory of one layer")], list[str]()
    for name, change, why in _changes(base, sizes, machines.per_node, searched):
        wanted, reason = _legal(base.replace(**change), sizes, cards)
        # Heads may split over either of both alone, where they do not over their product.
        beside = {"tp": "cp", "cp": "tp"}.get(next(iter(change)), "")
        if wanted is None and beside:
            name = f"{name}_{beside}1"
            wanted, _ = _legal(base.replace(**{**change, beside: 1}), sizes, cards)
        if wanted is None:
            left_out.append(f"{name}: {reason}")
        elif all(wanted != run.setting for run in runs):
            runs.append(SmallRun(name, wanted, why))
    assert len(runs) <= MOST_RUNS
    return SmallRuns((*runs, *module_runs(base, modules)), tuple(left_out))


def _legal(setting: RunSetting, sizes: JobSizes, cards: int) -> tuple[RunSetting | None, str]:
    """A run on all cards that can start; None with the reason where none can."""
    wanted = fitted(setting, cards)
    reason = f"{cards} cards do not split into these degrees" if wanted is None else legal(wanted, sizes)
    return (wanted, "") if reason is None else (None, reason)


def module_runs(base: RunSetting, modules: Sequence[str]) -> list[SmallRun]:
    """The base run with no layer recomputed, and with one module of every layer; none without modules."""
    sets = [(), *((one,) for one in modules)] if modules else []
    return [
        SmallRun(
            "_".join(("again", *again)) if again else "again_none",
            base,
            f"what {again[0]} keeps, and runs again" if again else "what a layer keeps",
            again=again,
        )
        for again in sets
    ]


def _tokens(sizes: JobSizes, searched: Collection[str]) -> int:
    return max(sizes.own.seq, LEAST_TOKENS_CP) if "cp" in searched else min(sizes.own.seq, MOST_TOKENS)


def _base(sizes: JobSizes, cards: int, tokens: int, searched: Collection[str]) -> RunSetting:
    """The run that all others change one thing of.

    Its degrees are 2 where they can be: each may then rise and fall, and what only runs under a degree is in every
    run but the one without it.
    """
    counts = [sizes.own.experts] if sizes.own.experts <= MOST_EXPERTS else _few_experts(sizes)
    choices = itertools.product(
        (2, 1) if "cp" in searched else (1,),
        (2, 1) if "tp" in searched else (1,),
        (2, 1) if sizes.own.experts > 1 and "ep" in searched else (1,),
        counts,
    )
    reasons = list[str]()
    for cp, tp, ep, experts in choices:
        small = RunSetting(tp=tp, cp=cp, ep=ep, seq=tokens, experts=experts, layers=sizes.least_layers)
        base = fitted(small.replace(dense=sizes.least_dense), cards)
        reason = f"{cards} cards do not split over TP {tp} and CP {cp}" if base is None else legal(base, sizes)
        if base is not None and reason is None:
            return base
        reasons.append(str(reason))
    raise InputError("allow no small run", field="the cards", value=cards, cure="; ".join(dict.fromkeys(reasons)))


def _few_experts(sizes: JobSizes) -> list[int]:
    """Numbers of experts that a small run may have, the one to be tried first in front."""
    divisors = [count for count in range(2, sizes.own.experts + 1) if sizes.own.experts % count == 0]
    few = [count for count in divisors if count <= MOST_EXPERTS and count % 2 == 0]
    return [*few[::-1], *(count for count in divisors if count > MOST_EXPERTS)]


def _changes(
    base: RunSetting, sizes: JobSizes, per_node: int, searched: Collection[str]
) -> list[tuple[str, dict[str, int], str]]:
    """(name, what is changed, why) of each further run."""
    more, half = base.layers + 1, base.seq // 2
    seq = half if half >= LEAST_TOKENS_RANK else 2 * base.seq
    experts = 2 * base.experts if 2 * base.experts <= sizes.own.experts else base.experts // 2
    changes: list[tuple[str, dict[str, int], str]] = []
    if "tp" in searched:
        changes += [
            (f"tp{2 * base.tp}", {"tp": 2 * base.tp}, "what TP splits"),
            ("tp1", {"tp": 1}, "what TP adds"),
        ]
    if "cp" in searched:
        changes += [
            (f"cp{2 * base.cp}", {"cp": 2 * base.cp}, "what CP splits"),
            ("cp1", {"cp": 1}, "what CP adds"),
        ]
    if sizes.own.experts > 1:
        if "ep" in searched:
            changes += [
                (f"ep{2 * base.ep}", {"ep": 2 * base.ep}, "what EP splits"),
                ("ep1", {"ep": 1}, "what EP adds"),
            ]
            few = _one_a_rank(base, sizes)
            if few:
                changes.append((f"alone{few}", {"experts": few, "ep": few}, "what a single expert a rank leaves out"))
        changes.append((f"experts{experts}", {"experts": experts}, "what each expert adds"))
    changes.append((f"seq{seq}", {"seq": seq}, "what grows with the sequence"))
    if "mbs" in searched:
        changes.append(("mbs2", {"mbs": 2}, "what grows with the micro-batch"))
    if "tp" in searched and per_node > 2 * base.tp:
        # TP fills a node: what else communicates goes between nodes.
        changes.append((f"tp{per_node}", {"tp": per_node}, "links between nodes"))
    changes.append((f"layers{more}", {"layers": more}, "what is a layer's, what the model's"))
    if base.dense:
        twice = {"layers": more, "dense": base.dense + 1}
        changes.append((f"dense{base.dense + 1}", twice, "what is a dense layer's, what the embedding's"))
    changes.append(("pp2", {"pp": 2, "layers": 2 * base.layers}, "embedding apart from head, and the hand-over"))
    return changes


def _one_a_rank(base: RunSetting, sizes: JobSizes) -> int | None:
    """Experts, and EP, of a run with one of them a rank."""
    most = base.dp * base.cp
    counts = [count for count in range(2, most + 1) if most % count == 0 and count >= sizes.top_k]
    return next((count for count in counts if count != base.ep and count % sizes.expert_groups == 0), None)


def substitute(failed: SmallRun, known: Collection[SmallRun], sizes: JobSizes, cards: int) -> SmallRun | None:
    """A run that shows what a failed one would have: its change, and something else changed that other runs show.

    A configuration that hangs or runs out of memory does so again; None where no other one starts on these cards.

    Parameters
    ----------
    known : collection of SmallRun
        Runs that are planned or were started.
    """
    setting = failed.setting
    seen = {run.setting for run in known}
    if failed.again is not None:
        return None  # The other runs show the other modules.
    further = [{"seq": setting.seq // 2}, {"mbs": 2 * setting.mbs}, {"seq": 2 * setting.seq}]
    if failed.name.startswith("cp"):
        # With other tokens too, a turn of a loop over half of them could be one over all.
        further = [{"tp": 2 * setting.tp}, {"tp": max(1, setting.tp // 2)}, *further]
    for change in further:
        wanted = fitted(setting.replace(**change), cards) if min(change.values()) else None
        if wanted is not None and wanted not in seen and legal(wanted, sizes) is None:
            words = "_".join(f"{name}{value}" for name, value in change.items())
            return SmallRun(f"{failed.name}_{words}", wanted, f"instead of {failed.name}, which failed")
    return None


def start_runs(
    planned: Sequence[SmallRun],
    start: Callable[[SmallRun], Outcome],
    failed: Callable[[Outcome], object],
    sizes: JobSizes,
    cards: int,
) -> list[Outcome]:
    """Start all runs; where most end well, then another one in place of each that failed.

    Returns
    -------
    list of Outcome
        One a run that was planned, then one a further run.
    """
    found = [start(run) for run in planned]
    failures = [run for run, outcome in zip(planned, found, strict=True) if failed(outcome)]
    if 2 * len(failures) > len(found):
        return found
    known = list(planned)
    for run in failures:
        other = substitute(run, known, sizes, cards)
        if other is not None:
            known.append(other)
            found.append(start(other))
    return found


def candidate_runs(base: RunSetting, sizes: JobSizes, cards: int) -> list[RunSetting]:
    """Further runs that could distinguish laws: one size doubled or halved, then two, of each the cheapest first."""
    moves = [(name, by) for name in FACTORS for by in (2.0, 0.5, 4.0)]
    pairs = itertools.combinations(moves, 2)
    found: list[RunSetting] = []
    for chosen in (*((move,) for move in moves), *pairs):
        change: dict[str, int] = {}
        for name, by in chosen:
            change[name] = int(change.get(name, getattr(base, name)) * by)
        setting = fitted(base.replace(**change), cards) if min(change.values()) > 0 else None
        if setting is not None and setting != base and legal(setting, sizes) is None:
            found.append(setting)

    def cost(setting: RunSetting) -> tuple[bool, int]:
        changed = sum(getattr(setting, name) != getattr(base, name) for name in FACTORS)
        return changed > 1, setting.seq * setting.mbs * setting.experts // setting.cp

    return sorted(dict.fromkeys(found), key=cost)[:MOST_CANDIDATES]
