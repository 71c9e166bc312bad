"""Killed at random moments and started again: nothing half-written, nothing solved twice, the same result."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from benchmarks.reliability.jobs import Job, job, killed_jobs
from benchmarks.reliability.long_kills import served_and_killed, tuned_and_killed
from benchmarks.reliability.outputs import comparable, differences, is_debris
from benchmarks.reliability.sandbox import Outcome, preload, run_forked
from taylor.pipeline_solver.model.solution import Status

KILLS = 15
"""Of every command: 210 together."""
SAME = 1e-6
"""Relative difference of step times that says nothing."""
KILLED = tuple(one.name for one in killed_jobs())
LONG = {"serve": served_and_killed, "tune": tuned_and_killed}
"""Commands whose processes are not their own children."""


def portions(share: float = 1.0) -> list[Portion]:
    """Portions of the kills of each job."""
    counts = split(max(1, round(KILLS * share)), pieces(2, share))
    done = [
        Portion(f"killed-{name}-{k}", killed, {"name": name, "count": count, "seed": k})
        for name in KILLED
        for k, count in enumerate(counts)
    ]
    return done + [
        Portion(f"killed-{name}", function, {"count": sum(counts), "seed": 3}) for name, function in LONG.items()
    ]


def killed(name: str, count: int, seed: int) -> Result:
    """Kill a job with SIGKILL at random moments, look at what is there, start it again, compare."""
    preload()
    rng = np.random.default_rng([6, seed])
    one = job(name)
    found: list[str] = []
    before, reference, second, seconds = _undisturbed(one)
    changed = [each for each, content in before.items() if content != reference[each]]
    early = debris = kept = 0
    for number in range(count):
        with tempfile.TemporaryDirectory(prefix="killed-") as own:
            folder = Path(own)
            one.prepare(folder)
            moment = float(rng.uniform(0.0, 1.05)) * seconds
            outcome = _started(one, folder, kill_after=moment, kill_alone=number % 2 == 1)
            early += outcome.code == -9
            left = comparable(folder)
            halves = [
                name_ for name_, content in left.items()
                if content not in (before.get(name_), reference.get(name_))
                and not before_its_views(content, reference.get(name_))
                and not before_its_proof(content, reference.get(name_))
            ]  # fmt: skip
            where = f"{name}, seed {seed}, kill {number} after {moment:.3f} s"
            found += [f"{where}: {text} is neither old nor new" for text in halves]
            found += [f"{where}: {text}" for text in outcome.strayed]
            debris += sum(is_debris(path) for path in folder.rglob("*") if path.is_file())
            rows = _whole_rows(folder)
            kept += len(rows)
            _settle(folder)
            again = _started(one, folder)
            if again.code:
                found.append(f"{where}: started again, exit code {again.code}: {again.errors[-400:]}")
                continue
            # Where the first start had come to its last write, the second began from the file that it left.
            ended = bool(changed) and all(left.get(each) == reference[each] for each in changed)
            whole = second if ended else reference
            found += [f"{where}: started again, {text}" for text in differences(whole, _one_ranking(folder))]
            rewritten = [path for path, when in rows.items() if _whole_rows(folder).get(path) != when]
            found += [f"{where}: {path} was solved again" for path in rewritten]
    return {"kills": count, "before_the_end": early, "kept_rows": kept, "debris": debris, "faults": found}


def before_its_views(content: bytes, whole: bytes | None) -> bool:
    """Return whether a result is the whole run's but for what is added to it last.

    A result is written as soon as the plan is solved, so that a failing view loses nothing, and once more with the
    views that were written since, the changes that would make the plan faster, and the command that repeats it.
    """
    try:
        early, late = json.loads(content), json.loads(whole or b"")
        named, wanted = early.pop("files").items(), late.pop("files").items()
        for added in (early, late):
            added.pop("what_next", None)
            added.get("verdict", {}).pop("command", None)
    except (ValueError, KeyError, AttributeError, TypeError):
        return False
    return bool(early == late and named <= wanted)


def before_its_proof(content: bytes, whole: bytes | None) -> bool:
    """Return whether a kept solve is one that was cut off, where the whole run then solved that candidate to its end.

    Its bound and its plan must not contradict what was found then.
    """
    early, late = _solution(content), _solution(whole)
    if not _was_cut_off(early) or not late or _was_cut_off(late):
        return False
    slack = SAME * late["objective"]
    return bool(
        early["bound"] <= late["objective"] + slack
        and (early["objective"] is None or late["objective"] <= early["objective"] + slack)
    )


def _undisturbed(one: Job) -> tuple[dict[str, bytes], dict[str, bytes], dict[str, bytes], float]:
    """The input, what a whole run leaves, what a second makes of that, and seconds of a run that finds its kernels."""
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="whole-") as own:
            folder = Path(own)
            one.prepare(folder)
            before = comparable(folder)
            seconds = _whole(one, folder)
            reference = comparable(folder)
            _settle(folder)
            _whole(one, folder)
            second = _one_ranking(folder)
    return before, reference, second, seconds


def _started(one: Job, folder: Path, *, kill_after: float | None = None, kill_alone: bool = False) -> Outcome:
    """Run a job; a document that it prints is kept among its files, and compared as they are."""
    outcome = run_forked(one.tool, one.arguments(2), folder, seconds=600.0, memory_mib=0, may_start=True,
                         kill_after=kill_after, kill_alone=kill_alone)  # fmt: skip
    if outcome.code == 0 and "--json" in one.words:
        (folder / "printed.json").write_text(outcome.output.replace(str(folder), "."), encoding="utf-8")
    return outcome


def _whole(one: Job, folder: Path) -> float:
    """Run a job to its end; seconds."""
    outcome = _started(one, folder)
    if outcome.code:
        raise RuntimeError(f"{one.name}: exit code {outcome.code}: {outcome.errors[-800:]}")
    return outcome.seconds


def _whole_rows(folder: Path) -> dict[str, int]:
    """Kept solves of a killed run that are not solved again, with the time of their writing, ns.

    One that was cut off, for it could not be among the best, is solved once more where every candidate is to be proven.
    """
    rows = (folder / "pipeline_output" / "solved").glob("*.json")
    return {path.name: path.stat().st_mtime_ns for path in rows if not _was_cut_off(_solution(path.read_bytes()))}


def _solution(content: bytes | None) -> dict[str, Any]:
    """What a kept solve found; empty where the text is none."""
    try:
        found = json.loads(content or b"")["kept"]["solution"]
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _was_cut_off(solution: dict[str, Any]) -> bool:
    return solution.get("status") == Status.CUT_OFF.value


def _settle(folder: Path) -> None:
    """Wait until a second ranking gets a name of its own, should the killed one have written its table."""
    if list((folder / "pipeline_output").glob("test_result_*.csv")):
        time.sleep(1.1)


def _one_ranking(folder: Path) -> dict[str, bytes]:
    """Files that are there, of rankings the newest alone: an earlier one is history, not a result."""
    tables = sorted((folder / "pipeline_output").glob("test_result_*.csv"))
    for stale in tables[:-1]:
        stale.unlink()
    return comparable(folder)


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    part = chosen(results, "killed")
    wrong = len(faults_of(part))
    return [
        Figure(
            "determinism: after a kill", "killed at 200 random moments and started again: the same bytes",
            f"{total(part, 'kills')} kills of {len(KILLED) + len(LONG)} jobs "
            f"({total(part, 'before_the_end')} before the end), "
            f"{total(part, 'kept_rows')} solved rows found again, {wrong} faults",
            not wrong,
            f"of {', '.join((*KILLED, *LONG))}: SIGKILL to all its processes, or to the first alone, whose workers "
            "then end by themselves; every file old or new then, all as undisturbed after the second start, and no "
            "small run started that had ended",
        )
    ]  # fmt: skip


PART = Part(
    "kills",
    portions,
    figures,
    sources=(*TOOLS, "taylor/command_lines", "serve", "benchmarks/reliability/kills.py"),
    nightly=0.04,
    table=Sized(0.13, minutes=3),
)
