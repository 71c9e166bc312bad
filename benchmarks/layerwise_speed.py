"""Time of the layer-wise search on large jobs: one outer choice, whole searches, many interleaved stages.

python -m benchmarks.layerwise_speed [fixed] [hetu] [cards64] [cards64v4] [interleaved]
"""

from __future__ import annotations

import argparse
import itertools
import json
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taylor.command_lines.layerwise import build_parser
from taylor.command_lines.layerwise_options import search_request
from taylor.cost_model.measured.cost_table import CostRow, EndCost, EndCosts, Layout, MemorySettings
from taylor.cost_model.measured.layer_strategy import EndStrategy, LayerStrategy
from taylor.layerwise.checker import check_plan
from taylor.layerwise.exact.fixed import FixedProblem
from taylor.layerwise.exact.solve import FixedSolution, solve_fixed
from taylor.layerwise.job import LayerwiseJob, OuterChoice
from taylor.pipeline.schedule import ScheduleSpec
from taylor.workflows.layerwise.layerwise_search import search_job

DATA = Path(__file__).parents[2] / "shared" / "data"
RANKS = 8
ENDS = EndStrategy(tp=8)


@dataclass(frozen=True)
class StatedCosts:
    """Costs by simple laws: splitting a layer costs time, and saves memory; so do ZeRO-3 and recompute."""

    name: str = "stated"
    kinds: tuple[str, ...] = ("body",)
    memory: MemorySettings = MemorySettings()

    def layer(self, kind: str, strategy: LayerStrategy, setting: Any) -> CostRow:
        """See `CostProvider`."""
        forward = 0.02 * (1 + 0.06 * (strategy.ways.bit_length() - 1) + 0.015 * (strategy.sp > 1))
        forward *= 1 + 0.04 * (strategy.zero == 3)
        share = {0: 1.0, 2: 0.25 + 0.75 / strategy.replicas, 3: 1 / strategy.replicas}[strategy.zero]
        activation = 900.0 * (0.08 if strategy.recompute else 1.0) * (1.1 if strategy.sp > 1 else 1.0)
        again = forward if strategy.recompute else 0.0
        tail = 0.004 * (strategy.replicas - 1) / strategy.replicas
        layout = Layout.of(strategy, True)
        return CostRow(
            forward, 2 * forward + again, tail, 3000 / strategy.tp * share, activation, kind, strategy, layout
        )

    def ends(self, strategy: EndStrategy, setting: Any) -> EndCosts:
        """See `CostProvider`."""
        return EndCosts(EndCost(0.002, 0.004, 0.001, 900.0, 60.0), EndCost(0.012, 0.024, 0.001, 900.0, 250.0))

    def layout_change_s(self, before: Layout, after: Layout, setting: Any) -> float:
        """See `CostProvider`."""
        return 0.0 if before == after else 0.0015

    def handover_s(self, layout: Layout, setting: Any) -> float:
        """See `CostProvider`."""
        return 0.0008


def strategies() -> tuple[LayerStrategy, ...]:
    """Twenty-four choices on eight ranks."""
    shapes = [(tp, 1, RANKS // tp) for tp in (1, 2, 4, 8)] + [(1, sp, RANKS // sp) for sp in (2, 4)]
    found = [
        LayerStrategy(tp, sp, 1, dp, zero if dp * sp > 1 else 0, recompute=again)
        for (tp, sp, dp), zero, again in itertools.product(shapes, (2, 3), (False, True))
    ]
    return tuple(dict.fromkeys([*found, LayerStrategy(dp=8), LayerStrategy(dp=8, recompute=True)]))


def stated(layers: int, stages: int, interleaves: int, micro_batches: int, limit_mib: float) -> FixedSolution:
    """Solve one outer choice at stated costs, to 1 % in a minute; print what is found and when."""
    job = LayerwiseJob(RANKS * stages, layers, 4096, 8192, limit_mib)
    name = "megatron-interleaved" if interleaves > 1 else "1f1b"
    outer = OuterChoice(8 * micro_batches, micro_batches, stages, ENDS, interleaves, ScheduleSpec(name))
    problem = FixedProblem.of(job, outer, StatedCosts(), strategies())
    began = time.monotonic()

    def tell(step: float, bound: float) -> None:
        print(f"    {time.monotonic() - began:.1f} s: {step:.6f} s, gap {1 - bound / step:.2%}", flush=True)

    found = solve_fixed(problem, outer, gap=1e-2 if interleaves > 1 else 1e-3, time_limit=60, on_plan=tell)
    text = f"{layers} layers, {stages} stages, V {interleaves}, {len(problem.strategies)} choices"
    print(f"{text}: {found.seconds:.1f} s, {found.step_s:.6f} s, gap {found.gap:.3%}", flush=True)
    if found.plan is not None:
        assert not check_plan(job, found.plan, StatedCosts(), claimed_s=found.step_s).faults
    return found


GALVATRON = ["--costs", "galvatron", "--whole_mib", "--rival", "n", "--gap", "0.0001"]


def whole(name: str, words: list[str]) -> None:
    """A whole search, as the command line asks for it."""
    request = search_request(build_parser().parse([*GALVATRON, *words]))[1]
    found = search_job(request).result
    print(f"{name}: {found.seconds:.1f} s, {found.step_s:.4f} s, gap {found.gap:.3%}", flush=True)


def hetu() -> None:
    """The whole search of Hetu's first test."""
    profiles = json.loads((DATA / "galvatron_tests/hetu_cases.json").read_text())["profiles"]
    written = {"computation_profiling_bf16_toy_all": profiles["time_sequence"]}
    written["memory_profiling_bf16_toy_all"] = profiles["memory_sequence_sp"]
    for name, data in profiles["hardware"].items():
        kind = {"allreduce": "allreduce_bandwidth", "p2p": "p2p_bandwidth", "sp": "sp_time"}.get(name.split("_")[0])
        written["overlap_coefficient" if kind is None else f"{kind}_1nodes_8gpus_per_node"] = data
    with tempfile.TemporaryDirectory() as folder:
        for name, data in written.items():
            (Path(folder) / f"{name}.json").write_text(json.dumps(data))
        job = "--world_size 8 --layers 28 --hidden 4096 --seq 8192 --memory 36 --gbs 64 --micro_batches 32"
        modes = "--time_mode sequence --memory_mode sequence --reduce_every_micro_batch --global_memory_buffer y"
        whole("Hetu case 0", [folder, *job.split(), *modes.split(), "--max_tp_deg", "8", "--max_sp_deg", "8"])


def cards64(*more: str) -> None:
    """The whole search of the published 64-card job."""
    job = "--world_size 64 --layers 72 --hidden 5120 --seq 32768 --memory 95 --gbs 64 --sp_space tp"
    modes = "--time_mode sequence --memory_mode static --max_tp_deg 8 --max_pp_deg 8"
    whole("64 cards", [str(DATA / "paddle_galvatron/configs"), *job.split(), *modes.split(), *more])


def main() -> None:
    """Run what is named, or everything."""
    runs: dict[str, Callable[[], object]] = {
        "fixed": lambda: stated(72, 2, 1, 16, 60_000),
        "hetu": hetu,
        "cards64": cards64,
        "cards64v4": lambda: cards64("--vpp", "1,2,3,4", "--gap", "0.001"),
        "interleaved": lambda: stated(128, 32, 2, 64, 60_000),
    }
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", metavar="|".join(runs), help="all of them where none is named")
    chosen = parser.parse_args().what
    if unknown := set(chosen) - set(runs):
        parser.error(f"knows no {sorted(unknown)[0]}; name some of {', '.join(runs)}")
    for name in chosen or runs:
        runs[name]()
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


if __name__ == "__main__":
    main()
