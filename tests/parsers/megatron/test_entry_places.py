"""Where a layout may put MTP layers, against Megatron-LM's own check stated letter by letter."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.megatron.export import export_layout
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import PipelinePlan, as_grid
from taylor.pipeline.schedule import ScheduleSpec
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.timing.evaluate import evaluate, peak_memory_mib
from taylor.register.model import DENSE, MTP
from taylor.workflows.statement.entries import entry_lines
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.problem import build_problem, plan_in_terms_of
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_scripts import BASE, script_of


def megatron_takes(layout: str, stages: int, layers: int, mtp: int) -> bool:
    """What `PipelineParallelLayerLayout.validate_layer_layout` asserts (Megatron-LM d98e8a64)."""
    unrolled = layout.replace(",", "")
    while "*" in unrolled:
        at = unrolled.index("*")
        end = at + 1
        while end < len(unrolled) and unrolled[end].isdigit():
            end += 1
        begin = unrolled.rindex("(", 0, at) if unrolled[at - 1] == ")" else at - 1
        repeated = unrolled[begin:at].strip("()")
        unrolled = unrolled[:begin] + repeated * int(unrolled[at + 1 : end]) + unrolled[end:]
    chunks = unrolled.split("|")
    if len(chunks) % stages:
        return False
    letters = "".join(chunks)
    if letters[0] != "E" or letters[-1] != "L" or (letters.count("E"), letters.count("L")) != (1, 1):
        return False
    if (letters.count("t"), letters.count("m")) != (layers, mtp):
        return False
    if "m" in letters and "t" in letters[letters.index("m") :]:
        return False
    rows = [chunks[row : row + stages] for row in range(0, len(chunks), stages)]
    if any("m" in chunk for row in rows[:-1] for chunk in row):
        return False
    return all(chunk.count("m") in (0, mtp) for chunk in rows[-1])


def laid_out(folder: Path, layout: str, mtp: int = 1) -> TrainingConfig:
    more = f"--pipeline-model-parallel-layout '{layout}'\n--mtp-num-layers {mtp}\n"
    folder.mkdir(exist_ok=True)
    return read_config(script_of(folder, BASE + more, "command"))


@pytest.mark.parametrize("interleaves", [1, 2])
def test_the_places_of_mtp_layers_are_those_that_megatron_takes(interleaves: int, tmp_path: Path) -> None:
    chunks = 4 * interleaves
    config = laid_out(tmp_path, f"Et*{24 - chunks + 1}{'|t' * (chunks - 1)}mmL", 2)
    places = launcher_of(config).mtp_places(config)
    assert places is not None and config.strategy.vpp == interleaves
    for place in range(chunks):
        sizes = [24 if k == min(place, 1) else 0 for k in range(chunks)]
        held = [2 if k == place else 0 for k in range(chunks)]
        grids = {kind: as_grid([row[v * 4 : v * 4 + 4] for v in range(interleaves)])
                 for kind, row in ((DENSE, sizes), (MTP, held))}  # fmt: skip
        layout = export_layout(PipelinePlan(grids, {}), False, False)
        assert megatron_takes(layout, 4, 24, 2) is (place in places), layout


@pytest.mark.parametrize("layout", ["Et*8|t*8|t*8m|L", "E|t*12|t*12m|L", "E|t*12|t*12|mL", "Et*9|t*8|t*7|mL"])
def test_a_plan_with_chunks_for_entries_alone_is_written_and_read_back(layout: str, tmp_path: Path) -> None:
    assert megatron_takes(layout, 4, 24, 1)
    wanted = laid_out(tmp_path, layout)
    other = laid_out(tmp_path, "Et*6|t*6|t*6|t*6mL")
    assert wanted.plan is not None
    again = read_config(write_plan(other, wanted.plan, output=tmp_path / "out.sh"))
    assert again.plan == wanted.plan and not again.misfits


def test_a_script_with_a_layout_lets_its_entries_move_and_says_so(tmp_path: Path) -> None:
    config = laid_out(tmp_path, "Et*8|t*8|t*8m|L")
    file = StatedFile.read(FileJob(config.path, dryrun=False, check=False))
    assert file.facts.further[0].startswith("embedding and head may have chunks of their own, MTP layers lie with")
    problem = file.problem(file.obtain_memory(None, tmp_path))
    mtp = problem.kinds[-1]
    assert (mtp.name, mtp.places, mtp.hand_over) == (MTP, (2, 3), 1.0)
    assert problem.entries_alone and problem.min_layers == 1
    plain = read_config(script_of(tmp_path, BASE + "--mtp-num-layers 1\n", "command"))
    assert launcher_of(plain).mtp_places(plain) is None and entry_lines(plain) == ()
    folded = config.replace(schedule=ScheduleSpec("zbv"), strategy=config.strategy.replace(vpp=2))
    assert launcher_of(folded).mtp_places(folded) is None


def test_losses_on_several_chunks_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has L 4 times: releases of Megatron-LM and its main take it once"):
        laid_out(tmp_path, "Et*8|t*8|t*8m|mm|LL|LL", 3)
    assert not megatron_takes("Et*8|t*8m|mmLL|LL", 4, 24, 3)


def test_mtp_layers_on_several_chunks_are_refused_by_a_rule_that_can_be_waived(tmp_path: Path) -> None:
    spread, together = "Et*8|t*8|t*8m|mmL", "Et*8|t*8|t*8mmm|L"
    assert not megatron_takes(spread, 4, 24, 3) and megatron_takes(together, 4, 24, 3)
    assert not laid_out(tmp_path, together, 3).misfits
    (misfit,) = laid_out(tmp_path, spread, 3).misfits
    assert misfit.rule == "mtp-on-one-chunk" and "layer_layout.py:127-131" in misfit.source
    with pytest.raises(InputError, match="breaks the rule mtp-on-one-chunk"):
        StatedFile.read(FileJob(laid_out(tmp_path, spread, 3).path, dryrun=False, check=False))
    waived = FileJob(laid_out(tmp_path, spread, 3).path, dryrun=False, check=False, allow_illegal=("mtp-on-one-chunk",))
    assert "each MTP layer lies with the head" in StatedFile.read(waived).facts.further[0]


@pytest.mark.parametrize("layout", ["Et*8|t*8|t*8m|mmL", "Et*12|t*12|mm|mL", "Et*24|m|m|mL", "Et*12|t*12m|mm|L"])
def test_where_the_rule_is_waived_each_mtp_layer_has_a_place_of_its_own(layout: str, tmp_path: Path) -> None:
    config = laid_out(tmp_path, layout, 3)
    allowed = ("mtp-on-one-chunk",)
    file = StatedFile.read(FileJob(config.path, dryrun=False, check=False, allow_illegal=allowed))
    problem = file.problem(file.obtain_memory(None, tmp_path))
    runs = [kind for kind in problem.kinds if kind.pinned_last]
    assert [(kind.name, kind.count, kind.places) for kind in runs] == [
        (name, 1, (0, 1, 2, 3)) for name in (MTP, "mtp#2", "mtp#3")
    ]
    assert config.plan is not None
    plan = plan_in_terms_of(problem, config.plan)
    assert check(problem, plan, evaluate(problem, plan).objective) == []
    other = laid_out(tmp_path / "other", "Et*6|t*6|t*6|t*6mmmL", 3)
    again = read_config(write_plan(other, plan, output=tmp_path / "out.sh"))
    assert again.plan == config.plan


def test_each_stage_with_mtp_layers_has_one_copy_of_the_embedding(tmp_path: Path) -> None:
    layouts = {"apart": "Et*24|m|m|mL", "two": "Et*24||mm|mL", "one": "Et*24||mmm|L"}
    peaks = {}
    config = laid_out(tmp_path, layouts["apart"], 3)
    file = StatedFile.read(FileJob(config.path, dryrun=False, check=False, allow_illegal=("mtp-on-one-chunk",)))
    problem = file.problem(file.obtain_memory(None, tmp_path)).replace(entries_alone=True)
    for name, layout in layouts.items():
        plan = laid_out(tmp_path / name, layout, 3).plan
        assert plan is not None
        peaks[name] = sum(peak_memory_mib(problem, plan_in_terms_of(problem, plan)))
    copy = problem.kinds[-1].shared_mib
    # Rows over 2 ways of TP, positions on both; bf16 weights, gradients, fp32 weights and two states.
    assert copy == pytest.approx((50304 / 2 + 2048) * 1024 * 18 / 2**20)
    assert peaks["apart"] > peaks["two"] > peaks["one"]


def test_what_moves_with_mtp_layers_is_neither_lost_nor_counted_twice(tmp_path: Path) -> None:
    """With the head, stage and step are what they are where nothing may move; apart, the states go along."""
    config = laid_out(tmp_path, "Et*6|t*6|t*6|t*6mL")
    file = StatedFile.read(FileJob(config.path, dryrun=False, check=False))
    memory, ratios = file.obtain_memory(None, tmp_path), file.ratios.ratios
    assert config.plan is not None
    fixed, free = build_problem(config, memory, ratios), build_problem(config, memory, ratios, device=file.device)
    plan = plan_in_terms_of(fixed, config.plan)
    before, after = evaluate(fixed, plan), evaluate(free, plan)
    assert after.objective == pytest.approx(before.objective)
    assert after.peak_memory_mib == pytest.approx(before.peak_memory_mib)
    with_head, apart = (free.static_mib[-1], fixed.static_mib[-1])
    assert with_head < apart and free.kinds[-1].layer_mib > fixed.kinds[-1].layer_mib
    assert free.kinds[-1].forward + free.head_forward == pytest.approx(fixed.kinds[-1].forward + fixed.head_forward)
