"""The layer-wise search by the thousand: against brute force, under its checker, against Galvatron's plans.

    python -m benchmarks.layerwise_campaign [brute] [milp] [checker] [rivals] [--processes 1] [--fresh]

``brute``: random small jobs of one kind of layers or two, equal to the best of every plan to 1e-9. ``milp``:
the first of these against the MILP, to 1e-7. ``checker``:
further ones, whose plans the checker plays in exact arithmetic. ``rivals``: Galvatron's own search on a measured
profile that is scaled at random, 8 to 96 layers on 8 to 256 cards, both plans on the same costs: never worse. Portions
are kept in ``output/layerwise_campaign``: a killed campaign goes on where it was, other code starts again. The exit
code is 1 when anything differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.layerwise_brute_force import compare, compare_milp, random_case
from benchmarks.reliability.campaign import Figure, Part, Portion, Result, faults_of, run_part, total
from taylor.base.console import start_logging
from taylor.base.errors import InputError
from taylor.command_lines.layerwise import build_parser
from taylor.command_lines.layerwise_options import search_request
from taylor.layerwise.checker import check_plan
from taylor.workflows.layerwise.layerwise_search import search_job

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "output" / "layerwise_campaign"
DATA = ROOT.parent / "shared" / "data"
SOURCES = (
    "layerwise",
    "cost_model/measured",
    "benchmarks/layerwise_brute_force.py",
    "benchmarks/layerwise_campaign.py",
)
OF_A_PORTION = {"brute": 20, "milp": 20, "checker": 50, "rivals": 1}
CASES = {"brute": 2000, "milp": 300, "checker": 5000, "rivals": 200}
ASKED = {
    "brute": "equal to brute force to 1e-9",
    "milp": "equal to the MILP to 1e-7",
    "checker": "nothing found",
    "rivals": "never worse than Galvatron's plan on the same costs",
}
GAP = 1e-3


def brute(first: int, count: int) -> Result:
    """Some small jobs against all plans."""
    faults = [f"case {seed}: {fault}" for seed in range(first, first + count) if (fault := compare(seed)[0])]
    return {"cases": count, "faults": faults}


def milp(first: int, count: int) -> Result:
    """Some small jobs against the MILP."""
    faults = [f"case {seed}: {fault}" for seed in range(first, first + count) if (fault := compare_milp(seed))]
    return {"cases": count, "faults": faults}


def checker(first: int, count: int) -> Result:
    """Some small jobs whose plans the checker plays."""
    faults, plans = [], 0
    for seed in range(first + 10**6, first + 10**6 + count):
        case = random_case(seed)
        found = case.solve(gap=1e-4)
        if found.plan is None:
            continue
        plans += 1
        violations = check_plan(case.job, found.plan, case.costs, claimed_s=found.step_s).faults
        faults += [f"case {seed}: {fault}" for fault in violations]
        if found.bound_s > found.step_s * (1 + 1e-9):
            faults.append(f"case {seed}: the bound {found.bound_s!r} is above the step {found.step_s!r}")
    return {"cases": count, "plans": plans, "faults": faults}


def rivals(first: int, count: int) -> Result:
    """Some scaled jobs, each searched as Galvatron does and as we do."""
    faults, plans, gain = [], 0, 0.0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory() as folder:
            words = scaled_job(np.random.default_rng(seed), Path(folder))
            request = search_request(build_parser().parse([*words, "--gap", str(GAP), "-t", "30"]))[1]
            try:
                found = search_job(request)
            except InputError as error:
                faults.append(f"job {seed}: {error}")
                continue
        rival = found.rival
        if rival is None or rival.found.faults:
            continue
        plans += 1
        theirs = rival.plan.global_batch / rival.found.step_s
        ours = found.result.samples_a_s
        gain += math.log(ours / theirs) if ours else 0.0
        if ours < theirs * (1 - GAP):
            faults.append(f"job {seed}: {ours} samples/s, Galvatron {theirs}, gap {found.result.gap:.2%}: {words[1:]}")
    return {"cases": count, "plans": plans, "log_gain": gain, "faults": faults}


def scaled_job(rng: np.random.Generator, folder: Path) -> list[str]:
    """Profiles scaled and written, and the words that ask for a search of them."""
    profiles = json.loads((DATA / "galvatron_tests/hetu_cases.json").read_text(encoding="utf-8"))["profiles"]
    nodes = 2 ** int(rng.integers(0, 6))
    world, layers = 8 * nodes, int(rng.integers(8, 97))
    time, memory, links = rng.uniform((0.3, 0.3, 0.5), (3, 1.5, 2))
    machine = f"{nodes}nodes_8gpus_per_node"
    hardware = profiles["hardware"]
    bandwidth = {f"allreduce_size_{world}_consec_1": 60.0 * links}
    transfer = {}
    for ranks in (2**k for k in range(1, world.bit_length())):
        near = links * (160.0 if ranks <= 8 else 60.0)
        transfer[f"pp_size_{ranks}"] = 0.8 * near
        if ranks < world:
            bandwidth |= {f"allreduce_size_{ranks}_consec_1": near, f"allreduce_size_{ranks}_consec_0": 0.9 * near}
    files: dict[str, Any] = {
        f"allreduce_bandwidth_{machine}": bandwidth,
        f"p2p_bandwidth_{machine}": transfer,
        f"sp_time_{machine}": {key: value / links for key, value in hardware["sp"].items()},
        "overlap_coefficient": hardware["overlap"],
        "computation_profiling_bf16_toy_all": {key: value * time for key, value in profiles["time_sequence"].items()},
        "memory_profiling_bf16_toy_all": _scaled(profiles["memory_sequence_sp"], memory),
    }
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    batch = world * int(2 ** rng.integers(1, 4))
    limit = int(rng.choice([24, 36, 48, 80]))
    job = f"--world_size {world} --layers {layers} --hidden 4096 --seq 8192 --memory {limit} --gbs {batch}"
    many = max(1, batch // int(2 ** rng.integers(0, 5)))
    modes = "--time_mode sequence --memory_mode sequence --costs galvatron --whole_mib --max_tp_deg 8 --max_sp_deg 8"
    return [str(folder), *job.split(), *modes.split(), "--max_pp_deg", "8", "--micro_batches", str(many)]


def _scaled(data: Any, by: float) -> Any:
    if isinstance(data, dict):
        return {key: _scaled(value, by) for key, value in data.items()}
    return data * by if isinstance(data, (int, float)) else data


def figures(results: Mapping[str, Result], name: str) -> Sequence[Figure]:
    """One part in one row."""
    every = list(results.values())
    wrong = faults_of(every)
    measured = f"{total(every, 'cases')} cases: {len(wrong)} wrong"
    plans = total(every, "plans") if name in ("checker", "rivals") else 0
    if name == "rivals" and plans:
        gain = math.exp(sum(each["log_gain"] for each in every) / plans) - 1
        measured += f"; {plans} with a plan of Galvatron's that fits, {gain:.1%} faster on average"
    return [Figure(f"layer-wise: {name}", ASKED[name], measured, not wrong, "; ".join(wrong))]


def part(name: str, cases: int | None = None) -> Part:
    """One part in portions."""
    function = {"brute": brute, "milp": milp, "checker": checker, "rivals": rivals}[name]
    step = OF_A_PORTION[name]
    portions = [
        Portion(f"{first:05d}", function, {"first": first, "count": step})
        for first in range(0, cases or CASES[name], step)
    ]
    return Part(name, lambda _: portions, partial(figures, name=name), at_once=64, sources=SOURCES)


def main(arguments: list[str] | None = None) -> int:
    """Run what is missing of the parts, name every difference and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*CASES, []], default=list(CASES))
    parser.add_argument("--cases", type=int, help="of each part (default: all)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh", action="store_true", help="solve again what an earlier run left")
    chosen = parser.parse_args(arguments)
    start_logging()
    passed = True
    for name in chosen.parts:
        (row,) = run_part(part(name, chosen.cases), FOLDER, processes=chosen.processes, fresh=chosen.fresh)
        passed = passed and row.passed
        print(f"{row.name}: {row.measured}" + ("" if row.passed else f"\n{row.how}"), flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
