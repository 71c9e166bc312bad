"""Small files of every launcher, read by the product and by readers that share nothing with it."""

from __future__ import annotations

import ast
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.differential_reading import __main__ as differential
from benchmarks.differential_reading.mutants import mutated
from benchmarks.differential_reading.reading import FIELDS, PLACES
from benchmarks.differential_reading.sandbox import available, launches

FILES = {
    "pretrain.sh": """#!/bin/bash
set -eu
cd "$(dirname "$0")"
source ../set_env.sh
NODES=${NODES:-"2"}
GPUS=8
SIZE=13
if [[ $SIZE == 7 ]]; then LAYERS=32; WIDTH=4096; elif [[ $SIZE == 13 ]]; then LAYERS=40; WIDTH=5120; else exit 1; fi
cat <<EOF > settings.json
{"train_batch_size": 7}
EOF
[ $NODES -gt 1 ] && PP=2 || PP=1
MODEL=(
    --num-layers $LAYERS  # all of them
    --hidden-size ${WIDTH} --ffn-hidden-size 13824
    --num-attention-heads 40 --seq-length 4096 --max-position-embeddings 4096
    --padded-vocab-size 32000 --swiglu --disable-bias-linear --position-embedding-type rope
)
RUN="--tensor-model-parallel-size 4 --pipeline-model-parallel-size $PP \\
    --micro-batch-size 1 --global-batch-size $((GPUS * NODES * 2)) --bf16 --use-distributed-optimizer \\
    --recompute-granularity full --recompute-method block --recompute-num-layers 1 --sequence-parallel"
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py "${MODEL[@]}" $RUN 2>&1 | tee "logs/$(date +%F).log"
""",
    "slurm.sh": """export RUN="python -m torch.distributed.run --nproc_per_node 4 --nnodes 4"
export ARGS="--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --seq-length 2048 \\
  --max-position-embeddings 2048 --vocab-size 50257 --num-experts 8 --moe-router-topk 2 \\
  --expert-model-parallel-size 4 --micro-batch-size 2 --global-batch-size 64 --fp16 --checkpoint-activations"
srun --ntasks 4 bash -c '$RUN --node_rank $SLURM_PROCID pretrain_gpt.py $ARGS' | tee log
""",
    "legacy.yaml": """model:
  model_config: {type: LlamaConfig, num_layers: 32, hidden_size: 4096, num_heads: 32, n_kv_heads: 8, seq_length: 8192,
    multiple_of: 1024, ffn_dim_multiplier: 1.3, vocab_size: 128256, pp_interleave_num: 2}
moe_config: {expert_num: 8, num_experts_chosen: 2}
parallel: {enable_parallel_optimizer: True, pipeline_config: {pipeline_interleave: True}}
parallel_config: {data_parallel: &dp 8, model_parallel: 2, pipeline_stage: 4, micro_batch_num: 16, expert_parallel: *dp}
runner_config: {batch_size: 1}
micro_batch_interleave_num: 2
recompute_config: {recompute: [4, 2, 1, 0]}
""",
    "mcore.yaml": """use_legacy: False
model:
  model_config: {model_type: qwen3, num_hidden_layers: 64, hidden_size: 5120, intermediate_size: 25600,
    seq_length: 4096, num_attention_heads: 64, num_key_value_heads: 8, head_dim: 128, vocab_size: 151936}
parallel_config: {data_parallel: 4, model_parallel: 4, context_parallel: 2, pipeline_stage: 1}
runner_config: {batch_size: 1, gradient_accumulation_steps: 8}
recompute_config: {recompute: False, select_recompute: True}
""",
    "train.toml": """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 16
seq_len = 8192
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 4
pipeline_parallel_degree = 2
pipeline_parallel_schedule = "Interleaved1F1B"
pipeline_parallel_microbatch_size = 2
[activation_checkpoint]
mode = "full"
""",
}
scripts_run = pytest.mark.skipif(not available(), reason="this machine lets no one close a script in")


@pytest.mark.parametrize("name", [pytest.param(name, marks=scripts_run if ".sh" in name else ()) for name in FILES])
def test_a_file_is_read_alike_in_all_fields(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(FILES[name])
    (compared,) = differential.compare_folders([tmp_path])
    assert (compared.apart, compared.refusal, compared.differences) == ("", "", ())
    assert len(FIELDS) <= compared.settled <= len(FIELDS) + len(PLACES)


@pytest.mark.parametrize("name", [pytest.param(name, marks=scripts_run if ".sh" in name else ()) for name in FILES])
def test_a_changed_file_is_read_alike(tmp_path: Path, name: str) -> None:
    draw, file, read = random.Random(name), tmp_path / name, 0
    for _ in range(8):
        file.write_text(mutated(FILES[name], file.suffix, draw))
        compared = differential.compare(file)
        assert compared.differences == (), file.read_text()
        read += not compared.apart and not compared.refusal
    assert read >= 4


def test_a_difference_is_named_with_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.toml").write_text(FILES["train.toml"])
    (tmp_path / "other.toml").write_text("[tool]\nname = 'x'\n")
    assert differential.main([str(tmp_path), "--workers", "1"]) == 0
    read = differential.read_product
    monkeypatch.setattr(differential, "read_product", lambda path: {**read(path), "layers": 81})
    assert differential.main([str(tmp_path), "--workers", "1"]) == 1
    printed = capsys.readouterr().out
    assert "train.toml: layers: 81 here, 80 by the independent reader" in printed and "is no training file" in printed


def test_the_independent_readers_share_no_code_with_the_products() -> None:
    folder = Path(differential.__file__).parent
    readers = [file for file in folder.glob("*.py") if file.stem not in ("__main__", "product")]
    assert {"megatron", "mindformers", "torchtitan", "trainers", "nemo_rl", "verl"} < {file.stem for file in readers}
    for file in readers:
        for each in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [one.name for one in each.names] if isinstance(each, ast.Import) else []
            names += [each.module or ""] if isinstance(each, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "taylor" for name in names), file
    loaded = ", ".join(f"benchmarks.differential_reading.{file.stem}" for file in readers)
    program = f"import sys, {loaded}\nprint(*(name for name in sys.modules if name.startswith('taylor.')))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    # Messages and files of `taylor.base` come with the campaigns' own tools.
    assert {name.split(".")[1] for name in printed.split()} <= {"base"}


@scripts_run
def test_a_script_that_is_run_reaches_nothing_outside(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = (
        f"echo x > {mark}\nls {tmp_path} > {mark}\n/usr/bin/touch {mark}\necho x > /dev/tcp/127.0.0.1/22\ntorchrun a.py"
    )
    assert [call[0] for call in launches(script)][-1] == "torchrun"
    assert not mark.exists()
