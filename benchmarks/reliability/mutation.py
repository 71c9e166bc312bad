"""Mutation: small faults put into every package, one at a time, and whether the tests of its folder notice.

A mutant is judged by the tests that a developer of its package runs: the quick ones of the folder that mirrors it. All
mutants of a package lie in one copy of the tree behind switches (`switches`). Which tests pass a mutant's switch is
found out once; those judge it, the quickest first, until one fails or their CPU time is spent. A mutant without a
switch (a default, a constant, a line of a kernel) is put into a plain copy and judged in fresh processes, by the tests
that reach its file first and then by the others. A mutant that survives is equivalent, by a reason written down here,
or real.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.reliability.campaign import ROOT, Figure, Part, Portion, Result, Sized, code_digest, faults_of
from benchmarks.reliability.mutated_code import Mutant, sample
from benchmarks.reliability.switches import Reached, Switched, copy_tree, given_to_compiler, kernels_of
from taylor.base.console import log

PACKAGES = {
    **{name: (f"tests/{name}",) for name in (
        "base", "schemas", "register", "pipeline", "pipeline_solver", "cost_model", "layerwise", "parsers", "dryrun",
        "nd_search", "profiling", "blackbox", "report", "workflows", "serve",
    )},
    "taylor": ("tests/command_lines", "tests/api"),
}  # fmt: skip
"""Folders of tests that mirror each package."""
SAMPLES = {41017: 12}
"""Mutants a package by seed: a sample for which no test was written, unlike those before it."""
LEAST = 0.90
SPENT = 60.0
"""Limit of recorded CPU seconds for the tests of one mutant."""
LONGEST = 20
"""CPU seconds of the longest test that judges mutants."""
SHORT = 2.0
"""CPU seconds of a test that is asked early where it killed other mutants of the same file."""
PLACE = ROOT / "output" / "reliability" / "mutation"
TREES = Path(tempfile.gettempdir()) / f"taylor-mutation-{os.getuid()}"
"""Copies of the tree, always here: kernels are kept compiled by their path, and are the same for most packages."""

EQUIVALENT = ROOT / "benchmarks" / "reliability" / "equivalent_mutants.yaml"


def equivalent() -> dict[tuple[str, str], str]:
    """Reason by (file, line with the fault) of the mutants that change no result."""
    rows = yaml.safe_load(EQUIVALENT.read_text(encoding="utf-8"))
    return {(row["file"], row["line"]): row["reason"] for row in rows}


def portions(share: float = 1.0) -> list[Portion]:
    """A portion a package and sample."""
    return [
        Portion(f"{package}-{seed}", judged, {"package": package, "count": max(1, round(count * share)), "seed": seed})
        for seed, count in SAMPLES.items()
        for package in PACKAGES
    ]


def files_of(package: str, root: Path = ROOT) -> list[str]:
    """The package's sources."""
    return sorted(str(path.relative_to(root)) for path in (root / package).rglob("*.py"))


@contextlib.contextmanager
def own_trees() -> Iterator[Path]:
    """A folder for copies of the tree that no other process has meanwhile; there are as many as processes at once."""
    TREES.mkdir(exist_ok=True)
    for number in itertools.count():
        with open(TREES / f"{number}.lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield TREES / str(number)
            return


def recorded(package: str, place: Path) -> Reached:
    """The tests that mirror a package with the switches that they pass in a rewritten copy of the tree.

    A recording that was broken off goes on, and of tests written since their files alone are run; one of other code is
    made again.
    """
    kept = PLACE / "tests" / f"{package}-{code_digest((package,))}.jsonl"
    whole = kept.with_name(f"{package}-{code_digest((package, *PACKAGES[package]))}.whole")
    if not whole.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", "benchmarks.reliability.switches", "record", str(place), str(kept), str(LONGEST)]
        run = subprocess.run([*words, *PACKAGES[package]], cwd=place, env=_environment(place), capture_output=True)
        if run.returncode in (0, 1):  # with all tests run, whether or not some failed; another code is a broken end
            whole.touch()
    return Reached.read(kept, ROOT)


def _compile_kernels(place: Path) -> None:
    """Compile the solver's kernels in a copied tree, so that no test there spends its time on it."""
    code = "from benchmarks.reliability.__main__ import compile_kernels; compile_kernels()"
    subprocess.run([sys.executable, "-c", code], cwd=place, env=_environment(place), capture_output=True)


def _environment(place: Path, **more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(place), "OMP_NUM_THREADS": "1", "NUMBA_CACHE_DIR": str(PLACE / "kernels")}
    return {**os.environ, **own, **more}


def judged(package: str, count: int, seed: int) -> Result:
    """Every mutant of a package's sample, each with its verdict; those judged before are not judged again.

    A mutant that was killed before the tests changed is asked first of the test that killed it.
    """
    tests = code_digest(PACKAGES[package])
    kept = PLACE / "judged" / f"{package}-{seed}-{code_digest((package,))}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    before = {row["mutant"]: Verdict(row["outcome"], row["by"]) for row in rows}
    done = {row["mutant"]: before[row["mutant"]] for row in rows if row["tests"] == tests}
    mutants = sample(ROOT, files_of(package), count, f"{seed} {package}")
    left = [mutant for mutant in mutants if str(mutant) not in done]
    if left:
        with own_trees() as trees, Judge(trees, package) as judge:
            for mutant in left:
                verdict = done[str(mutant)] = judge.verdict(mutant, before.get(str(mutant), Verdict("")).by)
                log.info("%s %s: %s", verdict.outcome, verdict.by, mutant)
                with kept.open("a") as stream:
                    row = {"mutant": str(mutant), "outcome": verdict.outcome, "by": verdict.by, "tests": tests}
                    stream.write(json.dumps(row) + "\n")
    verdicts = {str(mutant): done[str(mutant)] for mutant in mutants}
    reasons = equivalent()
    excused = {
        str(mutant): reasons[key]
        for mutant in mutants
        if (key := (mutant.file, mutant.line_of(ROOT))) in reasons and not verdicts[str(mutant)].killed
    }
    survivors = {
        name: verdict.outcome for name, verdict in verdicts.items() if not verdict.killed and name not in excused
    }
    return {
        "mutants": len(mutants), "killed": sum(verdict.killed for verdict in verdicts.values()), "equivalent": excused,
        "survivors": survivors, "faults": [],
    }  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """Verdict of tests on a mutant.

    Parameters
    ----------
    outcome : str
        ``killed``, ``time`` (they never ended), ``survived``, ``survived a part`` of the tests that reach it,
        ``unreached``, or ``broken``.
    by : str
        The test that failed.
    """

    outcome: str
    by: str = ""

    @property
    def killed(self) -> bool:
        """Return whether the tests noticed."""
        return self.outcome in ("killed", "time")


class Judge:
    """A copy of the tree in which every mutant of a package has a switch, and a plain one for those that cannot.

    Each has a process that runs its tests, started when it is needed.
    """

    def __init__(self, folder: Path, package: str):
        self.package = package
        self.switched_place, self.plain_place, self.failure = folder / "switched", folder / "plain", folder / "failure"
        shutil.rmtree(folder, ignore_errors=True)
        copy_tree(ROOT, self.switched_place)
        self.switched = Switched.put(self.switched_place, files_of(package, self.switched_place))
        _compile_kernels(self.switched_place)
        self.killers: dict[str, Counter[str]] = {}
        self.reached = recorded(package, self.switched_place)
        self.server: Server | None = None
        self.plain: PlainJudge | None = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.server, self.plain):
            if process is not None:
                process.end()

    def verdict(self, mutant: Mutant, first: str = "") -> Verdict:
        """Verdict of the tests that may notice a mutant, as far as their time allows.

        Parameters
        ----------
        first : str
            A test that is asked before all others.
        """
        rows = self.reached.tests_at(self.switched.telling(ROOT, mutant))
        if not rows:
            return Verdict("unreached")
        near = self.killers.setdefault(mutant.file, Counter())
        rows.sort(key=lambda row: (row["test"] != first, -near[row["test"]] if row["cpu"] < SHORT else 0))
        if self.switched.numbers[mutant] not in self.switched.placed:
            # A constant of a module is read by code of other files too.
            asked = {row["test"] for row in rows}
            rows += [row for row in self.reached.tests_at(()) if row["test"] not in asked]
        taken: list[dict[str, Any]] = []
        spent = 0.0
        for row in rows:
            if not taken or spent + row["cpu"] <= SPENT:
                taken.append(row)
                spent += row["cpu"]
        verdict = self._judged(mutant, [row["test"] for row in taken], spent)
        near[verdict.by] += verdict.killed
        return verdict if verdict.outcome != "survived" or len(taken) == len(rows) else Verdict("survived a part")

    def _judged(self, mutant: Mutant, tests: list[str], spent: float) -> Verdict:
        number = self.switched.numbers[mutant]
        if number in self.switched.placed:
            if self.server is None:
                words = ("switches", "judge", str(self.switched_place), str(self.failure), "0", *PACKAGES[self.package])
                self.server = Server(words, self.switched_place)
            return self.server.ask({"mutant": number, "tests": tests, "seconds": spent})
        if self.plain is None:
            copy_tree(ROOT, self.plain_place)
            _compile_kernels(self.plain_place)
            self.plain = PlainJudge(self.plain_place)
        return self.plain.with_mutant(mutant, tests, spent)


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
        return Verdict(said["outcome"], said["by"])

    def end(self) -> None:
        """Let the process go."""
        self.jobs.close()
        self.process.wait()
        self.answers.close()


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """Rows of the table: one a sample."""
    packages = {package for package in PACKAGES if any(name.rpartition("-")[0] == package for name in results)}
    return [
        _figure(seed, {package: results[f"{package}-{seed}"] for package in PACKAGES if package in packages})
        for seed in SAMPLES
    ]


def _figure(seed: int, results: Mapping[str, Result]) -> Figure:
    real = {package: result["killed"] + len(result["survivors"]) for package, result in results.items()}
    killed = sum(result["killed"] for result in results.values())
    excused = sum(len(result["equivalent"]) for result in results.values())
    number = max(result["mutants"] for result in results.values())
    by_package = ", ".join(f"{package} {result['killed']} of {real[package]}" for package, result in results.items())
    return Figure(
        f"mutation of every package, seed {seed}",
        "90 % of real mutants of each package killed by the quick tests of its folder",
        f"{100 * killed / max(1, sum(real.values())):.1f} %: {killed} of {sum(real.values())} ({by_package}); "
        f"{excused} more change no result",
        all(result["killed"] >= LEAST * real[package] for package, result in results.items())
        and not faults_of(list(results.values())),
        f"{number} a package drawn with a seed (comparisons, arithmetic, constants, conditions, min and max); "
        f"each judged by the tests of the mirroring folder that reach its block, the quickest first, {SPENT:.0f} CPU s "
        "at most",
    )


PART = Part("mutation", portions, figures, table=Sized(0.17, minutes=22), sources=(
    *PACKAGES, *(folder for folders in PACKAGES.values() for folder in folders), "benchmarks/reliability/mutation.py",
    "benchmarks/reliability/equivalent_mutants.yaml",
))  # fmt: skip
