"""What other tools say of measured runs: Megatron-LM's own formula restated, and copies of tools run beside."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measured_runs import MeasuredRun
from benchmarks.peers import CALCULON, DEVICES, megatron_memory_mib, steps_beside, summary
from taylor.cost_model.job.parameters import total_parameters
from taylor.parsers.read import read_config
from taylor.parsers.training_config import TrainingConfig

GPT = """\
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py \\
    --num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 \\
    --position-embedding-type rope --micro-batch-size 2 --global-batch-size 32 --vocab-size 50304 --bf16 \\
    --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights {more}
"""


@pytest.fixture
def job(tmp_path: Path):  # type: ignore[no-untyped-def]
    def read(more: str = "") -> TrainingConfig:
        path = tmp_path / "train.sh"
        path.write_text(GPT.format(more=more))
        return read_config(path)

    return read


def test_megatron_s_formula_counts_the_parameters_and_the_activations_of_its_source(job) -> None:  # type: ignore[no-untyped-def]
    config = job()
    # theoretical_memory_usage.py: 18 bytes a parameter, (10 + 24 / TP) bytes a layer, embedding, logits, 5 % on top.
    tokens = 2 * 1024
    activations = 1.05 * (tokens * 512 * 34 * 4 + tokens * (8 + 512) + 2 * tokens * (50304 + 512))
    told = (18 * total_parameters(config.model) + activations) / 2**20
    assert megatron_memory_mib(config) == pytest.approx(told, rel=1e-9)
    assert megatron_memory_mib(job("--use-distributed-optimizer")) < megatron_memory_mib(config)


COPY = """
import json, sys
class Llm:
    class Error(Exception): pass
    class Application:
        def __init__(self, cfg): self.layers = cfg["num_blocks"]
    class Execution:
        @staticmethod
        def from_json(cfg): return cfg
    def __init__(self, application, logger): self.layers = application.layers
    def compile(self, system, execution):
        if execution["tensor_par"] > 4: raise Llm.Error("tensor parallelism too large")
    def run(self, system): pass
    def get_total_time(self): return 0.001 * self.layers
"""


def test_a_copy_is_run_and_what_it_refuses_is_said(job, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    package = tmp_path / "copy" / "calculon"
    package.mkdir(parents=True)
    (package / "llm.py").write_text(COPY)
    (package / "system.py").write_text("System = dict")
    (package / "io.py").write_text("import json\ndef read_json_file(name): return json.load(open(name))")
    (package / "__init__.py").write_text("")
    (tmp_path / "copy" / "systems").mkdir()
    (tmp_path / "copy" / "systems" / "a100_80g.json").write_text('{"mem1": {}}')
    runs = [
        MeasuredRun(
            "set", name, 0.0, 0.0, 0.0, None, predicted_ms=5.0, measured_ms=8.0, device=DEVICES[0], config=job(more)
        )
        for name, more in (("one", ""), ("wide", "--tensor-model-parallel-size 8"))
    ]
    rows, missing = steps_beside(runs, CALCULON, tmp_path / "copy")
    assert [(row.file, row.peer) for row in rows] == [("one", 4.0)]
    assert missing == {"wide": "tensor parallelism too large"}
    line = summary(rows, "Calculon").iloc[-1]
    assert line["Taylor: median %"] == pytest.approx(37.5) and line["Calculon: median %"] == pytest.approx(50)
    with pytest.raises(ValueError, match="give the folder of its sources"):
        steps_beside(runs, CALCULON, tmp_path)
