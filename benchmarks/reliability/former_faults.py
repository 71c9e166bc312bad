"""Former faults: each put back into a copy of the tree, where the tests that hold it must fail.

The faults are those that reading other people's files and code once showed (planned jobs read wrongly, schedules and
legality not as the frameworks run them). Where a line of today can be made wrong as it was, it is.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reliability.campaign import PACKAGES, ROOT, Figure, Part, Portion, Result, Sized, faults_of
from benchmarks.reliability.former_list import FORMER
from benchmarks.reliability.mutated_code import Mutant
from benchmarks.reliability.mutation import PlainJudge
from benchmarks.reliability.switches import copy_tree

PORTIONS = 4


def portions(share: float = 1.0) -> list[Portion]:
    """Portions of nearly equal size; a small share takes faults spread over the list."""
    count = max(1, round(len(FORMER) * share))
    taken = [at * len(FORMER) // count for at in range(count)]
    return [Portion(f"put-back-{k}", put_back, {"places": taken[k::PORTIONS]}) for k in range(min(PORTIONS, count))]


def put_back(places: Sequence[int]) -> Result:
    """Each of some faults by its place in the list, one after the other."""
    found: list[str] = []
    caught: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="former-") as folder:
        place = Path(folder) / "tree"
        copy_tree(ROOT, place)
        judge = PlainJudge(place)
        for former in (FORMER[place] for place in places):
            path = place / former.file
            source = path.read_bytes()
            at = source.find(former.old.encode())
            if at < 0:
                found.append(f"{former.fault}: {former.file} no longer contains `{former.old}`")
                caught[former.fault] = "absent"
                continue
            end = at + len(former.old.encode())
            mutant = Mutant(former.file, source[:at].count(b"\n") + 1, at, end, former.old, former.new, former.fault)
            outcome = judge.with_mutant(mutant, list(former.tests), spent=120.0).outcome
            caught[former.fault] = outcome
            if outcome != "killed":
                found.append(f"{former.fault}: {outcome} {', '.join(former.tests)}")
        judge.end()
    return {"faults": found, "caught": caught}


def figures(results: Mapping[str, Result]) -> Sequence[Figure]:
    """The row of the table."""
    wrong = faults_of(list(results.values()))
    tried = sum(len(result["caught"]) for result in results.values())
    return [
        Figure(
            "former faults put back", f"{len(FORMER)} faults, each caught by the tests that cover it",
            f"{tried - len(wrong)} of {tried} caught" + (f"; {'; '.join(wrong)}" if wrong else ""),
            not wrong,
            "a line made wrong again in a copy of the tree, and the tests run on it",
        )
    ]  # fmt: skip


PART = Part(
    "former_faults", portions, figures, nightly=0.2, table=Sized(1.0, minutes=8),
    sources=(*PACKAGES, "benchmarks/reliability/former_faults.py", "tests"),
)  # fmt: skip
