"""Hostile flags: every flag of every tool with every kind of odd value."""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.reliability.campaign import (
    SCRIPTS,
    TOOLS,
    Figure,
    Part,
    Portion,
    Result,
    Sized,
    chosen,
    faults_of,
    total,
)
from benchmarks.reliability.inputs import CODES, MEMORY_MIB, SECONDS
from benchmarks.reliability.sandbox import Outcome, preload, run_forked
from benchmarks.reliability.specimens import Specimen, make_specimens

ODD = (
    "-1", "0", "0.5", "nan", "inf", "-inf", "1e308", "1e999", "999999999", "9" * 20, "9" * 5000, "abc", "", " ", "\n",
    "é模", "\udcd0\udccd", "x" * 5000, "a/b/c", "1,2,3", "1,,2", "=", "a=b", "tp=0", "tp=3,pp=7", "none", "auto", "y",
    "$(touch canary)", "{}",
)  # fmt: skip
"""Odd values in place of sound ones."""

OF = {
    "pipeline_parallel": "pretrain_llama2_7b-solved", "parallel_tool": "pretrain_llama2_7b-searched",
    "pipeline_tool": "ranked", "timeline_tool": "worker",
}  # fmt: skip
"""The sound command of each tool to which a flag is added."""

COMPILING_S = 120.0
"""Longest that the sound command may take while the solver's kernels are compiled; later runs find them on the disk."""


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a tool."""
    return [Portion(f"flags-{tool}", flags, {"tool": tool, "share": share}) for tool in SCRIPTS]


def flags(tool: str, share: float = 1.0) -> Result:
    """Every flag of a tool with every odd value, or a fraction of them."""
    preload()
    rng = np.random.default_rng([8, len(tool)])
    parser = importlib.import_module(f"taylor.command_lines.{tool}").build_parser()
    takers = [action.option_strings[0] for action in parser._actions if action.option_strings and action.nargs != 0]
    found: list[str] = []
    tried, slowest = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="flags-") as own:
        specimens = {one.name: one for one in make_specimens(Path(own) / "sound")}
        _compile_kernels(specimens[OF["pipeline_parallel"]], Path(own) / "compiling")
        specimen = specimens[OF[tool]]
        for flag in takers:
            for value in ODD:
                if rng.random() >= share:
                    continue
                place = Path(own) / "top" / "work"
                shutil.copytree(specimen.folder, place)
                words = [*specimen.command.words, f"{flag}={value}"]
                outcome = run_forked(tool, words, place, seconds=SECONDS, memory_mib=MEMORY_MIB)
                named = f"{tool} {flag}={value[:40]!r}"
                found += [f"{named}: {text}" for text in flag_faults(outcome, place)]
                tried, slowest = tried + 1, max(slowest, outcome.cpu_seconds)
                shutil.rmtree(place.parent)
    return {"tried": tried, "flags": len(takers), "slowest_s": round(slowest, 2), "faults": found}


def _compile_kernels(specimen: Specimen, place: Path) -> None:
    """Solve with several virtual stages once: kernels are compiled once on a machine, which is no odd value's doing."""
    shutil.copytree(specimen.folder, place)
    words = [*specimen.command.words, "-vpp=auto"]
    outcome = run_forked("pipeline_parallel", words, place, seconds=COMPILING_S, memory_mib=MEMORY_MIB)
    if outcome.code != 0:
        raise RuntimeError(f"the sound command with -vpp=auto ended with code {outcome.code}: {outcome.errors[-400:]}")


def flag_faults(outcome: Outcome, place: Path) -> list[str]:
    """Faults of the end of a command with an odd flag."""
    found = []
    if outcome.timed_out:
        found.append(f"not done after {SECONDS:g} CPU s")
    elif outcome.code not in CODES:
        found.append(f"exit code {outcome.code}: {outcome.errors[-400:]}")
    if "Traceback" in outcome.errors or "Warning" in outcome.errors:
        found.append(f"a traceback or a warning: {outcome.errors[-400:]}")
    if outcome.code in CODES[1:]:
        messages = [line for line in outcome.errors.splitlines() if line.startswith("ERROR") or ": error: " in line]
        if not messages:
            found.append(f"exit code {outcome.code} without a message: {outcome.errors[-300:]}")
        elif max(map(len, messages)) > 2000:
            found.append(f"a message of {max(map(len, messages))} characters")
    if (place / "canary").exists():
        found.append("code from a flag was executed")
    return found + [f"watched: {event}" for event in outcome.strayed]


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "flags")
    wrong = len(faults_of(part))
    return [
        Figure(
            "input: flags",
            "every flag with odd values: exit code and message of the contract, 10 CPU s, 1 GB, no traceback",
            f"{total(part, 'flags')} flags of {len(part)} tools, {total(part, 'tried'):,} commands; slowest "
            f"{max(result['slowest_s'] for result in part):.1f} CPU s; {wrong} faults",
            not wrong,
            f"{len(ODD)} values: wrong types, NaN, infinite, huge, negative, empty, too long, undecodable, code",
        )
    ]  # fmt: skip


PART = Part(
    "flags",
    portions,
    figures,
    sources=(*TOOLS, "benchmarks/reliability/flags.py"),
    nightly=0.02,
    table=Sized(0.3, minutes=5),
)
