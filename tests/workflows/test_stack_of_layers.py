"""A model of unlike layers on every road: read, evaluated, saved, reduced, fitted, shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.job.strategy import Strategy
from taylor.dryrun.estimate import estimate_memory
from taylor.dryrun.fitting.linear_memory import LinearMemory
from taylor.dryrun.fitting.probes import job_of, probe_cells
from taylor.nd_search.reduce import reduce_strategy
from taylor.parsers.export import export_plan
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import emit_variant
from taylor.pipeline.plan import FULL, NONE, PipelinePlan, deal_kinds
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.timing.evaluate import evaluate
from taylor.register.model import MTP
from taylor.register.registry import Registry
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.statement.options import FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_hybrid import with_pattern
from tests.parsers.megatron.test_scripts import BASE, script_of

PERIODIC = (
    BASE + "--sequence-parallel\n--experimental-attention-variant gdn\n--linear-attention-freq 4\n--num-experts 8\n"
)
PERIODIC += "--moe-ffn-hidden-size 512\n--moe-layer-freq '([0]*2+[1]*2)*6'\n"
UNEVEN = with_pattern("'M-M*EGM-|M*EMG-|M-*EMM|MEM*M/*E'") + "--sequence-parallel\n"


def config_of(folder: Path, flags: str) -> TrainingConfig:
    return read_config(script_of(folder, flags, "command"))


@pytest.mark.parametrize(
    ("flags", "by_kind"),
    [
        (PERIODIC, {"gdn+dense": 12, "gdn+moe": 6, "attn+moe": 6}),
        (UNEVEN, {"mamba": 11, "dense": 4, "attn": 4, "moe": 4, "gdn": 2, "mtp": 1}),
    ],
    ids=["periodic", "hybrid"],
)
def test_a_result_and_the_first_lines_show_kinds_and_keep_the_order(
    flags: str, by_kind: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = script_of(tmp_path, flags, "command")
    evaluated = evaluate_file(FileJob(file), Outputs(result_json=tmp_path / "result.json"))
    data = json.loads((tmp_path / "result.json").read_text())
    assert data["model"]["layers"] == by_kind
    assert {kind: sum(map(sum, grid)) for kind, grid in data["layers"].items()} == by_kind
    again = read_result(tmp_path / "result.json")
    plan = read_config(file).plan
    assert plan is not None and again.plan.layers == evaluated.plan.layers == plan.layers
    line = StatedFile.read(FileJob(file)).facts.model_line()
    words = [f"{count} {kind}" for kind, count in by_kind.items() if kind != "mtp"]
    assert all(word in line.lower() for word in words) and "#" not in line and "#" not in repr(read_config(file))


def test_layers_that_are_not_those_of_the_problem_are_no_saved_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    evaluate_file(FileJob(script_of(tmp_path, PERIODIC, "command")), Outputs(result_json=tmp_path / "result.json"))
    data = json.loads((tmp_path / "result.json").read_text())
    grid = data["layers"]["attn+moe"][0]
    grid[0], grid[1] = grid[0] + 1, grid[1] - 1
    (tmp_path / "result.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match="the plan is not one"):
        read_result(tmp_path / "result.json")


def test_a_plan_exported_as_json_shows_kinds(tmp_path: Path) -> None:
    plan = config_of(tmp_path, PERIODIC).plan
    assert plan is not None
    layers = json.loads(export_plan(plan, "json"))["layers"]
    assert layers == {"gdn+dense": [[4, 2, 4, 2]], "gdn+moe": [[1, 2, 1, 2]], "attn+moe": [[1, 2, 1, 2]]}


@pytest.mark.parametrize("flags", [PERIODIC, UNEVEN], ids=["periodic", "hybrid"])
def test_the_linear_form_of_a_stack_gives_the_solvers_peaks(flags: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, flags)
    memory = estimate_memory(config, Registry.load(None).device("h100-80g"))
    linear = LinearMemory(config)
    assert set(linear.kinds) == set(memory.layer_mib)
    values = linear.coefficients(memory)
    counts = config.model.layer_counts()
    total = config.model.n_layers
    sizes = [total - 15, 4, 6, 5]
    layers = deal_kinds(counts, sizes, 4, False, {MTP: 3} if MTP in counts else {})
    plan = PipelinePlan(layers, {FULL: ((2, 1, 0, 3),)})
    problem = StatedFile.read(FileJob(config.path)).problem(memory)
    assert (linear.rows(plan, values) @ values).tolist() == pytest.approx(
        evaluate(problem, plan).peak_memory_mib, rel=1e-9
    )


def test_no_probe_is_made_up_of_unlike_layers(tmp_path: Path) -> None:
    config = config_of(tmp_path, UNEVEN)
    linear = LinearMemory(config)
    assert config.plan is not None
    assert list(probe_cells(linear, 64)) == [] and job_of(linear, config.plan).model is config.model


def test_a_small_job_keeps_whole_periods_of_the_order(tmp_path: Path) -> None:
    config = config_of(tmp_path, PERIODIC)
    device = Registry.load(None).device("h100-80g")
    large = Strategy(8, 2, 4, 1, micro_batches=16)
    reduction = reduce_strategy(config, device, large, 32, 70_000.0)
    assert (reduction.strategy.pp, reduction.strategy.dp) == (2, 8)
    assert reduction.model.pattern == "2 gdn+dense, 1 gdn+moe, 1 attn+moe" and reduction.model.n_layers == 4
    assert reduction.plan.total_layers() == ((2, 2),) and reduction.plan.recompute[FULL] == ((1, 1),)
    assert "gdn+dense layers: 12 -> 2" in reduction.changed
    back = read_config(emit_variant(config, reduction.strategy, tmp_path / "small.sh", plan=reduction.plan))
    assert (back.strategy, back.plan) == (reduction.strategy, reduction.plan)
    assert back.model == reduction.model.replace(name="small")


def test_a_job_whose_order_does_not_repeat_is_not_reduced(tmp_path: Path) -> None:
    config = config_of(tmp_path, UNEVEN)
    device = Registry.load(None).device("h100-80g")
    with pytest.raises(InputError, match="cannot be reduced: the order of its layers does not repeat"):
        reduce_strategy(config, device, config.strategy, 64, 70_000.0)


def test_the_estimate_knows_every_kind_of_layer(tmp_path: Path) -> None:
    config = config_of(tmp_path, UNEVEN)
    memory = estimate_memory(config, Registry.load(None).device("h100-80g"))
    assert set(config.model.body_counts) <= set(memory.layer_mib)
    assert all(memory.activation_mib[kind][NONE] > 0 for kind in config.model.body_counts)
