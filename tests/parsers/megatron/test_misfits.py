"""Launches that Megatron-LM refuses with any strategy."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.write_back import emit_variant, write_plan
from taylor.pipeline_solver.check.checker import check
from taylor.pipeline_solver.model.options import SolveOptions
from taylor.pipeline_solver.model.solution import OPTIMAL
from taylor.pipeline_solver.solving.solve import solve
from taylor.pipeline_solver.timing.evaluate import step_time
from taylor.workflows.statement.options import FileJob
from taylor.workflows.statement.stated_file import StatedFile
from tests.parsers.megatron.test_scripts import BASE, script_of

SPARSE = (
    "--multi-latent-attention\n--experimental-attention-variant dsa\n--dsa-indexer-n-heads 4\n"
    "--dsa-indexer-head-dim 64\n--dsa-indexer-topk 512\n"
)
UNIFORM = "--recompute-granularity full\n--recompute-method uniform\n"


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        ("--seq-length 8192\n--max-position-embeddings 4096\n", "--seq-length 8192"),
        ("--seq-length 4096\n--max-position-embeddings 4096\n", None),
        ("--seq-length 2048\n--decoder-seq-length 8192\n--max-position-embeddings 4096\n", "--decoder-seq-length 8192"),
    ],
)
@pytest.mark.parametrize("launcher", ["", "--use-fused-rmsnorm\n--normalization RMSNorm\n"])
def test_a_sequence_beyond_the_positions_is_refused_as_megatron_does(
    more: str, refused: str | None, launcher: str, tmp_path: Path
) -> None:
    file = script_of(tmp_path, f"{BASE}{launcher}--position-embedding-type rope\n{more}", "command")
    if refused is None:
        assert not read_config(file).misfits
        return
    says = rf"--max-position-embeddings: breaks the rule sequence-in-positions: is below {refused} \(found 4096\)"
    with pytest.raises(InputError, match=f"{says}.*write --max-position-embeddings 8192.*arguments.py:830"):
        StatedFile.read(FileJob(file))


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n", True),
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 1\n", False),
        (f"{UNIFORM}--recompute-num-layers 2\n", False),
        (f"--mtp-num-layers 1\n{UNIFORM.replace('uniform', 'block')}--recompute-num-layers 2\n", False),
        (f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n--use-fused-rmsnorm\n", False),
    ],
)
def test_mtp_layers_that_run_again_by_twos_are_refused_as_megatron_does(
    more: str, refused: bool, tmp_path: Path
) -> None:
    file = script_of(tmp_path, f"{BASE}{more}", "command")
    if not refused:
        assert not read_config(file).misfits
        return
    with pytest.raises(
        InputError, match=r"--recompute-num-layers: .* must be 1 .*found 2.*multi_token_prediction.py:847"
    ):
        StatedFile.read(FileJob(file))


def test_of_several_reasons_the_first_that_megatron_meets_is_named(tmp_path: Path) -> None:
    both = f"--mtp-num-layers 1\n{UNIFORM}--recompute-num-layers 2\n--seq-length 8192\n--max-position-embeddings 4096\n"
    (misfit,) = read_config(script_of(tmp_path, BASE + both, "command")).misfits
    assert misfit.rule == "sequence-in-positions"


def megatron_splits(starts: list[int], layers: int, every: int, offset: int) -> bool:
    """What `_validate_dsa_index_share_pipeline_split` lets pass: each layer's source is in its chunk."""

    def source(number: int) -> int:
        offset_from_one = max(offset, 1)
        if number <= offset_from_one:
            return number
        return number - (number - offset_from_one) % every

    chunks = [range(a, b) for a, b in itertools.pairwise([*starts, layers + 1])]
    return all(source(number) in chunk for chunk in chunks for number in chunk)


@pytest.mark.parametrize(("every", "offset"), [(1, 0), (2, 0), (3, 2), (4, 3), (4, 1), (5, 7), (30, 0)])
def test_a_layout_starts_where_every_reused_choice_is_made_in_its_chunk(
    every: int, offset: int, tmp_path: Path
) -> None:
    refused = 0
    for second, third in ((2, 3), (4, 7), (4, 8), (5, 9), (7, 13), (8, 9), (3, 11), (6, 21)):
        layout = f"Et*{second - 1}|t*{third - second}|t*{21 - third}|t*4L"
        more = f"{SPARSE}--dsa-indexer-topk-freq {every}\n--dsa-indexer-skip-topk-offset {offset}\n"
        more += f"--pipeline-model-parallel-layout '{layout}'\n"
        rules = [misfit.rule for misfit in read_config(script_of(tmp_path, BASE + more, "command")).misfits]
        starts = megatron_splits([1, second, third, 21], 24, every, offset)
        assert rules == ([] if starts else ["chosen-tokens-in-chunk"]), layout
        refused += len(rules)
    assert refused == 0 if every == 1 else refused > 0


def test_an_even_split_in_the_middle_of_a_choice_is_refused_with_the_layers_that_may_begin(tmp_path: Path) -> None:
    file = script_of(tmp_path, BASE + SPARSE + "--dsa-indexer-topk-freq 4\n", "command")
    with pytest.raises(InputError, match="breaks the rule chosen-tokens-in-chunk") as refused:
        StatedFile.read(FileJob(file, dryrun=False, check=False))
    assert "let chunks begin with layers 1, 5, 9, 13, 17, 21 by --pipeline-model-parallel-layout" in str(refused.value)


def test_another_number_of_stages_gets_an_even_layout_that_starts(tmp_path: Path) -> None:
    more = f"{SPARSE}--dsa-indexer-topk-freq 4\n--pipeline-model-parallel-layout 'Et*8|t*8|t*4|t*4L'\n"
    config = read_config(script_of(tmp_path, BASE + more, "command"))
    strategy = config.strategy.replace(pp=2, tp=4)
    again = read_config(emit_variant(config, strategy, tmp_path / "two.sh", plan=None))
    assert again.strategy.pp == 2 and not again.misfits
    assert again.plan is not None and again.plan.total_layers() == ((12, 12),)
    three = config.even_plan(config.strategy.replace(pp=3))
    assert three.total_layers() == ((8, 8, 8),) and three.recompute == {}
    uneven = config.even_plan(config.strategy.replace(pp=4))
    assert uneven.total_layers() == ((4, 8, 4, 8),)


def test_a_plan_of_layers_that_reuse_choices_is_written_as_a_layout_that_starts(tmp_path: Path) -> None:
    """The published layout of GLM-5.2 without its MTP layers, and the best one with 78 layers."""
    more = f"{SPARSE}--dsa-indexer-topk-freq 4\n--dsa-indexer-skip-topk-offset 3\n"
    more += "--pipeline-model-parallel-layout 'Et*18|t*24|t*24|t*12L'\n"
    flags = BASE.replace("--num-layers 24", "--num-layers 78") + more
    file = StatedFile.read(FileJob(script_of(tmp_path, flags, "command"), dryrun=False, check=False))
    problem = file.problem(file.obtain_memory(None, tmp_path))
    assert {kind.joined for kind in problem.kinds} == {True, False}
    assert [kind.name for kind in problem.kinds if kind.joined] == [
        run for run in file.config.model.layer_counts() if run.startswith("mla-dsa-reused")
    ]
    solution = solve(problem, SolveOptions(time_limit=60.0))
    assert solution.status == OPTIMAL and solution.plan is not None
    again = read_config(write_plan(file.config, solution.plan, output=tmp_path / "out.sh"))
    assert not again.misfits and again.plan is not None
    assert again.plan.layers == solution.plan.layers
    published = file.known_plan(problem)
    assert published is not None and check(problem, published) == []
    assert solution.objective is not None and step_time(problem, published) >= solution.objective
