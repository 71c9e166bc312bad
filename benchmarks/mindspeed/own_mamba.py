"""Record what MindSpeed-LLM's Mamba-2 mixer keeps, and what its backward needs: its own code on the meta device.

    python -m benchmarks.mindspeed.own_mamba --megatron PATH --mindspeed PATH --mindspeed_llm PATH

Needs the three checkouts that `benchmarks.mindspeed` names, torch and einops. The program replaces the forward of
Megatron-LM's `MambaMixer` by torch operations. Writes tests/cost_model/mindspeed_mamba.yaml.
"""

from __future__ import annotations

import argparse
import types
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.mindspeed.own_checks import Program
from benchmarks.mindspeed.own_modules import Saved, backward_bytes, rank_of, stand_in_for_device

RECORD = Path(__file__).parents[2] / "tests" / "cost_model" / "mindspeed_mamba.yaml"
COMMIT = "c77308a1"
WORDS = (
    "--spec mindspeed_llm.tasks.models.spec.mamba_spec layer_spec --num-layers 2 --ffn-hidden-size 2048 "
    "--num-attention-heads 8 --seq-length 4096 --max-position-embeddings 4096 --global-batch-size 8 --bf16 "
    "--tokenizer-type NullTokenizer --vocab-size 32000 --position-embedding-type none --normalization RMSNorm "
    "--transformer-impl local --no-gradient-accumulation-fusion --use-cpu-initialization --mamba-expand 2 "
    "--mamba-state-dim 128 --mamba-head-dim 64 --disable-bias-linear"
)
SHAPES = (
    # heads, groups, chunk, CP, TP, rank, micro-batch, tokens of a rank, fused norm
    (32, 2, 128, 1, 1, 0, 1, 2048, True),
    (32, 2, 128, 1, 1, 0, 2, 2048, True),
    (16, 1, 128, 1, 1, 0, 2, 2048, True),
    (80, 1, 256, 1, 1, 0, 1, 2048, True),
    (32, 8, 128, 1, 4, 0, 2, 2048, True),
    (32, 2, 128, 1, 1, 0, 2, 2048, False),
    (32, 2, 128, 2, 1, 0, 1, 2048, True),
    (32, 2, 128, 2, 1, 0, 2, 2048, True),
    (32, 2, 128, 2, 1, 0, 4, 2048, True),
    (32, 2, 128, 2, 1, 1, 2, 2048, True),
    (32, 2, 128, 4, 1, 3, 2, 2048, True),
    (32, 2, 128, 2, 1, 0, 1, 512, True),
)


def measure(program: Program) -> list[dict[str, Any]]:
    """Bytes that the mixer of each shape keeps, and that its backward needs."""
    from mindspeed_llm.features_manager.models.mamba import MambaModel

    from mindspeed.patch_utils import MindSpeedPatchesManager

    MambaModel().register_patches(MindSpeedPatchesManager, types.SimpleNamespace())
    MindSpeedPatchesManager.apply_patches()
    return [_run(program, *shape) for shape in SHAPES]


def _run(
    program: Program, heads: int, groups: int, chunk: int, cp: int, tp: int, rank: int, mbs: int, tokens: int,
    fused: bool,
) -> dict[str, Any]:  # fmt: skip
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from megatron.training import global_vars
    from megatron.training.arguments import core_transformer_config_from_args

    hidden = heads * 32
    words = (
        f"{WORDS} --hidden-size {hidden} --mamba-num-groups {groups} --mamba-chunk-size {chunk}"
        f" --micro-batch-size {mbs}"
        f" --tensor-model-parallel-size {tp} --context-parallel-size {cp} {'--use-fused-rmsnorm' if fused else ''}"
        f" {'--context-parallel-algo mamba_cp_algo' if cp > 1 else ''}"
    )
    args = program.arguments(words.split(), tp * cp)
    global_vars.set_args(args)
    torch.manual_seed(0)
    degrees = {"tensor_model_parallel_size": tp, "context_parallel_size": cp}
    with rank_of(tp * cp, rank, **degrees), torch.device("meta"):
        mixer = MambaMixer(
            core_transformer_config_from_args(args),
            MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear),
            d_model=hidden,
            layer_number=1,
        )
        x = torch.randn(tokens, mbs, hidden, dtype=torch.bfloat16, requires_grad=True)
        known = [x, *mixer.parameters()]
        with Saved(*known) as saved:
            out = mixer(x)[0]
        del out
        needed = backward_bytes(lambda: mixer(x)[0], x)
    return {
        "heads": heads, "groups": groups, "chunk": chunk, "cp": cp, "tp": tp, "rank": rank, "mbs": mbs,
        "tokens": tokens, "fused_norm": fused, "kept": saved.bytes, "backward": needed,
    }  # fmt: skip


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("megatron", "mindspeed", "mindspeed_llm"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()
    program = Program(args.megatron, args.mindspeed, args.mindspeed_llm, installed=frozenset({"einops"}))
    stand_in_for_device()
    text = f"# Bytes of MindSpeed-LLM {COMMIT}'s Mamba-2 mixer, run (python -m benchmarks.mindspeed.own_mamba).\n"
    RECORD.write_text(
        text + yaml.safe_dump(measure(program), width=118, sort_keys=False, default_flow_style=None), "utf-8"
    )


if __name__ == "__main__":
    main()
