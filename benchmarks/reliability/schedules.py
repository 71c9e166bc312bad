"""Schedules: order of tasks and activations alive against what the frameworks' own code builds."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from benchmarks.reliability import published_orders as published
from benchmarks.reliability.campaign import Figure, Part, Portion, Result, Sized, faults_of, total
from benchmarks.reliability.outside import NotHere
from benchmarks.reliability.published_v_orders import v_orders
from taylor.cost_model.memory.alive import alive_micro_batches
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline.words import word_of
from taylor.pipeline_solver.timing.event_graph import EventGraph

SHAPES = 200
TIMES = ((1, 1, 1), (10, 12, 9), (10, 11, 10))
"""Forward, input gradient and weight gradient."""

Shape = tuple[int, int, int]
"""Stages, virtual stages, micro-batches."""

RUN = {
    "torch: GPipe": "ScheduleGPipe",
    "torch: interleaved 1F1B": "ScheduleInterleaved1F1B",
    "torch: interleaved zero bubble": "ScheduleInterleavedZeroBubble",
    "torch: ZBV": "ScheduleZBVZeroBubble",
    "torch: DualPipeV": "ScheduleDualPipeV",
    "megatron-core: 1F1B": "",
    "megatron-core: interleaving in groups": "",
    "DeepSeek: DualPipeV": "",
    "sail-sg: ZB-H1": "",
    "sail-sg: ZB-H2": "",
    "newest Megatron-LM: 1F1B": "",
    "newest Megatron-LM: interleaving in groups": "",
    "newest Megatron-LM: combined 1F1B": "",
    "sail-sg: ZB-V": "",
    "sail-sg: V-Half": "",
    "sail-sg: V-Min": "",
}
STATED = (
    "MindSpore: interleaving", "MindSpore: low-memory interleaving", "MindSpore: seqpipe", "MindSpore: seqvpp",
    "MindSpore: seqsmartvpp", "MindSpore: ZBV",
)  # fmt: skip
"""Of MindSpore's C++, which does not run here: restated from its source."""


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a generator."""
    count = max(1, round(SHAPES * share))
    return [
        Portion(name.replace(": ", "-").replace(" ", "-").lower(), compared, {"name": name, "count": count})
        for name in (*RUN, *STATED)
    ]


def compared(name: str, count: int) -> Result:
    """One generator on `count` shapes, drawn by its name."""
    draw = random.Random(f"shapes of {name}")
    found: list[str] = []
    shapes = 0
    try:
        while shapes < count:
            shapes += 1
            found += [f"{name}, {text}" for text in faults_of_shape(name, draw)]
    except NotHere as absent:
        return {"shapes": 0, "absent": str(absent), "faults": []}
    return {"shapes": shapes, "faults": found}


def faults_of_shape(name: str, draw: random.Random) -> list[str]:
    """Differences on one more shape of a generator."""
    S = draw.randint(2, 12)
    m = draw.randint(1, 5 * S)
    V = draw.randint(2, 4)
    whole = max(1, m // S) * max(1, round(m / max(1, m // S)))  # a multiple of the number of rounds
    if name.startswith("sail-sg: ") and "V" in name:
        return v_faults(name.removeprefix("sail-sg: "), min(S, 8), min(m, 24))
    if name.startswith("sail-sg"):
        put_off = 1 if name.endswith("H1") else 2
        S, m = min(S, 8), m + (put_off - 1) * (2 * S - 1)
        return time_faults("zb-h1" if put_off == 1 else "zb-h2", S, m, put_off * S - put_off + 1)
    if name.startswith("torch: "):
        if name in ("torch: interleaved 1F1B", "torch: interleaved zero bubble"):
            while whole % max(1, whole // S):
                whole -= 1
            m = whole
        V = {"torch: GPipe": 1, "torch: ZBV": 2, "torch: DualPipeV": 2}.get(name, V)
        m = m + 2 * S if name == "torch: DualPipeV" else m
        spec = {
            "torch: GPipe": ScheduleSpec("gpipe"), "torch: interleaved 1F1B": ScheduleSpec("torch-interleaved"),
            "torch: interleaved zero bubble": ScheduleSpec("interleaved-zb"), "torch: ZBV": ScheduleSpec("zbv"),
            "torch: DualPipeV": ScheduleSpec("dualpipev"),
        }[name]  # fmt: skip
        return order_faults(spec, (S, V, m), published.torch_order(RUN[name], S, V, m))
    if "egatron" in name:
        theirs = partial(published.megatron_core_order, newest=name.startswith("newest"))
        if name.endswith(": 1F1B"):
            return order_faults(ScheduleSpec(), (S, 1, m), partial(theirs, S, 1, m, S))
        group = draw.randint(S, 2 * S)
        m = group * draw.randint(1, 4) + draw.choice([0, *range(S, group)])
        ahead = name.endswith("combined 1F1B") or (not name.startswith("newest") and draw.random() < 0.3)
        spec = ScheduleSpec("megatron-interleaved", group_size=group, one_ahead=ahead)
        return order_faults(spec, (S, V, m), partial(theirs, S, V, m, group, overlapped=ahead))
    if name == "DeepSeek: DualPipeV":
        return order_faults(
            ScheduleSpec("dualpipev"), (S, 2, m + 2 * S), partial(published.dual_pipe_v_order, S, m + 2 * S)
        )
    if name == "MindSpore: ZBV":
        m += 2 * S - 2
        return order_faults(ScheduleSpec("zero_bubble_v"), (S, 2, m), partial(published.mindspore_zero_bubble_v, S, m))
    if name.startswith("MindSpore: seq"):
        own = name.removeprefix("MindSpore: ")
        V, splits = draw.randint(1 + (own != "seqpipe"), 4), draw.randint(1, 4)
        if own != "seqpipe":  # Rounds of S // splits micro-batches, the first one at least whole.
            S = splits * draw.randint(1, 4) * (1 + (own == "seqsmartvpp"))
            S, m = (S, m) if S > 1 else (2 * splits, m)
            m += S // splits
        of_stage = partial(published.mindspore_seqpipe, S, V, m, splits, name=own)
        return order_faults(ScheduleSpec(own, seq_splits=splits), (S, V, m), of_stage, splits)
    low = name == "MindSpore: low-memory interleaving"
    m += S  # It refuses fewer micro-batches than stages.
    of_stage = partial(published.mindspore_interleaving, S, V, m, low)
    return order_faults(ScheduleSpec("interleaved", low_memory=low), (S, V, m), of_stage)


def order_faults(spec: ScheduleSpec, shape: Shape, of_stage: published.OfStage, splits: int = 1) -> list[str]:
    """Stages whose order differs, or whose most activations alive do."""
    S, V, m = shape
    order = build_schedule(spec, S, V, m).order
    alive = alive_micro_batches(spec, S, V, m)
    found = []
    for s in range(S):
        theirs = of_stage(s)
        if [tuple(task) for task in order[s].tolist()] != theirs:
            found.append(f"S {S} V {V} m {m}: another order on stage {s}")
        most = published.most_alive(theirs, spec.traits.split_backward) / splits
        if abs(max(map(sum, alive[s])) - most) > 1e-9:
            found.append(f"S {S} V {V} m {m}: {max(map(sum, alive[s]))} alive on stage {s}, not {most}")
    return found


def v_faults(name: str, S: int, m: int) -> list[str]:
    """Differences of sail-sg's orders on a V, played as they are: their own end times, and the most alive."""
    found = []
    for times in TIMES:
        for orders, theirs in v_orders(name, S, m, times):
            spec = ScheduleSpec("searched-v", words=tuple(map(word_of, orders)))
            durations = np.repeat([*np.repeat([*map(float, times)], 2), 0.0], S)
            ours = EventGraph.from_schedule(build_schedule(spec, S, 2, m), 0.0).longest_path(durations)
            if ours != theirs:
                found.append(f"S {S} m {m}, times {times}: {ours}, not {theirs}")
            found += order_faults(spec, (S, 2, m), orders.__getitem__)
    return found


def time_faults(name: str, S: int, m: int, most: int) -> list[str]:
    """Times at which the order of sail-sg's generator ends sooner or later than ours; and what ours keeps alive."""
    spec = ScheduleSpec(name)
    graph = EventGraph.from_schedule(build_schedule(spec, S, 1, m), 0.0)
    found = []
    for times in TIMES:
        theirs = published.zero_bubble_time(S, m, times, most)
        ours = graph.longest_path(np.repeat([*map(float, times), 0.0], S))
        if ours != theirs:
            found.append(f"S {S} m {m}, times {times}: {ours}, not {theirs}")
    kept = max(max(map(sum, rows)) for rows in alive_micro_batches(spec, S, 1, m))
    return found + [f"S {S} m {m}: {kept} alive, more than {most}"] * (kept > most)


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    rows = []
    for title, prefixes, how in (
        ("run", ("torch", "megatron-core", "newest", "deepseek", "sail-sg"),
         "torch's classes; forward_backward functions of megatron-core 0.16.1 and Megatron-LM d98e8a64 and DeepSeek's "
         "DualPipeV.step with steps that write themselves down; of sail-sg's generators the time under three ratios "
         "of task lengths, of those on a V their orders too"),
        ("stated again", ("mindspore",), "from pipeline_scheduler.cc, seqpipe_scheduler.cc and zero_bubble_v.cc"),
    ):  # fmt: skip
        by = {name: result for name, result in results.items() if name.startswith(prefixes)}
        wrong, absent = faults_of(list(by.values())), [name for name, result in by.items() if result.get("absent")]
        summary = f"{len(by)} generators, {total(list(by.values()), 'shapes'):,} shapes, {len(wrong)} differences"
        rows.append(
            Figure(
                f"schedules from outside: {title}",
                f"{SHAPES} shapes a generator: the same order on every stage, the same most alive",
                summary + (f"; not here: {', '.join(absent)}" if absent else ""),
                not wrong and not absent,
                how,
            )
        )
    return rows


PART = Part(
    "schedules",
    portions,
    figures,
    sources=("benchmarks/reliability/schedules.py",),
    nightly=0.05,
    table=Sized(0.25, minutes=2),
)
