"""A launch under MindSpeed's ``--moe-fb-overlap``, and the one that is written for it, evaluated position by position.

    python -m benchmarks.paired_overlap FILE.sh [--written OTHER.sh] [--device NAME]

Restated from MindSpeed 028de58c: ``get_num_layers_to_build`` deals ``--num-layers`` positions evenly,
``--noop-layers`` empties some; fb_overlap/transformer_block.py:337-383 lays the forward's position l beside the
backward's position n - 1 - l, and transformer_layer.py:182-262 hides a layer's exchange where neither is empty; passes
are combined as the loops of dualpipev_schedules.py count them. Nothing of the solver's event graph or durations is
used but the times of a layer. The exit code is 1 where the written launch takes longer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.brute_force import _passes
from taylor.base.errors import TaylorError
from taylor.cost_model.memory.breakdown import memory_profile
from taylor.cost_model.time.step import estimate_ratios
from taylor.parsers.megatron.kinds import empty_positions, layer_positions
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline.schedule import BACKWARD, FORWARD, WEIGHT_GRADIENT
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.register.registry import Registry
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of


def evaluated(path: Path, device: str) -> tuple[float, float, int, int]:
    """Step time of a launch by positions and by the event graph, its layers with experts beside another, and all."""
    config = read_config(path)
    spec = Registry.load().device(device)
    assert config.plan is not None
    memory = memory_profile(config.model, config.strategy, config.rules, 1e9, config.schedule)
    problem = build_problem(config, memory, estimate_ratios(config.model, config.strategy, config.rules, spec))
    if problem.pairing is None or not problem.schedule.v_shape:
        raise SystemExit(f"{path}: does not run DualPipeV with --moe-fb-overlap")
    plan = plan_in_terms_of(problem, config.plan)
    flags = launcher_of(config).launch(path).flags  # type: ignore[attr-defined]
    positions, empty = layer_positions(flags), empty_positions(flags)
    schedule = build_schedule(problem.schedule, problem.stages, problem.interleaves, problem.micro_batches)
    each = positions // schedule.chunks
    kinds = iter([kind for kind in problem.free_kinds for _ in range(kind.count)])
    line = [None if at in empty else next(kinds) for at in range(positions)]
    rows = {schedule.chunk_at(k): line[k * each : (k + 1) * each] for k in range(schedule.chunks)}
    beside = _passes(problem, schedule)
    times = {}
    paired = 0
    for (v, s), row in rows.items():
        other = rows[1 - v, s][::-1]
        met = [kind for kind, one in zip(row, other, strict=True) if kind is not None and one is not None]
        paired += sum(kind.exposed_forward > 0 for kind in met)
        for direction, duration in enumerate(_hidden(problem, plan, schedule.position(v, s), v, s)):
            pinned = [kind for kind in problem.pinned_at(schedule.position(v, s)) for _ in range(kind.count)]
            alone = sum(kind.exposed[direction] for kind in (*pinned, *filter(None, row))) if direction < 2 else 0.0
            hidden = sum(kind.exposed[direction] for kind in met) if direction < 2 else 0.0
            times[direction, v, s, False] = duration + alone
            times[direction, v, s, True] = duration + alone - hidden
    step = _played(problem, schedule, times, beside)
    return step, step_time(problem, plan), paired, sum(kind.count for kind in problem.free_kinds if any(kind.exposed))


def _hidden(problem: PipelineProblem, plan, place: int, v: int, s: int) -> tuple[float, float, float]:  # type: ignore[no-untyped-def]
    """Forward, input gradient and weight gradient of a chunk whose layers all have one beside them."""
    forward = sum(kind.forward * plan.layers[kind.name][v][s] for kind in problem.kinds if kind.name in plan.layers)
    forward += problem.embedding_forward * (place == 0) + problem.head_forward * (place == 2 * problem.stages - 1)
    again = 0.0
    for mode in (FULL, SELECT):
        recomputed = plan.recompute_by_kind()
        for kind in problem.kinds:
            if mode in recomputed.get(kind.name, {}):
                again += problem.recompute_ratio.get(mode, 0.0) * kind.forward * recomputed[kind.name][mode][v][s]
    weight = problem.weight_gradient_share * problem.backward_ratio * forward
    return forward, problem.backward_ratio * forward - weight + again, weight


def _played(problem, schedule, times, beside) -> float:  # type: ignore[no-untyped-def]
    """Step time, task by task."""
    late = {tuple(schedule.order[s, t, [1, 2]]) + (s,) for s, t in zip(*schedule.whole.nonzero(), strict=True)}
    lags = problem.boundary_lags
    ended: dict[tuple[int, ...], float] = {}
    clock, at = [0.0] * problem.stages, [0] * problem.stages
    moved = True
    while moved:
        moved = False
        for s in range(problem.stages):
            while at[s] < len(schedule.order[s]):
                direction, v, micro_batch, _ = map(int, schedule.order[s, at[s]])
                place = schedule.position(v, s)
                source = None
                if direction == FORWARD and place:
                    source = FORWARD, place - 1
                elif direction == BACKWARD and place < schedule.chunks - 1:
                    w, t = schedule.chunk_at(place + 1)
                    source = WEIGHT_GRADIENT if (w, micro_batch, t) in late else BACKWARD, place + 1
                begin = clock[s]
                if source is not None:
                    needed = (*source, micro_batch)
                    if needed not in ended:
                        break
                    crosses = schedule.chunk_at(source[1])[1] != s
                    begin = max(begin, ended[needed] + (lags[min(place, source[1])] if crosses else 0.0))
                combined = (s, direction, v, micro_batch) in beside
                clock[s] = begin + times[direction, v, s, combined]
                ended[direction, place, micro_batch] = clock[s]
                at[s] += 1
                moved = True
    tails = problem.tail or (0.0,) * problem.stages
    return max(end + tail for end, tail in zip(clock, tails, strict=True))


def main(arguments: list[str] | None = None) -> int:
    """Evaluate one launch or compare two; 1 where the written one takes longer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--written", type=Path)
    parser.add_argument("--device", default="ascend-910b")
    chosen = parser.parse_args(arguments)
    steps = []
    for path in (chosen.file, chosen.written):
        if path is not None:
            try:
                step, graph, paired, of = evaluated(path, chosen.device)
            except TaylorError as error:
                parser.error(str(error))
            steps.append(step)
            print(f"{path.name}: {step:.6g} by positions, {graph:.6g} by the event graph; {paired} of {of} paired")
    return int(steps[-1] > steps[0] * (1 + 1e-9))


if __name__ == "__main__":
    sys.exit(main())
