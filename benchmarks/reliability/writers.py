"""Everything that writes a file, each ready to write one of two contents: what the campaign disturbs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from benchmarks.reliability.campaign import ROOT
from benchmarks.reliability.specimens import SHELL, TOML
from taylor.base.files import write_atomic
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, as_grid
from taylor.pipeline_solver.model.problem import LayerKind, PipelineProblem
from taylor.pipeline_solver.model.solution import Solution

LLAMA = ROOT / "config" / "pretrain_llama2_7b.yaml"

Writer = Callable[[Path, int], object]
"""Writes content 0 or 1 into a folder; nothing else there is touched."""


@cache
def _solved(which: int) -> tuple[PipelineProblem, Solution]:
    """A problem worked by hand, and one of two plans for it as a solution."""
    from taylor.pipeline_solver.timing.evaluate import evaluate

    problem = PipelineProblem(
        2, 1, 4, (LayerKind("body", 4, 1.0, 10.0, {NONE: 4.0, FULL: 1.0}),), (5.0, 7.0), (100.0, 100.0)
    )
    plan = PipelinePlan({"body": as_grid([[2, 2], [1, 3]][which : which + 1])}, {FULL: as_grid([[1, which]])})
    return problem, evaluate(problem, plan).replace(seconds=0.0)


def _plan_into(name: str, text: str) -> Writer:
    def write(folder: Path, which: int) -> object:
        from taylor.parsers.read import read_config
        from taylor.parsers.write_back import write_plan

        path = folder / name
        if which == 0:
            return path.write_bytes(text.encode())
        config = read_config(path)
        assert config.plan is not None
        recomputed = config.plan.recompute.get(FULL, ())
        again = as_grid([[0 if any(map(any, recomputed)) else 1] * config.plan.stages] * config.plan.interleaves)
        return write_plan(config, PipelinePlan(config.plan.layers, {FULL: again}))

    return write


def _variant(folder: Path, which: int) -> object:
    from taylor.parsers.read import read_config
    from taylor.parsers.write_back import emit_variant

    config = read_config(LLAMA)
    return emit_variant(config, config.strategy.replace(micro_batches=8 + which), folder / "a.yaml", plan=None)


def _searched(what: str) -> Writer:
    def write(folder: Path, which: int) -> object:
        from taylor.nd_search.emit import emit_yaml, write_candidates_csv, write_pruned_csv
        from taylor.nd_search.options import SearchOptions
        from taylor.nd_search.search import search
        from taylor.parsers.read import read_config
        from taylor.register.registry import Registry

        config = read_config(LLAMA)
        device = Registry.load(None).device("ascend-910b")
        # Another batch is another job, whose files an emission puts into a folder beside its own.
        gbs = 512 * (1 + which) if what in ("candidates", "pruned") else 512
        result = search(config, device, SearchOptions(gbs=gbs, profile_num=2), None)
        if what == "candidates":
            return write_candidates_csv(result, folder / "candidates.csv")
        if what == "pruned":
            return write_pruned_csv(result, folder / "pruned.csv")
        return emit_yaml(result, config, folder, dataset=f"/data/{which}", profile=what == "profile", rank_num=8)

    return write


def _model(form: str) -> Writer:
    def write(folder: Path, which: int) -> object:
        from taylor.pipeline_solver.milp.model_files import write_mps

        return write_mps(*_solved(which), folder / "model.mps", form=form)

    return write


def _sol(folder: Path, which: int) -> object:
    from taylor.pipeline_solver.milp.model_files import write_sol

    return write_sol(*_solved(which), folder / "plan.sol")


def _view(role: str, name: str) -> Writer:
    def write(folder: Path, which: int) -> object:
        from taylor.report.outputs import write_views

        problem, solution = _solved(which)
        views: Mapping[str, Path] = {role: folder / name}
        return write_views(problem, solution, title="train", **views)  # type: ignore[arg-type]

    return write


def _result(folder: Path, which: int) -> object:
    from taylor.workflows.solving.evaluate_file import evaluate_file
    from taylor.workflows.statement.options import FileJob, Outputs

    job = FileJob(LLAMA, TimeRatios(backward=2.0 + which), dryrun=False, check=False)
    return evaluate_file(job, Outputs(folder=folder, result_json=folder / "result.json"))


def _memory(folder: Path, which: int) -> object:
    from taylor.base.files import write_atomic
    from taylor.parsers.tables.memory_profile import memory_profile_text

    kept = {"dense": {NONE: 479.0, FULL: 30.0}}
    profile = MemoryProfile(55296.0, 3383.0 + which, 2382.0, 8675.0, {"dense": 866.0}, kept)
    return write_atomic(folder / "memory.json", memory_profile_text(profile))


def _observations(folder: Path, which: int) -> object:
    from taylor.dryrun.fitting.fit import Observation, write_observations

    plan = PipelinePlan({"dense": as_grid([[2, 2]])}, {FULL: as_grid([[1, 0]])})
    return write_observations([Observation(plan, 0, 40_000.0 + which)], folder / "peaks.json")


def _ratios(folder: Path, which: int) -> object:
    from taylor.parsers.read import read_config
    from taylor.profiling.extract import ExtractedRatios
    from taylor.profiling.table import write_profiling_result

    config = read_config(LLAMA)
    found = ExtractedRatios(config, TimeRatios(unit_ms=5.0 + which))
    return write_profiling_result([(config.strategy, found)], folder / "profiling_result.csv")


def _synthetic(form: str) -> Writer:
    def write(folder: Path, which: int) -> object:
        from benchmarks.synthetic.profiles import SyntheticTimes, write_synthetic_profiles
        from taylor.parsers.read import read_config

        config = read_config(LLAMA)
        plan = config.plan
        assert plan is not None
        config = config.replace(strategy=config.strategy.replace(micro_batches=2))
        times = SyntheticTimes.from_ratios(TimeRatios(unit_ms=5.0 + which), plan)
        return write_synthetic_profiles(config, times, folder, form=form, steps=1, stages=(0,))

    return write


def _text(folder: Path, which: int) -> object:
    return write_atomic(folder / "table.csv", "old\n" * 5000 if which == 0 else "new row\n" * 4000)


WRITERS: Mapping[str, Writer] = {
    "text": _text,
    "plan-into-yaml": _plan_into("train.yaml", LLAMA.read_text(encoding="utf-8")),
    "plan-into-shell": _plan_into("train.sh", SHELL),
    "plan-into-toml": _plan_into("train.toml", TOML),
    "variant": _variant,
    "candidates": _searched("candidates"),
    "pruned": _searched("pruned"),
    "dryrun-files": _searched("dryrun"),
    "profile-files": _searched("profile"),
    "mps-compact": _model("compact"),
    "mps-full": _model("full"),
    "sol": _sol,
    "result": _result,
    "trace": _view("trace", "trace.json"),
    "page": _view("html", "page.html"),
    "picture-png": _view("picture", "plan.png"),
    "picture-svg": _view("picture", "plan.svg"),
    "memory": _memory,
    "observations": _observations,
    "ratios": _ratios,
    "synthetic-ascend": _synthetic("ascend"),
    "synthetic-kineto": _synthetic("kineto"),
}  # fmt: skip
"""Every writer by name."""
