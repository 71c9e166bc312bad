"""What MindSpeed-LLM's torch code of Mamba-2 keeps, against what autograd saved when that code ran.

The figures are bytes a token of all storages that ``torch.autograd.graph.saved_tensors_hooks`` saw in the mixer's
forward of MindSpeed-LLM c77308a1 (mindspeed_llm/core/ssm/mamba_mixer.py on meta tensors, 2,048 tokens a rank and two
samples), without parameters and the projection's input.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from taylor.cost_model.recurrent import recurrent_bytes, recurrent_room_bytes
from taylor.cost_model.strategy import Strategy, TrainingRules
from taylor.parsers.read import read_config
from taylor.register.layers import MambaSpec

SAVED = {
    # (heads, groups, chunk, cp): saved. Heads of 64, states of 128.
    (32, 2, 128, 1): 142_207,
    (16, 1, 128, 1): 67_204,
    (80, 1, 256, 1): 423_441,
    (32, 2, 128, 2): 148_610,
}


@pytest.mark.parametrize("shape", SAVED, ids=str)
@pytest.mark.parametrize("tp", [1, 4])
def test_the_torch_scan_keeps_what_autograd_saves_of_it(shape: tuple[int, int, int, int], tp: int) -> None:
    heads, groups, chunk, cp = shape
    mamba = MambaSpec(tp * heads * 64, tp * heads, 128, n_groups=tp * groups)
    rules = TrainingRules(torch_scan=chunk)
    assert recurrent_bytes(mamba, Strategy(1, tp, 1, cp=cp), rules, 1) == pytest.approx(SAVED[shape], rel=0.01)


@pytest.mark.parametrize(("cp", "measured"), [(1, 12_660), (2, 140_182)])
def test_its_backward_holds_matrices_of_the_chunks_where_ranks_share_a_sample(cp: int, measured: int) -> None:
    """Most that lived in its backward, less what was kept: every storage counted as torch made and freed it."""
    mamba, rules = MambaSpec(2048, 32, 128, n_groups=2), TrainingRules(torch_scan=128)
    assert recurrent_room_bytes(mamba, 64, 1, Strategy(1, 1, 1, cp=cp), rules) == pytest.approx(measured, rel=0.04)


SCRIPT = """torchrun --nproc_per_node 8 pretrain_mamba.py
 --spec {spec} --num-layers 4 --hidden-size 1024 --num-attention-heads 16 --seq-length 4096
 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 8 --mamba-num-groups 8 --bf16
 --vocab-size 32000 --position-embedding-type none {more}
"""
OF_MINDSPEED = "mindspeed_llm.tasks.models.spec.mamba_spec layer_spec"
OF_MEGATRON = "megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"


@pytest.mark.parametrize(
    ("spec", "more", "chunk"),
    [
        (OF_MINDSPEED, "", 256),
        (OF_MINDSPEED, "--mamba-chunk-size 128", 128),
        (OF_MEGATRON, "--hybrid-override-pattern MMMM", None),
    ],
)
def test_mindspeed_alone_runs_the_scan_in_torch(tmp_path: Path, spec: str, more: str, chunk: int | None) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT.format(spec=spec, more=more).replace("\n ", " "))
    assert read_config(path).rules.torch_scan == chunk
