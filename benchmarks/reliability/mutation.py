"""Mutation: small faults put into the core, one at a time, and whether the unit tests notice.

All mutants lie in one copy of the tree behind switches (`switches`). Which tests pass a mutant's switch is found out
once; it is judged by those of its own package, the quickest first, until one fails or their CPU time is spent, and then
by those of the other packages in the same way. A mutant without a switch (a default, a constant, a line of a kernel) is
put into a plain copy and judged in fresh processes. A mutant that survives is equivalent, by a reason written down
here, or real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Result, code_digest, faults_of
from benchmarks.reliability.mutated_code import Mutant, sample
from benchmarks.reliability.switches import Reached, Switched, copy_tree, given_to_compiler, kernels_of
from taylor.base.console import log

ROOMS = ("cost_model", "pipeline_solver", "nd_search", "parsers", "profiling", "dryrun", "pipeline")
OTHERS = ("register", "pipeline", "cost_model", "parsers", "profiling", "nd_search", "report", "pipeline_solver",
          "workflows", "layerwise", "dryrun")  # fmt: skip
"""Folders of tests that judge the mutants that a package's own tests let pass."""
SAMPLES = {8827: 12}
"""Mutants a package by seed: a sample for which no test was written, unlike those before it."""
LEAST = 0.90
SPENT = 60.0
"""Limit of recorded CPU seconds for the tests of one mutant: those of its package, and those of others."""
LONGEST = 20
"""CPU seconds of the longest test that judges mutants."""
SHORT = 2.0
"""CPU seconds of a test that is asked early where it killed other mutants of the same file."""
PLACE = ROOT / "output" / "reliability" / "mutation"

EQUIVALENT = ROOT / "benchmarks" / "reliability" / "equivalent_mutants.yaml"


def equivalent() -> dict[tuple[str, str], str]:
    """Reason by (file, line with the fault) of the mutants that change no result."""
    rows = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))
    return {(row["file"], row["line"]): row["reason"] for row in rows}


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a package and sample."""
    return [
        Portion(f"{room}-{seed}", judged, {"room": room, "count": max(1, round(count * share)), "seed": seed})
        for seed, count in SAMPLES.items()
        for room in ROOMS
    ]


def files_of(room: str, root: Path = ROOT) -> list[str]:
    """The package's sources."""
    return sorted(str(path.relative_to(root)) for path in (root / room).rglob("*.py"))


def recorded(folder: str, place: Path) -> Reached:
    """The tests of a folder with the switches that they pass in a rewritten copy of the tree.

    A recording that was broken off goes on, and of tests written since their files alone are run; one of other code is
    made again.
    """
    kept = PLACE / "tests" / f"{folder}-{code_digest(ROOMS)}.jsonl"
    whole = kept.with_name(f"{folder}-{code_digest((*ROOMS, f'tests/{folder}'))}.whole")
    if not whole.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "benchmarks.reliability.switches", "record", str(place), str(kept), str(LONGEST)]
        run = subprocess.run([*words, f"tests/{folder}"], cwd=place, env=_environment(place), capture_output=True)
        if run.returncode in (0, 1):  # with all tests run, whether or not some failed; another code is a broken end
            whole.touch()
    return Reached.read(kept, ROOT)


def _compile_kernels(place: Path) -> None:
    """Compile the solver's kernels in a copied tree, so that no test there spends its time on it."""
    code = "from benchmarks.reliability.__main__ import compile_kernels; compile_kernels()"
    subprocess.run([sys.executable, "-c", code], cwd=place, env=_environment(place), capture_output=True)


def _environment(place: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", **more}


def judged(room: str, count: int, seed: int, others: Sequence[str] = OTHERS) -> Result:
    """Every mutant of a package's sample, each with its verdict; those judged before are not judged again.

    A mutant that was killed before the tests changed is asked first of the test that killed it.

    Parameters
    ----------
    others : sequence of str
        Folders of tests for mutants that the package's own let pass, those with the quickest tests of a line first.
    """
    further = [folder for folder in others if folder != room]
    tests = code_digest([f"tests/{each}" for each in (room, *further)])
    kept = PLACE / "judged" / f"{room}-{seed}-{code_digest((room,))}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    before = {row["mutant"]: Verdict(row["told"], row["by"]) for row in rows}
    done = {row["mutant"]: before[row["mutant"]] for row in rows if row["tests"] == tests}
    mutants = sample(ROOT, files_of(room), count, f"{seed} {room}")
    left = [mutant for mutant in mutants if str(mutant) not in done]
    if left:
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder, Judge(Path(folder)) as judge:
            for mutant in left:
                known = before.get(str(mutant), Verdict("", ""))
                told = judge.verdict(mutant, [room], known.by)
                if not told.killed and further:
                    elsewhere = judge.verdict(mutant, further)
                    told = elsewhere if told.told == "unreached" or elsewhere.told != "unreached" else told
                done[str(mutant)] = told
                log.info("%s %s: %s", told.told, told.by, mutant)
                with kept.open("a") as stream:
                    row = {"mutant": str(mutant), "told": told.told, "by": told.by, "tests": tests}
                    stream.write(json.dumps(row) + "\n")
    verdicts = {str(mutant): done[str(mutant)] for mutant in mutants}
    reasons = equivalent()
    excused = {
        str(mutant): reasons[key]
        for mutant in mutants
        if (key := (mutant.file, mutant.line_of(ROOT))) in reasons and not verdicts[str(mutant)].killed
    }
    survivors = {name: told.told for name, told in verdicts.items() if not told.killed and name not in excused}
    return {
        "mutants": len(mutants), "killed": sum(told.killed for told in verdicts.values()), "equivalent": excused,
        "elsewhere": sum(told.by != "" and not told.by.startswith(f"tests/{room}/") for told in verdicts.values()),
        "survivors": survivors, "faults": [],
    }  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Verdict of tests on a mutant.

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
        """Return whether the tests noticed."""
        return self.told in ("killed", "time")


class Judge:
    """A copy of the tree in which every mutant has a switch, and a plain one for those that cannot have one.

    Each has a process that runs its tests, started when it is needed.
    """

    def __init__(self, folder: Path):
        self.switched_place, self.plain_place, self.failure = folder / "switched", folder / "plain", folder / "failure"
        copy_tree(ROOT, self.switched_place)
        files = [file for each in ROOMS for file in files_of(each, self.switched_place)]
        self.switched = Switched.put(self.switched_place, files)
        _compile_kernels(self.switched_place)
        self.servers: dict[tuple[str, ...], Server] = {}
        self.killers: dict[str, Counter[str]] = {}
        self.recordings: dict[tuple[str, ...], Reached] = {}
        self.plain: PlainJudge | None = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.end()
        if self.plain is not None:
            self.plain.end()

    def verdict(self, mutant: Mutant, folders: Sequence[str], first: str = "") -> Verdict:
        """Verdict of the tests of some folders that may notice a mutant, as far as their time allows.

        Parameters
        ----------
        first : str
            A test that is asked before all others.
        """
        rows = self._recorded(tuple(folders)).tests_at(self.switched.telling(ROOT, mutant))
        if not rows:
            return Verdict("unreached")
        near = self.killers.setdefault(mutant.file, Counter())
        rows.sort(key=lambda row: (row["test"] != first, -near[row["test"]] if row["cpu"] < SHORT else 0))
        taken: list[dict[str, Any]] = []
        spent = 0.0
        for row in rows:
            if not taken or spent + row["cpu"] <= SPENT:
                taken.append(row)
                spent += row["cpu"]
        told = self._told(mutant, folders, [row["test"] for row in taken], spent)
        near[told.by] += told.killed
        return told if told.told != "survived" or len(taken) == len(rows) else Verdict("survived a part")

    def _recorded(self, folders: tuple[str, ...]) -> Reached:
        if folders not in self.recordings:
            rows = [row for each in folders for row in recorded(each, self.switched_place).rows]
            self.recordings[folders] = Reached(tuple(rows))
        return self.recordings[folders]

    def _told(self, mutant: Mutant, folders: Sequence[str], tests: list[str], spent: float) -> Verdict:
        number = self.switched.numbers[mutant]
        if number in self.switched.placed:
            words = ["switches", "judge", str(self.switched_place), str(self.failure), "0"]
            server = self._server(tuple(words) + tuple(f"tests/{each}" for each in folders), self.switched_place)
            return server.ask({"mutant": number, "tests": tests, "seconds": spent})
        if self.plain is None:
            copy_tree(ROOT, self.plain_place)
            _compile_kernels(self.plain_place)
            self.plain = PlainJudge(self.plain_place)
        return self.plain.with_mutant(mutant, tests, spent)

    def _server(self, words: tuple[str, ...], place: Path) -> Server:
        if words not in self.servers:
            self.servers[words] = Server(words, place)
        return self.servers[words]


class PlainJudge:
    """A copied tree, into whose files mutants are put one at a time, and the process that runs its tests afresh."""

    def __init__(self, place: Path):
        self.place = place
        self.server: Server | None = None

    def with_mutant(self, mutant: Mutant, tests: list[str], spent: float) -> Verdict:
        """Verdict on a mutant of tests that usually take `spent` CPU seconds."""
        path = self.place / mutant.file
        before = path.read_bytes()
        self.server = self.server or Server(("judging_server",), self.place)
        with tempfile.TemporaryDirectory(prefix="kernels-") as kernels:
            # Kernels are kept compiled by the state of their own file alone: what another one calls must be new too.
            fresh = {"NUMBA_CACHE_DIR": kernels} if kernels_of(before, given_to_compiler(ROOT)) else {}
            path.write_bytes(mutant.put_in(before))
            try:
                job = {"tests": tests, "environment": fresh}
                limits = {"cpu_seconds": 30 + 5 * spent + 120 * bool(fresh), "wall_seconds": 600 + 20 * spent}
                return self.server.ask({**job, **limits})
            finally:
                path.write_bytes(before)

    def end(self) -> None:
        """Let the process go."""
        if self.server is not None:
            self.server.end()


class Server:
    """A process that answers a line of JSON by another."""

    def __init__(self, words: Sequence[str], place: Path):
        (jobs, self._jobs), (self._answers, answers) = os.pipe(), os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.reliability.{words[0]}", *words[1:]], cwd=place,
            env=_environment(place, JOBS=str(jobs), ANSWERS=str(answers)), pass_fds=(jobs, answers),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(jobs)
        os.close(answers)
        self.jobs, self.answers = os.fdopen(self._jobs, "w"), os.fdopen(self._answers)

    def ask(self, job: Mapping[str, object]) -> Verdict:
        """Its word on one job."""
        try:
            self.jobs.write(json.dumps(job) + "\n")
            self.jobs.flush()
        except BrokenPipeError:
            return Verdict("broken")
        answer = self.answers.readline()
        if not answer:
            return Verdict("broken")
        said = json.loads(answer)
        return Verdict(said["told"], said["by"])

    def end(self) -> None:
        """Let the process go."""
        self.jobs.close()
        self.process.wait()
        self.answers.close()


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
    "benchmarks/reliability/mutated_code.py", "benchmarks/reliability/switches.py",
    "benchmarks/reliability/equivalent_mutants.yaml",
))  # fmt: skip
