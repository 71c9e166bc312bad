"""A small real stage on the CPU allocator beside its own dry-run on fake tensors."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from taylor.cost_model.job.strategy import Strategy, TrainingRules  # noqa: E402
from taylor.dryrun.torch_stage.run import run_stage  # noqa: E402
from taylor.pipeline.plan import FULL, NONE, SELECT  # noqa: E402
from taylor.register.model import ModelSpec  # noqa: E402
from tests import torch_stage_cases as cases  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
WHOLE_EXPERTS = cases.MEGATRON.replace(expert_tensor_parallel=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "rules", "strategy", "stage", "mode"),
    [
        (cases.LLAMA, cases.MEGATRON, Strategy(2, 2, 2, op=2, micro_batches=3), 0, NONE),
        (cases.LLAMA, cases.MEGATRON, Strategy(2, 2, 2, op=2, micro_batches=3), 1, FULL),
        (cases.GPT, cases.UNFUSED_GPT, Strategy(2, 1, 2, micro_batches=3, sp=False), 0, SELECT),
        (cases.LATENT, WHOLE_EXPERTS, Strategy(4, 2, 2, 4, op=4, micro_batches=3), 1, NONE),
        (cases.MOE, cases.MINDFORMERS, Strategy(4, 2, 2, 2, op=4, micro_batches=3), 0, NONE),
        (cases.LLAMA, cases.TORCHTITAN, Strategy(4, 2, 2, op=4, micro_batches=3), 1, NONE),
        (cases.LLAMA, cases.TORCHTITAN, Strategy(4, 1, 1, op=4, micro_batches=2), 0, FULL),
    ],
    ids=[
        "llama first",
        "llama last full",
        "gpt select",
        "latent last",
        "moe mindformers",
        "torchtitan last",
        "fsdp full",
    ],
)
def test_a_real_stage_has_the_live_bytes_that_its_dry_run_foretells(
    tmp_path: Path, model: ModelSpec, rules: TrainingRules, strategy: Strategy, stage: int, mode: str
) -> None:
    run = cases.job(model, strategy, rules, mode=mode)
    (tmp_path / "run").write_bytes(pickle.dumps(run))
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch_stage_real", str(tmp_path / "run"), str(stage)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout.splitlines()[-1])
    # The CPU allocator sees the insides of kernels, so the dry-run looks at them too.
    foretold = run_stage(run, stage, whole_step=True, see_kernels=True)
    live_mib = foretold.peak_mib - foretold.categories["overhead"]
    assert real["events"] > 1000
    assert live_mib == pytest.approx(real["peak"] / 2**20, rel=0.01)
