"""Stages on several kinds of devices: what each costs, which orders are tried, and the best of them all."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.command_lines.pipeline_parallel import run
from taylor.pipeline_solver.checker import check
from taylor.pipeline_solver.options import SolveOptions
from taylor.pipeline_solver.result import read_result
from taylor.pipeline_solver.solve import solve
from taylor.workflows.options import ANY, GROUPS, LISTED, FileJob
from taylor.workflows.solve_file import solve_stated
from taylor.workflows.stage_devices import order_name
from taylor.workflows.stated_file import StatedFile

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
        (["--stage_devices", "h100-80g:2,a100-80g:2", "-vpp", "auto"], "auto is not combined"),
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
