"""Ablation of the solver: each method switched off, each constant at half and at double.

    python -m benchmarks.ablation [--only tree. bounds.known_cuts ...] [--cases CASE ...] [--off] [--seconds S]
                                  [--table]

Every variant (`SolverParams` with one other value) solves the cases: 60 seeded random instances as one, recipes that
solve quickly, and cases of the solver's suite under a budget. The clock of a solve is this process's CPU time, so that
a budget is the same on a busy machine; counts of nodes, LPs and cuts do not depend on it. The defaults run again before
every fourth variant, and a ratio is to the median of these runs. First all parameters that a case reads are noted: a
variant of another parameter is the default and costs no run. Rows are kept in ``output/ablation.csv``: a stopped run
goes on where it was, after a change of the code the file is to be removed. ``--table`` prints the table as Markdown.
"""

from __future__ import annotations

import argparse
import csv
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.random_instances import DRAWN, STREAMS
from benchmarks.recipe_plans import recipe_file
from benchmarks.recipes import RECIPES, recipe_configs
from benchmarks.solver import deepseek, light_layers, pattern
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.params import DEFAULT_PARAMS, SolverParams
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.solving.solve import solve

FILE = Path(__file__).resolve().parents[1] / "output" / "ablation.csv"
READ = "read"
"""Variant of the rows that name the parameters which a case reads."""
DEFAULT = "defaults"
EVERY = 4
"""Variants between two runs of the defaults."""
FIGURES = ("cpu", "nodes", "lps", "cuts", "columns", "gap")
MOVED = 0.05
"""Least relative change of CPU time, nodes or gap that counts."""

OFF: dict[str, object] = {
    "tree.phases": False,
    "tree.node_plans": False,
    "tree.price_pool": False,
    "tree.probing": False,
    "tree.probe_annealing": False,
    "tree.enumeration": False,
    "tree.near_paths": 0,
    "tree.samples": 0,
    "tree.staged_share": 0.0,
    "tree.busiest_stage": False,
    "heuristics.starts": 0,
    "heuristics.long_searches": 0,
    "heuristics.loose_searches": 0,
    "heuristics.root_search": False,
    "heuristics.border_annealing": False,
    "heuristics.root_annealing": False,
    "bounds.count_lp": False,
    "bounds.flow_stages": 0,
    "bounds.half_way_cuts": False,
    "bounds.known_cuts": 0,
    "milp.few_chunks": 0,
    "milp.narrowing": False,
}
"""Values that switch a method off; without `tree.staged_share` no tree is abandoned, so that there are no targets."""

SHAPES = ("heuristics.moves", "heuristics.alternating_moves", "bounds.first_spread")
"""Parameters whose half and double are not meaningful."""


@dataclass(frozen=True)
class Case:
    """Problems that one row of figures sums up.

    Parameters
    ----------
    problems : callable
    seconds : float or None
        CPU seconds for each solve; None solves to the proof.
    base : SolverParams
        Parameters of which variants change one.
    """

    problems: Callable[[], Sequence[PipelineProblem]]
    seconds: float | None
    base: SolverParams = DEFAULT_PARAMS


def random_problems() -> Sequence[PipelineProblem]:
    """Sixty instances: stacks of alternating kinds, choices a layer, and kinds on one of several chunks."""
    return [
        DRAWN[drawn](np.random.default_rng([7, number, *STREAMS[drawn]]))
        for drawn, count in (("stacks", 40), ("choices", 10), ("entries", 10))
        for number in range(count)
    ]


def recipe(name: str) -> Sequence[PipelineProblem]:
    """The problem of a published recipe on its figure's device."""
    for row, config in recipe_configs(RECIPES):
        if row["script"].removesuffix(".sh") == name:
            file, memory = recipe_file(config, row["system"])
            return [file.problem(memory)]
    raise ValueError(f"{name} is no recipe of {RECIPES}")


def _one(make: Callable[..., PipelineProblem], *values: int) -> Callable[[], Sequence[PipelineProblem]]:
    return lambda: [make(*values)]


LPS_ALONE = DEFAULT_PARAMS.with_value("tree.enumeration", False)
"""Without enumeration, which closes the quicker cases at their root: what the other methods do in a tree."""

CASES = {
    "60 random": Case(random_problems, 2.0),
    "S16 V1 m64": Case(_one(deepseek, 16, 1, 64, 62), None),
    "S8 V2 m32": Case(_one(deepseek, 8, 2, 32, 30), 60.0),
    "S4 V2 m16": Case(_one(light_layers, 4, 2, 16, 30), 60.0),
    "S4 V3 m16": Case(_one(light_layers, 4, 3, 16, 30), 60.0),
    "S4 V3 3:1": Case(_one(pattern, 4, 3, 16, 30, 3), 60.0),
    "S16 V2 m64": Case(_one(deepseek, 16, 2, 64, 62), 60.0),
    "S8 V2 m32, tree": Case(_one(deepseek, 8, 2, 32, 30), 60.0, LPS_ALONE),
    "S16 V2 m64, tree": Case(_one(deepseek, 16, 2, 64, 62), 60.0, LPS_ALONE),
    "S8 V2 3:1, tree": Case(_one(pattern, 8, 2, 64, 48, 3), 60.0, LPS_ALONE),
    "recipe PP8 VP2": Case(
        functools.partial(recipe, "deepseek_v3_b200_256gpu_tp1pp8cp1vp2ep32_gbs4096mbs1s4096"), 60.0
    ),
    "recipe PP8 VP4": Case(
        functools.partial(recipe, "deepseek_v3_gb200_256gpu_tp1pp8cp1vp4ep32_gbs4096mbs1s4096_nomtp"), 60.0
    ),
    "recipe PP4 VP5": Case(functools.partial(recipe, "llama3_70b_h100_32gpu_tp4pp4cp1vp5ep1_gbs32mbs1s4096_sft"), 60.0),
    "S8 V2 3:1": Case(_one(pattern, 8, 2, 64, 48, 3), 20.0),
    "hard S4 V4 m60": Case(_one(light_layers, 4, 4, 60, 62), 40.0),
    "hard S8 V4 m32": Case(_one(light_layers, 8, 4, 32, 64), 40.0),
    "hard S16 V4 3:1": Case(_one(pattern, 16, 4, 64, 93, 3), 40.0),
}
"""Cases by name; the last three end at their budget, and their gaps are compared."""


def variants(names: Sequence[str], only_off: bool) -> Iterator[tuple[str, object]]:
    """Label and value of every variant of the parameters whose names begin with one of `names`: methods off first."""
    chosen = [(name, value) for name, value in DEFAULT_PARAMS.items() if not names or name.startswith(tuple(names))]
    yield from ((f"{name} off", OFF[name]) for name, _ in chosen if name in OFF)
    for name, value in [] if only_off else chosen:
        if name not in SHAPES and not isinstance(value, bool):
            for factor, word in ((0.5, "half"), (2.0, "double")):
                other = _times(value, factor)
                if other not in (value, OFF.get(name)):
                    yield f"{name} {word}", other


def _times(value: Any, factor: float) -> object:
    """A value at half or double; a fraction of at most 1 stays one."""
    if isinstance(value, tuple):
        return tuple(one * factor for one in value)
    if isinstance(value, int):
        return int(value * factor)
    return min(1.0, value * factor) if 0.1 <= value <= 1.0 else value * factor


class _Watched(SolverParams):
    """Parameters that note which of them are read."""

    def changed(self) -> dict[str, object]:
        return {}


def watched(seen: set[str], base: SolverParams = DEFAULT_PARAMS) -> SolverParams:
    """The same parameters; names of those that are read join `seen`."""

    def record(part: str) -> Any:
        kind = type(getattr(base, part))

        class Watching(kind):  # type: ignore[misc,valid-type]
            def __getattribute__(self, name: str) -> Any:
                if not name.startswith("_"):
                    seen.add(f"{part}.{name}")
                return super().__getattribute__(name)

        return Watching(**vars(getattr(base, part)))

    return _Watched(**{part.name: record(part.name) for part in fields(SolverParams)})


def measure(case: Case, params: SolverParams, seconds: float | None) -> dict[str, object]:
    """Solve a case: sums over its problems."""
    limit = case.seconds if case.seconds is None or seconds is None else min(case.seconds, seconds)
    row = dict.fromkeys(("objective", "bound", "nodes", "lps", "cuts", "columns", "unproven"), 0.0)
    began = time.process_time()
    for problem in case.problems():
        found = solve(problem, SolveOptions(time_limit=limit, params=params))
        row["objective"] += found.objective or 0.0
        row["bound"] += min(found.bound or 0.0, found.objective or 0.0)
        row["unproven"] += found.gap is not None and found.gap > 1e-6
        for name, of in (("nodes", "nodes"), ("lps", "lp_solves"), ("cuts", "cuts"), ("columns", "columns")):
            row[name] += found.statistics.get(of, 0.0)
    gap = (row["objective"] - row["bound"]) / row["objective"] if row["objective"] else 0.0
    return {**row, "gap": gap, "cpu": time.process_time() - began}


COLUMNS = ["case", "variant", "objective", "bound", "gap", "nodes", "lps", "cuts", "columns", "unproven", "cpu", "note"]


def read_rows(file: Path) -> list[dict[str, str]]:
    """The rows measured so far."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def run(file: Path, cases: Sequence[str], names: Sequence[str], only_off: bool, seconds: float | None) -> None:
    """Measure what is missing, case by case."""
    file.parent.mkdir(parents=True, exist_ok=True)
    time.monotonic = time.process_time  # budgets count CPU seconds
    done = read_rows(file)
    with file.open("a", newline="", encoding="utf-8") as stream:
        out = csv.DictWriter(stream, COLUMNS)
        if not done:
            out.writeheader()
        for name in cases:
            case = CASES[name]
            case = replace(case, problems=functools.partial(list, case.problems()))
            known = {row["variant"]: row for row in done if row["case"] == name}

            def note(variant: str, row: Mapping[str, object], name: str = name) -> None:
                out.writerow({"case": name, "variant": variant, **row})
                stream.flush()

            if READ not in known:
                measure(case, case.base, 1.0)  # kernels are compiled before anything is measured
                seen: set[str] = set()
                row = measure(case, watched(seen, case.base), seconds)
                known[READ] = {"note": " ".join(sorted(seen))}
                note(READ, {**row, **known[READ]})
            read = known[READ]["note"].split()
            wanted = [
                (label, value)
                for label, value in variants(names, only_off)
                if label not in known and label.split()[0] in read
            ]
            for k, (label, value) in enumerate(wanted):
                if k % EVERY == 0:
                    note(DEFAULT, measure(case, case.base, seconds))
                try:
                    note(label, measure(case, case.base.with_value(label.split()[0], value), seconds))
                except Exception as error:  # one variant that fails says so, the others go on
                    note(label, {"note": f"{type(error).__name__}: {error}"})


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The measured variants as Markdown: a table of methods, and a list of the constants that move a count.

    A cell has the CPU time relative to the defaults, then nodes and gap where these differ by 5 %. Constants are judged
    by counts and gaps alone, which a busy machine does not change.
    """
    cases = list(dict.fromkeys(row["case"] for row in rows))
    default: dict[str, dict[str, float]] = {}
    for name in cases:
        runs = [row for row in rows if row["case"] == name and row["variant"] == DEFAULT]
        default[name] = {key: median(float(row[key]) for row in runs) for key in FIGURES} if runs else {}
    lines = [
        "| off | " + " | ".join(cases) + " |",
        "|---|" + "--:|" * len(cases),
        "| nothing: CPU s, nodes, gap | " + " | ".join(_standard(default[name]) for name in cases) + " |",
    ]
    cells = {(row["variant"], row["case"]): row for row in rows}
    moved: dict[str, list[str]] = {}
    for variant in dict.fromkeys(row["variant"] for row in rows if row["variant"] not in (READ, DEFAULT)):
        name, word = variant.split()
        if word == "off":
            found = [_cell(cells.get((variant, case)), default[case]) for case in cases]
            lines.append(f"| `{name}` | " + " | ".join(found) + " |")
            continue
        own = [(case, cells[variant, case]) for case in cases if (variant, case) in cells and default[case]]
        moved.setdefault(name, [])
        moved[name] += [f"{word} on {case} ({change})" for case, row in own if (change := _change(row, default[case]))]
    lines += ["", "Constants that move a count or a gap by 5 %:", ""]
    lines += [f"- `{name}`: {', '.join(found)}" for name, found in moved.items() if found]
    lines += ["", "Read, and move none: " + ", ".join(f"`{name}`" for name, found in moved.items() if not found) + "."]
    known = {name for row in rows if row["variant"] == READ for name in row["note"].split()} | set(moved)
    lines += [
        "",
        "Not read: " + ", ".join(f"`{name}`" for name, _ in DEFAULT_PARAMS.items() if name not in known) + ".",
    ]
    return "\n".join(lines)


def _change(row: Mapping[str, str], default: Mapping[str, float]) -> str:
    """The first count or the gap that differs from the defaults' by 5 %; empty where none does."""
    if not row["cpu"]:
        return "fails"
    for key in ("nodes", "lps", "cuts", "columns"):
        before, after = default[key], float(row[key])
        if abs(after - before) > MOVED * max(before, 1.0):
            return f"{after:.0f} {key}, not {before:.0f}"
    gap = float(row["gap"])
    differs = abs(gap - default["gap"]) > max(1e-5, MOVED * default["gap"])
    return f"gap {gap:.2%}, not {default['gap']:.2%}" if differs else ""


def _standard(of: Mapping[str, float]) -> str:
    return "–" if not of else f"{of['cpu']:.1f}, {of['nodes']:.0f}, {of['gap']:.2%}"


def _cell(row: Mapping[str, str] | None, default: Mapping[str, float]) -> str:
    """CPU ratio, then the ratio of nodes, and the gap, where these differ from the defaults."""
    if row is None or not default:
        return "–"
    if not row["cpu"]:
        return "fails"
    nodes = float(row["nodes"]) / default["nodes"] if default["nodes"] else 1.0
    text = f"{float(row['cpu']) / default['cpu']:.2f}"
    text += f", {nodes:.2f} n" if abs(nodes - 1.0) > MOVED else ""
    gap = float(row["gap"])
    return text + (f", {gap:.2%}" if abs(gap - default["gap"]) > max(1e-5, MOVED * default["gap"]) else "")


def main(arguments: list[str] | None = None) -> int:
    """Measure the chosen variants on the chosen cases, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="beginnings of the parameters' names")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--off", action="store_true", help="switch methods off, and leave constants out")
    parser.add_argument("--seconds", type=float, help="most CPU seconds a solve")
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--table", action="store_true", help="print the table of what is measured")
    chosen = parser.parse_args(arguments)
    if not chosen.table:
        run(chosen.file, chosen.cases, chosen.only, chosen.off, chosen.seconds)
    print(table(read_rows(chosen.file)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
