"""Recompute by module in MindFormers files: a choice of every chunk's own, written as patterns and read back."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.cost_model.choices.module_choices import words_of
from taylor.cost_model.errors.margin import MemoryMargin
from taylor.parsers.read import read_config
from taylor.pipeline.plan import FULL, SELECT
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.workflows.showing.planned_file import PlannedFile
from taylor.workflows.solving.evaluate_file import evaluate_file
from taylor.workflows.solving.solve_file import solve_file
from taylor.workflows.statement.options import AskedModules, FileJob, Outputs
from taylor.workflows.statement.stated_file import StatedFile

CONFIG = Path(__file__).resolve().parents[2] / "config"
MIXTRAL, LLAMA = CONFIG / "pretrain_mixtral_8x7b.yaml", CONFIG / "pretrain_llama3_70b.yaml"
ASKED = AskedModules(recompute=True)


def job(path: Path, **changes: object) -> FileJob:
    return replace(FileJob(path=path, dryrun=False, check=False, margin=MemoryMargin(mib=8_000)), **changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtral")


@pytest.fixture(scope="module")
def plans(folder: Path) -> dict[bool, PlannedFile]:
    """Mixtral 8x7B with 50 GB a device: by full recompute alone, and by module too."""
    return {
        asked: solve_file(
            job(MIXTRAL, modules=AskedModules(recompute=asked)),
            SolveOptions(time_limit=60),
            Outputs(folder / f"out-{asked}", write_to=folder / f"plan-{asked}.yaml"),
        )
        for asked in (False, True)
    }


def test_modules_beat_full_recompute_with_a_proof(plans: dict[bool, PlannedFile]) -> None:
    alone, found = plans[False].solution, plans[True].solution
    assert alone.objective is not None and found.objective is not None and found.status == "optimal"
    assert found.objective < alone.objective
    assert not check(plans[True].problem, plans[True].plan)
    sets = [set(words_of(name)[0]) for name in plans[True].problem.choices]
    assert len(sets) > 1 and all(a > b for a, b in pairwise(sets))
    used = [name for name in plans[True].problem.choices if plans[True].plan.uses(name)]
    assert len(used) > 1  # Stages differ in more than a count.


def test_the_file_reads_back_as_the_plan_that_was_solved(plans: dict[bool, PlannedFile], folder: Path) -> None:
    found = plans[True]
    again = evaluate_file(job(folder / "plan-True.yaml"), Outputs(folder / "again"))
    assert again.plan.layers == found.plan.layers
    modes = {*again.plan.recompute, *found.plan.recompute}
    assert {m: again.plan.recomputed(m) for m in modes} == {m: found.plan.recomputed(m) for m in modes}
    assert again.solution.objective == pytest.approx(found.solution.objective, rel=1e-12)
    assert again.solution.peak_memory_mib == pytest.approx(found.solution.peak_memory_mib, rel=1e-12)
    lines = (folder / "plan-True.yaml").read_text().splitlines(), MIXTRAL.read_text().splitlines()
    changed = [new.strip().partition(":")[0] for new, old in zip(*lines, strict=True) if new != old]
    assert changed[:2] == ["recompute", "select_recompute"] and changed[2:] in ([], ["offset"])


def test_a_file_that_names_modules_is_solved_over_them_with_no_option(
    plans: dict[bool, PlannedFile], folder: Path
) -> None:
    options, out = SolveOptions(time_limit=60), Outputs(folder / "solved", write_to=folder / "solved.yaml")
    solved = solve_file(job(folder / "plan-True.yaml"), options, out)
    used = {name for name in plans[True].problem.choices if plans[True].plan.uses(name)}
    assert set(solved.problem.choices) == used and SELECT not in solved.problem.searched_modes
    assert solved.solution.objective == pytest.approx(plans[True].solution.objective, rel=1e-4)
    assert solved.own is not None and solved.own.objective == pytest.approx(plans[True].solution.objective, rel=1e-12)


def test_the_files_own_selective_recompute_is_among_the_choices() -> None:
    """With them the plan is never worse than the file's, which the search begins from."""
    file = StatedFile.read(job(LLAMA, modules=ASKED))
    problem = file.problem(file.obtain_memory(None, Path()))
    assert "activation" in problem.choices and SELECT in problem.unsearched
    start = file.known_plan(problem)
    own = read_config(LLAMA).plan
    assert start is not None and own is not None
    assert start.recompute == {FULL: own.recomputed(FULL), "activation": own.recomputed(SELECT)}
    assert not {fault for fault in check(problem, start) if "mode" in fault}


def test_models_whose_layers_have_other_names_are_refused(tmp_path: Path) -> None:
    text = re.sub(r"^    type: LlamaConfig$", "    type: TelechatConfig", LLAMA.read_text(), flags=re.M)
    (tmp_path / "other.yaml").write_text(text)
    with pytest.raises(InputError, match="--recompute_modules"):
        StatedFile.read(job(tmp_path / "other.yaml", modules=ASKED))
