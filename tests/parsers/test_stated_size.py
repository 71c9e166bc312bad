"""A size far from the one in the file's name is said in one line; a size that agrees, or none, is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.parsers.read import read_config

SEVEN = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 11008 "
    "--num-attention-heads 32 --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 "
    "--global-batch-size 64 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --swiglu "
    "--position-embedding-type rope --padded-vocab-size 32000 --untie-embeddings-and-output-weights --bf16\n"
)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("pretrain_7b", None), ("pretrain", None), ("pretrain_8B_A3_ptd", None), ("tune_13b_a7b", None),
        ("pretrain_6_7b", None), ("pretrain-6.7b", None), ("llama2_7b_tp2_pp2", None), ("run_32k_100b2", None),
        ("pretrain_671b_4k", "the file's name says 671b, and it describes 6.7 B parameters, one 99.6th of that"),
        ("pretrain_0_5b", None), ("pretrain_1b", "6.7 times as many: is a size missing"),
        ("pretrain_2t_a7b", "the file's name says 2t"),
    ],
)  # fmt: skip
def test_a_size_far_from_the_one_in_the_name_is_said_in_one_line(name: str, says: str | None, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.sh"
    file.write_text(SEVEN, encoding="utf-8")
    notes = [note for note in read_config(file).notes if "name says" in note]
    assert len(notes) == (says is not None) and (says is None or says in notes[0])
