"""Differential reading: what a changed file and a written plan say, by the product and by what others wrote."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.differential_reading.__main__ import Compared, compare
from benchmarks.differential_reading.megatron import read_script
from benchmarks.differential_reading.mindformers import read_yaml
from benchmarks.differential_reading.mutants import mutated
from benchmarks.differential_reading.positions import grid_text, missing
from benchmarks.differential_reading.reading import FIELDS, NothingToRead, Reading
from benchmarks.differential_reading.sandbox import available
from benchmarks.differential_reading.torchtitan import read_toml
from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Result, Sized, faults_of, pieces, split
from taylor.base.errors import TaylorError
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, PipelinePlan, deal_kinds, grid_in_order, kind_of, zero_grid
from taylor.register.model import MTP

MUTANTS, A_LAUNCHER = 1_000, 4
"""Changed files that both sides read, and written plans, of each launcher; portions of each."""
TRIES = 30
"""Most mutants drawn for one that is read: others request what does not start, or state no training."""
LAUNCHERS = {"megatron": (".sh",), "mindformers": (".yaml", ".yml"), "torchtitan": (".toml",)}
PLACES = ("config", "../shared/data")
_READERS = {".sh": read_script, ".yaml": read_yaml, ".yml": read_yaml, ".toml": read_toml}


def portions(share: float = 1.0) -> list[Portion]:
    """Portions of every launcher."""
    counts = split(max(1, round(MUTANTS * share)), pieces(A_LAUNCHER, share))
    return [
        Portion(f"{kind}-{launcher}-{k}", function, {"launcher": launcher, "count": count, "seed": k})
        for kind, function in (("mutants", read_twice), ("plans", written_plans))
        for launcher in LAUNCHERS
        for k, count in enumerate(counts)
    ]


def samples(launcher: str, root: Path = ROOT) -> list[Path]:
    """Files of a launcher that both sides read, those of the repository and of the shared data beside it."""
    found = [path for place in PLACES for path in sorted((root / place).rglob("*")) if path.is_file()]
    return [path for path in found if path.suffix in LAUNCHERS[launcher] and _is_read(path)]


def _is_read(path: Path) -> bool:
    compared = compare(path)
    return not compared.apart and not compared.refusal


def _absent() -> str | None:
    return "this machine lets no one close a script in" if not available() else missing()


def _changed(sources: Sequence[Path], folder: Path, draw: random.Random) -> Path:
    """One of the files, changed at random, in a folder."""
    source = draw.choice(sources)
    place = folder / source.name
    place.write_text(mutated(source.read_text(encoding="utf-8"), source.suffix, draw), encoding="utf-8")
    return place


def read_twice(launcher: str, count: int, seed: int) -> Result:
    """Changed files, each read by both sides."""
    draw, found = random.Random(f"reading of {launcher} {seed}"), []
    counts: dict[str, int] = {"read": 0, "apart": 0, "refused": 0, "fields": 0, "placed": 0}
    absent = _absent()
    if absent is not None:
        return {**counts, "asked": count, "absent": absent, "reasons": {}, "faults": []}
    sources = samples(launcher)
    reasons: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="reading-") as folder:
        for _ in range(TRIES * count):
            if counts["read"] == count:
                break
            place = _changed(sources, Path(folder), draw)
            compared = compare(place)
            _count(compared, counts, reasons)
            found += [
                f"{place.name}: {name}: {mine} here, {other} by the independent reader, in\n{place.read_text()}"
                for name, mine, other in compared.differences
            ]
    return {**counts, "asked": count, "reasons": reasons, "faults": found}


def _count(compared: Compared, counts: dict[str, int], reasons: dict[str, int]) -> None:
    if compared.apart:
        counts["apart"] += 1
    elif compared.refusal:
        counts["refused"] += 1
        reason = compared.refusal.replace(str(compared.path), "FILE")[:160]
        reasons[reason] = reasons.get(reason, 0) + 1
    else:
        counts["read"] += 1
        counts["fields"] += compared.settled
        counts["placed"] += compared.settled > len(FIELDS) - 2


def written_plans(launcher: str, count: int, seed: int) -> Result:
    """Random plans written into changed files, and what the launcher builds from them."""
    draw, found = random.Random(f"plans of {launcher} {seed}"), []
    counts: dict[str, int] = {"read": 0, "apart": 0, "refused": 0, "fields": 0, "placed": 0}
    absent = _absent()
    if absent is not None:
        return {**counts, "asked": count, "absent": absent, "reasons": {}, "faults": []}
    sources = samples(launcher)
    reasons: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="plans-") as folder:
        for _ in range(TRIES * count):
            if counts["read"] == count:
                break
            place = _changed(sources, Path(folder), draw)
            out = place.with_name(f"out-{place.name}")
            compared = compare(place)
            if compared.apart or compared.refusal or compared.differences:
                continue
            config = read_config(place)
            if config.plan is None or config.strategy.pp == 1:
                continue
            plan = launcher_of(config).nearest_plan(random_plan(config, draw))[0]
            try:
                write_plan(config, plan, output=out)
            except TaylorError as error:
                counts["refused"] += 1
                reason = str(error).replace(str(out), "FILE").replace(str(place), "FILE")[:160]
                reasons[reason] = reasons.get(reason, 0) + 1
                continue
            wrong, fields = plan_differences(place, out, config, plan)
            if fields == 0:
                counts["apart"] += 1
                continue
            counts["read"] += 1
            counts["placed"] += 1
            counts["fields"] += fields
            found += [f"{place.name}: {each}, in\n{out.read_text()}" for each in wrong]
    return {**counts, "asked": count, "reasons": reasons, "faults": found}


def random_plan(config: TrainingConfig, draw: random.Random) -> PipelinePlan:
    """Another plan of a file's model on its stages: layers moved between chunks, some of them recomputed."""
    assert config.plan is not None
    stages, chunks, folded = config.strategy.pp, config.strategy.vpp, config.schedule.v_shape
    order = chunk_order(stages, chunks, folded)
    body = config.plan.total_layers([kind for kind in config.plan.layers if kind_of(kind) != MTP])
    sizes = [body[v][s] for v, s in order]
    for _ in range(draw.choice([0, 1, 2, 4])):
        a, b = draw.randrange(len(sizes)), draw.randrange(len(sizes))
        if a != b and sizes[a] > 1:
            sizes[a], sizes[b] = sizes[a] - 1, sizes[b] + 1
    counts = config.model.layer_counts()
    pinned = {kind: len(sizes) - 1 for kind in counts if kind_of(kind) == MTP}
    layers = deal_kinds(counts, sizes, stages, folded, pinned)
    form = draw.randrange(4)
    most = draw.choice([0, 1, 2, 5])
    full = [(0, size, min(most, size), draw.randint(0, size))[form] for size in sizes]
    return PipelinePlan(layers, {FULL: grid_in_order(full, stages, folded)})


def plan_differences(before: Path, after: Path, config: TrainingConfig, plan: PipelinePlan) -> tuple[list[str], int]:
    """Fields that the launcher does not build as planned, and the number of fields compared; none where unknown."""
    try:
        [was, built] = [_one(_READERS[path.suffix](path.read_text(encoding="utf-8"))) for path in (before, after)]
    except NothingToRead as reason:
        return [f"the written file says no training: {reason}"], 1
    if "layers_at" not in built:
        return [], 0
    runs = [run for run in plan.layers if kind_of(run) != MTP]
    experts = [run for run in runs if config.model.layer(run).moe is not None]
    wanted = {
        "layers_at": grid_text(plan.total_layers(runs)),
        "experts_at": grid_text(plan.total_layers(experts) if experts else zero_grid(plan.stages, plan.interleaves)),
        "full_at": grid_text(plan.recomputed(FULL)),
        **{name: was[name] for name in FIELDS if name in was and name != "recompute"},
    }
    wrong = [
        f"{name}: planned {value}, built {built.get(name)}"
        for name, value in wanted.items()
        if (name in built or name in was) and built.get(name) != value
    ]
    return wrong, len(wanted)


def _one(readings: Sequence[Reading]) -> Reading:
    """Of several trainings that a script starts, the one with most fields."""
    return max(readings, key=len)


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table: one for changed files, one for written plans."""
    rows = []
    for kind, name, how in (
        ("mutants", "differential reading: changed files", "sizes, degrees, flags, branches, spelling and layout of "
         "public files changed; up to 20 fields and the place of every layer"),
        ("plans", "differential reading: written plans", "random plans written into such files; every layer's stage, "
         "chunk, kind and recompute, and every other field as it was"),
    ):  # fmt: skip
        parts = {
            launcher: [r for n, r in results.items() if n.startswith(f"{kind}-{launcher}")] for launcher in LAUNCHERS
        }
        every = [part for of in parts.values() for part in of]
        absent = next((part["absent"] for part in every if part.get("absent")), None)
        wrong = len(faults_of(every))
        read = {launcher: sum(part["read"] for part in of) for launcher, of in parts.items()}
        asked = sum(part["asked"] for part in every)
        fields, refused = (sum(part[key] for part in every) for key in ("fields", "refused"))
        counted = ", ".join(f"{launcher} {number:,}" for launcher, number in read.items())
        rows.append(
            Figure(
                name,
                f"{MUTANTS:,} a launcher: no difference",
                absent or f"{counted}; {fields:,} values; {refused:,} more refused; {wrong} differences",
                not wrong and absent is None and sum(read.values()) >= asked,
                how + "; by the frameworks' own code for places of layers, MindSpeed-LLM's stated again",
            )
        )
    return rows


PART = Part("reading", portions, figures, sources=(
    "parsers", "register", "pipeline", "cost_model/job/strategy.py", "config", "benchmarks/differential_reading",
    "benchmarks/reliability/reading.py", "benchmarks/reliability/outside.py",
),
    nightly=0.01,
    table=Sized(0.15, minutes=3),
)  # fmt: skip
