"""TP in a grid of two dimensions keeps what sequence parallelism keeps, and transfers what its products need."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.memory.activations import activation_bytes
from taylor.cost_model.network.collectives import gather_ms
from taylor.cost_model.time.overlap import shown_behind
from taylor.cost_model.time.product_times import ProductTimes
from taylor.cost_model.time.speed import Speed
from taylor.cost_model.time.step import layer_time
from taylor.cost_model.time.tensor_grid import forms_grid, grid_transfers
from taylor.parsers.read import read_config
from taylor.parsers.registry import launcher_of
from taylor.register.registry import Registry

WORDS = (
    "--use-mcore-models --use-flash-attn --num-layers 4 --hidden-size 4096 --ffn-hidden-size 11008 "
    "--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 "
    "--global-batch-size 16 --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --swiglu --bf16 "
    "--position-embedding-type rope --normalization RMSNorm --disable-bias-linear --padded-vocab-size 32000 "
    "--untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 --use-fused-swiglu"
)


def script(folder: Path, more: str) -> Path:
    path = folder / "job.sh"
    path.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {WORDS} {more}\n")
    return path


def test_a_grid_keeps_what_sequence_parallelism_keeps(tmp_path: Path) -> None:
    grid = read_config(script(tmp_path, "--tp-2d --tp-x 2 --tp-y 2"))
    split = read_config(script(tmp_path, "--sequence-parallel"))
    assert grid.rules.tensor_grid == (2, 2) and grid.unmodelled == ()
    kept = [activation_bytes(one.model, "dense", "none", one.strategy, one.rules) for one in (grid, split)]
    assert kept[0] == kept[1] > 0


@pytest.mark.parametrize(("x", "y"), [(2, 2), (4, 1), (1, 4)])
def test_every_product_gathers_its_input_and_scatters_its_sums(tmp_path: Path, x: int, y: int) -> None:
    config, device = read_config(script(tmp_path, f"--tp-2d --tp-x {x} --tp-y {y}")), Registry.load().device("910b")
    speed = Speed.of(device, config.rules, in_layer=True)
    products = ProductTimes(1.0, 2.0, 3.0)
    told = grid_transfers(config.model, "dense", config.strategy, config.rules, device, speed, products)
    tokens, hidden, inner = 2 * 4096, 4096, 11008

    def time(width: float, ways: int, stride: int, size: int = 2) -> float:
        return float(gather_ms(tokens * width * size, ways, stride, device, speed.network))

    inputs = time(hidden / y, x, 1) + time(hidden / x, y, x) + time(hidden / y, x, 1) + time(inner / x, y, x)
    sums = time(3 * hidden / x, y, x) + time(hidden / y, x, 1) + time(2 * inner / x, y, x) + time(hidden / y, x, 1)
    norms = 4 * time(1, y, x, 4)
    assert told.forward == pytest.approx(inputs + sums + norms)
    assert told.backward == pytest.approx(sums + norms + shown_behind(inputs, 2.0) + shown_behind(inputs, 3.0))
    assert told.ring == pytest.approx(time(2 * hidden / x, y, x))


def test_transfers_of_a_grid_are_in_a_layer_s_time_where_the_strategy_has_it(tmp_path: Path) -> None:
    config, device = read_config(script(tmp_path, "--tp-2d --tp-x 2 --tp-y 2")), Registry.load().device("910b")
    flat = config.rules.replace(tensor_grid=None)
    two, one = (layer_time(config.model, "dense", config.strategy, rules, device) for rules in (config.rules, flat))
    # Groups of two cards have one link of the mesh between them, a group of four has three a card.
    assert two.forward > 1.3 * one.forward and two.backward > 1.3 * one.backward
    other = config.strategy.replace(tp=2)
    assert not forms_grid(other, config.rules)
    assert layer_time(config.model, "dense", other, config.rules, device).forward == pytest.approx(
        layer_time(config.model, "dense", other, flat, device).forward
    )


def test_a_plan_of_another_tp_is_written_without_the_grid(tmp_path: Path) -> None:
    config = read_config(script(tmp_path, "--tp-2d --tp-x 2 --tp-y 2"))
    strategy = config.strategy
    other, same = (
        launcher_of(config).with_strategy(config, each, None, {})
        for each in (strategy.replace(tp=2, dp=2, micro_batches=4), strategy)
    )
    assert "--tp-2d" not in other and "--tp-x" not in other and "--sequence-parallel" in other
    assert "--tp-2d" in same and "--sequence-parallel" not in same
