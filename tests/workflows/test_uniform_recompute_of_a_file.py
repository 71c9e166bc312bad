"""Megatron's uniform recompute: several layers at once, MTP layers with them; block leaves MTP layers alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from taylor.command_lines.pipeline_parallel import run
from taylor.cost_model.memory.activations import activation_bytes
from taylor.parsers.read import read_config
from taylor.parsers.write_back import write_plan
from taylor.pipeline.plan import FULL

FLAGS = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --hidden-size 4096 --ffn-hidden-size 14336 \\
    --num-attention-heads 32 --group-query-attention --num-query-groups 8 --seq-length 4096 \\
    --max-position-embeddings 8192 --position-embedding-type rope --swiglu --normalization RMSNorm \\
    --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --tokenizer-type NullTokenizer \\
    --bf16 --use-flash-attn --transformer-impl transformer_engine --attention-dropout 0 --hidden-dropout 0 \\
    --use-distributed-optimizer --num-layers 32 --pipeline-model-parallel-size 2 --tensor-model-parallel-size 1 \\
    --micro-batch-size 1 --global-batch-size 64 --recompute-granularity full """


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def peaks_and_step(flags: str, *more: str) -> tuple[list[float], float]:
    Path("job.sh").write_text(f"{FLAGS} {flags}\n")
    run(["-shell", "job.sh", "-dryrun", "n", "-check", "n", "--result_json", "r.json", *(more or ("-evaluate", "y"))])
    data = json.loads(Path("r.json").read_text())
    return data["peak_memory"], data["step_ms"]


def test_a_group_saves_one_input_and_has_all_its_layers_alive_at_once() -> None:
    found = {n: peaks_and_step(f"--recompute-method uniform --recompute-num-layers {n}") for n in (1, 2, 4, 8, 16, 99)}
    assert len({step for _, step in found.values()}) == 1  # every layer runs again once, whatever the groups
    first = [peaks[0] for peaks, _ in found.values()]
    assert first == sorted(first) and first[-2] - first[0] > 5000 and first[-1] == first[-2]
    # A stage of 16 layers and two micro-batches: 16 / N inputs of 32 MiB each, and N layers that live at once.
    layer = (first[3] - first[2] + 4 * 32) / 4  # from 4 layers at once to 8, with 4 saved inputs less
    assert first[4] - first[3] == pytest.approx(8 * layer - 2 * 32, rel=1e-6)


def test_a_group_that_does_not_divide_the_layers_saves_one_input_more() -> None:
    three, four = (read_config(_script(n)).as_it_recomputes() for n in (3, 4))
    kept = [
        16 * float(activation_bytes(one.model, "dense", FULL, one.strategy, one.rules)) / 2**20 for one in (three, four)
    ]
    assert kept == pytest.approx([6 * 32, 4 * 32])


def _script(n: int) -> Path:
    path = Path(f"{n}.sh")
    path.write_text(f"{FLAGS} --recompute-method uniform --recompute-num-layers {n}\n")
    return path


def test_a_plan_that_is_solved_recomputes_layers_one_by_one_and_is_written_so() -> None:
    one = peaks_and_step("--recompute-method uniform --recompute-num-layers 1", "-workers", "1", "-o", "one.sh")
    eight = peaks_and_step("--recompute-method uniform --recompute-num-layers 8", "-workers", "1", "-o", "eight.sh")
    assert one == eight
    run(["-shell", "eight.sh", "-dryrun", "n", "-check", "n", "-evaluate", "y", "--result_json", "again.json"])
    again = json.loads(Path("again.json").read_text())
    assert (again["peak_memory"], again["step_ms"]) == eight


def test_mtp_layers_run_again_under_uniform_and_not_under_block() -> None:
    uniform = peaks_and_step("--mtp-num-layers 1 --recompute-method uniform --recompute-num-layers 1")
    block = peaks_and_step("--mtp-num-layers 1 --recompute-method block --recompute-num-layers 100")
    assert uniform[0][0] == block[0][0] and uniform[0][1] < block[0][1] and uniform[1] > block[1]


@pytest.mark.parametrize(("mtp", "method", "count"), [("", "uniform", "1"), ("--mtp-num-layers 1", "block", "16")])
def test_a_plan_of_all_layers_is_written_as_block_where_mtp_layers_stay(mtp: str, method: str, count: str) -> None:
    Path("job.sh").write_text(f"{FLAGS} {mtp} --recompute-method uniform --recompute-num-layers 1\n")
    config = read_config(Path("job.sh"))
    assert config.plan is not None
    write_plan(config, config.plan, output=Path("out.sh"))
    assert f"--recompute-method {method} --recompute-num-layers {count}" in Path("out.sh").read_text()
    again = read_config(Path("out.sh")).as_it_recomputes()
    assert again.plan == config.plan
