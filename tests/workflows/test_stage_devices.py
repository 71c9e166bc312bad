"""Stages on several kinds of devices: what each costs, which orders are tried, and the best of them all."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.pipeline_parallel import run
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.solving.result import read_result
from taylor.pipeline_solver.solving.solve import solve
from taylor.workflows.solving.solve_file import solve_stated
from taylor.workflows.statement.options import ANY, GROUPS, LISTED, FileJob, RatioChoice
from taylor.workflows.statement.stage_devices import order_name
from taylor.workflows.statement.stated_file import StatedFile

SCRIPT = Path(__file__).resolve().parents[2] / "config" / "pretrain_llama3_70b.sh"  # four stages
YAML = SCRIPT.with_name("pretrain_llama2_7b.yaml")  # two
MIXED = (("h100-80g", 2), ("a100-40g", 2))
ONE_AFTER_ANOTHER = SolveOptions(workers=1, gap=1e-3)


def stated(**changes: object) -> StatedFile:
    job = FileJob(path=SCRIPT, dryrun=False, check=False, stage_devices=MIXED)
    return StatedFile.read(replace(job, **changes))  # type: ignore[arg-type]


def names(file: StatedFile, how: str) -> list[str]:
    assert file.stages is not None
    return [order_name(order.specs) for order in file.stages.orders(how)]


def test_every_order_is_solved_or_bounded_and_the_best_is_the_best_of_all(tmp_path: Path) -> None:
    file = stated(path=YAML, stage_devices=(("h100-80g", 1), ("a100-40g", 1)))
    memory = file.obtain_memory(None, tmp_path)
    file = replace(file, job=replace(file.job, stage_order=GROUPS))
    planned = solve_stated(file, memory, ONE_AFTER_ANOTHER)
    assert file.stages is not None
    every = [replace(file, stages=order).problem(memory) for order in file.stages.orders(GROUPS)]
    assert len(every) == len(planned.alternatives) == 2
    found = [solve(problem, ONE_AFTER_ANOTHER) for problem in every]
    least = min(one.objective for one in found if one.objective is not None)
    assert planned.solution.objective == pytest.approx(least, rel=2e-3)
    assert planned.solution.bound is not None and planned.solution.bound <= least * (1 + 1e-9)
    assert check(planned.problem, planned.plan, planned.solution.objective) == []
    even = planned.even
    assert even is not None and even.plan is not None and even.objective is not None
    assert check(planned.problem, even.plan, even.objective) == []
    assert even.plan.total_layers() == ((16, 16),) and even.objective >= planned.solution.objective


def test_times_limits_and_tails_are_those_of_each_stage_s_own_device(tmp_path: Path) -> None:
    file, alike = stated(stage_order=LISTED), stated(stage_devices=())
    slower = stated(stage_devices=(), device="a100-40g")
    memory = file.obtain_memory(None, tmp_path)
    mixed, fast = file.problem(memory), alike.problem(memory)
    slow = slower.problem(slower.obtain_memory(None, tmp_path))
    assert fast.unit_ms is not None and slow.unit_ms is not None
    ratio = slow.unit_ms / fast.unit_ms
    assert mixed.slowness == pytest.approx((1, 1, ratio, ratio), rel=1e-5) and ratio > 1.5
    assert mixed.limit_mib == (*fast.limit_mib[:2], *slow.limit_mib[2:])
    assert mixed.tail == pytest.approx((*fast.tail[:2], *(tail * ratio for tail in slow.tail[2:])))
    assert mixed.lag == pytest.approx(max(fast.lag, slow.lag * ratio))


def test_orders_are_the_listed_one_all_of_rows_or_all_there_are() -> None:
    file = stated()
    assert names(file, LISTED) == ["h100-80g:2,a100-40g:2"]
    assert names(file, GROUPS) == ["h100-80g:2,a100-40g:2", "a100-40g:2,h100-80g:2"]
    assert len(names(file, ANY)) == len(set(itertools.permutations("hhaa")))
    apart = stated(stage_devices=(("h100-80g", 1), ("a100-40g", 2), ("h100-80g", 1)))
    assert names(apart, GROUPS)[0] == "h100-80g:1,a100-40g:2,h100-80g:1" and len(names(apart, GROUPS)) == 3


def test_too_many_orders_are_refused_before_any_is_made() -> None:
    file = stated()
    assert file.stages is not None
    endless = replace(file.stages, specs=file.stages.specs * 20)
    with pytest.raises(InputError, match="too many to try"):
        endless.orders(ANY)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--stage_devices", "h100-80g:3"], "names 3 stages, and the pipeline has 4"),
        (["--stage_devices", "h100-80g:2,b1000:2"], "b1000"),
        (["--stage_devices", "h100-80g:2,a100-80g:2", "--device", "h20-96g"], "is not among the devices"),
        (["--stage_order", "any"], "stage_order"),
    ],
)
def test_what_cannot_be_is_refused_with_its_flag(arguments: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        run(["-shell", str(SCRIPT), "-write", "n", "-dryrun", "n", "-check", "n", *arguments])


def test_the_result_tells_the_devices_of_the_stages_and_is_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["-yaml", str(YAML), "-write", "n", "-dryrun", "n", "-check", "n", "-workers", "1", "-gap", "0.01"]
    run([*arguments, "--stage_devices", "h100-80g:1,a100-80g", "--result_json", "r.json", "--trace", "t.json"])
    data = json.loads(Path("r.json").read_text())
    assert sorted(data["stage_devices"]) == ["a100-80g", "h100-80g"]
    assert [one["name"] for one in data["alternatives"]]
    problem = read_result(Path("r.json")).problem
    assert [slow > 1 for slow in problem.slowness] == [name == "a100-80g" for name in data["stage_devices"]]
    slower = f"{max(problem.slowness):.3g} x"
    assert slower in Path("t.json").read_text() and slower in capsys.readouterr().out
    assert "stages take" in next(Path("pipeline_output/model_mps").iterdir()).read_text()


def test_each_stage_has_the_time_ratios_of_its_own_card(tmp_path: Path) -> None:
    file = stated(stage_order=LISTED)
    memory = file.obtain_memory(None, tmp_path)
    mixed = file.problem(memory)
    for s, name in enumerate(["h100-80g", "h100-80g", "a100-40g", "a100-40g"]):
        alone = stated(stage_devices=(), device=name)
        problem = alone.problem(alone.obtain_memory(None, tmp_path))
        here = mixed.on_stage(s)
        assert here.backward_ratio == problem.backward_ratio
        assert dict(here.recompute_ratio) == dict(problem.recompute_ratio)
        assert [kind.forward for kind in here.kinds] == [kind.forward for kind in problem.kinds]
        if s == 0:
            assert mixed.embedding_forward == problem.embedding_forward
        if s == 3:
            assert mixed.head_forward == problem.head_forward
    assert len(set(mixed.backward_ratios)) == 2


def test_a_ratio_that_is_given_holds_on_every_card(tmp_path: Path) -> None:
    file = stated(ratios=RatioChoice(backward=2.5))
    problem = file.problem(file.obtain_memory(None, tmp_path))
    assert problem.backward_ratios == (2.5,) * 4 and problem.slowness[-1] > 1.5


@pytest.mark.slow
@pytest.mark.parametrize("how", [GROUPS, ANY])
def test_whichever_card_is_listed_first_the_best_order_is_the_same(tmp_path: Path, how: str) -> None:
    found = []
    for devices in (MIXED, MIXED[::-1]):
        file = stated(stage_devices=devices, stage_order=how)
        planned = solve_stated(file, file.obtain_memory(None, tmp_path), ONE_AFTER_ANOTHER)
        assert planned.solution.objective is not None and planned.problem.unit_ms is not None
        found.append((planned.solution.objective * planned.problem.unit_ms, planned.problem.cards))
    assert found[0][1] == found[1][1] and found[0][0] == pytest.approx(found[1][0], rel=ONE_AFTER_ANOTHER.gap)


@pytest.mark.slow
def test_the_listed_order_is_the_one_that_is_answered(tmp_path: Path) -> None:
    for devices in (MIXED, MIXED[::-1]):
        file = stated(stage_devices=devices)
        planned = solve_stated(file, file.obtain_memory(None, tmp_path), ONE_AFTER_ANOTHER)
        assert planned.problem.cards == tuple(name for name, count in devices for _ in range(count))


TOML = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
global_batch_size = 16
seq_len = 4096
steps = 10
[parallelism]
data_parallel_shard_degree = 1
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "1F1B"
"""


@pytest.mark.parametrize("flag", ["-yaml", "-shell", "-toml"])
def test_the_written_file_holds_the_cards_and_is_evaluated_as_it_was_solved(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text(TOML)
    source, each = {"-yaml": (YAML, 1), "-shell": (SCRIPT, 2), "-toml": (Path("own.toml"), 1)}[flag]
    written = f"planned{source.suffix}"
    common = ["-dryrun", "n", "-check", "n"]
    cards = f"a100-80g:{each},h100-80g:{each}"
    more = ["-workers", "1", "-gap", "0.01", "--stage_devices", cards, "--result_json", "solved.json", "-o", written]
    run([flag, str(source), *common, *more])
    assert f"# taylor: stage_devices {cards}" in Path(written).read_text().splitlines()
    run([flag, written, *common, "-evaluate", "y", "--result_json", "evaluated.json"])
    solved, evaluated = (json.loads(Path(name).read_text()) for name in ("solved.json", "evaluated.json"))
    for key in ("stage_devices", "objective", "step_ms", "peak_memory"):
        assert solved[key] == evaluated[key], key
    run([flag, written, *common, "-write", "n", "-workers", "1", "--stage_devices", f"h100-80g:{2 * each}",
         "--result_json", "alike.json"])  # fmt: skip
    assert set(json.loads(Path("alike.json").read_text())["stage_devices"]) == {"h100-80g"}


def test_model_file_trace_and_exports_name_the_cards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["-yaml", str(YAML), "-write", "n", "-dryrun", "n", "-check", "n", "-workers", "1", "-gap", "0.01"]
    files = ["--trace", "t.json", "--html", "h.html", "--export", "mindformers=e.yaml", "--export", "json=e.json"]
    run([*arguments, "--stage_devices", "h100-80g:1,a100-80g", *files])
    assert "stages on h100-80g:1,a100-80g:1" in next(Path("pipeline_output/model_mps").iterdir()).read_text()
    assert "stages on h100-80g:1,a100-80g:1" in next(Path("pipeline_output/sol_output").iterdir()).read_text()
    for name in ("t.json", "h.html", "e.json"):
        assert "a100-80g" in Path(name).read_text(), name
    assert Path("e.yaml").read_text().startswith("# taylor: stage_devices h100-80g:1,a100-80g:1\n")
    assert json.loads(Path("e.json").read_text())["stage_devices"] == ["h100-80g", "a100-80g"]
