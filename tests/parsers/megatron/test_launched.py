"""Scripts and written plans against what the launcher builds from them, position by position."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.differential_reading.launched import arguments, built_layers
from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from taylor.parsers.text.shell_source import ShellScript
from taylor.parsers.training_config import TrainingConfig
from taylor.parsers.write_back import write_plan
from taylor.pipeline.chunks import chunk_order
from taylor.pipeline.plan import FULL, PipelinePlan, as_grid, deal_kinds, grid_in_order
from taylor.register.model import DENSE, MTP
from tests.conftest import SHARED
from tests.parsers.megatron.test_scripts import SAMPLES, arguments_under_bash, needs_bash, needs_samples

STAGED = """\
torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --use-fused-rmsnorm --num-layers 32 --hidden-size 2048 \\
 --ffn-hidden-size 8192 --num-attention-heads 16 --seq-length 4096 --max-position-embeddings 4096 \\
 --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 1 --pipeline-model-parallel-size 4 \\
 --expert-model-parallel-size 8 --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --bf16 --swiglu \\
 --padded-vocab-size 102400 --use-flash-attn --position-embedding-type rope MORE
"""
MORE = (
    "--first-k-dense-replace 3 --moe-layer-freq 1",
    "--first-k-dense-replace 3 --moe-layer-freq 1 --num-layers-per-virtual-pipeline-stage 4",
    "--first-k-dense-replace 3 --moe-layer-freq 1 --noop-layers 0,31",
    "--first-k-dense-replace 5 --moe-layer-freq 1 --noop-layers 1,2,3,4,30",
    "--first-k-dense-replace 3 --moe-layer-freq 1 --num-layer-list 2,10,10,10",
    "--first-k-dense-replace 3 --moe-layer-freq 1 --num-layer-list 2,10,10,10 --noop-layers 31",
    "--first-k-dense-replace -1 --moe-layer-freq -1",
    "--first-k-dense-replace 0 --moe-layer-freq 1 --num-layer-list 5,9,9,9",
    "--moe-layer-freq -1",
    "--moe-layer-freq ([0]*2+[1]*30) --noop-layers 1,2,17",
    "--moe-layer-freq 2",
    "--moe-layer-freq ([0]*3+[1]*1)*8 --noop-layers 5,30",
    "--first-k-dense-replace 3 --moe-layer-freq 2",
    "--moe-layer-freq 1 --full-attention-interval 4",
    "--first-k-dense-replace 2 --moe-layer-freq 1 --full-attention-interval 4 --noop-layers 0,31",
    "--first-k-dense-replace 2 --moe-layer-freq 1 --schedules-method dualpipev --noop-layers 1,31",
)
RECOMPUTE = (
    "",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 2",
    "--recompute-granularity full --recompute-method block --recompute-num-layers 3"
    " --enable-recompute-layers-per-pp-rank",
    "--recompute-granularity full --recompute-method uniform",
)


def script(folder: Path, more: str) -> Path:
    file = folder / "start.sh"
    file.write_text(STAGED.replace("MORE", re.sub(r"(\(\S+)", r"'\1'", more)), encoding="utf-8")
    return file


Kind = tuple[bool, bool]
"""Whether a layer has experts, and attends linearly."""


def stated(args: dict[str, str], stages: int, vpp: int) -> tuple[dict[Kind, list[list[int]]], list[list[int]]]:
    """Layers by kind and fully recomputed ones by the launcher's own rules, int [vpp, pp] each."""
    kinds: dict[Kind, list[list[int]]] = {}
    full = [[0] * stages for _ in range(vpp)]
    for each in built_layers(args):
        rows = kinds.setdefault((each.experts, each.linear), [[0] * stages for _ in range(vpp)])
        rows[each.chunk][each.stage] += 1
        full[each.chunk][each.stage] += each.recomputed
    return kinds, full


def planned(config: TrainingConfig) -> dict[Kind, list[list[int]]]:
    """Layers of the plan by kind, int [vpp, pp] each."""
    assert config.plan is not None
    kinds: dict[Kind, list[list[int]]] = {}
    for run, grid in config.plan.layers.items():
        if run == MTP or not any(map(any, grid)):
            continue
        layer = config.model.layer(run)
        rows = kinds.setdefault((layer.moe is not None, layer.linear is not None), [[0] * len(grid[0]) for _ in grid])
        for v, row in enumerate(grid):
            for s, count in enumerate(row):
                rows[v][s] += count
    return kinds


def assert_built_as_read(config: TrainingConfig, args: dict[str, str]) -> None:
    assert config.plan is not None
    kinds, full = stated(args, config.strategy.pp, config.strategy.vpp)
    assert planned(config) == kinds
    assert config.plan.recomputed(FULL) == as_grid(full)


def words_of(file: Path) -> list[str]:
    source = ShellScript.read(file)
    return [word.text for word in max(source.commands, key=lambda command: len(command.words)).words]


@pytest.mark.parametrize("recompute", RECOMPUTE)
@pytest.mark.parametrize("more", MORE)
def test_a_script_reads_as_the_launcher_builds_it(more: str, recompute: str, tmp_path: Path) -> None:
    file = script(tmp_path, f"{more} {recompute}")
    assert_built_as_read(read_config(file), arguments(words_of(file)))


def shifted(config: TrainingConfig, by: int) -> PipelinePlan:
    """The file's layers with `by` of them moved from the first chunk to the last, the first two recomputed.

    All are recomputed where attention is linear in some layers: empty positions then stand in front of others.
    """
    order = chunk_order(config.strategy.pp, config.strategy.vpp, config.schedule.v_shape)
    assert config.plan is not None
    body = config.plan.total_layers([kind for kind in config.plan.layers if kind != MTP])
    sizes = [body[v][s] for v, s in order]
    sizes[0], sizes[-1] = sizes[0] - by, sizes[-1] + by
    pinned = {kind: len(sizes) - 1 for kind in config.model.layer_counts() if kind == MTP}
    layers = deal_kinds(config.model.layer_counts(), sizes, config.strategy.pp, config.schedule.v_shape, pinned)
    first = max(sizes) if any(kind.linear for kind in config.model.kinds) else 2
    full = grid_in_order([min(first, size) for size in sizes], config.strategy.pp, config.schedule.v_shape)
    return PipelinePlan(layers, {FULL: as_grid(full)})


def assert_written_is_built(config: TrainingConfig, plan: PipelinePlan, folder: Path) -> None:
    out = folder / f"out_{config.path.name}"
    written = read_config(write_plan(config, plan, output=out))
    assert written.plan == plan and written.model.layer_counts() == config.model.layer_counts()
    assert_built_as_read(written, arguments(words_of(out)))


@pytest.mark.parametrize("by", [-2, 1, 2])
@pytest.mark.parametrize("more", MORE)
def test_a_written_plan_is_what_the_launcher_builds(more: str, by: int, tmp_path: Path) -> None:
    config = read_config(script(tmp_path, more))
    try:
        assert_written_is_built(config, shifted(config, by), tmp_path)
    except InputError as error:  # Only where no flags can say it.
        assert "fill the first stage" in str(error) and by > 0


def test_noops_before_a_dense_layer_move_the_count_along(tmp_path: Path) -> None:
    """The smallest case that built two dense layers instead of three."""
    config = read_config(script(tmp_path, MORE[1]))
    plan = shifted(config, 2)
    assert plan.layers[DENSE] == ((2, 1, 0, 0), (0, 0, 0, 0))
    out = write_plan(config, plan, output=tmp_path / "out.sh")
    args = arguments(words_of(out))
    assert sum(not each.experts for each in built_layers(args)) == 3
    assert int(args["first-k-dense-replace"]) > 3


STATED_SAMPLES = sorted(
    file
    for folder in (SAMPLES, SHARED / "data" / "configs_more")
    for file in folder.glob("*.sh")
    if "mindspeed" in file.name or file.name.startswith(("msp_", "pretrain_")) or "mixtral" in file.name
)


@needs_samples
@needs_bash
@pytest.mark.parametrize("file", STATED_SAMPLES, ids=lambda file: file.stem[:50])
def test_a_real_script_and_its_written_plan_are_what_the_launcher_builds(file: Path, tmp_path: Path) -> None:
    try:
        config = read_config(file)
    except InputError as error:
        pytest.skip(str(error))
    assert config.plan is not None
    assert_built_as_read(config, arguments(arguments_under_bash(file, tmp_path)))
    chunks = config.strategy.pp * config.strategy.vpp
    ends = min(config.model.n_layers // chunks - 1, 2)
    if chunks > 1 and ends > 0:
        for by in (-1, 1, ends):
            try:
                assert_written_is_built(config, shifted(config, by), tmp_path)
            except InputError as error:
                assert "fill the first stage" in str(error) and by > 0
