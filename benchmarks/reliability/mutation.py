"""Mutation: small faults put into the core, one at a time, and whether the unit tests notice.

Which tests run a line is found out once (`reached_tests`); a mutant is judged by those of its own room, the quickest
first, until one fails or their CPU time is spent, and then by those of the other rooms in the same way. A mutant that
survives is equivalent, by a reason written down here, or real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Result, code_digest, faults_of
from benchmarks.reliability.mutated_code import Mutant, sample
from benchmarks.reliability.reached_tests import Reached, copy_tree, put_probes
from taylor.base.console import log

ROOMS = ("cost_model", "pipeline_solver", "nd_search", "parsers", "profiling", "dryrun", "pipeline")
OTHERS = ("register", "pipeline", "cost_model", "parsers", "profiling", "nd_search", "report", "pipeline_solver",
          "workflows", "layerwise", "dryrun")  # fmt: skip
"""Folders of tests that judge what a room's own tests let pass."""
SAMPLES = {27: 40, 1127: 20}
"""Mutants a room by seed: the first sample's survivors had tests written for them, the second is drawn afresh."""
LEAST = 0.90
SPENT = 60.0
"""CPU seconds that the tests of one mutant may take as they were recorded: those of its room, and those of others."""
PLACE = ROOT / "output" / "reliability" / "mutation"

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "cost_model/measured/fits.py",
        "return np.stack([x**power for power in powers], axis=(1))",
    ): "`x` has one dimension, so that the last axis of the stack is the second",
    (
        "parsers/mindformers/read.py",
        'shard = sharding.integer("optimizer_weight_shard_size", default=-(2), low=-1)',
    ): "every size below 1 means all of the replicas",
    (
        "dryrun/fitting/fit.py",
        "undetermined=tuple(name for name, open_ in zip(memory.unknowns, left_open.tolist(), strict=(False)) "
        "if open_),",
    ): "both have one entry an unknown: the matrix has a column for each",
    (
        "pipeline/dependencies.py",
        "number = np.full((stages, feeder_block.shape[1], int(pieces.max()) + (2)), -1, dtype=np.int64)",
    ): "one place more that no task has",
    (
        "profiling/measuring/model_plan.py",
        "while (length >= 1):",
    ): "runs of no token are asked for too, and none was measured",
    (
        "pipeline_solver/pyomo_solver.py",
        "return bool(factory.available(exception_flag=(True)))",
    ): "a solver that is not there raises then, which is caught and means the same",
}
"""(file, line with the fault) of mutants that change no result, with the reason."""


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a room and sample."""
    return [
        Portion(f"{room}-{seed}", judged, {"room": room, "count": max(1, round(count * share)), "seed": seed})
        for seed, count in SAMPLES.items()
        for room in ROOMS
    ]


def files_of(room: str, root: Path = ROOT) -> list[str]:
    """The room's sources."""
    return sorted(str(path.relative_to(root)) for path in (root / room).rglob("*.py"))


def recorded(folder: str, sources: tuple[str, ...]) -> Reached:
    """The tests of a folder with the blocks of the rooms that they enter.

    A recording that was broken off goes on, and of tests written since their files alone are run.

    Parameters
    ----------
    sources : tuple of str
        The rooms whose blocks are asked for: a recording of other code is made anew.
    """
    kept = PLACE / "tests" / f"{folder}-{code_digest(sources)}.jsonl"
    whole = kept.with_name(f"{folder}-{code_digest((*sources, f'tests/{folder}'))}.whole")
    if not whole.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="reached-") as scratch:
            place = Path(scratch) / "tree"
            copy_tree(ROOT, place)
            put_probes(place, [file for each in ROOMS for file in files_of(each, place)])
            words = [sys.executable, "-m", "benchmarks.reliability.reached_tests", str(place), str(kept)]
            subprocess.run([*words, f"tests/{folder}"], cwd=place, env=_environment(place), capture_output=True)
        whole.touch()
    return Reached.read(kept, ROOT)


def _environment(place: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", **more}


def judged(room: str, count: int, seed: int, others: Sequence[str] = OTHERS) -> Result:
    """Every mutant of a room's sample, each with what became of it; those judged before are not judged again.

    A mutant that was killed before the tests changed is asked first of the test that killed it.

    Parameters
    ----------
    others : sequence of str
        Folders of tests that judge what the room's own let pass, those with the quickest tests of a line first.
    """
    own, further = recorded(room, (room,)), [folder for folder in others if folder != room]
    tests = code_digest([f"tests/{each}" for each in (room, *further)])
    kept = PLACE / "judged" / f"{room}-{seed}-{code_digest((room,))}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    before = {row["mutant"]: Verdict(row["told"], row["by"]) for row in rows}
    done = {row["mutant"]: before[row["mutant"]] for row in rows if row["tests"] == tests}
    mutants = sample(ROOT, files_of(room), count, f"{seed} {room}")
    left = [mutant for mutant in mutants if str(mutant) not in done]
    if left:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            place = Path(folder) / "tree"
            copy_tree(ROOT, place)
            judge = Judge(place)
            for mutant in left:
                known = before.get(str(mutant), Verdict("", ""))
                told = judge.with_mutant(mutant, [known.by], SPENT) if known.by else known
                if not told.killed:
                    told = judge.verdict(mutant, own)
                    if not told.killed and further:
                        elsewhere = judge.verdict(mutant, joined([recorded(each, ROOMS) for each in further]))
                        told = elsewhere if told.told == "unreached" or elsewhere.told != "unreached" else told
                done[str(mutant)] = told
                log.info("%s %s: %s", told.told, told.by, mutant)
                with kept.open("a") as stream:
                    row = {"mutant": str(mutant), "told": told.told, "by": told.by, "tests": tests}
                    stream.write(json.dumps(row) + "\n")
            judge.end()
    verdicts = {str(mutant): done[str(mutant)] for mutant in mutants}
    excused = {
        str(mutant): EQUIVALENT[key]
        for mutant in mutants
        if (key := (mutant.file, mutant.line_of(ROOT))) in EQUIVALENT and not verdicts[str(mutant)].killed
    }
    survivors = {name: told.told for name, told in verdicts.items() if not told.killed and name not in excused}
    return {
        "mutants": len(mutants), "killed": sum(told.killed for told in verdicts.values()), "equivalent": excused,
        "elsewhere": sum(told.by != "" and not told.by.startswith(f"tests/{room}/") for told in verdicts.values()),
        "survivors": survivors, "faults": [],
    }  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """What tests said of a mutant.

    Parameters
    ----------
    told : str
        ``killed``, ``time`` (they never ended), ``survived``, ``survived a part`` of the tests that reach it,
        ``unreached``, or ``broken``.
    by : str
        The test that failed.
    """

    told: str
    by: str = ""

    @property
    def killed(self) -> bool:
        """Whether the tests noticed."""
        return self.told in ("killed", "time")


def joined(recordings: Sequence[Reached]) -> Reached:
    """Recordings of several folders as one."""
    return Reached(tuple(row for each in recordings for row in each.rows))


class Judge:
    """A copied tree and the process that runs its tests."""

    def __init__(self, place: Path):
        self.place = place
        self.server: subprocess.Popen[str] | None = None

    def verdict(self, mutant: Mutant, reached: Reached) -> Verdict:
        """What the tests say that reach a mutant, as many as their time allows."""
        rows = reached.tests_at(ROOT, mutant.file, mutant.line)
        if not rows:
            return Verdict("unreached")
        taken: list[dict[str, Any]] = []
        spent = 0.0
        for row in rows:
            if taken and spent + row["cpu"] > SPENT:
                break
            taken.append(row)
            spent += row["cpu"]
        told = self.with_mutant(mutant, [row["test"] for row in taken], spent)
        return told if told.told != "survived" or len(taken) == len(rows) else Verdict("survived a part")

    def with_mutant(self, mutant: Mutant, tests: list[str], spent: float) -> Verdict:
        """What tests say of a mutant that usually take `spent` CPU seconds."""
        path = self.place / mutant.file
        before = path.read_bytes()
        with tempfile.TemporaryDirectory(prefix="kernels-") as kernels:
            # Kernels are kept compiled by the state of their own file alone: what another one calls must be new too.
            fresh = {"NUMBA_CACHE_DIR": kernels} if b"@compiled" in before else {}
            path.write_bytes(mutant.put_in(before))
            try:
                job = {"tests": tests, "environment": fresh}
                limits = {"cpu_seconds": 30 + 5 * spent + 120 * bool(fresh), "wall_seconds": 600 + 20 * spent}
                return self._ask({**job, **limits})
            finally:
                path.write_bytes(before)

    def _ask(self, job: dict[str, object]) -> Verdict:
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.reliability.judging_server"],
                cwd=self.place, env=_environment(self.place), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        answer = self.server.stdout.readline()
        if not answer:
            return Verdict("broken")
        said = json.loads(answer)
        return Verdict(said["told"], said["by"])

    def end(self) -> None:
        """Let the process go."""
        if self.server is not None:
            assert self.server.stdin is not None
            self.server.stdin.close()
            self.server.wait()


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table: one a sample."""
    return [_figure(seed, {room: results[f"{room}-{seed}"] for room in ROOMS}) for seed in SAMPLES]


def _figure(seed: int, results: Mapping[str, Result]) -> Figure:
    killed = sum(result["killed"] for result in results.values())
    real = killed + sum(len(result["survivors"]) for result in results.values())
    excused = sum(len(result["equivalent"]) for result in results.values())
    elsewhere = sum(result["elsewhere"] for result in results.values())
    by_room = ", ".join(
        f"{room} {result['killed']} of {result['killed'] + len(result['survivors'])}"
        for room, result in results.items()
    )
    score = killed / max(1, real)
    return Figure(
        f"mutation of the core, seed {seed}",
        "90 % of real mutants killed by the unit tests",
        f"{100 * score:.1f} %: {killed} of {real} ({by_room}), {elsewhere} of them by tests of another room alone; "
        f"{excused} more change no result",
        score >= LEAST and not faults_of(list(results.values())),
        f"{SAMPLES[seed]} a room drawn with a seed (comparisons, arithmetic, constants, conditions, min and max); each "
        f"judged by its room's tests that reach its block, the quickest first, {SPENT:.0f} CPU s at most, then by "
        "those of other rooms likewise",
    )


PART = Part("mutation", portions, figures, at_once=1, sources=(
    *ROOMS, *(f"tests/{room}" for room in {*ROOMS, *OTHERS}), "benchmarks/reliability/mutation.py",
    "benchmarks/reliability/mutated_code.py", "benchmarks/reliability/reached_tests.py",
))  # fmt: skip
