"""Every road takes a configuration for the same job: one schedule, one plan, one memory."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy_table import StrategyTable
from taylor.cost_model.memory.breakdown import best_case_peak_mib, stage_breakdown
from taylor.cost_model.profile import MemoryProfile, TimeRatios
from taylor.dryrun.estimate import EstimateBackend, estimate_memory
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.interface import DryRun
from taylor.dryrun.torch_backend import settle
from taylor.nd_search.memory import peaks
from taylor.nd_search.options import SearchContext, SearchOptions
from taylor.parsers.read import read_config
from taylor.parsers.registry import config_suffixes, launcher_of
from taylor.parsers.tables.memory_profile import memory_profile_text
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline.generators import build_schedule
from taylor.pipeline.plan import FULL, NONE, RECOMPUTE_MODES, SELECT, PipelinePlan
from taylor.pipeline.schedule import Schedule, ScheduleSpec
from taylor.pipeline_solver.check.checker import exact_peak_memory
from taylor.pipeline_solver.model.problem import PipelineProblem
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.profiling.pattern import task_order
from taylor.register.model import DENSE
from taylor.register.registry import Registry
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.schedules import require_schedule
from taylor.workflows.statement.stated_file import StatedFile
from tests.conftest import ROOT, SHARED
from tests.parsers.torchtitan.test_files import toml_file

FOLDERS = ("mindformers_yaml", "shells", "torchtitan_toml", "configs_more")
OWN = [path for path in sorted((ROOT / "config").glob("*")) if path.suffix in config_suffixes()]
SHARED_SAMPLES = [
    path
    for folder in FOLDERS
    for path in sorted((SHARED / "data" / folder).glob("*"))
    if path.suffix in config_suffixes() and path.is_file() and "template" not in path.name
]
INTERLEAVED = {"mindformers": "interleaved", "megatron": "megatron-interleaved", "torchtitan": "torch-interleaved"}
"""What 1F1B with two interleaves is, by framework."""


def with_two_interleaves(path: Path, folder: Path) -> tuple[TrainingConfig, Schedule]:
    """The configuration as ``-vpp 2`` means it, its schedule left as the file says, and the order it must run.

    A file of one stage, which has no virtual stages to alternate, is first written anew for four.
    """
    try:
        config = read_config(path)
    except InputError as error:
        pytest.skip(f"not read: {error}")
    if config.strategy.pp == 1:
        with pytest.raises(InputError, match="no virtual stages to alternate"):
            require_schedule(config.replace(strategy=config.strategy.replace(vpp=2)))
        four = config.strategy.replace(pp=4, vpp=1, micro_batches=8)
        config = read_config(emit_variant(config, four, folder / f"four{path.suffix}", plan=None))
    config = config.replace(strategy=config.strategy.replace(vpp=2))
    own, strategy = config.schedule, config.strategy
    name = (
        own.name
        if own.name in ("gpipe", "seqpipe", "zero_bubble_v", "dualpipev", "zbv")
        else INTERLEAVED[config.rules.framework.name]
    )
    spec = ScheduleSpec(name, own.low_memory, own.seq_splits, whole_drain=own.whole_drain)
    if strategy.pp * 2 > config.model.n_layers:
        pytest.skip("fewer layers than chunks")
    try:
        schedule = build_schedule(spec, strategy.pp, 2, strategy.micro_batches)
    except ValueError as error:
        with pytest.raises(InputError, match=re.escape(str(error))):
            require_schedule(config)
        pytest.skip(f"refused: {error}")
    require_schedule(config)
    return config, schedule


def problem_of(config: TrainingConfig, plan: PipelinePlan) -> tuple[PipelineProblem, MemoryProfile]:
    """The problem that knows the costs of the plan's recompute modes, and the memory that it is stated from."""
    memory = estimate_memory(config, Registry.load(None).device("ascend-910b"))
    return build_problem(config, memory, TimeRatios(), search_select=plan.uses(SELECT)), memory


@pytest.mark.parametrize("path", [*OWN, *SHARED_SAMPLES], ids=lambda path: path.name)
def test_with_two_interleaves_every_road_has_the_same_schedule_plan_and_memory(path: Path, tmp_path: Path) -> None:
    config, schedule = with_two_interleaves(path, tmp_path)
    assert_one_job(config, schedule, tmp_path)


def assert_one_job(config: TrainingConfig, schedule: Schedule, folder: Path) -> None:
    """Ask every road for the job and compare what they take it for."""
    strategy, rules = config.strategy, config.rules

    # Solve and evaluate; profiles; the torch dry-run; the rows that fit a profile.
    plan = config.even_plan(strategy)
    problem, memory = problem_of(config, plan)
    assert problem.schedule == schedule.spec
    assert task_order(config) is build_schedule(problem.schedule, strategy.pp, 2, strategy.micro_batches)
    run = settle(DryRun(config, strategy, None))
    assert run.config.schedule == schedule.spec and run.plan is not None
    linear = LinearMemory(config, RECOMPUTE_MODES)
    assert linear.schedule.spec == schedule.spec

    # One even plan, in the solver's terms too.
    assert run.plan == plan
    assert {kind: sum(map(sum, grid)) for kind, grid in plan.layers.items()} == config.model.layer_counts()

    # One memory: solver, checker, estimate, linear form.
    told = plan_in_terms_of(problem, plan)
    expected = evaluate(problem, told).peak_memory_mib
    assert [float(peak) for peak in exact_peak_memory(problem, told)] == pytest.approx(expected, rel=1e-9)
    [estimate] = EstimateBackend().measure([DryRun(config, strategy, None)])
    assert [peak.peak_mib for peak in estimate.stages] == pytest.approx(expected, rel=1e-9)
    values = linear.coefficients(memory)
    assert (linear.rows(plan, values) @ values).tolist() == pytest.approx(expected, rel=1e-9)

    # The search prunes by the same order: a bound of the plan that keeps least.
    context = SearchContext.settle(config, Registry.load(None).device("ascend-910b"), SearchOptions())
    table = StrategyTable.from_strategies([strategy])
    bound, _ = peaks(table, context, FULL)
    named, _ = best_case_peak_mib(config.model, rules, table, FULL, schedule=schedule.spec)
    assert bound.tolist() == named.tolist()
    [lightest] = EstimateBackend().measure([DryRun(config, strategy, config.even_plan(strategy, FULL))])
    assert bound[0] <= max(peak.peak_mib or 0.0 for peak in lightest.stages) + 1e-6

    # What is written means the same: for a dry-run of a strategy, and back into the file.
    emitted = read_config(emit_variant(config, strategy, folder / f"emitted{config.path.suffix}", plan=None))
    assert emitted.schedule.name == schedule.spec.name and emitted.strategy.vpp == 2
    assert emitted.plan is not None and same(emitted.plan, launcher_of(config).nearest_plan(plan)[0])
    written = read_config(write_plan(config, plan, output=folder / f"written{config.path.suffix}"))
    assert written.schedule.name == schedule.spec.name and written.strategy.vpp == 2
    assert written.plan is not None and same(written.plan, launcher_of(config).nearest_plan(plan)[0])


def same(one: PipelinePlan, other: PipelinePlan) -> bool:
    """Whether two plans mean the same, modes and kinds that nothing uses left aside."""
    return {kind: grid for kind, grid in one.layers.items() if any(map(any, grid))} == {
        kind: grid for kind, grid in other.layers.items() if any(map(any, grid))
    } and all(one.recomputed(mode) == other.recomputed(mode) for mode in (FULL, SELECT))


def test_every_launcher_s_own_example_runs_with_two_interleaves(tmp_path: Path) -> None:
    examples = {
        "mindformers": ROOT / "config" / "pretrain_llama3_70b.yaml",
        "megatron": ROOT / "config" / "pretrain_llama3_70b.sh",
        "torchtitan": toml_file(tmp_path),
    }
    for name, path in examples.items():
        config, schedule = with_two_interleaves(path, tmp_path)
        assert config.rules.framework.name == name and schedule.spec.name == INTERLEAVED[name]
        assert_one_job(config, schedule, tmp_path)


@pytest.mark.slow
def test_a_megatron_script_is_solved_in_megatron_s_order_and_written_back_as_flags(run_tool, tmp_path: Path) -> None:
    original = ROOT / "config" / "pretrain_llama3_70b.sh"
    script = tmp_path / "job.sh"
    # Masks of the data loader, 64 MiB a micro-batch alive on the first stage, would make the optimum 2278.
    text, unmasked = original.read_text(), "--use-flash-attn\n    --no-create-attention-mask-in-dataloader\n"
    assert "--use-flash-attn\n" in text
    script.write_text(text.replace("--use-flash-attn\n", unmasked))
    words = ("-vpp", "2", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    words += ("-ratios", "fixed", "--device", "ascend-910b", "--risk", "0")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words, timeout=300)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert (result["schedule"], result["status"]) == ("megatron-interleaved", "optimal")
    assert result["objective"] == pytest.approx(2274.0, rel=1e-6)

    # Its memory by Megatron's own rule: (V-1)·S + 2(S-1-s) forwards before the first backward, groups of S.
    written = read_config(script)
    assert written.schedule.name == "megatron-interleaved" and written.strategy.vpp == 2
    plan = written.plan
    assert (
        plan is not None
        and {kind: [list(row) for row in grid] for kind, grid in plan.layers.items()} == (result["layers"])
    )
    assert [list(row) for row in plan.recomputed(FULL)] == result["recompute"]["full"]
    memory = estimate_memory(written, Registry.load(None).device("ascend-910b"))
    assert result["peak_memory"] == pytest.approx(
        megatron_peaks(plan, memory, written.strategy.micro_batches), abs=0.01
    )
    assert max(result["peak_memory"]) <= result["memory_limit"][0]

    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    assert "--pipeline-model-parallel-layout" in script.read_text() and "-layout" not in original.read_text()


def megatron_peaks(plan: PipelinePlan, memory: MemoryProfile, micro_batches: int) -> list[float]:
    """Peak of every stage of a plan with one kind of layer and two interleaves, walked by hand, MiB."""
    [grid] = plan.layers.values()
    [kind] = memory.layer_mib
    kept, stages = memory.activation_mib[kind], plan.stages
    found = []
    for s in range(stages):
        held = [grid[v][s] for v in (0, 1)]
        chunk = [
            plan.recomputed(FULL)[v][s] * kept[FULL] + (held[v] - plan.recomputed(FULL)[v][s]) * kept[NONE]
            for v in (0, 1)
        ]
        forwards = [v for start in range(0, micro_batches, stages) for v in (0, 1) for _ in range(stages)]
        backwards = [1 - v for v in forwards]
        ahead = stages + 2 * (stages - 1 - s)
        live = most = sum(chunk[v] for v in forwards[:ahead])
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            live += chunk[forward]
            most = max(most, live)
            live -= chunk[backward]
        found.append(memory.static_mib(stages)[s] + sum(held) * memory.layer_mib[kind] + most)
    return found


@pytest.mark.slow
def test_auto_states_the_memory_of_a_folded_schedule_as_asking_for_it_does(run_tool, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes((ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes())
    words = ("-dryrun", "n", "-check", "n", "-vpp", "2", "-write", "n")
    auto = run_tool("pipeline_parallel.py", "-yaml", path, *words, "-schedule", "auto", "--result_json", "a.json")
    assert auto.returncode == 0, auto.stderr
    result = json.loads((tmp_path / "a.json").read_text())
    asked = ("-schedule", result["schedule"], "--result_json", "b.json")
    alone = run_tool("pipeline_parallel.py", "-yaml", path, *words, *asked)
    assert alone.returncode == 0, alone.stderr
    other = json.loads((tmp_path / "b.json").read_text())
    assert result["problem"] == other["problem"]
    assert result["objective"] == pytest.approx(other["objective"], rel=1e-6)


def test_an_evaluated_plan_pays_for_its_selective_recompute(run_tool, tmp_path: Path) -> None:
    text = (ROOT / "config" / "pretrain_llama3_70b.sh").read_text()
    script = tmp_path / "job.sh"
    script.write_text(text.replace("--num-layers ", "--recompute-activations --num-layers ", 1))
    config = read_config(script)
    assert config.plan is not None and config.plan.uses(SELECT)
    words = ("-evaluate", "y", "-dryrun", "n", "-check", "n", "--result_json", tmp_path / "r.json")
    done = run_tool("pipeline_parallel.py", "-shell", script, *words)
    assert done.returncode == 0, done.stderr
    stages = stage_breakdown(config.model, config.strategy, config.rules, config.plan, config.schedule)
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["peak_memory"] == pytest.approx([stage.total for stage in stages], abs=0.01)


def test_a_folded_alternative_has_its_head_on_the_first_stage() -> None:
    job = FileJob(ROOT / "config" / "pretrain_llama2_7b.yaml", vpp=2, schedule="auto")
    left_open = StatedFile.read(job)
    kept = estimate_memory(left_open.running, left_open.device)
    folded = left_open.running_as(2, ScheduleSpec("zero_bubble_v"))
    asked = StatedFile.read(replace(job, schedule="zero_bubble_v"))
    own = estimate_memory(asked.running, asked.device)
    assert folded.memory_like(kept) == own != kept
    assert folded.problem(folded.memory_like(kept)) == asked.problem(own)


def test_what_auto_solves_from_a_given_profile_evaluates_to_the_same_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, profile = tmp_path / "job.yaml", tmp_path / "memory.json"
    path.write_bytes((ROOT / "config" / "pretrain_llama2_7b.yaml").read_bytes())
    figures = MemoryProfile(23552.0, 2561.0, 1936.0, 3561.0, {DENSE: 600.0}, {DENSE: {NONE: 250.0, FULL: 20.0}})
    profile.write_text(memory_profile_text(figures))
    job = FileJob(path, memory_file=profile, check=False, vpp=2, schedule="auto")
    with caplog.at_level("WARNING"):
        solved = solve_file(job, outputs=Outputs(folder=tmp_path / "out"))
    assert not solved.problem.schedule.v_shape
    [line] = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "left out: zero_bubble_v with 2 virtual stages" in line and "-schedule" in line
    again = evaluate_file(FileJob(path, memory_file=profile, check=False), Outputs(folder=tmp_path / "out"))
    assert again.solution.peak_memory_mib == pytest.approx(solved.solution.peak_memory_mib)
    assert again.problem == solved.problem
