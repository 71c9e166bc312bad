"""Rankings on Dask workers: the table of one process, whoever is killed on the way, and what the way there costs."""

from __future__ import annotations

import random
import signal
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.reliability.campaign import Figure, Part, Portion, Result, chosen, total
from benchmarks.reliability.load import write_candidates
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import Solution
from taylor.register.registry import Registry
from taylor.workflows.ranking import rank_solves
from taylor.workflows.ranking.candidate_file import CandidateFile
from taylor.workflows.ranking.candidates import load_candidates
from taylor.workflows.ranking.rank import RankOptions, rank
from taylor.workflows.running.cluster import open_cluster
from taylor.workflows.running.far_solve import FarSolve
from taylor.workflows.running.kept_solves import SolveStore

CANDIDATES, KILL_CANDIDATES, KILL_RUNS, PAIRS = 200, 24, 20, 3
RUNS_TOGETHER = 10
FINISHED = "finished.log"
SOURCES = tuple(
    f"workflows/{name}.py" for name in ("cluster", "cluster_jobs", "far_solve", "process_pool", "rank_solves")
)


class CountedSolve(FarSolve):
    """A far solve that notes in a file of the folder of results when it has solved (not found) its problem."""

    def __call__(self) -> Solution:
        """Solve, or find."""
        known = SolveStore(self.place.output).find(self.problem, self.how) is not None
        found = super().__call__()
        if not known:
            with open(self.place.output / FINISHED, "a", encoding="utf-8") as log:
                log.write(f"{self.key}\n")
        return found


@dataclass(frozen=True)
class Ranked:
    """A ranking: its table without times and folders, the seconds it took, and those of all its processes' cores."""

    table: str
    seconds: float
    cpu_s: float


def candidates(folder: Path, count: int) -> list[CandidateFile]:
    """Read `count` candidates: a small DeepSeek-V3 on 128 devices, each proven in tenths of a second."""
    write_candidates(folder, count)
    files = sorted((folder / "files").glob("*.yaml"))[:count]
    return load_candidates(files, Registry.load(None).device("ascend-910b"))


def ranked(loaded: Sequence[CandidateFile], output: Path, executor: Executor | None, workers: int = 1) -> Ranked:
    """Rank candidates, each to its proof (`--prove all`)."""
    began, before = time.monotonic(), cpu_seconds()
    options = RankOptions(SolveOptions(), workers=workers, report=False, output=output, prove=None)
    compared = rank(list(loaded), options, executor).table
    compared["file"] = [Path(name).name for name in compared["file"]]
    table = compared.drop(columns=["time"]).to_csv()
    return Ranked(table, time.monotonic() - began, cpu_seconds() - before)


def cpu_seconds() -> float:
    """CPU time of this process, of its children that have ended, and of those that live."""
    own = psutil.Process().cpu_times()
    spent = own.user + own.system + own.children_user + own.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            spent += sum(child.cpu_times()[:2])
        except psutil.Error:
            continue
    return spent


def same_table(candidate_count: int) -> Result:
    """Eight workers and one process."""
    with tempfile.TemporaryDirectory(prefix="cluster-") as own:
        loaded = candidates(Path(own), candidate_count)
        alone = ranked(loaded, Path(own, "alone"), None)
        with open_cluster("local:8") as executor:
            far = ranked(loaded, Path(own, "far"), executor)
    return {"candidates": len(loaded), "rows": alone.table.count("\n") - 1, "same": far.table == alone.table}


def kills(runs: int, seed: int) -> Result:
    """Rank while workers are killed at random moments."""
    drawn, killed, same, twice, undisturbed, finished = random.Random(seed), 0, 0, 0, 0, []
    with tempfile.TemporaryDirectory(prefix="cluster-") as own, open_cluster("local:8") as executor:
        loaded = candidates(Path(own), KILL_CANDIDATES)
        alone = ranked(loaded, Path(own, "alone"), None)
        far = ranked(loaded, Path(own, "first"), executor)
        vars(rank_solves)["FarSolve"] = CountedSolve
        for run in range(runs):  # a run in which nobody was killed would show nothing, and fails
            output = Path(own, f"kills-{run}")
            with killing(drawn, far.seconds) as deaths:
                far = ranked(loaded, output, executor)
            done = Counter((output / FINISHED).read_text().split())
            killed, same = killed + len(deaths), same + (far.table == alone.table)
            undisturbed += not deaths
            twice += sum(number - 1 for number in done.values())
            finished.append(len(done))
            print(f"run {run}: {len(deaths)} killed, same {far.table == alone.table}, {len(done)} solved", flush=True)
    return {"runs": runs, "killed": killed, "same": same, "solved_twice": twice, "undisturbed": undisturbed,
            "finished": finished}  # fmt: skip


@contextmanager
def killing(drawn: random.Random, seconds: float) -> Iterator[list[int]]:
    """Kill workers of this process, about four in the time of the ranking before; gives who was killed."""
    over, deaths = threading.Event(), list[int]()

    def kill() -> None:
        while not over.wait(drawn.uniform(0.0, seconds / 3)):
            if living := [one for one in psutil.Process().children(recursive=True) if _is_worker(one)]:
                victim = drawn.choice(living)
                victim.send_signal(signal.SIGKILL)
                deaths.append(victim.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield deaths
    finally:
        over.set()
        killer.join()


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "spawn_main" in " ".join(process.cmdline())
    except psutil.Error:
        return False


def overhead(pair: int) -> Result:
    """Two workers beside two processes of the local pool, one right after the other; which is first changes."""
    with tempfile.TemporaryDirectory(prefix="cluster-") as own:
        loaded = candidates(Path(own), CANDIDATES)

        def pool() -> Ranked:
            return ranked(loaded, Path(own, "pool"), None, workers=2)

        first = pool() if pair % 2 == 0 else None
        began, before = time.monotonic(), cpu_seconds()
        with open_cluster("local:2") as executor:
            far = ranked(loaded, Path(own, "far"), executor)
        whole = time.monotonic() - began, cpu_seconds() - before
        near = first or pool()
    assert near.table == far.table
    return {"pool": [near.seconds, near.cpu_s], "cluster": [far.seconds, far.cpu_s], "with_start": whole}


def table_figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The table's row."""
    [one] = results.values()
    return [
        Figure(
            "table", "8 workers, 200 candidates: byte-identical to one process, times aside",
            f"{one['candidates']} candidates, {one['rows']} rows: {'the same bytes' if one['same'] else 'other bytes'}",
            one["same"] and one["candidates"] == CANDIDATES,
            "`local:8` and one process, `--prove all`",
        )
    ]  # fmt: skip


def kill_figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The kills' row."""
    parts = chosen(results, "runs")
    runs, same, twice = total(parts, "runs"), total(parts, "same"), total(parts, "solved_twice")
    whole = all(count == KILL_CANDIDATES for one in parts for count in one["finished"])
    return [
        Figure(
            "kills", "workers killed at random moments, 20 runs: nothing lost, nothing solved twice",
            f"{runs} runs, {total(parts, 'killed')} workers killed: {same} tables of the same bytes, "
            f"{twice} candidates solved twice",
            runs == same and not twice and whole and not total(parts, "undisturbed"),
            f"{KILL_CANDIDATES} candidates on 8 workers; each finished solve is counted on the worker",
        )
    ]  # fmt: skip


def overhead_figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of the way's cost."""
    pairs = chosen(results, "pair")

    def above(which: str, index: int) -> float:
        return 100 * (statistics.median(one[which][index] / one["pool"][index] for one in pairs) - 1)

    def median(which: str, index: int) -> float:
        return statistics.median(one[which][index] for one in pairs)

    worst = max(above("cluster", 0), above("cluster", 1))
    return [
        Figure(
            "overhead", "two workers on 2 cores: no more than 15 % above the local pool",
            f"{above('cluster', 0):+.0f} % by the clock ({median('cluster', 0):.0f} beside {median('pool', 0):.0f} s), "
            f"{above('cluster', 1):+.0f} % by CPU time ({median('cluster', 1):.0f} beside {median('pool', 1):.0f} s); "
            f"with the start and end of scheduler and workers {above('with_start', 0):+.0f} % and "
            f"{above('with_start', 1):+.0f} %",
            worst <= 15.0,
            f"{CANDIDATES} candidates, median of {len(pairs)} pairs run one right after the other",
        )
    ]  # fmt: skip


TABLE = Part("table", lambda share: [Portion("one", same_table, {"candidate_count": CANDIDATES})], table_figures,
             at_once=1, sources=SOURCES)  # fmt: skip
KILLS = Part(
    "kills",
    lambda share: [Portion(f"runs-{seed}", kills, {"runs": RUNS_TOGETHER, "seed": seed})
                   for seed in range(KILL_RUNS // RUNS_TOGETHER)],
    kill_figures, at_once=1, sources=SOURCES,
)  # fmt: skip
OVERHEAD = Part("overhead", lambda share: [Portion(f"pair-{pair}", overhead, {"pair": pair}) for pair in range(PAIRS)],
                overhead_figures, at_once=1, sources=SOURCES)  # fmt: skip
