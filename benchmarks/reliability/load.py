"""Five hundred candidates in one call: its memory, its progress, and what an interrupt leaves."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.reliability.campaign import ROOT, TOOLS, Figure, Part, Portion, Result, Sized, chosen, faults_of, total
from benchmarks.reliability.outputs import comparable, differences

CANDIDATES, MEMORY_MIB = 500, 2048
INTERRUPTS, INTERRUPTED_CANDIDATES = 20, 12
SECONDS = 3600.0
SAMPLE_SECONDS = 0.5

_BAR = re.compile(r"(\d+)/(\d+)")


def portions(share: float = 1.0) -> list[Portion]:
    """One large ranking, and interrupts of a smaller one."""
    return [
        Portion("large", large, {"count": max(6, round(CANDIDATES * share))}),
        Portion("interrupts", interrupts, {"count": max(2, round(INTERRUPTS * share)), "seed": 0}),
    ]


@dataclass(frozen=True)
class Watched:
    """Outcome of a command: exit code, terminal text, seconds, largest resident size of all its processes, MiB."""

    code: int
    text: str
    seconds: float
    peak_mib: float


def large(count: int) -> Result:
    """Rank many candidates on two processes, watched."""
    with tempfile.TemporaryDirectory(prefix="load-") as own:
        folder = Path(own)
        made = write_candidates(folder, count)
        seen = watch(folder, None)
        found = [] if seen.code == 0 else [f"exit code {seen.code}: {seen.text[-600:]}"]
        if seen.peak_mib > MEMORY_MIB:
            found.append(f"{seen.peak_mib:.0f} MiB")
        steps = {int(done) for done, of in _BAR.findall(seen.text) if int(of) == made}
        if len(steps) < min(10, made // 50 + 2):  # the bar is drawn ten times a second: few quick solves pass unseen
            found.append(f"progress shown at {sorted(steps)} of {made} only")
        table = pd.read_csv(next((folder / "pipeline_output").glob("test_result_*.csv"), os.devnull))
        table = table[table["own"] == 0]
        if len(table) != made:
            found.append(f"{len(table)} rows of {made}")
        solved = int(table["status"].isin(["optimal", "feasible"]).sum())
        return {"candidates": made, "solved": solved, "optimal": int((table["status"] == "optimal").sum()),
                "seconds": round(seen.seconds), "peak_mib": round(seen.peak_mib), "steps": len(steps),
                "faults": found}  # fmt: skip


def interrupts(count: int, seed: int) -> Result:
    """Interrupt a ranking at random moments by Ctrl-C, then start it again."""
    rng = np.random.default_rng([7, seed])
    found: list[str] = []
    kept_rows = interrupted = 0
    with tempfile.TemporaryDirectory(prefix="load-") as own:
        whole = Path(own)
        write_candidates(whole, INTERRUPTED_CANDIDATES)
        watch(whole, None)  # the first run loads what later ones find in the file system's cache
        for row in (whole / "pipeline_output" / "solved").glob("*.json"):
            row.unlink()
        for table in (whole / "pipeline_output").glob("test_result_*"):
            table.unlink()
        seconds = watch(whole, None).seconds
        reference = comparable(whole)
        for number in range(count):
            with tempfile.TemporaryDirectory(prefix="load-") as own_copy:
                folder = Path(own_copy)
                write_candidates(folder, INTERRUPTED_CANDIDATES)
                moment = float(rng.uniform(0.05, 1.0)) * seconds
                where = f"interrupt {number} after {moment:.2f} s"
                seen = watch(folder, moment)
                interrupted += seen.code == 130
                found += [f"{where}: {text}" for text in interrupt_faults(seen, folder)]
                rows = {path: path.stat().st_mtime_ns for path in (folder / "pipeline_output/solved").glob("*.json")}
                kept_rows += len(rows)
                for table in (folder / "pipeline_output").glob("test_result_*"):
                    table.unlink()
                again = watch(folder, None)
                if again.code:
                    found.append(f"{where}: started again, exit code {again.code}: {again.text[-400:]}")
                found += [f"{where}: started again, {text}" for text in differences(reference, comparable(folder))]
                found += [f"{where}: {path.name} was solved again" for path, when in rows.items()
                          if path.stat().st_mtime_ns != when]  # fmt: skip
    return {"interrupts": count, "interrupted": interrupted, "kept_rows": kept_rows, "faults": found}


def interrupt_faults(seen: Watched, folder: Path) -> list[str]:
    """Faults of an interrupted ranking's end: its code, its words, its kept rows, its table."""
    found = []
    # A shell sees 130 too where the signal came behind the last line.
    if seen.code not in (0, 130, -signal.SIGINT):
        found.append(f"exit code {seen.code}: {seen.text[-600:]}")
    if "Traceback" in seen.text:
        found.append(f"a traceback: {seen.text[-900:]}")
    rows = list((folder / "pipeline_output" / "solved").glob("*.json"))
    tables = list((folder / "pipeline_output").glob("test_result_*.csv"))
    if rows and not tables:
        found.append(f"{len(rows)} rows were solved, and they are in no table")
    if tables:
        rated = pd.read_csv(tables[0])
        solved = int((rated["status"].isin(["optimal", "feasible", "infeasible"]) & (rated["own"] == 0)).sum())
        if solved != len(rows):
            found.append(f"{len(rows)} rows are kept, {solved} in the table")
    return found


def write_candidates(folder: Path, count: int) -> int:
    """Write `count` candidate files into ``files``; returns how many there are."""
    from taylor.nd_search.emit import emit_yaml
    from taylor.nd_search.options import SearchOptions
    from taylor.nd_search.search import search
    from taylor.parsers.read import read_config
    from taylor.register.registry import Registry

    config = read_config(ROOT / "config" / "pretrain_deepseek3_128p.yaml")
    device = Registry.load(None).device("ascend-910b")
    options = SearchOptions(gbs=512, search=("dp", "tp", "pp", "ep", "vpp", "mbs", "cp"), profile_num=4 * count)
    result = search(config, device, options, None)
    which = list(result.chosen)[:count]
    return len(emit_yaml(result, config, folder / "files", which=which))


def watch(folder: Path, interrupt: float | Callable[[], bool] | None) -> Watched:
    """Rank the candidates of a folder on two processes, in a terminal, with a limit of 20 s a solve.

    Parameters
    ----------
    interrupt : float, callable or None
        Seconds after which Ctrl-C is typed, or what tells when.
    """
    words = [sys.executable, str(ROOT / "pipeline_tool.py"), "--yaml_path", "files", "--workers", "2",
             "--time_limit", "20", "--report", "off", "--prove", "all"]  # fmt: skip
    here, there = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "TERM": "xterm"}
    began = time.monotonic()
    process = subprocess.Popen(words, cwd=folder, stdin=there, stdout=there, stderr=there, env=environment,
                               start_new_session=True)  # fmt: skip
    os.close(there)
    text, peak, typed, looked = b"", 0.0, False, 0.0
    while True:
        ready, _, _ = select.select([here], [], [], 0.05)
        spent = time.monotonic() - began
        if ready:
            try:
                piece = os.read(here, 1 << 16)
            except OSError:
                piece = b""
            text += piece
            if not piece and process.poll() is not None:
                break
        elif process.poll() is not None:
            break
        if spent - looked > SAMPLE_SECONDS:
            peak, looked = max(peak, _resident_mib(process.pid)), spent
        due = interrupt() if callable(interrupt) else interrupt is not None and spent > interrupt
        if due and not typed:
            _interrupt(process.pid)
            typed = True
        if spent > SECONDS:
            os.killpg(process.pid, signal.SIGKILL)
    os.close(here)
    return Watched(process.wait(), text.decode("utf-8", "replace"), time.monotonic() - began, peak)


def _interrupt(leader: int) -> None:
    """Ctrl-C as a terminal gives it: to every process of the group."""
    try:
        os.killpg(leader, signal.SIGINT)
    except ProcessLookupError:
        return


def _resident_mib(session: int) -> float:
    """Resident size of all processes of a session; shared pages count once, in their proportional size."""
    resident = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == session:
                    lines = (entry / "smaps_rollup").read_text().splitlines()
                    resident += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except (OSError, StopIteration):
                continue
    return resident / 1024


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    one, stops = chosen(results, "large"), chosen(results, "interrupts")
    wrong = [len(faults_of(part)) for part in (one, stops)]
    return [
        Figure(
            "load: one call", "500 candidates ranked on 2 cores below 2 GB, progress shown",
            f"{total(one, 'candidates')} candidates ({total(one, 'solved')} solved, {total(one, 'optimal')} of them "
            f"proven) in {total(one, 'seconds')} s, at most {total(one, 'peak_mib')} MiB, progress shown at "
            f"{total(one, 'steps')} steps; {wrong[0]} faults",
            not wrong[0],
            "2 processes in a terminal of its own, 20 s a solve; memory of all its processes twice a second",
        ),
        Figure(
            "load: Ctrl-C", "keeps what is done, at any time",
            f"{total(stops, 'interrupts')} interrupts ({total(stops, 'interrupted')} before the end), "
            f"{total(stops, 'kept_rows')} solved rows kept and found again; {wrong[1]} faults",
            not wrong[1],
            f"{INTERRUPTED_CANDIDATES} candidates; exit code 130, every solved row in the table, the second start "
            "solves the rest alone and ends as if undisturbed",
        ),
    ]  # fmt: skip


PART = Part(
    "load",
    portions,
    figures,
    at_once=1,
    sources=(*TOOLS, "benchmarks/reliability/load.py"),
    nightly=0.02,
    table=Sized(0.4, minutes=4),
)
