"""Files that run no training step are refused as such: inference and evaluation, checkpoint conversion, data."""

from __future__ import annotations

import re

import pytest

from taylor.base.errors import InputError
from taylor.parsers.read import read_config
from tests.conftest import ROOT

SIZES = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 512 --max-position-embeddings 512 "
    "--micro-batch-size 1"
)
DEGREES = "--tensor-model-parallel-size 1 --pipeline-model-parallel-size 2 --vocab-size 1000"


@pytest.mark.parametrize("mode", ["predict", "eval"])
def test_a_mindformers_file_of_another_mode_is_no_training_job(tmp_path, run_tool, mode):
    text = (ROOT / "config" / "pretrain_llama3_70b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "a.yaml"
    path.write_text(re.sub("run_mode: 'train'", f"run_mode: '{mode}'", text), encoding="utf-8")
    done = run_tool("pipeline_parallel.py", "-yaml", path, "-evaluate", "y", "-write", "n", "-dryrun", "n")
    assert done.returncode == 2
    assert f"run_mode: is no training job: no training step is run (found '{mode}')" in done.stderr


@pytest.mark.parametrize("mode", ["train", "finetune"])
def test_both_modes_that_train_are_read(tmp_path, mode):
    text = (ROOT / "config" / "pretrain_llama3_70b.yaml").read_text(encoding="utf-8")
    path = tmp_path / "a.yaml"
    path.write_text(re.sub("run_mode: 'train'", f"run_mode: '{mode}'", text), encoding="utf-8")
    assert not any("run_mode" in flag.name for flag in read_config(path).unmodelled)


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("python convert_ckpt_v2.py --load-model-type hf --target-tensor-parallel-size 2", "converts a checkpoint"),
        (f"python tools/checkpoint/convert.py {DEGREES}", "converts a checkpoint"),
        (f"python convert_ckpt_deepseek3.py {SIZES} {DEGREES}", "converts a checkpoint"),
        (f"torchrun --nproc_per_node 2 inference.py {SIZES} {DEGREES}", "generates text"),
        (f"torchrun --nproc_per_node 2 evaluation.py {SIZES} {DEGREES}", "evaluates a model"),
        ("python ./preprocess_data.py --input a.jsonl --output-prefix b", "prepares data"),
    ],
)
def test_a_script_of_another_program_is_no_training_job(tmp_path, command, told):
    path = tmp_path / "a.sh"
    path.write_text(f"#!/bin/bash\n{command}\n")
    with pytest.raises(InputError, match=f"is no training job: .*{told}"):
        read_config(path)


@pytest.mark.parametrize(
    "program", ["pretrain_gpt.py", "posttrain_gpt.py", "examples/multimodal/train.py", "finetune.py"]
)
def test_programs_that_train_are_read(tmp_path, program):
    path = tmp_path / "a.sh"
    path.write_text(f"python convert_ckpt.py --load-dir a\ntorchrun --nproc_per_node 2 {program} {SIZES} {DEGREES}\n")
    assert read_config(path).strategy.pp == 2
