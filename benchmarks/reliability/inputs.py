"""Hostile input: every kind of file damaged in every way, read by the commands that read it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.reliability.campaign import (
    TOOLS,
    Figure,
    Part,
    Portion,
    Result,
    Sized,
    chosen,
    faults_of,
    pieces,
    split,
    total,
)
from benchmarks.reliability.mutations import MUTATIONS, Trap
from benchmarks.reliability.sandbox import Outcome, preload, run_forked, tree_of
from benchmarks.reliability.specimens import Specimen, forms, make_specimens

MUTANTS = 1_000
SECONDS, MEMORY_MIB = 10.0, 1024
CODES = (0, 2, 3, 4, 5)


def portions(share: float = 1.0) -> list[Portion]:
    """The portions at a fraction of the full size."""
    counts = split(max(1, round(MUTANTS * share)), pieces(10, share))
    return [Portion(f"mutants-{k:02d}", mutants, {"count": n, "seed": k}) for k, n in enumerate(counts)]


def mutants(count: int, seed: int) -> Result:
    """Damaged files, each read in a child of its own."""
    preload()
    found: list[str] = []
    by_code: dict[str, int] = {}
    by_form: dict[str, int] = {}
    slowest, largest = 0.0, 0.0
    kinds = list(MUTATIONS)
    with tempfile.TemporaryDirectory(prefix="specimens-") as folder:
        specimens = make_specimens(Path(folder))
        by_kind = {form: [one for one in specimens if one.form == form] for form in forms(specimens)}
        sound = sound_faults(specimens) if seed == 0 else []
        found += sound
        for number in range(count):
            rng = np.random.default_rng([5, seed, number])  # its own, so that one mutant can be made again alone
            group = by_kind[list(by_kind)[number % len(by_kind)]]
            specimen = group[int(rng.integers(len(group)))]
            kind = kinds[int(rng.integers(len(kinds)))]
            outcome, wrong = try_mutant(specimen, kind, rng)
            by_code[str(outcome.code)] = by_code.get(str(outcome.code), 0) + 1
            by_form[specimen.form] = by_form.get(specimen.form, 0) + 1
            slowest, largest = max(slowest, outcome.cpu_seconds), max(largest, outcome.peak_mib)
            found += [f"seed {seed}, mutant {number}, {specimen.name}, {kind}: {text}" for text in wrong]
    return {
        "mutants": count, "codes": by_code, "forms": by_form, "slowest_s": round(slowest, 2),
        "largest_mib": round(largest), "faults": found,
    }  # fmt: skip


def sound_faults(specimens: Sequence[Specimen]) -> list[str]:
    """Specimens that their command does not read when nothing is damaged: they would prove nothing."""
    found = []
    for specimen in specimens:
        with tempfile.TemporaryDirectory(prefix="sound-") as own:
            place = Path(own) / "work"
            shutil.copytree(specimen.folder, place)
            outcome = run_forked(
                specimen.command.tool, specimen.command.words, place, may_start=specimen.command.may_start
            )
            if outcome.code:
                found.append(f"{specimen.name} undamaged: exit code {outcome.code}: {outcome.errors[-400:]}")
    return found


def try_mutant(specimen: Specimen, kind: str, rng: np.random.Generator) -> tuple[Outcome, list[str]]:
    """Damage a copy of a specimen, run its command, and say what is wrong with how it ended."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as own:
        top = Path(own)
        place, trap = top / "a" / "b" / "work", Trap(top / "canary", top / "outside")
        shutil.copytree(specimen.folder, place)
        trap.outside.mkdir()
        target = place / specimen.target
        target.write_bytes(MUTATIONS[kind](target.read_bytes(), rng, specimen.form, trap))
        before = tree_of(top)
        outcome = run_forked(
            specimen.command.tool, specimen.command.words, place, seconds=SECONDS, memory_mib=MEMORY_MIB,
            may_start=specimen.command.may_start,
        )  # fmt: skip
        return outcome, outcome_faults(outcome, before, tree_of(top), specimen)


def outcome_faults(
    outcome: Outcome, before: Mapping[str, bytes | None], after: Mapping[str, bytes | None], specimen: Specimen
) -> list[str]:
    """Faults of a command's end on bad input; the trees are those above its working folder."""
    found = []
    if outcome.timed_out:
        found.append(f"not done after {SECONDS:g} CPU s")
    elif outcome.code not in CODES:
        found.append(f"exit code {outcome.code}: {outcome.errors[-800:]}")
    if outcome.peak_mib > MEMORY_MIB:
        found.append(f"{outcome.peak_mib:.0f} MiB")
    if "Traceback" in outcome.errors or "Traceback" in outcome.output:
        found.append(f"a traceback: {outcome.errors[-800:]}")
    if outcome.code in (2, 3, 4, 5):
        message = [line for line in outcome.errors.splitlines() if line.startswith("ERROR") or ": error: " in line]
        if not message:
            found.append(f"exit code {outcome.code} without a message: {outcome.errors[-300:]}")
        changed = sorted(name for name in {*before, *after} if before.get(name, b"") != after.get(name, b""))
        if changed and not specimen.command.may_start:
            found.append(f"exit code {outcome.code}, yet files were left or changed: {', '.join(changed[:6])}")
    if "canary" in after:
        found.append("code from the input was executed")
    strayed = [name for name in after if name not in before and not name.startswith("a/b/work/") and name != "canary"]
    if strayed:
        found.append(f"written outside the working folder: {', '.join(strayed)}")
    found += [f"watched: {event}" for event in outcome.strayed]
    return found


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "mutants")
    wrong = len(faults_of(part))
    codes: dict[str, int] = {}
    for result in part:
        for code, count in result["codes"].items():
            codes[code] = codes.get(code, 0) + count
    counted = ", ".join(f"{count} with code {code}" for code, count in sorted(codes.items()))
    return [
        Figure(
            "input: mutants",
            "1,000 damaged files: exit code and message of the contract, 10 CPU s, 1 GB, no traceback, no output after "
            "a failure, no code run, nothing written elsewhere",
            f"{total(part, 'mutants'):,} mutants ({counted}); slowest {max(r['slowest_s'] for r in part):.1f} CPU s, "
            f"largest {max(r['largest_mib'] for r in part)} MiB; {wrong} faults",
            not wrong,
            f"{len(MUTATIONS)} kinds of damage to YAML, shell, TOML, CSV, JSON, logs, traces and kept results; each "
            "command in a forked child whose writes and starts are audited",
        )
    ]


PART = Part(
    "inputs",
    portions,
    figures,
    sources=(*TOOLS, "benchmarks/reliability/inputs.py"),
    nightly=0.05,
    table=Sized(0.4, minutes=4),
)
