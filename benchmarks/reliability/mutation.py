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
MUTANTS = 40
SEED = 27
LEAST = 0.90
SPENT = 60.0
"""CPU seconds that the tests of one mutant may take as they were recorded: those of its room, and those of others."""
PLACE = ROOT / "output" / "reliability" / "mutation"

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "cost_model/measured/fits.py",
        "return np.stack([x**power for power in powers], axis=-1)",
        "(1)",
    ): "`x` has one dimension, so that the last axis of the stack is the second",
}
"""(file, line, what stands there instead) of mutants that change no result, with the reason."""


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a room."""
    return [Portion(room, judged, {"room": room, "count": max(1, round(MUTANTS * share))}) for room in ROOMS]


def files_of(room: str, root: Path = ROOT) -> list[str]:
    """The room's sources."""
    return sorted(str(path.relative_to(root)) for path in (root / room).rglob("*.py"))


def recorded(folder: str, sources: tuple[str, ...]) -> Reached:
    """The tests of a folder with the blocks of the rooms that they enter; a recording that was broken off goes on.

    Parameters
    ----------
    sources : tuple of str
        The rooms whose blocks are asked for: a recording of other code is made anew.
    """
    kept = PLACE / "tests" / f"{folder}-{code_digest((*sources, f'tests/{folder}'))}.jsonl"
    whole = kept.with_suffix(".whole")
    if not whole.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="reached-") as scratch:
            place = Path(scratch) / "tree"
            copy_tree(ROOT, place)
            put_probes(place, [file for each in ROOMS for file in files_of(each, place)])
            words = [sys.executable, "-m", "benchmarks.reliability.reached_tests", str(place), str(kept)]
            subprocess.run([*words, f"tests/{folder}"], cwd=place, env=_environment(place), capture_output=True)
        whole.touch()
    return Reached.read(kept)


def _environment(place: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", **more}


def judged(room: str, count: int, others: Sequence[str] = OTHERS) -> Result:
    """Every mutant of a room's sample, each with what became of it; those judged before are not judged again.

    Parameters
    ----------
    others : sequence of str
        Folders of tests that judge what the room's own let pass, those with the quickest tests of a line first.
    """
    own, further = recorded(room, (room,)), [folder for folder in others if folder != room]
    kept = PLACE / "judged" / f"{room}-{code_digest((room, *(f'tests/{each}' for each in (room, *further))))}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    done = dict(json.loads(line) for line in kept.read_text().splitlines()) if kept.exists() else {}
    mutants = sample(ROOT, files_of(room), count, f"{SEED} {room}")
    left = [mutant for mutant in mutants if str(mutant) not in done]
    if left:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            place = Path(folder) / "tree"
            copy_tree(ROOT, place)
            judge = Judge(place)
            for mutant in left:
                told = judge.verdict(mutant, own)
                if not _is_killed(told) and further:
                    elsewhere = judge.verdict(mutant, joined([recorded(each, ROOMS) for each in further]))
                    told = elsewhere if told == "unreached" or elsewhere != "unreached" else told
                    told = f"{told}{ELSEWHERE}" if _is_killed(told) else told
                done[str(mutant)] = told
                log.info("%s: %s", told, mutant)
                with kept.open("a") as stream:
                    stream.write(json.dumps([str(mutant), told]) + "\n")
            judge.end()
    verdicts = {str(mutant): done[str(mutant)] for mutant in mutants}
    excused = {
        str(mutant): EQUIVALENT[key]
        for mutant in mutants
        if (key := (mutant.file, mutant.text, mutant.new)) in EQUIVALENT and not _is_killed(verdicts[str(mutant)])
    }
    survivors = [name for name, told in verdicts.items() if not _is_killed(told) and name not in excused]
    return {
        "mutants": len(mutants), "killed": sum(map(_is_killed, verdicts.values())), "equivalent": excused,
        "elsewhere": sum(told.endswith(ELSEWHERE) for told in verdicts.values()),
        "survivors": {name: verdicts[name] for name in survivors}, "faults": [],
    }  # fmt: skip


ELSEWHERE = " by another room"


def joined(recordings: Sequence[Reached]) -> Reached:
    """Recordings of several folders as one."""
    return Reached(tuple(row for each in recordings for row in each.rows))


def _is_killed(told: str) -> bool:
    return told.removesuffix(ELSEWHERE) in ("killed", "time")


class Judge:
    """A copied tree and the process that runs its tests."""

    def __init__(self, place: Path):
        self.place = place
        self.server: subprocess.Popen[str] | None = None

    def verdict(self, mutant: Mutant, reached: Reached) -> str:
        """``killed``, ``time``, ``survived``, ``survived a part`` of the tests that reach it, or ``unreached``."""
        rows = reached.tests_at(ROOT, mutant.file, mutant.line)
        if not rows:
            return "unreached"
        taken: list[dict[str, Any]] = []
        spent = 0.0
        for row in rows:
            if taken and spent + row["cpu"] > SPENT:
                break
            taken.append(row)
            spent += row["cpu"]
        told = self.with_mutant(mutant, [row["test"] for row in taken], spent)
        return told if told != "survived" or len(taken) == len(rows) else "survived a part"

    def with_mutant(self, mutant: Mutant, tests: list[str], spent: float) -> str:
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

    def _ask(self, job: dict[str, object]) -> str:
        if self.server is None:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.reliability.judging_server"],
                cwd=self.place, env=_environment(self.place), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        return self.server.stdout.readline().strip() or "broken"

    def end(self) -> None:
        """Let the process go."""
        if self.server is not None:
            assert self.server.stdin is not None
            self.server.stdin.close()
            self.server.wait()


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table."""
    killed = sum(result["killed"] for result in results.values())
    real = killed + sum(len(result["survivors"]) for result in results.values())
    excused = sum(len(result["equivalent"]) for result in results.values())
    elsewhere = sum(result["elsewhere"] for result in results.values())
    by_room = ", ".join(
        f"{room} {result['killed']} of {result['killed'] + len(result['survivors'])}"
        for room, result in results.items()
    )
    score = killed / max(1, real)
    return [
        Figure(
            "mutation of the core",
            "90 % of real mutants killed by the unit tests",
            f"{100 * score:.1f} %: {killed} of {real} ({by_room}), {elsewhere} of them by tests of another room alone; "
            f"{excused} more change no result",
            score >= LEAST and not faults_of(list(results.values())),
            f"{MUTANTS} a room drawn with a seed (comparisons, arithmetic, constants, conditions, min and max); each "
            f"judged by its room's tests that reach its block, the quickest first, {SPENT:.0f} CPU s at most, then by "
            "those of other rooms likewise",
        )
    ]


PART = Part("mutation", portions, figures, at_once=1, sources=(
    *ROOMS, *(f"tests/{room}" for room in {*ROOMS, *OTHERS}), "benchmarks/reliability/mutation.py",
    "benchmarks/reliability/mutated_code.py", "benchmarks/reliability/reached_tests.py",
))  # fmt: skip
